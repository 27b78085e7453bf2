"""Pictograms, progress bars, thermometers, dials and time lines: one thing to read each, with its own words."""

# fmt: off

import math

from training.office.chart_ladder import CATEGORY
from training.office.chart_looks import LOOK_WEIGHTS, LOOKS
from training.office.chart_questions import OneSeries
from training.office.chart_values import Numbers
from training.office.document import Document
from training.office.kinds.plots import TITLE, labels_of
from training.office.kinds.subjects import MEASURES, subjects
from training.office.pictures import SYMBOLS
from training.office.prose import prose
from training.office.registry import kind
from training.office.sentences import tell
from training.office.values import Dates, Money, last_name, people, person, town
from training.pages import values as v
from training.pages.values import Rng

NAMES = {"dot": "circle", "square": "square", "triangle": "triangle", "person": "figure", "house": "house", "bottle": "bottle"}
# title, whether the bars are named by people, names, how a question says it: done, most, least, over
PROGRESS = (
    ("Progress of the project", "planning, foundation, walls, roof, electricity, heating, painting, garden", "How far is the work on {x}? | How many percent of {x} are done? | progress of {x}? | {x}: how many percent?", "What is furthest along? | Which task is nearest to its end?", "What is least advanced? | Which task has the longest way to go?"),
    ("Course progress", "people", "How much of the course has {x} finished? | How many percent has {x} done? | progress of {x}? | {x}: how many percent?", "Who is furthest in the course? | Who has done the most?", "Who is furthest behind? | Who has done the least?"),
    ("Storage used", "Photos, Music, Mail, Documents, Videos, Backups, Games", "How full is {x}? | How many percent of {x} are used? | storage of {x}? | {x}: how many percent?", "Which folder is the fullest? | What is fullest?", "Which folder is the emptiest? | What is emptiest?"),
    ("Skills", "English, French, Excel, Writing, Drawing, Programming, Cooking, Driving", "How good is the skill {x}? | What is shown for {x}? | level of {x}? | {x}: how many percent?", "What is the best skill? | Which skill is the highest?", "What is the weakest skill? | Which skill is the lowest?"),
    ("Seats taken", "Monday, Tuesday, Wednesday, Thursday, Friday, Saturday", "How many percent of the seats are taken on {x}? | How full is {x}? | seats taken on {x}? | {x}: how many percent?", "Which day is the fullest? | On which day are most seats taken?", "Which day is the emptiest? | On which day are the fewest seats taken?"),
    ("Tanks of the farm", "Tank 1, Tank 2, Tank 3, Tank 4, Tank 5", "How full is {x}? | level of {x}? | How many percent does {x} hold? | {x}: how many percent?", "Which tank is the fullest? | Where is the most left?", "Which tank is the emptiest? | Where is the least left?"),
    ("Vaccinated", "towns", "How many percent are vaccinated in {x}? | share of the vaccinated in {x}? | How far is {x}? | {x}: how many percent?", "Where are most people vaccinated? | Which town is furthest?", "Where are the fewest people vaccinated? | Which town is furthest behind?"),
)
# the first and last year in which it may happen, the event, what asks for its year
EVENTS = (
    (1840, 1955, "the company is founded", "When was the company founded?|In which year did it begin?"), (1860, 2015, "the first shop opens", "When did the first shop open?|In which year was the first shop opened?"), (1880, 2020, "move to {town}", "When did they move to {town}?|In which year was the move to {town}?"),
    (1900, 2024, "{person} takes over", "When did {person} take over?|In which year did {person} become the head?"), (1870, 2020, "a fire in the workshop", "When was there a fire?|In which year did the workshop burn?"), (1900, 2023, "first export to {country}", "When was something first exported to {country}?|In which year did the exports to {country} begin?"),
    (1890, 2023, "new hall is built", "When was the new hall built?|In which year was the hall put up?"), (1880, 2010, "strike of the workers", "When did the workers strike?|In which year was the strike?"), (1968, 1992, "first computer", "When did the first computer come?|In which year did they get a computer?"), (1920, 2023, "100th employee", "When was the 100th employee hired?|In which year did they reach 100 employees?"),
    (1900, 2024, "the brand {brand} is launched", "When was {brand} launched?|In which year did {brand} come out?"), (1920, 2024, "branch in {town2} opens", "When did the branch in {town2} open?|In which year was the branch in {town2} opened?"), (1950, 2024, "prize for good design", "When did they win the design prize?|In which year was the prize won?"), (1994, 2006, "first website", "When did the first website appear?|In which year did they go online?"),
    (1880, 2023, "flood in the cellar", "When was the cellar flooded?|In which year was the flood?"), (1920, 2020, "the school is named after {person2}", "When was the school named after {person2}?|In which year did the school get the name of {person2}?"), (1840, 1925, "railway reaches the town", "When did the railway reach the town?|In which year did the first train come?"),
    (1850, 2022, "new bridge is opened", "When was the new bridge opened?|In which year could one first cross the new bridge?"), (1900, 2022, "the museum opens its doors", "When did the museum open?|In which year could one first visit the museum?"),
)


def _options(r: Rng, title: str, **more) -> dict:
    """Options of a picture; mostly with a title of its own."""
    options = {"rich": True, "ticks": None, "look": dict(r.choices(list(LOOKS.values()), LOOK_WEIGHTS)[0]), **more}
    return options | ({"title": title, "align": r.pick("lc")} if r.chance(0.6) else {})


def _titled(d: Document, title: str, options: dict) -> None:
    if "title" not in options:
        d.ask(TITLE, title, d.heading(title))


@kind("pictogram", 4.0)
def pictogram(d: Document) -> None:
    """Rows of symbols, each of which stands for a number."""
    r = d.r
    subject = r.pick([s for s in subjects() if "both" in s and s["unit"] not in MEASURES])
    family, (_, high) = subject["labels"], subject["range"]
    labels, ordered = labels_of(r, family.replace(", ", ","))
    labels = labels[:r.randint(3, 7)]
    each = r.pick([n for n in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000) if 2 * n <= high and 14 * n >= high] or [1])
    step = each / 2 if each % 2 == 0 and r.chance(0.3) else each
    values = [step * r.randint(1, int(r.pick((6, 9, 12)) * each / step)) for _ in labels]
    title = r.pick(subject["titles"]).format(town=town(r), since="").strip()
    symbol, shown = r.pick(SYMBOLS), f"{each:,}".replace(",", r.pick(("", ",")) if each > 999 else "")
    key = r.pick(("= {n} {unit}", "stands for {n} {unit}", "1 symbol = {n} {unit}", "= {n}")).format(n=shown, unit=subject["unit"])
    options = _options(r, title, symbol=symbol, each=each, key=key)
    _titled(d, title, options)
    numbers = Numbers(r, "", max(values))
    numbers.thousands = False
    texts = [numbers(x) for x in values]
    part = d.chart("pictogram", labels, values, printed=None, told=[texts], **options)
    if "title" in options:
        d.ask(TITLE, title, part)
    name = NAMES[symbol]
    d.ask((f"What does one {name} stand for?", f"How many {subject['unit']} does one symbol stand for?", "What does each symbol mean?", "One symbol is how many?", "What does the key say?"), f"{shown} {subject['unit']}" if "{unit}" in key or subject["unit"] in key else shown, part)
    for i in r.sample(range(len(labels)), 2):
        if values[i] % each == 0:
            d.ask((f"How many symbols are in the row of {labels[i]}?", f"How many {name}s does {labels[i]} have?", f"Count the {name}s of {labels[i]}.", f"{name}s drawn for {labels[i]}?"), str(int(values[i] / each)), part)
    d.ask(("What kind of chart is it?", "What type of diagram is shown?"), "pictogram", part)
    OneSeries("pictogram", labels, values, texts, numbers, ordered, family, subject).ask(d, part)
    if r.chance(0.4):
        d.absent(r.pick(subject["none"]))
    if r.chance(0.3):
        d.paragraph(prose(r, 200))


@kind("progress", 3.0)
def progress(d: Document) -> None:
    """Bars that show how much is done."""
    r = d.r
    title, family, value, most, least = r.pick(PROGRESS)
    labels, _ = labels_of(r, family.replace(", ", ",")) if family in CATEGORY else ([name.strip() for name in family.split(",")], False)
    labels = labels if family in CATEGORY or labels[0] == "Monday" else r.sample(labels, r.randint(3, min(6, len(labels))))
    labels = labels[:7]
    values = [float(x) for x in r.sample([*range(5, 100, 5), *range(3, 100, 7), 100], len(labels))]
    numbers = Numbers(r, "%", 100)
    numbers.unit, numbers.before = "%", False
    texts = [numbers(x) for x in values]
    options = _options(r, title, most=100)
    _titled(d, title, options)
    part = d.chart("progress", labels, values, printed=texts, **options)
    if "title" in options:
        d.ask(TITLE, title, part)
    split = lambda text: text.split(" | ")  # noqa: E731
    subject = {"value": split(value), "most": split(most), "least": split(least)}
    OneSeries("progress", labels, values, texts, numbers, False, family, subject, printed=True).ask(d, part)
    done = [label for label, x in zip(labels, values, strict=True) if x == 100]
    if len(done) == 1:
        d.ask(("What is at its full length?", "Which one has reached 100%?", "Which bar is completely filled?"), done[0], part)
    half = sum(x > 50 for x in values)
    if 50 not in values:
        d.ask(("How many are more than half full?", "How many are above one half?", "How many bars go beyond the middle?"), str(half), part)
    if r.chance(0.3):
        d.absent(r.pick(("Who is responsible?", "When will everything be done?", "What does it cost?")))
    if r.chance(0.3):
        tell(d, 1, Dates(r), Money(r), hide=0.3, longest=140)


# title, unit, lowest, highest, step, question of the value, question of the mark and its text
DIALS = (
    ("Speed", "km/h", 0, 200, 20, "How fast is it going? | What speed is shown? | speed? | How many km/h does the needle show?"),
    ("Fuel", "litres", 0, 60, 10, "How much fuel is left? | How many litres are in the tank? | fuel? | What does the fuel gauge show?"),
    ("Boiler pressure", "bar", 0, 10, 1, "How high is the pressure? | How many bar are shown? | pressure? | What does the pressure gauge show?"),
    ("Humidity", "%", 0, 100, 10, "How high is the humidity? | How many percent are shown? | humidity? | How humid is it?"),
    ("Oil temperature", "°C", 0, 160, 20, "How hot is the oil? | What temperature is shown? | oil temperature? | How many degrees does the needle show?"),
    ("Satisfaction of our guests", "points", 0, 10, 1, "How satisfied are the guests? | How many points are shown? | satisfaction? | Where does the needle stand?"),
    ("Scales", "kg", 0, 100, 10, "How much does it weigh? | How many kilograms are shown? | weight? | What do the scales show?"),
)
MERCURY = (
    ("Outside temperature", "°C", -20, 40, 10, "How warm is it outside? | What does the thermometer show? | temperature? | How many degrees is it?", "frost", "Where is the line for frost? | At how many degrees is the mark \"frost\"?"),
    ("Donations for the roof", "thousand €", 0, 100, 10, "How much has been collected? | How many thousand euros are there so far? | donations so far? | How far has the collection come?", "goal", "What is the goal? | How much should be collected? | At how many thousand euros is the goal?"),
    ("Donations for the playground", "€", 0, 5000, 500, "How much has been collected? | How many euros are there so far? | donations so far? | How much money is there already?", "target", "What is the target? | How much should be collected? | Where is the line of the target?"),
    ("Temperature of the fridge", "°C", 0, 14, 2, "How cold is the fridge? | What temperature is shown? | temperature? | How many degrees does the fridge have?", "limit", "Where is the limit? | How warm may it get? | At how many degrees is the limit?"),
    ("Water level", "cm", 0, 600, 100, "How high is the water? | What level is shown? | water level? | How many centimetres is it?", "alarm", "At which level is the alarm? | Where is the line of the alarm? | How high may the water rise before the alarm?"),
    ("Members won this year", "members", 0, 200, 20, "How many members were won? | How many new members are there so far? | new members so far? | How far has the club come?", "goal", "What is the goal? | How many members are wanted? | Where is the line of the goal?"),
)


@kind("gauge", 3.0)
def gauge(d: Document) -> None:
    """A thermometer or a dial with one value on its scale."""
    r = d.r
    upright = r.chance(0.5)
    title, unit, low, high, step, value, *mark = r.pick(MERCURY if upright else DIALS)
    named = r.chance(0.5)
    numbers = Numbers(r, unit, high)
    write = numbers if numbers.unit and r.chance(0.5) else numbers.bare
    ticks = [(x, write(x)) for x in range(low, high + 1, step)]
    fine = step / 2 if step % 2 == 0 and r.chance(0.4) else step
    at = [low + fine * k for k in range(1, int((high - low) / fine))]
    shown = r.pick(at)
    options = _options(r, title, ticks=ticks)
    if named and not numbers.unit:
        options["subtitle"] = r.pick((f"in {unit}", f"Unit: {unit}", unit))
    printed = None if upright or r.chance(0.7) else [numbers(shown)]
    if upright and r.chance(0.7):
        spot = 0 if mark[0] == "frost" else r.pick([x for x, _ in ticks[1:] if x != shown])
        options |= {"mark": spot, "mark_text": mark[0]}
    _titled(d, title, options)
    part = d.chart("thermometer" if upright else "dial", [""], [shown], printed=printed, told=[[numbers(shown)]], **options)
    if "title" in options:
        d.ask(TITLE, title, part)
    d.ask(value.split(" | "), numbers(shown), part)
    if "subtitle" in options:
        d.ask(("What is the unit?", "In which unit is the scale?", "In what is it measured?", "Unit of the scale?"), unit, part)
    d.ask(("What is the highest number on the scale?", "Up to where does the scale go?", "Where does the scale end?", "Last number of the scale?"), ticks[-1][1], part)
    d.ask(("What is the lowest number on the scale?", "Where does the scale begin?", "First number of the scale?"), ticks[0][1], part)
    d.ask(("How many numbers are on the scale?", "How many numbers does the scale have?"), str(len(ticks)), part)
    middle = (low + high) / 2
    if shown != middle:
        d.ask(("Is it above the middle of the scale?", "Is more than half of the scale reached?", "Is it past the middle?"), "yes" if shown > middle else "no", part)
    bound = r.pick([x for x, _ in ticks if x != shown])
    d.ask((f"Is it more than {numbers(bound)}?", f"Does it show more than {numbers(bound)}?", f"Is the value above {numbers(bound)}?"), "yes" if shown > bound else "no", part)
    if "mark" in options:
        spot = options["mark"]
        d.ask(mark[1].split(" | "), numbers(spot), part)
        if mark[0] in ("goal", "target"):
            d.ask((f"Has the {mark[0]} been reached?", f"Is the {mark[0]} reached?", f"Did they reach the {mark[0]}?"), "yes" if shown > spot else "no", part)
            if shown < spot:
                d.ask((f"How much is missing to the {mark[0]}?", f"How much more is needed for the {mark[0]}?", f"How far is it to the {mark[0]}?"), numbers(spot - shown), part)
    d.ask(("What kind of picture is it?", "What is drawn here?", "What sort of instrument is shown?"), "a thermometer" if upright else "a dial", part)
    d.absent(r.pick(("What was it yesterday?", "Who read the scale?", "At what time was it read?", "Where does the instrument stand?")))
    if r.chance(0.5):
        r.pick((lambda: d.paragraph(prose(r, 200)), lambda: tell(d, 1, Dates(r), Money(r), hide=0.3, longest=140)))()


@kind("timeline", 3.0)
def timeline(d: Document) -> None:
    """What happened when, one below the other."""
    r = d.r
    count = r.randint(5, 8)
    blanks = {"town": town(r), "town2": town(r), "person": person(r), "person2": f"{r.pick(v.FIRST_NAMES)} {last_name(r)}", "country": v.country(r), "brand": v.name_word(r)}
    dated = {r.randint(first, last): (first, last, text, asks) for first, last, text, asks in r.sample(EVENTS, count)}
    founded = [year for year, event in dated.items() if event[2] == EVENTS[0][2]]
    if founded and (before := min(dated) - r.randint(1, 9)) not in dated:  # nothing happens to it before
        dated[before] = dated.pop(founded[0])
    years, count = sorted(dated), len(dated)
    chosen = [dated[year] for year in years]
    events = [text.format(**blanks) for _, _, text, _ in chosen]
    shown = [event[0].upper() + event[1:] for event in events] if r.chance(0.6) else events
    title = r.pick(("Our history", "Milestones", f"{people(r, 1)[0].split()[-1]} & Sons: a history", "From the beginning until today", "Time line", "The story so far", f"A short history of {blanks['town']}"))
    options = _options(r, title, printed=shown)
    options["look"].pop("framed", None)
    _titled(d, title, options)
    part = d.chart("timeline", [str(y) for y in years], [0.0] * count, **options)
    if "title" in options:
        d.ask(("What is the title?", "What is the heading?", "What is the time line called?", "title?"), title, part)
    for i in r.sample(range(count), min(4, count)):
        d.ask((*(q.format(**blanks) for q in chosen[i][3].split("|")), f"{shown[i]}: in which year?"), str(years[i]), part)
    for i in r.sample(range(count), min(4, count)):
        d.ask((f"What happened in {years[i]}?", f"Which event is given for {years[i]}?", f"What stands at {years[i]}?", f"{years[i]}?"), shown[i], part)
    i, j = sorted(r.sample(range(count), 2))
    d.ask(("Which event is the first?", "What happened first?", "With what does the time line begin?", "What is the earliest event?"), shown[0], part)
    d.ask(("Which event is the last?", "What happened last?", "With what does the time line end?", "What is the latest event?"), shown[-1], part)
    d.ask(("How many events are shown?", "How many events does the time line have?", "How many dates are given?"), str(count), part)
    d.ask(("From when to when does the time line go?", "Which years does it cover?", "What period is shown?"), f"{years[0]} to {years[-1]}", part)
    k = r.randint(1, count - 1)
    d.ask((f"What came right after \"{events[k - 1]}\"?", f"Which event follows \"{events[k - 1]}\"?", f"What happened next after \"{events[k - 1]}\"?"), shown[k], part)
    d.ask((f"What came right before \"{events[k]}\"?", f"Which event stands before \"{events[k]}\"?"), shown[k - 1], part)
    first, second = r.pick(((i, j), (j, i)))
    d.ask((f"Which was earlier, \"{events[first]}\" or \"{events[second]}\"?", f"What happened first: \"{events[first]}\" or \"{events[second]}\"?"), shown[i], part)
    d.ask((f"How many years lie between \"{events[first]}\" and \"{events[second]}\"?", f"How many years are there between {years[i]} and {years[j]}?"), str(years[j] - years[i]), part)
    bound = years[math.floor(count / 2)] - 1
    if bound not in years:
        d.ask((f"How many events are after {bound}?", f"How many things happened later than {bound}?"), str(sum(y > bound for y in years)), part)
    missing = next(y for y in range(years[0] + 1, years[0] + 40) if y not in years)
    d.absent(f"What happened in {missing}?", f"Which event is given for {missing}?")
    other = r.pick([event for event in EVENTS if event not in chosen and "{" not in event[2]])
    d.absent(*other[3].split("|"))
    if r.chance(0.3):
        d.paragraph(prose(r, 200))
