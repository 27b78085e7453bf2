"""Who works when and where, and programmes whose day, place or group holds for several rows."""

# fmt: off

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from training.office.document import Document, Part
from training.office.grids import ACROSS, Grid
from training.office.registry import kind
from training.office.values import Dates, distinct, first_name, last_name, people, person, town
from training.pages import values as v
from training.pages.values import Rng

Pair = tuple[str, str]  # as the page shows it, as a question says it

# titles of a sort of place, its posts as "heading|in a question" and which of `SHIFTS` it has
PLACES: tuple[tuple[tuple[str, ...], tuple[str, ...], tuple[int, ...]], ...] = (
    (("Rota", "Nurses' rota", "Duty roster", "Ward plan", "Hospital rota"), ("Ward 1|on ward 1", "Ward 2|on ward 2", "Ward 3|on ward 3", "Surgery|in surgery", "Emergency|in the emergency room", "Maternity|in the maternity ward", "Outpatients|with the outpatients"), (0, 1, 2, 4)),
    (("Staff rota", "Who works when", "Restaurant rota", "Shift plan"), ("Kitchen|in the kitchen", "Bar|at the bar", "Service|in service", "Reception|at the reception", "Terrace|on the terrace", "Breakfast|at breakfast", "Cellar|in the cellar"), (1, 3, 5, 0)),
    (("Volunteers", "Helpers at the summer festival", "Helper list", "Who helps where?", "Bazaar: helpers"), ("Cake stand|at the cake stand", "Barbecue|at the barbecue", "Entrance|at the entrance", "Drinks|at the drinks stand", "Raffle|at the raffle", "Car park|at the car park", "Children's corner|in the children's corner"), (1, 3, 6)),
    (("Lifeguards", "Pool rota", "Duty plan of the swimming pool"), ("Pool 1|at pool 1", "Pool 2|at pool 2", "Slide|at the slide", "Desk|at the desk", "Sauna|in the sauna"), (1, 3, 6)),
    (("Shift plan", "Production plan: shifts", "Factory shifts", "Shift schedule"), ("Line 1|on line 1", "Line 2|on line 2", "Line 3|on line 3", "Packing|in packing", "Warehouse|in the warehouse", "Maintenance|in maintenance", "Control room|in the control room"), (0, 2, 4)),
    (("Supervision", "Break duty", "Playground supervision", "Duty plan of the teachers"), ("Playground|in the playground", "Corridor|in the corridor", "Canteen|in the canteen", "Bus stop|at the bus stop", "Library|in the library", "Gym|in the gym"), (3, 6)),
    (("On-call plan", "On-call service", "Emergency service", "Stand-by rota"), ("Phone|on the phone", "Driver|as driver", "Technician|as technician", "Deputy|as deputy", "Manager|as manager"), (0, 2, 4)),
    (("Parish rota", "Sunday services", "Services in our parish"), ("Reader|as reader", "Organ|at the organ", "Flowers|for the flowers", "Coffee|for the coffee", "Welcome|at the door"), (1, 3, 6)),
    (("House duties", "Cleaning rota", "Who cleans what", "Flat share plan"), ("Stairs|for the stairs", "Bins|for the bins", "Kitchen|for the kitchen", "Bathroom|for the bathroom", "Garden|for the garden", "Snow|for the snow"), (1, 3)),
    (("Museum staff", "Gallery supervision", "Attendants"), ("Room 1|in room 1", "Room 2|in room 2", "Room 5|in room 5", "Shop|in the shop", "Till|at the till", "Cloakroom|in the cloakroom"), (1, 3, 5, 6)),
)
# shifts of one page as "heading|as a question says it|from-to in hours"
SHIFTS = (
    ("Early|the early shift|6-14", "Late|the late shift|14-22", "Night|the night shift|22-6"),
    ("Morning|the morning shift|7-12", "Afternoon|the afternoon shift|12-18", "Evening|the evening shift|18-23"),
    ("Day|the day shift|8-20", "Night|the night shift|20-8"),
    ("AM|the AM shift|8-13", "PM|the PM shift|13-18"),
    ("Shift 1|shift 1|6-14", "Shift 2|shift 2|14-22", "Shift 3|shift 3|22-6"),
    ("Opening|the opening shift|9-14", "Closing|the closing shift|14-21"),
    ("First|the first turn|10-13", "Second|the second turn|13-16", "Third|the third turn|16-19"),
)


def _days(r: Rng, dates: Dates) -> tuple[str, list[Pair], list[Pair]]:
    """What the days are called, those of the page, and others that it does not have."""
    style = r.pick(("weekday", "weekday", "weekday", "short", "weekend", "week", "date"))
    if style in ("weekday", "short"):
        start, count = r.randint(0, 4), r.randint(2, 6)
        pairs = [(day[:3] if style == "short" else day, f"on {day}") for day in v.WEEKDAYS]
        chosen = pairs[start : start + count] if r.chance(0.75) else pairs[5:]
        return "day", chosen, [pair for pair in pairs if pair not in chosen]
    if style == "weekend":
        own = [("Weekday", "on weekdays"), ("Weekend", "at the weekend"), ("Holiday", "on holidays")]
        return "day", own[: r.pick((2, 2, 3))], [("New Year's Eve", "on New Year's Eve")]
    if style == "week":
        first = r.randint(1, 46)
        pairs = [(f"Week {i}", f"in week {i}") for i in range(first, first + 6)]
        count = r.randint(2, 4)
        return "week", pairs[:count], pairs[count:]
    year, month, day = r.randint(2019, 2031), r.randint(1, 12), r.randint(1, 20)
    pairs = [(date, f"on {date}") for date in (dates.date(year, month, day + i) for i in range(5))]
    count = r.randint(2, 4)
    return "day", pairs[:count], pairs[count:]


def _staff(r: Rng, count: int) -> list[str]:
    """Names in one style, none of which is part of another."""
    style = r.pick(("first", "first", "full", "last", "initial", "title"))
    if style == "full":
        return people(r, count)
    if style == "first":
        return distinct(r, first_name, count)
    if style == "last":
        return distinct(r, last_name, count)
    if style == "initial":
        return [f"{name[0]}. {name.split()[-1]}" for name in people(r, count)]
    return [f"{r.pick(('Ms', 'Mr'))} {name.split()[-1]}" for name in people(r, count)]


def _hours(shift: str, style: str) -> str:
    first, last = (int(hour) for hour in shift.split("|")[2].split("-"))
    return {"24": f"{first:02d}:00-{last:02d}:00", "short": f"{first}-{last}", "h": f"{first}-{last} h", "am": f"{(first - 1) % 12 + 1}{'am' if first < 12 else 'pm'}-{(last - 1) % 12 + 1}{'am' if last < 12 else 'pm'}"}[style]


@kind("rota", 3.0)
def rota(d: Document) -> None:
    """People over days, shifts and posts."""
    r, dates = d.r, Dates(d.r)
    titles, options, shifted = r.pick(PLACES)
    called, days, other_days = _days(r, dates)
    shifts = SHIFTS[r.pick(shifted)]
    own_posts = r.sample(options, r.randint(2, min(5, len(options))))
    posts = [tuple(post.split("|")) for post in own_posts]
    other_posts = [tuple(post.split("|")) for post in options if post not in own_posts]
    turns = [tuple(shift.split("|")[:2]) for shift in shifts]
    staff = _staff(r, r.randint(max(5, len(posts) + 1), max(9, len(posts) + 3)))
    extra = staff.pop()
    empty = r.pick(("\u2013", "-", "closed", "\u2014")) if r.chance(0.25) else ""
    who: dict[tuple[int, int, int], str] = {}  # by day, shift and post
    for i in range(len(days)):
        for j in range(len(turns)):
            for k, name in enumerate(r.sample(staff, len(posts))):
                who[i, j, k] = empty if empty and r.chance(0.1) else name
    heading = r.pick(titles)
    week = r.randint(1, 52)
    top = d.heading(r.pick((heading, heading, f"{heading} {r.pick(v.MONTHS)}", f"{heading}, week {week}") if called == "day" else (heading,)))
    d.ask(("What is the title?", "What does the heading say?", "What is the plan called?", "What stands above the table?"), d.blocks[-1].texts[0], top)

    hours = [_hours(shift, style) for style in [r.pick(("24", "short", "h", "am"))] for shift in shifts]
    timed = r.pick(("", "", "head", "row", "line"))
    heads = [f"{turn[0]} {time}" if timed == "head" else turn[0] for turn, time in zip(turns, hours, strict=True)]
    # which two of the three share a side of the table
    axes = r.pick(("dsp", "dsp", "psd", "psd", "dps")) if timed != "row" else r.pick(("dsp", "psd"))
    shown = {"d": [day[0] for day in days], "s": heads, "p": [post[0] for post in posts]}
    outer, inner, side = (shown[axis] for axis in axes)
    leaves = [(group, name) for group in outer for name in inner]
    at = {axis: position for position, axis in enumerate(axes)}
    places = {}  # cell of the grid by day, shift, post
    for key in who:
        o, i, n = ("dsp".index(axis) for axis in axes)
        places[key] = (key[n], key[o] * len(inner) + key[i])
    cells = {places[key]: name for key, name in who.items()}
    grid = Grid(side, leaves, cells)
    layouts = grid.layouts()
    layout = ACROSS if timed == "row" and ACROSS in layouts else r.pick(layouts)
    words = {"d": called.capitalize(), "s": "Shift", "p": r.pick(("Post", "Place", "Where"))}
    named = r.chance(0.5)
    head = {axis: word if named else "" for axis, word in words.items()}
    grid.set(d, layout, head[axes[2]], numbers=False, heads=(head[axes[0]], head[axes[1]]), units=hours * len(outer) if timed == "row" and layout == ACROSS and at["s"] == 1 else ())
    if timed == "line":
        lines = d.lines(*(f"{turn[0]}: {time}" for turn, time in zip(turns, hours, strict=True)), small=True)
    every = grid.everything

    for j, (turn, time) in enumerate(zip(turns, hours, strict=True)):
        if timed == "head" or timed == "line" or (timed == "row" and layout == ACROSS and at["s"] == 1):
            d.ask((f"When is {turn[1]}?", f"From when to when is {turn[1]}?", f"What are the hours of {turn[1]}?", f"At what times is {turn[1]}?"), time, *([lines[j]] if timed == "line" else every))
    if not timed:
        d.absent(f"When does {turns[0][1]} begin?", f"From when to when is {turns[0][1]}?", f"How long is {turns[-1][1]}?")
    keys = [key for key in sorted(who) if who[key] != empty]
    for key in r.sample(keys, min(len(keys), 9)):
        (day, on), (turn, during), (post, there) = days[key[0]], turns[key[1]], posts[key[2]]
        d.ask((
            f"Who is down {there} {on} for {during}?", f"Who has {during} {on} {there}?", f"Who works {there} {on}, {turn}?", f"{day}, {turn}, {post}: who?", f"{on[0].upper()}{on[1:]}, {during}: who is down {there}?", f"Which name stands for {post} under {day}, {turn}?",
            f"Whom do I find {there} {on} during {during}?", f"Who is on duty {on} {there}, {turn}?",
        ), who[key], grid.parts[places[key]])
    _of_people(d, grid, places, who, empty, (days, turns, posts), called)

    for i, j in r.sample([(i, j) for i in range(len(days)) for j in range(len(turns))], 2):
        names = [who[i, j, k] for k in range(len(posts))]
        if empty not in names and len(names) <= 4 and len(" ".join(names)) < 60:
            needs = [part for k in range(len(posts)) for part in grid.parts[places[i, j, k]]]
            d.ask((f"Who all works {days[i][1]} in {turns[j][1]}?" if turns[j][1].startswith("the") else f"Who all works {days[i][1]}, {turns[j][0]}?", f"Name everybody who has {turns[j][1]} {days[i][1]}.", f"Who is there {days[i][1]} for {turns[j][1]}?", f"List the names for {days[i][0]}, {turns[j][0]}."), ", ".join(names), needs)
    d.ask((f"How many shifts does a {called} have?", f"Into how many shifts is a {called} divided?", f"How many different shifts are there in a {called}?", f"How many shifts make up a {called}?"), str(len(turns)), every)
    d.ask(("How many posts are there?", "How many different posts have to be filled?", "At how many posts do people work?"), str(len(posts)), every)
    d.ask((f"Which {called}s are in the plan?", f"For which {called}s is the plan?", f"Which {called}s does the table have?", f"Name the {called}s of the plan."), ", ".join(day[0] for day in days), every) if len(days) < 5 else None

    (day, on), (turn, during), (post, there) = r.pick(days), r.pick(turns), r.pick(posts)
    d.absent(f"When does {extra} work?", f"Where is {extra} {on}?", f"Which shift does {extra} have {on}?")
    if other_days:
        strange = r.pick(other_days)
        d.absent(f"Who is down {there} {strange[1]} for {during}?", f"Who has {during} {strange[1]} {there}?", f"{strange[0]}, {turn}, {post}: who?")
    if other_posts:
        strange = r.pick(other_posts)
        d.absent(f"Who is down {strange[1]} {on} for {during}?", f"Who has {during} {on} {strange[1]}?", f"{day}, {turn}, {strange[0]}: who?")
    _foot(d, dates)


def _of_people(d: Document, grid: Grid, places, who, empty: str, axes: tuple[list[Pair], list[Pair], list[Pair]], called: str) -> None:
    """When, where and how often somebody works."""
    r, every, (days, turns, posts) = d.r, grid.everything, axes
    counts = Counter(name for name in who.values() if name != empty)
    for name in r.sample(sorted(counts), min(len(counts), 3)):
        own = [key for key in sorted(who) if who[key] == name]
        if r.chance(0.5) or len(own) == 1:
            d.ask((f"How many shifts does {name} have?", f"How many times is {name} on the plan?", f"How many entries does {name} have in the table?", f"How many duties does {name} have?"), str(len(own)), every)
        if len(own) == 1:
            (day, _), (turn, _), (post, _) = days[own[0][0]], turns[own[0][1]], posts[own[0][2]]
            d.ask((f"On which {called} does {name} work?" if called == "day" else f"In which week does {name} work?", f"When is {name} on duty, on which {called}?" if called == "day" else f"When is {name} on duty, in which week?", f"{name}: which {called}?", f"Which {called} is {name} on the plan?"), day, every)
            d.ask((f"Which shift does {name} have?", f"In which shift is {name}?", f"{name}: which shift?", f"For which shift is {name} down?"), turn, every)
            d.ask((f"Where does {name} work?", f"At which post is {name}?", f"{name}: which post?", f"Where is {name} on duty?"), post, every)
        i = r.randint(0, len(days) - 1)
        here = [key for key in own if key[0] == i]
        on = days[i][1]
        if len(here) == 1 and len(own) > 1:
            d.ask((f"Which shift does {name} have {on}?", f"In which shift is {name} {on}?", f"{name} {on}: which shift?", f"{on[0].upper()}{on[1:]}, which shift does {name} work?"), turns[here[0][1]][0], every)
            d.ask((f"Where does {name} work {on}?", f"At which post is {name} {on}?", f"{name} {on}: where?", f"{on[0].upper()}{on[1:]}, where is {name}?"), posts[here[0][2]][0], every)
        if r.chance(0.5):
            d.ask((f"Does {name} work {on}?", f"Is {name} on the plan {on}?", f"{name} {on}: yes or no?", f"Is {name} on duty {on}?"), "yes" if here else "no", every)
        j = r.randint(0, len(turns) - 1)
        there = sorted({key[0] for key in own if key[1] == j})
        if len(there) == 1:
            d.ask((f"On which day does {name} have {turns[j][1]}?" if called == "day" else f"In which week does {name} have {turns[j][1]}?", f"When does {name} have {turns[j][1]}?", f"{name}, {turns[j][0]}: which {called}?", f"Which {called} has {name} for {turns[j][1]}?"), days[there[0]][0], every)
    top = counts.most_common(2)
    if len(top) == 2 and top[0][1] > top[1][1]:
        d.ask(("Who works the most?", "Who has the most shifts?", "Which name stands most often in the table?", "Who is on duty most often?"), top[0][0], every)


def _foot(d: Document, dates: Dates) -> None:
    """What is noted below a rota."""
    r = d.r
    if r.chance(0.45):
        name, phone = person(r), v.phone(r)
        part = d.line(r.pick(("In case of illness call {}, {}", "Sick? Ring {} on {}", "Swaps only through {} ({})", "Questions: {}, {}")).format(name, phone), small=True)
        d.ask(("Whom do I contact about the plan?", "Who is named below the plan?", "Who is to be told?", "Which person is the contact?"), name, part)
        d.ask(("Which number is to be called?", "What is the phone number?", "Under which number can one call?", "What number stands below the table?"), phone, part)
    else:
        d.absent("Whom should one call in case of illness?", "Who made the plan?", "What is the phone number of the manager?")
    if r.chance(0.3):
        date = dates.date()
        part = d.line(r.pick(("As of {}", "Plan of {}", "Last changed on {}", "Printed on {}")).format(date), small=True)
        d.ask(("From when is the plan?", "What date stands below the plan?", "When was the plan last changed?", "Which version is it, by date?"), date, part)


# sort, titles, leads as "heading|in a question", what takes place, heading of the last column and how to draw it
PROGRAMMES: tuple[tuple[tuple[str, ...], tuple[tuple[str, ...], ...], tuple[str, ...], str, str], ...] = (
    (("Timetable", "Lessons", "Class 8b", "Plan of lessons"), (tuple(f"{day}|on {day}" for day in v.WEEKDAYS[:5]),), ("Maths", "English", "History", "Biology", "Music", "Sport", "Art", "French", "Physics", "Chemistry", "Latin", "Geography", "Ethics"), "Lesson", "room"),
    (("Courses", "Weekly courses", "Our courses", "Evening classes", "Fitness courses"), (tuple(f"{day}|on {day}" for day in v.WEEKDAYS[:6]), ("Hall 1|in hall 1", "Hall 2|in hall 2", "Studio|in the studio", "Pool|in the pool")), ("Yoga", "Pilates", "Boxing", "Judo", "Ballet", "Zumba", "Spinning", "Aqua fit", "Karate", "Salsa", "Tai chi", "Back training"), "Course", "person"),
    (("Conference programme", "Programme", "Symposium", "Agenda of the conference"), (("Day 1|on day 1", "Day 2|on day 2", "Day 3|on day 3"), ("Hall A|in hall A", "Hall B|in hall B", "Hall C|in hall C"), ("Thursday|on Thursday", "Friday|on Friday", "Saturday|on Saturday")), ("Keynote", "Welcome", "Data protection", "Green energy", "Poster session", "Panel discussion", "Workshop", "Closing words", "Robotics", "Water supply", "Open forum", "New materials"), "Session", "person"),
    (("Festival", "Line-up", "Who plays when", "Stages and bands"), (("Main stage|on the main stage", "Tent|in the tent", "Lake stage|on the lake stage", "Courtyard|in the courtyard"), ("Friday|on Friday", "Saturday|on Saturday", "Sunday|on Sunday")), (), "Band", "length"),
    (("Training times", "Training", "When we train", "Training schedule"), (("U10|for the U10", "U12|for the U12", "U14|for the U14", "U16|for the U16", "Seniors|for the seniors", "Women|for the women"),), ("Fitness", "Technique", "Match practice", "Sprints", "Ball control", "Stamina", "Tactics", "Goalkeeping"), "Training", "place"),
    (("Fixtures", "Matches", "Tournament", "Match schedule", "Games of the weekend"), (("Saturday|on Saturday", "Sunday|on Sunday"), ("Pitch 1|on pitch 1", "Pitch 2|on pitch 2", "Pitch 3|on pitch 3"), ("Group A|in group A", "Group B|in group B", "Group C|in group C"), ("Round 1|in round 1", "Round 2|in round 2", "Round 3|in round 3")), (), "Match", "person"),
    (("Cinema programme", "Films of the week", "Now showing", "Films"), (("Screen 1|on screen 1", "Screen 2|on screen 2", "Screen 3|on screen 3"), ("Thursday|on Thursday", "Friday|on Friday", "Saturday|on Saturday", "Sunday|on Sunday")), (), "Film", "length"),
    (("Open day", "Open house", "Programme of the open day", "School fair"), (("Gym|in the gym", "Library|in the library", "Garden|in the garden", "Main hall|in the main hall"),), ("Choir", "Theatre play", "Experiments", "Cake sale", "Tour", "Quiz", "Dance show", "Book sale", "Puppet show", "Raffle", "Puzzle corner"), "What", "person"),
    (("Surgery hours", "Consulting hours", "Clinics", "Health centre"), (("Monday|on Monday", "Tuesday|on Tuesday", "Thursday|on Thursday", "Friday|on Friday"),), ("Eye clinic", "Baby clinic", "Vaccinations", "Blood tests", "Physiotherapy", "Skin clinic", "Dentist", "Hearing tests"), "Clinic", "person"),
    (("Markets and events", "Events in our town", "What's on", "Events"), (("Friday|on Friday", "Saturday|on Saturday", "Sunday|on Sunday"), ("Old town|in the old town", "Harbour|at the harbour", "Castle|at the castle")), ("Flea market", "Spring fair", "City run", "Wine festival", "Open air concert", "Street food", "Night of museums", "Boat race", "Farmers' market", "Light show"), "Event", "place"),
)


def _whats(r: Rng, head: str, options: tuple[str, ...], count: int) -> list[str]:
    if head == "Match":
        teams = distinct(r, town, 2 * count)
        return [f"{teams[i]} - {teams[i + 1]}" for i in range(0, len(teams) - 1, 2)]
    if head == "Band":
        return distinct(r, lambda r: f"{r.pick(('The ', '', ''))}{v.name_word(r)} {r.pick(('Brothers', 'Band', 'Trio', 'Club', 'Orchestra', 'Kids', 'Five'))}", count)
    if head == "Film":
        return distinct(r, lambda r: r.pick((f"The {v.name_word(r)}", f"{v.name_word(r)} and {v.name_word(r)}", f"Last {v.name_word(r)}", f"{v.name_word(r)} {r.randint(2, 4)}")), count)
    return r.sample(options, min(count, len(options)))


def _of_rows(r: Rng, head: str, options: tuple[str, ...], count: int) -> list[str]:
    """What takes place in each of ``count`` rows; the same again on another day, as lessons are, if there is too little."""
    whats = _whats(r, head, options, count)
    return whats + [r.pick(whats) for _ in range(count - len(whats))]


@dataclass(frozen=True)
class Entry:
    """A row of a programme: its heading in the first column, by number, and its cells."""

    lead: int
    time: str
    what: str
    last: str


@dataclass
class Programme:
    """What takes place when, under the headings of a first column.

    Attributes:
        head: heading of what takes place. leads: headings of the first column.
        last: what the last column holds, by name; empty where it is left out.
        parts: of the rows, once they are set.
    """

    head: str
    last: str
    leads: list[Pair]
    entries: list[Entry]
    parts: list[Part] = field(default_factory=list)

    def of(self, lead: int) -> list[Entry]:
        return [entry for entry in self.entries if entry.lead == lead]

    def needs(self, lead: int) -> list[Part]:
        """Parts of the rows of a heading."""
        return [part for part, entry in zip(self.parts, self.entries, strict=True) if entry.lead == lead]

    def low(self, name: str) -> str:
        """How a question calls what takes place: lessons and courses with a small letter, others as they are written."""
        small = self.head in ("Lesson", "Course") and name not in ("English", "French", "Latin", "Zumba", "Tai chi", "Pilates")
        return name[0].lower() + name[1:] if small else name


def _leads(r: Rng, options: tuple[str, ...]) -> tuple[list[Pair], list[Pair]]:
    """Headings of the first column, and others that it does not have."""
    leads = [tuple(lead.split("|")) for lead in options]
    start = r.randint(0, max(0, len(leads) - 4))
    count = r.randint(2, 4)
    return leads[start : start + count], [*leads[:start], *leads[start + count :]]


def _maker(r: Rng, head: str, last: str) -> Callable[[], str]:
    """Draws a cell of the last column."""
    full = r.pick((last_name, person))
    return {
        "room": lambda: r.pick((str(r.randint(1, 320)), f"{r.pick('ABC')}{r.randint(1, 30)}", "Gym", "Lab")), "person": lambda: full(r),
        "length": lambda: f"{r.randint(6, 15) * 5 if head == 'Band' else r.randint(17, 30) * 5} min", "place": lambda: r.pick(("Town hall", "Pitch 1", "Pitch 2", "Castle", "Lakeside", "Gym", "Market square", "School hall", "Park", "Harbour")),
    }[last]


def _last_head(r: Rng, head: str, last: str) -> str:
    """Heading of the last column."""
    return {"room": r.pick(("Room", "Where")), "person": {"Match": "Referee", "Clinic": "Doctor"}.get(head, r.pick(("Leader", "Who", "Led by"))) if head != "Session" else r.pick(("Speaker", "Who")), "length": r.pick(("Length", "Duration")), "place": r.pick(("Place", "Where"))}[last]


def _entries(r: Rng, dates: Dates, sizes: list[int], whats: list[str], head: str, make: Callable[[], str]) -> list[Entry]:
    """As many entries under each heading as ``sizes`` says, one after the other; bands and films as long as they last."""
    entries: list[Entry] = []
    for lead, size in enumerate(sizes):
        at = {"Band": r.randint(14, 17), "Film": r.randint(10, 12)}.get(head, r.randint(8, 14)) * 60 + r.pick((0, 0, 15, 30))
        for _ in range(size):
            entry = Entry(lead, dates.time(at), whats[len(entries)], make())
            entries.append(entry)
            at += int(entry.last.split()[0]) + r.pick((10, 15, 20, 30)) if head in ("Band", "Film") else r.pick((30, 45, 60, 90, 105))
    return entries


def _set(d: Document, programme: Programme, last_head: str) -> None:
    """Sets the table, perhaps with what takes place before its time."""
    r, head = d.r, programme.head
    swapped = r.chance(0.2)
    rows, before = [], None
    for entry in programme.entries:
        middle = [entry.what, entry.time] if swapped else [entry.time, entry.what]
        rows.append([programme.leads[entry.lead][0] if entry.lead != before else "", *middle, *([entry.last] if programme.last else [])])
        before = entry.lead
    shown = ["", *((head, "Time") if swapped else ("Time", head)), *([last_head] if programme.last else [])]
    if r.chance(0.4) and programme.leads[0][0] in v.WEEKDAYS:
        shown[0] = "Day"
    programme.parts = d.table(shown if r.chance(0.85) else [], rows, merged=True)


def _ways_to_ask_last(programme: Programme, what: str, where: str) -> tuple[str, ...]:
    """Questions for the last column; ``where`` tells entries of one name apart."""
    low = programme.low(what)
    return {
        "room": (f"Where is {low}{where}?", f"In which room is {low}{where}?", f"{what}{where}: which room?", f"Which room has {low}{where}?"), "place": (f"Where is {low}{where}?", f"At which place is {low}{where}?", f"{what}{where}: where?", f"Where do I go for {low}{where}?"),
        "length": (f"How long is {low}{where}?", f"How long does {low} last{where}?", f"{what}{where}: how long?", f"What is the length of {low}{where}?"),
        "person": (f"Who referees {low}{where}?", f"Who is the referee of {low}{where}?", f"{what}{where}: which referee?", f"Which referee has {low}{where}?") if programme.head == "Match" else (f"Who leads {low}{where}?", f"Who is in charge of {low}{where}?", f"{what}{where}: who?", f"Which name stands beside {low}{where}?"),
    }[programme.last]


def _ask_entry(d: Document, programme: Programme, entry: Entry) -> None:
    """What takes place at a time, and when, where and under which heading that is."""
    time, what, (lead, said) = entry.time, entry.what, programme.leads[entry.lead]
    low, needs = programme.low(what), programme.needs(entry.lead)
    d.ask((f"What is {said} at {time}?", f"What takes place {said} at {time}?", f"{lead}, {time}: what?", f"What is planned {said} at {time}?", f"What stands beside {time} for {lead}?", f"{said[0].upper()}{said[1:]} at {time}, what is on?"), what, needs)
    same = [other for other in programme.entries if other.what == what]
    alone = len(same) == 1
    where = "" if alone else f" {said}"
    if sum(other.lead == entry.lead for other in same) == 1:
        d.ask((f"When does {low} start{where}?", f"At what time is {low}{where}?", f"{what}{where}: what time?", f"What time does {low} begin{where}?", f"At which hour is {low}{where}?"), time, needs)
        if programme.last:
            d.ask(_ways_to_ask_last(programme, what, where), entry.last, needs)
    if alone:
        which = "day" if lead in v.WEEKDAYS or lead.startswith("Day ") else ""
        d.ask((f"On which day is {low}?", f"Which day is {low} on?", f"{what}: which day?", f"Beside which day does {low} stand?") if which else (f"Beside which heading does {low} stand?", f"{what} belongs to which heading?", f"Which entry of the first column holds for {low}?", f"What stands at the left for {low}?"), lead, needs)


def _ask_lead(d: Document, programme: Programme, n: int) -> None:
    """How many entries stand beside a heading, and their order."""
    r, (lead, said), rest, parts = d.r, programme.leads[n], programme.of(n), programme.parts
    whats = [entry.what for entry in rest]
    if r.chance(0.6):
        d.ask((f"How many entries are there {said}?", f"How many rows belong to {lead}?", f"How many things are planned {said}?", f"How many lines stand beside {lead}?"), str(len(rest)), parts)
    if len(rest) < 2:
        return
    end, entry = r.pick((("first", rest[0]), ("last", rest[-1])))
    d.ask((f"What comes {end} {said}?", f"What is the {end} entry {said}?", f"{lead}: what is {end}?", f"Which is the {end} one {said}?"), entry.what, parts)
    d.ask((f"When does it {'begin' if end == 'first' else 'end'} {said}?" if end == "first" else f"At what time does the last one start {said}?", f"What is the {'earliest' if end == 'first' else 'latest'} time {said}?", f"{lead}: {end} time?", f"At what time is the {end} one {said}?"), entry.time, parts)
    k = r.randint(0, len(rest) - 2)
    if whats.count(whats[k]) == 1:
        low = programme.low(whats[k])
        d.ask((f"What comes after {low} {said}?", f"{said[0].upper()}{said[1:]}, what follows {low}?", f"What is next {said} after {rest[k].time}?", f"{lead}: what comes right after {low}?"), whats[k + 1], programme.needs(n))
    if len(set(whats)) == len(whats) and r.chance(0.5):
        d.ask((f"What is on {said}?" if not said.startswith("on ") else f"What is planned {said}?", f"List everything {said}.", f"What all takes place {said}?", f"Name what stands beside {lead}."), ", ".join(whats), parts)


def _absent_of_last(programme: Programme, last: str) -> tuple[str, ...]:
    """Questions for the last column where it is left out."""
    low = programme.low(programme.entries[0].what)
    return {"room": (f"In which room is {low}?", f"Where is {low}?"), "place": (f"Where is {low}?", f"At which place is {low}?"), "length": (f"How long is {low}?", f"How long does {low} last?"), "person": (f"Who leads {low}?", f"Who is in charge of {low}?")}[last]


@kind("schedule", 1.5)
def schedule(d: Document) -> None:
    """A programme whose first column holds for the rows beside and below it."""
    r, dates = d.r, Dates(d.r)
    titles, sorts, options, head, last = r.pick(PROGRAMMES)
    own, others = _leads(r, r.pick(sorts))
    sizes = [r.randint(1, 4) for _ in own]
    sizes[r.randint(0, len(sizes) - 1)] = r.randint(2, 4)
    whats = _of_rows(r, head, options, sum(sizes))
    make, last_head = _maker(r, head, last), _last_head(r, head, last)
    with_last = r.chance(0.75)
    programme = Programme(head, last if with_last else "", own, _entries(r, dates, sizes, whats, head, make))
    entries = programme.entries
    top = d.heading(r.pick(titles))
    d.ask(("What is the title?", "What does the heading say?", "What stands above the table?", "What is the plan called?"), d.blocks[-1].texts[0], top)
    _set(d, programme, last_head)
    for entry in r.sample(entries, min(len(entries), 5)):
        _ask_entry(d, programme, entry)
    for n in range(len(own)):
        _ask_lead(d, programme, n)
    most = max(sizes)
    if sizes.count(most) == 1 and len(own) > 1:
        d.ask(("Which entry of the first column has the most rows?", "Which one spans the most rows?", "Where is the most going on?", "Which heading at the left has the most entries?"), own[sizes.index(most)][0], programme.parts)
    if others:
        _, said = r.pick(others)
        d.absent(f"What is {said} at {entries[0].time}?", f"What takes place {said}?", f"When does it begin {said}?")
    strange = [name for name in (options or _whats(r, head, options, 6)) if name not in whats]
    if strange:
        low = programme.low(r.pick(strange))
        d.absent(f"When does {low} start?", f"Where is {low}?", f"At what time is {low}?")
    if not with_last:
        d.absent(*_absent_of_last(programme, last))
