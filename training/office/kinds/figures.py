"""Charts, slides and pages of a report with a chart."""

# fmt: off

import itertools

from training.office.chart_values import clear
from training.office.document import Document
from training.office.registry import kind
from training.office.values import MONTHS_SHORT, Dates, distinct, person, town
from training.pages import values as v

THINGS = (
    ("Visitors", "number of visitors", ""), ("Sales", "amount sold", " t"), ("Rainfall", "rainfall", " mm"), ("Members", "number of members", ""), ("Energy use", "energy use", " kWh"), ("Accidents", "number of accidents", ""), ("Votes", "number of votes", ""),
    ("Temperature", "temperature", " \u00b0C"), ("Books lent", "number of books lent", ""), ("Market share", "market share", " %"), ("Bicycles sold", "number of bicycles sold", ""), ("Waste", "amount of waste", " kg"),
)


def add_chart(d: Document, title: bool = True) -> None:
    """A chart with its title and questions: reading a value, the largest, the smallest, comparing, counting."""
    r = d.r
    name, noun, unit = r.pick(THINGS)
    form = r.choices(("bar", "column", "line", "pie"), (3, 4, 3, 3))[0]
    noun = "share" if form == "pie" else noun  # its slices are per cent, whatever they are of
    if form == "line" or r.chance(0.3):
        start = r.randint(0, 11)
        labels = r.pick(([str(y) for y in range(2016, 2027)][: r.randint(4, 9)], [MONTHS_SHORT[(start + i) % 12] for i in range(r.randint(4, 9))], ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"][: r.randint(4, 7)]))
    else:
        labels = distinct(r, r.pick((v.city, lambda r: r.pick(v.DEPARTMENTS), v.country, lambda r: r.pick(v.PRODUCTS), lambda r: r.pick(v.FIRST_NAMES), lambda r: r.pick("ABCDEFGH"))), r.randint(3, 6 if form == "pie" else 8))
    grid = r.pick((5, 10, 20, 50, 100, 200, 1000))
    with_values = r.chance(0.6) or form == "pie"
    if form == "pie":
        cuts = sorted(r.sample(range(4, 97), len(labels) - 1))
        values = [b - a for a, b in zip([0, *cuts], [*cuts, 100], strict=True)]
        unit = " %" if r.chance(0.6) else "%"
    elif with_values:
        values = [r.randint(1, 6 * grid) for _ in labels]
    else:
        values = [grid / 2 * r.randint(1, 12) for _ in labels]
        values = [int(x) if x == int(x) else x for x in values]
    printed = [f"{value}{unit if r.chance(1) and (form == 'pie' or len(unit) < 3) else ''}" for value in values] if with_values and not (form == "pie" and r.chance(0.15)) else None
    ticks = None
    if form != "pie" and (not with_values or r.chance(0.5)):
        top = -(-max(values) // grid)
        ticks = [(i * grid, str(i * grid)) for i in range(int(top) + 1)]
    place = town(r)
    if title:
        d.heading(r.pick((f"{name} in {place}", name, f"{name} {r.randint(2015, 2030)}", f"{name} by {r.pick(('year', 'group', 'place'))}")) + (f" ({unit.strip()})" if unit.strip() and form != "pie" else ""))
    part = d.chart(form, labels, values, printed=printed, ticks=ticks, shade=r.pick((255, 190, 150, 110)))
    word = {"bar": "bar", "column": "bar", "line": "point", "pie": "slice"}[form]
    if printed or form != "pie":
        for label, _value, text in zip(labels, values, printed or map(str, values), strict=True):
            d.ask((f"What is the {noun} for {label}?", f"What value does {label} have?", f"How much is shown for {label}?", f"Which number belongs to {label}?", f"{label}: how much?"), text, part)
    gap = 0 if printed or form != "pie" else 5  # slices without numbers must differ to the eye
    if clear(values, max(values), gap):
        d.ask((f"Which {word} is the largest?", "Which one has the highest value?", "Where is the value the highest?", "What is in first place?", f"Which has the highest {noun}?"), labels[values.index(max(values))], part)
    if clear(values, min(values), gap):
        d.ask(("Which one has the lowest value?", "Where is the value the smallest?", f"Which {word} is the smallest?", f"Which has the lowest {noun}?"), labels[values.index(min(values))], part)
    i, j = r.sample(range(len(labels)), 2)
    if abs(values[i] - values[j]) > gap:
        d.ask((f"Which is larger, {labels[i]} or {labels[j]}?", f"Who has more, {labels[i]} or {labels[j]}?"), labels[i] if values[i] > values[j] else labels[j], part)
    d.ask((f"How many {word}s does the chart have?", f"How many {word}s are shown?", "How many values are in the chart?"), str(len(labels)), part)
    d.ask(("What kind of chart is it?", "What type of diagram is shown?"), {"bar": "bar chart", "column": "bar chart", "line": "line chart", "pie": "pie chart"}[form], part)
    if form == "line" and all(a < b for a, b in itertools.pairwise(values)):
        d.ask(("Does the line rise or fall?", "How does the value develop?"), "it rises", part)
    d.absent(f"What is the {noun} for {v.name_word(r)}?", f"What value does {v.name_word(r)} have?")


@kind("chart", 6.0)
def chart(d: Document) -> None:
    r = d.r
    add_chart(d)
    if r.chance(0.4):
        source = r.pick(("Statistics Office", "own survey", "City archive", "Annual report", person(r)))
        part = d.line(f"Source: {source}", small=True)
        d.ask(("What is the source of the figures?", "Where do the figures come from?", "Which source is given?"), source, part)
    else:
        d.absent("What is the source of the figures?", "Which source is given?")
    if r.chance(0.5):
        d.paragraph(v.sentence(r))
    if r.chance(0.15):
        d.paragraph(" ".join(v.sentence(r) for _ in range(3)))


@kind("slide", 3.0)
def slide(d: Document) -> None:
    r, dates = d.r, Dates(d.r)
    title, speaker, day = v.phrase(r, 2, 4).title(), person(r), dates.date()
    top = d.heading(title)
    d.ask(("What is the title of the slide?", "What is the slide about?", "What does the heading of the slide say?", "What is the topic of the slide?"), title, top)
    d.gap()
    points = [
        ("Budget", f"{r.randint(2, 90)},000 {r.pick(('€', '$', '£'))}"), ("Start", dates.date()), ("Team", f"{r.randint(3, 40)} people"), ("Growth", f"{r.randint(1, 40)}.{r.randint(0, 9)} %"), ("Location", town(r)), ("Lead", person(r)),
        ("Customers", f"{r.randint(2, 99) * 100}"), ("Risk", r.pick(("late delivery", "missing staff", "higher prices", "old software"))), ("Goal", r.pick(("fewer errors", "faster service", "lower costs", "happier guests"))),
    ]
    chosen = r.sample(points, r.randint(2, 5))
    target = d
    if r.chance(0.35) and d.shape[1] > 500:
        target, right = d.columns(2)
        add_chart(right, title=False)
    parts = target.items([f"{a}: {b}" if r.chance(0.7) else f"{a} {b}" for a, b in chosen], r.pick(("\u2022", "-", "\u2013", "1")))
    for (a, b), part in zip(chosen, parts, strict=True):
        low = a.lower()
        d.ask((f"What is the {low}?", f"What does the slide say about the {low}?", f"{a}?", f"What is given as the {low}?"), b, part)
    d.ask(("How many points are listed?", "How many bullet points does the slide have?", "How many points are there?"), str(len(chosen)), parts)
    d.ask(("What is the first point?", "Which point comes first?"), f"{chosen[0][0]}: {chosen[0][1]}", parts[0])
    for a, _ in points:
        if a not in [name for name, _ in chosen]:
            d.absent(f"What is the {a.lower()}?", f"What does the slide say about the {a.lower()}?")
            break
    d.gap()
    number = r.randint(1, 60)
    foot = d.line(r.pick((f"{speaker}   {day}   {number}", f"{speaker} | {day} | {number}", f"{number}   {speaker}, {day}")), small=True)
    d.ask(("Who gives the presentation?", "Who is the speaker?", "Whose slide is it?", "Who is presenting?"), speaker, foot)
    d.ask(("What is the number of the slide?", "Which slide is it?", "What slide number is shown?"), str(number), foot)
    d.ask(("When is the presentation?", "What is the date of the presentation?", "On which day is the talk?"), day, foot)
