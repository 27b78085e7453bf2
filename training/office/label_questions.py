"""What needs the labels and the axis of a chart alone."""

from __future__ import annotations

from collections.abc import Sequence

from training.office.chart_ladder import CATEGORY, LYING, PLURAL, UPRIGHT, WORDS, Ladder
from training.pages import values as v


def ask_labels(
    ladder: Ladder,
    form: str,
    labels: list[str],
    family: str,
    ticks: Sequence[tuple[float, str]] | None,
    series: int = 0,
) -> None:
    """Which and how many labels there are, the first, the last, neighbours, and where the axis begins and ends."""
    word, one = WORDS.get(form, "bar"), CATEGORY.get(family, "label")
    _count(ladder, labels, "" if series else word, PLURAL.get(one, f"{one}s"))
    if form in (*UPRIGHT, *LYING):
        _order(ladder, labels, one)
    if form in LYING and not series:
        _above_and_below(ladder, labels, word, one)
    if ticks:
        _axis(ladder, ticks)
    _shown_or_not(ladder, labels, family)


def _count(ladder: Ladder, labels: list[str], word: str, many: str) -> None:
    """How many there are, and which; ``word`` is what stands for a label, if that is one thing."""
    counted = (
        f"How many {many} are shown?",
        f"How many {many} does the chart have?",
        f"For how many {many} are there values?",
        f"Number of {many}?",
    )
    if word:
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


def _order(ladder: Ladder, labels: list[str], one: str) -> None:
    """The first and the last, and two that follow each other."""
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
    i = ladder.d.r.randint(1, len(labels) - 1)
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


def _above_and_below(ladder: Ladder, labels: list[str], word: str, one: str) -> None:
    """The same for bars below one another."""
    i = ladder.d.r.randint(1, len(labels) - 1)
    ladder.ask(
        "labels",
        (
            f"Which {word} is at the top?",
            f"What is the topmost {word}?",
            f"Whose {word} is the top one?" if one == "person" else f"Which {one} stands at the top?",
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


def _axis(ladder: Ladder, ticks: Sequence[tuple[float, str]]) -> None:
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


def _shown_or_not(ladder: Ladder, labels: list[str], family: str) -> None:
    other = next(
        (name for name in _others(ladder, family) if not any(name in label or label in name for label in labels)), None
    )
    if other:
        inside = ladder.d.r.chance(0.6)
        name = ladder.d.r.pick(labels) if inside else other
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
