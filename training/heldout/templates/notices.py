"""Templates of what is put up for all to read: timetable, product label, flyer."""

# ruff: noqa: E501  (HTML and CSS)

from __future__ import annotations

from html import escape

from training.heldout.templates.markup import Layout, ask, distinct, full_name, pairs
from training.pages import Rng
from training.pages import values as v


def timetable(r: Rng) -> Layout:
    event = f"{v.name_word(r)} {r.pick(('Conference', 'Summit', 'Workshop', 'Festival'))}"
    date, place = v.date(r, 3), f"{r.pick(v.CITIES)} {r.pick(('Hall', 'Centre', 'Library'))}"
    talks = distinct(r, lambda r: v.phrase(r, 2, 2).title(), 6)
    speakers, rooms = distinct(r, full_name, 6), [f"{r.pick('ABC')}{r.randint(1, 40)}" for _ in range(6)]
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
    price, phone, host = f"${r.randint(3, 90)}", v.phone(r), full_name(r)
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
