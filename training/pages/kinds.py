"""What pages say: one function a kind of document. Each fills a :class:`~training.pages.blocks.Setter`."""

from __future__ import annotations

from collections.abc import Callable

from training.pages import values as v
from training.pages.blocks import Box, Fact, Setter
from training.pages.canvas import face
from training.pages.fields import field_entries
from training.pages.letters import STATEMENTS

Entry = tuple[str, str, Fact | None]


def _entry(key: str, label: str, value: str) -> Entry:
    return label, value, Fact(key, value, label)


def _party(s: Setter, box: Box, heading: str | None, name: str, key: str) -> None:
    """A name with an address below, optionally under a small heading such as "Bill to"."""
    r = s.r
    entries: list[tuple[str, Fact | None]] = [(heading, None)] if heading else []
    entries.append((name, Fact(key, name, heading or "")))
    street, town = v.street(r), v.town(r)
    if r.chance(0.8):
        entries.append((street, Fact(f"{key}_street", street)))
        entries.append((town, None))
    if r.chance(0.3):
        phone = v.phone(r)
        entries.append((r.pick(("", "Tel ", "Phone: ", "Tel. ", "T ")) + phone, Fact("phone", phone)))
    if r.chance(0.25):
        email = v.email(r)
        entries.append((email, Fact("email", email)))
    s.lines(box, entries, small=r.chance(0.4))
    s.gap(box)


def _title(s: Setter, box: Box, *options: str) -> None:
    text = s.r.pick(options)
    if s.r.chance(0.15):
        text = text.upper()
    s.heading(box, text, [Fact("title", text)])


def invoice(s: Setter, box: Box) -> None:
    r, amount, day = s.r, v.money_format(s.r), s.r.randint(0, 9)
    seller = v.company(r)
    customer = v.person(r) if r.chance(0.5) else v.company(r)
    meta = [
        _entry(
            "invoice_number",
            r.pick(("Invoice No", "Invoice #", "Invoice Number", "Inv. No", "Invoice ID", "Number")),
            v.code(r),
        ),
        _entry("date", r.pick(("Date", "Invoice Date", "Issued", "Date of Issue", "Issue Date")), v.date(r, day)),
    ]
    if r.chance(0.6):
        meta.append(_entry("due_date", r.pick(("Due Date", "Payment Due", "Due", "Pay By", "Due By")), v.date(r, day)))
    if r.chance(0.35):
        meta.append(
            _entry(
                "order_number",
                r.pick(("PO Number", "P.O. No", "Order No", "Purchase Order", "Order Number")),
                v.code(r),
            )
        )
    if r.chance(0.25):
        meta.append(_entry("customer_number", r.pick(("Customer No", "Customer ID", "Client No")), v.code(r)))
    if r.chance(0.3):
        terms = r.pick(
            ("Net 30", "Net 15", "Net 60", "Due on receipt", "30 days", "14 days", "Cash on delivery", "Prepaid")
        )
        meta.append(_entry("terms", r.pick(("Terms", "Payment Terms")), terms))
    if r.chance(0.2):
        meta.append(_entry("contact", r.pick(("Contact", "Sales Rep", "Salesperson", "Contact Person")), v.person(r)))
    if r.chance(0.3):
        r.shuffle(meta)
    as_field = r.chance(0.4)
    if as_field:
        meta.insert(
            r.randint(0, len(meta)),
            _entry("customer", r.pick(("Customer", "Bill To", "Client", "Billed To", "Sold To")), customer),
        )
    words = ("Invoice", "INVOICE", "Tax Invoice", "Bill", "Invoice", "Sales Invoice")
    layout = r.randint(0, 3)
    if layout == 0:  # company on top, all below each other
        s.heading(box, seller, [Fact("issuer", seller)])
        if r.chance(0.6):
            s.lines(box, [(v.street(r), None), (v.town(r), None)])
        if r.chance(0.7):
            s.heading(box, r.pick(words))
        if not as_field:
            _party(s, box, r.pick(("Bill To", "Bill to:", "To:", "Customer", "Billed to")), customer, "customer")
        s.fields(box, meta)
    elif layout == 1:  # seller left, number and dates right
        if r.chance(0.8):
            s.heading(box, r.pick(words))
        s.columns(box, lambda b: _party(s, b, None, seller, "issuer"), lambda b: s.fields(b, meta))
        if not as_field:
            _party(s, box, r.pick(("Bill To", "Bill to:", "To:", "Customer", "Invoice to")), customer, "customer")
    elif layout == 2:  # parties side by side
        s.heading(box, r.pick(words))
        s.columns(
            box,
            lambda b: _party(s, b, r.pick(("From", "From:", "Seller", "Issued by")), seller, "issuer"),
            lambda b: _party(s, b, r.pick(("To", "Bill To", "Customer", "Billed to:")), customer, "customer"),
        )
        s.fields(box, [m for m in meta if m[2].key != "customer"])
    else:  # heading and company in one band, customer left and fields right
        s.columns(
            box,
            lambda b: s.heading(b, seller, [Fact("issuer", seller)], "l"),
            lambda b: s.heading(b, r.pick(words), (), "r"),
        )
        s.columns(
            box,
            lambda b: None if as_field else _party(s, b, r.pick(("Bill To", "Customer", "To")), customer, "customer"),
            lambda b: s.fields(b, meta),
        )
    s.gap(box)
    subtotal = _items(s, box, amount, detailed=r.chance(0.8))
    _totals(s, box, amount, subtotal)
    _footer(s, box)


def _items(s: Setter, box: Box, amount: Callable[[int], str], detailed: bool, priced: bool = True) -> int:
    """The table of items; returns their sum in cents. Not ``priced``: quantities only, as on a packing list."""
    r, f = s.r, s.style.body
    room = int((box.bottom - box.y) / (f.height + s.style.leading)) - 5
    n = max(1, min(r.randint(1, 9), room))
    names: list[str] = []
    while len(names) < n:
        name = v.item(r)
        if name.lower() not in (x.lower() for x in names):
            names.append(name)
    quantities = [r.randint(1, 24) if r.chance(0.7) else 1 for _ in names]
    prices = [v.cents(r, 1.7, 5.0) for _ in names]
    columns = [("item", r.pick(("Description", "Item", "Product", "Service", "Article", "Details")), "l", 4.2)]
    if detailed:
        columns.append(("quantity", r.pick(("Qty", "Quantity", "Qty.", "Units", "Pcs")), r.pick("rrc"), 1.2))
        if r.chance(0.6):
            columns.append(("price", r.pick(("Price", "Unit Price", "Rate", "Unit Cost", "Price each")), "r", 2.1))
        if r.chance(0.15):
            columns.insert(1, ("quantity", columns[1][1], "c", 1.2))
            del columns[2]
        if r.chance(0.12):
            columns.insert(0, columns.pop(1))  # the quantity first
    columns.append(
        (
            "amount",
            r.pick(
                ("Amount", "Total", "Line Total", "Sum", "Price")
                if len(columns) < 3
                else ("Amount", "Total", "Line Total")
            ),
            "r",
            2.2,
        )
    )
    if not priced:
        columns = [column for column in columns if column[0] in ("item", "quantity")]
    if r.chance(0.15 if priced else 0.5):
        columns.insert(r.pick((0, 0, 1)), ("code", r.pick(("Code", "Item No", "SKU", "Ref", "Part", "Id")), "l", 1.4))
    if r.chance(0.15 if priced else 0.4):
        columns.insert(0, ("row", r.pick(("#", "No", "Pos", "")), "l", 0.8))
    codes = [v.digits(r, r.randint(3, 6)) if r.chance(0.6) else v.code(r) for _ in names]
    cells = {
        "code": codes,
        "item": names,
        "quantity": [str(q) for q in quantities],
        "price": [amount(p) for p in prices],
        "amount": [amount(p * q) for p, q in zip(prices, quantities, strict=True)],
        "row": [str(i + 1) for i in range(n)],
    }
    rows = [[cells[key][i] for key, *_ in columns] for i in range(n)]
    shown, drawn = s.table(
        box, [c[1] for c in columns], rows, [c[2] for c in columns], [c[3] for c in columns], detailed or r.chance(0.3)
    )
    keys = [c[0] for c in columns]
    for i in drawn:
        if "amount" in keys:
            s.facts.append(Fact("item_amount", cells["amount"][i], subject=names[i]))
        if "code" in keys and shown[keys.index("code")]:
            s.facts.append(Fact("cell", codes[i], columns[keys.index("code")][1], names[i]))
        if "quantity" in keys:
            s.facts.append(Fact("item_quantity", cells["quantity"][i], subject=names[i]))
        if "price" in keys:
            s.facts.append(Fact("item_price", cells["price"][i], subject=names[i]))
    if drawn:
        s.facts.append(Fact("first_item", names[drawn[0]]))
        s.facts.append(Fact("last_item", names[drawn[-1]]))
        s.facts.append(Fact("item_count", str(len(drawn))))
        dearest = max(drawn, key=lambda i: prices[i] * quantities[i])
        ties = [i for i in drawn if prices[i] * quantities[i] == prices[dearest] * quantities[dearest]]
        if priced and len(ties) == 1 and len(drawn) > 1 and len(drawn) < 6:
            s.facts.append(Fact("dearest_item", names[dearest]))
    return sum(prices[i] * quantities[i] for i in drawn)


def _totals(s: Setter, box: Box, amount: Callable[[int], str], subtotal: int, receipt: bool = False) -> None:
    r, entries = s.r, []
    total, rate = subtotal, r.randint(3, 25)
    if r.chance(0.7):
        entries.append(
            _entry(
                "subtotal", r.pick(("Subtotal", "Sub Total", "Net Amount", "Net Total", "Sub-total")), amount(subtotal)
            )
        )
    if r.chance(0.75):
        label = r.pick(("Tax", "VAT", "Sales Tax", f"Tax ({rate}%)", f"VAT {rate}%", f"Tax {rate}%"))
        entries.append(_entry("tax", label, amount(subtotal * rate // 100)))
        total += subtotal * rate // 100
    if r.chance(0.3):
        cost = r.randint(100, 9000)
        entries.append(_entry("shipping", r.pick(("Shipping", "Delivery", "Freight", "Postage")), amount(cost)))
        total += cost
    if r.chance(0.2):
        discount = r.randint(1, subtotal // 4 + 2)
        entries.append(_entry("discount", r.pick(("Discount", "Rebate")), r.pick(("", "-")) + amount(discount)))
        total -= discount
    label = r.pick(
        ("Total", "TOTAL", "Total Due", "Amount Due", "Grand Total", "Balance Due", "Total Amount", "Amount Payable")
    )
    entries.append(_entry("total", label, amount(total)))
    if receipt and r.chance(0.5):
        paid = total + r.randint(0, 5000)
        entries.append(_entry("paid", r.pick(("Cash", "Card", "Paid", "Amount Paid")), amount(paid)))
        if paid > total:
            entries.append(_entry("change", r.pick(("Change", "Change Due")), amount(paid - total)))
    left = box.x0 + box.width * r.pick((0, 0.3, 0.4, 0.5, 0.55))
    inner = Box(left, box.x1, box.y, box.bottom)
    s.fields(inner, entries, r.pick(("right", "right", "right", "dots", "tab", "colon", "ruled")))
    box.y = inner.y


def _footer(s: Setter, box: Box) -> None:
    r = s.r
    if r.chance(0.25):
        s.fields(
            box,
            [
                _entry(
                    "iban",
                    r.pick(("IBAN", "Bank Account", "Account")),
                    v.digits(r, 4) + " " + v.digits(r, 4) + " " + v.digits(r, 4),
                )
            ],
            "colon",
        )
    if r.chance(0.3):
        s.paragraph(
            box,
            r.pick(
                (
                    "Thank you for your business.",
                    "Please pay within the stated time.",
                    "All prices include tax.",
                    "Questions? Call us any time.",
                    v.sentence(r),
                )
            ),
        )


def receipt(s: Setter, box: Box) -> None:
    r, amount, name = s.r, v.money_format(s.r), v.shop(s.r)
    s.heading(box, name, [Fact("store", name)], r.pick("ccl"))
    lines = []
    if r.chance(0.6):
        lines.append((v.street(r), None))
    if r.chance(0.5):
        lines.append((v.town(r), None))
    if r.chance(0.4):
        phone = v.phone(r)
        lines.append((r.pick(("Tel ", "", "Phone ", "Tel: ")) + phone, Fact("phone", phone)))
    s.lines(box, lines, r.pick("ccl"))
    day, time = v.date(r), v.time_of_day(r)
    meta = []
    if r.chance(0.3):
        s.lines(box, [(f"{day} {time}", None)])
        s.facts += (
            [Fact("date", day), Fact("time", time)] if s.canvas.items and s.canvas.items[-1][2].startswith(day) else []
        )
    else:
        meta.append(_entry("date", "Date", day))
        if r.chance(0.6):
            meta.append(_entry("time", "Time", time))
    for key, labels, make, chance in (
        ("cashier", ("Cashier", "Served by", "Clerk", "Server"), v.first_name, 0.4),
        ("receipt_number", ("Receipt No", "Receipt #", "Receipt", "Ticket", "Bill No"), v.code, 0.45),
        ("table_number", ("Table", "Table No"), lambda r: str(r.randint(1, 60)), 0.15),
        ("card", ("Card", "Paid by"), lambda r: r.pick(("VISA", "Mastercard", "Cash", "Debit")), 0.15),
    ):
        if r.chance(chance):
            meta.append(_entry(key, r.pick(labels), make(r)))
    s.fields(box, meta, r.pick(("colon", "right", "tab", None)))
    s.rule(box)
    subtotal = _items(s, box, amount, detailed=r.chance(0.3))
    s.rule(box)
    _totals(s, box, amount, subtotal, receipt=True)
    if r.chance(0.5):
        s.lines(
            box,
            [
                (
                    r.pick(
                        ("Thank you!", "Thank you for your visit", "Please come again", "Have a nice day", "Goodbye")
                    ),
                    None,
                )
            ],
            "c",
        )


FORM_NAMES = (
    "Registration Form", "Application Form", "Employee Record", "Patient Record", "Booking Confirmation", "Order Form",
    "Shipping Label", "Boarding Pass", "Membership Card", "Report Card", "Work Order", "Identity Card", "Claim Form",
    "Pay Slip", "Utility Bill", "Delivery Note", "Inspection Report", "Account Statement", "Event Ticket", "Lab Report",
    "Rental Agreement", "Visitor Pass", "Service Report", "Travel Itinerary", "Product Label", "Certificate", "Data Sheet",
)  # fmt: skip


def form(s: Setter, box: Box) -> None:
    r = s.r
    if r.chance(0.8):
        _title(s, box, r.pick(FORM_NAMES), v.phrase(r, 1, 2).title() + " Form", r.pick(FORM_NAMES))
    if r.chance(0.3):
        _letterhead(s, box)
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


def _row_names(r: v.Rng) -> tuple[str, Callable[[v.Rng], str]]:
    heading, make = r.pick(
        (
            (("Region", "City", "Place", "Branch"), v.city),
            (("Name", "Player", "Student", "Employee"), v.first_name),
            (("Name", "Employee", "Member"), v.person),
            (("Product", "Item", "Article"), lambda r: v.item(r, 0)),
            (("Team", "Company", "Brand"), v.name_word),
            (("Country",), v.country),
            (("Month",), lambda r: r.pick(v.MONTHS)),
            (("Day", "Weekday"), lambda r: r.pick(v.WEEKDAYS)),
            (("Year",), lambda r: str(r.randint(1990, 2030))),
            (("Department", "Division"), lambda r: r.pick(v.DEPARTMENTS)),
            (("Code", "ID", "Article No"), v.code),
            (("Date",), lambda r: v.date(r, 1)),
            (("Test", "Parameter", "Substance", "Dish"), v.name_word),
            (("Booking", "Description", "Payee", "Text", "Shop"), v.shop),
            (("Company", "Supplier", "Customer"), v.company),
            (("Work", "Service", "Task", "Item"), lambda r: v.item(r, 0.7)),
        )
    )
    return r.pick(heading), make


def _amounts(render: Callable[[int], str]) -> Callable[[v.Rng], str]:
    return lambda r: render(v.cents(r, 2, 5))


def _signed(render: Callable[[int], str]) -> Callable[[v.Rng], str]:
    return lambda r: ("-" if r.chance(0.5) else r.pick(("", "", "+"))) + render(v.cents(r, 2, 5))


_NUMBER_COLUMNS = (
    "Revenue Profit Cost Units Price Score Rank Age Weight Sales Stock Rate Goals Wins Points Hours Pages Votes Visits Orders "
    "Budget Balance Debit Credit Result Limit Fee Amount Total 2019 2020 2021 2022 2023 2024 2025 Q1 Q2 Q3 Q4"
).split()
_TEXT_COLUMNS: tuple[tuple[str, Callable[[v.Rng], str]], ...] = (
    ("City", v.city), ("Manager", v.last_name), ("Date", lambda r: v.date(r, 1)), ("Start", v.time_of_day), ("End", v.time_of_day),
    ("Room", lambda r: str(r.randint(1, 400))), ("Status", lambda r: r.pick(("Open", "Done", "Late", "Paid", "New", "Yes", "No"))),
    ("Unit", lambda r: r.pick(("mg", "ml", "kg", "g/l", "mmol", "m/s", "hours", "pieces", "%", "km", "mm", "U/l", "pg", "C"))),
    ("Limits", lambda r: f"{r.randint(0, 60)}{r.pick((' - ', '-'))}{r.randint(61, 400)}"), ("Hours", lambda r: f"{r.randint(6, 11)}:00 - {r.randint(12, 22)}:30"),
    ("Code", v.code), ("Teacher", v.last_name), ("Type", v.name_word), ("Color", lambda r: r.pick(v.COLOURS)), ("Owner", v.first_name),
)  # fmt: skip


def _letterhead(s: Setter, box: Box) -> None:
    """A company on top and a customer's address, neither of them labelled."""
    r = s.r
    if r.chance(0.7):
        company = v.company(r)
        s.heading(box, company, [Fact("issuer", company)])
    if r.chance(0.6):
        customer = v.person(r)
        extra = [(a, b, Fact("field", b, a)) for a, b in field_entries(r, r.randint(0, 2), 0)]
        if r.chance(0.5):
            s.columns(box, lambda b: _party(s, b, None, customer, "customer"), lambda b: s.fields(b, extra))
        else:
            _party(s, box, r.pick((None, None, "To", "Customer")), customer, "customer")
            s.fields(box, extra)


def program(s: Setter, box: Box, headed: bool = True) -> None:
    """Lists of things with unlabelled details: agendas, careers, itineraries, menus, contact lists."""
    r = s.r
    theme = r.randint(0, 7)
    things: list[tuple[str, Callable[[v.Rng], str]]]
    room = lambda r: f"{r.pick(('Room', 'Hall', 'Stage', 'Floor'))} {r.pick(('', 'A', 'B', 'C'))}{r.randint(1, 40)}"  # noqa: E731
    years = lambda r: f"{(y := r.randint(1985, 2020))}{r.pick(('-', ' - '))}{y + r.randint(1, 9)}"  # noqa: E731
    if theme == 0:
        titles, subject = ("Agenda", "Conference", "Festival", "Programme", "Course plan"), v.phrase
        things = [("time", v.time_of_day), ("speaker", v.person), ("room", room)]
        subject = r.pick((v.phrase, v.phrase, lambda r: f"{v.name_word(r)} {r.pick(v.WORK)}", v.name_word))
    elif theme == 1:
        titles, subject = (v.person(r), v.person(r)), v.company
        things = [("job", lambda r: f"{r.pick(v.DEPARTMENTS)} {r.pick(v.JOBS)}"), ("period", years), ("city", v.city)]
    elif theme == 2:
        titles, subject = ("Itinerary", "Departures", "Arrivals", "Connections"), v.city
        things = [
            (r.pick(("departure", "arrival")), v.time_of_day),
            ("platform", lambda r: str(r.randint(1, 24))),
        ]
    elif theme == 3:
        titles, subject = ("Menu", "Price List", "Offers", "Our Services"), v.item
        things = [
            ("price", v.money_format(r)),
            ("size", lambda r: f"{r.randint(1, 900)} {r.pick(('g', 'ml', 'kg', 'cm'))}"),
        ]
        render = things[0][1]
        things[0] = ("price", lambda r: render(v.cents(r, 2, 4.5)))
    elif theme == 4:
        titles, subject = ("Contacts", "Our Team", "Members", "Staff"), v.person
        things = [("phone number", v.phone), ("department", lambda r: r.pick(v.DEPARTMENTS)), ("email", v.email)]
    elif theme == 5:
        titles, subject = ("Tasks", "Plan", "To do", "Projects", "Minutes", "Repairs"), v.phrase
        things = [
            ("person", v.person),
            ("date", v.date),
            ("status", lambda r: r.pick(("open", "done", "late", "planned", "in work", "stopped"))),
        ]
    elif theme == 6:
        titles, subject = (
            ("Results", "Measurements", "Log", "Records", "Check"),
            lambda r: r.pick((v.name_word, v.item))(r),
        )
        things = [
            ("result", lambda r: f"{r.random() * 200:.1f} {r.pick(('mg', 'kg', 'points', 'cm', '%', 'ml'))}"),
            ("date", v.date),
            ("person", v.person),
        ]
    else:
        titles, subject = (
            ("Education", "Schools", "Events", "Courses"),
            lambda r: f"{r.pick(('University', 'School', 'College'))} of {v.city(r)}",
        )
        things = [
            (
                "degree",
                lambda r: (
                    f"{r.pick(('Bachelor', 'Master', 'Diploma'))} of {r.pick(('Arts', 'Science', 'Law', 'Music'))}"
                ),
            ),
            ("period", years),
        ]
    if headed:
        _title(s, box, *titles)
    if headed and r.chance(0.5):
        day, place = v.date(r), v.venue(r)
        if theme == 0:
            text, facts = (
                r.pick((f"{day}, {place}", f"{day} - {place}", f"{place}, {day}")),
                [Fact("date", day), Fact("meeting_place", place)],
            )
        else:
            phone, email = v.phone(r), v.email(r)
            text, facts = f"{email}{r.pick((', ', ' | ', '   '))}{phone}", [Fact("email", email), Fact("phone", phone)]
        s.paragraph(box, text, facts)
        s.gap(box)
    chosen = r.sample(things, r.randint(1, len(things)))
    rows, seen = [], set()
    for _ in range(r.randint(2, 9)):
        name = subject(r)
        if name.lower() not in seen:
            seen.add(name.lower())
            rows.append((name, [(attribute, make(r)) for attribute, make in chosen]))
    s.entries(box, rows)


def table(s: Setter, box: Box) -> None:
    r = s.r
    if r.chance(0.25):
        _letterhead(s, box)
    if r.chance(0.7):
        _title(
            s,
            box,
            f"{v.name_word(r)} {r.pick(('Report', 'Results', 'Overview', 'Statistics', 'Schedule', 'Summary', 'Timetable'))}",
            "Price List",
            "Table of Results",
            "Account Statement",
            "Timetable",
            "Stock List",
        )
    if r.chance(0.25):
        s.fields(box, [(a, b, Fact("field", b, a)) for a, b in field_entries(r, r.randint(1, 4), 0.1)])
        s.gap(box)
    heading, make = _row_names(r)
    number = r.pick(
        (
            v.count,
            lambda r: f"{r.random() * 100:.1f}",
            v.percent,
            lambda r: f"{int(10 ** r.uniform(2, 5)):,}",
            lambda r: str(r.randint(1, 999)),
            _amounts(v.money_format(r)),
            _signed(v.money_format(r)),
        )
    )
    n_columns = r.randint(1, 5) if box.width > 380 else r.randint(1, 3)
    names: list[str] = []
    makers: list[Callable[[v.Rng], str]] = []
    for _ in range(n_columns):
        if r.chance(0.25):
            name, maker = r.pick(_TEXT_COLUMNS)
        else:
            name = r.pick(_NUMBER_COLUMNS) if r.chance(0.75) else v.name_word(r)[:9]
            maker = number if r.chance(0.6) else r.pick((v.count, lambda r: str(r.randint(1, 999)), v.percent))
        if name not in names and name != heading:
            names.append(name)
            makers.append(maker)
    rows, seen = [], set()
    for _ in range(r.randint(2, 22)):
        name = make(r)
        if name.lower() not in seen:
            seen.add(name.lower())
            rows.append([name] + ["-" if r.chance(0.015) else maker(r) for maker in makers])
    align = ["l"] + [r.pick("rrlc")] * len(names)
    weights = [r.uniform(1.4, 2.6)] + [1.0 if len(n) < 7 else 1.25 for n in names]
    header, main = [heading, *names], 0
    lead, make_lead = r.pick(
        (
            ("Date", lambda r: v.date(r, 1)),
            ("Day", lambda r: v.date(r, 1)[: r.pick((5, 6))]),
            ("Time", v.time_of_day),
            ("No", v.count),
            ("Code", v.code),
        )
    )
    if r.chance(0.3) and lead not in header:  # what the rows are about stands in the second column
        header, main = [lead, *header], 1
        rows = [[make_lead(r), *row] for row in rows]
        align, weights = ["l", *align], [1.2, *weights]
        if r.chance(0.4):  # sums that belong to no row of their own
            total = r.pick(("Opening balance", "Carried over", "Total", "Sum", "Closing balance"))
            if names:
                sums = ["", total, *["" for _ in names[:-1]], number(r)]
                rows.insert(r.pick((0, len(rows))), sums)
    shown, drawn = s.table(box, header, rows, align, weights)
    for i in drawn:
        if rows[i][0] == "" and rows[i][-1] != "-":
            s.facts.append(Fact("field", rows[i][-1], rows[i][1]))
        for j, name in enumerate(header):
            if shown[j] and j != main and rows[i][j]:
                s.facts.append(Fact("cell", rows[i][j], name, rows[i][main]))
    if drawn and shown[0] and not main:
        s.facts.append(Fact("row_count", str(len(drawn)), heading)) if len(drawn) < 8 else None
        s.facts.append(Fact("first_row", rows[drawn[0]][0], heading))
        s.facts.append(Fact("last_row", rows[drawn[-1]][0], heading))
    if r.chance(0.2):
        s.paragraph(box, v.sentence(r))


def letter(s: Setter, box: Box) -> None:
    r = s.r
    sender, recipient, day = v.person(r), v.person(r), v.date(r)
    memo = r.chance(0.5)
    if memo:
        s.heading(box, r.pick(("Memo", "MEMO", "Memorandum", "Notice", "Letter", "Message", v.company(r))))
        subject = v.phrase(r)
        entries = [
            _entry("recipient", r.pick(("To", "For", "Recipient")), recipient),
            _entry("sender", r.pick(("From", "Sender")), sender),
            _entry("date", r.pick(("Date", "Sent")), day),
            _entry("subject", r.pick(("Subject", "Re", "Topic", "About")), subject),
        ]
        if r.chance(0.4):
            r.shuffle(entries)
        s.fields(box, entries, r.pick(("colon", "colon", "tab", None)))
        s.rule(box)
    else:
        if r.chance(0.5):
            name = v.company(r)
            s.heading(box, name, [Fact("issuer", name)])
            s.lines(box, [(v.street(r), None), (v.town(r), None)], r.pick("lcr"))
        s.lines(box, [(r.pick(("", "", v.city(r) + ", ")) + day, Fact("date", day))], r.pick("lr"))
        box.y += 6
        if r.chance(0.3):
            subject = v.phrase(r)
            s.lines(box, [(r.pick(("Subject: ", "Re: ", "About: ", "")) + subject, Fact("subject", subject))])
        s.lines(box, [(f"{r.pick(('Dear', 'Hello', 'Hi', 'Dear'))} {recipient},", Fact("recipient", recipient))])
        box.y += 4
    fixed = ("sender", "recipient", "date", "issuer")
    for statement in [chosen for chosen in r.sample(STATEMENTS, r.randint(1, 7)) if chosen.key not in fixed]:
        value = statement.value(r)
        text = r.pick(statement.sentences).format(value)
        if r.chance(0.3):
            text = f"{text} {v.sentence(r)}" if r.chance(0.5) else f"{v.sentence(r)} {text}"
        s.paragraph(box, text, [Fact(statement.key, value)])
        box.y += r.pick((0, 0, s.style.leading, 8))
    s.lines(
        box,
        [
            (
                r.pick(
                    ("Sincerely,", "Best regards,", "Yours,", "Kind regards,", "Yours sincerely,", "With best wishes,")
                ),
                None,
            )
        ],
    )
    if not memo or r.chance(0.3):
        s.lines(box, [(sender, None if memo else Fact("sender", sender))])


def text(s: Setter, box: Box) -> None:
    r = s.r
    if r.chance(0.4):  # lines of mixed content and sizes: reading, not layout
        makers = (
            v.word,
            v.name_word,
            v.count,
            v.code,
            lambda r: v.word(r).upper(),
            v.city,
            v.date,
            v.money,
            v.email,
            v.time_of_day,
            v.phone,
            v.person,
        )
        while box.fits(s.style.body.height):
            line = " ".join(r.pick(makers)(r) for _ in range(r.randint(1, 6)))
            while line and s.style.body.width(line) > box.width:
                line = line.rpartition(" ")[0]
            if line:
                s.lines(box, [(line, None)], r.pick("llcr"))
            box.y += r.randint(0, 5)
            if r.chance(0.04):
                break
    else:
        if r.chance(0.5):
            _title(s, box, v.phrase(r))
        while s.paragraph(box, " ".join(v.sentence(r) for _ in range(r.randint(1, 4)))):
            box.y += r.randint(0, 10)
            if r.chance(0.15):
                break
    for line in r.sample(s.canvas.lines(), min(3, len(s.canvas.lines()))):
        tokens = line.split()
        if len(tokens) > 2:
            at = r.randint(0, len(tokens) - 3)
            s.facts.append(Fact("next_word", tokens[at + 2], subject=f"{tokens[at]} {tokens[at + 1]}"))


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
