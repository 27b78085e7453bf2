"""Blocks of lists on a sheet: labelled values, amounts and their sum, points, small tables and goods."""

from __future__ import annotations

from dataclasses import replace

from training.pages import values as v
from training.pages.bills import item_table, totals
from training.pages.blocks import Box, Setter
from training.pages.facts import Fact
from training.pages.fields import field_entries
from training.pages.programs import program
from training.pages.sheet_texts import HEADINGS, put_line, small_heading


def data(s: Setter, box: Box) -> None:
    """Labelled values of any kind, at times under a heading, at times with a sum in bold."""
    r = s.r
    if r.chance(0.35):
        small_heading(s, box, r.pick((*HEADINGS, "Details", "Data", v.name_word(r))))
    entries = [(a, b, Fact("field", b, a)) for a, b in field_entries(r, r.randint(2, 8), r.pick((0.0, 0.1, 0.5)))]
    s.fields(
        box, entries, None if r.chance(0.5) else r.pick(("tab", "right", "above", "strip", "inline", "boxed", "header"))
    )


def amounts(s: Setter, box: Box) -> None:
    """A group of amounts with their labels at the left and the values at the right, closed by a sum."""
    r, amount = s.r, v.money_format(s.r)
    names: list[str] = []
    while len(names) < r.randint(2, 5):
        name = r.pick(
            (v.item, v.name_word, lambda r: f"{v.name_word(r)} {r.pick(('fee', 'cost', 'charge', 'share', 'pay'))}")
        )(r)
        if name.lower() not in (n.lower() for n in names):
            names.append(name)
    if r.chance(0.6):
        small_heading(
            s, box, r.pick(("Costs", "Income", "Charges", "Expenses", "Payments", "Fees", "Credits", v.name_word(r)))
        )
    cents = [v.cents(r, 2, 5.5) for _ in names]
    entries = [(n, amount(c), Fact("item_amount", amount(c), subject=n)) for n, c in zip(names, cents, strict=True)]
    style = r.pick(("right", "right", "dots", "ruled", "tab", "colon"))
    s.fields(box, entries, style)
    sum_label = r.pick(("Sum", "Total", "Altogether", "In all", "Total costs", "Amount", "To pay"))
    value = amount(sum(cents))
    old = s.style
    s.style = replace(old, body=old.bold)
    s.fields(box, [(sum_label, value, Fact("total", value, sum_label))], style)
    s.style = old


def listing(s: Setter, box: Box) -> None:
    """Numbered or bulleted points, with an amount at the right edge or none; what it all costs stands in a sentence."""
    r, f, amount = s.r, s.style.body, v.money_format(s.r)
    priced, mark = r.chance(0.55), r.pick(("1", "1", "-", "*", "", "a"))
    points: list[str] = []
    for _ in range(r.randint(2, 6)):
        point = v.item(r, 0.5) if priced else r.pick((v.phrase, v.item, v.name_word, lambda r: r.pick(v.WORK)))(r)
        if point.lower() not in (p.lower() for p in points):
            points.append(point)
    heading = r.pick(HEADINGS)
    headed = r.chance(0.25 if priced else 0.85) and small_heading(s, box, heading)
    left, sums, spacing = box.x0 + r.randint(0, 16), 0, r.randint(0, 8)
    shown: list[str] = []
    for number, point in enumerate(points, 1):
        lead = {"1": f"{number}. ", "-": "- ", "*": "* ", "": "", "a": f"{chr(96 + number)}) "}[mark]
        cents = v.cents(r, 2, 5.5)
        width = f.width(lead + point) + (f.width(amount(cents)) + 12 if priced else 0)
        if left + width > box.x1 or not box.fits(f.height) or not s.put(box, left, lead + point, f):
            return
        if priced:
            if not s.put(box, box.x1, amount(cents), f, "r"):
                return
            s.facts.append(Fact("item_amount", amount(cents), subject=point))
        sums += cents
        shown.append(point)
        s.advance(box, f, spacing)
    if priced:
        text = r.pick(
            (
                "Sum {}",
                "Makes {}",
                "{} in total",
                "Total of {}",
                "Altogether: {}",
                "We charge {}",
                "Together {}",
                "Total {}",
            )
        )
        if r.chance(0.5):
            s.canvas.line(box.x0, box.y, box.x1, box.y, s.style.rule)
            box.y += 3
        put_line(s, box, text.format(amount(sums)), Fact("total", amount(sums)), r.pick("lrr"), r.chance(0.5))
    elif headed and len(shown) > 1:
        s.facts += [Fact("section_first", shown[0], heading), Fact("section_count", str(len(shown)), heading)]


def two_stage(s: Setter, box: Box) -> None:
    """A narrow table whose column heading names what all its rows are kinds of: "Level | Value / Upper | 12"."""
    r = s.r
    noun = r.pick(
        (
            "Level",
            "Meter",
            "Fee",
            "Price",
            "Tariff",
            "Balance",
            "Stock",
            "Score",
            "Speed",
            "Weight",
            "Limit",
            "Rent",
            "Premium",
        )
    )
    kinds = r.sample(
        (
            "Old",
            "New",
            "First",
            "Second",
            "Last",
            "Upper",
            "Lower",
            "Basic",
            "Special",
            "Minimum",
            "Maximum",
            "Yearly",
            "Monthly",
            "Final",
        ),
        r.randint(2, 4),
    )
    make = r.pick((v.count, v.money, v.percent, v.span))
    rows = [[kind, make(r)] for kind in kinds]
    shown, drawn = s.table(
        box, [noun, r.pick(("Value", "Amount", "Figure", "Result", "Is"))], rows, ["l", r.pick("lrr")], [1.3, 1]
    )
    for i in drawn:
        if shown[0]:
            s.facts.append(Fact("two_stage", rows[i][1], subject=f"{kinds[i]} {noun}".lower()))


def goods(s: Setter, box: Box) -> None:
    r, amount = s.r, v.money_format(s.r)
    if not box.fits(7 * s.style.body.height):
        return
    if r.chance(0.45):
        item_table(s, box, amount, detailed=True, priced=False)
    else:
        subtotal = item_table(s, box, amount, detailed=r.chance(0.6))
        if subtotal and r.chance(0.6):
            totals(s, box, amount, subtotal)


def entries(s: Setter, box: Box) -> None:
    program(s, box, headed=s.r.chance(0.4))
