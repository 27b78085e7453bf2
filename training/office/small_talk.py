"""What people type first, before they ask what a page says: greetings, thanks, and questions that fit any page.

A model that is never told what to say to these takes a name for the answer, or refuses. Replies are few and short: they
say what the model is there for. Conversations without a page or a recording have a greeting of their own
(`training.dataset`), which asks for one.
"""

from __future__ import annotations

import re

from training.office.document import SUMMARISE
from training.pages import Page
from training.pages.values import LANGUAGES, Rng

HELD = 2  # last wordings of each, kept for evaluation
THANKS = (
    "Thanks!", "thanks", "Thank you.", "thank you", "thx", "Ok, thanks.", "Great, thank you!", "Perfect, thanks", "Many thanks", "cheers",
    "That helps, thank you.", "Good, thanks.", "Thank you so much!", "Thank you very much.", "Thanks a lot", "Thanks a lot!", "thanks, that is all", "Lovely, thank you",
    "Wonderful, thanks.", "Very helpful, thank you.", "Brilliant, thanks", "That is what I needed, thanks.", "Thank you, that is all.", "tnx", "thanks so much",
    "Super, thanks!", "Nice, thank you.", "Appreciated.", "Much appreciated, thanks.", "I thank you.", "Cheers!", "Right, thanks.", "Fine, thank you.", "ta", "ok thank you",
)  # fmt: skip
WELCOME = "You are welcome."
# what is said, and the reply
SAID: tuple[tuple[tuple[str, ...], str], ...] = (
    (
        (
            "hello", "Hello!", "hi", "Hi there", "hey", "Good morning", "Good evening.", "Hello, how are you?", "hi!", "Hello there.", "hallo", "test", "Hello again", "Hi.",
            "Hello", "Hey!", "hi again", "Good day", "good evening", "Good day to you.", "Hello! Can you help me?", "Hi, how are you?", "hiya", "Greetings", "howdy",
            "Hello, anyone there?", "Are you there?", "Hi, I have a question.", "Hello, I need some help.", "Hello, please help me", "hello hello", "Testing", "test test",
            "just a test", "Morning!", "good morning", "Hey there!", "Good afternoon",
        ),
        "Hello. Ask me what it says.",
    ),
    (THANKS, WELCOME),
    (
        (
            "What can you do?", "How can you help me?", "What can I ask?", "help", "What can I ask you?", "How does this work?", "What are you for?",
            "What can I do with you?", "Help me", "Help!", "Can you help me?", "I need help", "What should I ask?",
            "Explain what you can do.", "What are your skills?", "What kind of questions can I ask?", "What may I ask you?", "Tell me what you can do.",
            "what is it that you do?", "??", "...", "What do you do?", "?",
        ),
        "I read pages and recordings and answer questions about them.",
    ),
    (
        (
            "Who are you?", "What are you?", "Are you a person?", "What is your name?", "which model are you", "What kind of model are you?", "Who made you?", "Are you a robot?",
            "Are you human?", "Am I talking to a person?", "Are you real?", "What should I call you?", "who r u", "Which AI is this?", "Are you a bot?",
            "Do you have a name?",
            "Are you an AI?", "Who am I talking to?",
        ),
        "A small model that reads pages and recordings.",
    ),
    (
        (
            "Write a reply to this.", "Write me a poem.", "Tell me a joke.", "Write an answer for me", "Draft a letter in return.", "Correct the mistakes.", "Make it sound nicer.",
            "Write a program for this.", "Draw it.", "Send it to my boss.", "Print it.", "Who will win the election?", "Write a poem about it.", "Sing me a song.",
            "Tell me a story.", "Write an e-mail to them.", "Write back to them.", "Answer it for me.", "Reply to them that I agree.", "Correct the spelling.", "Rewrite it.",
            "Improve the style.", "Write it as a table in Excel.", "Make a spreadsheet of it.", "Make a slide of this.", "Draw me a picture.", "Paint it red.",
            "Send it to Anna.", "Forward this.", "Print it twice.", "Save it.", "Delete it.", "Call them for me.", "Ring them up.", "Order two of these.", "Buy it.",
            "Cancel it for me.", "Sign it for me.", "Fill it in for me.", "What is the capital of France?", "Search the web for it.", "Open the link.", "Remind me tomorrow.",
            "Put it in my calendar.", "Do my homework.", "Write code.", "Play some music.", "What do you think of politics?", "Book it for me.",
            "Pay it for me.",
        ),
        "I can only answer questions about what it says.",
    ),
)  # fmt: skip
TRANSLATE = (
    "Translate this into {}.", "Translate it to {}", "translate to {}", "Can you translate this into {}?", "What does it say in {}?", "What is this in {}?",
    "{} translation please", "Give me this in {}.", "I need it in {}.", "Say it in {}.", "How do you say this in {}?", "Could you translate this to {}?",
    "Translate the page into {}", "Translate the text to {}.", "Make a {} version of it.", "Put it into {}.", "A translation into {}, please.",
    "I only speak {}, can you translate it?", "Write it in {}.", "translation {}", "In {} please", "Please translate it into {}.",
)  # fmt: skip
FOREIGN = tuple(language for language in LANGUAGES if language != "English")  # into which it might be translated
NO_TRANSLATION = "I cannot translate."
DESCRIBE = (
    "Describe the picture.", "Describe the image.", "Describe this.", "What can you see?", "What is in the picture?", "What does the image show?", "describe it", "What do you see?",
    "Describe what you see.", "What is on the picture?", "What is on the page?", "Describe the page.", "Describe the document.", "What is shown here?",
    "What does this show?", "what do we see here?", "What can be seen?", "Describe the file.", "Say what you see.", "Describe the photo.", "What is in the photo?",
    "What have I sent you?", "Give me a description.", "a short description please", "Tell me what you see.", "Can you describe this?",
    "Tell me what is in the image.", "Explain this picture.",
)  # fmt: skip
COUNT = (
    "How many pages did I upload?",
    "How many pages did I give you?",
    "Count the pages that I sent.",
    "How many pages have I uploaded?",
    "How many pages did you get?",
    "How many pages can you see?",
    "number of pages uploaded",
    "How many sheets did I hand you?",
    "How many pages are in front of you?",
    "Did you get one page or several, how many?",
    "How many images did you get from me?",
    "How many pages have you got from me?",
)
LANGUAGE = (
    "What language is it in?",
    "Which language is it written in?",
    "In what language is this?",
    "What is the language of the text?",
    "In which language is it written?",
    "What language is the text in?",
    "What language is the page in?",
    "What tongue is this written in?",
    "Name the language of the text.",
    "language of the document",
    "What language is this?",
)
MAIL = (
    "Is there an e-mail address?",
    "Does it give an e-mail address?",
    "Is an e-mail address given?",
    "Does it mention an email address?",
    "Any e-mail address?",
    "any email address on it?",
    "Does the page have an e-mail address?",
    "Is there an e-mail address in the document?",
    "Do they give an email address?",
    "Is an email address printed on it?",
    "Can you see an email address?",
    "Does it have an e-mail address on it?",
    "Is there any e-mail to write to?",
    "Is there an email address on the page?",
    "Can I see an e-mail address on it?",
)
_ADDRESS = re.compile(r"[\w.-]+@[\w-]+\.\w")
# a page with fewer of these may be in another language: a receipt from abroad, a menu
_ENGLISH = re.compile(r"\b(?:the|of|and|to|for|in|is|at|with|from|by|on|are|was|this|you|not)\b", re.I)
ENGLISH_WORDS = 4
HEARD = (
    "What is this?",
    "What is it?",
    "What do I hear?",
    "What is on the recording?",
    "What did I upload?",
    "What sort of file is this?",
    "What am I listening to?",
)
SPOKEN = (
    "What language is it in?",
    "Which language is spoken?",
    "What language do they speak?",
    "In what language is this?",
)
A_RECORDING = "a recording of someone speaking"


def _one(r: Rng, ways: tuple[str, ...], held: bool) -> str:
    return r.pick(ways[-HELD:] if held else ways[:-HELD])


def remark(r: Rng, held: bool = False) -> tuple[str, str]:
    """Something said that the page has no part in, and the reply; in words kept for evaluation if ``held``."""
    if r.chance(0.15):
        return _one(r, TRANSLATE, held).format(r.pick(FOREIGN)), NO_TRANSLATION
    said, reply = r.pick(SAID)
    return _one(r, said, held), reply


def thanks(r: Rng) -> tuple[str, str]:
    """Thanks after an answer, and the reply."""
    return _one(r, THANKS, False), WELCOME


def about_any_page(r: Rng, page: Page, held: bool = False) -> tuple[str, str]:
    """A question that fits any single page, and its answer; in words kept for evaluation if ``held``."""
    text = "\n".join(page.lines)
    known = [(COUNT, "1")]
    if (mail := bool(_ADDRESS.search(text))) or "@" not in text:  # the sign has other uses
        known.append((MAIL, "Yes" if mail else "No"))
    if len(_ENGLISH.findall(text)) >= ENGLISH_WORDS:
        known.append((LANGUAGE, "English"))
    known += [(DESCRIBE, fact.value) for fact in page.facts if fact.asks == SUMMARISE]
    asked, answer = r.pick(known)
    return _one(r, asked, held), answer


def about_any_recording(r: Rng) -> tuple[str, str]:
    """A question that fits any recording, and its answer."""
    asked, answer = r.pick(((HEARD, A_RECORDING), (SPOKEN, "English")))
    return r.pick(asked), answer
