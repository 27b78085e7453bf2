"""Badges, tickets, labels: few words without labels, set large and small."""

# fmt: off

from training.office.document import Document
from training.office.registry import kind
from training.office.values import Dates, Money, last_name, person, town
from training.pages import values as v

EVENTS = ("Conference", "Summit", "Congress", "Trade Fair", "Symposium", "Workshop", "Days", "Forum", "Meetup")
ROLES = ("Speaker", "Visitor", "Exhibitor", "Staff", "Press", "Guest", "Volunteer", "Organiser", "Delegate", "Student")


@kind("badge", 1.5)
def badge(d: Document) -> None:
    r, dates = d.r, Dates(d.r)
    event = f"{r.pick((v.name_word(r), 'European', 'International'))} {r.pick(EVENTS)} {r.randint(2016, 2031)}"
    name, firm, role = person(r), v.company(r), r.pick(ROLES)
    texts = [("event", event), ("name", name), ("firm", firm), ("role", role)]
    extra = [("day", dates.date()), ("town", town(r)), ("hall", f"Hall {r.randint(1, 20)}"), ("seat", f"Table {r.randint(1, 60)}")]
    if r.chance(0.5):
        r.shuffle(texts)
    texts += r.sample(extra, r.randint(0, 3))
    align, parts = r.pick("lccr"), {}
    box = d.framed() if r.chance(0.4) else d
    for i, (key, text) in enumerate(texts):
        show = text.upper() if key == "role" and r.chance(0.4) else text
        parts[key] = box.heading(show, 1 if key == "name" or r.chance(0.2) else 2, align) if i < 3 else box.line(show, align, bold=r.chance(0.3))
        if r.chance(0.4):
            box.gap()
    value = dict(texts)
    d.ask(("Whose badge is this?", "What is the name of the person?", "Who wears this badge?", "Who is this badge for?"), name, parts["name"])
    d.ask(("Which event is the badge for?", "What event is this?", "What is the event called?", "Which conference is it?"), event, parts["event"])
    d.ask((f"Where does {name} work?", f"Which company does {name} belong to?", "Which company is on the badge?", "For whom does the person work?"), firm, parts["firm"])
    d.ask((f"What is the role of {name}?", "In what capacity does the person attend?", f"As what does {name} take part?", "What kind of participant is it?"), role, parts["role"])
    questions = {"day": ("When is the event?", "What is the date of the event?"), "town": ("Where is the event?", "In which city does it take place?"), "hall": ("Which hall is it?", "In which hall is it?"), "seat": ("Which table is assigned?", "Where does the person sit?")}
    for key, asks in questions.items():
        if key in parts:
            d.ask(asks, value[key], parts[key])
        else:
            d.absent(*asks)
    if r.chance(0.3):
        first = name.split()[0]
        d.ask(("What is the first name?", "What is the person's first name?"), first, parts["name"])


@kind("ticket", 1.5)
def ticket(d: Document) -> None:
    r, dates, money = d.r, Dates(d.r), Money(d.r)
    day, time, price, code = dates.date(), dates.time(), money(money.round(r, 4, 240)), v.code(r)
    if r.chance(0.5):  # a journey
        a, b = r.sample(v.CITIES, 2)
        d.heading(r.pick(("Train Ticket", "Boarding Pass", "e-Ticket", "Bus Ticket", "Ferry Ticket")))
        link = r.pick((f"{a} - {b}", f"{a} to {b}", f"{a} \u2013 {b}", f"{a} > {b}"))
        route = d.line(link, bold=True)
        name = person(r)
        who = d.line(name)
        coach, seat = str(r.randint(1, 30)), f"{r.randint(1, 99)}{r.pick(('', 'A', 'C', 'F'))}"
        places = d.fields([(r.pick(("Coach", "Car", "Carriage")), coach), (r.pick(("Seat", "Place")), seat), (r.pick(("Dep", "Departure", "Departs")), time), ("Date", day)])
        d.ask(("Where does the journey start?", "From where does it go?", "What is the place of departure?", "Where do I get on?"), a, route)
        d.ask(("Where does the journey go?", "What is the destination?", "Where does it arrive?", "Where do I get off?"), b, route)
        d.ask(("Who is travelling?", "What is the name of the passenger?", "In whose name is the ticket?", "Who is the passenger?"), name, who)
        d.ask(("Which seat is reserved?", "Where do I sit?", "What is the seat number?", "Which seat do I have?"), seat, places[1])
        d.ask(("Which coach is it?", "In which carriage is the seat?", "What is the number of the coach?"), coach, places[0])
        d.ask(("When does it leave?", "What time is the departure?", "At what time does the journey begin?", "When do I have to leave?"), time, places[2])
        d.ask(("On which day is the journey?", "What is the date of travel?", "When is the trip?"), day, places[3])
        d.absent("Which class is it?", "In which class is the seat?")
    else:
        show, venue = f"{v.phrase(r, 1, 3).title()}", f"{v.name_word(r)} {r.pick(v.VENUES)}"
        top = d.heading(show)
        where = d.line(venue, bold=r.chance(0.5))
        when = d.line(r.pick((f"{day}, {time}", f"{day} {time}", f"{day}   Doors open {time}")))
        row, seat = r.randint(1, 40), r.randint(1, 60)
        places = d.line(r.pick((f"Row {row} Seat {seat}", f"Row: {row}  Seat: {seat}", f"Stalls  Row {row}  No. {seat}")))
        d.ask(("What is the ticket for?", "What is being shown?", "Which event is the ticket for?", "What is the show called?"), show, top)
        d.ask(("Where does it take place?", "Where is the show?", "What is the venue?", "Where do I have to go?"), venue, where)
        d.ask(("On what day is the show?", "When is it?", "What is the date of the show?"), day, when)
        d.ask(("At what time is it?", "What time does it start?", "When do the doors open, at what time?"), time, when)
        d.ask(("Which row is it?", "In which row is the seat?", "What is the row?"), str(row), places)
        d.ask(("Which seat is it?", "What is the number of the seat?", "Where in the row do I sit?"), str(seat), places)
        d.absent("Who is the passenger?", "In whose name is the ticket?")
    if r.chance(0.7):
        part = d.line(r.pick(("Price: ", "", "Total ", "Paid ")) + price)
        d.ask(("How much did the ticket cost?", "What is the price?", "How much was paid for the ticket?", "What does the ticket cost?"), price, part)
    else:
        d.absent("How much did the ticket cost?", "What is the price of the ticket?")
    part = d.line(r.pick(("Order ", "Booking code: ", "No. ", "Ticket ")) + code, small=True)
    d.ask(("What is the booking code?", "What is the number of the ticket?", "Which code is on the ticket?", "Under which code was it booked?"), code, part)


@kind("label", 1.5)
def label(d: Document) -> None:
    r, dates, money = d.r, Dates(d.r), Money(d.r)
    if r.chance(0.5):  # a parcel
        to, of, weight, code = person(r), v.company(r), f"{r.randint(0, 30)}.{r.randint(1, 9)} kg", v.code(r)
        a, b = v.street(r), v.street(r)
        city, home = town(r), town(r)
        d.heading(r.pick(("PARCEL", "EXPRESS", "Priority Mail", "PARCEL SERVICE", "Shipping Label")))
        sender = d.lines(r.pick(("From:", "Sender", "FROM")), of, a, home, small=True)
        d.rule()
        reader = d.lines(r.pick(("To:", "Ship to", "TO", "Deliver to")), to, b, city, bold=True)
        d.ask(("Who is the parcel for?", "To whom is the parcel sent?", "Who gets the parcel?", "Who is the receiver?"), to, reader[:2])
        d.ask(("Who sent the parcel?", "Who is the sender?", "From whom does the parcel come?", "Where does the parcel come from?"), of, sender[:2])
        d.ask(("In which town does the receiver live?", "Where does the parcel go?", "To which city is it sent?"), city, reader)
        d.ask(("What is the street of the receiver?", "To which street address is it delivered?"), b, reader)
        if r.chance(0.6):
            part = d.line(r.pick(("Weight: ", "", "Wt. ")) + weight)
            d.ask(("How heavy is the parcel?", "What does the parcel weigh?", "What is the weight?", "How many kilograms does it weigh?"), weight, part)
        else:
            d.absent("How heavy is the parcel?", "What is the weight?")
        part = d.line(r.pick(("Tracking no. ", "Tracking: ", "No. ")) + code, align=r.pick("lc"))
        d.ask(("What is the tracking number?", "Under which number can it be tracked?", "Which tracking number does it have?"), code, part)
        d.absent("What is in the parcel?", "What does the parcel contain?")
        return
    product, maker = f"{r.pick(v.ADJECTIVES)} {r.pick(('Honey', 'Muesli', 'Olive Oil', 'Jam', 'Shampoo', 'Coffee', 'Crackers', 'Mustard', 'Soap', 'Tea'))}", f"{last_name(r)} & {r.pick(('Sons', 'Co.', 'Daughters', 'Partners'))}"
    amount, best = f"{r.randint(1, 19) * 50} {r.pick(('g', 'ml'))}", dates.date()
    top, by = d.heading(product), d.line(r.pick(("by ", "Made by ", "")) + maker)
    inside = r.sample(("sugar", "salt", "water", "wheat flour", "rapeseed oil", "milk powder", "hazelnuts", "cocoa", "vinegar", "honey", "yeast", "soya"), r.randint(3, 6))
    listed = d.paragraph(f"Ingredients: {', '.join(inside)}.")
    d.ask(("What product is this?", "What is the product called?", "What is in the package?", "Which product is it?"), product, top)
    d.ask(("Who makes it?", "Who is the manufacturer?", "Which company makes the product?", "By whom was it made?"), maker, by)
    d.ask(("What is the first ingredient?", "Which ingredient is named first?"), inside[0], listed)
    d.ask(("How many ingredients are there?", "How many ingredients are listed?"), str(len(inside)), listed)
    d.ask(("What are the ingredients?", "What does it contain?", "What is it made of?"), ", ".join(inside), listed)
    part = d.line(r.pick(("Net weight ", "", "Contents: ", "e ")) + amount)
    d.ask(("How much is in the package?", "What is the net weight?", "How much does it hold?", "What is the amount of contents?"), amount, part)
    if r.chance(0.6):
        part = d.line(r.pick(("Best before ", "BB ", "Use by: ", "Best before end: ")) + best)
        d.ask(("Until when can it be used?", "What is the best-before date?", "When does it expire?", "How long does it keep?"), best, part)
    else:
        d.absent("When does it expire?", "What is the best-before date?")
    energy = r.randint(20, 900)
    if r.chance(0.5):
        rows = [("Energy", f"{energy} kcal"), ("Fat", f"{r.randint(0, 60)} g"), ("Sugar", f"{r.randint(0, 70)} g"), ("Protein", f"{r.randint(0, 30)} g"), ("Salt", f"{r.randint(0, 9)}.{r.randint(1, 9)} g")]
        for (name, amount), part in zip(rows, d.table(["per 100 g", ""], rows, numbers=1), strict=True):
            d.ask((f"How much {name.lower()} does it contain?", f"What is the amount of {name.lower()}?", f"How much {name.lower()} is in 100 g?"), amount, part)
    else:
        d.absent("How much fat does it contain?", "How much sugar is in 100 g?")
    if r.chance(0.5):
        price = money(money.round(r, 1, 30))
        part = d.line(price, align="r", bold=True)
        d.ask(("How much does it cost?", "What is the price?", "What do I have to pay for it?"), price, part)
    else:
        d.absent("How much does it cost?", "What is the price of the product?")
