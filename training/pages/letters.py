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
        ("The order contains {} boxes.", "We have sent you {} boxes.", "There are {} boxes in your order."),
    ),
    Statement("train_time", v.time_of_day, ("The train leaves at {}.", "Your train departs at {}.")),
    Statement("office", v.city, ("The new office is in {}.", "We have moved our office to {}.")),
    Statement("phone", v.phone, ("My phone number is {}.", "You can call me at {}.", "Please call {}.")),
    Statement("email", v.email, ("Please write to {}.", "My email address is {}.", "Send your reply to {}.")),
    Statement("project", v.name_word, ("The project is called {}.", "We have named the project {}.")),
    Statement("rent", v.money, ("The rent will rise to {}.", "Your new rent is {}.")),
    Statement("password", v.word, ("The password is {}.", "Please log in with the password {}.")),
    Statement("interview", v.date, ("Your interview is on {}.", "We invite you to an interview on {}.")),
    Statement("deadline", v.date, ("Please reply by {}.", "The deadline is {}.", "We need your answer before {}.")),
    Statement("speaker", v.person, ("The speech will be given by {}.", "Our guest speaker is {}.")),
    Statement("budget", v.money, ("The budget is {}.", "We have a budget of {}.")),
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
    Statement("salary", v.money, ("Your new salary is {}.", "We can offer a salary of {}.")),
    Statement(
        "due_date", v.date, ("Please pay by {}.", "Payment is due on {}.", "To be paid before {}.", "Payable until {}.")
    ),
    Statement(
        "valid_until",
        v.date,
        ("This offer is valid until {}.", "The quote is valid until {}.", "Offer ends on {}.", "Valid until {}"),
    ),
    Statement("made_in", v.country, ("Made in {}.", "Made in {}", "Product of {}.", "Produced in {}.")),
    Statement(
        "work_time",
        lambda r: f"{r.randint(2, 20)} {r.pick(('weeks', 'days', 'months', 'hours'))}",
        ("The work takes {}.", "We need {} for the work.", "Duration of the work: {}."),
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
        "total", v.money, ("The amount of {} is due.", "Please pay {}.", "You have to pay {}.", "The total is {}.")
    ),
    Statement("customer", v.person, ("For {}", "Delivered to {}.", "Prepared for {}.", "This was made for {}.")),
    Statement("dinner", v.time_of_day, ("Dinner is served at {}.", "Dinner starts at {}.")),
)
