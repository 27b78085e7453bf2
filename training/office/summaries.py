"""In a sentence what a generated page is: its kind, and whose it is or what it is about.

Written-out documents, and some kinds of generated ones, say so in words of their own (`Document.about`). The others are
told apart by one or two of their facts.
"""

from __future__ import annotations

from training.office.document import SUMMARISE
from training.pages import Page

# the first question of a fact, or its key where it has none of its own, and how a sentence goes on with the value
TOLD_BY = {
    "issuer": " from {}", "sender": " from {}", "store": " of {}", "customer": " to {}", "recipient": " to {}",
    "title": ": {}", "What is the title?": ": {}", "What is the title of the chart?": ": {}",
    "What is the title of the table?": ": {}", "What is the title of the slide?": ": {}",
    "What is the title of the page?": ": {}", "What is the title of the text?": ": {}",
    "What is the name of the file?": ": {}", "What is the group called?": ": {}",
    "Whose badge is this?": " of {}", "Whose card is it?": " of {}", "Whose CV is it?": " of {}",
    "Whose certificate is it?": " of {}", "Who wears this?": " of {}", "Which event is the badge for?": " for {}",
    "Who gets the salary?": " for {}", "Who pays the salary?": " from {}", "Which month is shown?": " for {}",
    "Which company sent the bill?": " from {}", "Whose bill is it?": " to {}", "Who is the note for?": " for {}",
    "Who wrote the note?": " from {}", "What is the poster for?": " for {}", "What is the ticket for?": " for {}",
    "What product is this?": " of {}", "What is the shop called?": " of {}", "Which shop is this?": ": {}",
    "Which shop is the receipt from?": " of {}", "Whose website is it?": " of {}", "Which site is it?": ": {}",
    "Whose prices are these?": " of {}", "What is the newspaper called?": " of {}", "What is the subject?": " about {}",
    "Which program is shown?": ": {}", "Which program do the settings belong to?": ": {}", "Which app is it?": ": {}",
}  # fmt: skip
MOST_TOLD = 2


def summary_of(page: Page, kind: str) -> str | None:
    """As a sentence: "An invoice from Stark & Sons to Ann Poole.", of a page of that ``kind``.

    None where the page has a summary of its own, is of scraps of unrelated texts ("sheet"), or no fact tells it apart.
    """
    if page.kind == "sheet" or any(fact.asks == SUMMARISE for fact in page.facts):
        return None
    known: dict[str, str] = {}
    for fact in page.facts:
        way = TOLD_BY.get(fact.subject if fact.asks else fact.key)
        if way is not None:
            known.setdefault(way, fact.value)
    if not known:
        return None
    told = "".join(way.format(value) for way, value in sorted(known.items(), key=_order)[:MOST_TOLD])
    return f"{kind[:1].upper()}{kind[1:]}{told}{'' if told.endswith(('.', '!', '?')) else '.'}"


def _order(known: tuple[str, str]) -> int:
    """A title ends a sentence, and whose it is comes before for whom."""
    return (" of {}", " from {}", " to {}", " for {}", " about {}", ": {}").index(known[0])
