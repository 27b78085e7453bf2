"""Business documents in HTML and CSS. Nothing of their make-up is shared with the page generator of training.

A template draws its values, returns the body, its style and what can be asked. Every answer stands on the page as text.
"""

# ruff: noqa: E501  (HTML and CSS)

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

from training.pages import Rng
from training.pages import values as v


@dataclass(frozen=True)
class Ask:
    """A question in one of several wordings, and its answers."""

    key: str
    wordings: tuple[str, ...]
    answers: tuple[str, ...]


@dataclass(frozen=True)
class Layout:
    """One page: size in CSS pixels, which are the model's pixels; ``style`` may use --accent, --head and --body."""

    kind: str
    height: int
    width: int
    style: str
    body: str
    asks: tuple[Ask, ...]


def ask(key: str, answer: str | Sequence[str], *wordings: str) -> Ask:
    return Ask(key, wordings, (answer,) if isinstance(answer, str) else tuple(answer))


def rows(cells: Sequence[Sequence[str]], tag: str = "td") -> str:
    """Table rows of escaped cells."""
    return "".join("<tr>" + "".join(f"<{tag}>{escape(c)}</{tag}>" for c in row) + "</tr>" for row in cells)


def pairs(fields: Sequence[tuple[str, str]], tag: str = "div") -> str:
    """Label and value in a row each."""
    return "".join(f"<{tag} class=p><b>{escape(a)}</b><span>{escape(b)}</span></{tag}>" for a, b in fields)


def distinct(r: Rng, draw: Callable[[Rng], str], n: int) -> list[str]:
    """``n`` different values whose words do not repeat."""
    found: list[str] = []
    while len(found) < n:
        value = draw(r)
        if not set(value.lower().split()) & {word for other in found for word in other.lower().split()}:
            found.append(value)
    return found


def _person(r: Rng) -> str:
    return f"{r.pick(v.FIRST_NAMES)} {r.pick(v.LAST_NAMES)}"


def _dates(r: Rng, n: int, style: int) -> list[str]:
    """``n`` dates of one month in their order, in a style of ``values.date``."""
    year, month = r.randint(2012, 2031), r.randint(1, 12)
    name = v.MONTHS[month - 1]
    days = sorted(r.sample(range(1, 29), n))
    forms = {3: "{n} {d}, {y}", 4: "{d} {a} {y}"}
    return [forms[style].format(n=name, a=name[:3], d=day, y=year) for day in days]


def _street(r: Rng) -> str:
    return f"{r.randint(1, 240)} {r.pick(v.STREETS)} {r.pick(('Street', 'Road', 'Lane', 'Avenue'))}"


def invoice(r: Rng) -> Layout:
    seller, buyer = v.company(r), v.company(r)
    number, (date, due), money = v.code(r), _dates(r, 2, 3), v.money_format(r)
    items = distinct(r, lambda r: v.item(r), r.randint(3, 5))
    lines = [(name, r.randint(1, 12), r.randint(300, 40000)) for name in items]
    net = sum(n * price for _, n, price in lines)
    tax = net * 19 // 100
    iban = f"DE{v.digits(r, 2)} {v.digits(r, 4)} {v.digits(r, 4)} {v.digits(r, 2)}"
    name, count, price = r.pick(lines)
    body = (
        f"<header><h1>{escape(seller)}</h1><p>{_street(r)} &middot; {r.pick(v.CITIES)}</p></header><section class=two><div>"
        f"<h4>Billed to</h4><p>{escape(buyer)}</p><p>{_street(r)}</p><p>{v.postcode(r)} {r.pick(v.CITIES)}</p></div><div>"
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
    hotel, guest, room = f"Hotel {v.name_word(r)}", _person(r), str(r.randint(101, 720))
    (arrival, departure), number, money = _dates(r, 2, 4), v.digits(r, 6), v.money_format(r)
    extras = distinct(r, lambda r: r.pick(("Breakfast", "Minibar", "Parking", "Laundry", "Spa entry", "Dinner")), 3)
    nights, rate = int(departure.split()[0]) - int(arrival.split()[0]), r.randint(60, 260) * 100
    charges = [("Accommodation", nights * rate), *((extra, r.randint(500, 9000)) for extra in extras)]
    total = sum(cost for _, cost in charges)
    extra, cost = r.pick(charges[1:])
    stay = [("Guest", guest), ("Room", room), ("Arrival", arrival), ("Departure", departure), ("Nights", str(nights))]
    body = (
        f"<h1>{hotel}</h1><div class=sub>{_street(r)}, {r.pick(v.CITIES)}</div><div class=grid>"
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
    company, name, number = v.company(r), _person(r), v.digits(r, 5)
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
        f"<div class=top><div><h2>PAY SLIP</h2>{month}</div><div class=r>{escape(company)}<br>{_street(r)}</div></div><table class=who>"
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
    name, account, meter, due, money = _person(r), v.digits(r, 8), v.code(r), v.date(r, 7), v.money_format(r)
    old, used, price, base = r.randint(1000, 90000), r.randint(80, 2400), r.randint(11, 60), r.randint(400, 2500)
    total = used * price + base
    city = r.pick(v.CITIES)
    body = (
        f"<div class=side><h2>{supplier}</h2><h5>Your account</h5><p>{account}</p><h5>Meter</h5><p>{escape(meter)}</p><h5>Questions?</h5><p>"
        f"{v.phone(r)}</p></div><div class=main><p>{escape(name)}<br>{_street(r)}<br>{city}</p><div class=big><span>Please pay</span><b>"
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


def boarding_pass(r: Rng) -> Layout:
    name, (start, end) = _person(r).upper(), r.sample(v.CITIES, 2)
    flight = f"{r.pick('ABDKLSTU')}{r.pick('ABFHKQX')} {r.randint(100, 4999)}"
    seat, gate = f"{r.randint(1, 39)}{r.pick('ABCDEF')}", f"{r.pick('ABCD')}{r.randint(1, 48)}"
    boarding, departure = f"{r.randint(5, 21):02d}:{r.pick(('05', '20', '35', '50'))}", v.date(r, 4)
    code, group = "".join(r.pick("ABCDEFGHJKLMNPRSTUVWXYZ23456789") for _ in range(6)), str(r.randint(1, 6))
    cells = [
        ("Flight", flight),
        ("Date", departure),
        ("Gate", gate),
        ("Boarding", boarding),
        ("Seat", seat),
        ("Group", group),
    ]
    body = (
        f"<div class=bar>{v.name_word(r)} Airlines<span>BOARDING PASS</span></div><div class=in><small>Passenger</small><h2>{escape(name)}</h2>"
        f"<div class=route><div><small>From</small><h1>{start}</h1></div><div class=plane>&#8594;</div><div><small>To</small><h1>{end}</h1></div></div>"
        "<div class=cells>"
        + "".join(f"<div><small>{a}</small><b>{b}</b></div>" for a, b in cells)
        + f"</div><div class=ref>Booking reference <b>{code}</b></div></div>"
    )
    style = """body{padding:18px;background:#f3f3f3}.bar{background:var(--accent);color:#fff;padding:14px 22px;font-size:20px;border-radius:14px 14px 0
    0}.bar span{float:right;font-size:16px}.in{background:#fff;border:1px solid #bbb;padding:18px 22px;border-radius:0 0 14px 14px}small{display:block;
    color:#555;font-size:12px}.route{display:flex;justify-content:space-between;margin:16px 0;padding:12px 0;border-top:2px dashed #bbb;border-bottom:2px
    dashed #bbb}.plane{font-size:30px;align-self:center}.cells{display:grid;grid-template-columns:repeat(3,1fr);gap:14px}.cells b{font-size:20px}.ref{
    margin-top:20px;font-size:16px}h1{font-size:27px}"""
    asks = (
        ask("field", name, "Who is the passenger?", "What is the name of the passenger?"),
        ask("field", flight, "What is the flight number?", "What is the flight?", "Which flight is shown?"),
        ask("field", gate, "Which gate is shown?", "What is the gate?"),
        ask("field", seat, "What is the seat?", "Which seat is shown?"),
        ask("field", boarding, "When is boarding?", "What is the boarding time?", "What is written for boarding?"),
        ask("field", code, "What is the booking reference?", "What is the booking code?"),
        ask("field", end, "What is written for To?", "What does it say for To?"),
        ask("date", departure, "What is the date?", "What date is printed?"),
    )
    return Layout("boarding pass", 504, 756, style, body, asks)


def resume(r: Rng) -> Layout:
    name, phone, email = _person(r), v.phone(r), v.email(r)
    jobs = [
        (
            f"{r.pick(v.DEPARTMENTS)} {r.pick(v.JOBS)}",
            v.company(r),
            f"{2024 - 4 * i - r.randint(2, 3)} - {2024 - 4 * i}",
        )
        for i in range(3)
    ]
    school, degree = (
        f"University of {r.pick(v.CITIES)}",
        f"{r.pick(('Bachelor', 'Master', 'Diploma'))} of {r.pick(('Law', 'Arts', 'Science', 'Music'))}",
    )
    skills, city = distinct(r, lambda r: r.pick(v.WORK), 4), r.pick(v.CITIES)
    languages = r.sample(["English", "German", "Spanish", "Italian", "French", "Polish"], 2)
    body = (
        f"<div class=h><h1>{name}</h1><p>{jobs[0][0]}</p></div><div class=cols><aside><h3>Contact</h3><p>{escape(phone)}</p><p>{escape(email)}</p><p>{city}</p>"
        f"<h3>Skills</h3><ul>{''.join(f'<li>{s}</li>' for s in skills)}</ul><h3>Languages</h3><p>{', '.join(languages)}</p></aside><main><h3>Experience</h3>"
        + "".join(f"<div class=job><b>{a}</b><i>{c}</i><br>{escape(b)}</div>" for a, b, c in jobs)
        + f"<h3>Education</h3><p>{degree}<br>{school}</p></main></div>"
    )
    style = """.h{padding:30px 30px 16px;border-bottom:1px solid #aaa}h1{font-size:31px;color:var(--accent)}.cols{display:flex}aside{width:225px;padding:14px 10px 30px
    30px;font-size:13px;overflow-wrap:anywhere}main{flex:1;padding:14px 26px;font-size:15px}h3{font-size:15px;text-transform:uppercase;color:var(--accent);
    margin:18px 0 8px}ul{padding-left:18px}.job{margin-bottom:20px;line-height:1.4}.job i{float:right;font-size:13px}"""
    title, firm, years = r.pick(jobs[1:])
    asks = (
        ask("title", name, "Who is it about?", "What is the title?", "What does the heading say?"),
        ask("phone", phone, "What is the phone number?", "Which number can I call?"),
        ask("email", email, "What is the email address?", "Where can I write to?"),
        ask("field", degree, "What is the degree?", "What is listed first under Education?"),
        ask("field", school, "Which university is shown?", "What is the name of the university?"),
        ask("cell", years, f"Which years are shown for {firm}?", f"What is the time at {firm}?"),
        ask("cell", title, f"What was the position at {firm}?", f"What is the job at {firm}?"),
        ask("field", ", ".join(languages), "Which languages are shown?", "What are the languages?"),
    )
    return Layout("resume", 784, 588, style, body, asks)


def timetable(r: Rng) -> Layout:
    event = f"{v.name_word(r)} {r.pick(('Conference', 'Summit', 'Workshop', 'Festival'))}"
    date, place = v.date(r, 3), f"{r.pick(v.CITIES)} {r.pick(('Hall', 'Centre', 'Library'))}"
    talks = distinct(r, lambda r: v.phrase(r, 2, 2).title(), 6)
    speakers, rooms = distinct(r, _person, 6), [f"{r.pick('ABC')}{r.randint(1, 40)}" for _ in range(6)]
    times = [f"{9 + i}:{r.pick(('00', '15', '30'))}" for i in range(6)]
    body = (
        f"<h1>{event}</h1><p class=s>{date} &mdash; {place}</p><div class=list>"
        + "".join(
            f"<div class=row><div class=t>{t}</div><div class=w><b>{talk}</b><br>{who}</div><div class=o>Room {room}</div></div>"
            for t, talk, who, room in zip(times, talks, speakers, rooms, strict=True)
        )
        + "</div>"
    )
    style = """body{padding:28px 32px}h1{font-size:29px}.s{color:var(--accent);font-size:16px;margin:6px 0 22px}.row{display:flex;border-left:6px solid var(--accent);
    background:#f6f6f6;margin-bottom:12px;padding:12px;align-items:center}.t{width:80px;font-size:19px;font-weight:bold}.w{flex:1;line-height:1.4}.o{width:90px;
    text-align:right;font-size:14px}"""
    i, j, k = r.sample(range(6), 3)
    asks = (
        ask(
            "cell",
            times[i],
            f'When is "{talks[i]}"?',
            f"What is the time of {talks[i]}?",
            f"At what time is {talks[i]}?",
        ),
        ask("cell", speakers[j], f"Who speaks about {talks[j]}?", f"Who is the speaker of {talks[j]}?"),
        ask(
            "cell",
            (f"Room {rooms[k]}", rooms[k]),
            f"Which room does {talks[k]} have?",
            f"What is the room of {talks[k]}?",
        ),
        ask("title", event, "What is the title?", "What does the heading say?", "What is it called?"),
        ask("date", date, "What is the date?", "When is it?"),
        ask("meeting_place", place, "Where is it?", "Where does it take place?"),
    )
    return Layout("timetable", 700, 644, style, body, asks)


def lab_report(r: Rng) -> Layout:
    patient, doctor, number, born, taken = (
        _person(r),
        f"Dr. {r.pick(v.LAST_NAMES)}",
        v.digits(r, 7),
        v.date(r, 1),
        v.date(r, 1),
    )
    tests = r.sample(
        [
            "Hemoglobin",
            "Glucose",
            "Iron",
            "Calcium",
            "Sodium",
            "Potassium",
            "Urea",
            "Cholesterol",
            "Protein",
            "Magnesium",
        ],
        6,
    )
    results = [
        (
            t,
            f"{r.uniform(0.5, 180):.1f}",
            r.pick(("g/dl", "mg/dl", "mmol/l")),
            f"{r.randint(1, 40)} - {r.randint(41, 200)}",
        )
        for t in tests
    ]
    body = (
        f"<div class=t><h2>{v.name_word(r)} Laboratory</h2><p>Report {number}</p></div><div class=f>"
        + pairs([("Patient", patient), ("Born", born), ("Physician", doctor), ("Sample taken", taken)])
        + "</div><table>"
        + rows([("Test", "Result", "Unit", "Range")], "th")
        + rows(results)
        + f"</table><p class=n>Released by {_person(r)}</p>"
    )
    style = """body{padding:32px 36px}.t{display:flex;justify-content:space-between;align-items:baseline}.f{display:grid;grid-template-columns:1fr 1fr;gap:8px 34px;
    margin:18px 0 26px;padding:14px;background:#f2f2f2}.p b{display:block;font-size:12px;color:#444}.p span{font-size:16px}table{width:100%}th{background:
    var(--accent);color:#fff;text-align:left}td,th{padding:8px 10px}tr:nth-child(odd) td{background:#eee}td:nth-child(2){font-weight:bold}.n{margin-top:26px}"""
    first, second = r.sample(results, 2)
    asks = (
        ask("field", patient, "Who is the patient?", "What is the name of the patient?"),
        ask("field", born, "When was the patient born?", "What is written for Born?"),
        ask("field", doctor, "Who is the physician?", "What is the physician?"),
        ask("field", taken, "When was the sample taken?", "What is the date of the sample?"),
        ask("cell", first[1], f"What is the result of {first[0]}?", f"What is the result for {first[0]}?"),
        ask("cell", second[3], f"What is the range for {second[0]}?", f"{second[0]}: range?"),
        ask("cell", second[2], f"What is the unit of {second[0]}?", f"Which unit does {second[0]} have?"),
        ask("field", number, "What is the report number?", "What is the number of the report?"),
    )
    return Layout("lab report", 728, 616, style, body, asks)


def bank_statement(r: Rng) -> Layout:
    bank, name, account = f"{v.name_word(r)} Bank", _person(r), f"{v.digits(r, 4)} {v.digits(r, 4)} {v.digits(r, 2)}"
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
        f"<h1>{bank}</h1><div class=m><div>{name}<br>{_street(r)}</div><div>Account {account}<br>{period}</div></div><table>"
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


def product_label(r: Rng) -> Layout:
    name, maker = f"{r.pick(v.ADJECTIVES)} {r.pick(v.PRODUCTS)}", v.company(r)
    model, serial, made = v.code(r), v.digits(r, 9), r.pick(v.COUNTRIES)
    weight, power, price = f"{r.uniform(0.2, 40):.1f} kg", f"{r.randint(5, 2400)} W", v.money(r)
    fields = [
        ("Model", model),
        ("Serial", serial),
        ("Weight", weight),
        ("Power", power),
        ("Colour", r.pick(v.COLOURS).title()),
    ]
    body = (
        f"<div class=box><h1>{name}</h1><p class=k>{escape(maker)}</p><div class=f>{pairs(fields)}</div><div class=price>{price}</div><p>Made in {made}</p>"
        "<div class=bar></div></div>"
    )
    style = """body{padding:22px}.box{border:4px solid #222;border-radius:18px;padding:24px;height:100%}h1{font-size:33px}.k{color:var(--accent);font-size:17px;
    margin-bottom:20px}.p{display:flex;border-bottom:1px solid #999;padding:8px 0;font-size:17px}.p b{width:130px;font-weight:normal;color:#444}.price{float:
    right;background:var(--accent);color:#fff;font-size:27px;padding:8px 18px;margin:20px 0}.box>p:nth-of-type(2){margin-top:32px}.bar{clear:both;height:64px;
    width:240px;background:repeating-linear-gradient(90deg,#000 0 2px,#fff 2px 5px,#000 5px 9px,#fff 9px 11px)}"""
    asks = (
        ask("title", name, "What is the product called?", "What does the heading say?", "What is the title?"),
        ask("field", model, "What is the model?", "Which model is shown?"),
        ask("field", serial, "What is the serial number?", "What is the serial?"),
        ask("field", weight, "What is the weight?", "What weight is given?"),
        ask("field", power, "What is the power?", "What is written for power?"),
        ask("sign_price", price, "How much does it cost?", "What is the price?"),
        ask("field", made, "In which country was it made?", "Where was it made?"),
    )
    return Layout("product label", 588, 588, style, body, asks)


def flyer(r: Rng) -> Layout:
    event = f"{v.name_word(r)} {r.pick(('Concert', 'Fair', 'Market', 'Run', 'Exhibition', 'Theatre Night'))}"
    date, time, place = (
        v.date(r, 7),
        f"{r.randint(1, 11)}:{r.pick(('00', '15', '30', '45'))} pm",
        f"{r.pick(v.STREETS)} {r.pick(('Park', 'Hall', 'Square'))}",
    )
    price, phone, host = f"${r.randint(3, 90)}", v.phone(r), _person(r)
    body = (
        f"<div class=c><h3>{r.pick(('You are invited to the', 'Come to the', 'Save the day for the'))}</h3><h1>{event}</h1><div class=d><div>{date}</div><div>{time}"
        f"</div></div><h2>{place}</h2><p>Admission {price}</p><p>Guest of honour: {host}</p><div class=t>Tickets: {escape(phone)}</div></div>"
    )
    style = """body{background:var(--accent);padding:34px}.c{background:#fff;height:100%;text-align:center;padding:44px 26px;border-radius:6px}h1{font-size:40px;margin:
    16px 0 26px;line-height:1.1}h3{font-weight:normal;font-size:19px}.d{display:flex;justify-content:center;gap:34px;font-size:21px;font-weight:bold}.d div{
    border-top:3px solid var(--accent);padding-top:8px}h2{margin:36px 0;font-size:25px}p{font-size:18px;margin:10px}.t{margin-top:50px;font-size:17px}"""
    asks = (
        ask("title", event, "What is the title?", "What is it called?", "What is the name of the event?"),
        ask("sign_date", date, "What is the date?", "When is it?", "What date is shown?"),
        ask("sign_time", time, "At what time?", "When does it start?"),
        ask("sign_city", place, "Where is it?", "What is the place?"),
        ask("sign_price", price, "How much does it cost?", "What is the price?", "How much is it?"),
        ask("phone", phone, "Which number can I call?", "What is the phone number?"),
        ask("speaker", host, "Who is the guest of honour?", "What is the name of the guest?"),
    )
    return Layout("flyer", 784, 560, style, body, asks)


def delivery_note(r: Rng) -> Layout:
    sender, receiver, number, order = v.company(r), v.company(r), v.code(r), v.digits(r, 6)
    date, driver = v.date(r, 2), _person(r)
    items = distinct(r, lambda r: v.item(r, 0), 5)
    lines = [(str(i), v.digits(r, 4), name, str(r.randint(1, 250))) for i, name in enumerate(items, 1)]
    boxes = str(r.randint(2, 30))
    body = (
        f"<h1>Delivery note</h1><div class=a><div><h5>FROM</h5>{escape(sender)}<br>{_street(r)}</div><div><h5>TO</h5>{escape(receiver)}<br>{_street(r)}</div></div>"
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


def membership(r: Rng) -> Layout:
    club, name, born, city = f"{v.name_word(r)} Sports Club", _person(r), v.date(r, 1), r.pick(v.CITIES)
    street, email, phone, number = _street(r), v.email(r), v.phone(r), v.digits(r, 5)
    sport = r.pick(("Tennis", "Rowing", "Judo", "Chess", "Swimming", "Hockey", "Fencing"))
    fee, since = v.money(r), v.date(r, 0)
    fields = [
        ("Member no.", number),
        ("Name", name),
        ("Born on", born),
        ("Street", street),
        ("City", city),
        ("Email", email),
        ("Mobile", phone),
    ]
    body = (
        f"<div class=l>{club}</div><h2>Membership form</h2><div class=f>"
        + "".join(
            f"<label>{a}</label><div class=i>{escape(b)}</div>"
            for a, b in [*fields, ("Sport", sport), ("Member since", since), ("Yearly fee", fee)]
        )
        + "</div>"
    )
    style = """body{padding:30px 40px}.l{font-size:22px;color:var(--accent);font-weight:bold}h2{font-size:17px;font-weight:normal;margin-bottom:22px}.f{display:grid;
    grid-template-columns:130px 1fr;gap:10px 12px;align-items:center}label{font-size:13px;text-align:right}.i{border:1px solid #999;border-radius:5px;padding:
    9px 11px;font-size:16px;background:#fbfbfb}"""
    asks = (
        ask("field", number, "What is the member number?", "What is the member no?"),
        ask("field", name, "What is the name?", "Who is the member?"),
        ask("field", born, "What is written for Born on?", "What is the date of birth?"),
        ask("field", city, "What is the city?", "Which city is shown?"),
        ask("field", phone, "What is the mobile number?", "What is the mobile?"),
        ask("field", sport, "Which sport is shown?", "What is the sport?"),
        ask("field", fee, "How much is the yearly fee?", "What is the yearly fee?"),
        ask("field", email, "What is the email?", "What is the email address?"),
        ask("field", street, "What is the street?", "What is written for the street?"),
    )
    return Layout("membership form", 756, 532, style, body, asks)


def quote(r: Rng) -> Layout:
    company, client, number, valid, money = v.company(r), _person(r), v.code(r), v.date(r, 3), v.money_format(r)
    tasks = distinct(r, lambda r: f"{v.name_word(r)} {r.pick(v.WORK)}", 3)
    costs = [r.randint(2000, 300000) for _ in tasks]
    weeks = f"{r.randint(2, 16)} weeks"
    task, cost = r.pick(list(zip(tasks, costs, strict=True)))
    author = _person(r)
    body = (
        f"<div class=r>{escape(company)}<br>{_street(r)}<br>{r.pick(v.CITIES)}</div><p class=to>To {client}</p><h1>Quote {escape(number)}</h1><p>Thank you for your "
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


TEMPLATES: tuple[Callable[[Rng], Layout], ...] = (
    invoice,
    hotel_bill,
    pay_slip,
    utility_bill,
    boarding_pass,
    resume,
    timetable,
    lab_report,
    bank_statement,
    product_label,
    flyer,
    delivery_note,
    membership,
    quote,
)
