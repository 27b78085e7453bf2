"""Pages with charts among other things: a figure with its caption, a chart and its numbers, small charts side by side."""

# fmt: off

from training.office.chart_ladder import upper
from training.office.chart_looks import LOOK_WEIGHTS, LOOKS
from training.office.chart_values import Numbers, scale
from training.office.document import Document
from training.office.kinds.plots import add_plot, add_series, labels_of, series_of
from training.office.kinds.subjects import MEASURES, topics
from training.office.prose import prose
from training.office.registry import kind
from training.office.sentences import tell
from training.office.values import Dates, Money, within
from training.pages import values as v

# headings of the labels in a table
MEANT = {"years": "Year", "months": "Month", "weekdays": "Day", "quarters": "Quarter", "towns": "Town", "countries": "Country", "departments": "Department", "people": "Name"}


@kind("figure_page", 5.0)
def figure_page(d: Document) -> None:
    """A page of a report: text, a chart without a title, and its caption below or above."""
    r = d.r
    number, word = r.randint(1, 30), r.pick(("Figure", "Figure", "Fig.", "Chart", "Diagram"))
    d.heading(f"{r.randint(1, 9)}.{r.randint(1, 9)} {v.phrase(r, 2, 3)}" if r.chance(0.5) else upper(v.phrase(r, 2, 4)), level=r.pick((1, 2)))
    if r.chance(0.6):
        r.pick((lambda: d.paragraph(prose(r, 200)), lambda: tell(d, 1, Dates(r), Money(r), hide=0.3, longest=140)))()
    above = r.chance(0.25)
    spot = len(d.blocks)
    title, part, _ = (add_series if r.chance(0.4) else add_plot)(d, caption=True)
    mark = r.pick((f"{word} {number}: ", f"{word} {number}. ", f"{word} {number} \u2013 "))
    caption = d.line(mark + title, r.pick("llc"), small=True)
    if above:
        d.blocks.insert(spot, d.blocks.pop())
    d.ask(("What does the caption of the chart say?", "Read the caption.", f"What does {word} {number} show?", "What is the title of the figure?", "What does the chart show?"), title, part, caption)
    d.ask(("What is the number of the figure?", "Which number does the figure have?", "Which figure is it?", "Number of the figure?"), str(number), part, caption)
    d.absent(f"What does {word} {number + r.randint(1, 5)} show?")
    if r.chance(0.5):
        d.paragraph(prose(r, r.pick((200, 300))))
    page = str(r.randint(2, 240))
    line = d.line(page, r.pick("lcr"), small=True)
    d.ask(("Which page is it?", "What is the page number?", "What number does the page have?"), page, line)


@kind("chart_table", 3.0)
def chart_table(d: Document) -> None:
    """A chart with a table of its numbers beside it, or below on a narrow page."""
    r = d.r
    wide = d.shape[1] > 600 and r.chance(0.7)
    left, right = d.columns(2) if wide else (d, d)
    several = r.chance(0.4) and not wide
    _, _, asked = (add_series if several else add_plot)(left)
    write = asked.numbers  # as the answers about the chart
    head = upper(r.pick(("label", "name", "item", "")) or " ").strip() if asked.family not in MEANT else MEANT[asked.family]
    if several:
        rows = [[label, *(write(row[i]) for row in asked.values)] for i, label in enumerate(asked.labels)]
        right.table([head, *map(upper, asked.series)], rows, numbers=len(asked.series))
    else:
        right.table([head, r.pick(("Value", "Number", "Figure"))], [[label, write(x)] for label, x in zip(asked.labels, asked.values, strict=True)], numbers=1)
    if r.chance(0.3):
        d.paragraph(prose(r, 200))


@kind("small_charts", 3.0)
def small_charts(d: Document) -> None:
    """The same chart for each of two or three series, side by side or one below the other."""
    r = d.r
    topic = r.pick([t for t in topics() if not t["whole"]])
    family, unit, (low, high) = topic["labels"], topic["unit"], topic["range"]
    labels, ordered = labels_of(r, family.replace(", ", ","))
    wide = d.shape[1] > 600
    series = series_of(r, topic, most=3 if wide and d.shape[1] > 700 else 2)
    labels = [label for label in labels[:r.randint(3, 5)] if label not in series]
    title = r.pick(topic["titles"])
    step, ticks = scale(r, r.randint(max(low, high // 3, 6), high), False, False)
    printed = r.chance(0.6)
    unit_step = 1 if printed else step
    values = [[float(unit_step * r.randint(1, int(ticks[-1] / unit_step))) for _ in labels] for _ in series]
    numbers = Numbers(r, unit, ticks[-1])
    if unit not in MEASURES:
        numbers.unit = ""
    form = r.choices(("column", "bar", "line"), (3, 3, 4 if ordered else 0))[0]
    shade, look = r.pick((255, 190, 150, 110)), dict(r.choices(list(LOOKS.values()), LOOK_WEIGHTS)[0])
    heading = d.heading(title + (f", in {unit}" if unit in MEASURES and not numbers.unit else ""))
    d.ask(("What is the title of the page?", "What do the charts show?", "heading?", "What are the charts about?"), title, heading)
    places = d.columns(len(series)) if wide else [d] * len(series)
    texts = [[numbers(x) for x in row] for row in values]
    parts = [
        place.chart(form, labels, row, printed=told if printed else None, told=[told], rich=True, title=upper(s), shade=shade, look=look, ticks=None if printed else [(x, numbers.bare(x)) for x in ticks])
        for place, s, row, told in zip(places, series, values, texts, strict=True)
    ]
    fill = lambda key, **blanks: [w.format(**blanks) for w in topic[key]]  # noqa: E731
    spot = ("on the left", "on the right") if wide else ("at the top", "at the bottom")
    d.ask(("How many charts are there?", "How many charts are on the page?", "Number of charts?"), str(len(series)), parts)
    d.ask((f"Which chart is {spot[0]}?", f"What does the chart {spot[0]} show?", f"Title of the chart {spot[0]}?"), upper(series[0]), parts)
    d.ask((f"Which chart is {spot[1]}?", f"What does the chart {spot[1]} show?", f"Title of the chart {spot[1]}?"), upper(series[-1]), parts)
    d.ask(("What are the titles of the charts?", "Which charts are there?", "For what is there a chart each?"), ", ".join(map(upper, series)), parts)
    d.ask((f"How many {'points' if form == 'line' else 'bars'} does each chart have?", "How many values does each chart show?"), str(len(labels)), parts)
    for n, (s, row) in enumerate(zip(series, values, strict=True)):
        for i in r.sample(range(len(labels)), min(3, len(labels))):
            d.ask((*fill("value", s=s, x=within(labels[i]), l=labels[i]), f"In the chart \"{upper(s)}\": how much is {labels[i]}?", f"{upper(s)}, {labels[i]}?"), numbers(row[i]), parts[n])
        for extreme, key, word in ((max, "most", "highest"), (min, "least", "lowest")):
            if row.count(extreme(row)) == 1:
                d.ask((*fill(key, s=s), f"In the chart \"{upper(s)}\": which is the {word}?"), labels[row.index(extreme(row))], parts[n])
    for i in r.sample(range(len(labels)), 2):
        a, b = r.sample(range(len(series)), 2)
        if values[a][i] != values[b][i]:
            first, second = r.pick(((a, b), (b, a)))
            a, b = (a, b) if values[a][i] > values[b][i] else (b, a)
            blanks = {"x": within(labels[i]), "l": labels[i]}
            d.ask(fill("ahead", a=series[first], b=series[second], **blanks), upper(series[a]), parts)
            d.ask(fill("more", a=series[a], b=series[b], **blanks), numbers(values[a][i] - values[b][i]), parts)
    if r.chance(0.5):
        d.absent(r.pick(topic["none"]))
