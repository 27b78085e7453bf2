"""Names, amounts and dates in the styles of several countries."""

from __future__ import annotations

from training.pages import values as v
from training.pages.values import Rng

FIRST = (
    "Élodie François José María Jürgen Søren Zoë André Noémie Günther Björn Inés Renée Åsa Øyvind Chloé Íñigo "
    "Mónica Hélène Jörg Sébastien Núria Anaïs Iñaki Frédéric Bärbel Raúl Thérèse Göran"
).split()
LAST = (
    "Müller García Lefèvre Sørensen Núñez Öztürk Castañeda Schröder Beaumont Böhm Peña Gonçalves Håkansson Fernández "
    "D'Angelo O'Connor Lindström Ibáñez Weiß Dubois-Roy Ångström Bruguès Côté Mårtensson Garção"
).split()
TOWNS = (
    "Zürich Málaga Köln Orléans Besançon Århus München Düsseldorf Córdoba Saint-Étienne Göteborg Tromsø Logroño "
    "Nîmes Malmö Évora Würzburg Cádiz Genève Bogotá Asunción Lübeck"
).split()
CURRENCIES = ("€", "£", "$", "¥", "CHF", "EUR", "kr", "GBP", "USD")
MONTHS_SHORT = "Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split()
TITLES = ("Dr. ", "Prof. ", "Ms ", "Mr ", "Mrs ", "")


def first_name(r: Rng) -> str:
    return r.pick(FIRST) if r.chance(0.25) else v.first_name(r)


def last_name(r: Rng) -> str:
    return r.pick(LAST) if r.chance(0.25) else v.last_name(r)


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
    return r.pick(TOWNS) if r.chance(0.3) else v.city(r)


def distinct(r: Rng, make, count: int) -> list[str]:
    """``count`` different results of ``make(r)``, none of which contains another."""
    out: list[str] = []
    for _ in range(40 * count):
        value = make(r)
        if len(out) < count and not any(value in other or other in value for other in out):
            out.append(value)
    return out


class Money:
    """Amounts in one currency and one style, as one page writes them."""

    def __init__(self, r: Rng) -> None:
        self.currency = r.choices(CURRENCIES, (6, 5, 4, 2, 2, 2, 1, 1, 1))[0]
        self.whole = self.currency == "¥"
        self.style = (
            r.pick(("1,234.50", "1.234,50", "1 234,50", "1234.50")) if self.currency not in "£$¥" else "1,234.50"
        )
        self.before = self.currency in "£$¥" or r.chance(0.4)
        self.space = "" if self.currency in "£$" else r.pick((" ", "")) if len(self.currency) == 1 else " "

    def bare(self, cents: int) -> str:
        """The amount without its currency."""
        units, rest = divmod(abs(cents), 100)
        sign = "-" if cents < 0 else ""
        thousands, decimal = {
            "1,234.50": (",", "."),
            "1.234,50": (".", ","),
            "1 234,50": (" ", ","),
            "1234.50": ("", "."),
        }[self.style]
        number = f"{units:,}".replace(",", thousands)
        return sign + (number if self.whole else f"{number}{decimal}{rest:02d}")

    def __call__(self, cents: int) -> str:
        text = self.bare(cents)
        return self.currency + self.space + text if self.before else text + (self.space or " ") + self.currency

    def round(self, r: Rng, low: int, high: int) -> int:
        """Cents of a price between ``low`` and ``high`` units."""
        units = r.randint(low, high)
        return units * 100 if self.whole else units * 100 + r.pick((0, 0, 50, 90, 95, 99, r.randint(0, 99)))


class Dates:
    """Dates and times in one style, as one page writes them."""

    def __init__(self, r: Rng) -> None:
        self.r = r
        self.style = r.pick(("d Month y", "Month d, y", "d.m.y", "d/m/y", "y-m-d", "d Mon y", "d. Month y", "dd.mm.yy"))
        self.clock = r.pick(("24", "24", "24", "12", "h"))

    def date(self, year: int | None = None, month: int | None = None, day: int | None = None) -> str:
        r = self.r
        y, m, d = year or r.randint(2015, 2031), month or r.randint(1, 12), day or r.randint(1, 28)
        name = v.MONTHS[m - 1]
        return {
            "d Month y": f"{d} {name} {y}", "Month d, y": f"{name} {d}, {y}", "d.m.y": f"{d:02d}.{m:02d}.{y}",
            "d/m/y": f"{d:02d}/{m:02d}/{y}", "y-m-d": f"{y}-{m:02d}-{d:02d}", "d. Month y": f"{d}. {name} {y}",
            "d Mon y": f"{d} {MONTHS_SHORT[m - 1]} {y}", "dd.mm.yy": f"{d:02d}.{m:02d}.{y % 100:02d}",
        }[self.style]  # fmt: skip

    def time(self, minutes: int | None = None) -> str:
        minutes = self.r.randint(6 * 12, 22 * 12) * 5 if minutes is None else minutes
        h, m = divmod(minutes % 1440, 60)
        if self.clock == "12":
            return f"{(h - 1) % 12 + 1}:{m:02d} {'am' if h < 12 else 'pm'}"
        return f"{h:02d}.{m:02d} h" if self.clock == "h" else f"{h:02d}:{m:02d}"
