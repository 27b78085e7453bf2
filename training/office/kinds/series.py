"""Charts that compare several series, and pages with a chart and the text about it."""

# fmt: off

from training.office.chart_ladder import upper
from training.office.chart_values import Numbers, apart
from training.office.document import Document
from training.office.kinds.figures import add_chart
from training.office.kinds.plots import KIND, TITLE, labels_of, series_of
from training.office.kinds.subjects import MEASURES, topics
from training.office.registry import kind
from training.office.sentences import tell
from training.office.series_questions import SomeSeries
from training.office.values import Dates, Money, person, town
from training.pages import values as v


@kind("series_chart", 7.0)
def series_chart(d: Document) -> None:
    """Two or three series on a grid that their values lie on, title and source in the text around the chart."""
    r = d.r
    topic = r.pick([t for t in topics() if not t["whole"]])
    family, unit = topic["labels"], topic["unit"]
    labels, ordered = labels_of(r, family.replace(", ", ","))
    series = series_of(r, topic, most=3)
    labels = [label for label in labels[: r.randint(3, 6)] if label not in series]
    form = r.choices(("grouped", "stacked", "lines"), (4, 2 if "total" in topic else 0, 4 if ordered else 0))[0]
    low, high = topic["range"]
    grid = next(g for g in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000) if 6 * g >= high)
    printed = form == "grouped" and r.chance(0.5)
    top = r.randint(max(3, len(series)), 6)
    if form == "lines":
        values = [[grid * x for x in row] for row in apart(r, len(series), len(labels), top)]
    else:
        values = [[r.randint(max(low, 1), top * grid) if printed else grid * r.randint(1, top) for _ in labels] for _ in series]
    highest = max(map(sum, zip(*values, strict=True))) if form == "stacked" else max(map(max, values))
    numbers = Numbers(r, unit, highest)
    numbers.unit = ""
    ticks = [(i * grid, numbers(i * grid)) for i in range(-(-highest // grid) + 1)]
    if len(ticks) > 9:
        ticks = ticks[:: 2] if len(ticks) % 2 else [*ticks, (len(ticks) * grid, numbers(len(ticks) * grid))][::2]
    title = r.pick(topic["titles"])
    shown = r.pick((title, f"{title}, {r.randint(2012, 2030)}", f"{title} ({town(r)})"))
    heading = d.heading(shown + (f", in {unit}" if unit in MEASURES and r.chance(0.6) else ""))
    texts, every = [[numbers(x) for x in row] for row in values], form != "stacked"
    part = d.chart(form, labels, values, series=[upper(s) for s in series], ticks=ticks, printed=texts if printed else None, value_texts=texts if every else [], told=texts)
    asked = SomeSeries(form, topic, series, labels, values, numbers, ordered, family, every, 0 if every else grid, ticks)
    asked.ask(d, part)
    d.ask(TITLE, shown, heading)
    d.ask(KIND, {"grouped": "bar chart", "stacked": "stacked bar chart", "lines": "line chart"}[form], part)
    d.about(f"A chart: {title}; {' and '.join(series)} are compared.", part)
    for wording in r.sample(topic["none"], r.randint(0, len(topic["none"]))):
        d.absent(wording)
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
