"""Sentences that state one fact each, for letters, notices and memos."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from training.pages import values as v
from training.pages.values import Rng


@dataclass(frozen=True)
class Statement:
    """A fact of running text: ``sentences`` hold one ``{}`` where the value stands."""

    key: str
    value: Callable[[Rng], str]
    sentences: tuple[str, ...]


def _amount(r: Rng) -> str:
    return v.money(r, 6.0)


def _boxes(r: Rng) -> str:
    return str(r.randint(2, 900))


STATEMENTS: tuple[Statement, ...] = (
    Statement(
        "meeting_date",
        v.date,
        ("The meeting will take place on {}.", "Our next meeting is on {}.", "We will meet on {}."),
    ),
    Statement(
        "meeting_place",
        v.city,
        ("We will meet in {} next week.", "The meeting is held in {}.", "The meeting takes place in {}."),
    ),
    Statement("meeting_time", v.time_of_day, ("The meeting starts at {}.", "Please join the meeting at {}.")),
    Statement(
        "payment",
        v.money,
        ("We have received your payment of {}.", "Your payment of {} has arrived.", "Thank you for paying {}."),
    ),
    Statement(
        "contact",
        v.person,
        ("Please contact {} for more details.", "If you have questions, ask {}.", "Your contact is {}."),
    ),
    Statement(
        "reference", v.code, ("Your reference number is {}.", "Please quote the reference {}.", "Our reference is {}.")
    ),
    Statement(
        "box_count",
        _boxes,
        (
            "The order contains {} boxes.",
            "We have sent you {} boxes.",
            "There are {} boxes in your order.",
            "Packed in {} boxes.",
            "Boxes: {}",
            "{} boxes",
        ),
    ),
    Statement("train_time", v.time_of_day, ("The train leaves at {}.", "Your train departs at {}.")),
    Statement("office", v.city, ("The new office is in {}.", "We have moved our office to {}.")),
    Statement("phone", v.phone, ("My phone number is {}.", "You can call me at {}.", "Please call {}.")),
    Statement("email", v.email, ("Please write to {}.", "My email address is {}.", "Send your reply to {}.")),
    Statement("project", v.name_word, ("The project is called {}.", "We have named the project {}.")),
    Statement("rent", _amount, ("The rent will rise to {}.", "Your new rent is {}.")),
    Statement("password", v.word, ("The password is {}.", "Please log in with the password {}.")),
    Statement("interview", v.date, ("Your interview is on {}.", "We invite you to an interview on {}.")),
    Statement("deadline", v.date, ("Please reply by {}.", "The deadline is {}.", "We need your answer before {}.")),
    Statement("speaker", v.person, ("The speech will be given by {}.", "Our guest speaker is {}.")),
    Statement(
        "budget", _amount, ("The budget is {}.", "We have a budget of {}.", "{} may be spent on it.", "Budget: {}")
    ),
    Statement("guest_count", _boxes, ("We expect {} guests.", "There will be {} guests.")),
    Statement(
        "hotel", lambda r: f"{v.name_word(r)} Hotel", ("You will stay at the {}.", "We have booked a room at the {}.")
    ),
    Statement("flight", v.code, ("Your flight is {}.", "Please take flight {}.")),
    Statement("room", lambda r: str(r.randint(1, 900)), ("Please come to room {}.", "We have booked room {}.")),
    Statement("replacement", v.person, ("While I am away, {} will help you.", "My replacement is {}.")),
    Statement("delivery_date", v.date, ("Your order will arrive on {}.", "The goods will be delivered on {}.")),
    Statement("contract", v.code, ("Your contract number is {}.", "This is about contract {}.")),
    Statement("discount_offer", v.percent, ("We offer you a discount of {}.", "You get {} off.")),
    Statement("salary", _amount, ("Your new salary is {}.", "We can offer a salary of {}.")),
    Statement(
        "due_date",
        v.date,
        (
            "Please pay by {}.",
            "Payment is due on {}.",
            "To be paid before {}.",
            "Payable until {}.",
            "We ask for payment no later than {}.",
            "Your payment must reach us by {}.",
            "Pay before {}",
        ),
    ),
    Statement(
        "valid_until",
        v.date,
        (
            "This offer is valid until {}.",
            "Our prices hold until {}.",
            "Offer ends on {}.",
            "Valid until {}",
            "Good through {}",
        ),
    ),
    Statement("made_in", v.country, ("Made in {}.", "Made in {}", "Product of {}.", "Produced in {}.")),
    Statement(
        "work_time",
        lambda r: f"{r.randint(2, 20)} {r.pick(('weeks', 'days', 'months', 'hours'))}",
        (
            "We need {} for the work.",
            "Duration of the work: {}.",
            "The work will be done within {}.",
            "Expect {} of work.",
        ),
    ),
    Statement(
        "iban",
        lambda r: f"{v.digits(r, 4)} {v.digits(r, 4)} {v.digits(r, 4)}",
        ("Please transfer the amount to {}.", "Pay to account {}.", "Our account: {}"),
    ),
    Statement(
        "order_number", v.code, ("This delivery belongs to order {}.", "Order {}", "It is part of your order {}.")
    ),
    Statement(
        "total",
        _amount,
        (
            "The amount of {} is due.",
            "Please pay {}.",
            "You have to pay {}.",
            "The total is {}.",
            "In total: {}",
            "This makes {} in total.",
            "You owe us {}.",
            "Altogether it comes to {}.",
            "Sum: {}",
        ),
    ),
    Statement(
        "customer",
        v.person,
        (
            "For {}",
            "Delivered to {}.",
            "Prepared for {}.",
            "This was made for {}.",
            "Ordered by {}.",
            "Your customer is {}.",
            "Made out to {}.",
        ),
    ),
    Statement("dinner", v.time_of_day, ("Dinner is served at {}.", "Dinner starts at {}.")),
    Statement(
        "start_date",
        v.date,
        ("It begins on {}.", "The contract runs from {}.", "Starting on {}.", "The first day is {}.", "From {} on"),
    ),
    Statement(
        "notice",
        v.span,
        ("Notice must be given {} in advance.", "The notice period is {}.", "You can leave with a notice of {}."),
    ),
    Statement(
        "warranty",
        v.span,
        ("You have {} of warranty.", "The warranty lasts {}.", "Guaranteed for {}.", "Warranty: {}", "{} warranty"),
    ),
    Statement(
        "weight",
        lambda r: f"{r.random() * 60:.1f} {r.pick(('kg', 'lb', 'g', 't'))}",
        ("The parcel weighs {}.", "It weighs {}.", "It has a weight of {}.", "Weighing {}"),
    ),
    Statement(
        "fee",
        v.money,
        ("A fee of {} applies.", "We charge a fee of {}.", "The fee is {}.", "Each month you pay a fee of {}."),
    ),
    Statement(
        "deposit",
        _amount,
        ("A deposit of {} is required.", "We keep a deposit of {}.", "The deposit is {}.", "Leave {} as a deposit."),
    ),
    Statement("seats", _boxes, ("{} seats are left.", "There are {} seats.", "The room has {} seats.", "{} seats")),
    Statement("member_count", _boxes, ("The club has {} members.", "We are {} members now.", "{} members")),
    Statement("winner", v.person, ("The winner is {}.", "The first prize goes to {}.", "{} has won.", "Winner: {}")),
    Statement("age", lambda r: str(r.randint(3, 99)), ("My age is {}.", "I am {} years old.", "At the age of {}")),
    Statement(
        "address",
        v.street,
        ("You find us at {}.", "Our address is {}.", "We live at {}.", "Visit us at {}.", "Send it to {}."),
    ),
    Statement("sender", v.person, ("Written by {}.", "Written by {}", "Issued by {}.", "Signed: {}", "Prepared by {}")),
    Statement(
        "recipient", v.person, ("Attention: {}", "To {}", "To: {}", "For the attention of {}.", "Addressed to {}.")
    ),
    Statement(
        "issuer",
        v.company,
        ("Sold by {}.", "A service of {}.", "Supplied by {}", "Brought to you by {}.", "{} thanks you."),
    ),
    Statement("date", v.date, ("Printed on {}.", "Dated {}", "Issued on {}.", "As of {}", "This was written on {}.")),
    Statement(
        "host", v.person, ("Hosted by {}.", "Your host is {}.", "The host will be {}.", "Host of the evening: {}")
    ),
    Statement(
        "sign_guest", v.person, ("Special guest: {}", "Featuring {}", "Music by {}", "With {}", "{} will be there.")
    ),
    Statement(
        "venue",
        v.venue,
        ("It takes place in the {}.", "We meet at {}.", "Come to {}.", "Place: {}", "Location: {}", "At {}"),
    ),
    Statement("manager", v.person, ("Your manager will be {}.", "You will report to {}.", "The team is led by {}.")),
    Statement("language", lambda r: r.pick(v.LANGUAGES), ("The course is held in {}.", "We speak {}.", "I speak {}.")),
    Statement(
        "order_item",
        v.item,
        ("You ordered {}.", "Thank you for buying {}.", "We are sending you {}.", "Your choice: {}"),
    ),
    Statement(
        "speed", lambda r: f"{r.randint(5, 300)} {r.pick(('km/h', 'mph', 'm/s'))}", ("It runs at {}.", "It reaches {}.")
    ),
)
