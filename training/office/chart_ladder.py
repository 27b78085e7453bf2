"""What charts are asked: the words for their parts, and the steps that questions are drawn from.

Every step has more questions than are asked; each draws a few of them, so that a page asks of everything.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from training.office.document import Document

RISES, FALLS = "it rises", "it falls"
# questions of each step that are asked, from easy to hard
STEPS = {
    "labels": 3, "legend": 2, "listed": 2, "value": 4, "found": 2, "extreme": 2, "pair": 2, "rank": 2, "sum": 1,
    "trend": 1,
}  # fmt: skip
WORDS = {
    "bar": "bar",
    "column": "bar",
    "line": "point",
    "area": "point",
    "step": "label",
    "dots": "dot",
    "lollipop": "dot",
    "pie": "slice",
    "donut": "slice",
    "pictogram": "row",
    "progress": "bar",
    "thermometer": "thermometer",
}
NAMES = {
    "bar": "bar chart",
    "column": "bar chart",
    "line": "line chart",
    "area": "area chart",
    "step": "step chart",
    "dots": "dot plot",
    "lollipop": "lollipop chart",
    "pie": "pie chart",
    "donut": "doughnut chart",
    "grouped": "bar chart",
    "grouped_bar": "bar chart",
    "stacked": "stacked bar chart",
    "stacked_bar": "stacked bar chart",
    "lines": "line chart",
    "pictogram": "pictogram",
}
# what a label is, in the singular, by the family of the labels
CATEGORY = {
    "years": "year",
    "months": "month",
    "weekdays": "day",
    "quarters": "quarter",
    "towns": "town",
    "countries": "country",
    "departments": "department",
    "people": "person",
}
PLURAL = {"country": "countries", "person": "people"}
DASHES = ((7, "dashed"), (3, "dotted"), (0, "solid"))  # of lines: pixels of a dash, 0 for none
SHADES = ((max, "darkest"), (min, "lightest"))  # of palettes: the largest level has the most ink
UPRIGHT = ("column", "line", "area", "step", "lollipop", "grouped", "stacked", "lines")
LYING = ("bar", "dots", "grouped_bar", "stacked_bar", "pictogram", "progress")


def listing(labels: Sequence[str], texts: Sequence[str]) -> str:
    """Every label with its value: what the chart would be as a table, each value behind the label it belongs to."""
    return "; ".join(f"{label}: {text}" for label, text in zip(labels, texts, strict=True))


def dashed(dashes: Sequence[int] | None) -> dict[str, int]:
    """The series whose line alone is dashed, dotted or solid, by that word."""
    own = list(dashes or ())
    return {word: own.index(dash) for dash, word in DASHES if own.count(dash) == 1}


def shaded(levels: Sequence[int] | None) -> dict[str, int]:
    """The series with the darkest and the one with the lightest shade, by that word."""
    return {word: levels.index(extreme(levels)) for extreme, word in SHADES} if levels else {}


def drawn_as(count: int, dashes: Sequence[int] | None, levels: Sequence[int] | None) -> list[str]:
    """How each of ``count`` series is drawn, in a word where one of them alone is drawn so, else nothing."""
    words = {n: f"{word} line" for word, n in dashed(dashes).items()} | {n: w for w, n in shaded(levels).items()}
    return [words.get(n, "") for n in range(count)]


def upper(text: str) -> str:
    """With a capital, as a legend shows a name that is written small in a sentence."""
    return text[0].upper() + text[1:]


@dataclass
class Ladder:
    """Questions about one chart, gathered by step and then drawn from."""

    d: Document
    part: int
    steps: dict[str, list[tuple[tuple[str, ...], str]]] = field(default_factory=lambda: {name: [] for name in STEPS})

    def ask(self, step: str, wordings: Sequence[str], answer: str) -> None:
        self.steps[step].append((tuple(dict.fromkeys(w for w in wordings if w)), answer))

    def close(self, limits: dict[str, int] | None = None) -> None:
        """Asks up to the number of questions that ``limits``, or :data:`STEPS`, have for each step."""
        for step, asks in self.steps.items():
            for wordings, answer in self.d.r.sample(asks, min(len(asks), (limits or STEPS)[step])):
                self.d.ask(wordings, answer, self.part)
