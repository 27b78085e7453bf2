"""Results of a search for flights, trains or hotels: times, prices, filters."""

# fmt: off

import datetime

from training.office.document import Document
from training.office.registry import kind
from training.office.screen import Column, Element, Icon, Panel, Photo, Row, Screen, Space, Text
from training.office.values import Money, distinct, town
from training.office.windows import browser
from training.pages import values as v


def span(minutes: int, r: int) -> str:
    return (f"{minutes // 60} h {minutes % 60:02d} min", f"{minutes // 60}h {minutes % 60:02d}m", f"{minutes // 60}:{minutes % 60:02d} h")[r]


def hm(minutes: int) -> str:
    return f"{minutes // 60 % 24:02d}:{minutes % 60:02d}"


def search_bar(ui: Screen, entries: list[tuple[str, str, tuple[str, ...]]]) -> Element:
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


@kind("booking_page", 1.9)
def booking(d: Document) -> None:
    ui, r, money = Screen(d), d.r, Money(d.r)
    site = f"{v.name_word(r)}{r.pick(('Travel', ' Trips', 'Fly', ' Rail', 'go', ' Booking', 'Stay'))}"
    logo = ui.text(site, "bold")
    ui.ask(("Which site is it?", "What is the name of the website?", "On which travel site is this?"), site, logo)
    links = ui.texts(r.sample(("Flights", "Hotels", "Cars", "Trains", "My trips", "Help", "Sign in"), 3 if ui.wide else 1), "small")
    top = Panel(Row([logo, Space(), *links], [None, 1, *[None] * len(links)], gap=3), 0, dark=r.pick((0, 225, 190)), pad=(2, 1), square=True)
    day = datetime.date(2022, 1, 1) + datetime.timedelta(days=r.randint(0, 3000))
    style = r.pick(("%d %b %Y", "%a, %d %b", "%d/%m/%Y", "%d %B", "%d.%m.%Y"))
    kind_ = r.pick(("flight", "flight", "train", "hotel", "hotel"))
    n = r.randint(3, 6)
    prices = [money.round(r, 25, 700) for _ in range(n)]
    if r.chance(0.6):
        prices.sort()
    shown_price = [money(p) for p in prices]
    cards: list[Element] = []
    marks: list[Text] = []
    fmt = r.randint(0, 2)
    best = prices.index(min(prices)) if prices.count(min(prices)) == 1 else -1
    if kind_ == "hotel":
        place = town(r)
        nights, guests = r.randint(1, 14), r.randint(1, 5)
        out = day + datetime.timedelta(days=nights)
        entries = [
            ("Destination", place, ("Where is the hotel searched?", "Which city was searched for?", "In which town are the hotels?", "What is the destination?")), ("Check-in", day.strftime(style), ("When is check-in?", "On which day does the stay begin?", "What is the check-in date?", "From when on is the room wanted?")),
            ("Check-out", out.strftime(style), ("When is check-out?", "On which day does the stay end?", "What is the check-out date?")), ("Guests", str(guests), ("For how many guests is it?", "How many guests are there?", "How many people are travelling?")),
        ]
        names = distinct(r, lambda r: r.pick((f"Hotel {v.name_word(r)}", f"{v.name_word(r)} Inn", f"Villa {v.name_word(r)}", f"{v.name_word(r)} Palace", f"Pension {v.last_name(r)}", f"{v.name_word(r)} Hostel", f"Grand {v.name_word(r)}")), n)
        n = len(names)
        prices, shown_price = prices[:n], shown_price[:n]
        scores, far, reviews = [r.randint(55, 98) / 10 for _ in names], r.sample(range(1, 90), n), [r.randint(8, 4000) for _ in names]
        extras = ("Breakfast included", "Free cancellation", "No prepayment", "Pool", "Free parking", "Pets allowed", "Only 2 rooms left", "Sea view")
        given = [r.sample(extras, r.randint(0, 2)) for _ in names]
        per = r.pick(("per night", "for the stay", f"{nights} nights" if nights > 1 else "1 night"))
        for i, name in enumerate(names):
            a, p, q = ui.text(name, "bold", wrap=True), ui.text(shown_price[i], "bold", align="r"), ui.text(per, "small", align="r", grey=True)
            s, c, w = ui.text(str(scores[i]), "bold"), ui.text(f"{reviews[i]} reviews", "small"), ui.text(f"{far[i] / 10} km from the centre", "small")
            e = [ui.text(x, "small") for x in given[i]]
            marks += [a, p, s, w]
            under: list[Element] = [a, Row([Panel(s, dark=200, pad=(0.8, 0.1)), c], gap=1), w, *e]
            cards.append(Panel(Row([Photo(12, 1.0), Column(under, gap=0.3), Column([p, q])], [None, 1, None], gap=2), 0, 80, (1, 0.8)))
            ui.ask((f"How much is {name}?", f"What does {name} cost?", f"What is the price of {name}?", f"{name}: price?", f"How much would I pay at {name}?"), shown_price[i], a, p)
            ui.ask((f"How is {name} rated?", f"What is the rating of {name}?", f"Which score does {name} have?", f"What grade do guests give {name}?"), str(scores[i]), a, s)
            ui.ask((f"How far is {name} from the centre?", f"How far from the centre is {name}?", f"What is the distance of {name} from the centre?"), f"{far[i] / 10} km", a, w)
            ui.ask((f"How many reviews does {name} have?", f"How many guests rated {name}?"), str(reviews[i]), a, c)
        if scores.count(max(scores)) == 1:
            ui.ask(("Which hotel is rated best?", "Which hotel has the best rating?", "Which place do guests like most?"), names[scores.index(max(scores))], marks)
        ui.ask(("Which hotel is nearest to the centre?", "Which hotel is closest to the centre?", "Which one is most central?"), names[far.index(min(far))], marks)
        for extra in extras:
            has = [name for name, g in zip(names, given, strict=True) if extra in g]
            if len(has) == 1:
                ui.ask((f'Which hotel has "{extra}"?', f"Which hotel offers {extra.lower()}?" if not extra.startswith("Only") else "Where are only 2 rooms left?"), has[0], marks)
        if per == "per night":
            ui.ask(("Is the price per night or for the whole stay?", "Per night or per stay: what are the prices for?"), "per night", marks)
        what, whats = "hotel", "hotels"
        d.absent(f"What is the phone number of {names[0]}?", f"How many rooms does {names[0]} have?", f"What is the address of {names[0]}?")
        gone = f"Hotel {v.name_word(r)}"
        d.absent(f"How much is {gone}?", f"What is the rating of {gone}?")
        side_names = ("Breakfast included", "Free cancellation", "4 stars", "5 stars", "Pool", "Free Wi-Fi", "Parking", "Family rooms", "Airport shuttle", "Sauna")
    else:
        start, goal = distinct(r, town, 2)
        people_ = r.randint(1, 6)
        entries = [
            ("From", start, (f"Where does the {kind_} start?", "Where is the trip from?", "From which city does it leave?", "What is the starting point?")), ("To", goal, (f"Where does the {kind_} go?", "Where is the trip to?", "What is the destination?", "To which city does it go?")),
            (r.pick(("Date", "Departure", "Outward")), day.strftime(style), ("On which day is the trip?", "When is the journey?", "What is the date of travel?", "What is the date of departure?")), (r.pick(("Passengers", "Travellers", "Adults")), str(people_), ("How many passengers are there?", "How many people are travelling?", "For how many travellers is it?")),
        ]
        flying = kind_ == "flight"
        firms = distinct(r, lambda r: f"{v.name_word(r)} {r.pick(('Air', 'Airlines', 'Airways', 'Jet'))}" if flying else f"{r.pick(('ICE', 'IC', 'RE', 'EC', 'TGV', 'NJ', 'Express'))} {r.randint(10, 999)}", n)
        n = len(firms)
        prices, shown_price = prices[:n], shown_price[:n]
        starts = sorted(5 * k for k in r.sample(range(60, 264), n))
        lengths = r.sample(range(55, 720), n)
        stops = [r.choices((0, 1, 2), (4, 4, 2))[0] for _ in firms]
        word = "stop" if flying else "change"
        for i, firm in enumerate(firms):
            a, p = ui.text(firm, "bold"), ui.text(shown_price[i], "bold", align="r")
            b, c = ui.text(f"{hm(starts[i])} {r.pick(('-', chr(0x2013)))} {hm(starts[i] + lengths[i])}"), ui.text(span(lengths[i], fmt), "small")
            e = ui.text(("nonstop" if flying else "direct") if not stops[i] else f"{stops[i]} {word}{'s' if stops[i] > 1 else ''}", "small")
            marks += [a, p, b, c, e]
            more: list[Element] = []
            if not flying and r.chance(0.6):
                track = ui.text(f"Platform {r.randint(1, 24)}", "small")
                more = [track]
                ui.ask((f"From which platform does {firm} leave?", f"What is the platform of {firm}?", f"Where does {firm} leave?"), track.text.split()[1], a, track)
            elif flying and r.chance(0.4):
                number = ui.text(f"{firm[:2].upper()} {r.randint(100, 9999)}", "small", grey=True)
                more = [number]
                ui.ask((f"What is the flight number of {firm}?", f"Which flight number does {firm} have?"), number.text, a, number)
            cards.append(Panel(Row([Column([a, *more]), Column([b, Row([c, e], gap=1.5)]), p], [1.2, 1.6, None], gap=2), 0, 80, (1, 0.8)))
            ui.ask((f"How much is {firm}?", f"What does {firm} cost?", f"What is the price of the {kind_} with {firm}?" if flying else f"What is the price of {firm}?", f"{firm}: price?"), shown_price[i], a, p)
            ui.ask((f"When does {firm} leave?", f"At what time does {firm} depart?", f"What is the departure time of {firm}?", f"When does the {kind_} with {firm} start?" if flying else f"When does the train {firm} start?"), hm(starts[i]), a, b)
            ui.ask((f"When does {firm} arrive?", f"At what time does {firm} get in?", f"What is the arrival time of {firm}?"), hm(starts[i] + lengths[i]), a, b)
            ui.ask((f"How long does {firm} take?", f"How long is the journey with {firm}?", f"What is the duration with {firm}?"), span(lengths[i], fmt), a, c)
            ui.ask((f"How many {word}s does {firm} have?", f"How often does one have to change with {firm}?" if not flying else f"How many times does {firm} stop on the way?"), str(stops[i]), a, e)
            ui.ask((f"Which {kind_} leaves at {hm(starts[i])}?", f"What departs at {hm(starts[i])}?"), firm, a, b)
        if lengths.count(min(lengths)) == 1:
            ui.ask((f"Which {kind_} is the fastest?", f"Which {kind_} takes the least time?", "What is the quickest way?"), firms[lengths.index(min(lengths))], marks)
            ui.ask((f"Which {kind_} takes longest?", f"Which {kind_} is the slowest?"), firms[lengths.index(max(lengths))], marks)
        ui.ask((f"Which {kind_} leaves first?", f"Which is the earliest {kind_}?"), firms[0], marks)
        ui.ask((f"Which {kind_} leaves last?", f"Which is the latest {kind_}?"), firms[-1], marks)
        if stops.count(0) == 1:
            ui.ask((f"Which {kind_} is {'nonstop' if flying else 'direct'}?", f"With which {kind_} do I not have to change?"), firms[stops.index(0)], marks)
        names, what, whats = firms, kind_, f"{kind_}s"
        d.absent(*((f"From which gate does {firms[0]} leave?", f"How much luggage is allowed with {firms[0]}?") if flying else (f"How many seats are free in {firms[0]}?", f"Is there a restaurant car in {firms[0]}? Which one?")))
        gone = f"{v.name_word(r)} {'Air' if flying else 'Express'}"
        d.absent(f"When does {gone} leave?", f"How much is {gone}?")
        d.absent("When is the return trip?", "What is the date of the way back?")
        side_names = ("Nonstop", "1 stop", "Morning", "Evening", "Window seat", "Checked bag", "Refundable", "First class", "Bicycle", "Quiet zone")
    if best >= 0 and best < n:
        low = min(prices)
        if prices.count(low) == 1:
            ui.ask((f"Which {what} is the cheapest?", f"What is the cheapest {what}?", f"Which {what} costs the least?", "Which offer has the lowest price?"), names[prices.index(low)], marks)
            ui.ask((f"How much is the cheapest {what}?", "What is the lowest price?", f"What does the cheapest {what} cost?"), shown_price[prices.index(low)], marks)
    if prices.count(max(prices)) == 1:
        ui.ask((f"Which {what} is the most expensive?", f"What is the dearest {what}?", f"Which {what} costs the most?"), names[prices.index(max(prices))], marks)
    ui.ask((f"How many {whats} are shown?", f"How many {whats} are on the page?", "How many offers can I see?"), str(n), marks)
    total = r.randint(n + 1, 900)
    head: list[Element] = []
    if r.chance(0.6):
        t = ui.text(r.pick((f"{total} results", f"{total} {whats} found", f"Showing {n} of {total} {whats}")), "bold")
        head.append(t)
        ui.ask((f"How many {whats} were found?", "How many results does the search have?", "How many hits are there altogether?"), str(total), t)
    else:
        d.absent(f"How many {whats} were found?", "How many results does the search have?")
    order = r.pick(("Price", "Duration", "Departure", "Best") if what != "hotel" else ("Price", "Rating", "Distance", "Our top picks"))
    sort = ui.text(f"Sort: {order}", "small")
    ui.ask(("How are the results sorted?", "What is the list sorted by?", "By what is it sorted?"), order, sort)
    head += [Space(), sort]
    results: Element = Column([Row(head, [None, 1, None] if len(head) == 3 else [1, None]), *cards], gap=0.9)
    content: Element = results
    if d.shape[1] >= 640 and r.chance(0.6):
        side, _ = filters(ui, side_names)
        content = Row([side, results], [1, 2.8], gap=3, top=True, panes=True)
    body = Column([top, search_bar(ui, entries), Panel(content, pad=(1.5, 1.2), square=True)])
    ui.show(browser(ui, f"{site.split()[0].lower()}.example/{whats}", site, body))
