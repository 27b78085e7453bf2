"""Charts that compare several series, and pages with a chart and the text about it."""

# fmt: off

from training.office.document import Document
from training.office.kinds.figures import THINGS, add_chart
from training.office.registry import kind
from training.office.sentences import tell
from training.office.values import MONTHS_SHORT, Dates, Money, distinct, person, town, within
from training.pages import values as v


@kind("series_chart", 3.0)
def series_chart(d: Document) -> None:
    r = d.r
    name, noun, unit = r.pick(THINGS)
    form = r.choices(("grouped", "stacked", "lines"), (4, 2, 3))[0]
    series = r.pick((["2023", "2024"], ["2022", "2023", "2024"], ["Men", "Women"], ["Plan", "Actual"], ["Morning", "Evening"], ["Adults", "Children"], distinct(r, lambda r: r.pick(v.CITIES), 2), distinct(r, lambda r: r.pick(v.DEPARTMENTS), 3)))
    start = r.randint(0, 11)
    labels = r.pick((["Q1", "Q2", "Q3", "Q4"], [MONTHS_SHORT[(start + i) % 12] for i in range(r.randint(3, 7))], ["Mon", "Tue", "Wed", "Thu", "Fri"], [c for c in "ABCDEF"[: r.randint(3, 6)]], distinct(r, lambda r: r.pick(v.COUNTRIES), r.randint(3, 4))))
    grid = r.pick((5, 10, 20, 50, 100))
    printed = form == "grouped" and r.chance(0.5)
    top = r.randint(3, 7)
    values = [[r.randint(1, top * grid) if printed else grid * r.randint(1, top) for _ in labels] for _ in series]
    high = max(max(map(sum, zip(*values, strict=True))) if form == "stacked" else max(map(max, values)), 1)
    ticks = [(i * grid, str(i * grid)) for i in range(-(-high // grid) + 1)]
    if len(ticks) > 9:
        ticks = ticks[::2]
    d.heading(r.pick((f"{name} in {town(r)}", name, f"{name} compared")) + (f" ({unit.strip()})" if unit.strip() else ""))
    part = d.chart(form, labels, values, series=series, ticks=ticks, printed=[[str(x) for x in row] for row in values] if printed else None)
    shown = dict(ticks)
    for n, s in enumerate(series):
        for i in r.sample(range(len(labels)), 2):
            if printed or (form != "stacked" and values[n][i] in shown) or (form == "stacked" and n == 0 and values[n][i] in shown):
                d.ask((f"What is the {noun} of {s} {within(labels[i])}?", f"How much is shown for {s}, {labels[i]}?", f"{labels[i]}, {s}: how much?", f"Which value does {s} have for {labels[i]}?", f"What does the chart say for {labels[i]} and {s}?"), str(values[n][i]), part)
        if values[n].count(max(values[n])) == 1:
            d.ask((f"Where is {s} the highest?", f"For which one does {s} have the largest value?", f"When or where does {s} peak?", f"Which one is the largest for {s}?"), labels[values[n].index(max(values[n]))], part)
        if values[n].count(min(values[n])) == 1:
            d.ask((f"Where is {s} the lowest?", f"For which one does {s} have the smallest value?", f"Which one is the smallest for {s}?"), labels[values[n].index(min(values[n]))], part)
    for i, label in enumerate(labels):
        column = [row[i] for row in values]
        if column.count(max(column)) == 1:
            d.ask((f"Which is higher {within(label)}, {' or '.join(series)}?", f"Which one is ahead {within(label)}?", f"Which one has the most {within(label)}?", f"Which one is the largest for {label}?"), series[column.index(max(column))], part)
    d.ask(("What is compared?", "What does the legend say?", "Which groups are shown?", "What do the shades stand for?"), " and ".join(series) if len(series) == 2 else ", ".join(series), part)
    d.ask(("How many groups are compared?", "How many entries has the legend?", "How many series are there?"), str(len(series)), part)
    d.ask(("How many labels stand on the axis?", "For how many points are there values?"), str(len(labels)), part)
    d.ask(("What kind of chart is it?", "What type of diagram is shown?"), {"grouped": "bar chart", "stacked": "stacked bar chart", "lines": "line chart"}[form], part)
    d.about(f"A chart of {noun}: {' and '.join(series)} compared.", part)
    d.absent(f"How much is shown for {v.name_word(r)}?", f"What is the {noun} of {v.name_word(r)}?")
    d.absent(f"What is the {noun} of {r.randint(1950, 1999)}?", "What are the costs?")
    if r.chance(0.4):
        source = r.pick(("City archive", "own figures", "Annual survey", person(r)))
        part = d.line(f"{r.pick(('Source: ', 'Data: '))}{source}", small=True)
        d.ask(("Where do the figures come from?", "What is the source?", "Which source is named?"), source, part)


@kind("report", 2.0)
def report(d: Document) -> None:
    """A page of a report: text with facts above and below a chart."""
    r, dates, money = d.r, Dates(d.r), Money(d.r)
    d.heading(f"{r.randint(1, 9)}.{r.randint(1, 9)} {v.phrase(r, 2, 3)}", level=r.pick((1, 2)))
    if r.chance(0.5):
        tell(d, r.randint(1, 2), dates, money, hide=0.3, longest=160)
        add_chart(d, title=r.chance(0.6))
    else:
        add_chart(d, title=r.chance(0.6))
        tell(d, r.randint(1, 2), dates, money, hide=0.3, longest=160)
    page = str(r.randint(2, 240))
    part = d.line(page, r.pick("lcr"), small=True)
    d.ask(("Which page is it?", "What is the page number?", "What number does the page have?"), page, part)
