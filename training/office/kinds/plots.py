"""Charts with every detail that programs draw: titles and notes in the picture, units, broken axes, half ticks, losses."""

# fmt: off

import itertools

from training.office.document import Document
from training.office.kinds.subjects import FAMILIES, MEASURES, SOURCES, subjects
from training.office.prose import prose
from training.office.registry import kind
from training.office.sentences import tell
from training.office.values import MONTHS_SHORT, Dates, Money, distinct, person, town, within
from training.pages import values as v
from training.pages.values import Rng

TITLE = ("What is the title of the chart?", "What is the chart called?", "Title?", "Which heading does the chart have?", "What does the chart show?", "What is the heading of the figure?")
UNIT = ("What is the unit?", "In which unit are the values?", "In what are the values given?", "What are the figures measured in?", "Unit of the axis?", "Which unit is used?")
SOURCE = ("Where do the figures come from?", "source?", "Who supplied the data?", "What is given as the source?", "According to whom?", "Where is the data from?")
TREND_UP, TREND_DOWN = ("it rises", "it falls")
GAINS = (
    ("Profit", "profit", "thousand €", "years"), ("Balance", "balance", "€", "months"), ("Lowest temperature in {town}", "lowest temperature", "°C", "months"), ("Growth", "growth", "%", "years"),
    ("Change in prices", "change in prices", "%", "months"), ("Result per department", "result", "thousand $", "departments"), ("Change in population", "change", "%", "towns"),
)
# title, noun, unit, names of the series, labels
TOPICS = (
    ("Turnover by branch", "turnover", "thousand €", "towns", "quarters"), ("Ticket sales", "number of tickets sold", "tickets", "Adults,Children,Pensioners", "weekdays"), ("Electricity by source", "share", "%", "Wind,Solar,Coal,Gas", "years"),
    ("Visits to the doctor", "number of visits", "visits", "Women,Men", "months"), ("Bookings", "number of bookings", "bookings", "Online,By phone,At the counter", "months"), ("Students abroad", "number of students", "students", "Spain,France,Italy,Poland", "years"),
    ("Beds in use", "number of beds", "beds", "Ward 1,Ward 2,Ward 3", "weekdays"), ("Plan and result", "amount", "thousand $", "Plan,Result", "quarters"), ("Water levels", "water level", "cm", "Rhine,Danube,Elbe", "months"),
    ("Newspaper readers", "number of readers", "readers", "Print,Online", "years"), ("Harvest", "harvest", "tonnes", "Wheat,Barley,Maize", "years"), ("Staff", "number of employees", "employees", "2021,2022,2023", "departments"),
    ("Traffic at the crossing", "number of vehicles", "vehicles", "Cars,Lorries,Bicycles", "weekdays"), ("Average prices", "price", "£", "Flats,Houses", "towns"), ("Goals per match day", "number of goals", "goals", "Home,Away", "Round 1,Round 2,Round 3,Round 4,Round 5"),
    ("How people get to work", "share", "%", "Car,Train,Bicycle,On foot", "towns"), ("Loans", "number of loans", "loans", "Books,Films,Games", "months"), ("Calls", "number of calls", "calls", "Answered,Missed", "weekdays"),
)
STEPS = (2, 4, 10, 20, 40, 50, 100, 200, 500, 1000, 2000, 10000)


class Numbers:
    """How one chart writes its numbers, with or without the unit."""

    def __init__(self, r: Rng, unit: str, high: float) -> None:
        self.separator = r.choices(("", ",", " ", "."), (4, 4, 1, 1))[0] if high > 999 else ""
        self.point = "," if self.separator in (" ", ".") else r.pick("...,") if high <= 999 else "."
        self.unit = unit if unit in ("%", "°C", "€", "£", "$", "mm", "kg", "cm") and r.chance(0.5) else ""
        self.before, self.space = unit in "£$" and unit != "", "" if unit == "%" and r.chance(0.6) else " "
        self.thousands = not self.unit and high >= 2000 and r.chance(0.2)

    def bare(self, x: float) -> str:
        if self.thousands and x and x % 100 == 0:
            return f"{x / 1000:g}k"
        text = f"{x:,.1f}" if x != int(x) else f"{int(x):,}"
        return text.replace(",", "\0").replace(".", self.point).replace("\0", self.separator)

    def __call__(self, x: float) -> str:
        text = self.bare(x)
        return text if not self.unit else f"{self.unit}{text}" if self.before else f"{text}{self.space}{self.unit}"


def _labels(r: Rng, family: str) -> tuple[list[str], bool]:
    """Labels, and whether they follow one another in time; three to twelve."""
    if family == "months" and r.chance(0.3):
        return [*MONTHS_SHORT] if r.chance(0.6) else [f"{m} {y % 100:02d}" for y in (r.randint(2010, 2030),) for m in MONTHS_SHORT[:r.randint(5, 12)]], True
    if family == "years" and r.chance(0.3):
        start = r.randint(1980, 2018)
        return [str(start + i) for i in range(r.randint(8, 12))], True
    if family in FAMILIES:
        return list(FAMILIES[family](r)), family in ("years", "months", "weekdays", "quarters")
    names = family.split(",")
    names = [name.strip() for name in names]
    return (r.sample(names, r.randint(3, min(9, len(names)))) if len(names) > 5 else names), False


def _scale(r: Rng, high: int, floor: bool, loss: bool) -> tuple[float, list[float]]:
    """The step of an axis up to about ``high``, and its ticks."""
    step = next((s for s in STEPS if r.randint(4, 8) * s >= high), STEPS[-1])
    count = max(-(-high // step), 3)
    start = step * r.randint(3, 30) if floor else -step * r.randint(1, 3) if loss else 0
    return step, [start + step * i for i in range(count + 1)]


def _picture(d: Document, form: str, title: str, unit: str, numbers: Numbers, ticks: list[float] | None, printed: bool, **more) -> dict:
    """Options of the picture: its title, unit, source and axis; questions about them are asked by `_frame`."""
    r = d.r
    write = numbers if not printed or r.chance(0.4) else numbers.bare
    options = {"rich": True, "ticks": [(x, write(x)) for x in ticks] if ticks else None, **more}
    if r.chance(0.55):
        options |= {"title": title, "title_at": r.pick(("top", "top", "top", "bottom")), "align": r.pick("lc")}
    measured = bool(unit) and not numbers.unit
    if measured and r.chance(0.75):
        spot = r.pick(("subtitle", "axis")) if form not in ("bar", "pie", "donut", "dots", "grouped_bar", "stacked_bar") and ticks else "subtitle"
        options[spot] = unit if spot == "axis" else r.pick((f"in {unit}", f"Unit: {unit}", f"Figures in {unit}", f"({unit})", f"All values in {unit}"))
    if r.chance(0.4):
        source = r.pick((*SOURCES, person(r), v.company(r).rstrip(".")))
        options["note"], options["from"] = r.pick((f"Source: {source}", f"Data: {source}", f"Source: {source}, {r.randint(2012, 2030)}", f"Figures: {source}")), source
    return options


def _frame(d: Document, title: str, unit: str, options: dict, part: int) -> None:
    if "title" in options:
        d.ask(TITLE, title, part)
    if "subtitle" in options or "axis" in options:
        d.ask(UNIT, unit, part)
    if "from" in options:
        d.ask(SOURCE, options["from"], part)
    elif d.r.chance(0.3):
        d.absent(*SOURCE[:4])


@kind("plot", 14.0)
def plot(d: Document) -> None:
    """One series, on a page of its own or between paragraphs."""
    r = d.r
    if r.chance(0.3):
        r.pick((lambda: d.paragraph(prose(r, 300)), lambda: tell(d, 1, Dates(r), Money(r), hide=0.3, longest=140)))()
    add_plot(d)
    if r.chance(0.3):
        d.paragraph(prose(r, r.pick((200, 500))))


def add_plot(d: Document) -> None:
    r = d.r
    if r.chance(0.12):
        loss, subject = True, None
        title, noun, unit, family = r.pick(GAINS)
        labels, ordered = _labels(r, family)
        low, high = -20, r.randint(5, 60)
    else:
        loss, subject = False, r.pick(subjects())
        unit, (low, high), family = subject["unit"], subject["range"], subject["labels"]
        title, noun = r.pick(subject["titles"]), "value"
        labels, ordered = _labels(r, family.replace(", ", ","))
    labels = labels[:12]
    title = title.format(town=town(r), since=f"since {labels[0]}" if family == "years" else "").strip()
    counted, unit = unit == "%" or unit not in MEASURES, unit if unit in MEASURES or loss else ""
    forms = ("bar", "column", "line", "area", "dots", "lollipop", "pie", "donut")
    weights = (0, 4, 4, 2, 0, 1, 0, 0) if ordered else (4, 4, 0, 0, 1, 1, 2, 1) if len(labels) < 8 and not loss and counted else (4, 3, 0, 0, 1, 1, 0, 0)
    form = r.choices(forms, weights)[0]
    circle = form in ("pie", "donut")
    if loss and form == "area":
        form = "line"
    high = r.randint(max(low + 2, 6, high // 4), max(high, 8))
    floor = form in ("line", "dots") and not loss and r.chance(0.25)
    step, ticks = _scale(r, high, floor, loss)
    printed = circle or r.chance(0.4)
    halves = r.chance(0.5)
    unit_step = 1 if printed and not r.chance(0.2) else step / 2 if halves else step
    span = int((ticks[-1] - ticks[0]) / unit_step)
    values = [ticks[0] + unit_step * r.randint(0 if loss else 1, span) for _ in labels]
    if ordered and r.chance(0.3):
        values.sort(reverse=r.chance(0.5))
    if circle and unit != "%" and r.chance(0.6):  # counts, not shares
        values = [float(r.randint(max(low, high // 8, 1), max(high, 3))) for _ in labels]
    elif circle:
        subject, noun = (subject if unit == "%" else None), "share"
        cuts = sorted(r.sample(range(3, 98), len(labels) - 1)) if len(labels) < 9 else list(range(8, 8 * len(labels), 8))
        values = [float(b - a) for a, b in zip([0, *cuts], [*cuts, 100], strict=True)]
        unit = "%"
    numbers = Numbers(r, unit, max(map(abs, (*values, *ticks))))
    if circle and unit == "%":
        numbers.unit, numbers.before = "%", False
    texts = [numbers(x) for x in values]
    axis = None if circle or (printed and r.chance(0.4)) else ticks
    options = _picture(d, form, title, unit if not circle else "", numbers, axis, printed, floor=ticks[0] if floor else None)
    if "title" not in options:
        top = d.heading(title, r.pick((1, 1, 2)))
        d.ask(TITLE, title, top)
    part = d.chart(form, labels, values, printed=texts if printed else None, **{"shade": 150} | options)
    _frame(d, title, unit, options, part)
    word = {"bar": "bar", "column": "bar", "line": "point", "area": "point", "dots": "dot", "lollipop": "dot", "pie": "slice", "donut": "slice"}[form]
    d.ask(("What kind of chart is it?", "What type of diagram is shown?", "Which sort of chart is this?"), {"bar": "bar chart", "column": "bar chart", "line": "line chart", "area": "area chart", "dots": "dot plot", "lollipop": "lollipop chart", "pie": "pie chart", "donut": "doughnut chart"}[form], part)
    _values(d, subject, noun, labels, values, texts, word, part)
    _pairs(d, subject, labels, values, numbers, part)
    if ordered:
        _trend(d, labels, values, family, part)
    d.about(f"A chart: {title}.", part) if r.chance(0.5) else None
    if subject and r.chance(0.5):
        d.absent(*r.pick(subject["none"]).split("\0"))


def _values(d: Document, subject: dict | None, noun: str, labels: list[str], values: list[float], texts: list[str], word: str, part: int) -> None:
    r = d.r
    for label, text in zip(labels, texts, strict=True):
        own = [w.format(x=label) for w in subject["value"]] if subject else [f"What was the {noun} in {label}?" if label[0].isdigit() or label[:3] in MONTHS_SHORT else f"What is the {noun} of {label}?"]
        free = [f"What value does {label} have?", f"How much is shown for {label}?", f"{label}: how much?", f"Read off the value for {label}.", f"How high is the {word} of {label}?", f"Value at {label}?", f"Which number belongs to {label}?"]
        d.ask((*own, *r.sample(free, 4)), text, part)
    for extreme, wordings, size in (
        (max, ("Which one is the largest?", f"Which {word} is the highest?", "Where is the value the highest?", "Who or what is in first place?", "Which label has the maximum?"), ("What is the highest value?", "How high is the largest value?", "What is the maximum?", "Which value is the peak?")),
        (min, ("Which one is the smallest?", f"Which {word} is the lowest?", "Where is the value the lowest?", "Who or what is last?", "Which label has the minimum?"), ("What is the lowest value?", "How low is the smallest value?", "What is the minimum?", "Which is the smallest figure?")),
    ):
        at = values.index(extreme(values))
        if values.count(values[at]) == 1:
            d.ask((*(subject["most" if extreme is max else "least"] if subject else ()), *wordings), labels[at], part)
        d.ask(size, texts[at], part)
    for text in r.sample(sorted(set(texts)), min(3, len(set(texts)))):
        if texts.count(text) == 1:
            d.ask((f"Which one stands at {text}?", f"Where is the value {text}?", f"What has {text}?", f"{text} is the value of which one?", f"Which label belongs to {text}?"), labels[texts.index(text)], part)
    d.ask((f"How many {word}s are there?", f"How many {word}s does the chart have?", "How many values are shown?", "Number of values?"), str(len(labels)), part)


def _pairs(d: Document, subject: dict | None, labels: list[str], values: list[float], numbers: Numbers, part: int) -> None:
    """Two compared, the second, how many exceed a number, differences and sums."""
    r = d.r
    fill = lambda key, **blanks: [w.format(**blanks) for w in subject[key]] if subject else []  # noqa: E731
    for _ in range(3):
        i, j = r.sample(range(len(labels)), 2)
        i, j = (i, j) if values[i] > values[j] else (j, i)
        a, b = labels[i], labels[j]
        if values[i] != values[j]:
            x, y = r.pick(((a, b), (b, a)))
            d.ask((*fill("which", a=x, b=y), f"Which is higher, {x} or {y}?", f"{x} or {y}: which is more?", f"Is {x} or {y} larger?"), a, part)
            d.ask((*fill("more", a=a, b=b), f"What is the difference between {x} and {y}?", f"How much more is {a} than {b}?", f"By how much is {a} above {b}?"), numbers(values[i] - values[j]), part)
        if r.chance(0.4) and min(values) >= 0:
            d.ask((f"What is the sum of {a} and {b}?", f"How much do {a} and {b} make together?", f"{b} plus {a}?", f"Add {a} and {b}."), numbers(values[i] + values[j]), part)
    ranks = sorted(set(values))
    if len(ranks) > 2:
        bound = r.pick(ranks[:-1])
        shown = numbers(bound)
        d.ask((*fill("over", n=shown.replace(numbers.unit, "").strip() if numbers.unit else shown), f"How many are above {shown}?", f"How many exceed {shown}?", f"In how many cases is it more than {shown}?"), str(sum(x > bound for x in values)), part)
        d.ask((f"How many are below {shown}?", f"How many are under {shown}?", f"How many lie lower than {shown}?"), str(sum(x < bound for x in values)), part)
        if values.count(ranks[-2]) == 1 and values.count(ranks[-1]) == 1:
            d.ask(("Which one is second?", "What is in second place?", "Which is the second largest?", "second highest?", "Which comes right after the largest?"), labels[values.index(ranks[-2])], part)
        if values.count(ranks[1]) == 1 and values.count(ranks[0]) == 1:
            d.ask(("Which is the second smallest?", "second lowest?", "Which one is last but one?", "Which comes right before the smallest?"), labels[values.index(ranks[1])], part)
    if ranks[0] < 0:
        below = [label for label, x in zip(labels, values, strict=True) if x < 0]
        d.ask(("How many are negative?", "How many values lie below zero?", "How often is it below zero?"), str(len(below)), part)
        if len(below) == 1:
            d.ask(("Which one is negative?", "Where does it fall below zero?", "Which value is below zero?"), below[0], part)


def _trend(d: Document, labels: list[str], values: list[float], family: str, part: int) -> None:
    r, pairs = d.r, list(itertools.pairwise(values))
    rises, falls = all(a < b for a, b in pairs), all(a > b for a, b in pairs)
    if rises or falls:
        d.ask(("Do the values rise or fall?", "What is the trend?", "Does it go up or down?", "How does it develop?", "Is it rising or falling?"), TREND_UP if rises else TREND_DOWN, part)
    for _ in range(2):
        i, j = sorted(r.sample(range(len(labels)), 2))
        if values[i] != values[j]:
            up = values[i] < values[j]
            d.ask((f"Did it rise or fall from {labels[i]} to {labels[j]}?", f"Did it go up or down between {labels[i]} and {labels[j]}?", f"From {labels[i]} to {labels[j]}: rise or fall?"), TREND_UP if up else TREND_DOWN, part)
    steps = [b - a for a, b in pairs]
    for size, word in ((max(steps), "rise"), (min(steps), "fall")):
        if steps.count(size) == 1 and (size > 0) == (word == "rise") and size:
            at = steps.index(size)
            d.ask((f"Where is the largest {word}?", f"Between which two is the biggest {word}?", f"When does it {word} the most?"), f"from {labels[at]} to {labels[at + 1]}", part)
    if family == "years":
        d.ask(("Which years does the chart cover?", "From when to when does it go?", "What period is shown?"), f"{labels[0]} to {labels[-1]}", part)


@kind("plot_series", 9.0)
def plot_series(d: Document) -> None:
    """Several series, with a legend."""
    r = d.r
    title, noun, unit, series_of, family = r.pick(TOPICS)
    labels, ordered = _labels(r, family)
    labels = labels[:r.randint(3, 8)]
    series = distinct(r, town, r.randint(2, 4)) if series_of == "towns" else series_of.split(",")[:r.randint(2, 4)]
    labels = [label for label in labels if label not in series]
    form = r.choices(("grouped", "stacked", "lines", "grouped_bar", "stacked_bar"), (4, 3, 5 if ordered else 0, 2, 2))[0]
    stacked = form.startswith("stacked")
    step, ticks = _scale(r, r.randint(8, 1200 if unit not in ("%", "thousand €") else 90), form == "lines" and r.chance(0.15), False)
    printed = form != "lines" and r.chance(0.45)
    unit_step = 1 if printed else step if len(ticks) > 5 else step / 2
    share = len(series) if stacked else 1
    span = max(int((ticks[-1] - ticks[0]) / unit_step / share), 2)
    least = span // 3 if stacked and printed else 1  # room for the numbers in the bars
    values = [[ticks[0] + unit_step * r.randint(max(least, 1), span) for _ in labels] for _ in series]
    highest = max(map(sum, zip(*values, strict=True))) if stacked else max(map(max, values))
    while ticks[-1] < highest:
        ticks.append(ticks[-1] + step)
    numbers = Numbers(r, unit, ticks[-1])
    measured = unit in (*MEASURES, "cm", "thousand $")
    options = _picture(d, form, title, unit if measured else "", numbers, ticks, printed, floor=ticks[0])
    if "title" not in options:
        d.ask(TITLE, title, d.heading(title))
    part = d.chart(form, labels, values, series=series, printed=[[numbers(x) for x in row] for row in values] if printed else None, **options)
    _frame(d, title, unit, options, part)
    _series_values(d, noun, series, labels, values, numbers, part, every=not stacked or printed)
    _series_pairs(d, noun, series, labels, values, numbers, part, stacked, bool(printed))
    d.ask(("What does the legend say?", "Which groups are compared?", "What is compared?", "Which series are shown?"), ", ".join(series), part)
    d.ask(("How many series are there?", "How many entries has the legend?", "How many groups are compared?"), str(len(series)), part)
    d.ask(("What kind of chart is it?", "What type of diagram is shown?"), {"grouped": "bar chart", "stacked": "stacked bar chart", "lines": "line chart", "grouped_bar": "bar chart", "stacked_bar": "stacked bar chart"}[form], part)
    if r.chance(0.4):
        other = r.pick([t for t in (v.city(r) for _ in range(4)) if t not in (*series, *labels)] or ["Atlantis"])
        d.absent(f"What is the {noun} of {other}?", f"How much is shown for {other}?", f"{other}: how much?")
    if r.chance(0.3):
        d.paragraph(prose(r, r.pick((200, 500))))


def _series_values(d: Document, noun: str, series: list[str], labels: list[str], values: list[list[float]], numbers: Numbers, part: int, every: bool) -> None:
    r = d.r
    for n, s in enumerate(series):
        for i in r.sample(range(len(labels)), min(3, len(labels))) if every or n == 0 else ():
            x = labels[i]
            d.ask((f"What is the {noun} of {s} {within(x)}?", f"{s} {within(x)}?", f"How much is shown for {s}, {x}?", f"{x}, {s}: how much?", f"Which value does {s} have for {x}?", f"Read off {s} at {x}.", f"How high is {s} {within(x)}?", f"What is the {noun} of {s}, {within(x)}?"), numbers(values[n][i]), part)
        row = values[n]
        for extreme, word, more in ((max, "highest", "peak"), (min, "lowest", "reach its low")):
            if row.count(extreme(row)) == 1 and every:
                d.ask((f"Where is {s} the {word}?", f"For which label is {s} the {word}?", f"When or where does {s} {more}?", f"{s} is {word} in which one?"), labels[row.index(extreme(row))], part)


def _series_pairs(d: Document, noun: str, series: list[str], labels: list[str], values: list[list[float]], numbers: Numbers, part: int, stacked: bool, printed: bool) -> None:
    r = d.r
    for i in r.sample(range(len(labels)), min(4, len(labels))):
        x, column = labels[i], [row[i] for row in values]
        if column.count(max(column)) == 1:
            d.ask((f"Which one is ahead {within(x)}?", f"Which series is the highest {within(x)}?", f"Which one has the most {within(x)}?", f"Which is the largest for {x}?", f"Which is higher {within(x)}, {' or '.join(series)}?"), series[column.index(max(column))], part)
        if len(column) > 2 and column.count(min(column)) == 1:
            d.ask((f"Which series is the lowest {within(x)}?", f"Which one has the least {within(x)}?", f"Which is the smallest for {x}?"), series[column.index(min(column))], part)
        if (not stacked or printed) and column[0] != column[1]:
            d.ask((f"How far apart are {series[0]} and {series[1]} {within(x)}?", f"What is the difference between {series[0]} and {series[1]} {within(x)}?", f"By how much do {series[0]} and {series[1]} differ {within(x)}?"), numbers(abs(column[0] - column[1])), part)
        if stacked:
            d.ask((f"What is the total for {x}?", f"How much is {x} altogether?", f"How high is the whole bar of {x}?", f"{x} in total?"), numbers(sum(column)), part)
    totals = [sum(column) for column in zip(*values, strict=True)]
    if stacked and totals.count(max(totals)) == 1:
        d.ask(("Which bar is the highest?", "Where is the total the largest?", "Which one has the largest total?", "Which column is the longest?"), labels[totals.index(max(totals))], part)
