"""Invitations, posters, certificates, business cards, door signs and sticky notes: names and facts without labels."""

# fmt: off

from training.office.document import Document
from training.office.registry import kind
from training.office.sentences import EVENTS, INSTRUMENTS
from training.office.values import Dates, Money, first_name, people, person, town
from training.pages import values as v

PARTIES = ("wedding", "birthday party", "housewarming", "summer party", "retirement dinner", "christening", "silver wedding", "garden party", "farewell drinks", "opening of the exhibition")


@kind("invitation", 2.5)
def invitation(d: Document) -> None:
    r, dates = d.r, Dates(d.r)
    hosts, what, time, (until, day) = people(r, 2), r.pick(PARTIES), dates.time(), dates.period(60)
    place, city = f"{v.name_word(r)} {r.pick(v.VENUES)}", town(r)
    both = f"{hosts[0]} and {hosts[1]}" if r.chance(0.5) else hosts[0]
    align = r.pick("lccc")
    d.gap()
    d.heading(r.pick(("Invitation", "You are invited!", "Save the date", "Come and celebrate with us", both, what.title())), align=align)
    guest = person(r) if r.chance(0.4) else ""
    if guest:
        part = d.line(r.pick((f"Dear {guest},", f"for {guest}", guest)), align=align)
        d.ask(("Who is invited?", "For whom is the invitation?", "To whom is the invitation addressed?", "Who gets the invitation?"), guest, part)
    if r.chance(0.5):
        body = d.paragraph(r.pick((f"{both} would like to invite you to their {what} on {day} at {time} in the {place}, {city}.", f"Please join us for the {what} of {both}. We meet at {time} on {day} at the {place} in {city}.")))
        a = b = c = e = f = body
    else:
        a = d.line(both, align=align, bold=True)
        d.line(r.pick(("cordially invite you to the", "request the pleasure of your company at the", "invite you to their", "look forward to seeing you at the")), align=align, small=True)
        b = d.line(what, align=align)
        c = e = d.line(r.pick((f"{day}, {time}", f"{day} at {time}", f"{time}  |  {day}")), align=align)
        f = d.lines(place, city, align=align)
    d.ask(("Who is inviting?", "Who sends the invitation?", "Who are the hosts?", "Whose invitation is it?", "Who gives the party?"), both, a)
    d.ask(("What is the invitation for?", "What is being celebrated?", "What is the occasion?", "What kind of party is it?"), what, b)
    d.ask(("On which day is the party?", "When is the celebration?", "What is the date of the event?", "On what day am I invited?"), day, c)
    d.ask(("At what time does it start?", "What time should guests come?", "When does the celebration begin, at what time?", "What time am I expected?"), time, e)
    d.ask(("Where does the celebration take place?", "Where is the party?", "At which place is it?", "Where do I have to go?"), place, f)
    d.ask(("In which town is the party?", "In which city is it held?", "Which town do I travel to?"), city, f)
    d.about(f"{both} {'invite' if ' and ' in both else 'invites'} to a {what} on {day}.", a, b, c)
    if r.chance(0.6):
        contact, phone = r.pick((hosts[0], first_name(r))), v.phone(r)
        part = d.paragraph(r.pick((f"Please reply by {until} to {contact}, {phone}.", f"RSVP by {until}: {contact} ({phone})", f"R.S.V.P. {until}   {contact}   {phone}")))
        d.ask(("By when should I reply?", "Until when must guests answer?", "What is the last day to reply?", "By which date do they want an answer?"), until, part)
        d.ask(("To whom should the reply go?", "Whom do I tell that I am coming?", "Who takes the replies?"), contact, part)
        d.ask(("Which number should I call to reply?", "What is the phone number for replies?", "How can I reply by phone?"), phone, part)
    else:
        d.absent("By when should I reply?", "Until when must guests answer?")
    if r.chance(0.4):
        wear = r.pick(("black tie", "something blue", "casual", "festive", "walking shoes", "summer dress"))
        part = d.line(f"{r.pick(('Dress code: ', 'Please wear ', ''))}{wear}", align=align, small=True)
        d.ask(("What should guests wear?", "What is the dress code?", "Which clothes are asked for?"), wear, part)
    else:
        d.absent("What should guests wear?", "What is the dress code?")


@kind("poster", 2.5)
def poster(d: Document) -> None:
    r, dates, money = d.r, Dates(d.r), Money(d.r)
    event, star, day, time = r.pick(EVENTS), person(r), dates.date(), dates.time()
    place, city, price = f"{v.name_word(r)} {r.pick(v.VENUES)}", town(r), money(money.round(r, 2, 80))
    align, parts = r.pick("cccl"), {}
    shown = [("event", event.upper() if r.chance(0.5) else event.title()), ("star", r.pick((star, f"with {star}", f"{star}, {r.pick(INSTRUMENTS)}"))), ("day", f"{day}, {time}" if r.chance(0.5) else day), ("place", place), ("city", city), ("price", r.pick((price, f"Admission {price}", f"Tickets from {price}", f"Entry: {price}")))]
    if r.chance(0.3):
        r.shuffle(shown)
    separate = shown[[k for k, _ in shown].index("day")][1] == day
    if separate:
        shown.insert(3, ("time", r.pick((time, f"Doors {time}", f"starts {time}"))))
    for i, (key, text) in enumerate(shown):
        if key in ("price", "star") and r.chance(0.25):
            continue
        big = key == "event" or r.chance(0.35)
        parts[key] = d.heading(text, 1 if big else 2, align) if i < 5 else d.line(text, align)
        if r.chance(0.4):
            d.gap()
    d.ask(("What is the poster for?", "Which event is announced?", "What is being advertised?", "What is on?", "What kind of event is it?"), shown[[k for k, _ in shown].index("event")][1], parts["event"])
    if "star" in parts:
        d.ask(("Who is performing?", "Who will be there?", "Whose name is on the poster?", "Which person is announced?"), star, parts["star"])
    else:
        d.absent("Who is performing?", "Whose name is on the poster?")
    d.ask(("When is it?", "On which day does it take place?", "What is the date?", "What day is the event?"), day, parts["day"])
    d.ask(("At what time does it begin?", "What time does it start?", "When do I have to be there, at what time?"), time, parts["time" if separate else "day"])
    d.ask(("Where is it?", "What is the venue?", "Where does it take place?", "Which place is it at?"), place, parts["place"])
    d.ask(("In which town is it?", "In what city is the event?", "Which city do I have to go to?"), city, parts["city"])
    if "price" in parts:
        d.ask(("How much is the entry?", "What does it cost to get in?", "How much is a ticket?", "What is the price?"), price, parts["price"])
    else:
        d.absent("How much is the entry?", "What does it cost to get in?", "How much is a ticket?")
    d.absent("Who organises the event?", "Who is the organiser?")


@kind("certificate", 2.0)
def certificate(d: Document) -> None:
    r, dates = d.r, Dates(d.r)
    name, school, course, day = person(r), r.pick((f"{v.name_word(r)} Academy", f"{town(r)} College", f"{v.name_word(r)} Institute", f"{v.company(r)}")), r.pick(("First Aid", "Bookkeeping", "Advanced Welding", "Project Management", "Food Safety", "Data Protection", "Public Speaking", "Forklift Driving", "Swimming, Level 2", "French B1")), dates.date()
    signer, grade, hours = person(r), r.pick(("with distinction", "with merit", "passed", "excellent", "very good")), r.randint(4, 200)
    align = r.pick("cccl")
    d.line(school, align=align, small=r.chance(0.5)) if (above := r.chance(0.6)) else None
    head = d.blocks[-1].parts[0] if above else None
    d.heading(r.pick(("Certificate", "CERTIFICATE OF COMPLETION", "Diploma", "Award", "Certificate of Attendance")), align=align)
    if r.chance(0.5):
        a = d.line(r.pick(("This is to certify that", "awarded to", "We hereby confirm that", "presented to")), align=align, small=True)
        a = d.heading(name, r.pick((1, 2)), align)
        b = d.paragraph(f"has completed the course {course} ({hours} hours) {grade if ' ' in grade and grade.startswith('with') else 'with the result: ' + grade}.")
    else:
        a = b = d.paragraph(f"{name} took part in the course {course} of {hours} hours. The final examination was passed; result: {grade}.")
    d.ask(("Whose certificate is it?", "To whom was it awarded?", "Who completed the course?", "Who received the certificate?", "What is the name of the holder?"), name, a)
    d.ask(("Which course was completed?", "What was learned?", "In what is the certificate?", "What is the course called?"), course, b)
    d.ask(("How long was the course?", "How many hours did the course have?", "How many hours did it take?"), f"{hours} hours", b)
    d.ask(("What was the result?", "How well was it passed?", "Which grade was given?", "What is the grade?"), grade, b)
    if head is not None:
        d.ask(("Who issued the certificate?", "Which institution is it from?", "Where was the course taken?", "What is the name of the school?"), school, head)
    else:
        d.absent("Who issued the certificate?", "Which institution is it from?")
    d.gap()
    part = d.lines(*r.pick(((f"{town(r)}, {day}", signer), (day, signer), (f"{signer}, {day}",))), align=r.pick("lcr"))
    d.ask(("Who signed the certificate?", "Whose signature is on it?", "By whom is it signed?"), signer, part)
    d.ask(("When was it issued?", "What is the date of the certificate?", "On which day was it signed?"), day, part)
    d.about(f"A certificate for {name} about the course {course}.", a, b)
    d.absent("Until when is the certificate valid?", "When does the certificate expire?")


def _position(r: v.Rng) -> str:
    """One heads a department, and is a senior or a junior of a profession."""
    rank = r.pick(("Senior ", "Head of ", "Junior ", "", ""))
    many = {"Head of ": v.DEPARTMENTS, "": (*v.jobs(), *v.DEPARTMENTS)}.get(rank, v.jobs())
    return rank + r.pick(many)


@kind("business_card", 2.0)
def business_card(d: Document) -> None:
    r = d.r
    name, firm, job = person(r), v.company(r), _position(r)
    phone, mail, web, street, city = v.phone(r), v.email(r), v.website(r), v.street(r), town(r)
    align, rows = r.pick("llcr"), [(name, 1), (job, 2), (firm, 2)]
    if r.chance(0.4):
        rows = [rows[2], rows[0], rows[1]]
    box = d.framed() if r.chance(0.5) else d
    parts = {text: box.heading(text, level, align) if level == 1 or r.chance(0.3) else box.line(text, align) for text, level in rows}
    box.gap()
    lead = r.chance(0.4)
    small = [(phone, "T "), (mail, "E "), (web, ""), (f"{street}, {city}", "")]
    small = r.sample(small, r.randint(2, 4))
    for text, mark in small:
        parts[text] = box.line((mark if lead else "") + text, align, small=True)
    d.ask(("Whose card is it?", "What is the name of the person?", "Who is on the card?", "What name is on the card?", "Who gave me this card?"), name, parts[name])
    d.ask((f"What is the job of {name}?", "What does the person do?", "What is the position?", f"As what does {name} work?"), job, parts[job])
    d.ask((f"Where does {name} work?", "Which company is it?", "For which firm does the person work?", "What is the employer?"), firm, parts[firm])
    for key, value, ways in ((phone, phone, ("What is the phone number?", f"How can I call {name}?", "Which number can I ring?", "Under which number is the person reached?")), (mail, mail, ("What is the email address?", f"Where can I write to {name}?", "How can I send an email?")), (web, web, ("What is the website?", "Which web address is given?", "Where are they on the web?")), (f"{street}, {city}", street, ("What is the street?", "In which street is the office?", "What is the address?"))):
        if key in parts:
            d.ask(ways, value, parts[key])
        else:
            d.absent(*ways)


@kind("sticky_note", 3.0)
def sticky_note(d: Document) -> None:
    """Handwritten notes: a message, a call to return, things to do."""
    r, dates, money = d.r, Dates(d.r), Money(d.r)
    to, by, other = people(r, 3)
    to, by = to.split()[0], by.split()[0]
    time, amount, day = dates.time(), money(money.round(r, 2, 200)), r.pick(v.WEEKDAYS)
    what = r.pick(("the keys are at reception", "the printer is out of paper", "the car is in the garage until Friday", "lunch is in the fridge", "the plumber was here", "the parcel is at the neighbours", "the report is on your desk", "the window does not close"))
    texts: list[tuple[str, list]] = [
        (f"{other} called at {time}, please call back {v.phone(r)}", [(("Who called?", "Who phoned?", "Who wants to be called back?", "Whom should be called back?"), other), (("When did the call come?", "At what time was the call?", "What time was the phone call?"), time)]),
        (f"{what}!", [(("What should be known?", "What does the note say?", "What is the message?", "What is the note about?"), what)]),
        (f"meet {other} on {day}, {time}", [(("Who is to be met?", "Whom is the meeting with?", "Who do they meet?"), other), (("On which day is the meeting?", "What day do they meet?", "When do they meet?"), day)]),
        (f"owe {other} {amount}", [(("How much money is owed?", "What sum is owed?", "How much has to be paid back?"), amount), (("To whom is money owed?", "Who gets the money?", "Who should be paid back?"), other)]),
        (f"back at {time}", [(("When will the writer be back?", "At what time does the writer come back?", "When is somebody back?"), time)]),
        (f"room booked for {day}: no. {r.randint(2, 99)}", [(("For which day is the room booked?", "On which day do they have the room?"), day)]),
    ]
    start = d.written(r.pick((f"{to},", f"Hi {to}!", f"For {to}", f"{to} -")))
    d.ask(("Who is the note for?", "To whom is the note written?", "Who should read the note?", "For whom is it?"), to, start)
    for text, asks in r.sample(texts, r.randint(1, 3)):
        if {q for _, a in asks for q in (a,)} & {a.answer for a in d.asks}:
            continue
        part = d.written(text)
        for questions, answer in asks:
            d.ask(questions, answer, part)
    if r.chance(0.7):
        part = d.written(r.pick((f"- {by}", by, f"Thanks, {by}", f"xx {by}")))
        d.ask(("Who wrote the note?", "From whom is the note?", "Who left the note?", "Who signed the note?"), by, part)
    else:
        d.absent("Who wrote the note?", "Who left the note?")
    d.absent("What is the date of the note?", "On which date was the note written?")


@kind("sign", 1.5)
def sign(d: Document) -> None:
    """Door plates and directories: names, rooms, hours."""
    r = d.r
    align = r.pick("llc")
    names, jobs = people(r, r.randint(2, 7)), r.sample(v.DEPARTMENTS, 7)
    rooms = [str(n) for n in r.sample(range(101, 499), 7)]
    d.heading(r.pick(("Directory", "Welcome", f"{r.randint(1, 9)}th floor", "Building B", "Offices", v.company(r))), align=align)
    order = r.randint(0, 2)
    rows = [((room, name, job), (name, job, room), (job, name, room))[order] for name, job, room in zip(names, jobs, rooms, strict=False)]
    if r.chance(0.6):
        parts = d.table([], rows)
    else:
        parts = d.lines(*(r.pick(("  ", " \u2013 ", ", ")).join(row) for row in rows), align=align)
    for name, job, room, part in zip(names, jobs, rooms, parts, strict=False):
        d.ask((f"In which room is {name}?", f"Where is {name}?", f"Where do I find {name}?", f"Which room does {name} have?", f"What is the room of {name}?"), room, part)
        d.ask((f"Who is in room {room}?", f"Who sits in room {room}?", f"Whose room is {room}?", f"Which person has room {room}?"), name, part)
        d.ask((f"Which department is {name} in?", f"What does {name} do?", f"Where does {name} belong?"), job, part)
        d.ask((f"Who works in {job}?", f"Who is responsible for {job}?", f"Who do I see for {job}?"), name, part)
    d.ask(("How many people are listed?", "How many names are there?", "How many offices are listed?"), str(len(rows)), parts)
    d.absent(f"In which room is {person(r)}?", f"Who is in room {r.randint(501, 900)}?")
