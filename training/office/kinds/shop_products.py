"""Pages of web shops that show a product, with its reviews."""

# fmt: off

from dataclasses import dataclass

from training.office.document import Document
from training.office.kinds.web_shops import GOODS, stars, top_bar
from training.office.registry import kind
from training.office.screen import Column, Element, Panel, Photo, Row, Rule, Screen, Text
from training.office.values import Dates, Money, first_name, last_name, people, person
from training.office.windows import browser
from training.pages import values as v

PAINTS = ("black", "white", "navy", "red", "grey", "olive", "sand", "teal", "pink", "silver", "yellow", "brown")
PRAISE = (
    "Exactly as described, fits perfectly.", "Good value for the money.", "Broke after two weeks, sadly.", "My daughter loves it.", "A bit smaller than I thought.", "Solid and quiet, would buy again.", "The colour is darker than in the photo.",
    "Arrived late but works well.", "Too heavy for me.", "Best one I have owned so far.", "The zip is a little stiff.", "Easy to clean and easy to store.", "Instructions only in German.", "Returned it, it smelled of plastic.",
    "Battery lasts for three days.", "Looks cheaper than it is.", "Very comfortable, even after hours.", "Not waterproof, as I found out.",
)
FEATURES = (
    "Weight: {n} g", "Made in {country}", "Material: {material}", "Warranty: {years} years", "Item number: {code}", "Power: {n} watts", "Machine washable at 30 degrees", "Energy class {letter}", "Colour-fast and dirt-repellent",
)
MATERIALS = ("100 % cotton", "recycled polyester", "stainless steel", "oak", "merino wool", "aluminium", "leather", "bamboo")


def tagged(number: int, r: v.Rng) -> str:
    """A number of reviews as shops write it."""
    return f"{number:,}" if r.chance(0.7) else str(number)


def _names(ui: Screen, name: str, brand: str) -> list[Element]:
    """The product's name and perhaps its brand."""
    title = ui.text(name, "title", wrap=True)
    ui.ask(("What is the product called?", "Which product is shown?", "What is for sale here?", "What is the name of the article?"), name, title)
    if not ui.r.chance(0.4):
        return [title]
    made = ui.text(ui.r.pick((f"by {brand}", f"Brand: {brand}", f"Visit the {brand} store")), "small")
    ui.ask(("Which brand is it?", "What is the brand?", "Who makes the product?"), brand, made)
    return [title, made]


def _rating(ui: Screen) -> list[Element]:
    r = ui.r
    score, number = r.randint(21, 50) / 10, r.randint(3, 4200)
    if not r.chance(0.8):
        ui.d.absent("What is the rating of the product?", "How many stars does it have?")
        return []
    rate, count = ui.text(f"{score}" + r.pick(("", " / 5", " out of 5")), "small"), ui.text(r.pick(("{} reviews", "({})", "{} ratings", "({} reviews)", "{} customer reviews")).format(tagged(number, r)), "small", mark=r.pick(("", "under")))
    ui.ask(("What is the rating of the product?", "How many stars does it have?", "How is the product rated on average?", "What is the average rating?", "How good is the rating?"), str(score), rate)
    ui.ask(("How many reviews are there?", "How many people rated it?", "How many customers left a rating?", "What is the number of reviews?"), count.text.strip("()").split()[0], count)
    return [Row([*stars(score), rate, count], gap=0.8)]


def _price(ui: Screen, money: Money) -> Element:
    """The price, perhaps beside the one before a reduction."""
    r = ui.r
    price = money.round(r, 8, 600)
    step = 100 if money.whole else 1
    old = -(-round(price * r.uniform(1.05, 2.0)) // (10 * step)) * 10 * step + 10 * step if r.chance(0.65) else 0
    now = ui.text(money(price), r.pick(("title", "large", "bold")))
    line: list[Element] = [now]
    ui.ask(("How much does it cost?", "What is the price?", "How much is it now?", "What do I have to pay for it?", "What does the product cost at the moment?"), money(price), now)
    if old:
        before = ui.text(r.pick(("", "was ", "RRP ", "")) + money(old), "body", grey=True, mark="struck")
        line.append(before)
        ui.ask(("What was the old price?", "How much was it before?", "What did it cost before the reduction?", "What is the crossed-out price?", "Which price has been struck through?"), money(old), before)
        if r.chance(0.5):
            off = ui.text(f"-{round(100 * (old - price) / old)}%", "small")
            line.append(Panel(off, dark=220, pad=(1, 0.2)))
            ui.ask(("By how many percent is it reduced?", "How big is the discount in percent?", "What percentage is off?"), off.text.lstrip("-"), off)
    else:
        ui.d.absent("What was the old price?", "How much was it before the reduction?", "What did it cost before?")
    return Row(line, gap=3)


def _choices(ui: Screen, option: str, choices: tuple[str, ...]) -> list[Element]:
    """Some choices of an option, such as sizes, one of which is selected."""
    r = ui.r
    if not option:
        ui.d.absent("Which size is selected?", "What size is chosen?")
        return []
    offered = [choices[n] for n in sorted(r.sample(range(len(choices)), min(len(choices), r.randint(3, 5))))]
    chosen = r.pick(offered)
    label = ui.text(f"{option}:", "small")
    texts = ui.texts(offered, "small")
    boxes = [Panel(t, 0, 140, (1.3, 0.5), dark=220 if t.text == chosen else 0) for t in texts]
    every = [label, *texts]
    low = option.lower()
    ui.ask((f"Which {low} is selected?", f"What {low} is chosen?", f"In which {low} would I buy it?", f"Which {low} is marked?"), chosen, every)
    ui.ask((f"Which {low}s are there?" if option in ("Size", "Length", "Diameter", "Format", "Volume") else f"Which options are there for {low}?", f"What can I choose for {low}?", f"Which choices are offered under {option}?"), ", ".join(offered), every)
    ui.ask((f"How many choices of {low} are there?", f"How many options does {option} have?"), str(len(offered)), every)
    return [Column([label, Row(boxes, gap=1.2)], gap=0.5)]


def _colours(ui: Screen) -> list[Element]:
    r = ui.r
    if not r.chance(0.6):
        ui.d.absent("Which colour is selected?", "In which colour is it shown?")
        return []
    colours = r.sample(PAINTS, r.randint(2, 4))
    label = ui.text(f"{r.pick(('Colour', 'Color'))}: {colours[0]}", "small")
    ui.ask(("Which colour is selected?", "What colour is it?", "In which colour is it shown?", "What color did I pick?"), colours[0], label)
    if not r.chance(0.5):
        return [label]
    others = ui.text(f"Also in: {', '.join(colours[1:])}", "small", wrap=True)
    ui.ask(("In which other colours is it sold?", "What other colours are there?", "Which colours does it also come in?"), ", ".join(colours[1:]), others)
    return [label, others]


def _delivery_date(ui: Screen, dates: Dates) -> list[Element]:
    r = ui.r
    if not r.chance(0.7):
        ui.d.absent("When will it be delivered?", "What is the delivery date?", "When does it arrive?")
        return []
    day = r.pick((dates.date(), f"{r.pick(v.WEEKDAYS)}, {r.randint(1, 28)} {r.pick(v.MONTHS)}"))
    when = ui.text(r.pick((f"Delivery: {day}", f"Get it by {day}", f"Arrives {day}", f"Delivered by {day}")), "body", wrap=True)
    ui.ask(("When will it be delivered?", "When does it arrive?", "What is the delivery date?", "By when would I get it?", "On which day will I have it?"), day, when)
    return [when]


def _shipping_costs(ui: Screen, money: Money) -> list[Element]:
    r = ui.r
    free = r.chance(0.4)
    if not r.chance(0.6):
        return []
    cost = money(money.round(r, 2, 12))
    ship = ui.text("Free delivery" if free else r.pick((f"+ {cost} shipping", f"Shipping: {cost}", f"Delivery costs {cost}")), "small")
    ui.ask(("How much is the delivery?", "What does shipping cost?", "How much do I pay for the delivery?", "How high are the shipping costs?"), "free" if free else cost, ship)
    return [ship]


def _stock(ui: Screen) -> list[Element]:
    r = ui.r
    stock = r.randint(0, 3)
    if not stock:
        ui.d.absent("How many are left?", "How many are in stock?")
        return []
    left = r.randint(1, 60)
    t = ui.text((f"Only {left} left in stock", f"In stock: {left}", f"{left} available")[stock - 1], "small")
    ui.ask(("How many are left?", "How many are in stock?", "How many pieces are still available?", "What is the stock?"), str(left), t)
    return [t]


def _seller(ui: Screen) -> list[Element]:
    r = ui.r
    if not r.chance(0.6):
        ui.d.absent("Who is the seller?", "Who sells the product?", "From whom would I buy it?")
        return []
    seller = r.pick((v.company(r), f"{v.name_word(r)} {r.pick(('Trading', 'Outdoor', 'Home', 'Supplies', 'Deals'))}"))
    t = ui.text(r.pick((f"Sold by {seller}", f"Seller: {seller}", f"Sold and shipped by {seller}")), "small", wrap=True)
    ui.ask(("Who sells it?", "Who is the seller?", "From whom would I buy it?", "Which company sells the product?"), seller, t)
    return [t]


def _buttons(ui: Screen) -> Element:
    """The button for buying, perhaps with another."""
    r = ui.r
    main, main_text = ui.button(r.pick(("Add to basket", "Add to cart", "Buy now", "In the basket")), True)
    buttons: list[Element] = [main]
    ui.ask(("Which button do I press to buy it?", "What does the button for buying say?", "What is written on the buy button?"), main_text.text, main_text)
    if r.chance(0.5):
        buttons.append(ui.button(r.pick(("Wish list", "Save for later", "Compare", "Share")))[0])
    return Row(buttons)


def _features(ui: Screen) -> list[Element]:
    """A list of what the product is like."""
    r, d = ui.r, ui.d
    if not r.chance(0.6):
        d.absent("How heavy is it?", "What does it weigh?")
        d.absent("How long is the warranty?", "What is it made of?")
        return []
    blanks = {"n": r.randint(20, 1900), "country": v.country(r), "material": r.pick(MATERIALS), "years": r.randint(2, 10), "code": v.digits(r, 6), "letter": r.pick("ABCDE")}
    lines = r.sample(FEATURES, r.randint(2, 4))
    shown = [ui.text("- " + line.format_map(blanks), "small") for line in lines]
    title = ui.text(r.pick(("Details", "About this item", "Product details", "Highlights")), "bold")
    about = {
        FEATURES[0]: (("How heavy is it?", "What does it weigh?", "What is its weight?"), f"{blanks['n']} g"), FEATURES[1]: (("Where is it made?", "In which country is it produced?", "Where does the product come from?"), blanks["country"]),
        FEATURES[2]: (("What is it made of?", "Which material is it?", "What is the material?"), blanks["material"]), FEATURES[3]: (("How long is the warranty?", "How many years of warranty are there?", "For how long is it guaranteed?"), f"{blanks['years']} years"),
        FEATURES[4]: (("What is the item number?", "Which item number does it have?"), blanks["code"]), FEATURES[5]: (("How many watts does it have?", "What is its power?"), f"{blanks['n']} watts"), FEATURES[7]: (("Which energy class is it?", "What is the energy class?"), blanks["letter"]),
    }
    for line, t in zip(lines, shown, strict=True):
        if line in about:
            ui.ask(*about[line], t)
    missing = r.pick([f for f in (FEATURES[0], FEATURES[3], FEATURES[2]) if f not in lines] or [FEATURES[4]])
    if missing not in lines:
        d.absent(*about[missing][0])
    return [Column([title, *shown], gap=0.4)]


@dataclass(frozen=True)
class Review:
    who: str
    text: str
    day: str
    grade: int


def _drawn_reviews(r: v.Rng, dates: Dates) -> list[Review]:
    said = r.sample(PRAISE, r.randint(1, 4))
    names = [r.pick((f"{first_name(r)} {last_name(r)[0]}.", n)) for n in people(r, len(said))]
    names = names if len(set(names)) == len(names) else people(r, len(said))
    days = [dates.date() for _ in said]
    grades = [r.randint(1, 5) for _ in said]
    return [Review(*fields) for fields in zip(names, said, days, grades, strict=True)]


def _review_card(ui: Screen, review: Review, dated: bool) -> tuple[Element, Text]:
    """A review, ``dated`` or not, and the text of its author."""
    who, text, day = review.who, review.text, review.day
    a, b = ui.text(who, "bold"), ui.text(text, "body", wrap=True)
    when = [ui.text(day, "small", grey=True)] if dated else []
    ui.ask((f"What does {who} write?", f"What does {who} think of it?", f"What is {who}'s opinion?", f"What does the review of {who} say?"), text, a, b)
    if dated:
        ui.ask((f"When did {who} review it?", f"What is the date of {who}'s review?", f"On which day did {who} write the review?"), day, a, when[0])
    ui.ask((f"How many stars did {who} give?", f"How many stars does {who} give it?", f"What rating did {who} give?"), str(review.grade), a, b)
    ui.ask((f'Who wrote "{text}"?', f'Whose review says "{text}"?', f'Which customer says "{text.rstrip(".")}"?'), who, a, b)
    return Column([Row([a, *stars(review.grade), *when], gap=1), b]), a


def _reviews(ui: Screen, dates: Dates) -> list[Element]:
    r, d = ui.r, ui.d
    if not r.chance(0.75):
        d.absent("Who wrote the first review?", "What do the reviews say?")
        return []
    reviews = _drawn_reviews(r, dates)
    names, grades = [review.who for review in reviews], [review.grade for review in reviews]
    dated = r.chance(0.8)
    cards = [_review_card(ui, review, dated) for review in reviews]
    reviewers = [reviewer for _, reviewer in cards]
    if not dated:
        d.absent(f"When did {names[0]} review it?", f"What is the date of {names[0]}'s review?")
    ui.ask(("How many customer reviews are shown in full?", "How many people's reviews can I read here?"), str(len(reviews)), reviewers)
    if len(reviews) > 1:
        ui.ask(("Who wrote the first review?", "Whose review stands at the top?", "Who is the author of the first review?"), names[0], reviewers)
        if grades.count(min(grades)) == 1:
            ui.ask(("Who gave the fewest stars?", "Who gave the worst rating?", "Which reviewer was least happy?"), names[grades.index(min(grades))], reviewers)
    title = ui.text(r.pick(("Reviews", "Recent reviews", "What customers say", "Customer reviews")), "bold")
    d.absent(f"What does {person(r)} write?", f"How many stars did {person(r)} give?")
    return [Column([title, *(card for card, _ in cards)], gap=1)]


def _beside_photo(ui: Screen, side: list[Element]) -> Element:
    """What is said about the product beside its photo, or below it on a narrow screen."""
    r = ui.r
    details = Column(side, gap=r.pick((0.8, 1.2, 1.8)))
    photo = Photo(r.randint(22, 34), r.uniform(0.7, 1.0))
    if ui.d.shape[1] >= 500:
        return Row([photo, details], [None, 1], gap=3, top=True, panes=True)
    return Column([Photo(r.randint(12, 20), r.uniform(1.0, 1.6)), details], gap=1)


@kind("shop_product", 1.4)
def product(d: Document) -> None:
    ui, r, money, dates = Screen(d), d.r, Money(d.r), Dates(d.r)
    shop = f"{v.name_word(r)}{r.pick(('', ' Shop', ' Store', ' Market', '.shop', ' Direct', ' Outlet'))}"
    category, nouns, option, choices = r.pick(GOODS)
    noun, brand = r.pick(nouns), v.name_word(r)
    name = f"{brand} {noun}" + (f" {r.pick(('Pro', 'Plus', 'Mini', 'Air', 'X2', '500', 'Classic', 'Light', 'II'))}" if r.chance(0.5) else "")
    basket = r.randint(1, 12) if r.chance(0.65) else None
    top = top_bar(ui, shop, basket)
    side: list[Element] = [
        *_names(ui, name, brand),
        *_rating(ui),
        _price(ui, money),
        *_choices(ui, option, choices),
        *_colours(ui),
        *_delivery_date(ui, dates),
        *_shipping_costs(ui, money),
        *_stock(ui),
        *_seller(ui),
        _buttons(ui),
    ]
    below = [*_features(ui), *_reviews(ui, dates)]
    head = _beside_photo(ui, side)
    crumb = [ui.text(f"Home > {category} > {noun.capitalize()}", "small", grey=True)] if r.chance(0.5) else []
    if crumb:
        ui.ask(("In which category is the product?", "Which department of the shop is it in?"), category, crumb[0])
    body = Column([top, Panel(Column([*crumb, head, *([Rule()] if below else []), *below], gap=1.4), pad=(2.5, 1.5), square=True)])
    slug = v.word(r)
    ui.show(browser(ui, f"{shop.split()[0].split('.')[0].lower()}.example/{slug}", name, body))
