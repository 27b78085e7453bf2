"""Values that fill the slots of a pattern, each with a spoken form and an answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from training.pages.values import CITIES, COLOURS, FIRST_NAMES, LAST_NAMES, MONTHS, WEEKDAYS, Rng
from training.utterances.numbers import say_code, say_digits, say_number
from training.utterances.words import (
    BILLS,
    DEVICES,
    EVENTS,
    GOODS,
    JOBS,
    ROOMS,
    SHOPS,
    THINGS,
    TOPICS,
)

ORDINALS = (
    "first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth thirteenth fourteenth fifteenth "
    "sixteenth seventeenth eighteenth nineteenth twentieth twenty-first twenty-second twenty-third twenty-fourth "
    "twenty-fifth twenty-sixth twenty-seventh twenty-eighth"
).split()


class Spoken(NamedTuple):
    """A slot's value: how it is said (lower case, commas for pauses) and how it is answered."""

    spoken: str
    answer: str


def _plain(options: list[str] | tuple[str, ...]) -> Callable[[Rng], Spoken]:
    def draw(r: Rng) -> Spoken:
        value = r.pick(options)
        return Spoken(value, value)

    return draw


def _number(r: Rng) -> Spoken:
    digits = "".join(str(r.randint(0, 9)) for _ in range(r.randint(1, 8)))
    return Spoken(say_digits(digits), digits)


def _code(r: Rng) -> Spoken:
    code = "".join(
        r.pick("ABCDEFGHIJKLMNOPQRSTUVWXYZ") if r.chance(0.45) else str(r.randint(0, 9)) for _ in range(r.randint(3, 6))
    )
    return Spoken(say_code(code), code)


def _person(r: Rng) -> Spoken:
    style = r.random()
    if style < 0.5:
        name = f"{r.pick(FIRST_NAMES)} {r.pick(LAST_NAMES)}"
    elif style < 0.8:
        name = r.pick(FIRST_NAMES)
    else:
        name = f"{r.pick(('Doctor', 'Mister', 'Professor'))} {r.pick(LAST_NAMES)}"
    return Spoken(name.lower(), name)


def _who(r: Rng) -> Spoken:
    if r.chance(0.15):
        job = r.pick(JOBS)
        return Spoken(f"the {job}", f"the {job}")
    return _person(r)


def _city(r: Rng) -> Spoken:
    city = r.pick(CITIES)
    return Spoken(city.lower(), city)


def _place(r: Rng) -> Spoken:
    style = r.random()
    if style < 0.4:
        city = _city(r)
        return Spoken(f"in {city.spoken}", city.answer)
    if style < 0.75:
        shop = r.pick(SHOPS)
        return Spoken(f"at the {shop}", f"the {shop}")
    n = r.randint(1, 60)
    return Spoken(f"in room {say_number(n)}", f"room {n}")


def _day(r: Rng) -> Spoken:
    style = r.random()
    if style < 0.5:
        day = r.pick(WEEKDAYS)
        return Spoken(f"on {day.lower()}", day)
    if style < 0.6:
        day = r.pick(WEEKDAYS)
        return Spoken(f"next {day.lower()}", f"next {day}")
    if style < 0.7:
        return Spoken("tomorrow", "tomorrow")
    date = _date(r)
    return Spoken(f"on {date.spoken}", date.answer)


def _date(r: Rng) -> Spoken:
    n, month = r.randint(1, 28), r.pick(MONTHS)
    ordinal = ORDINALS[n - 1].replace("-", " ")
    return Spoken(r.pick((f"the {ordinal} of {month.lower()}", f"{month.lower()} {ordinal}")), f"{month} {n}")


def _due(r: Rng) -> Spoken:
    return _date(r) if r.chance(0.6) else (lambda day: Spoken(day.lower(), day))(r.pick(WEEKDAYS))


def _time(r: Rng) -> Spoken:
    hour, style = r.randint(1, 12), r.random()
    after = hour % 12 + 1
    if style < 0.2:
        return Spoken(f"half past {say_number(hour)}", f"{hour}:30")
    if style < 0.3:
        return Spoken(f"a quarter past {say_number(hour)}", f"{hour}:15")
    if style < 0.4:
        return Spoken(f"a quarter to {say_number(after)}", f"{hour}:45")
    if style < 0.55:
        return Spoken(f"{say_number(hour)} o'clock", f"{hour}:00")
    half = r.pick(("am", "pm"))
    if style < 0.7:
        return Spoken(f"{say_number(hour)} {half[0]} m", f"{hour}:00 {half}")
    minute = r.pick((5, 10, 15, 20, 25, 30, 35, 40, 45, 50, 55))
    spoken = f"{say_number(hour)} {'oh ' if minute < 10 else ''}{say_number(minute)}"
    return (
        Spoken(spoken, f"{hour}:{minute:02d}")
        if style < 0.9
        else Spoken(f"{spoken} {half[0]} m", f"{hour}:{minute:02d} {half}")
    )


def _duration(r: Rng) -> Spoken:
    unit, n = r.pick(("second", "minute", "minute", "hour")), r.randint(1, 60)
    unit += "s" if n > 1 else ""
    return Spoken(f"{say_number(n)} {unit}", f"{n} {unit}")


def _length(r: Rng) -> Spoken:
    n = r.pick((*range(1, 10), 10, 15, 20, 30, 40, 45, 90))
    unit = ("hour" if n < 10 and r.chance(0.7) else "minute") + ("s" if n > 1 else "")
    return Spoken(f"{say_number(n)} {unit}", f"{n} {unit}")


def _amount(r: Rng) -> Spoken:
    n = r.pick((r.randint(2, 99), r.randint(1, 20) * 10, r.randint(100, 999), r.randint(11, 60) * 100))
    unit = r.pick(("dollars", "dollars", "euros", "pounds"))
    return Spoken(f"{say_number(n)} {unit}", f"{n} {unit}")


def _phone(r: Rng) -> Spoken:
    parts = r.pick(((3, 4), (3, 4), (3, 3, 4), (4, 4), (3, 3)))
    groups = ["".join(str(r.randint(0, 9)) for _ in range(n)) for n in parts]
    return Spoken(", ".join(say_digits(group) for group in groups), " ".join(groups))


def _count(low: int, high: int, unit: str = "") -> Callable[[Rng], Spoken]:
    def draw(r: Rng) -> Spoken:
        n = r.randint(low, high)
        return Spoken(f"{say_number(n)}{unit}", f"{n}{unit}")

    return draw


SLOTS: dict[str, Callable[[Rng], Spoken]] = {
    "number": _number,
    "code": _code,
    "name": _person,
    "caller": _person,
    "callee": _person,
    "who": _who,
    "companion": _who,
    "client": _person,
    "contact": _person,
    "room": _plain(ROOMS),
    "device": _plain(DEVICES),
    "state": _plain(("on", "off")),
    "colour": _plain(COLOURS),
    "duration": _duration,
    "length": _length,
    "event": _plain(EVENTS),
    "topic": _plain(TOPICS),
    "day": _day,
    "due": _due,
    "time": _time,
    "alarm": _time,
    "departure": _time,
    "place": _place,
    "destination": _city,
    "city": _city,
    "platform": _count(1, 24),
    "amount": _amount,
    "phone": _phone,
    "bring": _plain(THINGS),
    "item": _plain(GOODS),
    "quantity": _count(2, 99),
    "bill": _plain(BILLS),
    "degrees": _count(2, 35, " degrees"),
    "weather": _plain("sunny cloudy rainy windy snowy foggy stormy dry".split()),
}
