"""Templates of papers about one person: boarding pass, resume, laboratory report, membership form."""

# ruff: noqa: E501  (HTML and CSS)

from __future__ import annotations

from html import escape

from training.heldout.templates.markup import Layout, ask, distinct, full_name, pairs, rows, street_address
from training.pages import Rng
from training.pages import values as v


def boarding_pass(r: Rng) -> Layout:
    name, (start, end) = full_name(r).upper(), r.sample(v.CITIES, 2)
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
    name, phone, email = full_name(r), v.phone(r), v.email(r)
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


def lab_report(r: Rng) -> Layout:
    patient, doctor, number, born, taken = (
        full_name(r),
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
        + f"</table><p class=n>Released by {full_name(r)}</p>"
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


def membership(r: Rng) -> Layout:
    club, name, born, city = f"{v.name_word(r)} Sports Club", full_name(r), v.date(r, 1), r.pick(v.CITIES)
    street, email, phone, number = street_address(r), v.email(r), v.phone(r), v.digits(r, 5)
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
