"""Charts with every detail that programs draw: titles and notes in the picture, units, broken axes, half ticks, losses."""

# fmt: off

from training.office.chart_ladder import NAMES, drawn_as, upper
from training.office.chart_looks import LOOK_WEIGHTS, LOOKS, PALETTES
from training.office.chart_questions import OneSeries
from training.office.chart_values import Numbers, apart, scale, shares
from training.office.document import Document
from training.office.kinds.subjects import FAMILIES, MEASURES, ORDERED, SOURCES, subjects, topics
from training.office.prose import prose
from training.office.registry import kind
from training.office.sentences import tell
from training.office.series_questions import SomeSeries
from training.office.values import MONTHS_SHORT, Dates, Money, distinct, people, person, town
from training.pages import values as v
from training.pages.values import Rng

TITLE = ("What is the title of the chart?", "What is the chart called?", "Title?", "Which heading does the chart have?", "What does the chart show?", "What is the heading of the figure?")
UNIT = ("What is the unit?", "In which unit are the values?", "In what are the values given?", "What are the figures measured in?", "Unit of the axis?", "Which unit is used?")
SOURCE = ("Where do the figures come from?", "source?", "Who supplied the data?", "What is given as the source?", "According to whom?", "Where is the data from?")
KIND = ("What kind of chart is it?", "What type of diagram is shown?", "Which sort of chart is this?")
GAINS = (
    ("Profit", "profit", "thousand €", "years"), ("Balance", "balance", "€", "months"), ("Lowest temperature in {town}", "lowest temperature", "°C", "months"), ("Growth", "growth", "%", "years"),
    ("Change in prices", "change in prices", "%", "months"), ("Result per department", "result", "thousand $", "departments"), ("Change in population", "change", "%", "towns"),
)
MOST_LABELS = 12


def labels_of(r: Rng, family: str) -> tuple[list[str], bool]:
    """Labels, and whether they follow one another in time; three to twelve."""
    if family == "months" and r.chance(0.3):
        return [*MONTHS_SHORT] if r.chance(0.6) else [f"{m} {y % 100:02d}" for y in (r.randint(2010, 2030),) for m in MONTHS_SHORT[:r.randint(5, 12)]], True
    if family == "years" and r.chance(0.3):
        start = r.randint(1980, 2018)
        return [str(start + i) for i in range(r.randint(8, 12))], True
    if family in FAMILIES:
        return list(FAMILIES[family](r))[:MOST_LABELS], family in ORDERED
    names = [name.strip() for name in family.split(",")]
    if names[0][-1].isdigit() and r.chance(0.7):  # Round 1, Round 2, ...
        return names[:r.randint(3, len(names))], False
    return (r.sample(names, r.randint(3, min(9, len(names)))) if len(names) > 5 else names), False


def picture(d: Document, form: str, title: str, unit: str, numbers: Numbers, ticks: list[float] | None, printed: bool, **more) -> dict:
    """Options of the picture: its look, title, unit, source and axis; questions about them are asked by `frame`."""
    r = d.r
    write = numbers if not printed or r.chance(0.4) else numbers.bare
    look = r.choices(list(LOOKS), LOOK_WEIGHTS)[0]
    options = {"rich": True, "ticks": [(x, write(x)) for x in ticks] if ticks else None, "look": dict(LOOKS[look]), **more}
    if r.chance(0.55) or look in ("spreadsheet", "statistics", "newspaper"):
        options |= {"title": title, "title_at": r.pick(("top", "top", "top", "bottom")), "align": r.pick("lc")}
    if look in ("spreadsheet", "newspaper") and "title" in options:
        options |= {"title_at": "top", "align": "c" if look == "spreadsheet" else "l"}
    measured = bool(unit) and not numbers.unit
    if measured and r.chance(0.75):
        spot = r.pick(("subtitle", "axis")) if form in ("column", "line", "area", "step", "lollipop", "grouped", "stacked", "lines") and ticks else "subtitle"
        options[spot] = unit if spot == "axis" else r.pick((f"in {unit}", f"Unit: {unit}", f"Figures in {unit}", f"({unit})", f"All values in {unit}"))
    if r.chance(0.4) or look in ("statistics", "newspaper"):
        source = r.pick((*SOURCES, person(r), v.company(r).rstrip(".")))
        options["note"], options["from"] = r.pick((f"Source: {source}", f"Data: {source}", f"Source: {source}, {r.randint(2012, 2030)}", f"Figures: {source}")), source
    return options


def frame(d: Document, title: str, unit: str, options: dict, part: int) -> None:
    """Title, unit, source and kind of a chart."""
    if "title" in options:
        d.ask(TITLE, title, part)
    if "subtitle" in options or "axis" in options:
        d.ask(UNIT, unit, part)
    if "from" in options:
        d.ask(SOURCE, options["from"], part)
    elif d.r.chance(0.15):
        d.absent(*SOURCE[:4])
    form = d.blocks[-1].options["form"] if d.blocks and "form" in d.blocks[-1].options else ""
    if form in NAMES and d.r.chance(0.6):
        d.ask(KIND, NAMES[form], part)


@kind("plot", 16.0)
def plot(d: Document) -> None:
    """One series, on a page of its own or between paragraphs."""
    r = d.r
    if r.chance(0.3):
        r.pick((lambda: d.paragraph(prose(r, 300)), lambda: tell(d, 1, Dates(r), Money(r), hide=0.3, longest=140)))()
    add_plot(d)
    if r.chance(0.3):
        d.paragraph(prose(r, r.pick((200, 500))))


def add_plot(d: Document, titled: bool = True, caption: bool = False) -> tuple[str, int, OneSeries]:
    """A chart of one series with its questions.

    Args:
        titled: give it a heading if the picture has no title of its own.
        caption: the title stands in a caption, so that neither picture nor page has another.

    Returns:
        Its title, its part, and what its questions rest on.
    """
    r = d.r
    loss = r.chance(0.1)
    subject = None if loss else r.pick(subjects())
    if subject is None:
        title, noun, unit, family = r.pick(GAINS)
        low, high = -20, r.randint(5, 60)
    else:
        unit, (low, high), family = subject["unit"], subject["range"], subject["labels"]
        title, noun = r.pick(subject["titles"]), "value"
    labels, ordered = labels_of(r, family.replace(", ", ","))
    title = title.format(town=town(r), since=f"since {labels[0]}" if family == "years" else "").strip()
    counted, unit = unit == "%" or unit not in MEASURES, unit if unit in MEASURES or loss else ""
    parts = counted and not loss and "both" in (subject or ())  # of a whole, as a pie shows them
    forms = ("bar", "column", "line", "area", "step", "dots", "lollipop", "pie", "donut")
    weights = (1, 4, 4, 1.5, 0.7, 0, 1, 0, 0) if ordered else (4, 4, 0, 0, 0, 1, 1, 2, 1.5) if len(labels) < 8 and parts else (4, 3, 0, 0, 0, 1, 1, 0, 0)
    form = r.choices(forms, weights)[0]
    circle = form in ("pie", "donut")
    if loss and form in ("area", "step"):
        form = "line"
    high = r.randint(max(low + 2, 6, high // 4), max(high, 8))
    floor = form in ("line", "dots") and not loss and r.chance(0.25)
    step, ticks = scale(r, high, floor, loss)
    printed = circle or r.chance(0.45)
    unit_step = 1 if printed and not r.chance(0.2) else step / 2 if r.chance(0.35) else step
    span = int((ticks[-1] - ticks[0]) / unit_step)
    values = [ticks[0] + unit_step * r.randint(0 if loss else 1, span) for _ in labels]
    if ordered and r.chance(0.3):
        values.sort(reverse=r.chance(0.5))
    if circle and unit != "%" and r.chance(0.6):  # counts, not shares
        values = [float(r.randint(max(low, high // 8, 1), max(high, 3))) for _ in labels]
    elif circle:
        subject, noun, unit = (subject if unit == "%" else None), "share", "%"
        values = [float(x) for x in shares(r, len(labels))]
    numbers = Numbers(r, unit, max(map(abs, (*values, *ticks))))
    if circle and unit == "%":
        numbers.unit, numbers.before = "%", False
    texts = [numbers(x) for x in values]
    axis = None if circle or (printed and r.chance(0.4)) else ticks
    options = picture(d, form, title, unit if not circle else "", numbers, axis, printed, floor=ticks[0] if floor else None)
    if caption:
        options.pop("title", None)
    elif titled and "title" not in options:
        d.ask(TITLE, title, d.heading(title, r.pick((1, 1, 2))))
    if form == "donut" and unit != "%" and r.chance(0.5):
        options["middle"] = numbers(sum(values))
    part = d.chart(form, labels, values, printed=texts if printed else None, **{"shade": 150, "value_texts": [texts]} | options)
    frame(d, title, unit, options, part)
    if "middle" in options:
        d.ask(("Which number stands in the middle of the ring?", "What is written in the middle?", "How much is it altogether?", "What is the total in the centre?"), options["middle"], part)
    asked = OneSeries(form, labels, values, texts, numbers, ordered, family, subject, noun, printed, options["ticks"])
    asked.ask(d, part)
    d.about(f"A chart: {title}.", part) if r.chance(0.5) and not caption else None
    if subject and r.chance(0.4):
        d.absent(r.pick(subject["none"]))
    return title, part, asked


def series_of(r: Rng, topic: dict, most: int = 4) -> list[str]:
    """Names of two to ``most`` series of a topic, as they stand in a sentence."""
    if topic["series"] == ["towns"]:
        return distinct(r, town, r.randint(2, most))
    if topic["series"] == ["people"]:
        return [name.split()[0] for name in people(r, r.randint(2, most))]
    names = topic["series"]
    count = r.randint(2, min(most, len(names)))
    if topic["whole"]:  # shares make 100 only where all are there
        count = min(len(names), most)
    chosen = set(r.sample(names, count))
    return [name for name in names if name in chosen]


@kind("plot_series", 13.0)
def plot_series(d: Document) -> None:
    """Several series, with a legend."""
    r = d.r
    add_series(d)
    if r.chance(0.3):
        d.paragraph(prose(r, r.pick((200, 500))))


def add_series(d: Document, caption: bool = False) -> tuple[str, int, SomeSeries]:
    """A chart of several series with its questions; arguments and results as of `add_plot`."""
    r = d.r
    topic = r.pick(topics())
    title, unit, family, whole = r.pick(topic["titles"]), topic["unit"], topic["labels"], topic["whole"]
    labels, ordered = labels_of(r, family.replace(", ", ","))
    labels = labels[:r.randint(3, 8)]
    series = series_of(r, topic)
    labels = [label for label in labels if label not in series]
    stacks = 2 if whole else 1 if "total" in topic else 0  # what does not add up is not put on top of one another
    form = r.choices(("grouped", "stacked", "lines", "grouped_bar", "stacked_bar"), (4, 2.5 * stacks, 6 if ordered else 0, 2, 2 * stacks))[0]
    stacked = form.startswith("stacked")
    low, high = topic["range"]
    step, ticks = scale(r, r.randint(max(low, high // 4, 8), high), form == "lines" and not whole and r.chance(0.15), False)
    printed = r.chance(0.25 if form == "lines" and len(series) == 2 else 0 if form == "lines" else 0.5)
    unit_step = 1 if printed else step if len(ticks) > 5 or (r.chance(0.4) and len(ticks) > len(series)) else step / 2
    span = max(int((ticks[-1] - ticks[0]) / unit_step / (len(series) if stacked else 1)), 2)
    if whole:
        step = 20 if r.chance(0.6) else 10
        ticks = list(range(0, 101, step))
        unit_step = 1 if printed else 10
        values = [list(row) for row in zip(*(_shares(r, len(series), unit_step, apart=form == "lines") for _ in labels), strict=True)]
    elif form == "lines":
        values = [[ticks[0] + unit_step * x for x in row] for row in apart(r, len(series), len(labels), max(span, len(series)))]
    else:
        least = span // 3 if stacked and printed else 1  # room for the numbers in the bars
        values = [[ticks[0] + unit_step * r.randint(max(least, 1), span) for _ in labels] for _ in series]
    highest = max(map(sum, zip(*values, strict=True))) if stacked else max(map(max, values))
    while ticks[-1] < highest:
        ticks.append(ticks[-1] + step)
    numbers = Numbers(r, unit, ticks[-1])
    options = picture(d, form, title, unit if unit in MEASURES else "", numbers, ticks, printed, floor=ticks[0], fixed=r.chance(0.5))
    look, dashes, levels = options["look"], None, None
    if form == "lines" and len(series) < 4 and r.chance(0.35):
        dashes = tuple(r.sample((0, 7, 3), len(series)))
        look |= {"dashes": dashes, "palette": (255, 230, 200), "rough": False}
    elif len(series) < 4 and r.chance(0.5):
        palette = r.pick(PALETTES)
        levels = palette[:len(series)]
        look |= {"palette": palette, "dark": False}
    if caption:
        options.pop("title", None)
    elif "title" not in options:
        d.ask(TITLE, title, d.heading(title))
    texts, every = [[numbers(x) for x in row] for row in values], not stacked or printed
    part = d.chart(form, labels, values, series=[upper(s) for s in series], printed=texts if printed else None, value_texts=texts if every else [], told=texts, looks=drawn_as(len(series), dashes, levels), **options)
    frame(d, title, unit, options, part)
    asked = SomeSeries(form, topic, series, labels, values, numbers, ordered, family, every, 0 if every else 1.5 * unit_step, options["ticks"], dashes, levels, options["fixed"])
    asked.ask(d, part)
    d.about(f"A chart: {title}; {', '.join(series)} are compared.", part) if r.chance(0.3) and not caption else None
    if r.chance(0.3):
        d.absent(r.pick(topic["none"]))
    return title, part, asked


def _shares(r: Rng, count: int, step: float, apart: bool) -> list[float]:
    """Shares of 100 in multiples of ``step``, different ones if ``apart``."""
    whole = int(100 / step)
    for _ in range(40):
        cuts = sorted(r.sample(range(1, whole), count - 1))
        found = [(b - a) * step for a, b in zip([0, *cuts], [*cuts, whole], strict=True)]
        if min(found) >= min(5, 100 / count / 2) and (not apart or len(set(found)) == count):
            break
    return found
