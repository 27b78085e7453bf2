"""Pages put together from blocks in columns, side bars, bands, frames and cards; most facts have no label."""

# ruff: noqa: E501  (lists of words)

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from training.pages import values as v
from training.pages.blocks import Box, Fact, Setter
from training.pages.canvas import face
from training.pages.fields import field_entries
from training.pages.kinds import _items, _letterhead, _totals, program
from training.pages.letters import STATEMENTS

Block = Callable[[Setter, Box], None]
DOCUMENTS = (
    "Offer", "Estimate", "Contract", "Order", "Ticket", "Permit", "Certificate", "Booking", "Reservation", "Claim", "Statement", "Voucher",
    "Request", "Policy", "Agreement", "Licence", "Packing list", "Confirmation", "Pass", "Proposal", "Job", "Parcel", "Case", "Protocol",
)  # fmt: skip
HEADINGS = (
    "About", "Profile", "Interests", "Tools", "Courses", "Duties", "Goals", "Notes", "Remarks", "Contents", "Rules", "Topics", "Members",
    "Hobbies", "Strengths", "Awards", "Colours", "Cities", "Materials", "Ingredients", "Options", "Extras", "Places", "Goods",
)  # fmt: skip


@contextmanager
def _resized(s: Setter, factor: float) -> Iterator[None]:
    """Other sizes of type for one block."""
    old = s.style
    scale = lambda f: face(f.path, min(max(11, round(f.size * factor)), 44))  # noqa: E731
    s.style = replace(old, body=scale(old.body), bold=scale(old.bold), small=scale(old.small), title=scale(old.title))
    yield
    s.style = old


def _line(s: Setter, box: Box, text: str, fact: Fact | None, align: str = "l", bold: bool = False) -> bool:
    f = s.style.bold if bold else s.style.body
    x = {"l": box.x0, "c": (box.x0 + box.x1) / 2, "r": box.x1}[align]
    if f.width(text) > box.width or not box.fits(f.height) or not s.put(box, x, text, f, align):
        return False
    if fact:
        s.facts.append(fact)
    s.advance(box, f)
    return True


def _small_heading(s: Setter, box: Box, text: str) -> bool:
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
        _line(s, box, month, Fact("period", month), r.pick("llcr"))


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
    if r.chance(0.45) and not _small_heading(s, box, r.pick(heads) + r.pick(("", "", ":"))):
        return
    if key != "issuer" and r.chance(0.25):
        _line(s, box, f"{r.pick(('To', 'For', 'Attn.', 'c/o'))} {name}", Fact(key, name), align, bold)
    else:
        _line(s, box, name, Fact(key, name), align, bold)
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
        _line(s, box, text, fact, align)


def data(s: Setter, box: Box) -> None:
    """Labelled values of any kind, at times under a heading, at times with a sum in bold."""
    r = s.r
    if r.chance(0.35):
        _small_heading(s, box, r.pick((*HEADINGS, "Details", "Data", v.name_word(r))))
    entries = [(a, b, Fact("field", b, a)) for a, b in field_entries(r, r.randint(2, 8), r.pick((0.0, 0.1, 0.5)))]
    s.fields(
        box, entries, None if r.chance(0.5) else r.pick(("tab", "right", "above", "strip", "inline", "boxed", "header"))
    )


def amounts(s: Setter, box: Box) -> None:
    """A group of amounts with their labels at the left and the values at the right, closed by a sum."""
    r, amount = s.r, v.money_format(s.r)
    names: list[str] = []
    while len(names) < r.randint(2, 5):
        name = r.pick(
            (v.item, v.name_word, lambda r: f"{v.name_word(r)} {r.pick(('fee', 'cost', 'charge', 'share', 'pay'))}")
        )(r)
        if name.lower() not in (n.lower() for n in names):
            names.append(name)
    if r.chance(0.6):
        _small_heading(
            s, box, r.pick(("Costs", "Income", "Charges", "Expenses", "Payments", "Fees", "Credits", v.name_word(r)))
        )
    cents = [v.cents(r, 2, 5.5) for _ in names]
    entries = [(n, amount(c), Fact("item_amount", amount(c), subject=n)) for n, c in zip(names, cents, strict=True)]
    style = r.pick(("right", "right", "dots", "ruled", "tab", "colon"))
    s.fields(box, entries, style)
    sum_label = r.pick(("Sum", "Total", "Altogether", "In all", "Total costs", "Amount", "To pay"))
    value = amount(sum(cents))
    old = s.style
    s.style = replace(old, body=old.bold)
    s.fields(box, [(sum_label, value, Fact("total", value, sum_label))], style)
    s.style = old


def listing(s: Setter, box: Box) -> None:
    """Numbered or bulleted points, with an amount at the right edge or none; what it all costs stands in a sentence."""
    r, f, amount = s.r, s.style.body, v.money_format(s.r)
    priced, mark = r.chance(0.55), r.pick(("1", "1", "-", "*", "", "a"))
    points: list[str] = []
    for _ in range(r.randint(2, 6)):
        point = v.item(r, 0.5) if priced else r.pick((v.phrase, v.item, v.name_word, lambda r: r.pick(v.WORK)))(r)
        if point.lower() not in (p.lower() for p in points):
            points.append(point)
    heading = r.pick(HEADINGS)
    headed = r.chance(0.25 if priced else 0.85) and _small_heading(s, box, heading)
    left, sums, spacing = box.x0 + r.randint(0, 16), 0, r.randint(0, 8)
    shown: list[str] = []
    for number, point in enumerate(points, 1):
        lead = {"1": f"{number}. ", "-": "- ", "*": "* ", "": "", "a": f"{chr(96 + number)}) "}[mark]
        cents = v.cents(r, 2, 5.5)
        width = f.width(lead + point) + (f.width(amount(cents)) + 12 if priced else 0)
        if left + width > box.x1 or not box.fits(f.height) or not s.put(box, left, lead + point, f):
            return
        if priced:
            if not s.put(box, box.x1, amount(cents), f, "r"):
                return
            s.facts.append(Fact("item_amount", amount(cents), subject=point))
        sums += cents
        shown.append(point)
        s.advance(box, f, spacing)
    if priced:
        text = r.pick(
            (
                "Sum {}",
                "Makes {}",
                "{} in total",
                "Total of {}",
                "Altogether: {}",
                "We charge {}",
                "Together {}",
                "Total {}",
            )
        )
        if r.chance(0.5):
            s.canvas.line(box.x0, box.y, box.x1, box.y, s.style.rule)
            box.y += 3
        _line(s, box, text.format(amount(sums)), Fact("total", amount(sums)), r.pick("lrr"), r.chance(0.5))
    elif headed and len(shown) > 1:
        s.facts += [Fact("section_first", shown[0], heading), Fact("section_count", str(len(shown)), heading)]


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
        if _small_heading(s, box, label) and _line(s, box, value, None) and s.canvas.items[before][2] == label:
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
        _small_heading(s, box, r.pick(("Education", "Studies", "School", "Training")))
    pair = [(degree, Fact("degree", degree)), (school, Fact("university", school))]
    if r.chance(0.4):
        pair.reverse()
    if r.chance(0.3):
        text = r.pick((", ", " - ", " / ", " at ")).join(a for a, _ in pair)
        _line(s, box, text, pair[0][1]) and s.facts.append(pair[1][1])
    else:
        for text, fact in pair:
            _line(s, box, text, fact)


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
                _line(s, inner, text, Fact(key, value), align)
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
            _line(s, box, text, fact, align)
        box.y += r.pick((0, 0, 5))


def signature(s: Setter, box: Box) -> None:
    r, name, align = s.r, v.person(s.r), s.r.pick("llr")
    if r.chance(0.6):
        _line(
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
    _line(s, box, name, Fact("sender", name), align)
    if r.chance(0.4):
        _line(s, box, r.pick(v.JOBS), None, align)


def two_stage(s: Setter, box: Box) -> None:
    """A narrow table whose column heading names what all its rows are kinds of: "Level | Value / Upper | 12"."""
    r = s.r
    noun = r.pick(
        (
            "Level",
            "Meter",
            "Fee",
            "Price",
            "Tariff",
            "Balance",
            "Stock",
            "Score",
            "Speed",
            "Weight",
            "Limit",
            "Rent",
            "Premium",
        )
    )
    kinds = r.sample(
        (
            "Old",
            "New",
            "First",
            "Second",
            "Last",
            "Upper",
            "Lower",
            "Basic",
            "Special",
            "Minimum",
            "Maximum",
            "Yearly",
            "Monthly",
            "Final",
        ),
        r.randint(2, 4),
    )
    make = r.pick((v.count, v.money, v.percent, v.span))
    rows = [[kind, make(r)] for kind in kinds]
    shown, drawn = s.table(
        box, [noun, r.pick(("Value", "Amount", "Figure", "Result", "Is"))], rows, ["l", r.pick("lrr")], [1.3, 1]
    )
    for i in drawn:
        if shown[0]:
            s.facts.append(Fact("two_stage", rows[i][1], subject=f"{kinds[i]} {noun}".lower()))


def goods(s: Setter, box: Box) -> None:
    r, amount = s.r, v.money_format(s.r)
    if not box.fits(7 * s.style.body.height):
        return
    if r.chance(0.45):
        _items(s, box, amount, detailed=True, priced=False)
    else:
        subtotal = _items(s, box, amount, detailed=r.chance(0.6))
        if subtotal and r.chance(0.6):
            _totals(s, box, amount, subtotal)


def entries(s: Setter, box: Box) -> None:
    program(s, box, headed=s.r.chance(0.4))


BLOCKS: tuple[tuple[Block, float], ...] = (
    (people, 6), (data, 5), (amounts, 2), (listing, 3), (section, 3), (studies, 1), (highlight, 4), (sentences, 6), (signature, 2),
    (two_stage, 1), (goods, 2), (entries, 3),
)  # fmt: skip
NARROW = (people, data, section, highlight, sentences, studies, listing, signature)


def _stack(s: Setter, box: Box, n: int, narrow: bool = False) -> None:
    r, last = s.r, None
    for _ in range(n):
        block = r.pick(NARROW) if narrow else r.choices([b for b, _ in BLOCKS], [w for _, w in BLOCKS])[0]
        if block is last and block in (goods, studies, signature):
            continue
        last = block
        if not box.fits(3 * s.style.body.height):
            return
        with _resized(s, r.pick((1, 1, 1, 1, 0.85, 1.15, 1.3))):
            if r.chance(0.22) and block not in (highlight, goods):
                s.framed(box, lambda inner, block=block: block(s, inner))
            else:
                block(s, box)
        box.y += r.randint(3, 20)


def _sidebar(s: Setter, box: Box) -> None:
    """A narrow column over the whole height, plain, tinted, dark or ruled off."""
    r, look = s.r, s.r.pick(("dark", "dark", "tint", "line", "plain"))
    width, page = box.width * r.uniform(0.28, 0.4), s.canvas
    right = r.chance(0.3)
    x0, x1 = (box.x1 - width, box.x1) if right else (box.x0, box.x0 + width)
    pad = r.randint(0, 8)
    _stack(s, Box(x0 + pad, x1 - pad, box.y + pad, box.bottom), r.randint(2, 5), narrow=True)
    edge = (x0 - 4, box.y - 6, page.width - 1, page.height - 1) if right else (0, box.y - 6, x1 + 4, page.height - 1)
    if look == "dark":
        page.panel(*edge, r.pick((255, 240, 210, 180)), inverted=True)
    elif look == "tint":
        page.panel(*edge, r.randint(14, 40))
    elif look == "line":
        page.line(x0 - 6 if right else x1 + 5, box.y, x0 - 6 if right else x1 + 5, box.bottom - 4, s.style.rule)
    gap = r.randint(10, 22)
    main = Box(box.x0, x0 - gap, box.y, box.bottom) if right else Box(x1 + gap, box.x1, box.y, box.bottom)
    _stack(s, main, r.randint(2, 5))
    box.y = box.bottom


def _band(s: Setter, box: Box) -> None:
    """A bar over the whole width with words at its left and right."""
    r, f, page = s.r, s.style.title, s.canvas
    company, document = v.company(r), r.pick(DOCUMENTS)
    company = company.upper() if r.chance(0.15) else company
    document = document.upper() if r.chance(0.4) else document
    left, right = (company, document) if r.chance(0.6) else (document, company)
    while f.size > 12 and f.width(left) + f.width(right) + 24 > box.width:
        f = face(f.path, f.size - 1)
    top = box.y
    box.y += r.randint(4, 12)
    shown = {left} if s.put(box, box.x0 + 4, left, f) else set()
    if f.width(left) + f.width(right) + 24 <= box.width and r.chance(0.8) and s.put(box, box.x1 - 4, right, f, "r"):
        shown.add(right)
    if company in shown:
        s.facts.append(Fact("issuer", company))
    if document in shown:
        s.facts.append(Fact("title", document))
    box.y += f.height + r.randint(4, 12)
    wide = r.chance(0.5)
    edge = (0, 0 if wide else top, page.width - 1, box.y) if wide else (box.x0 - 4, top, box.x1 + 4, box.y)
    if r.chance(0.7):
        page.panel(*edge, r.pick((255, 240, 200, 170)), inverted=True)
    else:
        page.line(edge[0], box.y, edge[2], box.y, s.style.rule, r.randint(1, 5))
    box.y += r.randint(6, 22)


def sheet(s: Setter, box: Box) -> None:
    """A page of blocks: an optional band or title, then one to three zones of columns, a side bar or plain stacks."""
    r = s.r
    if r.chance(0.12):  # a card: everything inside one frame
        s.framed(box, lambda inner: _zones(s, inner), dark=0.1)
    else:
        _zones(s, box)


def _zones(s: Setter, box: Box) -> None:
    r, style = s.r, s.r.random()
    if style < 0.25:
        _band(s, box)
    elif style < 0.45:
        s.columns(box, lambda b: people(s, b), lambda b: title(s, b))
    elif style < 0.6:
        _letterhead(s, box)
    elif style < 0.95:
        title(s, box)
    if box.width > 360 and r.chance(0.28):
        _sidebar(s, box)
        return
    for _ in range(r.randint(2, 6)):
        if not box.fits(4 * s.style.body.height):
            return
        n = r.choices((1, 2, 3), (5, 4, 1 if box.width > 480 else 0))[0] if box.width > 330 else 1
        if n == 1:
            _stack(s, box, r.randint(1, 4))
        else:
            sizes = [r.randint(1, 3) for _ in range(n)]
            stacks = [lambda b, size=size: _stack(s, b, size, narrow=True) for size in sizes]
            if r.chance(0.3):
                stacks = [lambda b, fill=fill: s.framed(b, fill) for fill in stacks]
            s.columns(box, *stacks)
        s.gap(box)
