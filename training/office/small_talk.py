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
    "That helps, thank you.", "Good, thanks.", "ta", "ok thank you",
)  # fmt: skip
WELCOME = "You are welcome."
# what is said, and the reply
SAID: tuple[tuple[tuple[str, ...], str], ...] = (
    (
        (
            "hello", "Hello!", "hi", "Hi there", "hey", "Good morning", "Good evening.", "Hello, how are you?", "hi!", "Hello there.", "hallo", "test", "Hey there!", "Good afternoon",
        ),
        "Hello. Ask me what it says.",
    ),
    (THANKS, WELCOME),
    (
        (
            "What can you do?", "How can you help me?", "What can I ask?", "help", "What can I ask you?", "How does this work?", "What are you for?", "What do you do?", "?",
        ),
        "I read pages and recordings and answer questions about them.",
    ),
    (
        ("Who are you?", "What are you?", "Are you a person?", "What is your name?", "which model are you", "Are you an AI?", "Who am I talking to?"),
        "A small model that reads pages and recordings.",
    ),
    (
        (
            "Write a reply to this.", "Write me a poem.", "Tell me a joke.", "Write an answer for me", "Draft a letter in return.", "Correct the mistakes.", "Make it sound nicer.",
            "Write a program for this.", "Draw it.", "Send it to my boss.", "Print it.", "Who will win the election?", "Book it for me.", "Pay it for me.",
        ),
        "I can only answer questions about what it says.",
    ),
)  # fmt: skip
TRANSLATE = (
    "Translate this into {}.", "Translate it to {}", "translate to {}", "Can you translate this into {}?", "What does it say in {}?", "In {} please", "Please translate it into {}.",
)  # fmt: skip
FOREIGN = tuple(language for language in LANGUAGES if language != "English")  # into which it might be translated
NO_TRANSLATION = "I cannot translate."
DESCRIBE = (
    "Describe the picture.", "Describe the image.", "Describe this.", "What can you see?", "What is in the picture?", "What does the image show?", "describe it", "What do you see?",
    "Tell me what is in the image.", "Explain this picture.",
)  # fmt: skip
COUNT = (
    "How many pages did I upload?",
    "How many pages did I give you?",
    "Count the pages that I sent.",
    "How many images did you get from me?",
    "How many pages have you got from me?",
)
LANGUAGE = (
    "What language is it in?",
    "Which language is it written in?",
    "In what language is this?",
    "language of the document",
    "What language is this?",
)
MAIL = (
    "Is there an e-mail address?",
    "Does it give an e-mail address?",
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
