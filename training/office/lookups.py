"""Questions that every table and every chart answers: by row and column, backwards, largest, count, difference."""

from __future__ import annotations

import itertools
import re
from collections import Counter

from training.office.chart_values import clear
from training.office.document import Block, Document
from training.office.values import FIRST, quantity
from training.pages import values as v

MOST = 7  # questions of one table or chart, drawn from all that it answers
ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh")
ABSENT_COLUMNS = (
    "weight", "colour", "email address", "age", "discount", "birthday", "supplier", "nationality", "serial number", "warranty", "postcode", "deadline", "manager", "rating", "size",
    "phone number", "temperature", "salary",
)  # fmt: skip


def blocks_of(document: Document) -> list[Block]:
    """All blocks, those of columns and boxes among them."""
    return [b for block in document.blocks for b in (block, *(c for inner in block.inner for c in blocks_of(inner)))]


def add_lookups(document: Document) -> None:
    """Adds questions about the tables and charts of a document, at most :data:`MOST` of each.

    What two of them are asked alike is not asked: it would have two answers.
    """
    r, asked, found = document.r, Counter(), []
    for block in blocks_of(document):
        if block.kind in ("table", "chart") and not {"series", "rich", "asked"} & block.options.keys():
            before = len(document.asks)
            (table_questions if block.kind == "table" else chart_questions)(document, block)
            added = document.asks[before:]
            asked.update(ask.questions[0] for ask in added)
            found += (ask for ask in r.sample(added, min(len(added), MOST)))
            del document.asks[before:]
    document.asks += (ask for ask in found if asked[ask.questions[0]] == 1)


# headings of numbers that name a row rather than measure something
NUMBERED = frozenset(
    "week no nr number year room page line seat track platform bus gate code id day date time class lane car".split()
)
# headings that are no names of what stands under them
CALLED = {
    "Booked": "booking date", "Changed": "date of the change", "Opened": "opening date", "Opens": "opening time", "Closes": "closing time", "Details": "entry", "Description": "entry", "Text": "entry", "Out": "payment", "In": "income", "Due": "due date",
    "Who": "person", "What": "thing", "When": "time", "Where": "place", "From": "starting point", "To": "destination",
}  # fmt: skip
_FIRST = frozenset((*v.FIRST_NAMES, *FIRST))


def plain_number(text: str) -> float | None:
    """The number that a cell holds if its decimals are clear; None for dates, times, codes and texts."""
    match = re.fullmatch(r"(-?\d+)(?:\.(\d))?(?: ?(?:%|kg|t|mm|km|h|m|pt))?", text)
    return float(f"{match[1]}.{match[2] or 0}") if match and len(match[1]) < 7 else None


def _low(name: str) -> str:
    """How a heading is called in a question."""
    if name in CALLED:
        return CALLED[name]
    return name if name[:2].isupper() or any(c.isdigit() for c in name) else name[0].lower() + name[1:]


def table_questions(d: Document, block: Block) -> None:
    """Look-ups in a table of unique row names."""
    header, rows, parts = block.options["header"], block.options["rows"], block.parts
    if block.options["groups"] or block.options["starts"] or len(rows) < 2 or not header or len(header) != len(rows[0]):
        return
    r = d.r
    key = next((c for c in range(len(header)) if _names(rows, c)), None)
    if key is None:
        return
    people = sum(row[key].split()[0] in _FIRST for row in rows) > len(rows) / 2
    names, columns = [row[key] for row in rows], [c for c in range(len(header)) if c != key and header[c].strip()]
    for c in columns:
        cells, head = [row[c] for row in rows], header[c].strip(" :.")
        low, numbers = _low(head), [plain_number(cell) for cell in cells]
        noun, verb = quantity(low)
        if None in numbers:  # texts are not counted
            noun, verb = low, "are" if noun != low else verb
        for i in r.sample(range(len(rows)), min(len(rows), 3)):
            name, cell = names[i], cells[i]
            if len(cell) < 2 and not cell.isdigit():  # empty, a dash or a cross
                continue
            d.ask((
                f"What {verb} the {noun} of {name}?", f"What {verb} the {noun} for {name}?", f"{name}: {low}?", f"{head} of {name}", f"Which {noun} does {name} have?", f"What does the column {head} say for {name}?",
                f"In the row {name}, what stands under {head}?", f"Look up the {low} of {name}.", f"{name} {low}", f"What is written under {head} for {name}?",
                f"In the line of {name}: what {verb} the {noun}?",
            ), cell, parts[i])  # fmt: skip
            if cells.count(cell) == 1:
                key_head = _low(header[key].strip(" :.")) if header[key].strip() else "row"
                d.ask((
                    f"Which {key_head} has the {noun} {cell}?", f"Whose {noun} {verb} {cell}?" if people else f"What goes with {cell} under {head}?", f"What has {cell} under {head}?", f"For which {key_head} {verb} the {noun} {cell}?",
                    f"Which line has {cell} in the column {head}?",
                ), name, parts)  # fmt: skip
        if None not in numbers and len(set(numbers)) == len(numbers) and low.split()[-1].lower() not in NUMBERED:
            _extremes(d, names, cells, numbers, noun, parts, people)
        if (
            len(rows) <= 6
            and sum(map(len, cells)) < 80
            and len(set(cells)) == len(cells)
            and all(map(str.strip, cells))
        ):
            d.ask(
                (
                    f"List everything under {head}.",
                    f"What are the values in the column {head}?",
                    f"Read the column {head}.",
                    f"What stands under {head}?",
                ),
                ", ".join(cells),
                parts,
            )
    i = r.randint(0, len(rows) - 1)
    if i < len(ORDINALS):
        d.ask(
            (
                f"What is in the {ORDINALS[i]} row?",
                f"Which name stands in row {i + 1}?",
                f"What does the {ORDINALS[i]} line of the table begin with?",
                f"Which entry is the {ORDINALS[i]}?",
            ),
            names[i],
            *parts[: i + 1],
        )
    d.ask(
        ("How many columns does the table have?", "How many columns are there?", "What is the number of columns?"),
        str(len(header)),
        parts,
    ) if all(h.strip() for h in header) else None
    used = " ".join((*header, *names)).lower()
    missing = [name for name in ABSENT_COLUMNS if not any(word in used for word in name.split())]
    if missing and r.chance(0.6):
        name, column = r.pick(names), r.pick(missing)
        d.absent(
            f"What is the {column} of {name}?",
            f"What {column} does {name} have?",
            f"{name}: {column}?",
            f"Which {column} is given for {name}?",
        )


def _names(rows: list[list[str]], column: int) -> bool:
    """Whether a column can name its rows: different texts with letters, which stand in no other column."""
    cells = [row[column] for row in rows]
    others = {cell for row in rows for c, cell in enumerate(row) if c != column}
    return (
        len(set(cells)) == len(cells)
        and others.isdisjoint(cells)
        and all(
            sum(c.isalpha() for c in cell) >= 2
            and sum(c.isdigit() for c in cell) < 4
            and len(cell) < 40
            and cell != "\u2013"
            for cell in cells
        )
    )


def _extremes(
    d: Document, names: list[str], cells: list[str], numbers: list[float], low: str, parts: list[int], people: bool
) -> None:
    who = "Who" if people else "Which one"
    top, least = numbers.index(max(numbers)), numbers.index(min(numbers))
    d.ask(
        (
            f"Which has the highest {low}?",
            f"{who} has the highest {low}?",
            f"Where is the {low} the highest?",
            f"What has the largest {low}?",
            f"Which one is first by {low}?",
            f"Highest {low}?",
        ),
        names[top],
        parts,
    )
    d.ask(
        (
            f"Which has the lowest {low}?",
            f"{who} has the lowest {low}?",
            f"Where is the {low} the lowest?",
            f"What has the smallest {low}?",
            f"Lowest {low}?",
        ),
        names[least],
        parts,
    )
    d.ask(
        (
            f"What is the highest {low}?",
            f"What is the largest value under {low}?",
            f"What is the maximum of {low}?",
            f"How high is the highest {low}?",
        ),
        cells[top],
        parts,
    )
    d.ask(
        (f"What is the lowest {low}?", f"What is the smallest value under {low}?", f"What is the minimum of {low}?"),
        cells[least],
        parts,
    )
    i, j = d.r.sample(range(len(names)), 2)
    i, j = (i, j) if numbers[i] > numbers[j] else (j, i)
    d.ask(
        (
            f"Which has the higher {low}, {names[j]} or {names[i]}?",
            f"{'Whose' if people else 'Which'} {low} is higher: {names[i]} or {names[j]}?",
            f"Compare the {low} of {names[j]} and {names[i]}: which is more?",
        ),
        names[i],
        parts,
    )
    if all(n == int(n) for n in numbers) and max(numbers) < 2000:
        gap = int(numbers[i] - numbers[j])
        d.ask(
            (
                f"How much higher is the {low} of {names[i]} than of {names[j]}?",
                f"What is the difference in {low} between {names[i]} and {names[j]}?",
                f"By how much do {names[i]} and {names[j]} differ in {low}?",
            ),
            str(gap),
            parts,
        )
        bound = sorted(numbers)[len(numbers) // 2]
        d.ask(
            (
                f"How many have a {low} of more than {bound:g}?",
                f"How many entries are above {bound:g} in {low}?",
                f"For how many is the {low} higher than {bound:g}?",
            ),
            str(sum(n > bound for n in numbers)),
            parts,
        )


def chart_questions(d: Document, block: Block) -> None:
    """What a chart shows beyond single values: order, differences, names."""
    values = block.options["values"]
    order = sorted(range(len(values)), key=lambda i: -values[i])
    _ask_ranks(d, block, order)
    _ask_amounts(d, block, order)
    _ask_labels(d, block)


def _ask_ranks(d: Document, block: Block, order: list[int]) -> None:
    labels, values, part = block.texts, block.options["values"], block.parts[0]
    gap = 5 if block.options["form"] == "pie" and not block.options["printed"] else 0  # that the eye can tell
    if all(clear(values, value, gap) for value in values):
        d.ask(
            (
                "Which one is in second place?",
                "What comes second?",
                "Which is the second largest?",
                "Which has the second highest value?",
            ),
            labels[order[1]],
            part,
        )
        d.ask(
            (
                "Which three have the highest values?",
                "Name the top three.",
                "Which are the three largest?",
                "What are the first three by size?",
            ),
            ", ".join(labels[i] for i in order[:3]),
            part,
        )
        if len(labels) <= 5:
            d.ask(
                (
                    "Put them in order from the largest to the smallest.",
                    "Rank them, beginning with the largest.",
                    "What is the order from high to low?",
                ),
                ", ".join(labels[i] for i in order),
                part,
            )


def _ask_amounts(d: Document, block: Block, order: list[int]) -> None:
    r, labels, o, part = d.r, block.texts, block.options, block.parts[0]
    values, printed = o["values"], o["printed"]
    readable = printed or (o["ticks"] and all(value in dict(o["ticks"]) for value in values))
    if readable and o["form"] != "pie" and all(value == int(value) for value in values):
        i, j = r.sample(range(len(values)), 2)
        i, j = (i, j) if values[i] > values[j] else (j, i)
        if values[i] > values[j]:
            d.ask(
                (
                    f"How much more has {labels[i]} than {labels[j]}?",
                    f"What is the difference between {labels[i]} and {labels[j]}?",
                    f"By how much is {labels[i]} above {labels[j]}?",
                    f"{labels[i]} minus {labels[j]}?",
                ),
                f"{int(values[i] - values[j])}",
                part,
            )
        top, least = (
            (printed or [str(int(value)) for value in values])[order[0]],
            (printed or [str(int(value)) for value in values])[order[-1]],
        )
        d.ask(
            (
                "What is the highest value?",
                "How high is the largest value?",
                "What is the maximum?",
                "Which number is the highest in the chart?",
            ),
            top,
            part,
        )
        d.ask(
            (
                "What is the lowest value?",
                "How low is the smallest value?",
                "What is the minimum?",
                "Which number is the lowest in the chart?",
            ),
            least,
            part,
        )
        bound = values[order[len(order) // 2]]
        d.ask(
            (
                f"How many are above {bound:g}?",
                f"How many values are larger than {bound:g}?",
                f"In how many cases is it more than {bound:g}?",
            ),
            str(sum(value > bound for value in values)),
            part,
        )
        if printed:
            k = order[r.randint(0, len(order) - 1)]
            if printed.count(printed[k]) == 1:
                d.ask(
                    (
                        f"Which one has {printed[k]}?",
                        f"To what does the value {printed[k]} belong?",
                        f"Where is the value {printed[k]}?",
                        f"{printed[k]} stands for which one?",
                    ),
                    labels[k],
                    part,
                )


def _ask_labels(d: Document, block: Block) -> None:
    r, labels, o, part = d.r, block.texts, block.options, block.parts[0]
    values = o["values"]
    if sum(map(len, labels)) < 70:
        d.ask(
            (
                "What does the chart compare?",
                "Which names are in the chart?",
                "List the labels of the chart.",
                "What stands along the chart?",
            ),
            ", ".join(labels),
            part,
        )
    d.ask(("What is the first label?", "Which one is shown first?", "Which label comes first?"), labels[0], part) if o[
        "form"
    ] in ("column", "line") else None
    d.ask(("What is the last label?", "Which one is shown last?", "Which label comes last?"), labels[-1], part) if o[
        "form"
    ] in ("column", "line") else None
    if o["form"] == "line" and len(set(values)) == len(values):
        steps = [b - a for a, b in itertools.pairwise(values)]
        for size, word in ((max(steps), "rise"), (min(steps), "fall")):
            if steps.count(size) == 1 and (size > 0) == (word == "rise"):
                at = steps.index(size)
                d.ask(
                    (
                        f"Where is the largest {word}?",
                        f"Between which two points does it {word} the most?",
                        f"When does the line {word} the most?",
                    ),
                    f"from {labels[at]} to {labels[at + 1]}",
                    part,
                )
    if r.chance(0.6):
        other = next(
            (
                n
                for n in (v.city(r) if not labels[0].isdigit() else str(1950 + r.randint(0, 50)) for _ in range(9))
                if n not in labels
            ),
            None,
        )
        if other:
            d.absent(
                f"How much is shown for {other}?",
                f"Which value does {other} have?",
                f"{other}: how much?",
                f"What does the chart show for {other}?",
            )
