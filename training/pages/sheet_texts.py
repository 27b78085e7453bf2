"""Blocks of words on a sheet: titles, people, sections, sentences, signatures and what catches the eye."""

# ruff: noqa: E501  (lists of words)

from __future__ import annotations

from collections.abc import Callable

from training.pages import values as v
from training.pages.blocks import Box, Setter
from training.pages.canvas import face
from training.pages.facts import Fact
from training.pages.fields import field_entries
from training.pages.letters import STATEMENTS

DOCUMENTS = (
    "Offer", "Estimate", "Contract", "Order", "Ticket", "Permit", "Certificate", "Booking", "Reservation", "Claim", "Statement", "Voucher",
    "Request", "Policy", "Agreement", "Licence", "Packing list", "Confirmation", "Pass", "Proposal", "Job", "Parcel", "Case", "Protocol",
)  # fmt: skip
HEADINGS = (
    "About", "Profile", "Interests", "Tools", "Courses", "Duties", "Goals", "Notes", "Remarks", "Contents", "Rules", "Topics", "Members",
    "Hobbies", "Strengths", "Awards", "Colours", "Cities", "Materials", "Ingredients", "Options", "Extras", "Places", "Goods",
)  # fmt: skip


def put_line(s: Setter, box: Box, text: str, fact: Fact | None, align: str = "l", bold: bool = False) -> bool:
    f = s.style.bold if bold else s.style.body
    x = {"l": box.x0, "c": (box.x0 + box.x1) / 2, "r": box.x1}[align]
    if f.width(text) > box.width or not box.fits(f.height) or not s.put(box, x, text, f, align):
        return False
    if fact:
        s.facts.append(fact)
    s.advance(box, f)
    return True


def small_heading(s: Setter, box: Box, text: str) -> bool:
    r, f = s.r, s.style.bold if s.r.chance(0.6) else s.style.small
    text = text.upper() if r.chance(0.3) else text
    if f.width(text) > box.width or not box.fits(3 * f.height) or not s.put(box, box.x0, text, f):
        return False
    s.advance(box, f, r.randint(0, 4))
    if r.chance(0.2):
        s.canvas.line(box.x0, box.y - 2, box.x1, box.y - 2, s.style.rule)
        box.y += 3
    return True


def title(s: Setter, box: Box) -> None:
    r = s.r
    document = r.pick(DOCUMENTS)
    style = r.random()
    if style < 0.35:
        number = v.code(r) if r.chance(0.6) else v.digits(r, r.randint(3, 9))
        text = f"{document}{r.pick((' ', ' ', ' No. ', ' no. ', ' # ', ': ', ' - '))}{number}"
        s.heading(box, text, [Fact("doc_number", number, document)])
    elif style < 0.7:
        s.heading(box, document, [Fact("title", document)])
    else:
        name = r.pick((v.phrase, v.item, v.venue))(r)
        s.heading(box, name, [Fact("title", name)])
    if r.chance(0.25):
        month = v.month(r)
        put_line(s, box, month, Fact("period", month), r.pick("llcr"))


def people(s: Setter, box: Box) -> None:
    """A company, a customer or a writer with an address and ways to reach them, none of it labelled."""
    r = s.r
    key, make = r.pick(
        (
            ("issuer", v.company),
            ("issuer", v.company),
            ("customer", v.person),
            ("customer", v.company),
            ("recipient", v.person),
        )
    )
    name, align, bold = make(r), r.pick("lllrc"), r.chance(0.5)
    heads = {
        "issuer": ("From", "Sender", "Seller", "Issued by", "Supplier", "Your partner"),
        "customer": ("For", "Customer", "Deliver to", "Ship to", "Account of", "Prepared for", "Client", "Receiver"),
        "recipient": ("To", "Attention", "Addressed to", "Attn."),
    }[key]
    if r.chance(0.45) and not small_heading(s, box, r.pick(heads) + r.pick(("", "", ":"))):
        return
    if key != "issuer" and r.chance(0.25):
        put_line(s, box, f"{r.pick(('To', 'For', 'Attn.', 'c/o'))} {name}", Fact(key, name), align, bold)
    else:
        put_line(s, box, name, Fact(key, name), align, bold)
    rest: list[tuple[str, Fact | None]] = []
    if r.chance(0.7):
        street = v.street(r)
        key_street = f"{key}_street" if key != "recipient" else ""
        rest += [(street, Fact(key_street, street) if key_street else None), (v.town(r), None)]
    for fact_key, make_value, leads in (
        ("phone", v.phone, ("", "", "Tel ", "T: ", "Phone ", "Call ")),
        ("email", v.email, ("", "", "", "E-mail: ", "Mail ")),
        ("website", v.website, ("", "", "Web: ")),
        (
            "iban",
            lambda r: " ".join(v.digits(r, r.pick((3, 4))) for _ in range(r.randint(2, 4))),
            ("Account ", "Acct. ", "Bank account "),
        ),
    ):
        if r.chance(0.3):
            value = make_value(r)
            rest.append((r.pick(leads) + value, Fact(fact_key, value)))
    for text, fact in rest:
        put_line(s, box, text, fact, align)


def section(s: Setter, box: Box) -> None:
    """A heading with a line or a comma list below: the heading is the label."""
    r = s.r
    ((label, value),) = field_entries(r, 1, 0.1)
    if r.chance(0.4):
        label = r.pick(HEADINGS)
        value = ", ".join(
            r.pick((v.word, v.name_word, v.city, lambda r: r.pick(v.WORK)))(r) for _ in range(r.randint(2, 4))
        )
    if (
        box.width >= s.style.body.width(value)
        and s.style.bold.width(label) <= box.width
        and box.fits(4 * s.style.body.height)
    ):
        before = len(s.canvas.items)
        if small_heading(s, box, label) and put_line(s, box, value, None) and s.canvas.items[before][2] == label:
            s.facts.append(Fact("field", value, label))


def studies(s: Setter, box: Box) -> None:
    r = s.r
    degree = f"{r.pick(('Bachelor', 'Master', 'Doctor', 'Diploma'))} of {r.pick(('Design', 'Medicine', 'History', 'Physics', 'Economics', 'Nursing', 'Arts', 'Science'))}"
    school = r.pick(
        (
            f"{v.city(r)} {r.pick(('University', 'College', 'Academy'))}",
            f"{v.name_word(r)} {r.pick(('College', 'University'))}",
            f"University of {v.name_word(r)}",
        )
    )
    if r.chance(0.6):
        small_heading(s, box, r.pick(("Education", "Studies", "School", "Training")))
    pair = [(degree, Fact("degree", degree)), (school, Fact("university", school))]
    if r.chance(0.4):
        pair.reverse()
    if r.chance(0.3):
        text = r.pick((", ", " - ", " / ", " at ")).join(a for a, _ in pair)
        put_line(s, box, text, pair[0][1]) and s.facts.append(pair[1][1])
    else:
        for text, fact in pair:
            put_line(s, box, text, fact)


HIGHLIGHTS: tuple[tuple[str, Callable[[v.Rng], str], tuple[str, ...]], ...] = (
    ("total", lambda r: v.money(r, 6.0), ("Amount due", "To pay", "You owe", "Balance", "Total", "Your total", "Total due", "Amount", "New balance")),
    ("due_date", v.date, ("Due", "Pay before", "Due date", "Payable until", "Deadline for payment", "Last day to pay")),
    ("valid_until", v.date, ("Valid until", "Offer ends", "Good until", "Expires")),
    ("order_number", v.code, ("Order", "Your order", "Order no.", "For order")),
    ("room", lambda r: str(r.randint(1, 900)), ("Room", "Your room")),
    ("password", v.word, ("Password", "Your password")),
    ("discount_offer", v.percent, ("Save", "Discount", "Off")),
    ("delivery_date", v.date, ("Arrives", "Delivery", "Delivered on")),
    ("reference", v.code, ("Reference", "Your reference", "Quote this reference", "Ref.")),
    ("winner", v.person, ("Winner", "First prize", "1st place")),
    ("phone", v.phone, ("Questions? Call", "Hotline", "Help", "Call us", "Contact", "Any questions?")),
    ("date", v.date, ("Date", "Issued", "", "Dated", "Day")),
    ("fee", v.money, ("Fee", "Monthly fee")),
    ("flight", v.code, ("Flight", "Your flight")),
)  # fmt: skip


def highlight(s: Setter, box: Box) -> None:
    """One to three facts that catch the eye: small caption, large value, perhaps all in one frame."""
    r, s0 = s.r, s.style
    large, align = face(s0.title.path, min(s0.title.size + r.randint(0, 6), 40)), r.pick("lccr")

    def fill(inner: Box) -> None:
        for n, (key, make, captions) in enumerate(r.sample(HIGHLIGHTS, r.randint(1, 3))):
            value, caption = make(r), r.pick(captions)
            f = large if n == 0 else (s0.body if r.chance(0.5) else s0.bold)
            while f.width(value) > inner.width and f.size > 12:
                f = face(f.path, f.size - 2)
            if max(f.width(value), s0.small.width(caption)) > inner.width or not inner.fits(
                f.height + s0.small.height + 4
            ):
                return
            x = {"l": inner.x0, "c": (inner.x0 + inner.x1) / 2, "r": inner.x1}[align]
            text = f"{caption} {value}".strip()
            if n and r.chance(0.5) and s0.body.width(text) <= inner.width:
                put_line(s, inner, text, Fact(key, value), align)
                continue
            if caption and s.put(inner, x, caption, s0.small, align):
                s.advance(inner, s0.small)
            if s.put(inner, x, value, f, align):
                s.facts.append(Fact(key, value))
            s.advance(inner, f)

    s.framed(box, fill, dark=0.2)


def sentences(s: Setter, box: Box) -> None:
    r = s.r
    known = {fact.key for fact in s.facts}
    chosen = [x for x in r.sample(STATEMENTS, r.randint(1, 4)) if x.key not in known]
    values = [x.value(r) for x in chosen]
    texts = [r.pick(x.sentences).format(value) for x, value in zip(chosen, values, strict=True)]
    if r.chance(0.3):
        texts.insert(0, v.sentence(r))
        chosen.insert(0, None), values.insert(0, "")
    facts = [Fact(x.key, value) if x else None for x, value in zip(chosen, values, strict=True)]
    if r.chance(0.3):
        s.paragraph(box, " ".join(texts), [fact for fact in facts if fact])
        return
    align = r.pick("lllc")
    for text, fact in zip(texts, facts, strict=True):
        if align == "l":
            s.paragraph(box, text, [fact] if fact else [])
        else:
            put_line(s, box, text, fact, align)
        box.y += r.pick((0, 0, 5))


def signature(s: Setter, box: Box) -> None:
    r, name, align = s.r, v.person(s.r), s.r.pick("llr")
    if r.chance(0.6):
        put_line(
            s,
            box,
            r.pick(
                (
                    "Yours truly,",
                    "Best wishes,",
                    "With kind regards",
                    "Regards,",
                    "Signed",
                    "See you soon,",
                    "Thank you,",
                )
            ),
            None,
            align,
        )
        box.y += r.pick((0, 0, 20))
    put_line(s, box, name, Fact("sender", name), align)
    if r.chance(0.4):
        put_line(s, box, r.pick(v.JOBS), None, align)
