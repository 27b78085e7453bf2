"""The kinds of pages: one function each, which fills a :class:`~training.pages.blocks.Setter`."""

from __future__ import annotations

from collections.abc import Callable

from training.pages import values as v
from training.pages.bills import invoice, receipt
from training.pages.blocks import Box, Setter
from training.pages.canvas import face
from training.pages.facts import Fact
from training.pages.fields import field_entries
from training.pages.letters import STATEMENTS
from training.pages.parts import letterhead, page_title
from training.pages.programs import program
from training.pages.prose import letter, text
from training.pages.tables import table

FORM_NAMES = (
    "Registration Form", "Application Form", "Employee Record", "Patient Record", "Booking Confirmation", "Order Form",
    "Shipping Label", "Boarding Pass", "Membership Card", "Report Card", "Work Order", "Identity Card", "Claim Form",
    "Pay Slip", "Utility Bill", "Delivery Note", "Inspection Report", "Account Statement", "Event Ticket", "Lab Report",
    "Rental Agreement", "Visitor Pass", "Service Report", "Travel Itinerary", "Product Label", "Certificate",
    "Data Sheet",
)  # fmt: skip


def form(s: Setter, box: Box) -> None:
    r = s.r
    if r.chance(0.8):
        page_title(s, box, r.pick(FORM_NAMES), v.phrase(r, 1, 2).title() + " Form", r.pick(FORM_NAMES))
    if r.chance(0.3):
        letterhead(s, box)
    elif r.chance(0.25):
        name = v.company(r)
        s.lines(box, [(name, Fact("issuer", name))], r.pick("lcr"))
    entries = field_entries(r, r.randint(4, 30), made_up=r.pick((0.0, 0.15, 0.6)))
    entries = [(label, value, Fact("field", value, label)) for label, value in entries]
    layout = r.randint(0, 3)
    if layout == 0 and box.width > 300:
        half = len(entries) // 2
        s.columns(box, lambda b: s.fields(b, entries[:half]), lambda b: s.fields(b, entries[half:]))
    elif layout == 1 and len(entries) > 8:  # sections, each with a heading and perhaps its own style
        step = r.randint(3, 7)
        for i in range(0, len(entries), step):
            heading = r.pick(
                (
                    "Details",
                    "General",
                    "Contact",
                    "Personal Data",
                    "Summary",
                    "Section " + r.pick("ABC"),
                    v.name_word(r),
                )
            )
            f = s.style.bold
            if box.fits(3 * f.height):
                s.put(box, box.x0, heading, f)
                s.advance(box, f)
            s.fields(
                box,
                entries[i : i + step],
                s.style.fields if r.chance(0.6) else r.pick(("colon", "tab", "above", "grid")),
            )
            s.gap(box)
    else:
        s.fields(box, entries)


def sign(s: Setter, box: Box) -> None:
    """A sign, poster or label: few words, large."""
    r = s.r
    s.style.title = face(s.style.title.path, r.randint(13, 32) * 2)
    s.style.body = face(s.style.body.path, r.randint(9, 17) * 2)
    box.y += r.randint(0, int(box.bottom * 0.3))
    heading = r.pick(
        (
            v.phrase(r, 1, 3),
            r.pick(("SALE", "OPEN", "CLOSED", "EXIT", "WELCOME", "NO PARKING", "ENTRANCE", "STOP", "CONCERT")),
            v.shop(r),
        )
    )
    s.heading(box, heading, [Fact("title", heading)], r.pick("ccl"))
    before = {
        "sign_price": ("", "Entry ", "Price: ", "Only ", "Tickets from ", "Ticket ", "At the door: ", "From "),
        "phone": ("", "Call ", "Tickets: ", "Tel "),
        "sign_city": ("", "in "),
        "sign_time": ("", "at ", "from "),
        "sign_guest": ("With ", "Guest: ", "Music: ", "Special guest: ", "Featuring ", "Artist: "),
        "venue": ("", "", "at the ", "Place: ", "@ "),
    }
    r.chance(0.3) and s.lines(
        box, [(r.pick(("Come and see", "Join us", "Live", "Tonight", "Once a year", "Free", "New")), None)], "c"
    )
    options = (
        ("sign_guest", v.person),
        ("sign_date", v.date),
        ("sign_time", v.time_of_day),
        ("sign_price", lambda r: v.money(r, 3.5) if r.chance(0.5) else f"${r.randint(1, 150)}"),
        ("phone", v.phone),
        ("website", v.website),
        r.pick((("sign_city", v.city), ("venue", v.venue))),
    )
    for key, make in r.sample(options, r.randint(0, 5)):
        value = make(r)
        s.lines(box, [(r.pick(before.get(key, ("",))) + value, Fact(key, value))], r.pick("ccl"))
        box.y += r.randint(0, 20)


def appendix(s: Setter, box: Box) -> None:
    """More content below the main part, if there is room: notes, further fields, a small table."""
    r = s.r
    for _ in range(r.randint(1, 3)):
        s.gap(box)
        if not box.fits(5 * s.style.body.height):
            return
        style = r.random()
        if style < 0.4:
            used = {fact.label.lower() for fact in s.facts}
            entries = [
                (a, b, Fact("field", b, a)) for a, b in field_entries(r, r.randint(1, 8), 0.3) if a.lower() not in used
            ]
            s.fields(box, entries, r.pick((None, "colon", "tab", "right", "above")))
        elif style < 0.8:
            statements = r.sample(STATEMENTS, r.randint(0, 2))
            known = {fact.key for fact in s.facts}
            for statement in statements:
                if statement.key not in known:
                    value = statement.value(r)
                    s.paragraph(box, r.pick(statement.sentences).format(value), [Fact(statement.key, value)])
            if not statements:
                s.paragraph(box, " ".join(v.sentence(r) for _ in range(r.randint(1, 3))))
        elif not any(fact.key in ("cell", "item_amount") for fact in s.facts):
            table(s, box)


KINDS: dict[str, tuple[Callable[[Setter, Box], None], float]] = {
    "invoice": (invoice, 24),
    "receipt": (receipt, 15),
    "form": (form, 24),
    "letter": (letter, 13),
    "table": (table, 18),
    "text": (text, 8),
    "sign": (sign, 5),
    "program": (program, 15),
}
