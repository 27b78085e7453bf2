"""What a chart of one series is asked: single values, the largest, comparisons, sums, ranks, the trend."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from training.office.chart_ladder import CATEGORY, FALLS, LYING, RISES, WORDS, Ladder, listing
from training.office.chart_values import Numbers, clear
from training.office.document import Document
from training.office.label_questions import ask_labels
from training.office.values import MONTHS_SHORT

LISTED = (
    "List all values.",
    "Read the chart as a table.",
    "Which values does the chart show?",
    "Write down every label with its value.",
    "What are the numbers behind the chart?",
    "Give the value of each label.",
)


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
        ladder.ask("listed", LISTED, listing(self.labels, self.texts))
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
        ranks = sorted(set(self.values))
        if len(ranks) > 2:
            self._bounds(ladder, ranks)
            self._places(ladder)
        if ranks[0] < 0:
            self._negative(ladder)
        if self.form in ("pie", "donut") and self.numbers.unit == "%":
            self._halves(ladder)

    def _bounds(self, ladder: Ladder, ranks: list[float]) -> None:
        """How many lie above and below one of ``ranks``, the values in their order without repetitions."""
        values, numbers = self.values, self.numbers
        bound = ladder.d.r.pick(ranks[:-1])
        if not clear(ranks, bound, self.gap):
            return
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

    def _places(self, ladder: Ladder) -> None:
        """The second largest and smallest, and the three largest."""
        labels, values = self.labels, self.values
        one = CATEGORY.get(self.family, "one")
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

    def _negative(self, ladder: Ladder) -> None:
        below = [label for label, x in zip(self.labels, self.values, strict=True) if x < 0]
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

    def _halves(self, ladder: Ladder) -> None:
        """Whether a share is more than half of the whole."""
        i = ladder.d.r.randint(0, len(self.labels) - 1)
        label, share = self.labels[i], self.values[i]
        if share != 50:
            ladder.ask(
                "rank",
                (
                    f"Is {label} more than half?",
                    f"Does {label} make up more than half of it?",
                    f"Is the share of {label} above one half?",
                ),
                "yes" if share > 50 else "no",
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
