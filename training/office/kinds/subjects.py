"""Charts of many subjects, each with its own words for a value, the largest, the smallest and what it does not show.

`training/office/figures/subjects.txt` has a block a subject: titles, then ``name: value`` lines. ``{x}`` is a label,
``{a}`` the one of two with the larger value and ``{b}`` the other, ``{n}`` a number that some values exceed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

from training.office.document import Document
from training.office.registry import kind
from training.office.values import MONTHS_SHORT, distinct, person, town
from training.pages import values as v
from training.pages.values import Rng

FILE = Path(__file__).parents[1] / "figures" / "subjects.txt"
PATTERNS = ("value", "most", "least", "more", "which", "over", "none")
MEASURES = ("tonnes", "mm", "°C", "%", "€", "thousand €", "kg", "hours", "$", "m³", "Mbit/s", "£")
SOURCES = ("Statistics Office", "own survey", "City archive", "Annual report", "own figures", "Chamber of Commerce")


@lru_cache(maxsize=1)
def subjects(file: Path = FILE) -> list[dict]:
    """The file's blocks: ``titles``, ``unit``, ``labels``, ``range`` (low, high), and the wordings of `PATTERNS`.

    Raises:
        ValueError: a block lacks one of them.
    """
    found = []
    for block in file.read_text(encoding="utf-8").split("## ")[1:]:
        head, *rows = block.strip().split("\n")
        subject = dict(row.split(": ", 1) for row in rows)
        if missing := {"unit", "labels", "range", *PATTERNS} - subject.keys():
            raise ValueError(f"{head}: {', '.join(sorted(missing))} missing")
        subject["titles"] = head.split(" | ")
        subject["range"] = [int(x) for x in subject["range"].split("-")]
        found.append(subject | {name: subject[name].split(" | ") for name in PATTERNS})
    return found


def _run(names: list[str]) -> Callable[[Rng], list[str]]:
    """Some of ``names`` that follow one another, round the end."""

    def draw(r: Rng) -> list[str]:
        start, count = r.randint(0, len(names) - 1), r.randint(4, min(len(names), 8))
        return [names[(start + i) % len(names)] for i in range(count)]

    return draw


def _years(r: Rng) -> list[str]:
    start, step = r.randint(1960, 2022), r.pick((1, 1, 1, 2, 5, 10))
    return [str(start + step * i) for i in range(r.randint(3, 8))]


def _some(make: Callable[[Rng], str]) -> Callable[[Rng], list[str]]:
    return lambda r: distinct(r, make, r.randint(3, 7))


FAMILIES: dict[str, Callable[[Rng], list[str]]] = {
    "years": _years,
    "months": lambda r: _run(r.pick((MONTHS_SHORT, v.MONTHS)))(r),
    "weekdays": lambda r: r.pick((v.WEEKDAYS, v.WEEKDAYS[:5], v.WEEKDAYS[:6])),
    "quarters": lambda r: r.pick((["Q1", "Q2", "Q3", "Q4"], [f"Q{i} {y}" for y in (2023, 2024) for i in (1, 2, 3, 4)])),
    "towns": _some(town),
    "countries": _some(v.country),
    "departments": _some(lambda r: r.pick(v.DEPARTMENTS)),
    "people": _some(lambda r: r.pick((person(r), r.pick(v.FIRST_NAMES)))),
}


def _values(r: Rng, count: int, low: int, high: int, step: int) -> list[int]:
    top = r.randint(max(low + 1, (low + high) // 3), high)
    return [max(step, round(r.randint(low, top) / step) * step) for _ in range(count)]


@kind("subject_chart", 9.0)
def subject_chart(d: Document) -> None:
    r = d.r
    subject = r.pick(subjects())
    unit, (low, high), labels = subject["unit"], subject["range"], subject["labels"]
    if labels in FAMILIES:
        names, ordered = list(FAMILIES[labels](r)), labels in ("years", "months", "weekdays", "quarters")
    else:
        names = r.sample(labels.split(", "), r.randint(3, min(7, len(labels.split(", ")))))
        ordered = False
    form = r.choices(
        ("bar", "column", "line", "pie"), (2, 4, 3, 0) if ordered else (4, 4, 0, 3 if len(names) < 7 else 0)
    )[0]
    printed = form == "pie" or r.chance(0.55)
    grid = next(g for g in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000) if 6 * g >= high)
    values = _values(r, len(names), low, high, 1 if printed else grid)
    if unit == "%" and form == "pie":
        cuts = sorted(r.sample(range(3, 98), len(names) - 1))
        values = [b - a for a, b in zip([0, *cuts], [*cuts, 100], strict=True)]
    separator = r.choices(("", ",", " "), (4, 4, 1))[0] if high > 999 else ""
    write = lambda number: f"{number:,}".replace(",", separator)  # noqa: E731
    close = "" if unit in ("%", "°C") and r.chance(0.6) else " "
    shown_unit = unit in ("%", "°C", "€", "£", "$", "mm", "kg", "m³") and r.chance(0.6)
    texts = [write(x) + (f"{close}{unit}" if shown_unit else "") for x in values]
    ticks = [(i * grid, write(i * grid)) for i in range(-(-max(values) // grid) + 1)]
    title = r.pick(subject["titles"]).format(town=town(r), since=f"since {names[0]}" if labels == "years" else "")
    measured = unit in MEASURES
    titled = d.heading(
        title + (r.pick((f" ({unit})", f", in {unit}", f" in {unit}")) if measured and r.chance(0.5) else "")
    )
    if r.chance(0.25):
        d.line(
            r.pick((f"in {unit}", f"Figures in {unit}", f"Unit: {unit}") if measured else (f"Number of {unit}",)),
            small=True,
        )
    part = d.chart(
        form, names, values, printed=texts if printed else None, shade=r.pick((255, 190, 150, 110)),
        ticks=ticks if form != "pie" and (not printed or r.chance(0.5)) else None,
    )  # fmt: skip
    _ask(d, subject, names, values, texts, part)
    d.ask(
        ("What is the title of the chart?", "What does the chart show?", "heading?", "What is it about?"), title, titled
    )
    if r.chance(0.4):
        source = r.pick((*SOURCES, person(r), v.company(r).rstrip(".")))
        foot = d.line(r.pick((f"Source: {source}", f"Data: {source}", f"Figures: {source}")), small=True)
        d.ask(
            ("Where do the figures come from?", "source?", "Who supplied the data?", "Who collected this?"),
            source,
            foot,
        )


def _ask(d: Document, subject: dict, names: list[str], values: list[int], texts: list[str], part: int) -> None:
    """Values one by one, the extremes, pairs, how many exceed a number, and what the chart does not show."""
    r = d.r
    fill = lambda wordings, **blanks: tuple(w.format(**blanks) for w in wordings)  # noqa: E731
    for name, text in zip(names, texts, strict=True):
        d.ask(fill(subject["value"], x=name), text, part)
    for pattern, extreme in (("most", max), ("least", min)):
        if values.count(extreme(values)) == 1:
            d.ask(subject[pattern], names[values.index(extreme(values))], part)
    for _ in range(2):
        i, j = r.sample(range(len(names)), 2)
        if values[i] == values[j]:
            continue
        large, small = (i, j) if values[i] > values[j] else (j, i)
        d.ask(fill(subject["more"], a=names[large], b=names[small]), str(values[large] - values[small]), part)
        d.ask(fill(subject["which"], a=names[i], b=names[j]), names[large], part)
    ranks = sorted(set(values))
    if len(ranks) > 2:
        number = r.pick(ranks[:-1])
        d.ask(fill(subject["over"], n=number), str(sum(value > number for value in values)), part)
        if values.count(ranks[-2]) == 1:
            d.ask(
                ("Which one is second?", "What is in second place?", "second highest?"),
                names[values.index(ranks[-2])],
                part,
            )
    for text in set(texts):
        if texts.count(text) == 1:
            d.ask((f"Which one stands at {text}?", f"Where is the value {text}?"), names[texts.index(text)], part)
            break
    for wording in subject["none"]:
        d.absent(wording)
