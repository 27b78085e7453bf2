"""Pages with a table of results, prices, transactions or timetables."""

from __future__ import annotations

from collections.abc import Callable

from training.pages import values as v
from training.pages.blocks import Box, Setter
from training.pages.facts import Fact
from training.pages.fields import field_entries
from training.pages.parts import letterhead, page_title


def _row_names(r: v.Rng) -> tuple[str, Callable[[v.Rng], str]]:
    heading, make = r.pick(
        (
            (("Region", "City", "Place", "Branch"), v.city),
            (("Name", "Player", "Student", "Employee"), v.first_name),
            (("Name", "Employee", "Member"), v.person),
            (("Product", "Item", "Article"), lambda r: v.item(r, 0)),
            (("Team", "Company", "Brand"), v.name_word),
            (("Country",), v.country),
            (("Month",), lambda r: r.pick(v.MONTHS)),
            (("Day", "Weekday"), lambda r: r.pick(v.WEEKDAYS)),
            (("Year",), lambda r: str(r.randint(1990, 2030))),
            (("Department", "Division"), lambda r: r.pick(v.DEPARTMENTS)),
            (("Code", "ID", "Article No"), v.code),
            (("Date",), lambda r: v.date(r, 1)),
            (("Test", "Parameter", "Substance", "Dish"), v.name_word),
            (("Booking", "Description", "Payee", "Text", "Shop"), v.shop),
            (("Company", "Supplier", "Customer"), v.company),
            (("Work", "Service", "Task", "Item"), lambda r: v.item(r, 0.7)),
        )
    )
    return r.pick(heading), make


def _amounts(render: Callable[[int], str]) -> Callable[[v.Rng], str]:
    return lambda r: render(v.cents(r, 2, 5))


def _signed(render: Callable[[int], str]) -> Callable[[v.Rng], str]:
    return lambda r: ("-" if r.chance(0.5) else r.pick(("", "", "+"))) + render(v.cents(r, 2, 5))


_NUMBER_COLUMNS = (
    "Revenue Profit Cost Units Price Score Rank Age Weight Sales Stock Rate Goals Wins Points Hours Pages Votes Visits Orders "
    "Budget Balance Debit Credit Result Limit Fee Amount Total 2019 2020 2021 2022 2023 2024 2025 Q1 Q2 Q3 Q4"
).split()
_TEXT_COLUMNS: tuple[tuple[str, Callable[[v.Rng], str]], ...] = (
    ("City", v.city), ("Manager", v.last_name), ("Date", lambda r: v.date(r, 1)), ("Start", v.time_of_day), ("End", v.time_of_day),
    ("Room", lambda r: str(r.randint(1, 400))), ("Status", lambda r: r.pick(("Open", "Done", "Late", "Paid", "New", "Yes", "No"))),
    ("Unit", lambda r: r.pick(("mg", "ml", "kg", "g/l", "mmol", "m/s", "hours", "pieces", "%", "km", "mm", "U/l", "pg", "C"))),
    ("Limits", lambda r: f"{r.randint(0, 60)}{r.pick((' - ', '-'))}{r.randint(61, 400)}"), ("Hours", lambda r: f"{r.randint(6, 11)}:00 - {r.randint(12, 22)}:30"),
    ("Code", v.code), ("Teacher", v.last_name), ("Type", v.name_word), ("Color", lambda r: r.pick(v.COLOURS)), ("Owner", v.first_name),
)  # fmt: skip


def _columns(
    r: v.Rng, count: int, number: Callable[[v.Rng], str], heading: str
) -> tuple[list[str], list[Callable[[v.Rng], str]]]:
    """Names and generators of up to ``count`` columns of text or numbers, beside the one named ``heading``."""
    names: list[str] = []
    makers: list[Callable[[v.Rng], str]] = []
    for _ in range(count):
        if r.chance(0.25):
            name, maker = r.pick(_TEXT_COLUMNS)
        else:
            name = r.pick(_NUMBER_COLUMNS) if r.chance(0.75) else v.name_word(r)[:9]
            maker = number if r.chance(0.6) else r.pick((v.count, lambda r: str(r.randint(1, 999)), v.percent))
        if name not in names and name != heading:
            names.append(name)
            makers.append(maker)
    return names, makers


def _add_facts(
    s: Setter, header: list[str], rows: list[list[str]], main: int, shown: list[bool], drawn: list[int]
) -> None:
    """What can be read in a table whose column ``main`` says what its rows are about."""
    for i in drawn:
        if rows[i][0] == "" and rows[i][-1] != "-":
            s.facts.append(Fact("field", rows[i][-1], rows[i][1]))
        for j, name in enumerate(header):
            if shown[j] and j != main and rows[i][j]:
                s.facts.append(Fact("cell", rows[i][j], name, rows[i][main]))
    if drawn and shown[0] and not main:
        s.facts.append(Fact("row_count", str(len(drawn)), header[0])) if len(drawn) < 8 else None
        s.facts.append(Fact("first_row", rows[drawn[0]][0], header[0]))
        s.facts.append(Fact("last_row", rows[drawn[-1]][0], header[0]))


def table(s: Setter, box: Box) -> None:
    r = s.r
    if r.chance(0.25):
        letterhead(s, box)
    if r.chance(0.7):
        page_title(
            s,
            box,
            f"{v.name_word(r)} {r.pick(('Report', 'Results', 'Overview', 'Statistics', 'Schedule', 'Summary', 'Timetable'))}",
            "Price List",
            "Table of Results",
            "Account Statement",
            "Timetable",
            "Stock List",
        )
    if r.chance(0.25):
        s.fields(box, [(a, b, Fact("field", b, a)) for a, b in field_entries(r, r.randint(1, 4), 0.1)])
        s.gap(box)
    heading, make = _row_names(r)
    number = r.pick(
        (
            v.count,
            lambda r: f"{r.random() * 100:.1f}",
            v.percent,
            lambda r: f"{int(10 ** r.uniform(2, 5)):,}",
            lambda r: str(r.randint(1, 999)),
            _amounts(v.money_format(r)),
            _signed(v.money_format(r)),
        )
    )
    n_columns = r.randint(1, 5) if box.width > 380 else r.randint(1, 3)
    names, makers = _columns(r, n_columns, number, heading)
    rows, seen = [], set()
    for _ in range(r.randint(2, 22)):
        name = make(r)
        if name.lower() not in seen:
            seen.add(name.lower())
            rows.append([name] + ["-" if r.chance(0.015) else maker(r) for maker in makers])
    align = ["l"] + [r.pick("rrlc")] * len(names)
    weights = [r.uniform(1.4, 2.6)] + [1.0 if len(n) < 7 else 1.25 for n in names]
    header, main = [heading, *names], 0
    lead, make_lead = r.pick(
        (
            ("Date", lambda r: v.date(r, 1)),
            ("Day", lambda r: v.date(r, 1)[: r.pick((5, 6))]),
            ("Time", v.time_of_day),
            ("No", v.count),
            ("Code", v.code),
        )
    )
    if r.chance(0.3) and lead not in header:  # what the rows are about stands in the second column
        header, main = [lead, *header], 1
        rows = [[make_lead(r), *row] for row in rows]
        align, weights = ["l", *align], [1.2, *weights]
        if r.chance(0.4):  # sums that belong to no row of their own
            total = r.pick(("Opening balance", "Carried over", "Total", "Sum", "Closing balance"))
            if names:
                sums = ["", total, *["" for _ in names[:-1]], number(r)]
                rows.insert(r.pick((0, len(rows))), sums)
    shown, drawn = s.table(box, header, rows, align, weights)
    _add_facts(s, header, rows, main, shown, drawn)
    if r.chance(0.2):
        s.paragraph(box, v.sentence(r))
