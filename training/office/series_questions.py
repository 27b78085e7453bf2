"""What a chart of several series is asked in steps: its legend, single values, comparisons, totals, the trend."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from training.office.chart_ladder import CATEGORY, FALLS, PLURAL, RISES, Ladder, dashed, listing, shaded, upper
from training.office.chart_values import Numbers, clear
from training.office.document import Document
from training.office.label_questions import ask_labels
from training.office.values import within


def entry(name: str) -> str:
    """A series as the entry of the legend that it is: Oslo, but "Loaves" and "By phone"."""
    return name if name[0].isupper() or name[0].isdigit() else f'"{upper(name)}"'


@dataclass
class SomeSeries:
    """A chart of several series as its questions see it.

    Attributes:
        topic: wordings of `training.office.kinds.topics`.
        series: names as they stand in a sentence; the legend shows them with a capital.
        values: a row for every series.
        every: whether every value can be read, not only the lowest of a stack and its total.
        gap: differences below this are not compared.
        dashes, levels: how the lines are drawn and how dark the series are, where that may be asked.
        fixed: whether columns stay upright where their labels are wide.
    """

    form: str
    topic: dict
    series: list[str]
    labels: list[str]
    values: list[list[float]]
    numbers: Numbers
    ordered: bool
    family: str
    every: bool = True
    gap: float = 0
    ticks: Sequence[tuple[float, str]] | None = None
    dashes: Sequence[int] | None = None
    levels: Sequence[int] | None = None
    fixed: bool = False

    @property
    def stacked(self) -> bool:
        return self.form.startswith("stacked")

    def ask(self, d: Document, part: int, limits: dict[str, int] | None = None) -> None:
        ladder = Ladder(d, part)
        ask_labels(ladder, self.form, self.labels, self.family, self.ticks, len(self.series))
        self._legend(ladder)
        self._values(ladder)
        self._columns(ladder)
        if self.ordered:
            self._trend(ladder)
        ladder.close(limits)

    def fill(self, key: str, **blanks: str) -> list[str]:
        return [w.format(**blanks) for w in self.topic.get(key, ())]

    def _legend(self, ladder: Ladder) -> None:
        names = [upper(s) for s in self.series]
        ask = lambda *wordings, answer: ladder.ask("legend", wordings, answer)  # noqa: E731
        ask(
            "Which groups are compared?",
            "What is compared?",
            "Which series are shown?",
            "Read the names of the series.",
            "What does the legend say?",
            answer=", ".join(names),
        )
        ask(
            "How many series are there?",
            "How many groups are compared?",
            "Of how many series are there values?",
            "How many entries has the legend?",
            answer=str(len(names)),
        )
        if self.form.startswith("grouped"):
            ask(
                "How many bars does the chart have altogether?",
                "How many bars are there in all?",
                "Count all the bars.",
                answer=str(len(names) * len(self.labels)),
            )
            ask(
                "How many bars does each group have?",
                "How many bars stand together?",
                "Bars per group?",
                answer=str(len(names)),
            )
            side = ("left", "right") if self.form == "grouped" else ("top", "bottom")
            for n, name in ((0, side[0]), (-1, side[1])):
                if self.fixed:
                    ask(
                        f"Which series is the {name} bar of each group?",
                        f"What does the bar at the {name} of every group stand for?",
                        f"{upper(name)} bar of a group: which series?",
                        answer=names[n],
                    )
        if self.form == "stacked" and self.fixed:
            ask(
                "Which series is at the bottom of each bar?",
                "What does the lowest piece of every bar stand for?",
                "What is at the bottom of the stack?",
                answer=names[0],
            )
            ask(
                "Which series is at the top of each bar?",
                "What does the uppermost piece of every bar stand for?",
                "What is at the top of the stack?",
                answer=names[-1],
            )
        if self.form == "lines":
            ask(
                "How many lines are there?",
                "How many lines does the chart have?",
                "Count the lines.",
                answer=str(len(names)),
            )
        for word, n in dashed(self.dashes).items():
            ask(
                f"Which line is {word}?",
                f"What does the {word} line stand for?",
                f"Whose line is {word}?",
                f"The {word} line is which series?",
                answer=names[n],
            )
        if self.levels:
            thing = "line" if self.form == "lines" else "bars" if self.form.startswith("grouped") else "shade"
            for word, n in shaded(self.levels).items():
                ask(
                    f"Which series has the {word} {thing}?",
                    f"Which one is drawn {word}?",
                    f"What is shown in the {word} shade?",
                    answer=names[n],
                )

    def _values(self, ladder: Ladder) -> None:
        r, one = ladder.d.r, CATEGORY.get(self.family, "one")
        for n, s in enumerate(self.series):
            row, name = self.values[n], entry(s)
            if not self.every and n:
                continue
            listed = (
                f"List the values of {name}.",
                f"Read all values of {name}.",
                f"Which values does {name} have?",
                f"{name}: every label with its value.",
                f"What are the numbers of {name}?",
            )
            ladder.ask("listed", listed, listing(self.labels, [self.numbers(value) for value in row]))
            for label, value in zip(self.labels, row, strict=True):
                text = self.numbers(value)
                own = self.fill("value", s=s, x=within(label), l=label)
                free = [
                    f"{name}, {label}: how much?",
                    f"{label}, {name}: how much?",
                    f"How much is shown for {name}, {label}?",
                    f"Which value does {name} have for {label}?",
                    f"Read off {name} at {label}.",
                ]
                ladder.ask("value", (*own, *r.sample(free, 3)), text)
                if clear(row, value, self.gap):
                    ladder.ask(
                        "found",
                        (
                            f"For which {one} is {name} at {text}?",
                            f"Where does {name} stand at {text}?",
                            f"{name} at {text}: which {one}?",
                            f"Which {one} has {text} for {name}?",
                        ),
                        label,
                    )
            for extreme, key, word in ((max, "most", "highest"), (min, "least", "lowest")):
                if clear(row, extreme(row), self.gap):
                    ladder.ask(
                        "extreme",
                        (
                            *self.fill(key, s=s),
                            f"Where is {name} the {word}?",
                            f"For which {one} is {name} the {word}?",
                        ),
                        self.labels[row.index(extreme(row))],
                    )
        if self.every:
            flat = [
                (x, s, label)
                for s, row in zip(self.series, self.values, strict=True)
                for label, x in zip(self.labels, row, strict=True)
            ]
            for extreme, word in ((max, "highest"), (min, "lowest")):
                x, s, label = extreme(flat)
                ladder.ask(
                    "extreme",
                    (
                        f"What is the {word} value in the chart?",
                        f"Which number is the {word} of all?",
                        f"How much is the {word} value?",
                    ),
                    self.numbers(x),
                )
                if clear([value for value, _, _ in flat], x, self.gap):
                    ladder.ask(
                        "extreme",
                        (
                            f"Which series has the {word} value of all?",
                            f"To which series does the {word} value belong?",
                            f"Which series reaches the {word} value?",
                        ),
                        upper(s),
                    )

    def _columns(self, ladder: Ladder) -> None:
        """The series compared at one label, totals, and how often one is ahead of another."""
        r, names, one = ladder.d.r, [upper(s) for s in self.series], CATEGORY.get(self.family, "one")
        for i in r.sample(range(len(self.labels)), min(4, len(self.labels))):
            label, column = self.labels[i], [row[i] for row in self.values]
            x = within(label)
            if clear(column, max(column), self.gap):
                ladder.ask(
                    "pair",
                    (
                        f"Which one is ahead {x}?",
                        f"Which series is the highest {x}?",
                        f"Which one has the most {x}?",
                        f"Which is the largest for {label}?",
                    ),
                    names[column.index(max(column))],
                )
            if len(column) > 2 and clear(column, min(column), self.gap):
                ladder.ask(
                    "pair",
                    (
                        f"Which series is the lowest {x}?",
                        f"Which one has the least {x}?",
                        f"Which is the smallest for {label}?",
                    ),
                    names[column.index(min(column))],
                )
            a, b = r.sample(range(len(column)), 2)
            a, b = (a, b) if column[a] > column[b] else (b, a)
            if column[a] - column[b] > self.gap:
                m, n = r.pick(((a, b), (b, a)))
                ladder.ask("pair", self.fill("ahead", a=self.series[m], b=self.series[n], x=x, l=label), names[a])
                if self.every:
                    ladder.ask(
                        "pair",
                        (
                            *self.fill("more", a=self.series[a], b=self.series[b], x=x, l=label),
                            f"How far apart are {entry(self.series[m])} and {entry(self.series[n])} {x}?",
                            f"What is the difference between {entry(self.series[m])} and {entry(self.series[n])} {x}?",
                        ),
                        self.numbers(column[a] - column[b]),
                    )
            if (self.stacked or (self.every and len(column) < 4)) and "total" in self.topic:
                more = (
                    (f"How high is the whole bar of {label}?", f"What is the total for {label}?")
                    if self.stacked
                    else (f"What is the sum for {label}?",)
                )
                ladder.ask(
                    "sum", (*self.fill("total", x=x, l=label), *more, f"{label} in total?"), self.numbers(sum(column))
                )
        totals = [sum(column) for column in zip(*self.values, strict=True)]
        if self.stacked and "total" in self.topic:
            for extreme, word, long in ((max, "largest", "longest"), (min, "smallest", "shortest")):
                if clear(totals, extreme(totals), self.gap):
                    ladder.ask(
                        "sum",
                        (
                            f"Where is the total the {word}?",
                            f"Which {one} has the {word} total?",
                            f"Which whole bar is the {long}?",
                        ),
                        self.labels[totals.index(extreme(totals))],
                    )
        a, b = r.sample(range(len(self.series)), 2)
        if self.every and all(abs(x - y) > self.gap for x, y in zip(self.values[a], self.values[b], strict=True)):
            first, second = entry(self.series[a]), entry(self.series[b])
            ahead = sum(x > y for x, y in zip(self.values[a], self.values[b], strict=True))
            many = PLURAL.get(one, f"{one}s") if one != "one" else "cases"
            ladder.ask(
                "rank",
                (
                    f"For how many {many} is {first} above {second}?",
                    f"How often is {first} above {second}?",
                    f"How many times does {first} exceed {second}?",
                ),
                str(ahead),
            )

    def _trend(self, ladder: Ladder) -> None:
        r = ladder.d.r
        for s, row in zip(self.series, self.values, strict=True):
            i, j = sorted(r.sample(range(len(row)), 2))
            if abs(row[i] - row[j]) > self.gap and (self.every or s == self.series[0]):
                a, b, name = self.labels[i], self.labels[j], entry(s)
                ladder.ask(
                    "trend",
                    (
                        f"Did {name} rise or fall from {a} to {b}?",
                        f"Did {name} go up or down between {a} and {b}?",
                        f"{name} from {a} to {b}: rise or fall?",
                    ),
                    RISES if row[i] < row[j] else FALLS,
                )
