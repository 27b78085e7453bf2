"""Charts of many subjects, each with its own words for a value, the largest, the smallest and what it does not show.

`training/office/figures/subjects.txt` has a block a subject: titles, then ``name: value`` lines. ``{x}`` is a label,
``{a}`` the one of two with the larger value and ``{b}`` the other, ``{n}`` a number that some values exceed; ``both``
and ``total`` are missing where sums mean nothing. `series.txt` has subjects of several series: ``{s}`` is a series, ``{l}`` a label,
``{x}`` the label with its preposition.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

from training.office.chart_questions import OneSeries
from training.office.chart_values import Numbers, shares
from training.office.document import Document
from training.office.registry import kind
from training.office.values import MONTHS_SHORT, distinct, person, town
from training.pages import values as v
from training.pages.values import Rng

FOLDER = Path(__file__).parents[1] / "figures"
PATTERNS = ("value", "most", "least", "more", "which", "over", "none")
SERIES_PATTERNS = ("value", "most", "least", "ahead", "more", "none")
MEASURES = (
    "tonnes", "mm", "°C", "%", "€", "thousand €", "kg", "hours", "$", "m³", "Mbit/s", "£", "cm", "thousand $",
    "minutes", "m",
)  # fmt: skip
ORDERED = ("years", "months", "weekdays", "quarters")  # labels that follow one another in time
SOURCES = ("Statistics Office", "own survey", "City archive", "Annual report", "own figures", "Chamber of Commerce")


def read_blocks(file: Path, patterns: tuple[str, ...]) -> list[dict]:
    """The file's blocks: ``titles``, ``unit``, ``labels``, ``range`` (low, high), and lists of wordings.

    Raises:
        ValueError: a block lacks one of them.
    """
    found = []
    for block in file.read_text(encoding="utf-8").split("## ")[1:]:
        head, *rows = block.strip().split("\n")
        subject = dict(row.split(": ", 1) for row in rows)
        if missing := {"unit", "labels", "range", *patterns} - subject.keys():
            raise ValueError(f"{head}: {', '.join(sorted(missing))} missing")
        subject["titles"] = head.split(" | ")
        subject["range"] = [int(x) for x in subject["range"].split("-")]
        lists = [name for name in (*patterns, "both", "total") if name in subject]
        found.append(subject | {name: subject[name].split(" | ") for name in lists})
    return found


@lru_cache(maxsize=1)
def subjects() -> list[dict]:
    """Subjects of one series."""
    return read_blocks(FOLDER / "subjects.txt", PATTERNS)


@lru_cache(maxsize=1)
def topics() -> list[dict]:
    """Subjects of several series; ``whole`` says whether the series of one label are shares that make 100."""
    found = read_blocks(FOLDER / "series.txt", (*SERIES_PATTERNS, "series"))
    return [{**topic, "series": topic["series"][0].split(", "), "whole": "whole" in topic} for topic in found]


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


@kind("subject_chart", 10.0)
def subject_chart(d: Document) -> None:
    """One series, its title and unit in the text around it."""
    r = d.r
    subject = r.pick(subjects())
    unit, (low, high), labels = subject["unit"], subject["range"], subject["labels"]
    ordered = labels in ORDERED
    if labels in FAMILIES:
        names = list(FAMILIES[labels](r))
    else:
        names = r.sample(labels.split(", "), r.randint(3, min(7, len(labels.split(", ")))))
    parts = unit == "%" or unit not in MEASURES  # a pie shows parts of a whole, not temperatures
    form = r.choices(
        ("bar", "column", "line", "pie"),
        (2, 4, 3, 0) if ordered else (4, 4, 0, 3 if len(names) < 7 and parts and "both" in subject else 0),
    )[0]
    printed = form == "pie" or r.chance(0.55)
    grid = next(g for g in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000) if 6 * g >= high)
    least_step = 1 if printed else grid / 2 if grid % 2 == 0 and r.chance(0.4) else grid
    values: list[float] = list(_values(r, len(names), low, high, int(least_step)))
    if unit == "%" and form == "pie":
        values = list(shares(r, len(names)))
    ticks = [i * grid for i in range(int(-(-max(values) // grid)) + 1)]
    numbers = Numbers(r, unit, max(*values, *ticks))
    texts = [numbers(x) for x in values]
    title = r.pick(subject["titles"]).format(town=town(r), since=f"since {names[0]}" if labels == "years" else "")
    measured = unit in MEASURES
    titled = d.heading(
        title + (r.pick((f" ({unit})", f", in {unit}", f" in {unit}")) if measured and r.chance(0.5) else "")
    )
    if r.chance(0.25):
        said = r.pick((f"in {unit}", f"Figures in {unit}", f"Unit: {unit}") if measured else (f"Number of {unit}",))
        line = d.line(said, small=True)
        d.ask(
            ("In what are the values given?", "What is counted or measured?", "What is the unit?", "unit?"), unit, line
        )
    shown = [(x, numbers.bare(x)) for x in ticks] if form != "pie" and (not printed or r.chance(0.5)) else None
    part = d.chart(
        form, names, values, printed=texts if printed else None, shade=r.pick((255, 190, 150, 110)), ticks=shown,
        value_texts=[texts], asked=True,  # here, so that look-ups need not
    )  # fmt: skip
    asked = OneSeries(form, names, values, texts, numbers, ordered, labels, subject, printed=printed, ticks=shown)
    asked.ask(d, part)
    for wording in r.sample(subject["none"], r.randint(0, 2)):
        d.absent(wording)
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
