"""Letters of banks, landlords, schools, councils and companies: facts in prose, names without labels, reasons."""

# fmt: off

from training.office.document import Document
from training.office.registry import kind
from training.office.values import Dates, Money, last_name, person, town
from training.pages import values as v

# (topic, sentence, question wordings, what fills the blank); {} is the fact
REASONS = (
    ("the boiler in the cellar has to be replaced", "the boiler has to be replaced"),
    ("of a fault in the payment system", "a fault in the payment system"),
    ("your last payment did not reach us", "the last payment did not arrive"),
    ("the building will be painted this summer", "the building will be painted"),
    ("our office is moving to a larger building", "the office is moving to a larger building"),
    ("the price of energy has gone up", "the price of energy has gone up"),
    ("two of our teachers have fallen ill", "two teachers have fallen ill"),
    ("the bridge on the main road is closed", "the bridge is closed"),
)
SENDERS = (
    ("bank", ("Savings Bank", "Credit Union", "National Bank", "Private Bank")),
    ("school", ("Primary School", "Grammar School", "College", "Music School")),
    ("council", ("City Council", "Town Hall", "Tax Office", "County Council")),
    ("insurer", ("Insurance", "Mutual", "Assurance", "Health Fund")),
    ("landlord", ("Housing", "Property Management", "Estates", "Homes")),
)


@kind("letter", 4.0)
def letter(d: Document) -> None:
    r, dates, money = d.r, Dates(d.r), Money(d.r)
    sort, endings = r.pick(SENDERS)
    firm = f"{r.pick((town(r), last_name(r), v.name_word(r)))} {r.pick(endings)}"
    reader, writer = person(r), person(r)
    job = r.pick(("Branch Manager", "Head of Customer Service", "Head Teacher", "Clerk", "Account Manager", "Director"))
    day = dates.date()
    top = d.heading(firm, 1)
    d.line(f"{v.street(r)}, {town(r)}", small=True)
    d.gap()
    street, city = v.street(r), town(r)
    address = d.lines(reader, street, city)
    dated = d.line(r.pick(("", f"{town(r)}, ")) + day, align=r.pick("lr"))
    reference = v.code(r)
    if r.chance(0.5):
        part = d.line(r.pick(("Our reference: ", "Ref. ", "Reference ", "Your ref: ")) + reference)
        d.ask(("What is the reference?", "Which reference is given?", "Under which reference was this written?", "What reference does the letter carry?"), reference, part)
    else:
        d.absent("What is the reference number?", "Which reference is given?")
    d.ask(("Who sent this letter?", "Which organisation is this from?", f"What is the name of the {sort}?", "Whose letterhead is it?"), firm, top)
    d.ask(("Who is the letter addressed to?", "Who is it for?", "Who received this?", "Whom was this sent to?"), reader, address[0])
    d.ask(("When was the letter written?", "What is the date of the letter?", "When was this sent?", "How is the letter dated?"), day, dated)
    d.ask((f"In which street does {reader} live?", "What is the street of the person written to?", "Which street is the letter sent to?"), street, address)
    d.about(f"A letter from {firm} to {reader}.", top, address)
    d.paragraph(r.pick((f"Dear {reader},", f"Dear {r.pick(('Mr', 'Ms'))} {reader.split()[-1]},", "Dear Sir or Madam,", f"Hello {reader.split()[0]},")))
    bodies = [_increase, _appointment, _card, _visit, _refund, _closing, _offer]
    for body in r.sample(bodies, r.randint(1, 3)):
        body(d, dates, money)
        if r.chance(0.4):
            d.paragraph(" ".join(v.sentence(r) for _ in range(r.randint(1, 2))))
    phone = v.phone(r)
    if r.chance(0.5):
        part = d.paragraph(r.pick((f"If you have any questions, please call {phone}.", f"You can reach us by telephone on {phone}.", f"Our team is happy to help you on {phone}.")))
        d.ask(("Which number can I call?", "What is the phone number?", "How can I reach them by phone?", "What number should be rung with questions?"), phone, part)
    else:
        d.absent("What is the phone number?", "Which number can I call?")
    d.gap()
    d.line(r.pick(("Yours sincerely,", "Kind regards,", "With best wishes,", "Yours faithfully,")))
    signed = d.lines(writer, job)
    d.ask(("Who signed the letter?", "Who wrote this letter?", "Who is the writer?", "Whose signature is it?"), writer, signed[0])
    d.ask((f"What is the position of {writer}?", f"What does {writer} do?", "What is the job of the person who signed?", "As what did the writer sign?"), job, signed)
    d.absent("What is the email address?", "Which email can I write to?")


def _increase(d: Document, dates: Dates, money: Money) -> None:
    r = d.r
    old = money.round(r, 300, 1500)
    new, start = old + money.round(r, 10, 200), dates.date()
    what = r.pick(("rent", "monthly fee", "annual premium", "price of your subscription"))
    why, reason = r.pick(REASONS)
    because = f"because {why}"
    part = d.paragraph(f"From {start} your {what} will rise from {money(old)} to {money(new)} {because}.")
    d.ask((f"How much is the new {what}?", f"What will the {what} be?", f"How much will I have to pay as {what}?", f"To how much does the {what} rise?"), money(new), part)
    d.ask((f"How much was the {what} before?", f"What is the old {what}?", f"From which amount does the {what} rise?"), money(old), part)
    d.ask((f"From when does the new {what} apply?", f"When does the {what} go up?", f"When will the {what} rise?", f"From which day is the {what} higher?"), start, part)
    d.ask((f"Why does the {what} go up?", f"Why will the {what} rise?", f"What is the reason for the higher {what}?", "Why is it becoming more expensive?"), reason, part)


def _appointment(d: Document, dates: Dates, money: Money) -> None:
    r = d.r
    day, time, room, who = dates.date(), dates.time(), f"room {r.randint(1, 480)}", person(r)
    what = r.pick(("meeting", "appointment", "hearing", "interview", "consultation"))
    part = d.paragraph(r.pick((
        f"We would like to invite you to a {what} with {who} on {day} at {time} in {room}.",
        f"Your {what} has been arranged for {day}. Please come to {room} at {time}, where {who} will see you.",
        f"{who} expects you for the {what} in {room} on {day}, {time}.",
    )))
    d.ask((f"When is the {what}?", f"On which day is the {what}?", f"What date was fixed for the {what}?", f"For what day was the {what} arranged?"), day, part)
    d.ask((f"At what time is the {what}?", f"What time does the {what} begin?", "When do I have to be there, at what hour?", f"At which hour is the {what}?"), time, part)
    d.ask((f"Where is the {what}?", f"Which room is the {what} in?", "Where do I have to go?", f"In which room does the {what} take place?"), room, part)
    d.ask((f"Who will I meet at the {what}?", f"Who is the {what} with?", f"Whom is the {what} with?"), who, part)


def _card(d: Document, dates: Dates, money: Money) -> None:
    r = d.r
    digits, until = f"{r.randint(1000, 9999)}", dates.date()
    part = d.paragraph(f"Your new card ending in {digits} is enclosed. Please activate it before {until}; the old one will stop working on that day.")
    d.ask(("What are the last digits of the card?", "Which digits does the card end in?", "How does the card number end?"), digits, part)
    d.ask(("By when must the card be activated?", "Until when do I have to activate the card?", "When does the old card stop working?", "What is the deadline for activating the card?"), until, part)


def _visit(d: Document, dates: Dates, money: Money) -> None:
    r = d.r
    first = r.randint(7, 15) * 60
    start, end, day = dates.time(first), dates.time(first + r.pick((60, 120, 180))), dates.date()
    who = r.pick(("engineer", "plumber", "chimney sweep", "surveyor", "electrician"))
    part = d.paragraph(f"Our {who} will visit your flat on {day} between {start} and {end}. Please make sure that somebody is at home.")
    d.ask((f"When will the {who} come?", f"On which day does the {who} visit?", f"What day is the visit of the {who}?"), day, part)
    d.ask(("Who will visit the flat?", "Who is coming to the flat?", "Which craftsman is announced?"), who, part)
    d.ask((f"Until what time might the {who} come?", f"What is the latest time of the {who}'s visit?", f"By what time will the {who} have come?"), end, part)


def _refund(d: Document, dates: Dates, money: Money) -> None:
    r = d.r
    amount, days = money(money.round(r, 5, 900)), r.pick((5, 7, 10, 14, 30))
    part = d.paragraph(f"After checking your complaint we have decided to refund {amount}. The amount will be paid into your account within {days} days.")
    d.ask(("How much will be refunded?", "What is the refund?", "How much money do I get back?", "How high is the refund?"), amount, part)
    d.ask(("How long does the refund take?", "Within how many days is the refund paid?", "How soon is the money paid back?"), f"{days} days", part)


def _closing(d: Document, dates: Dates, money: Money) -> None:
    r = d.r
    place, day = r.pick(("branch", "library", "swimming pool", "car park", "playground", "canteen")), dates.date()
    why, reason = r.pick(REASONS)
    part = d.paragraph(f"Because {why}, the {place} will stay closed until {day}. We are sorry for the trouble this causes.")
    d.ask((f"Until when is the {place} closed?", f"When does the {place} open again?", f"How long will the {place} stay closed?"), day, part)
    d.ask((f"Why is the {place} closed?", f"What is the reason that the {place} is closed?", f"For what reason does the {place} stay closed?"), reason, part)
    d.ask(("What will be closed?", "Which place is closed?", "What stays closed?"), f"the {place}", part)


def _offer(d: Document, dates: Dates, money: Money) -> None:
    r = d.r
    rate, until = f"{r.randint(0, 9)}.{r.randint(0, 99):02d} %".replace(".", r.pick((".", ","))), dates.date()
    part = d.paragraph(f"As a thank-you for your loyalty we offer you an interest rate of {rate} on new savings. This offer is valid until {until}.")
    d.ask(("What interest rate is offered?", "How high is the interest rate?", "What rate do I get on savings?", "At which rate are new savings paid?"), rate, part)
    d.ask(("Until when is the offer valid?", "When does the offer end?", "How long can I accept the offer?"), until, part)
