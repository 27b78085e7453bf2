"""Tables of figures under two levels of headings."""

# fmt: off

from __future__ import annotations

from collections.abc import Sequence

from training.office.document import Document
from training.office.grids import ACROSS, Grid
from training.office.registry import kind
from training.office.table_subjects import SUBJECTS, YEARS, Measure, Subject
from training.office.values import Dates, person, quantity
from training.pages import values as v
from training.pages.values import Rng

NOTES = (
    "As of {date}.", "Status: {date}", "Source: {person}", "Prepared by {person}", "Figures rounded.", "Checked by {person} on {date}", "All figures are provisional.", "Last change: {date}",
)


def _groups(r: Rng, subject: Subject) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Groups of a page as (heading, in a question), and some of the same sort that it does not have."""
    options = r.pick(subject.groups)
    if options == YEARS:
        year = r.randint(2008, 2031)
        options = tuple(f"{y}|in {y}" for y in range(year, year + 5))
    pairs = [tuple(option.split("|")) for option in options]
    count = min(len(pairs), r.choices((2, 3, 4), (5, 3, 1))[0])
    start = r.randint(0, len(pairs) - count)
    return pairs[start : start + count], [*pairs[:start], *pairs[start + count :]]


def _called(noun: str) -> tuple[str, str]:
    """As `quantity`, for a noun with or without an addition: ("number of hours of sunshine", "is")."""
    head, of, rest = noun.partition(" of ")
    called, verb = quantity(head)
    return called + of + rest, verb


def _sayings(noun: str, verb: str, link: str, name: str, group: tuple[str, str], measure: Measure, layout: str) -> list[str]:
    """Questions about one cell."""
    shown, said = group
    first = measure.ask.format(n=name, g=said)
    place = f"Which value stands in the row {name} under {shown}, {measure.shown}?" if layout == ACROSS else f"Which value stands where {name} and {shown}, {measure.shown} meet?"
    return [
        first, f"What {verb} the {noun} {link} {name} {said}?", f"{name}, {shown}, {measure.shown}?", place, f"{name} {said}: {noun}?", f"Look up {measure.shown} {link} {name} in {shown}.", f"I need the {noun} {link} {name} {said}.",
        f"{said[0].upper()}{said[1:]}, what {verb} the {noun} {link} {name}?",
    ]


@kind("merged_table", 5.0)
def merged(d: Document) -> None:
    """Figures under two levels of headings."""
    r = d.r
    subject = r.pick(SUBJECTS)
    groups, other_groups = _groups(r, subject)
    measures = list(r.pick(subject.measures))
    spare = [measures.pop(r.randint(0, len(measures) - 1))] if len(measures) > 2 and r.chance(0.4) else []
    names = subject.names(r, r.randint(3, 7))
    leaves = [(g, m) for g in range(len(groups)) for m in range(len(measures))]
    missing = None
    if len(measures) > 1 and r.chance(0.2):  # not every group has the same columns
        missing = leaves.pop(r.randint(0, len(leaves) - 1))
    units = [m.unit for m in measures]
    style = r.pick(("cell", "row", "head", "none")) if any(units) else "none"
    line = style == "none" and len(set(units)) == 1 and bool(units[0])
    heads = [f"{m.shown} ({m.unit})" if m.unit and style == "head" else m.shown for m in measures]
    values = {}
    for i, (_, m) in enumerate(leaves):
        column = [measures[m].value(r) for _ in names]
        for n, value in enumerate(sorted(column) if subject.rising else column):
            values[n, i] = value
    cells = {}
    for (n, i), (_, text) in values.items():
        unit = units[leaves[i][1]] if style == "cell" else ""
        cells[n, i] = text + (unit if unit[:1] in ("", "\u00b0") else f" {unit}")
    grid = Grid(names, [(groups[g][0], heads[m]) for g, m in leaves], cells)
    layouts = grid.layouts()
    layout = ACROSS if style == "row" and ACROSS in layouts else r.pick([*layouts, ACROSS] if ACROSS in layouts else layouts)

    top = d.heading(r.pick(subject.titles))
    d.ask(("What is the title of the table?", "What is the heading?", "What is the table called?", "Which title does the table have?"), d.blocks[-1].texts[0], top)
    if line:
        d.line(r.pick(("All figures in {}", "Figures in {}", "in {}", "All values in {}.")).format(units[0]), small=True)
        d.ask(("In which unit are the figures?", "What is the unit of the values?", "In what are the figures given?", "Which unit is used?"), units[0], d.blocks[-1].parts)
    elif r.chance(0.12):
        d.paragraph(v.sentence(r))
    grid.set(d, layout, r.pick(subject.corner), heads=(subject.over, ""), units=[units[m] for _, m in leaves] if style == "row" and layout == ACROSS else ())
    if r.chance(0.35):
        _note(d)

    nouns = [_called(m.noun) for m in measures]
    picked = r.sample(sorted(cells), min(len(cells), 9))
    for n, i in picked:
        g, m = leaves[i]
        noun, verb = nouns[m]
        d.ask(_sayings(noun, verb, subject.link, names[n], groups[g], measures[m], layout), cells[n, i], grid.parts[n, i])
    _whole_columns(d, subject, grid, groups, measures, nouns, leaves, values)
    _across_a_row(d, subject.link, grid, groups, measures, nouns, leaves, values)
    _shape(d, grid, subject, groups, measures, nouns)

    # what the table might have and has not
    noun, verb = r.pick(nouns)
    group = r.pick(groups)
    m = r.randint(0, len(measures) - 1)
    strange = [name for name in subject.names(r, 8) if not any(name in own or own in name for own in names)]
    if strange:
        name = r.pick(strange)
        d.absent(measures[m].ask.format(n=name, g=group[1]), f"What {nouns[m][1]} the {nouns[m][0]} {subject.link} {name} {group[1]}?", f"{name}, {group[0]}, {measures[m].shown}?")
    if other_groups:
        other, name = r.pick(other_groups), r.pick(names)
        d.absent(measures[m].ask.format(n=name, g=other[1]), f"What {nouns[m][1]} the {nouns[m][0]} {subject.link} {name} {other[1]}?", f"{name}, {other[0]}, {measures[m].shown}?")
    for one in spare:
        name, (noun, verb) = r.pick(names), _called(one.noun)
        d.absent(one.ask.format(n=name, g=group[1]), f"What {verb} the {noun} {subject.link} {name} {group[1]}?", f"{name}, {group[0]}, {one.shown}?")
    if missing:
        (shown, said), one, name, (noun, verb) = groups[missing[0]], measures[missing[1]], r.pick(names), nouns[missing[1]]
        d.absent(one.ask.format(n=name, g=said), f"What {verb} the {noun} {subject.link} {name} {said}?", f"{name}, {shown}, {one.shown}?")


def _note(d: Document) -> None:
    r, dates = d.r, Dates(d.r)
    note, name, date = r.pick(NOTES), person(r), dates.date()
    part = d.line(note.format(person=name, date=date), small=True)
    if "{date}" in note:
        d.ask(("From when are the figures?", "Which date stands below the table?", "What date is given under the table?", "How old are the figures, from which date?"), date, part)
    if "{person}" in note:
        d.ask(("Who is named below the table?", "Whose name stands under the table?", "Which person is named under the table?", "Who is responsible for the figures?"), name, part)


def _whole_columns(d: Document, subject: Subject, grid: Grid, groups, measures: Sequence[Measure], nouns, leaves, values) -> None:
    """Largest, smallest, the row of a value, and two rows compared."""
    r, names, every = d.r, grid.names, grid.everything
    which, who = f"Which {subject.row}", "Who" if subject.person else f"Which {subject.row}"
    for i in r.sample(range(len(leaves)), min(len(leaves), 3)):
        g, m = leaves[i]
        (shown, said), measure, (noun, verb) = groups[g], measures[m], nouns[m]
        texts, numbers = [grid.cells[n, i] for n in range(len(names))], [values[n, i][0] for n in range(len(names))]
        n = r.randint(0, len(names) - 1)
        if texts.count(texts[n]) == 1:
            d.ask((f"{which} has {texts[n]} under {shown}, {measure.shown}?", f"{which} has the {noun} {texts[n]} {said}?", f"Where do I find {texts[n]} in {measure.shown} of {shown}?", f"{who} stands beside {texts[n]} in {measure.shown} of {shown}?", f"For which {subject.row} {verb} the {noun} {said} {texts[n]}?"), names[n], every)
        if None in numbers:
            continue
        for word, bound in zip(measure.ends, (max(numbers), min(numbers)), strict=True):
            if numbers.count(bound) == 1 and r.chance(0.7):
                d.ask((f"{which} has the {word} {noun} {said}?", f"{who} has the {word} {noun} {said}?", f"Where {verb} the {noun} {said} the {word}?", f"Which row has the {word} value for {shown}, {measure.shown}?", f"{said[0].upper()}{said[1:]}, {who.lower()} has the {word} {noun}?"), names[numbers.index(bound)], every)
            if r.chance(0.35):
                d.ask((f"What is the {word} {noun} {said}?", f"What is the {word} value under {shown}, {measure.shown}?", f"{word.capitalize()} {noun} {said}?", f"Which is the {word} entry for {measure.shown} {said}?"), texts[numbers.index(bound)], every)
        a, b = r.sample(range(len(names)), 2)
        if numbers[a] != numbers[b]:
            word = {"highest": "higher", "latest": "later", "longest": "longer", "best": "better"}[measure.ends[0]]
            best = a if numbers[a] > numbers[b] else b
            d.ask((f"Which has the {word} {noun} {said}, {names[a]} or {names[b]}?", f"{names[a]} or {names[b]}: {who.lower()} has the {word} {noun} {said}?", f"Compare {names[a]} and {names[b]} {said}: where {verb} the {noun} {word}?", f"{said[0].upper()}{said[1:]}, {verb} the {noun} {word} for {names[a]} or for {names[b]}?"), names[best], grid.parts[a, i], grid.parts[b, i])


def _across_a_row(d: Document, link: str, grid: Grid, groups, measures: Sequence[Measure], nouns, leaves, values) -> None:
    """The groups of one row compared."""
    r = d.r
    for n in r.sample(range(len(grid.names)), min(len(grid.names), 2)):
        name, m = grid.names[n], r.randint(0, len(measures) - 1)
        columns = [i for i, leaf in enumerate(leaves) if leaf[1] == m]
        numbers = [values[n, i][0] for i in columns]
        noun, verb = nouns[m]
        high = measures[m].ends[0]
        if len(columns) > 1 and None not in numbers:
            a, b = r.sample(range(len(columns)), 2)
            if numbers[a] != numbers[b]:
                word = {"highest": "higher", "latest": "later", "longest": "longer", "best": "better"}[high]
                one, two, best = groups[leaves[columns[a]][0]], groups[leaves[columns[b]][0]], a if numbers[a] > numbers[b] else b
                needs = grid.parts[n, columns[a]] + grid.parts[n, columns[b]]
                d.ask((f"{verb.capitalize()} the {noun} {link} {name} {word} {one[1]} or {two[1]}?", f"{name}: where {verb} the {noun} {word}, {one[0]} or {two[0]}?", f"{one[0]} or {two[0]}: which has the {word} {noun} for {name}?", f"When {verb} the {noun} {link} {name} {word}: {one[1]} or {two[1]}?" if one[0][0].isdigit() else f"Of {one[0]} and {two[0]}, which shows the {word} {noun} {link} {name}?"), groups[leaves[columns[best]][0]][0], needs)
                gap = abs(numbers[a] - numbers[b])
                if high == "highest" and gap == int(gap) < 200 and all(grid.cells[n, i].isdigit() for i in (columns[a], columns[b])):
                    d.ask((f"How much higher {verb} the {noun} {link} {name} {groups[leaves[columns[best]][0]][1]} than {(two if best == a else one)[1]}?", f"How much higher: {name}, {measures[m].shown}, {groups[leaves[columns[best]][0]][0]} against {(two if best == a else one)[0]}?"), str(gap), needs)
        if len(columns) > 2 and None not in numbers and numbers.count(max(numbers)) == 1:
            best = groups[leaves[columns[numbers.index(max(numbers))]][0]][0]
            d.ask((f"In which group {verb} the {noun} {link} {name} the {high}?", f"Where {verb} the {noun} {link} {name} the {high}?", f"{name}: which heading has the {high} {noun}?", f"Under which heading does {name} have the {high} {noun}?"), best, *(grid.parts[n, i] for i in columns))


def _shape(d: Document, grid: Grid, subject: Subject, groups, measures: Sequence[Measure], nouns) -> None:
    """What is compared, and how many there are."""
    r, every, row = d.r, grid.everything, subject.row
    plural = {"branch": "branches", "person": "people", "country": "countries"}.get(row, row if row.endswith("s") else f"{row}s")
    d.ask((f"How many {plural} does the table have?", f"How many {plural} are listed?", f"For how many {plural} are there figures?", f"How many {plural} are in the table?"), str(len(grid.names)), every)
    shown = [group for group, _ in groups]
    if r.chance(0.5):
        what = "years" if shown[0].isdigit() else "groups"
        d.ask((f"Which {what} does the table compare?" if what == "years" else "What are the main headings of the table?", f"Which {what} are in the table?" if what == "years" else "Which headings span several cells?", "What is compared with what?", "Name the upper headings." if what == "groups" else "Name the years."), " and ".join(shown) if len(shown) == 2 else ", ".join(shown), every)
    if r.chance(0.4) and len({len(grid.leaves) // len(groups), *(grid.count(group) for group in shown)}) == 1 and len(measures) > 1:
        heads = [name for group, name in grid.leaves if group == shown[0]]
        d.ask((f"What stands under {shown[0]}?", f"Which values are given for {shown[0]}?", f"What is given under the heading {shown[0]}?", f"Name the headings below {shown[0]}."), " and ".join(heads) if len(heads) == 2 else ", ".join(heads), every)
    if r.chance(0.4):
        at = r.pick((0, len(grid.names) - 1))
        end = "last" if at else "first"
        d.ask((f"Which {row} comes {end}?", f"Which is the {end} {row}?", f"What is the {end} {row} in the table?", f"With which {row} does the table {'end' if at else 'begin'}?"), grid.names[at], every)
