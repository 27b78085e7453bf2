"""What a chart is asked in steps: its labels and legend, single values, the largest, comparisons, sums, the trend.

Every step has more questions than are asked; each draws a few of them, so that a page asks of everything.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

from training.office.chart_values import Numbers, clear
from training.office.document import Document
from training.office.values import MONTHS_SHORT
from training.pages import values as v

RISES, FALLS = "it rises", "it falls"
# questions of each step that are asked, from easy to hard
STEPS = {"labels": 3, "legend": 2, "value": 4, "found": 2, "extreme": 2, "pair": 2, "rank": 2, "sum": 1, "trend": 1}
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
UPRIGHT = ("column", "line", "area", "step", "lollipop", "grouped", "stacked", "lines")
LYING = ("bar", "dots", "grouped_bar", "stacked_bar", "pictogram", "progress")


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


@dataclass
class OneSeries:
    """A chart of one series as its questions see it.

    Attributes:
        texts: the values as the chart writes them.
        ordered: whether the labels follow one another in time.
        family: of the labels; a key of :data:`CATEGORY` or something else.
        subject: wordings of `training.office.kinds.subjects`, or None where only ``noun`` says what is measured.
        gap: differences below this are not compared, as the picture does not show them.
    """

    form: str
    labels: list[str]
    values: list[float]
    texts: list[str]
    numbers: Numbers
    ordered: bool = False
    family: str = ""
    subject: dict | None = None
    noun: str = "value"
    printed: bool = False
    ticks: Sequence[tuple[float, str]] | None = None
    gap: float = 0

    def ask(self, d: Document, part: int, limits: dict[str, int] | None = None) -> None:
        ladder = Ladder(d, part)
        ask_labels(ladder, self.form, self.labels, self.family, self.ticks)
        self._values(ladder)
        self._extremes(ladder)
        self._pairs(ladder)
        self._ranks(ladder)
        if self.ordered:
            self._trend(ladder)
        ladder.close(limits)

    @property
    def added(self) -> bool:
        """Whether sums mean something: temperatures, rates and prices do not add up."""
        return min(self.values) >= 0 and (self.subject is None or "both" in self.subject)

    def fill(self, key: str, **blanks: str) -> list[str]:
        return [w.format(**blanks) for w in self.subject.get(key, ())] if self.subject else []

    def _values(self, ladder: Ladder) -> None:
        r, word = ladder.d.r, WORDS[self.form]
        one = CATEGORY.get(self.family, "label")
        for label, text in zip(self.labels, self.texts, strict=True):
            timed = label[0].isdigit() or label[:3] in MONTHS_SHORT
            own = self.fill("value", x=label) or [
                f"What was the {self.noun} in {label}?" if timed else f"What is the {self.noun} of {label}?"
            ]
            free = [
                f"What value does {label} have?",
                f"How much is shown for {label}?",
                f"{label}: how much?",
                f"Read off the value for {label}.",
                f"Value at {label}?",
                f"Which number belongs to {label}?",
            ]
            free += (
                [f"Which number is written at the {word} of {label}?", f"What is printed at {label}?"]
                if self.printed
                else []
            )
            ladder.ask("value", (*own, *r.sample(free, 3)), text)
            if self.texts.count(text) == 1 and clear(self.values, self.values[self.labels.index(label)], self.gap):
                where = (
                    f"{'On' if one == 'day' else 'In'} which {one} was it {text}?"
                    if self.ordered
                    else f"Which {one} has {text}?"
                )
                ladder.ask(
                    "found",
                    (
                        where,
                        f"Which one stands at {text}?",
                        f"Where is the value {text}?",
                        f"What has {text}?",
                        f"{text} is the value of which {one}?",
                        f"Which {one} belongs to {text}?",
                    ),
                    label,
                )

    def _extremes(self, ladder: Ladder) -> None:
        word, one = WORDS[self.form], CATEGORY.get(self.family, "one")
        for extreme, key, which, size in (
            (
                max,
                "most",
                (
                    f"Which {one} has the largest value?",
                    f"Which {word} is the longest?" if self.form in LYING else f"Which {word} is the largest?",
                    "Where is the value the highest?",
                    "Which label has the maximum?",
                ),
                (
                    "What is the highest value?",
                    "How high is the largest value?",
                    "What is the maximum?",
                    "Which value is the peak?",
                ),
            ),
            (
                min,
                "least",
                (
                    f"Which {one} has the smallest value?",
                    f"Which {word} is the shortest?" if self.form in LYING else f"Which {word} is the smallest?",
                    "Where is the value the lowest?",
                    "Which label has the minimum?",
                ),
                (
                    "What is the lowest value?",
                    "How low is the smallest value?",
                    "What is the minimum?",
                    "Which is the smallest figure?",
                ),
            ),
        ):
            best = extreme(self.values)
            if clear(self.values, best, self.gap):
                ladder.ask("extreme", (*self.fill(key), *which), self.labels[self.values.index(best)])
            ladder.ask("extreme", size, self.texts[self.values.index(best)])

    def _pairs(self, ladder: Ladder) -> None:
        """Two compared, their difference and their sum."""
        r, labels, values, numbers = ladder.d.r, self.labels, self.values, self.numbers
        for _ in range(4):
            i, j = r.sample(range(len(labels)), 2)
            i, j = (i, j) if values[i] > values[j] else (j, i)
            a, b = labels[i], labels[j]
            if values[i] - values[j] > self.gap:
                x, y = r.pick(((a, b), (b, a)))
                ladder.ask(
                    "pair",
                    (
                        *self.fill("which", a=x, b=y),
                        f"Which is higher, {x} or {y}?",
                        f"{x} or {y}: which is more?",
                        f"Is {x} or {y} larger?",
                    ),
                    a,
                )
                ladder.ask(
                    "pair",
                    (
                        *self.fill("more", a=a, b=b),
                        f"What is the difference between {x} and {y}?",
                        f"How much more is {a} than {b}?",
                        f"By how much is {a} above {b}?",
                    ),
                    numbers(values[i] - values[j]),
                )
            if self.added:
                ladder.ask(
                    "sum",
                    (
                        *self.fill("both", a=a, b=b),
                        f"What is the sum of {a} and {b}?",
                        f"How much do {a} and {b} make together?",
                        f"{b} plus {a}?",
                        f"Add {a} and {b}.",
                    ),
                    numbers(values[i] + values[j]),
                )
        if self.added and len(values) < 5 and numbers.unit != "%":
            ladder.ask(
                "sum",
                (
                    "What is the total of all values?",
                    "How much is it altogether?",
                    "What do all of them make together?",
                    "Add everything up.",
                ),
                numbers(sum(values)),
            )

    def _ranks(self, ladder: Ladder) -> None:
        r, labels, values, numbers = ladder.d.r, self.labels, self.values, self.numbers
        one = CATEGORY.get(self.family, "one")
        ranks = sorted(set(values))
        if len(ranks) > 2:
            bound = r.pick(ranks[:-1])
            if clear(ranks, bound, self.gap):
                shown = numbers(bound)
                over = sum(x > bound for x in values)
                bare = shown.replace(numbers.unit, "").strip() if numbers.unit else shown
                ladder.ask(
                    "rank",
                    (
                        *self.fill("over", n=bare),
                        f"How many are above {shown}?",
                        f"How many exceed {shown}?",
                        f"In how many cases is it more than {shown}?",
                    ),
                    str(over),
                )
                if under := sum(x < bound for x in values):
                    ladder.ask(
                        "rank",
                        (
                            f"How many are below {shown}?",
                            f"How many are under {shown}?",
                            f"How many lie lower than {shown}?",
                        ),
                        str(under),
                    )
            order = sorted(range(len(values)), key=lambda i: -values[i])
            if all(clear(values, values[i], self.gap) for i in order[:2]):
                ladder.ask(
                    "rank",
                    (
                        f"Which {one} has the second largest value?",
                        "What is in second place by size?",
                        "Which is the second largest?",
                        "second highest?",
                        "Which comes right after the largest by size?",
                    ),
                    labels[order[1]],
                )
            if all(clear(values, values[i], self.gap) for i in order[-2:]):
                ladder.ask(
                    "rank",
                    (
                        f"Which {one} has the second smallest value?",
                        "second lowest?",
                        "Which one is last but one by size?",
                        "Which is just above the smallest?",
                    ),
                    labels[order[-2]],
                )
            if len(order) > 3 and all(clear(values, values[i], self.gap) for i in order[:3]):
                ladder.ask(
                    "rank",
                    (
                        "Which three have the highest values?",
                        "Name the top three.",
                        "Which are the three largest?",
                        "What are the first three by size?",
                    ),
                    ", ".join(labels[i] for i in order[:3]),
                )
        if ranks[0] < 0:
            below = [label for label, x in zip(labels, values, strict=True) if x < 0]
            ladder.ask(
                "rank",
                ("How many are negative?", "How many values lie below zero?", "How often is it below zero?"),
                str(len(below)),
            )
            if len(below) == 1:
                ladder.ask(
                    "rank",
                    ("Which one is negative?", "Where does it fall below zero?", "Which value is below zero?"),
                    below[0],
                )
        if self.form in ("pie", "donut") and numbers.unit == "%":
            i = r.randint(0, len(labels) - 1)
            if values[i] != 50:
                ladder.ask(
                    "rank",
                    (
                        f"Is {labels[i]} more than half?",
                        f"Does {labels[i]} make up more than half of it?",
                        f"Is the share of {labels[i]} above one half?",
                    ),
                    "yes" if values[i] > 50 else "no",
                )

    def _trend(self, ladder: Ladder) -> None:
        r, labels, values = ladder.d.r, self.labels, self.values
        pairs = list(itertools.pairwise(values))
        if all(a < b for a, b in pairs) or all(a > b for a, b in pairs):
            ladder.ask(
                "trend",
                (
                    "Do the values rise or fall?",
                    "What is the trend?",
                    "Does it go up or down?",
                    "How does it develop?",
                    "Is it rising or falling?",
                ),
                RISES if values[0] < values[-1] else FALLS,
            )
        for _ in range(2):
            i, j = sorted(r.sample(range(len(labels)), 2))
            if abs(values[i] - values[j]) > self.gap:
                ladder.ask(
                    "trend",
                    (
                        f"Did it rise or fall from {labels[i]} to {labels[j]}?",
                        f"Did it go up or down between {labels[i]} and {labels[j]}?",
                        f"From {labels[i]} to {labels[j]}: rise or fall?",
                    ),
                    RISES if values[i] < values[j] else FALLS,
                )
        steps = [b - a for a, b in pairs]
        for size, word in ((max(steps), "rise"), (min(steps), "fall")):
            if clear(steps, size, self.gap) and (size > 0) == (word == "rise") and size:
                at = steps.index(size)
                ladder.ask(
                    "trend",
                    (
                        f"Where is the largest {word}?",
                        f"Between which two is the biggest {word}?",
                        f"When does it {word} the most?",
                    ),
                    f"from {labels[at]} to {labels[at + 1]}",
                )
        if self.family == "years":
            ladder.ask(
                "trend",
                ("Which years does the chart cover?", "From when to when does it go?", "What period is shown?"),
                f"{labels[0]} to {labels[-1]}",
            )


def ask_labels(
    ladder: Ladder,
    form: str,
    labels: list[str],
    family: str,
    ticks: Sequence[tuple[float, str]] | None,
    series: int = 0,
) -> None:
    """What needs the labels and the axis alone: which and how many there are, the first, the last, neighbours."""
    r, word, one = ladder.d.r, WORDS.get(form, "bar"), CATEGORY.get(family, "label")
    many = PLURAL.get(one, f"{one}s")
    counted = (
        f"How many {many} are shown?",
        f"How many {many} does the chart have?",
        f"For how many {many} are there values?",
        f"Number of {many}?",
    )
    if not series:
        counted = (
            f"How many {word}s are there?",
            f"How many {word}s does the chart have?",
            *counted[:2],
            "How many values are shown?",
            "Number of values?",
        )
    ladder.ask("labels", counted, str(len(labels)))
    if sum(map(len, labels)) < 70:
        ladder.ask(
            "labels",
            (
                f"Which {many} are shown?",
                f"List the {many} of the chart.",
                f"Which {many} does the chart have?",
                "What stands along the chart?",
                "Read the labels of the chart.",
            ),
            ", ".join(labels),
        )
    if form in (*UPRIGHT, *LYING):
        ladder.ask(
            "labels",
            (
                f"What is the first {one} in the chart?",
                f"With which {one} does the chart begin?",
                "Which one is shown first?",
                "Which label comes first?",
            ),
            labels[0],
        )
        ladder.ask(
            "labels",
            (
                f"What is the last {one} in the chart?",
                f"With which {one} does the chart end?",
                "Which one is shown last?",
                "Which label comes last?",
            ),
            labels[-1],
        )
        i = r.randint(1, len(labels) - 1)
        ladder.ask(
            "labels",
            (
                f"Which {one} comes right after {labels[i - 1]}?",
                f"What follows {labels[i - 1]} in the chart?",
                f"What stands next after {labels[i - 1]}?",
            ),
            labels[i],
        )
        ladder.ask(
            "labels",
            (
                f"Which {one} comes right before {labels[i]}?",
                f"What stands just before {labels[i]} in the chart?",
                f"What comes before {labels[i]}?",
            ),
            labels[i - 1],
        )
    if form in LYING and not series:
        i = r.randint(1, len(labels) - 1)
        ladder.ask(
            "labels",
            (
                f"Which {word} is at the top?",
                f"What is the topmost {word}?",
                f"Whose {word} is the top one?" if family == "people" else f"Which {one} stands at the top?",
            ),
            labels[0],
        )
        ladder.ask(
            "labels",
            (
                f"Which {word} is at the bottom?",
                f"What is the bottom {word}?",
                f"Which {one} stands at the bottom?",
            ),
            labels[-1],
        )
        ladder.ask(
            "labels",
            (
                f"Which {one} is directly below {labels[i - 1]}?",
                f"What stands under {labels[i - 1]}?",
                f"Below {labels[i - 1]} is which {one}?",
            ),
            labels[i],
        )
        ladder.ask(
            "labels",
            (
                f"Which {one} is directly above {labels[i]}?",
                f"What stands over {labels[i]}?",
                f"Above {labels[i]} is which {one}?",
            ),
            labels[i - 1],
        )
    if ticks:
        ladder.ask(
            "labels",
            (
                "What is the highest number on the axis?",
                "Up to which number does the axis go?",
                "Where does the axis end?",
                "Last number of the axis?",
            ),
            ticks[-1][1],
        )
        ladder.ask(
            "labels",
            (
                "What is the lowest number on the axis?",
                "With which number does the axis begin?",
                "Where does the axis start?",
            ),
            ticks[0][1],
        )
    other = next(
        (name for name in _others(ladder, family) if not any(name in label or label in name for label in labels)), None
    )
    if other:
        inside = r.chance(0.6)
        name = r.pick(labels) if inside else other
        ladder.ask(
            "labels",
            (f"Is {name} in the chart?", f"Does the chart show {name}?", f"Is there a value for {name}?"),
            "yes" if inside else "no",
        )


def _others(ladder: Ladder, family: str) -> list[str]:
    """Labels of the same family that a chart may not have."""
    r = ladder.d.r
    pools = {
        "towns": v.CITIES,
        "countries": v.COUNTRIES,
        "departments": v.DEPARTMENTS,
        "people": v.FIRST_NAMES,
        "weekdays": v.WEEKDAYS,
    }
    if family == "years":
        return [str(r.randint(1950, 2030)) for _ in range(4)]
    if family in pools:
        return r.sample(list(pools[family]), 5)
    names = family.split(",")
    return [name.strip() for name in r.sample(names, min(len(names), 6))] if len(names) > 2 else []
