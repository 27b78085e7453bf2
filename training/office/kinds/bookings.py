"""Results of a search for flights, trains or hotels: times, prices, filters."""

# fmt: off

import datetime
from dataclasses import dataclass

from training.office.document import Document
from training.office.registry import kind
from training.office.screen import Column, Element, Icon, Panel, Photo, Row, Screen, Space, Text
from training.office.values import Money, distinct, town
from training.office.windows import browser
from training.pages import values as v

EXTRAS = ("Breakfast included", "Free cancellation", "No prepayment", "Pool", "Free parking", "Pets allowed", "Only 2 rooms left", "Sea view")
STAY_FILTERS = ("Breakfast included", "Free cancellation", "4 stars", "5 stars", "Pool", "Free Wi-Fi", "Parking", "Family rooms", "Airport shuttle", "Sauna")
TRIP_FILTERS = ("Nonstop", "1 stop", "Morning", "Evening", "Window seat", "Checked bag", "Refundable", "First class", "Bicycle", "Quiet zone")
Entry = tuple[str, str, tuple[str, ...]]  # of a search: label, value, questions


@dataclass(frozen=True)
class Prices:
    """Of the offers of a page, in cents and as shown; ``cheapest``: which of them alone is so, or -1."""

    cents: list[int]
    shown: list[str]
    cheapest: int


@dataclass(frozen=True)
class Offers:
    """What was searched for and what was found; ``noun`` is what one offer is."""

    noun: str
    entries: list[Entry]
    names: list[str]
    cards: list[Element]
    marks: list[Text]  # what must be read to compare the offers
    filters: tuple[str, ...]


@dataclass(frozen=True)
class Hotel:
    """What its card says; ``tenths`` of a kilometre from the centre."""

    name: str
    price: str
    score: float
    tenths: int
    reviews: int
    extras: list[str]


@dataclass(frozen=True)
class Means:
    """Means of travel: a "flight" or a "train", and in which style the page writes durations."""

    noun: str
    style: int

    @property
    def flying(self) -> bool:
        return self.noun == "flight"

    @property
    def stop(self) -> str:
        return "stop" if self.flying else "change"


@dataclass(frozen=True)
class Journey:
    """A flight or a train; ``start`` is in minutes after midnight, ``length`` in minutes."""

    name: str
    price: str
    start: int
    length: int
    stops: int


def span(minutes: int, r: int) -> str:
    return (f"{minutes // 60} h {minutes % 60:02d} min", f"{minutes // 60}h {minutes % 60:02d}m", f"{minutes // 60}:{minutes % 60:02d} h")[r]


def hm(minutes: int) -> str:
    """A minute of the day as screens show it."""
    return f"{minutes // 60 % 24:02d}:{minutes % 60:02d}"


def search_bar(ui: Screen, entries: list[Entry]) -> Element:
    """What was searched for, in fields beside or above one another."""
    cells: list[Element] = []
    for label, value, questions in entries:
        a, b = ui.text(label, "small", grey=True), ui.text(value, "bold")
        cells.append(Panel(Column([a, b]), 0, 120, (1.3, 0.5)))
        ui.ask(questions, value, a, b)
    across = len(cells) if ui.d.shape[1] >= 640 else 2
    button, _ = ui.button(ui.r.pick(("Search", "Find", "Change search")), True)
    lines: list[Element] = [Row(cells[i : i + across], [1] * len(cells[i : i + across]), gap=1) for i in range(0, len(cells), across)]
    return Panel(Column([*lines, button] if ui.r.chance(0.5) else lines, gap=0.8), 25, pad=(1.5, 1), square=True)


def filters(ui: Screen, names: tuple[str, ...]) -> tuple[Element, list[Text]]:
    """Check boxes at the side."""
    r = ui.r
    chosen = r.sample(names, min(len(names), r.randint(3, 6)))
    ticks = [r.chance(0.3) for _ in chosen]
    texts = ui.texts(chosen, "small")
    on = [name for name, tick in zip(chosen, ticks, strict=True) if tick]
    if len(on) == 1:
        ui.ask(("Which filter is ticked?", "What is ticked?", "Which filter is set?", "Which box is checked?"), on[0], texts)
    elif on:
        ui.ask(("Which filters are ticked?", "What is ticked?", "Which boxes are checked?"), " and ".join(on) if len(on) == 2 else ", ".join(on), texts)
    ui.ask(("How many filters are ticked?", "How many boxes are checked?"), str(len(on)), texts)
    for name in r.sample(chosen, 2):
        ui.ask((f'Is "{name}" ticked?', f'Is the box "{name}" checked or not?'), "yes" if name in on else "no", texts)
    head = ui.text(r.pick(("Filters", "Filter by", "Refine")), "bold")
    return Column([head, *(Row([Icon("ticked" if tick else "box", 0.7), t], [None, 1], gap=1) for tick, t in zip(ticks, texts, strict=True))], gap=0.7), texts


def site_bar(ui: Screen) -> tuple[str, Element]:
    """The name of a site, and the bar with it."""
    r = ui.r
    site = f"{v.name_word(r)}{r.pick(('Travel', ' Trips', 'Fly', ' Rail', 'go', ' Booking', 'Stay'))}"
    logo = ui.text(site, "bold")
    ui.ask(("Which site is it?", "What is the name of the website?", "On which travel site is this?"), site, logo)
    links = ui.texts(r.sample(("Flights", "Hotels", "Cars", "Trains", "My trips", "Help", "Sign in"), 3 if ui.wide else 1), "small")
    return site, Panel(Row([logo, Space(), *links], [None, 1, *[None] * len(links)], gap=3), 0, dark=r.pick((0, 225, 190)), pad=(2, 1), square=True)


def draw_prices(r: v.Rng, money: Money) -> Prices:
    cents = [money.round(r, 25, 700) for _ in range(r.randint(3, 6))]
    if r.chance(0.6):
        cents.sort()
    return Prices(cents, [money(p) for p in cents], cents.index(min(cents)) if cents.count(min(cents)) == 1 else -1)


def hotel_name(r: v.Rng) -> str:
    return r.pick((f"Hotel {v.name_word(r)}", f"{v.name_word(r)} Inn", f"Villa {v.name_word(r)}", f"{v.name_word(r)} Palace", f"Pension {v.last_name(r)}", f"{v.name_word(r)} Hostel", f"Grand {v.name_word(r)}"))


def draw_hotels(r: v.Rng, prices: list[str]) -> list[Hotel]:
    """Hotels at these prices, or fewer where names are short."""
    names = distinct(r, hotel_name, len(prices))
    scores = [r.randint(55, 98) / 10 for _ in names]
    tenths = r.sample(range(1, 90), len(names))
    reviews = [r.randint(8, 4000) for _ in names]
    extras = [r.sample(EXTRAS, r.randint(0, 2)) for _ in names]
    return [Hotel(*facts) for facts in zip(names, prices[: len(names)], scores, tenths, reviews, extras, strict=True)]


def hotel_card(ui: Screen, hotel: Hotel, per: str) -> tuple[Element, list[Text]]:
    """A card with questions about it, and those of its texts by which hotels are compared."""
    name = hotel.name
    a, p, q = ui.text(name, "bold", wrap=True), ui.text(hotel.price, "bold", align="r"), ui.text(per, "small", align="r", grey=True)
    s, c, w = ui.text(str(hotel.score), "bold"), ui.text(f"{hotel.reviews} reviews", "small"), ui.text(f"{hotel.tenths / 10} km from the centre", "small")
    extras = ui.texts(hotel.extras, "small")
    under: list[Element] = [a, Row([Panel(s, dark=200, pad=(0.8, 0.1)), c], gap=1), w, *extras]
    ui.ask((f"How much is {name}?", f"What does {name} cost?", f"What is the price of {name}?", f"{name}: price?", f"How much would I pay at {name}?"), hotel.price, a, p)
    ui.ask((f"How is {name} rated?", f"What is the rating of {name}?", f"Which score does {name} have?", f"What grade do guests give {name}?"), str(hotel.score), a, s)
    ui.ask((f"How far is {name} from the centre?", f"How far from the centre is {name}?", f"What is the distance of {name} from the centre?"), f"{hotel.tenths / 10} km", a, w)
    ui.ask((f"How many reviews does {name} have?", f"How many guests rated {name}?"), str(hotel.reviews), a, c)
    card = Panel(Row([Photo(12, 1.0), Column(under, gap=0.3), Column([p, q])], [None, 1, None], gap=2), 0, 80, (1, 0.8))
    return card, [a, p, s, w]


def compare_hotels(ui: Screen, hotels: list[Hotel], marks: list[Text]) -> None:
    """Questions about the best, the nearest and what only one of them has."""
    scores = [hotel.score for hotel in hotels]
    if scores.count(max(scores)) == 1:
        ui.ask(("Which hotel is rated best?", "Which hotel has the best rating?", "Which place do guests like most?"), hotels[scores.index(max(scores))].name, marks)
    nearest = min(hotels, key=lambda hotel: hotel.tenths)
    ui.ask(("Which hotel is nearest to the centre?", "Which hotel is closest to the centre?", "Which one is most central?"), nearest.name, marks)
    for extra in EXTRAS:
        has = [hotel.name for hotel in hotels if extra in hotel.extras]
        if len(has) == 1:
            ui.ask((f'Which hotel has "{extra}"?', f"Which hotel offers {extra.lower()}?" if not extra.startswith("Only") else "Where are only 2 rooms left?"), has[0], marks)


def find_hotels(ui: Screen, day: datetime.date, style: str, prices: list[str]) -> Offers:
    """A search for a stay from ``day`` on, dates written in ``style``."""
    d, r, place = ui.d, ui.r, town(ui.r)
    nights, guests = r.randint(1, 14), r.randint(1, 5)
    out = day + datetime.timedelta(days=nights)
    entries = [
        ("Destination", place, ("Where is the hotel searched?", "Which city was searched for?", "In which town are the hotels?", "What is the destination?")), ("Check-in", day.strftime(style), ("When is check-in?", "On which day does the stay begin?", "What is the check-in date?", "From when on is the room wanted?")),
        ("Check-out", out.strftime(style), ("When is check-out?", "On which day does the stay end?", "What is the check-out date?")), ("Guests", str(guests), ("For how many guests is it?", "How many guests are there?", "How many people are travelling?")),
    ]
    hotels = draw_hotels(r, prices)
    per = r.pick(("per night", "for the stay", f"{nights} nights" if nights > 1 else "1 night"))
    shown = [hotel_card(ui, hotel, per) for hotel in hotels]
    cards, marks = [card for card, _ in shown], [text for _, texts in shown for text in texts]
    compare_hotels(ui, hotels, marks)
    if per == "per night":
        ui.ask(("Is the price per night or for the whole stay?", "Per night or per stay: what are the prices for?"), "per night", marks)
    first, gone = hotels[0].name, f"Hotel {v.name_word(r)}"
    d.absent(f"What is the phone number of {first}?", f"How many rooms does {first} have?", f"What is the address of {first}?")
    d.absent(f"How much is {gone}?", f"What is the rating of {gone}?")
    return Offers("hotel", entries, [hotel.name for hotel in hotels], cards, marks, STAY_FILTERS)


def journey_name(r: v.Rng, flying: bool) -> str:
    return f"{v.name_word(r)} {r.pick(('Air', 'Airlines', 'Airways', 'Jet'))}" if flying else f"{r.pick(('ICE', 'IC', 'RE', 'EC', 'TGV', 'NJ', 'Express'))} {r.randint(10, 999)}"


def draw_journeys(r: v.Rng, flying: bool, prices: list[str]) -> list[Journey]:
    """Journeys at these prices in the order in which they start, or fewer where names are short."""
    names = distinct(r, lambda r: journey_name(r, flying), len(prices))
    starts = sorted(5 * k for k in r.sample(range(60, 264), len(names)))
    lengths = r.sample(range(55, 720), len(names))
    stops = [r.choices((0, 1, 2), (4, 4, 2))[0] for _ in names]
    return [Journey(*facts) for facts in zip(names, prices[: len(names)], starts, lengths, stops, strict=True)]


def track_or_number(ui: Screen, flying: bool, named: Text) -> list[Text]:
    """The platform of a train or the number of a flight, of some."""
    r, name = ui.r, named.text
    if not flying and r.chance(0.6):
        track = ui.text(f"Platform {r.randint(1, 24)}", "small")
        ui.ask((f"From which platform does {name} leave?", f"What is the platform of {name}?", f"Where does {name} leave?"), track.text.split()[1], named, track)
        return [track]
    if flying and r.chance(0.4):
        number = ui.text(f"{name[:2].upper()} {r.randint(100, 9999)}", "small", grey=True)
        ui.ask((f"What is the flight number of {name}?", f"Which flight number does {name} have?"), number.text, named, number)
        return [number]
    return []


def journey_card(ui: Screen, means: Means, journey: Journey) -> tuple[Element, list[Text]]:
    """A card with questions about it, and its texts by which journeys are compared."""
    name, noun, stop, flying = journey.name, means.noun, means.stop, means.flying
    start, end, length = hm(journey.start), hm(journey.start + journey.length), span(journey.length, means.style)
    a, p = ui.text(name, "bold"), ui.text(journey.price, "bold", align="r")
    b, c = ui.text(f"{start} {ui.r.pick(('-', chr(0x2013)))} {end}"), ui.text(length, "small")
    e = ui.text(("nonstop" if flying else "direct") if not journey.stops else f"{journey.stops} {stop}{'s' if journey.stops > 1 else ''}", "small")
    more = track_or_number(ui, flying, a)
    ui.ask((f"How much is {name}?", f"What does {name} cost?", f"What is the price of the {noun} with {name}?" if flying else f"What is the price of {name}?", f"{name}: price?"), journey.price, a, p)
    ui.ask((f"When does {name} leave?", f"At what time does {name} depart?", f"What is the departure time of {name}?", f"When does the {noun} with {name} start?" if flying else f"When does the train {name} start?"), start, a, b)
    ui.ask((f"When does {name} arrive?", f"At what time does {name} get in?", f"What is the arrival time of {name}?"), end, a, b)
    ui.ask((f"How long does {name} take?", f"How long is the journey with {name}?", f"What is the duration with {name}?"), length, a, c)
    ui.ask((f"How many {stop}s does {name} have?", f"How often does one have to change with {name}?" if not flying else f"How many times does {name} stop on the way?"), str(journey.stops), a, e)
    ui.ask((f"Which {noun} leaves at {start}?", f"What departs at {start}?"), name, a, b)
    card = Panel(Row([Column([a, *more]), Column([b, Row([c, e], gap=1.5)]), p], [1.2, 1.6, None], gap=2), 0, 80, (1, 0.8))
    return card, [a, p, b, c, e]


def compare_journeys(ui: Screen, means: Means, journeys: list[Journey], marks: list[Text]) -> None:
    """Questions about the fastest, the first and the only direct one."""
    noun, names = means.noun, [journey.name for journey in journeys]
    lengths, stops = [journey.length for journey in journeys], [journey.stops for journey in journeys]
    if lengths.count(min(lengths)) == 1:
        ui.ask((f"Which {noun} is the fastest?", f"Which {noun} takes the least time?", "What is the quickest way?"), names[lengths.index(min(lengths))], marks)
        ui.ask((f"Which {noun} takes longest?", f"Which {noun} is the slowest?"), names[lengths.index(max(lengths))], marks)
    ui.ask((f"Which {noun} leaves first?", f"Which is the earliest {noun}?"), names[0], marks)
    ui.ask((f"Which {noun} leaves last?", f"Which is the latest {noun}?"), names[-1], marks)
    if stops.count(0) == 1:
        ui.ask((f"Which {noun} is {'nonstop' if means.flying else 'direct'}?", f"With which {noun} do I not have to change?"), names[stops.index(0)], marks)


def leave_journeys_open(ui: Screen, flying: bool, first: str) -> None:
    """Questions about the ``first`` journey and one that is not there, which the page does not answer."""
    d, r = ui.d, ui.r
    d.absent(*((f"From which gate does {first} leave?", f"How much luggage is allowed with {first}?") if flying else (f"How many seats are free in {first}?", f"Is there a restaurant car in {first}? Which one?")))
    gone = f"{v.name_word(r)} {'Air' if flying else 'Express'}"
    d.absent(f"When does {gone} leave?", f"How much is {gone}?")
    d.absent("When is the return trip?", "What is the date of the way back?")


def find_journeys(ui: Screen, means: Means, date: str, prices: list[str]) -> Offers:
    """A search for flights or trains on a ``date``."""
    r, noun = ui.r, means.noun
    start, goal = distinct(r, town, 2)
    count = r.randint(1, 6)
    entries = [
        ("From", start, (f"Where does the {noun} start?", "Where is the trip from?", "From which city does it leave?", "What is the starting point?")), ("To", goal, (f"Where does the {noun} go?", "Where is the trip to?", "What is the destination?", "To which city does it go?")),
        (r.pick(("Date", "Departure", "Outward")), date, ("On which day is the trip?", "When is the journey?", "What is the date of travel?", "What is the date of departure?")), (r.pick(("Passengers", "Travellers", "Adults")), str(count), ("How many passengers are there?", "How many people are travelling?", "For how many travellers is it?")),
    ]
    journeys = draw_journeys(r, means.flying, prices)
    shown = [journey_card(ui, means, journey) for journey in journeys]
    cards, marks = [card for card, _ in shown], [text for _, texts in shown for text in texts]
    compare_journeys(ui, means, journeys, marks)
    names = [journey.name for journey in journeys]
    leave_journeys_open(ui, means.flying, names[0])
    return Offers(noun, entries, names, cards, marks, TRIP_FILTERS)


def compare_prices(ui: Screen, offers: Offers, prices: Prices) -> None:
    """Questions about the cheapest and the dearest offer."""
    noun, names, marks = offers.noun, offers.names, offers.marks
    if 0 <= prices.cheapest < len(names):
        ui.ask((f"Which {noun} is the cheapest?", f"What is the cheapest {noun}?", f"Which {noun} costs the least?", "Which offer has the lowest price?"), names[prices.cheapest], marks)
        ui.ask((f"How much is the cheapest {noun}?", "What is the lowest price?", f"What does the cheapest {noun} cost?"), prices.shown[prices.cheapest], marks)
    cents = prices.cents[: len(names)]
    if cents.count(max(cents)) == 1:
        ui.ask((f"Which {noun} is the most expensive?", f"What is the dearest {noun}?", f"Which {noun} costs the most?"), names[cents.index(max(cents))], marks)


def results_head(ui: Screen, offers: Offers) -> Element:
    """How many results there are, of some searches, and how they are sorted."""
    d, r, n, nouns = ui.d, ui.r, len(offers.names), f"{offers.noun}s"
    ui.ask((f"How many {nouns} are shown?", f"How many {nouns} are on the page?", "How many offers can I see?"), str(n), offers.marks)
    total = r.randint(n + 1, 900)
    count: list[Element] = []
    if r.chance(0.6):
        t = ui.text(r.pick((f"{total} results", f"{total} {nouns} found", f"Showing {n} of {total} {nouns}")), "bold")
        count = [t]
        ui.ask((f"How many {nouns} were found?", "How many results does the search have?", "How many hits are there altogether?"), str(total), t)
    else:
        d.absent(f"How many {nouns} were found?", "How many results does the search have?")
    order = r.pick(("Price", "Duration", "Departure", "Best") if offers.noun != "hotel" else ("Price", "Rating", "Distance", "Our top picks"))
    sort = ui.text(f"Sort: {order}", "small")
    ui.ask(("How are the results sorted?", "What is the list sorted by?", "By what is it sorted?"), order, sort)
    return Row([*count, Space(), sort], [*[None] * len(count), 1, None])


@kind("booking_page", 1.9)
def booking(d: Document) -> None:
    ui, r, money = Screen(d), d.r, Money(d.r)
    site, top = site_bar(ui)
    day = datetime.date(2022, 1, 1) + datetime.timedelta(days=r.randint(0, 3000))
    style = r.pick(("%d %b %Y", "%a, %d %b", "%d/%m/%Y", "%d %B", "%d.%m.%Y"))
    noun = r.pick(("flight", "flight", "train", "hotel", "hotel"))
    prices = draw_prices(r, money)
    means = Means(noun, r.randint(0, 2))
    offers = find_hotels(ui, day, style, prices.shown) if noun == "hotel" else find_journeys(ui, means, day.strftime(style), prices.shown)
    compare_prices(ui, offers, prices)
    content: Element = Column([results_head(ui, offers), *offers.cards], gap=0.9)
    if d.shape[1] >= 640 and r.chance(0.6):
        side, _ = filters(ui, offers.filters)
        content = Row([side, content], [1, 2.8], gap=3, top=True, panes=True)
    body = Column([top, search_bar(ui, offers.entries), Panel(content, pad=(1.5, 1.2), square=True)])
    ui.show(browser(ui, f"{site.split()[0].lower()}.example/{noun}s", site, body))
