"""Templates of invoices, bills, statements and other papers about money and goods."""

# ruff: noqa: E501  (HTML and CSS)

from __future__ import annotations

from html import escape

from training.heldout.templates.markup import Layout, ask, distinct, full_name, month_dates, pairs, rows, street_address
from training.pages import Rng
from training.pages import values as v


def invoice(r: Rng) -> Layout:
    seller, buyer = v.company(r), v.company(r)
    number, (date, due), money = v.code(r), month_dates(r, 2, 3), v.money_format(r)
    items = distinct(r, lambda r: v.item(r), r.randint(3, 5))
    lines = [(name, r.randint(1, 12), r.randint(300, 40000)) for name in items]
    net = sum(n * price for _, n, price in lines)
    tax = net * 19 // 100
    iban = f"DE{v.digits(r, 2)} {v.digits(r, 4)} {v.digits(r, 4)} {v.digits(r, 2)}"
    name, count, price = r.pick(lines)
    body = (
        f"<header><h1>{escape(seller)}</h1><p>{street_address(r)} &middot; {r.pick(v.CITIES)}</p></header><section class=two><div>"
        f"<h4>Billed to</h4><p>{escape(buyer)}</p><p>{street_address(r)}</p><p>{v.postcode(r)} {r.pick(v.CITIES)}</p></div><div>"
        + pairs([("Invoice no.", number), ("Issued", date), ("Payable by", due)])
        + "</div></section><table>"
        + rows([("Description", "Qty", "Unit", "Amount")], "th")
        + rows([(n, str(c), money(p), money(c * p)) for n, c, p in lines])
        + "</table><div class=sum>"
        + pairs([("Net", money(net)), ("VAT 19%", money(tax)), ("Total due", money(net + tax))])
        + f"</div><footer>Please transfer to {iban}</footer>"
    )
    style = """header{background:var(--accent);color:#fff;padding:18px 28px}header h1{font-size:24px}header p{font-size:13px}
    .two{display:flex;gap:40px;padding:20px 28px}.two>div{flex:1}.p{display:flex;justify-content:space-between;padding:3px 0}
    h4{color:var(--accent);margin-bottom:4px}table{margin:8px 28px;width:calc(100% - 56px)}th{text-align:left;border-bottom:2px
    solid var(--accent)}td,th{padding:7px 4px}td:nth-child(n+2),th:nth-child(n+2){text-align:right}.sum{margin:14px 28px 0 52%}
    .sum .p:last-child{border-top:2px solid #333;font-size:17px;margin-top:4px}footer{position:absolute;bottom:22px;left:28px}"""
    asks = (
        ask("total", money(net + tax), "What is the total?", "How much do I have to pay?", "How much is due in total?"),
        ask("invoice_number", number, "What is the invoice number?", "Which number does the invoice have?"),
        ask("due_date", due, "When is the payment due?", "By when do I have to pay?", "What is the due date?"),
        ask("customer", buyer, "Who is the customer?", "Who is billed?"),
        ask("issuer", seller, "Which company is it from?", "Who issued it?"),
        ask("tax", money(tax), "How much is the tax?", "What is the VAT?"),
        ask("item_amount", money(count * price), f"How much is {name}?", f"What is the amount for {name}?"),
        ask("item_quantity", str(count), f"How many {name} were ordered?", f"What is the quantity of {name}?"),
    )
    return Layout("invoice", 784, 560, style, body, asks)


def hotel_bill(r: Rng) -> Layout:
    hotel, guest, room = f"Hotel {v.name_word(r)}", full_name(r), str(r.randint(101, 720))
    (arrival, departure), number, money = month_dates(r, 2, 4), v.digits(r, 6), v.money_format(r)
    extras = distinct(r, lambda r: r.pick(("Breakfast", "Minibar", "Parking", "Laundry", "Spa entry", "Dinner")), 3)
    nights, rate = int(departure.split()[0]) - int(arrival.split()[0]), r.randint(60, 260) * 100
    charges = [("Accommodation", nights * rate), *((extra, r.randint(500, 9000)) for extra in extras)]
    total = sum(cost for _, cost in charges)
    extra, cost = r.pick(charges[1:])
    stay = [("Guest", guest), ("Room", room), ("Arrival", arrival), ("Departure", departure), ("Nights", str(nights))]
    body = (
        f"<h1>{hotel}</h1><div class=sub>{street_address(r)}, {r.pick(v.CITIES)}</div><div class=grid>"
        + "".join(f"<div><small>{a}</small><br>{escape(b)}</div>" for a, b in [*stay, ("Folio", number)])
        + "</div><table>"
        + "".join(f"<tr><td>{escape(a)}<td>{money(b)}</tr>" for a, b in charges)
        + f"</table><div class=total>Amount due <span>{money(total)}</span></div>"
        f"<p class=bye>Thank you for staying with us, {escape(guest)}.</p>"
    )
    style = """body{padding:34px 40px;text-align:center}h1{font-size:28px;color:var(--accent);letter-spacing:1px}.sub{margin-bottom:22px}
    .grid{display:grid;grid-template-columns:1fr 1fr 1fr;border:1px solid #999;text-align:left;font-size:15px}.grid>div{padding:9px 12px;
    border:1px solid #ccc}small{color:#555;font-size:12px}table{width:100%;margin-top:26px;text-align:left}td{padding:9px 6px;border-bottom:
    1px dotted #888}td+td{text-align:right}.total{background:#eee;padding:12px;margin-top:16px;text-align:left;font-size:18px;font-weight:
    bold}.total span{float:right}.bye{margin-top:46px;font-style:italic}"""
    asks = (
        ask("customer", guest, "Who is the guest?", "What is the name of the guest?"),
        ask("field", room, "What is the room?", "Which room is it?", "What is the room number?"),
        ask("field", arrival, "What is the arrival date?", "What is the arrival?"),
        ask("field", departure, "What is the departure date?", "When is the departure?"),
        ask("field", str(nights), "How many nights?", "What is the number of nights?"),
        ask("total", money(total), "What is the amount due?", "How much has to be paid?", "How much is the bill?"),
        ask("item_amount", money(cost), f"How much is {extra}?", f"What is the amount for {extra}?"),
    )
    return Layout("hotel bill", 784, 560, style, body, asks)


def pay_slip(r: Rng) -> Layout:
    company, name, number = v.company(r), full_name(r), v.digits(r, 5)
    month = f"{r.pick(v.MONTHS)} {r.randint(2019, 2030)}"
    department, job, money = r.pick(v.DEPARTMENTS), r.pick(v.JOBS), v.money_format(r)
    gross, bonus, tax, pension = (
        r.randint(18, 70) * 10000,
        r.randint(1, 60) * 1000,
        r.randint(20, 90) * 1000,
        r.randint(10, 40) * 1000,
    )
    earned = gross + bonus
    net = earned - tax - pension
    body = (
        f"<div class=top><div><h2>PAY SLIP</h2>{month}</div><div class=r>{escape(company)}<br>{street_address(r)}</div></div><table class=who>"
        + rows([("Employee", "Personnel no.", "Department", "Position")], "th")
        + rows([(name, number, department, job)])
        + "</table><div class=cols><div><h3>Earnings</h3>"
        + pairs([("Basic salary", money(gross)), ("Bonus", money(bonus)), ("Gross pay", money(earned))])
        + "</div><div><h3>Deductions</h3>"
        + pairs([("Income tax", money(tax)), ("Pension", money(pension)), ("Sum", money(tax + pension))])
        + f"</div></div><div class=net>Net pay<span>{money(net)}</span></div>"
    )
    style = """body{padding:26px;font-size:14px}.top{display:flex;justify-content:space-between;border-bottom:5px solid var(--accent);padding-bottom:12px}
    .r{text-align:right}.who{width:100%;margin:22px 0;border:1px solid #777}.who th{background:#e4e4e4;text-align:left}.who td,.who th{padding:6px
    8px;border:1px solid #777}.cols{display:flex;gap:36px}.cols>div{flex:1}h3{font-size:15px;color:var(--accent);margin-bottom:6px}.p{display:flex;
    justify-content:space-between;padding:5px 0;border-bottom:1px solid #ddd}.p b{font-weight:normal}.p:last-child{font-weight:bold}.net{margin-top:
    34px;border:2px solid #222;padding:12px 16px;font-size:18px}.net span{float:right}"""
    asks = (
        ask("field", name, "Who is the employee?", "What is the name of the employee?", "What is the employee?"),
        ask("field", number, "What is the personnel number?", "What is the personnel no?"),
        ask("field", department, "Which department is shown?", "What is the department?"),
        ask("field", job, "What is the position?", "Which position is shown?"),
        ask("field", money(net), "How much is the net pay?", "What is the net pay?"),
        ask("field", money(bonus), "How much is the bonus?", "What is the bonus?"),
        ask("field", money(tax), "How much is the income tax?", "What is the income tax?"),
        ask("issuer", company, "Which company is it from?", "What is the company?"),
    )
    return Layout("pay slip", 616, 672, style, body, asks)


def utility_bill(r: Rng) -> Layout:
    supplier = f"{v.name_word(r)} {r.pick(('Energy', 'Water', 'Power', 'Gas'))}"
    name, account, meter, due, money = full_name(r), v.digits(r, 8), v.code(r), v.date(r, 7), v.money_format(r)
    old, used, price, base = r.randint(1000, 90000), r.randint(80, 2400), r.randint(11, 60), r.randint(400, 2500)
    total = used * price + base
    city = r.pick(v.CITIES)
    body = (
        f"<div class=side><h2>{supplier}</h2><h5>Your account</h5><p>{account}</p><h5>Meter</h5><p>{escape(meter)}</p><h5>Questions?</h5><p>"
        f"{v.phone(r)}</p></div><div class=main><p>{escape(name)}<br>{street_address(r)}<br>{city}</p><div class=big><span>Please pay</span><b>"
        f"{money(total)}</b><span>by {due}</span></div><table>"
        + rows([("Reading", "Value")], "th")
        + rows([("Previous", f"{old}"), ("Current", f"{old + used}"), ("Used", f"{used} units")])
        + "</table><table>"
        + rows([("Charge", "Cost")], "th")
        + rows([("Usage", money(used * price)), ("Standing charge", money(base))])
        + "</table></div>"
    )
    style = """body{display:flex}.side{background:var(--accent);color:#fff;width:190px;padding:26px 18px;font-size:14px}.side h2{font-size:21px;
    margin-bottom:36px}.side h5{font-size:12px;margin-top:18px;font-weight:normal}.side p{font-weight:bold}.main{flex:1;padding:40px 30px}.big{border:3px
    solid var(--accent);border-radius:12px;padding:14px;margin:26px 0;text-align:center}.big b{display:block;font-size:27px;padding:4px}table{width:100%;
    margin-bottom:22px}th{text-align:left;background:#f0f0f0}td,th{padding:7px 8px;border-bottom:1px solid #ccc}td+td,th+th{text-align:right}"""
    asks = (
        ask("total", money(total), "How much do I have to pay?", "How much has to be paid?", "What do I have to pay?"),
        ask("due_date", due, "By when do I have to pay?", "When must it be paid?", "Until when can I pay?"),
        ask("issuer", supplier, "Which company is it from?", "Who is the supplier?"),
        ask("field", account, "What is the account number?", "What is the account?"),
        ask("field", meter, "What is the meter number?", "What is the meter?"),
        ask("cell", f"{old + used}", "What is the current reading?", "What is the current value?"),
        ask("item_amount", money(base), "How much is the standing charge?", "What is the standing charge?"),
        ask("customer", name, "Who is the customer?", "Who has to pay?"),
    )
    return Layout("utility bill", 784, 588, style, body, asks)


def bank_statement(r: Rng) -> Layout:
    bank, name, account = f"{v.name_word(r)} Bank", full_name(r), f"{v.digits(r, 4)} {v.digits(r, 4)} {v.digits(r, 2)}"
    opening, texts = r.randint(10000, 900000), distinct(r, v.shop, 6)
    moves = [r.choice((-1, -1, 1)) * r.randint(500, 90000) for _ in texts]
    days = sorted(r.sample(range(1, 29), 6))
    month = r.randint(1, 12)
    period = f"{v.MONTHS[month - 1]} {r.randint(2018, 2030)}"
    closing = opening + sum(moves)

    def amount(cents: int) -> str:
        return f"{cents / 100:,.2f}"

    lines = [
        (f"{day:02d}.{month:02d}.", text, amount(move)) for day, text, move in zip(days, texts, moves, strict=True)
    ]
    body = (
        f"<h1>{bank}</h1><div class=m><div>{name}<br>{street_address(r)}</div><div>Account {account}<br>{period}</div></div><table>"
        + rows([("Date", "Transaction", "Amount")], "th")
        + f"<tr class=o><td><td>Opening balance<td>{amount(opening)}</tr>"
        + rows(lines)
        + f"<tr class=o><td><td>Closing balance<td>{amount(closing)}</tr></table>"
    )
    style = """body{padding:30px}h1{font-size:25px;color:var(--accent);border-bottom:1px solid var(--accent);padding-bottom:8px}.m{display:flex;justify-content:
    space-between;margin:18px 0 26px;line-height:1.5}.m div+div{text-align:right}table{width:100%;font-size:15px}th{text-align:left;border-top:1px solid
    #444;border-bottom:1px solid #444}td,th{padding:8px 4px}td:last-child,th:last-child{text-align:right}.o td{font-weight:bold;background:#f1f1f1}"""
    first, second = r.sample(lines, 2)
    asks = (
        ask("field", amount(closing), "What is the closing balance?", "How much is the closing balance?"),
        ask("field", amount(opening), "What is the opening balance?", "How much is the opening balance?"),
        ask("account", account, "What is the account number?", "Which account is shown?"),
        ask("cell", first[2], f"What is the amount for {first[1]}?", f"How much is {first[1]}?"),
        ask("cell", second[0], f"What is the date of {second[1]}?", f"Which date does {second[1]} have?"),
        ask("customer", name, "Who is the customer?", "What is the name of the customer?"),
        ask("issuer", bank, "What is the name of the bank?", "Which company is it from?"),
    )
    return Layout("bank statement", 728, 588, style, body, asks)


def delivery_note(r: Rng) -> Layout:
    sender, receiver, number, order = v.company(r), v.company(r), v.code(r), v.digits(r, 6)
    date, driver = v.date(r, 2), full_name(r)
    items = distinct(r, lambda r: v.item(r, 0), 5)
    lines = [(str(i), v.digits(r, 4), name, str(r.randint(1, 250))) for i, name in enumerate(items, 1)]
    boxes = str(r.randint(2, 30))
    body = (
        f"<h1>Delivery note</h1><div class=a><div><h5>FROM</h5>{escape(sender)}<br>{street_address(r)}</div><div><h5>TO</h5>{escape(receiver)}<br>{street_address(r)}</div></div>"
        f"<div class=strip><span>No. <b>{escape(number)}</b></span><span>Order <b>{order}</b></span><span>Date <b>{date}</b></span></div><table>"
        + rows([("Pos", "Article", "Description", "Pieces")], "th")
        + rows(lines)
        + f"</table><div class=b><div>Boxes: {boxes}</div><div>Driver: {driver}</div></div><div class=sig>Received by</div>"
    )
    style = """body{padding:30px 34px}h1{font-size:26px;text-align:right;color:var(--accent)}.a{display:flex;gap:26px;margin:18px 0}.a>div{flex:1;border:1px solid #888;
    padding:10px;line-height:1.45}h5{font-size:12px;color:#555}.strip{display:flex;justify-content:space-between;border-top:2px solid #333;border-bottom:2px
    solid #333;padding:8px 0;margin-bottom:16px}table{width:100%}td,th{border:1px solid #888;padding:7px;text-align:left}td:last-child{text-align:right}.b{
    display:flex;justify-content:space-between;margin:22px 0 70px;font-size:16px}.sig{border-top:1px solid #333;width:220px;font-size:12px;padding-top:4px}"""
    first, second = r.sample(lines, 2)
    asks = (
        ask("field", number, "What is the number of the delivery note?", "What is the delivery note number?"),
        ask("order_number", order, "What is the order number?", "Which order is it for?"),
        ask("date", date, "What is the date?", "What date is printed?"),
        ask("issuer", sender, "Which company is it from?", "Who sent it?"),
        ask("customer", receiver, "Who is it for?", "Who is the recipient?"),
        ask("cell", first[3], f"How many {first[2]}?", f"How many pieces of {first[2]}?"),
        ask("cell", second[1], f"What is the article number of {second[2]}?", f"{second[2]}: article?"),
        ask("field", driver, "Who is the driver?", "What is the name of the driver?"),
        ask("box_count", boxes, "How many boxes are there?", "What is the number of boxes?"),
    )
    return Layout("delivery note", 784, 588, style, body, asks)


def quote(r: Rng) -> Layout:
    company, client, number, valid, money = v.company(r), full_name(r), v.code(r), v.date(r, 3), v.money_format(r)
    tasks = distinct(r, lambda r: f"{v.name_word(r)} {r.pick(v.WORK)}", 3)
    costs = [r.randint(2000, 300000) for _ in tasks]
    weeks = f"{r.randint(2, 16)} weeks"
    task, cost = r.pick(list(zip(tasks, costs, strict=True)))
    author = full_name(r)
    body = (
        f"<div class=r>{escape(company)}<br>{street_address(r)}<br>{r.pick(v.CITIES)}</div><p class=to>To {client}</p><h1>Quote {escape(number)}</h1><p>Thank you for your "
        "interest. We are pleased to offer:</p><ol>"
        + "".join(f"<li><b>{a}</b><span>{money(b)}</span></li>" for a, b in zip(tasks, costs, strict=True))
        + f"</ol><p class=t>All together {money(sum(costs))}</p><p>The work takes {weeks}. This quote is valid until {valid}.</p><p>Kind regards,<br>{author}</p>"
    )
    style = """body{padding:44px;font-size:16px;line-height:1.5}.r{text-align:right;color:var(--accent)}.to{margin:20px 0}h1{font-size:23px;margin-bottom:12px}ol{margin:
    18px 0 10px 26px}li{padding:8px 0}li b{font-weight:normal}li span{float:right}.t{border-top:2px solid var(--accent);text-align:right;font-weight:bold;
    padding-top:6px;margin-bottom:26px}p{margin-bottom:12px}"""
    asks = (
        ask(
            "total", money(sum(costs)), "How much does it cost in total?", "What is the total?", "How much altogether?"
        ),
        ask("reference", number, "What is the number of the quote?", "What is the quote number?"),
        ask("field", valid, "Until when is the quote valid?", "What is the last day of the quote?"),
        ask("item_amount", money(cost), f"How much is {task}?", f"How much does {task} cost?"),
        ask("sender", author, "Who wrote this?", "Who signed the letter?"),
        ask("recipient", client, "Who is it addressed to?", "Who is it for?"),
        ask("issuer", company, "Which company is it from?", "What is the company?"),
        ask("field", weeks, "How long does the work take?", "How many weeks does it take?"),
    )
    return Layout("quote", 784, 560, style, body, asks)
