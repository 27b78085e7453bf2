"""Random printed values: names, dates, amounts, codes. Everything is drawn from the generator that is passed in."""

from __future__ import annotations

import os
import random
import string
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path

FIRST_NAMES = (
    "Aaron Abigail Adam Adrian Agnes Alan Albert Alex Alice Amanda Amelia Amy Andrea Andrew Angela Anita Anna Anne Anthony "
    "Arthur Ashley Barbara Beatrice Ben Bernard Beth Brian Bruno Carl Carla Carmen Carol Caroline Cecilia Charles Chloe "
    "Chris Clara Claire Colin Craig Daniel David Deborah Dennis Diana Donald Donna Dora Douglas Edgar Edith Edward Elena "
    "Elizabeth Ella Emily Emma Eric Ernest Ethan Eva Evelyn Felix Fiona Florence Frances Frank Fred Gary George Gina "
    "Grace Greta Harold Harry Hazel Heidi Helen Henry Hugo Ian Ida Igor Irene Isaac Iris Ivan Jack Jacob James Jane Janet "
    "Jason Jean Jeff Jennifer Jessica Joan John Jonas Joseph Joshua Judith Julia Karen Karl Kate Keith Kelly Kenneth Kevin "
    "Larry Laura Leo Leon Linda Lisa Louis Lucas Lucy Luke Lydia Marcus Margaret Maria Marion Mark Martha Martin Mary "
    "Matthew Maya Melissa Mia Michael Miles Monica Nadia Nancy Nathan Nick Nina Noah Nora Norman Olga Oliver Olivia Oscar "
    "Pamela Patricia Patrick Paul Paula Peter Philip Rachel Ralph Rebecca Rita Robert Robin Roger Ronald Rosa Ruth Ryan "
    "Sally Samuel Sandra Sara Scott Sean Simon Sofia Sonia Stella Stephen Steven Susan Sylvia Tanya Teresa Theo Thomas "
    "Tim Tina Tom Ursula Valerie Vera Victor Vincent Violet Walter Wanda Wayne William Zoe"
).split()
LAST_NAMES = (
    "Adams Allen Anderson Archer Bailey Baker Barnes Becker Bell Bennett Berg Bishop Black Blake Brooks Brown Bryant Burke "
    "Burns Butler Byrne Campbell Carlson Carter Castro Chapman Chen Clark Cole Coleman Collins Cook Cooper Costa Cox Craig "
    "Cross Cruz Curtis Davis Dawson Diaz Dixon Douglas Doyle Duncan Dunn Edwards Elliott Ellis Evans Ferguson Fischer "
    "Fisher Fleming Ford Foster Fox Franklin Fuller Garcia Gibson Gordon Graham Grant Gray Green Griffin Hall Hansen Hardy "
    "Harris Hart Harvey Hayes Henderson Hill Holmes Hoffman Howard Hudson Hughes Hunt Hunter Ibrahim Jackson James Jansen "
    "Jenkins Jensen Johnson Jones Jordan Keller Kelly Kennedy Khan Kim King Klein Knight Kumar Lambert Larsen Lawson Lee "
    "Lewis Lindberg Long Lopez Lynch Marsh Marshall Martin Mason Mendez Meyer Miller Mills Mitchell Moore Morgan Morris "
    "Murphy Murray Myers Nelson Newman Nguyen Nichols Novak Olsen Owens Palmer Parker Patel Payne Perez Perry Peters "
    "Phillips Pierce Porter Powell Price Quinn Reed Reid Reyes Rice Richards Riley Rivera Roberts Robinson Rogers Romano "
    "Ross Rossi Russell Ryan Sanders Santos Schmidt Schneider Scott Shaw Silva Simmons Simpson Singh Smith Snyder Spencer "
    "Stevens Stewart Stone Sullivan Tanaka Taylor Thomas Thompson Torres Tucker Turner Vargas Vogel Wagner Walker Wallace "
    "Walsh Ward Warren Watson Weaver Webb Weber Wells West Wheeler White Williams Wilson Wolf Wood Wright Yamada Young Zimmer"
).split()
CITIES = (
    "Amsterdam Antwerp Athens Atlanta Austin Baltimore Barcelona Basel Belfast Bergen Berlin Bern Bologna Bordeaux Boston "
    "Bristol Brussels Budapest Cairo Cardiff Chicago Cologne Copenhagen Dallas Denver Detroit Dresden Dublin Edinburgh "
    "Florence Frankfurt Geneva Genoa Ghent Glasgow Hamburg Hanover Helsinki Houston Istanbul Krakow Leeds Leipzig Lima "
    "Lisbon Liverpool London Lyon Madrid Malaga Manchester Marseille Memphis Miami Milan Montreal Moscow Munich Nairobi "
    "Naples Nashville Nice Oakland Osaka Oslo Ottawa Oxford Palermo Paris Phoenix Porto Portland Prague Quebec Riga Rome "
    "Rotterdam Salzburg Santiago Seattle Seoul Seville Sofia Stockholm Sydney Tallinn Tampa Tokyo Toronto Toulouse Turin "
    "Utrecht Valencia Vancouver Venice Verona Vienna Vilnius Warsaw York Zagreb Zurich"
).split()
COUNTRIES = (
    "Argentina Australia Austria Belgium Brazil Canada Chile China Croatia Denmark Egypt Estonia Finland France Germany "
    "Greece Hungary Iceland India Ireland Italy Japan Kenya Latvia Mexico Morocco Nepal Norway Peru Poland Portugal Romania "
    "Serbia Slovenia Spain Sweden Switzerland Thailand Turkey Ukraine Uruguay Vietnam"
).split()
STREETS = (
    "Main Oak Pine Maple Cedar Elm Park Lake Hill River Church Market High Mill Station Bridge Garden Forest Sunset Spring "
    "Washington Lincoln King Queen Castle Abbey School Chapel Valley Meadow Harbour North South West East Victoria Albert"
).split()
STREET_TYPES = "Street Avenue Road Lane Drive Court Boulevard Square Way Place St Ave Rd Blvd Dr".split()
COMPANY_ENDINGS = (
    "Inc LLC Ltd Corp Group Partners Supplies Services Systems Trading Foods Tools Media Co. GmbH Logistics Energy Studio "
    "Solutions Industries Consulting Bakery Textiles Electronics Motors Books Pharma Hotels Travel Bank Insurance"
).split()
SHOP_ENDINGS = (
    "Market Cafe Store Shop Bakery Grill Pharmacy Deli Bistro Kiosk Supermarket Bar Restaurant Florist".split()
)
PRODUCTS = (
    "Laptop Monitor Keyboard Mouse Printer Paper Pencil Notebook Stapler Desk Chair Lamp Cable Adapter Battery Phone Tablet "
    "Camera Speaker Router Coffee Tea Milk Bread Butter Cheese Apples Bananas Oranges Tomatoes Potatoes Onions Rice Pasta "
    "Chicken Beef Fish Eggs Yogurt Juice Water Soda Cookies Chips Chocolate Soap Shampoo Towel Brush Hammer Screws Nails "
    "Paint Drill Saw Wrench Gloves Helmet Jacket Shirt Shoes Socks Hat Scarf Carrots Lemons Honey Salad Soup Sandwich Pizza "
    "Toner Folder Envelope Scanner Headset Shelf Cabinet Mirror Carpet Curtain Pillow Blanket Bicycle Tent Rope Ladder"
).split()
WORK = (
    "Consulting Design Hosting Training Delivery Repair Cleaning Support License Installation Translation Editing Testing "
    "Maintenance Inspection Painting Catering Transport Storage Printing Photography Gardening"
).split()
ADJECTIVES = (
    "Red Blue Green Black White Large Small Medium Fresh Organic Premium Basic Wireless Digital Portable Heavy Light Steel "
    "Wooden Plastic Standard Deluxe Mini Classic Grey Yellow Brown Soft Sweet Hot Cold Double Extra Used New Leather Cotton"
).split()
COLOURS = "red green blue yellow black white orange purple brown pink grey".split()
MONTHS = "January February March April May June July August September October November December".split()
WEEKDAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
DEPARTMENTS = (
    "Sales Marketing Finance Engineering Legal Support Research Logistics Operations Security Purchasing Production Quality "
    "Planning Education Surgery Radiology Accounting Administration Design"
).split()
JOBS = (
    "Manager Engineer Clerk Analyst Director Nurse Teacher Driver Cook Designer Assistant Editor Lawyer Chemist".split()
)
VENUES = (
    "Hall Centre Theatre Park Arena Square Library Museum Castle Gardens Stadium Gallery Church School Room House Pavilion Club"
).split()
LANGUAGES = "English French German Spanish Italian Polish Dutch Greek Danish Turkish Arabic Hindi Japanese Czech Finnish".split()


class Rng(random.Random):
    """``random.Random`` with the two calls the generators use most."""

    def pick(self, options: Sequence):
        """One element of ``options``; faster than ``choice``."""
        return options[int(self.random() * len(options))]

    def chance(self, probability: float) -> bool:
        """True with the given probability."""
        return self.random() < probability


class MissingAssets(FileNotFoundError):
    """What pages and recordings are made of is not there; the message says what to run."""


def assets_dir() -> Path:
    """Folder with fonts, words and voices: ``$KVMM_TRAIN_ASSETS`` or ``.train-assets`` (see ``training/assets.py``)."""
    return Path(os.environ.get("KVMM_TRAIN_ASSETS", ".train-assets"))


@lru_cache(None)
def words() -> list[str]:
    """Lower-case English words of 3 to 11 letters, from the word list in the assets folder."""
    path = assets_dir() / "words.txt"
    if not path.exists():
        raise MissingAssets(f"{path} is missing; run: python -m training.assets --out {assets_dir()}")
    return path.read_text().split()


def word(r: Rng) -> str:
    return r.pick(words())


def name_word(r: Rng) -> str:
    """A capitalised word, so that names are an open vocabulary."""
    return word(r).capitalize()


@lru_cache(None)
def names(kind: str, plain: bool = True) -> tuple[str, ...]:
    """Names of many countries from the assets folder, ``plain`` ones in ASCII or the others; none where it has none.

    ``kind`` is ``first_names``, ``last_names``, ``towns`` or ``jobs`` (:mod:`training.asset_names`).
    """
    path = assets_dir() / "names" / f"{kind}.txt"
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    return tuple(line for line in lines if line.isascii() == plain)


def _name(r: Rng, common: Sequence[str], share: float, kind: str) -> str:
    """One of ``common`` in ``share`` of the cases, else a capitalised word; where there are names of many countries,
    these in half of either."""
    roll, many = r.random(), names(kind)
    if many and share / 2 <= roll < (1 + share) / 2:
        return r.pick(many)
    return r.pick(common) if roll < share else name_word(r)


def first_name(r: Rng) -> str:
    return _name(r, FIRST_NAMES, 0.8, "first_names")


def last_name(r: Rng) -> str:
    return _name(r, LAST_NAMES, 0.7, "last_names")


def jobs() -> tuple[str, ...]:
    """Professions, more where the assets folder has a list."""
    return (*JOBS, *names("jobs"))


def person(r: Rng) -> str:
    name = f"{first_name(r)} {last_name(r)}"
    if r.chance(0.06):
        name = f"{r.pick(FIRST_NAMES)} {r.pick(string.ascii_uppercase)}. {last_name(r)}"
    return f"{r.pick(('Mr.', 'Ms.', 'Mrs.', 'Dr.'))} {name}" if r.chance(0.1) else name


def city(r: Rng) -> str:
    return _name(r, CITIES, 0.75, "towns")


def country(r: Rng) -> str:
    return r.pick(COUNTRIES)


def street(r: Rng) -> str:
    name = r.pick(STREETS) if r.chance(0.6) else name_word(r)
    return f"{r.randint(1, 1200)} {name} {r.pick(STREET_TYPES)}"


def postcode(r: Rng) -> str:
    if r.chance(0.7):
        return str(r.randint(1000, 99999))
    letters = "".join(r.pick(string.ascii_uppercase) for _ in range(4))
    return f"{letters[:2]}{r.randint(1, 20)} {r.randint(1, 9)}{letters[2:]}"


def town(r: Rng) -> str:
    place = city(r)
    return r.pick((f"{postcode(r)} {place}", f"{place} {postcode(r)}", f"{place}, {country(r)}", place))


def company(r: Rng) -> str:
    style = r.randint(0, 4)
    if style == 0:
        return f"{last_name(r)} {r.pick(COMPANY_ENDINGS)}"
    if style == 1:
        return f"{last_name(r)} & {r.pick((last_name(r), 'Sons', 'Co.', 'Partners'))}"
    if style == 2:
        return f"{name_word(r)} {r.pick(COMPANY_ENDINGS)}"
    if style == 3:
        return f"{r.pick((last_name, name_word, city))(r)} {name_word(r)} {r.pick(COMPANY_ENDINGS)}"
    return f"{r.pick(ADJECTIVES)} {name_word(r)} {r.pick(COMPANY_ENDINGS)}"


def shop(r: Rng) -> str:
    return f"{r.pick((last_name, name_word, city))(r)} {r.pick(SHOP_ENDINGS)}" if r.chance(0.7) else company(r)


def date(r: Rng, style: int | None = None) -> str:
    year, month, day = r.randint(1995, 2035), r.randint(1, 12), r.randint(1, 28)
    name = MONTHS[month - 1]
    style = r.randint(0, 9) if style is None else style
    return (
        f"{month:02d}/{day:02d}/{year}",
        f"{day:02d}.{month:02d}.{year}",
        f"{year}-{month:02d}-{day:02d}",
        f"{name} {day}, {year}",
        f"{day} {name[:3]} {year}",
        f"{name[:3]} {day}, {year}",
        f"{day}/{month}/{year}",
        f"{day} {name} {year}",
        f"{day:02d}-{name[:3]}-{year}",
        f"{month}/{day}/{year % 100:02d}",
    )[style]


def time_of_day(r: Rng) -> str:
    if r.chance(0.6):
        return f"{r.randint(0, 23):02d}:{r.randint(0, 59):02d}"
    return f"{r.randint(1, 12)}:{r.randint(0, 59):02d} {r.pick(('AM', 'PM', 'am', 'pm'))}"


def digits(r: Rng, n: int) -> str:
    return "".join(r.pick(string.digits) for _ in range(n))


def code(r: Rng) -> str:
    letters = "".join(r.pick(string.ascii_uppercase) for _ in range(r.randint(1, 4)))
    number = digits(r, r.randint(3, 8))
    return r.pick(
        (
            f"{letters}-{number}",
            number,
            f"{letters}{number}",
            f"{number}-{letters}",
            f"#{number}",
            f"{number[:3]}-{number[3:]}{r.randint(10, 999)}",
            f"{letters}/{number}",
            f"{letters}-{r.randint(2015, 2030)}-{number[:4]}",
            f"{letters} {number}",
        )
    )


def phone(r: Rng) -> str:
    d = digits(r, 10)
    return r.pick(
        (
            f"({d[:3]}) {d[3:6]}-{d[6:]}",
            f"{d[:3]}-{d[3:6]}-{d[6:]}",
            f"+{r.randint(1, 99)} {d[:3]} {d[3:]}",
            f"{d[:3]} {d[3:6]} {d[6:]}",
            f"+{r.randint(1, 99)} {d[:2]} {d[2:6]} {d[6:]}",
            f"0{d[:4]}/{d[4:]}",
        )
    )


def email(r: Rng) -> str:
    name = r.pick(
        (word(r), first_name(r).lower(), f"{first_name(r)[0].lower()}.{last_name(r).lower()}", "info", "office")
    )
    host = r.pick((word(r), word(r) + word(r), last_name(r).lower()))
    return f"{name}@{host}.{r.pick(('com', 'org', 'net', 'io', 'de', 'co.uk', 'eu', 'example'))}"


def website(r: Rng) -> str:
    return f"www.{word(r)}{r.pick(('', '-' + word(r)))}.{r.pick(('com', 'org', 'net', 'de', 'eu'))}"


def item(r: Rng, work: float = 0.2) -> str:
    if r.chance(work):
        return r.pick(WORK) if r.chance(0.5) else f"{r.pick((name_word(r), r.pick(PRODUCTS)))} {r.pick(WORK)}"
    style = r.randint(0, 5)
    if style < 2:
        return f"{r.pick(ADJECTIVES)} {r.pick(PRODUCTS)}"
    return (r.pick(PRODUCTS), f"{name_word(r)} {r.pick(PRODUCTS)}", f"{name_word(r)} {word(r)}", name_word(r))[
        style - 2
    ]


def count(r: Rng) -> str:
    return str(int(10 ** r.uniform(0, 5)))


def cents(r: Rng, low: float = 2.0, high: float = 5.5) -> int:
    return int(10 ** r.uniform(low, high))


def money_format(r: Rng) -> Callable[[int], str]:
    """One way of printing amounts in cents, kept for a whole page."""
    before = r.pick(("$", "$", "$", "", "", "EUR ", "USD ", "GBP ", "CHF ", "$ "))
    after = r.pick((" EUR", " USD", "", "", " CHF")) if not before else ""
    style = r.pick(("comma", "comma", "plain", "plain", "european", "space"))

    def render(value: int) -> str:
        text = f"{value / 100:,.2f}"
        if style == "plain":
            text = text.replace(",", "")
        elif style == "european":
            text = text.translate(str.maketrans(",.", ".,"))
        elif style == "space":
            text = text.replace(",", " ")
        return before + text + after

    return render


def money(r: Rng, high: float = 5.5) -> str:
    """An amount, a third of them without decimals and up to millions."""
    if r.chance(0.67):
        return money_format(r)(cents(r, high=high))
    amount = int(10 ** r.uniform(0.3, high + 1))
    if r.chance(0.5):  # a round amount
        step = 10 ** max(len(str(amount)) - r.randint(1, 3), 0)
        amount = max(amount // step, 1) * step
    text = f"{amount:,}" if r.chance(0.7) else f"{amount:,}".replace(",", r.pick(("", " ", ".")))
    before = r.pick(("$", "$", "$", "", "", "EUR ", "USD ", "GBP ", "CHF ", "$ "))
    return before + text + (r.pick((" EUR", " USD", " CHF", " dollars", ",-", "")) if not before else "")


def venue(r: Rng) -> str:
    """A named building or place."""
    return f"{r.pick((name_word, last_name, city, lambda r: r.pick(STREETS)))(r)} {r.pick(VENUES)}"


def span(r: Rng) -> str:
    """A length of time."""
    return f"{r.randint(2, 48)} {r.pick(('weeks', 'days', 'months', 'hours', 'minutes', 'years'))}"


def month(r: Rng) -> str:
    """A month with its year."""
    return f"{r.pick(MONTHS)} {r.randint(1998, 2034)}"


def several(options: Sequence[str]) -> Callable[[Rng], str]:
    """Makes lists of two to four of ``options``, joined by commas."""
    return lambda r: ", ".join(r.sample(list(options), r.randint(2, 4)))


def percent(r: Rng) -> str:
    return r.pick((f"{r.randint(0, 100)}%", f"{r.random() * 100:.1f}%", f"{r.random() * 20:.2f} %"))


def phrase(r: Rng, low: int = 2, high: int = 3) -> str:
    text = " ".join(word(r) for _ in range(r.randint(low, high)))
    return text.capitalize() if r.chance(0.6) else text.title()


def sentence(r: Rng, low: int = 4, high: int = 10) -> str:
    text = " ".join(word(r) for _ in range(r.randint(low, high))).capitalize()
    if r.chance(0.15):
        cut = text.find(" ", len(text) // 2)
        text = f"{text[:cut]},{text[cut:]}" if cut > 0 else text
    return text + r.pick("....!?")
