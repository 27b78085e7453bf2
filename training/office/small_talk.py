"""What people type first, before they ask what a page says: greetings, thanks, and questions that fit any page.

None of it can be read off the page, and a model that is never told what to say takes a name or a refusal for the
answer. Replies are few and short: they say what the model is there for.
"""

from __future__ import annotations

import re

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
            "Write a program for this.", "Draw it.", "What is the weather like?", "Send it to my boss.", "Print it.", "Who will win the election?", "Book it for me.", "Pay it for me.",
        ),
        "I can only answer questions about what it says.",
    ),
)  # fmt: skip
TRANSLATE = (
    "Translate this into {}.", "Translate it to {}", "translate to {}", "Can you translate this into {}?", "What does it say in {}?", "In {} please", "Please translate it into {}.",
)  # fmt: skip
NO_TRANSLATION = "I cannot translate."
DESCRIBE = (
    "Describe the picture.", "Describe the image.", "Describe this.", "What can you see?", "What is in the picture?", "What does the image show?", "describe it", "What do you see?",
    "Tell me what is in the image.", "Explain this picture.",
)  # fmt: skip
COUNT = (
    "How many pages are there?",
    "How many pages does it have?",
    "number of pages",
    "How many pages is it?",
    "How long is the document, in pages?",
)
MORE = (
    "Is there more than one page?",
    "Does it go on on another page?",
    "Are there more pages?",
    "Does it have several pages?",
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
    "Is there an email on the page?",
    "Can I see an e-mail address on it?",
)
MONEY = (
    "Is any amount of money mentioned?",
    "Does it mention an amount of money?",
    "Are there any prices on it?",
    "Does it say anything about money?",
)
# pages with fewer of these may be in another language: a receipt from abroad, a menu
_ENGLISH, ENGLISH_WORDS = (
    re.compile(r"\b(?:the|of|and|to|for|in|is|at|with|from|by|on|are|was|this|you|not)\b", re.I),
    4,
)
HEARD = (
    "What is this?",
    "What is it?",
    "What do I hear?",
    "What is on the recording?",
    "What did I upload?",
    "What sort of file is this?",
    "What am I listening to?",
)
A_RECORDING = "a recording of someone speaking"
_SUM = re.compile(
    r"[$\u20ac\u00a3\u00a5]|\b(?:EUR|USD|GBP|CHF|JPY|SEK|NOK|DKK|PLN|CZK|euros?|dollars?|pounds?|francs?)\b"
)
_MAYBE = re.compile(r"\d[.,]\d\d\b|cents?\b|pence|fee|free|pay|cost|price|charge|rent|tax|total|money|amount", re.I)


def _one(r: Rng, ways: tuple[str, ...], held: bool) -> str:
    return r.pick(ways[-HELD:] if held else ways[:-HELD])


def small_talk(r: Rng, held: bool = False) -> tuple[str, str]:
    """Something said that the page has no part in, and the reply; in words kept for evaluation if ``held``."""
    if r.chance(0.15):
        return _one(r, TRANSLATE, held).format(r.pick(LANGUAGES)), NO_TRANSLATION
    said, reply = r.pick(SAID)
    return _one(r, said, held), reply


def thanks(r: Rng) -> tuple[str, str]:
    """Thanks after an answer, and the reply."""
    return _one(r, THANKS, False), WELCOME


def about_any_page(r: Rng, page: Page, kind: str, held: bool = False) -> tuple[str, str]:
    """A question that fits any single page, and its answer.

    Args:
        r: draws it. page: what is asked about. kind: what it is, as an answer: "a letter". held: in words kept for
            evaluation.
    """
    text = "\n".join(page.lines)
    known = [(DESCRIBE, described(page, kind)), (MAIL, "Yes" if "@" in text else "No")]
    if len(_ENGLISH.findall(text)) >= ENGLISH_WORDS:
        known.append((LANGUAGE, "English"))
    if _SUM.search(text):
        known.append((MONEY, "Yes"))
    elif not _MAYBE.search(text):
        known.append((MONEY, "No"))
    known += [(COUNT, "1"), (MORE, "No")]
    asked, answer = r.pick(known)
    return _one(r, asked, held), answer


def about_any_recording(r: Rng, held: bool = False) -> tuple[str, str]:
    """A question that fits any recording, and its answer."""
    asked, answer = r.pick(((HEARD, A_RECORDING), (LANGUAGE, "English")))
    return _one(r, asked, held), answer


def described(page: Page, kind: str) -> str:
    """The page in a sentence: what it is, and the words that it begins with."""
    begin = page.lines[0] if page.lines else ""
    end = "." if begin[-1:] not in ".!?:" else ""
    return f"{kind[0].upper()}{kind[1:]}: {begin}{end}" if begin else f"{kind[0].upper()}{kind[1:]}."
