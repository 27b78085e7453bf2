"""Prices by season, age, zone or weight, with the notes below that change what they mean."""

# fmt: off

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from training.office.document import Document, Part
from training.office.grids import ACROSS, Grid
from training.office.registry import kind
from training.office.values import Dates, Money, town
from training.pages import values as v
from training.pages.values import Rng

SEASONS = (
    ("Low season|in low season|Nov-Mar", "Mid season|in mid season|Apr-Jun", "High season|in high season|Jul-Oct"), ("Winter|in winter|Oct-Mar", "Summer|in summer|Apr-Sep"), ("Low season|in low season|Oct-Apr", "High season|in high season|May-Sep"),
    ("Season A|in season A|Jan-Apr", "Season B|in season B|May-Aug", "Season C|in season C|Sep-Dec"), ("Off-peak|off-peak|Nov-Feb", "Peak|at peak times|Mar-Oct"),
)
AGES = (
    ("Adults|for adults", "Children|for children", "Seniors|for seniors"), ("Adult|for adults", "Child|for children", "Student|for students"), ("Adults|for adults", "Youths|for youths", "Children|for children"), ("Full price|at full price", "Reduced|at the reduced rate"),
    ("Members|for members", "Guests|for guests"), ("Residents|for residents", "Visitors|for visitors"),
)
DAYS = (("Mon-Fri|from Monday to Friday", "Sat-Sun|on Saturday and Sunday"), ("Weekdays|on weekdays", "Weekends|at weekends"), ("Mon-Thu|from Monday to Thursday", "Fri-Sun|from Friday to Sunday"))
MONTHS = "Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split()


@dataclass(frozen=True)
class Tariff:
    """Prices of one trade: headings are "heading|as a question says it", of seasons also "|months"."""

    titles: tuple[str, ...]
    names: tuple[str, ...]  # what is paid for, cheap to dear
    groups: tuple[tuple[str, ...], ...]
    under: tuple[tuple[str, ...], ...]
    low: int
    high: int
    what: str  # what a name is
    say: str  # how a question calls it: {n} its name, {l} its name with a small letter, {a} that with its article
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Note:
    """A foot note: {n} is a number, {m} an amount, {d} a date, {t} a thing drawn from ``things``."""

    text: str
    questions: tuple[str, ...]
    answer: str
    things: tuple[str, ...] = ()
    numbers: tuple[int, ...] = tuple(range(3, 17))


NOTES = {
    "vat": Note("All prices include {n} % VAT.", ("How much VAT do the prices include?", "What is the rate of VAT?", "How many percent VAT are in the prices?", "Which tax rate is included?"), "{n} %", numbers=(5, 7, 8, 10, 12, 19, 20, 21, 22, 25)),
    "breakfast": Note("Prices per night {t}.", ("What is included in the price of a night?", "What does the note say about breakfast?", "With or without breakfast?", "Is breakfast part of the price or not, as the note says?"), "{t}", ("including breakfast", "without breakfast", "breakfast included", "breakfast not included")),
    "free": Note("Children under {n} free of charge.", ("Under which age do children pay nothing?", "Under which age are children free?", "Below what age is it free for children?", "How old may a child be at most to be free, under what age?"), "{n}"),
    "dog": Note("Dogs: {m} extra.", ("How much is a dog?", "What does a dog cost extra?", "How much do I pay for my dog?", "What is the extra charge for dogs?"), "{m}"),
    "valid": Note("Valid from {d}.", ("From when are the prices valid?", "Since when do the prices hold?", "When do these prices begin to be valid?", "From which date on do the prices apply?"), "{d}"),
    "until": Note("Prices valid until {d}.", ("Until when are the prices valid?", "How long do these prices hold?", "When do the prices end?", "Up to which date do the prices apply?"), "{d}"),
    "deposit": Note("A deposit of {m} is payable on booking.", ("How much is the deposit?", "How high is the deposit on booking?", "What do I have to pay when I book?", "Which deposit is asked for?"), "{m}"),
    "group": Note("Groups of {n} or more get 10 % off.", ("From how many people on is there a discount?", "How large must a group be for the discount?", "How many of us must come to get 10 % off?", "What is the least size of a group for the discount?"), "{n}"),
    "minimum": Note("* minimum stay {n} nights", ("What does the asterisk mean?", "What does the star stand for?", "What does the note with the * say?", "What is the meaning of the mark *?"), "minimum stay {n} nights", numbers=(2, 3, 4, 5, 7)),
    "asterisk": Note("* {t}", ("What does the asterisk mean?", "What does the star stand for?", "What does the note with the * say?", "What is the meaning of the mark *?"), "{t}", ("only with a valid card", "by appointment only", "not on public holidays", "online only", "while stocks last", "subject to change", "plus local tax")),
    "tax": Note("Tourist tax of {m} per person and night not included.", ("How much is the tourist tax?", "How high is the tax per person and night?", "What has to be paid in addition per person and night?", "Which tax is added for every person?"), "{m}"),
    "where": Note("Tickets {t}.", ("Where can I get tickets?", "Where are the tickets sold?", "Where do I buy a ticket?", "From where do I get my ticket?"), "{t}", ("at the machine", "from the driver", "online only", "at the counter", "in the shop", "at the tourist office")),
    "late": Note("Surcharge at night: {m}", ("How much is the surcharge at night?", "How much more is it at night?", "What is added at night?", "What is the night surcharge?"), "{m}"),
    "notice": Note("Notice: {n} weeks to the end of a month.", ("How long is the notice?", "How many weeks before must I cancel?", "What is the period of notice?", "With how many weeks of notice can I leave?"), "{n} weeks", numbers=(2, 3, 4, 6, 8, 12)),
    "insured": Note("Insured up to {m}.", ("Up to how much is it insured?", "How high is the insurance?", "For what amount is it insured?", "What is the greatest amount insured?"), "{m}"),
}

TARIFFS = (
    Tariff(("Room rates", "Our prices", "Hotel prices", "Prices per night", "Rates"), ("Single room", "Double room", "Twin room", "Family room", "Junior suite", "Suite", "Penthouse"), SEASONS, (("1 night|for one night", "3 nights|for three nights", "Week|for a week"), ("Room only|for the room only", "Half board|with half board", "Full board|with full board"), ("1 person|for one person", "2 persons|for two persons")), 40, 190, "room", "{a}", ("breakfast", "tax", "dog", "minimum", "free", "deposit", "vat")),
    Tariff(("Camping", "Campsite prices", "Price list of the campsite", "Pitches and prices"), ("Small tent", "Tent", "Caravan", "Motor home", "Cabin", "Bungalow"), SEASONS, (("Night|per night", "Week|per week"), ("2 persons|for two persons", "4 persons|for four persons")), 8, 60, "place", "{a}", ("dog", "tax", "free", "minimum", "valid")),
    Tariff(("Fares", "Ticket prices", "Bus fares", "Tram fares", "Fare table"), ("Short trip", "Zone 1", "Zones 1-2", "Zones 1-3", "Zones 1-4", "Whole network"), AGES[:4], (("Single|for a single ticket", "Return|for a return ticket", "Day|for a day ticket"), ("Single|for a single ticket", "Week|for a weekly ticket", "Month|for a monthly ticket")), 1, 9, "fare", "the fare for {l}", ("where", "late", "group", "free", "valid", "asterisk")),
    Tariff(("Admission", "Entrance fees", "Museum prices", "What it costs", "Tickets"), ("Garden", "Tower", "Permanent exhibition", "Special exhibition", "Guided tour", "Whole museum"), (*DAYS, *SEASONS[1:3]), AGES, 3, 22, "ticket", "a ticket for the {l}", ("group", "free", "asterisk", "where", "until")),
    Tariff(("Ski passes", "Lift prices", "Ski pass prices", "Lift tickets"), ("Half day", "1 day", "2 days", "3 days", "6 days", "10 days"), (*SEASONS[:1], ("Main season|in the main season|Dec-Feb", "Spring|in spring|Mar-Apr")), AGES[:3], 8, 60, "pass", "a pass for {l}", ("group", "free", "deposit", "asterisk")),
    Tariff(("Swimming pool", "Pool prices", "Prices of the pool and sauna", "Leisure pool"), ("1 hour", "2 hours", "4 hours", "Day ticket", "Ten tickets", "Annual pass"), (("Pool|for the pool", "Sauna|for the sauna", "Pool and sauna|for pool and sauna"), *DAYS), AGES, 3, 20, "ticket", "{l}", ("group", "free", "late", "asterisk", "valid")),
    Tariff(("Car hire", "Rental prices", "Cars for hire", "Hire charges"), ("Small car", "Compact", "Estate", "Van", "Minibus", "Convertible"), SEASONS[1:], (("Day|per day", "Weekend|for a weekend", "Week|per week"), ("1-3 days|for 1 to 3 days", "4-7 days|for 4 to 7 days")), 29, 120, "car", "{a}", ("deposit", "insured", "vat", "until")),
    Tariff(("Postage", "Parcel prices", "What does it cost to send?", "Postal rates"), ("Postcard", "Letter", "Large letter", "Small parcel", "Parcel", "Heavy parcel"), (("Domestic|within the country", "Europe|to Europe", "World|to the rest of the world"), ("Zone 1|to zone 1", "Zone 2|to zone 2", "Zone 3|to zone 3")), (("Standard|as standard mail", "Express|by express"), ("Normal|as normal mail", "Registered|registered")), 1, 14, "item", "{a}", ("insured", "valid", "vat", "asterisk")),
    Tariff(("Membership fees", "Fees", "Club fees", "What membership costs"), ("Child", "Youth", "Student", "Adult", "Couple", "Family"), (("Gym|for the gym", "Courses|for courses", "Gym and courses|for gym and courses"), ("Tennis|for tennis", "Football|for football", "Rowing|for rowing")), (("Month|per month", "Year|per year"), ("6 months|for six months", "12 months|for twelve months")), 8, 40, "member", "the fee for {a}", ("notice", "valid", "asterisk")),
    Tariff(("Music school: fees", "Tuition fees", "Lessons and prices", "Fees of the music school"), ("Recorder", "Guitar", "Violin", "Piano", "Singing", "Drums"), (("Single lesson|for a single lesson", "Group lesson|for a group lesson"), ("Children|for children", "Adults|for adults")), (("30 min|of 30 minutes", "45 min|of 45 minutes", "60 min|of 60 minutes"),), 12, 50, "subject", "{l}", ("notice", "valid", "free")),
    Tariff(("Cinema prices", "Tickets", "Seats and prices", "Theatre tickets"), ("Gallery", "Upper circle", "Circle", "Stalls", "Box"), (*DAYS, ("Matinee|for the matinee", "Evening|in the evening", "Premiere|for the premiere")), AGES, 6, 45, "seat", "a seat in the {l}", ("group", "where", "asterisk")),
    Tariff(("Boat hire", "Boats for hire", "Hire prices at the lake", "Bikes and boats"), ("Pedal boat", "Canoe", "Rowing boat", "Sailing boat", "Electric boat", "Motor boat"), (*DAYS, SEASONS[1]), (("1 hour|for one hour", "Half day|for half a day", "Day|for a day"), ("Hour|per hour", "Day|per day")), 7, 40, "boat", "{a}", ("deposit", "insured", "late", "dog")),
    Tariff(("Print shop", "Copies and prints", "Prices for prints", "Copy prices"), ("A5", "A4", "A3", "A2", "A1"), (("Black and white|in black and white", "Colour|in colour"), ("Paper|on paper", "Card|on card", "Photo paper|on photo paper")), (("1-49|for up to 49 copies", "50-199|for 50 to 199 copies", "200+|for 200 copies or more"), ("One side|on one side", "Both sides|on both sides")), 1, 6, "size", "{n}", ("vat", "valid", "asterisk")),
    Tariff(("Hairdresser", "Our prices", "Salon prices", "Cut and colour"), ("Fringe", "Wash and cut", "Cut and blow-dry", "Highlights", "Colour", "Perm"), (("Women|for women", "Men|for men", "Children|for children"), ("Short hair|for short hair", "Long hair|for long hair")), (("Junior stylist|by a junior stylist", "Top stylist|by a top stylist"), *DAYS), 8, 60, "service", "{l}", ("asterisk", "valid", "vat")),
    Tariff(("Parking", "Parking charges", "Car park prices", "Parking fees"), ("Up to 1 hour", "Up to 2 hours", "Up to 4 hours", "Up to 12 hours", "24 hours", "1 week"), (("Zone A|in zone A", "Zone B|in zone B", "Zone C|in zone C"), ("Car park 1|in car park 1", "Car park 2|in car park 2")), DAYS, 1, 8, "time", "parking for {l}", ("late", "valid", "asterisk", "where")),
    Tariff(("Hall hire", "Rooms for hire", "Prices of the village hall", "Hire of rooms"), ("Meeting room", "Kitchen", "Club room", "Small hall", "Large hall", "Whole house"), (AGES[4], AGES[5], *DAYS), (("Half day|for half a day", "Day|for a day", "Weekend|for a weekend"), ("Hour|per hour", "Evening|for an evening")), 15, 120, "room", "the {l}", ("deposit", "vat", "until", "asterisk")),
    Tariff(("Catering", "Buffets", "Party menus", "Prices for your party"), ("Soup buffet", "Brunch", "Cold buffet", "Warm buffet", "Barbecue", "Gala dinner"), (("Up to 20|for up to 20 guests", "21-50|for 21 to 50 guests", "Over 50|for over 50 guests"),), (AGES[0][:2], ("Without drinks|without drinks", "With drinks|with drinks")), 9, 50, "menu", "the {l}", ("deposit", "free", "vat", "valid")),
    Tariff(("Energy prices", "Electricity tariffs", "Our tariffs", "Power and gas"), ("Basic", "Classic", "Green", "Green Plus", "Comfort"), (("Flat|for a flat", "House|for a house", "Business|for a business"), ("Day|by day", "Night|at night")), (("Per month|per month", "Setup|for the setup"), ("12 months|for twelve months", "24 months|for twenty-four months")), 12, 90, "tariff", "the tariff {n}", ("notice", "vat", "until")),
)


def _months(span: str) -> list[int]:
    first, last = (MONTHS.index(name) for name in span.split("-"))
    return [(first + i) % 12 for i in range((last - first) % 12 + 1)]


def _split(option: str) -> tuple[str, str, str]:
    parts = option.split("|")
    return parts[0], parts[1], parts[2] if len(parts) > 2 else ""


def _said(tariff: Tariff, name: str) -> str:
    """What a question calls the thing of that name: "a double room"."""
    low = name if name[1].isdigit() else name[0].lower() + name[1:]
    return tariff.say.format(n=name, l=low, a=f"{'an' if low[0] in 'aeio' else 'a'} {low}")


def _steps(r: Rng, headings) -> list[float]:
    """Factors of prices under headings, which grow, but for children and what is reduced."""
    falls = any(word in shown for shown, *_ in headings for word in ("Child", "Reduced", "Student"))
    factors = [1.0]
    for _ in headings[1:]:
        factors.append(factors[-1] * (r.uniform(0.5, 0.85) if falls else r.uniform(1.15, 2.2)))
    return factors


def _prices(r: Rng, money: Money, tariff: Tariff, names: int, groups, under) -> dict[tuple[int, int, int], int]:
    """Cents by name, group and heading, growing with the names."""
    start = r.uniform(tariff.low, (tariff.low + tariff.high) / 2)
    end = r.pick((0, 0, 0, 50, 90, 95, 99))
    rise, factor, step = r.uniform(1.15, 1.6), _steps(r, groups), _steps(r, under)
    found = {}
    for n in range(names):
        for g in range(len(groups)):
            for u in range(len(under)):
                units = start * rise**n * factor[g] * step[u] * r.uniform(0.92, 1.1)
                cents = round(units * 100 / 10) * 10 if units < 12 and not money.whole else round(units) * 100 + (0 if money.whole else end)
                found[n, g, u] = max(cents, 100 if money.whole else 40)
    return found


@dataclass
class Prices:
    """Prices of a page by name and leaf, a leaf being a group with what stands under it; all of them by their numbers.

    Attributes:
        names: what is paid for. groups: (heading, as a question says it, months). under: (heading, as a question says it).
        other_names, other_groups, other_under: what the page leaves out.
        cents: by (name, group, under). special: text of (name, leaf) that has no price.
        cells: text by (name, leaf).
    """

    sort: Tariff
    names: list[str]
    groups: list[tuple[str, str, str]]
    under: list[tuple[str, str]]
    other_names: list[str]
    other_groups: list[tuple[str, str, str]]
    other_under: list[tuple[str, str]]
    cents: dict[tuple[int, int, int], int] = field(default_factory=dict)
    special: dict[tuple[int, int], str] = field(default_factory=dict)
    cells: dict[tuple[int, int], str] = field(default_factory=dict)

    @property
    def leaves(self) -> list[tuple[int, int]]:
        return [(g, u) for g in range(len(self.groups)) for u in range(len(self.under))]

    @property
    def seasons(self) -> bool:
        """Whether the groups are seasons, which have months."""
        return all(months for *_, months in self.groups)


def _choose(r: Rng, sort: Tariff) -> Prices:
    """What is to be priced, without its prices."""
    all_groups = [_split(option) for option in r.pick(sort.groups)]
    all_under = [_split(option)[:2] for option in r.pick(sort.under)]
    seasons = all(months for *_, months in all_groups)
    groups = all_groups if seasons or r.chance(0.5) else all_groups[: max(2, len(all_groups) - 1)]
    under = all_under if r.chance(0.7) else all_under[: max(2, len(all_under) - 1)]
    start = r.randint(0, 2)
    names = list(sort.names[start : start + r.randint(2, 5)])
    others = [name for name in sort.names if name not in names and not any(name in own or own in name for own in names)]
    return Prices(sort, names, groups, under, others, all_groups[len(groups) :], all_under[len(under) :])


def _special(r: Rng, prices: Prices) -> dict[tuple[int, int], str]:
    """A cell that has no price, or none."""
    if not r.chance(0.3):
        return {}
    n, i = r.randint(0, len(prices.names) - 1), r.randint(0, len(prices.leaves) - 1)
    return {(n, i): r.pick(("free", "on request", "\u2013", "\u2014")) if n else r.pick(("free", "\u2013"))}


def _drawn_notes(r: Rng, sort: Tariff) -> list[Note]:
    """Notes, at most one of which hangs on a star behind a name."""
    notes = [NOTES[name] for name in r.sample(sort.notes, r.randint(0, min(3, len(sort.notes))))]
    marks = [note for note in notes if note.text.startswith("*")]
    return [note for note in notes if note not in marks[1:]]


@dataclass
class Arrangement:
    """How the prices are set; ``dated``: where the months of seasons stand, "head", "row", "note" or nowhere."""

    grid: Grid
    layout: str
    dated: str


def _arrange(r: Rng, prices: Prices, starred: int | None) -> Arrangement:
    """The grid with a star behind the name number ``starred``."""
    shown_names = [f"{name}*" if n == starred else name for n, name in enumerate(prices.names)]
    dated = r.pick(("head", "row", "note", "")) if prices.seasons else ""
    heads = [f"{shown} ({months})" if dated == "head" else shown for shown, _, months in prices.groups]
    under_heads = [name for name, _ in prices.under]
    grid = Grid(shown_names, [(heads[g], under_heads[u]) for g, u in prices.leaves], prices.cells)
    layouts = grid.layouts()
    layout = ACROSS if dated == "row" and ACROSS in layouts else r.pick([*layouts, ACROSS] if ACROSS in layouts else layouts)
    if dated == "row" and layout != ACROSS:
        dated = ""
    return Arrangement(grid, layout, dated)


def _set_head(d: Document, sort: Tariff, money: Money, show: Callable[[int], str]) -> None:
    """What stands above the table."""
    r = d.r
    place = r.pick((town(r), f"{v.name_word(r)} {r.pick(('Lodge', 'Park', 'House', 'Club', 'Centre'))}"))
    title = r.pick(sort.titles)
    if r.chance(0.3):
        title = f"{title} {r.randint(2018, 2031)}"
    top = d.heading(title)
    if r.chance(0.4):
        part = d.line(place, bold=r.chance(0.5))
        d.ask(("Whose prices are these?", "Which name stands under the heading?", "Of which place are the prices?", "To whom do the prices belong?"), place, part)
    d.ask(("What is the title?", "What does the heading say?", "What is the table called?", "What stands at the top?"), title, top)
    if show == money.bare and r.chance(0.75):  # two of one bound method are equal, not the same
        part = d.line(r.pick(("Prices in {}", "All prices in {}", "in {}", "Prices ({})")).format(money.currency), small=True)
        d.ask(("In which currency are the prices?", "What is the currency?", "In what money are the prices given?", "Which currency is used?"), money.currency, part)


def _set_table(d: Document, prices: Prices, arrangement: Arrangement) -> None:
    r = d.r
    units = [prices.groups[g][2] for g, _ in prices.leaves] if arrangement.dated == "row" else ()
    arrangement.grid.set(d, arrangement.layout, r.pick(("", "", prices.sort.what.capitalize())), heads=(r.pick(("", "Season" if prices.seasons else "")), ""), units=units)


@kind("tariff", 3.0)
def tariff(d: Document) -> None:
    """Prices under two levels of headings, with notes."""
    r, money, dates = d.r, Money(d.r), Dates(d.r)
    sort = r.pick(TARIFFS)
    prices = _choose(r, sort)
    names = prices.names
    prices.cents = _prices(r, money, sort, len(names), prices.groups, prices.under)
    show = money if r.chance(0.45) else money.bare
    prices.special = _special(r, prices)
    prices.cells = {(n, i): prices.special.get((n, i)) or show(prices.cents[n, g, u]) for n in range(len(names)) for i, (g, u) in enumerate(prices.leaves)}

    notes = _drawn_notes(r, sort)
    starred = r.randint(0, len(names) - 1) if any(note.text.startswith("*") for note in notes) else None
    arrangement = _arrange(r, prices, starred)
    grid = arrangement.grid
    _set_head(d, sort, money, show)
    _set_table(d, prices, arrangement)

    for n, i in r.sample(sorted(prices.cells), min(len(prices.cells), 9)):
        if prices.cells[n, i][0] not in "\u2013\u2014":
            _ask_cell(d, grid, prices, n, i)
    _compare(d, grid, prices)
    _ask_months(d, grid, prices, arrangement.dated)
    _notes(d, notes, dates, money, names, starred, sort, grid)
    _ask_left_out(d, prices)
    if sort.what in ("room", "place", "car", "boat", "seat", "subject", "service", "menu", "tariff"):
        d.ask((f"How many {sort.what}s are listed?", f"How many different {sort.what}s can I choose from?", f"For how many {sort.what}s are there prices?", f"How many {sort.what}s does the table have?"), str(len(names)), grid.everything)


def _ask_cell(d: Document, grid: Grid, prices: Prices, n: int, i: int) -> None:
    """The price of a name under a leaf."""
    g, u = prices.leaves[i]
    (shown, said, _), (sub, below), name = prices.groups[g], prices.under[u], prices.names[n]
    head, it = f"{shown}, {sub}", _said(prices.sort, name)
    d.ask((
        f"How much is {it} {said} {below}?", f"What does {it} cost {said} {below}?", f"What is the price of {it} {below} {said}?", f"{name}, {head}: how much?", f"What do I pay for {it} {said} {below}?", f"{name} {below} {said}?",
        f"Which price stands for {name} under {head}?", f"{said[0].upper()}{said[1:]}, how much is {it} {below}?",
    ), prices.cells[n, i], grid.parts[n, i])


def _ask_months(d: Document, grid: Grid, prices: Prices, dated: str) -> None:
    """The months of seasons, and prices in a month; sets the note that says them where they are ``dated`` in one."""
    r, groups = d.r, prices.groups
    if dated in ("head", "row"):
        g = r.randint(0, len(groups) - 1)
        shown, _, months = groups[g]
        d.ask((f"When is {shown.lower()}?", f"Which months are {shown.lower()}?", f"From when to when is {shown.lower()}?", f"What are the months of {shown}?") if "season" in shown.lower() else (f"Which months belong to {shown}?", f"From when to when is {shown}?", f"What are the months of {shown}?", f"Which months stand beside {shown}?"), months, grid.everything)
        _in_a_month(d, grid, prices)
    elif dated == "note":
        parts = d.lines(*(f"{shown}: {months}" for shown, _, months in groups), small=True)
        g = r.randint(0, len(groups) - 1)
        shown, _, months = groups[g]
        d.ask((f"When is {shown}?", f"Which months belong to {shown}?", f"From when to when is {shown}?", f"What are the months of {shown}?"), months, parts[g])
        _in_a_month(d, grid, prices, parts)
    elif prices.seasons:
        d.absent(f"Which months belong to {groups[0][0]}?", f"When does {groups[-1][0]} begin?", f"In which season is {r.pick(v.MONTHS)}?")


def _ask_left_out(d: Document, prices: Prices) -> None:
    """Prices that the page does not say."""
    r, sort = d.r, prices.sort
    name, (shown, said, _), (sub, below) = r.pick(prices.names), r.pick(prices.groups), r.pick(prices.under)
    it = _said(sort, name)
    if prices.other_names:
        strange = r.pick(prices.other_names)
        d.absent(f"How much is {_said(sort, strange)} {said} {below}?", f"What does {_said(sort, strange)} cost {said}?", f"{strange}, {shown}, {sub}: how much?")
    for missing in prices.other_groups:
        d.absent(f"How much is {it} {missing[1]} {below}?", f"What does {it} cost {missing[1]} {below}?", f"{name}, {missing[0]}, {sub}: how much?")
    for missing_under in prices.other_under:
        d.absent(f"How much is {it} {said} {missing_under[1]}?", f"What does {it} cost {said} {missing_under[1]}?", f"{name}, {shown}, {missing_under[0]}: how much?")


def _compare(d: Document, grid: Grid, prices: Prices) -> None:
    """Cheapest, dearest, and two prices beside each other."""
    r, sort, names, groups, under = d.r, prices.sort, prices.names, prices.groups, prices.under
    leaves, cents, cells, special = prices.leaves, prices.cents, prices.cells, prices.special
    for i in r.sample(range(len(leaves)), min(len(leaves), 2)):
        g, u = leaves[i]
        said, below = groups[g][1], under[u][1]
        column = [cents[n, g, u] for n in range(len(names))]
        if any((n, i) in special for n in range(len(names))) or len(set(column)) < len(column):
            continue
        needs = grid.everything
        best, dear = names[column.index(min(column))], names[column.index(max(column))]
        d.ask((f"What is the cheapest {said} {below}?", f"Which {sort.what} costs the least {said} {below}?", f"Cheapest {sort.what} {said} {below}?", f"{said[0].upper()}{said[1:]}, which is the cheapest {below}?"), best, needs)
        d.ask((f"What is the most expensive {said} {below}?", f"Which {sort.what} costs the most {said} {below}?", f"Dearest {sort.what} {said} {below}?", f"{said[0].upper()}{said[1:]}, which is the dearest {below}?"), dear, needs)
        d.ask((f"What is the lowest price {said} {below}?", f"How much is the cheapest {sort.what} {said} {below}?", f"From what price on is it {said} {below}?", f"Which is the lowest amount {said} {below}?"), cells[column.index(min(column)), i], needs) if r.chance(0.5) else None
        a, b = r.sample(range(len(names)), 2)
        d.ask((f"What costs more {said} {below}, {names[a]} or {names[b]}?", f"{names[a]} or {names[b]}: which is dearer {said} {below}?", f"Which is more expensive {said} {below}: {names[b]} or {names[a]}?", f"{said[0].upper()}{said[1:]}, what costs more {below}: {names[a]} or {names[b]}?"), names[a] if column[a] > column[b] else names[b], needs)
        n = r.randint(0, len(names) - 1)
        if [cells[k, i] for k in range(len(names))].count(cells[n, i]) == 1:
            d.ask((f"What can I get for {cells[n, i]} {said} {below}?", f"Which {sort.what} costs {cells[n, i]} {said} {below}?", f"For which {sort.what} do I pay {cells[n, i]} {said} {below}?", f"{cells[n, i]} {said} {below} is the price of what?"), names[n], needs)
    n, u = r.randint(0, len(names) - 1), r.randint(0, len(under) - 1)
    a, b = r.sample(range(len(groups)), 2)
    one, two = leaves.index((a, u)), leaves.index((b, u))
    if cents[n, a, u] != cents[n, b, u] and not {(n, one), (n, two)} & set(special):
        cheap = a if cents[n, a, u] < cents[n, b, u] else b
        first, second, below = groups[a], groups[b], under[u][1]
        d.ask((f"Is {names[n]} {below} cheaper {first[1]} or {second[1]}?", f"{names[n]} {below}: what is cheaper, {first[0]} or {second[0]}?", f"Which is cheaper for {names[n]} {below}, {first[0]} or {second[0]}?", f"Where do I pay less for {names[n]} {below}: {first[1]} or {second[1]}?"), groups[cheap][0], grid.parts[n, one], grid.parts[n, two])
    if len(under) > 1:
        a, b = r.sample(range(len(under)), 2)
        g = r.randint(0, len(groups) - 1)
        one, two = leaves.index((g, a)), leaves.index((g, b))
        if cents[n, g, a] != cents[n, g, b] and not {(n, one), (n, two)} & set(special):
            dear = a if cents[n, g, a] > cents[n, g, b] else b
            d.ask((f"Which is dearer for {names[n]} {groups[g][1]}, {under[a][0]} or {under[b][0]}?", f"{names[n]} {groups[g][1]}: what costs more, {under[a][0]} or {under[b][0]}?", f"What costs more {groups[g][1]} for {names[n]}: {under[b][0]} or {under[a][0]}?", f"Compare {under[a][0]} and {under[b][0]} for {names[n]} {groups[g][1]}: which is more?"), under[dear][0], grid.parts[n, one], grid.parts[n, two])


def _in_a_month(d: Document, grid: Grid, prices: Prices, more: Sequence[Part] = ()) -> None:
    """Prices asked for by a month, which stands for its season; they rest on ``more`` as well."""
    r, names, groups, under, cells = d.r, prices.names, prices.groups, prices.under, prices.cells
    for month in r.sample(range(12), 4):
        own = [g for g, group in enumerate(groups) if month in _months(group[2])]
        if len(own) != 1:
            continue
        n, u = r.randint(0, len(names) - 1), r.randint(0, len(under) - 1)
        i, called = prices.leaves.index((own[0], u)), v.MONTHS[month]
        if cells[n, i][0] not in "\u2013\u2014":
            it = _said(prices.sort, names[n])
            d.ask((f"How much is {it} in {called} {under[u][1]}?", f"What does {it} cost in {called} {under[u][1]}?", f"I come in {called}. How much is {it} {under[u][1]}?", f"{names[n]} {under[u][1]} in {called}: which price?"), cells[n, i], grid.parts[n, i], more)
        if r.chance(0.4):
            d.ask((f"In which season is {called}?", f"To which season does {called} belong?", f"{called}: which season?", f"Which season is it in {called}?"), groups[own[0]][0], grid.everything, more)


def _notes(d: Document, notes: list[Note], dates: Dates, money: Money, names, starred: int | None, sort: Tariff, grid: Grid) -> None:
    r: Rng = d.r
    fill: Callable[[str, dict[str, str]], str] = lambda text, blanks: text.format(**blanks)  # noqa: E731
    for note in notes:
        blanks = {"n": str(r.pick(note.numbers)), "m": money(money.round(r, 1, 30)), "d": dates.date(), "t": r.pick(note.things) if note.things else ""}
        part = d.line(fill(note.text, blanks), small=True)
        d.ask(note.questions, fill(note.answer, blanks), part)
        if starred is not None and note.text.startswith("*"):
            d.ask((f"Which {sort.what} has an asterisk?", "What is marked with a star?", "Behind which name is there a *?", f"To what does the note \"{fill(note.answer, blanks)}\" belong?"), names[starred], part, grid.everything)
            d.ask((f"What must I know about {names[starred]}?", f"What is special about {names[starred]}?", f"Which note belongs to {names[starred]}?", f"Is there a condition for {names[starred]}? Which one?"), fill(note.answer, blanks), part, grid.everything)
    missing = [NOTES[name] for name in sort.notes if NOTES[name] not in notes and not name.startswith(("minimum", "asterisk", "breakfast"))]
    if missing:
        d.absent(*r.pick(missing).questions)
