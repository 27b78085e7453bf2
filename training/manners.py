"""How differently people type one question: turned around, polite, in a hurry, with mistakes.

A manner keeps what is asked. Those of `HELD_OPENERS` and `HELD_CLOSERS` are kept for evaluation.
"""

from __future__ import annotations

import re
import string

from training.pages.values import Rng

OPENERS = (
    "Can you tell me, ", "Quick question: ", "Please tell me: ", "I would like to know: ", "I'd like to know: ", "Hey, ", "Hi, ", "Hello, ", "Sorry, ",
    "One more thing: ", "So, ", "And ", "Ok, ", "Okay, ", "Do you know: ", "According to the document, ", "According to this, ", "Looking at this page: ",
    "From the picture: ", "Based on this, ", "In the attached file: ", "I can't read it well: ", "Just to be sure: ", "Let me ask: ", "Question: ", "Q: ",
    "Please: ", "Tell me: ", "My boss asks: ", "I wonder: ", "Can you check: ", "Help me out: ", "I have to know: ", "Look at this and tell me: ",
    "Thanks! And ", "In this document, ", "On this page, ", "As far as you can see, ", "Could you look this up: ", "My question is: ", "Please check: ",
)  # fmt: skip
HELD_OPENERS = (
    "Would you mind telling me: ", "Here is my question: ", "I need to find out: ", "Going by this page, ", "Short question: ", "Could you check: ",
    "I forgot, ", "Please have a look: ",
)  # fmt: skip
CLOSERS = (
    " please", ", please", " Thanks.", " Thank you!", " according to the page", " here", " on this page", " in this document", " in the picture", " in the image",
    " according to this", " exactly", " by the way", " again", " Thanks in advance.",
)  # fmt: skip
HELD_CLOSERS = (" Many thanks.", " going by this page", ", thanks", " as written here")
SHORTLY = (
    "\nAnswer the question using a single word or phrase.", " Answer briefly.", " Keep it short.", " Just the answer.", " Short answer please.", " In a few words.",
    " Only the value.", " Answer with the words of the page.", " Use the words of the document.", " No explanation.", " (short answer)",
)  # fmt: skip

_NOUN = re.compile(r"What (?:is|was|are|were) (the [^?]+)\?")
_WHO = re.compile(
    r"Who (?!is |was |are |were |does |did |do |will |would |should |has |have |had |can |may |must |else )(\w+ [^?]+)\?"
)
_WHO_IS = re.compile(r"Who (is|was) (the [\w' -]+)\?")
_MUCH = re.compile(r"How (much|high|large|long|old|heavy|far) (is|was|are|were) (the [\w' -]+)\?")
_WHERE = re.compile(r"(Where|When) (is|was) (the \w+(?: of the \w+)?)\?")
# a noun phrase does not end so: "What is the page called?" asks about the page, not for "the page called"
_NOT_NOUN = re.compile(
    r"(?:\w+ed|about|for|like|worth|made|of|to|from|in|on|at|with|by|written|shown|given|sold|sent|paid|due|known|held|left|here|there)$"
)
_SWAPS = (
    ("On which day ", ("What day ", "On what day ", "On what date ", "Which day ")), ("On what day ", ("What day ", "On which date ")),
    ("At what time ", ("What time ", "At which time ", "When exactly ")), ("What time ", ("At what time ",)), ("In which town ", ("In what town ", "What town ")),
    ("In which city ", ("In what city ", "Which city ")), ("Until when ", ("Till when ", "Up to when ")), ("By when ", ("Until when ", "By what date ")),
    ("Which ", ("What ",)), ("What is the ", ("What's the ", "Whats the ", "what is the ")), ("What is ", ("What's ", "What exactly is ")), ("Who is ", ("Who's ", "Who exactly is ")),
    ("Where is ", ("Where's ",)), ("How many ", ("What number of ", "how many ")), ("When is ", ("When's ", "When exactly is ")),
    ("do I have to ", ("must I ", "do I need to ", "should I ")), ("can I ", ("could I ", "may I ")), (" cannot ", (" can't ",)),
)  # fmt: skip


def lower_first(text: str) -> str:
    """``text`` without the capital of its first word, unless that is a name's or an abbreviation's."""
    return text[0].lower() + text[1:] if text[:1].isupper() and not text[1:2].isupper() else text


def turned(r: Rng, question: str) -> str:
    """The question in another form: as a request, as a noun alone, as an indirect question; itself where none fits."""
    if (match := _NOUN.fullmatch(question)) and not _NOT_NOUN.search(match[1]):
        noun, bare = match[1], match[1][4:]
        return r.pick((
            f"{bare}?", f"{bare}", f"{noun}?", f"{bare[0].upper()}{bare[1:]}?", f"Tell me {noun}.", f"I need {noun}.", f"Find {noun}.", f"Give me {noun}.", f"Could you give me {noun}?",
            f"Can you find {noun}?", f"{noun} please", f"I am looking for {noun}.", f"What does it say about {noun}?", f"Read me {noun}.", f"Please give {noun}.", f"{bare} ??", f"{bare}:",
        ))  # fmt: skip
    if match := _WHO.fullmatch(question):
        rest = match[1]
        return r.pick((
            f"Tell me who {rest}.", f"I want to know who {rest}.", f"Can you see who {rest}?", f"Do you know who {rest}?", f"What is the name of the person who {rest}?", f"Which person {rest}?",
            f"Name the person who {rest}.", f"Does it say who {rest}?", f"Who was it that {rest}?", f"who {rest}",
        ))  # fmt: skip
    if match := _WHO_IS.fullmatch(question):
        verb, noun = match.groups()
        return r.pick(
            (
                f"Tell me who {noun} {verb}.",
                f"Can you tell me who {noun} {verb}?",
                f"What is the name of {noun}?",
                f"{noun[4:]}?",
                f"Name of {noun}?",
                f"Do you know who {noun} {verb}?",
            )
        )
    if match := _MUCH.fullmatch(question):
        size, verb, noun = match.groups()
        return r.pick(
            (
                f"Can you tell me how {size} {noun} {verb}?",
                f"I want to know how {size} {noun} {verb}.",
                f"Tell me how {size} {noun} {verb}.",
                f"How {size} {verb} {noun[4:]}?",
                f"Do you see how {size} {noun} {verb}?",
            )
        )
    if match := _WHERE.fullmatch(question):
        word, verb, noun = match.groups()
        low = word.lower()
        return r.pick(
            (
                f"Can you tell me {low} {noun} {verb}?",
                f"Tell me {low} {noun} {verb}.",
                f"Does it say {low} {noun} {verb}?",
                f"{low} {verb} {noun[4:]}",
            )
        )
    for lead, others in _SWAPS:
        if question.startswith(lead) and r.chance(0.6):
            return r.pick(others) + question[len(lead) :]
    return question


def mistyped(r: Rng, question: str) -> str:
    """One word with a slip of the fingers; names, numbers and quoted words stay."""
    words = question.split(" ")
    slips = [
        i
        for i, w in enumerate(words)
        if len(w.rstrip("?.,")) > 3 and w.strip("?.,").isalpha() and (i == 0 or w.islower())
    ]
    if not slips or '"' in question:
        return question
    i = r.pick(slips)
    w = words[i]
    at, slip = r.randint(1, len(w.rstrip("?.,")) - 2), r.randint(0, 3)
    if slip == 0:
        w = w[:at] + w[at + 1] + w[at] + w[at + 2 :]
    elif slip == 1:
        w = w[:at] + w[at + 1 :]
    elif slip == 2:
        w = w[:at] + w[at] + w[at:]
    else:
        w = w[:at] + r.pick(string.ascii_lowercase) + w[at + 1 :]
    words[i] = w
    return " ".join(words)


def _closed(question: str, closer: str) -> str:
    """A closer behind the stem of a question, or behind its sign if it is a sentence of its own."""
    if closer[-1] in ".!":
        return question + closer
    stem = question.rstrip("?.")
    return stem + closer + question[len(stem) :]


def typed(r: Rng, question: str) -> str:
    """A question of training as somebody might type it."""
    quoted = '"' in question
    if not quoted and r.chance(0.22):
        question = turned(r, question)
    if r.chance(0.07):
        opener = r.pick(OPENERS)
        question = opener + (question if quoted else lower_first(question))
    if r.chance(0.05):
        question = _closed(question, r.pick(CLOSERS))
    if r.chance(0.05):
        question = mistyped(r, question)
    if not quoted:
        if r.chance(0.12):
            question = question.lower() if r.chance(0.6) else lower_first(question)
        elif r.chance(0.015):
            question = question.upper()
        elif r.chance(0.1):
            question = lower_first(question)
    style = r.random()
    if style < 0.15:
        question = question.rstrip("?.")
    elif style < 0.18 and question.endswith("?"):
        question = question[:-1] + r.pick(("??", " ?", "?!", "..."))
    if question[-1] in "?." and r.chance(0.1):
        question += r.pick(SHORTLY)
    return question


def typed_held(r: Rng, question: str) -> str:
    """A question of the evaluation, half the time in a manner that training never shows."""
    if '"' in question or r.chance(0.5):
        return question
    if r.chance(0.6):
        return r.pick(HELD_OPENERS) + lower_first(question)
    return _closed(question, r.pick(HELD_CLOSERS))
