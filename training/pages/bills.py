"""Invoices and receipts: their items, totals and payment lines."""

from __future__ import annotations

from collections.abc import Callable

from training.pages import values as v
from training.pages.blocks import Box, Setter
from training.pages.facts import Fact
from training.pages.parts import Entry, labelled, party


def _invoice_fields(r: v.Rng, day: int) -> list[Entry]:
    """Numbers, terms, a contact and dates of one style, in any order."""
    meta = [
        labelled(
            "invoice_number",
            r.pick(("Invoice No", "Invoice #", "Invoice Number", "Inv. No", "Invoice ID", "Number")),
            v.code(r),
        ),
        labelled("date", r.pick(("Date", "Invoice Date", "Issued", "Date of Issue", "Issue Date")), v.date(r, day)),
    ]
    if r.chance(0.6):
        meta.append(
            labelled("due_date", r.pick(("Due Date", "Payment Due", "Due", "Pay By", "Due By")), v.date(r, day))
        )
    if r.chance(0.35):
        meta.append(
            labelled(
                "order_number",
                r.pick(("PO Number", "P.O. No", "Order No", "Purchase Order", "Order Number")),
                v.code(r),
            )
        )
    if r.chance(0.25):
        meta.append(labelled("customer_number", r.pick(("Customer No", "Customer ID", "Client No")), v.code(r)))
    if r.chance(0.3):
        terms = r.pick(
            ("Net 30", "Net 15", "Net 60", "Due on receipt", "30 days", "14 days", "Cash on delivery", "Prepaid")
        )
        meta.append(labelled("terms", r.pick(("Terms", "Payment Terms")), terms))
    if r.chance(0.2):
        meta.append(labelled("contact", r.pick(("Contact", "Sales Rep", "Salesperson", "Contact Person")), v.person(r)))
    if r.chance(0.3):
        r.shuffle(meta)
    return meta


def invoice(s: Setter, box: Box) -> None:
    r, amount, day = s.r, v.money_format(s.r), s.r.randint(0, 9)
    seller = v.company(r)
    customer = v.person(r) if r.chance(0.5) else v.company(r)
    meta = _invoice_fields(r, day)
    as_field = r.chance(0.4)
    if as_field:
        meta.insert(
            r.randint(0, len(meta)),
            labelled("customer", r.pick(("Customer", "Bill To", "Client", "Billed To", "Sold To")), customer),
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
            party(s, box, r.pick(("Bill To", "Bill to:", "To:", "Customer", "Billed to")), customer, "customer")
        s.fields(box, meta)
    elif layout == 1:  # seller left, number and dates right
        if r.chance(0.8):
            s.heading(box, r.pick(words))
        s.columns(box, lambda b: party(s, b, None, seller, "issuer"), lambda b: s.fields(b, meta))
        if not as_field:
            party(s, box, r.pick(("Bill To", "Bill to:", "To:", "Customer", "Invoice to")), customer, "customer")
    elif layout == 2:  # parties side by side
        s.heading(box, r.pick(words))
        s.columns(
            box,
            lambda b: party(s, b, r.pick(("From", "From:", "Seller", "Issued by")), seller, "issuer"),
            lambda b: party(s, b, r.pick(("To", "Bill To", "Customer", "Billed to:")), customer, "customer"),
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
            lambda b: None if as_field else party(s, b, r.pick(("Bill To", "Customer", "To")), customer, "customer"),
            lambda b: s.fields(b, meta),
        )
    s.gap(box)
    subtotal = item_table(s, box, amount, detailed=r.chance(0.8))
    totals(s, box, amount, subtotal)
    _footer(s, box)


def item_table(s: Setter, box: Box, amount: Callable[[int], str], detailed: bool, priced: bool = True) -> int:
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


def totals(s: Setter, box: Box, amount: Callable[[int], str], subtotal: int, receipt: bool = False) -> None:
    r, entries = s.r, []
    total, rate = subtotal, r.randint(3, 25)
    if r.chance(0.7):
        entries.append(
            labelled(
                "subtotal", r.pick(("Subtotal", "Sub Total", "Net Amount", "Net Total", "Sub-total")), amount(subtotal)
            )
        )
    if r.chance(0.75):
        label = r.pick(("Tax", "VAT", "Sales Tax", f"Tax ({rate}%)", f"VAT {rate}%", f"Tax {rate}%"))
        entries.append(labelled("tax", label, amount(subtotal * rate // 100)))
        total += subtotal * rate // 100
    if r.chance(0.3):
        cost = r.randint(100, 9000)
        entries.append(labelled("shipping", r.pick(("Shipping", "Delivery", "Freight", "Postage")), amount(cost)))
        total += cost
    if r.chance(0.2):
        discount = r.randint(1, subtotal // 4 + 2)
        entries.append(labelled("discount", r.pick(("Discount", "Rebate")), r.pick(("", "-")) + amount(discount)))
        total -= discount
    label = r.pick(
        ("Total", "TOTAL", "Total Due", "Amount Due", "Grand Total", "Balance Due", "Total Amount", "Amount Payable")
    )
    entries.append(labelled("total", label, amount(total)))
    if receipt and r.chance(0.5):
        paid = total + r.randint(0, 5000)
        entries.append(labelled("paid", r.pick(("Cash", "Card", "Paid", "Amount Paid")), amount(paid)))
        if paid > total:
            entries.append(labelled("change", r.pick(("Change", "Change Due")), amount(paid - total)))
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
                labelled(
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
        meta.append(labelled("date", "Date", day))
        if r.chance(0.6):
            meta.append(labelled("time", "Time", time))
    for key, labels, make, chance in (
        ("cashier", ("Cashier", "Served by", "Clerk", "Server"), v.first_name, 0.4),
        ("receipt_number", ("Receipt No", "Receipt #", "Receipt", "Ticket", "Bill No"), v.code, 0.45),
        ("table_number", ("Table", "Table No"), lambda r: str(r.randint(1, 60)), 0.15),
        ("card", ("Card", "Paid by"), lambda r: r.pick(("VISA", "Mastercard", "Cash", "Debit")), 0.15),
    ):
        if r.chance(chance):
            meta.append(labelled(key, r.pick(labels), make(r)))
    s.fields(box, meta, r.pick(("colon", "right", "tab", None)))
    s.rule(box)
    subtotal = item_table(s, box, amount, detailed=r.chance(0.3))
    s.rule(box)
    totals(s, box, amount, subtotal, receipt=True)
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
