"""Names, amounts and dates in the styles of several countries."""

from __future__ import annotations

import datetime
import re
from collections.abc import Sequence

from training.pages import values as v
from training.pages.values import Rng

FIRST = (
    "Élodie François José María Jürgen Søren Zoë André Noémie Günther Björn Inés Renée Åsa Øyvind Chloé Íñigo "
    "Mónica Hélène Jörg Sébastien Núria Anaïs Iñaki Frédéric Bärbel Raúl Thérèse Göran João Conceição Siobhán "
    "Niamh László Zoltán Guðrún Sigríður Þóra Adebayo Chinwe Kwame Ngozi Thabo Zanele Priya Arjun Ananya Rohan Deepika "
    "Haruto Yui Kenji Wei Xiulan Ji-woo Min-jun Linh Thuy Fatima Yusuf Layla Omar Reza Shirin Noam Shira Dmitri Svetlana "
    "Agnieszka Piotr Eleni Nikos Emre Leyla Anneke Joost Marie-Claire Jean-Luc"
).split()
LAST = (
    "Müller García Lefèvre Sørensen Núñez Öztürk Castañeda Schröder Beaumont Böhm Peña Gonçalves Håkansson Fernández "
    "D'Angelo O'Connor Lindström Ibáñez Weiß Dubois-Roy Ångström Bruguès Côté Mårtensson Garção Araújo Magalhães Szabó "
    "Wójcik Þórsdóttir Sigurðsson Okafor Mensah Diallo Traoré Nkosi Mwangi Iyer Chatterjee Reddy Banerjee Kobayashi "
    "Watanabe Zhang Huang Park Choi Tran Pham Al-Hassan Haddad El-Sayed Tehrani Levi Cohen Sokolov Ivanova Kowalski "
    "Papadopoulos Demir O'Sullivan McAllister Fitzgerald Vandenberg De-Vries Jónsdóttir Smith-Jones"
).split()
TOWNS = (
    "Zürich Málaga Köln Orléans Besançon Århus München Düsseldorf Córdoba Saint-Étienne Göteborg Tromsø Logroño "
    "Nîmes Malmö Évora Würzburg Cádiz Genève Bogotá Asunción Lübeck Lagos Accra Mumbai Chennai Kyoto Hanoi Busan "
    "Kraków Györ Reykjavík Cork Dunedin Aberdeen Swansea Groningen Liège Coimbra São-Paulo Tunis Amman Haifa Izmir"
).split()
CURRENCIES = ("€", "£", "$", "¥", "CHF", "EUR", "kr", "GBP", "USD", "A$", "C$", "R$", "Fr.", "SEK")
WEEKDAYS_SHORT = frozenset(day[:3] for day in v.WEEKDAYS)
MONTHS_SHORT = "Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split()
TITLES = ("Dr. ", "Prof. ", "Ms ", "Mr ", "Mrs ", "")


def _accented(r: Rng, known: Sequence[str], kind: str) -> str:
    """One of ``known`` names or, where the assets folder has them, of those of many countries that are not ASCII."""
    many = v.names(kind, plain=False)
    n = int(r.random() * (len(known) + len(many)))
    return known[n] if n < len(known) else many[n - len(known)]


def first_name(r: Rng) -> str:
    return _accented(r, FIRST, "first_names") if r.chance(0.25) else v.first_name(r)


def last_name(r: Rng) -> str:
    return _accented(r, LAST, "last_names") if r.chance(0.25) else v.last_name(r)


def person(r: Rng) -> str:
    return f"{first_name(r)} {last_name(r)}"


def people(r: Rng, count: int) -> list[str]:
    """Different people, no first or last name twice."""
    out: list[str] = []
    while len(out) < count:
        name = person(r)
        if not set(name.split()) & {part for other in out for part in other.split()}:
            out.append(name)
    return out


def town(r: Rng) -> str:
    return _accented(r, TOWNS, "towns") if r.chance(0.3) else v.city(r)


def distinct(r: Rng, make, count: int) -> list[str]:
    """``count`` different results of ``make(r)``, none of which contains another."""
    out: list[str] = []
    for _ in range(40 * count):
        value = make(r)
        if len(out) < count and not any(value in other or other in value for other in out):
            out.append(value)
    return out


SINGULAR = frozenset("gas bus basis series species news maths physics status bonus census campus gross lens".split())
UNCOUNTED = frozenset("sales costs earnings savings expenses takings proceeds wages funds".split())


def quantity(noun: str) -> tuple[str, str]:
    """What a number under the name ``noun`` is, for questions, and its verb: ("number of visitors", "is")."""
    last = noun.split()[-1].lower()
    if not last.endswith("s") or last.endswith(("ss", "us", "is")) or last in SINGULAR:
        return noun, "is"
    return (noun, "are") if last in UNCOUNTED else (f"number of {noun}", "is")


def within(label: str) -> str:
    """A label of a chart with its preposition: "on Monday", "in 2024", "for Ward 2"."""
    if label in v.WEEKDAYS or label in WEEKDAYS_SHORT:
        return f"on {label}"
    timed = label.split()[0] in (*v.MONTHS, *MONTHS_SHORT) or bool(re.fullmatch(r"\d{4}|Q[1-4]( \d{4})?", label))
    return f"in {label}" if timed or label in v.CITIES or label in v.COUNTRIES or label in TOWNS else f"for {label}"


class Money:
    """Amounts in one currency and one style, as one page writes them."""

    def __init__(self, r: Rng) -> None:
        self.currency = r.choices(CURRENCIES, (6, 5, 4, 2, 2, 2, 1, 1, 1, 0.5, 0.5, 0.5, 0.5, 0.5))[0]
        self.whole = self.currency == "¥"
        dollars = self.currency[-1] in "£$¥"
        self.style = "1,234.50" if dollars else r.pick(("1,234.50", "1.234,50", "1 234,50", "1234.50", "1'234.50"))
        self.before = dollars or self.currency == "Fr." or r.chance(0.4)
        self.space = "" if dollars else r.pick((" ", "")) if len(self.currency) == 1 else " "
        self.short = r.chance(0.15)  # whole amounts without their decimals

    def bare(self, cents: int) -> str:
        """The amount without its currency."""
        units, rest = divmod(abs(cents), 100)
        sign = "-" if cents < 0 else ""
        thousands, decimal = {
            "1,234.50": (",", "."),
            "1.234,50": (".", ","),
            "1 234,50": (" ", ","),
            "1234.50": ("", "."),
            "1'234.50": ("'", "."),
        }[self.style]
        number = f"{units:,}".replace(",", thousands)
        return sign + (number if self.whole or (self.short and not rest) else f"{number}{decimal}{rest:02d}")

    def __call__(self, cents: int) -> str:
        text = self.bare(cents)
        return self.currency + self.space + text if self.before else text + (self.space or " ") + self.currency

    def round(self, r: Rng, low: int, high: int) -> int:
        """Cents of a price between ``low`` and ``high`` units."""
        units = r.randint(low, high)
        return units * 100 if self.whole else units * 100 + r.pick((0, 0, 50, 90, 95, 99, r.randint(0, 99)))


ORDINALS = {1: "st", 2: "nd", 3: "rd", 21: "st", 22: "nd", 23: "rd", 31: "st"}
DATE_STYLES = (
    "d Month y", "Month d, y", "d.m.y", "d/m/y", "y-m-d", "d Mon y", "d. Month y", "dd.mm.yy", "Weekday, d Month y", "Wd d Mon y",
    "dth of Month y", "Month dth, y", "Mon d, y", "d-Mon-yy", "m/d/yy", "dd-mm-y", "d Month",
)  # fmt: skip
DATE_WEIGHTS = (4, 4, 4, 4, 4, 4, 3, 3, 3, 2, 2, 1.5, 2, 1.5, 1.5, 1.5, 1)
CLOCKS, CLOCK_WEIGHTS = ("24", "12", "h", "am.", "dot", "h-fr"), (6, 2.5, 1, 1, 1, 0.7)


class Dates:
    """Dates and times in one style, as one page writes them."""

    def __init__(self, r: Rng) -> None:
        self.r = r
        self.style = r.choices(DATE_STYLES, DATE_WEIGHTS)[0]
        self.clock = r.choices(CLOCKS, CLOCK_WEIGHTS)[0]

    def date(self, year: int | None = None, month: int | None = None, day: int | None = None) -> str:
        r = self.r
        y, m, d = year or r.randint(2015, 2031), month or r.randint(1, 12), day or r.randint(1, 28)
        name, mon = v.MONTHS[m - 1], MONTHS_SHORT[m - 1]
        weekday, nth = v.WEEKDAYS[datetime.date(y, m, d).weekday()], f"{d}{ORDINALS.get(d, 'th')}"
        return {
            "d Month y": f"{d} {name} {y}", "Month d, y": f"{name} {d}, {y}", "d.m.y": f"{d:02d}.{m:02d}.{y}",
            "d/m/y": f"{d:02d}/{m:02d}/{y}", "y-m-d": f"{y}-{m:02d}-{d:02d}", "d. Month y": f"{d}. {name} {y}",
            "d Mon y": f"{d} {mon} {y}", "dd.mm.yy": f"{d:02d}.{m:02d}.{y % 100:02d}",
            "Weekday, d Month y": f"{weekday}, {d} {name} {y}", "Wd d Mon y": f"{weekday[:3]} {d} {mon} {y}",
            "dth of Month y": f"{nth} of {name} {y}", "Month dth, y": f"{name} {nth}, {y}",
            "Mon d, y": f"{mon} {d}, {y}", "d-Mon-yy": f"{d:02d}-{mon}-{y % 100:02d}", "m/d/yy": f"{m}/{d}/{y % 100:02d}",
            "dd-mm-y": f"{d:02d}-{m:02d}-{y}", "d Month": f"{d} {name}",
        }[self.style]  # fmt: skip

    def period(self, longest: int = 200) -> tuple[str, str]:
        """Two dates, the second 5 to ``longest`` days after the first."""
        first = datetime.date(self.r.randint(2015, 2030), self.r.randint(1, 12), self.r.randint(1, 28))
        days = (first, first + datetime.timedelta(days=self.r.randint(5, longest)))
        begin, end = (self.date(day.year, day.month, day.day) for day in days)
        return begin, end

    def time(self, minutes: int | None = None) -> str:
        minutes = self.r.randint(6 * 12, 22 * 12) * 5 if minutes is None else minutes
        h, m = divmod(minutes % 1440, 60)
        twelve, half = (h - 1) % 12 + 1, "am" if h < 12 else "pm"
        return {
            "24": f"{h:02d}:{m:02d}", "12": f"{twelve}:{m:02d} {half}", "h": f"{h:02d}.{m:02d} h",
            "am.": f"{twelve}:{m:02d} {half[0]}.m." if m else f"{twelve} {half[0]}.m.",
            "dot": f"{twelve}.{m:02d}{half}" if m else f"{twelve}{half}", "h-fr": f"{h}h{m:02d}",
        }[self.clock]  # fmt: skip


FRACTIONS = ("\u00bd", "\u00bc", "\u00be")


def amount_of(r: Rng, low: int = 1, high: int = 9) -> str:
    """A number with or without a fraction, as recipes and labels write it: 2\u00bd, 1/4, 1.5, 300."""
    n = r.randint(low, high)
    style = r.randint(0, 5)
    if style == 0:
        return f"{n}{r.pick(FRACTIONS)}"
    if style == 1:
        return r.pick((*FRACTIONS, "1/2", "1/4", "3/4", "1/3"))
    return f"{n}{r.pick('.,')}5" if style == 2 else str(n)
