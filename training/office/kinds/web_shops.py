"""Pages of web shops: a product with its reviews, a basket, a list of goods."""

# fmt: off

from training.office.document import Document
from training.office.registry import kind
from training.office.screen import Column, Element, Icon, Panel, Photo, Row, Rule, Screen, Space
from training.office.values import Dates, Money, first_name, last_name, people, person
from training.office.windows import browser
from training.pages import values as v

LETTERS = ("XS", "S", "M", "L", "XL", "XXL")
GIGABYTES = ("64 GB", "128 GB", "256 GB", "512 GB")
GOODS = (
    ("Shoes", ("trail running shoes", "leather boots", "canvas sneakers", "hiking sandals", "rubber boots", "slippers"), "Size", ("36", "37", "38", "39", "40", "41", "42", "43", "44")),
    ("Clothing", ("rain jacket", "fleece pullover", "linen shirt", "cargo trousers", "wool cardigan", "cycling shorts"), "Size", LETTERS),
    ("Electronics", ("tablet", "smartphone", "music player", "e-reader", "laptop", "dash camera"), "Storage", GIGABYTES),
    ("Kitchen", ("frying pan", "stock pot", "pizza stone", "casserole", "wok"), "Diameter", ("20 cm", "24 cm", "26 cm", "28 cm", "32 cm")),
    ("Home", ("wool blanket", "curtain", "cotton rug", "duvet cover", "door mat"), "Format", ("90 x 60 cm", "120 x 80 cm", "140 x 200 cm", "150 x 100 cm", "200 x 200 cm")),
    ("Garden", ("garden hose", "extension cable", "hammock", "parasol", "raised bed"), "Length", ("1.2 m", "2 m", "3 m", "5 m", "10 m", "25 m")),
    ("Outdoor", ("backpack", "dry bag", "cool box", "duffel bag"), "Volume", ("20 l", "28 l", "35 l", "45 l", "60 l")),
    ("Audio", ("headphones", "loudspeaker", "turntable", "radio", "microphone"), "", ()),
    ("Office", ("desk lamp", "office chair", "shredder", "label printer", "standing desk"), "", ()),
)
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


def top_bar(ui: Screen, name: str, count: int | None) -> Element:
    """The bar of a shop: name, search field, basket."""
    r = ui.r
    shop = ui.text(name, "bold")
    ui.ask(("Which shop is this?", "What is the name of the shop?", "On whose web page is this sold?", "What is the online shop called?"), name, shop)
    right: list[Element] = []
    if count is not None:
        badge = ui.text(r.pick((str(count), f"({count})", f"Basket ({count})", f"Cart: {count}")), "small")
        ui.ask(("How many items are in the basket?", "How many things are in my cart?", "What number does the basket show?", "How many articles have I put in the cart already?"), str(count), badge)
        right = [Icon("cart"), badge]
    else:
        ui.d.absent("How many items are in the basket?", "How many things are in my cart?")
    search = Panel(Row([Icon("search", 0.7), ui.text(r.pick(("Search", "Search products...", "What are you looking for?")), "small", grey=True)]), 0, 110, (1.5, 0.6))
    middle = [search] if ui.wide else [Space()]
    bar: Element = Panel(Row([Icon("menu"), shop, *middle, *right], [None, None, 1, *[None] * len(right)], gap=2.5), r.pick((0, 20, 35)), dark=r.pick((0, 230, 200)), pad=(2, 1.2), square=True)
    if r.chance(0.5) and ui.wide:
        links = r.sample(("Women", "Men", "Kids", "Sale", "New in", "Brands", "Gifts", "Offers", "Help", "My account", "Stores"), r.randint(3, 5))
        return Column([bar, Panel(Row(ui.texts(links, "small"), gap=4), 15, pad=(2, 0.6), square=True)])
    return bar


def stars(value: float) -> list[Icon]:
    return [Icon("star" if i < round(value) else "hollow star", 0.6) for i in range(5)]


def tagged(number: int, r: v.Rng) -> str:
    """A number of reviews as shops write it."""
    return f"{number:,}" if r.chance(0.7) else str(number)


@kind("shop_product", 1.4)
def product(d: Document) -> None:
    ui, r, money, dates = Screen(d), d.r, Money(d.r), Dates(d.r)
    shop = f"{v.name_word(r)}{r.pick(('', ' Shop', ' Store', ' Market', '.shop', ' Direct', ' Outlet'))}"
    category, nouns, option, choices = r.pick(GOODS)
    noun, brand = r.pick(nouns), v.name_word(r)
    name = f"{brand} {noun}" + (f" {r.pick(('Pro', 'Plus', 'Mini', 'Air', 'X2', '500', 'Classic', 'Light', 'II'))}" if r.chance(0.5) else "")
    basket = r.randint(1, 12) if r.chance(0.65) else None
    top = top_bar(ui, shop, basket)
    side: list[Element] = []
    title = ui.text(name, "title", wrap=True)
    ui.ask(("What is the product called?", "Which product is shown?", "What is for sale here?", "What is the name of the article?"), name, title)
    side.append(title)
    if r.chance(0.4):
        made = ui.text(r.pick((f"by {brand}", f"Brand: {brand}", f"Visit the {brand} store")), "small")
        side.append(made)
        ui.ask(("Which brand is it?", "What is the brand?", "Who makes the product?"), brand, made)
    score, number = r.randint(21, 50) / 10, r.randint(3, 4200)
    if r.chance(0.8):
        rate, count = ui.text(f"{score}" + r.pick(("", " / 5", " out of 5")), "small"), ui.text(r.pick(("{} reviews", "({})", "{} ratings", "({} reviews)", "{} customer reviews")).format(tagged(number, r)), "small", mark=r.pick(("", "under")))
        side.append(Row([*stars(score), rate, count], gap=0.8))
        ui.ask(("What is the rating of the product?", "How many stars does it have?", "How is the product rated on average?", "What is the average rating?", "How good is the rating?"), str(score), rate)
        ui.ask(("How many reviews are there?", "How many people rated it?", "How many customers left a rating?", "What is the number of reviews?"), count.text.strip("()").split()[0], count)
    else:
        d.absent("What is the rating of the product?", "How many stars does it have?")
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
        d.absent("What was the old price?", "How much was it before the reduction?", "What did it cost before?")
    side.append(Row(line, gap=3))
    if option:
        chosen = r.randint(0, len(choices) - 1)
        window_of = sorted(r.sample(range(len(choices)), min(len(choices), r.randint(3, 5))))
        chosen = r.pick(window_of)
        label = ui.text(f"{option}:", "small")
        boxes = []
        for n in window_of:
            t = ui.text(choices[n], "small")
            boxes.append((Panel(t, 0, 140, (1.3, 0.5), dark=220 if n == chosen else 0), t))
        side.append(Column([label, Row([b for b, _ in boxes], gap=1.2)], gap=0.5))
        every = [label, *(t for _, t in boxes)]
        low = option.lower()
        ui.ask((f"Which {low} is selected?", f"What {low} is chosen?", f"In which {low} would I buy it?", f"Which {low} is marked?"), choices[chosen], every)
        ui.ask((f"Which {low}s are there?" if option in ("Size", "Length", "Diameter", "Format", "Volume") else f"Which options are there for {low}?", f"What can I choose for {low}?", f"Which choices are offered under {option}?"), ", ".join(choices[n] for n in window_of), every)
        ui.ask((f"How many choices of {low} are there?", f"How many options does {option} have?"), str(len(window_of)), every)
    else:
        d.absent("Which size is selected?", "What size is chosen?")
    if r.chance(0.6):
        colours = r.sample(PAINTS, r.randint(2, 4))
        label = ui.text(f"{r.pick(('Colour', 'Color'))}: {colours[0]}", "small")
        side.append(label)
        ui.ask(("Which colour is selected?", "What colour is it?", "In which colour is it shown?", "What color did I pick?"), colours[0], label)
        if r.chance(0.5):
            others = ui.text(f"Also in: {', '.join(colours[1:])}", "small", wrap=True)
            side.append(others)
            ui.ask(("In which other colours is it sold?", "What other colours are there?", "Which colours does it also come in?"), ", ".join(colours[1:]), others)
    else:
        d.absent("Which colour is selected?", "In which colour is it shown?")
    if r.chance(0.7):
        day = r.pick((dates.date(), f"{r.pick(v.WEEKDAYS)}, {r.randint(1, 28)} {r.pick(v.MONTHS)}"))
        when = ui.text(r.pick((f"Delivery: {day}", f"Get it by {day}", f"Arrives {day}", f"Delivered by {day}")), "body", wrap=True)
        side.append(when)
        ui.ask(("When will it be delivered?", "When does it arrive?", "What is the delivery date?", "By when would I get it?", "On which day will I have it?"), day, when)
    else:
        d.absent("When will it be delivered?", "What is the delivery date?", "When does it arrive?")
    free = r.chance(0.4)
    if r.chance(0.6):
        cost = money(money.round(r, 2, 12))
        ship = ui.text("Free delivery" if free else r.pick((f"+ {cost} shipping", f"Shipping: {cost}", f"Delivery costs {cost}")), "small")
        side.append(ship)
        ui.ask(("How much is the delivery?", "What does shipping cost?", "How much do I pay for the delivery?", "How high are the shipping costs?"), "free" if free else cost, ship)
    stock = r.randint(0, 3)
    if stock:
        left = r.randint(1, 60)
        t = ui.text((f"Only {left} left in stock", f"In stock: {left}", f"{left} available")[stock - 1], "small")
        side.append(t)
        ui.ask(("How many are left?", "How many are in stock?", "How many pieces are still available?", "What is the stock?"), str(left), t)
    else:
        d.absent("How many are left?", "How many are in stock?")
    if r.chance(0.6):
        seller = r.pick((v.company(r), f"{v.name_word(r)} {r.pick(('Trading', 'Outdoor', 'Home', 'Supplies', 'Deals'))}"))
        t = ui.text(r.pick((f"Sold by {seller}", f"Seller: {seller}", f"Sold and shipped by {seller}")), "small", wrap=True)
        side.append(t)
        ui.ask(("Who sells it?", "Who is the seller?", "From whom would I buy it?", "Which company sells the product?"), seller, t)
    else:
        d.absent("Who is the seller?", "Who sells the product?", "From whom would I buy it?")
    main, main_text = ui.button(r.pick(("Add to basket", "Add to cart", "Buy now", "In the basket")), True)
    buttons: list[Element] = [main]
    ui.ask(("Which button do I press to buy it?", "What does the button for buying say?", "What is written on the buy button?"), main_text.text, main_text)
    if r.chance(0.5):
        buttons.append(ui.button(r.pick(("Wish list", "Save for later", "Compare", "Share")))[0])
    side.append(Row(buttons))
    below: list[Element] = []
    if r.chance(0.6):
        blanks = {"n": r.randint(20, 1900), "country": v.country(r), "material": r.pick(MATERIALS), "years": r.randint(2, 10), "code": v.digits(r, 6), "letter": r.pick("ABCDE")}
        lines = r.sample(FEATURES, r.randint(2, 4))
        shown = [ui.text("- " + line.format_map(blanks), "small") for line in lines]
        below.append(Column([ui.text(r.pick(("Details", "About this item", "Product details", "Highlights")), "bold"), *shown], gap=0.4))
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
    else:
        d.absent("How heavy is it?", "What does it weigh?")
        d.absent("How long is the warranty?", "What is it made of?")
    if r.chance(0.75):
        reviewers, said = [], r.sample(PRAISE, r.randint(1, 4))
        names = [r.pick((f"{first_name(r)} {last_name(r)[0]}.", n)) for n in people(r, len(said))]
        names = names if len(set(names)) == len(names) else people(r, len(said))
        days = [dates.date() for _ in said]
        grades = [r.randint(1, 5) for _ in said]
        dated = r.chance(0.8)
        cards: list[Element] = []
        for who, text, day, grade in zip(names, said, days, grades, strict=True):
            a, b = ui.text(who, "bold"), ui.text(text, "body", wrap=True)
            when = [ui.text(day, "small", grey=True)] if dated else []
            reviewers.append(a)
            cards.append(Column([Row([a, *stars(grade), *when], gap=1), b]))
            ui.ask((f"What does {who} write?", f"What does {who} think of it?", f"What is {who}'s opinion?", f"What does the review of {who} say?"), text, a, b)
            if dated:
                ui.ask((f"When did {who} review it?", f"What is the date of {who}'s review?", f"On which day did {who} write the review?"), day, a, when[0])
            ui.ask((f"How many stars did {who} give?", f"How many stars does {who} give it?", f"What rating did {who} give?"), str(grade), a, b)
            ui.ask((f'Who wrote "{text}"?', f'Whose review says "{text}"?', f'Which customer says "{text.rstrip(".")}"?'), who, a, b)
        if not dated:
            d.absent(f"When did {names[0]} review it?", f"What is the date of {names[0]}'s review?")
        ui.ask(("How many customer reviews are shown in full?", "How many people's reviews can I read here?"), str(len(said)), reviewers)
        if len(said) > 1:
            ui.ask(("Who wrote the first review?", "Whose review stands at the top?", "Who is the author of the first review?"), names[0], reviewers)
            if grades.count(min(grades)) == 1:
                ui.ask(("Who gave the fewest stars?", "Who gave the worst rating?", "Which reviewer was least happy?"), names[grades.index(min(grades))], reviewers)
        below.append(Column([ui.text(r.pick(("Reviews", "Recent reviews", "What customers say", "Customer reviews")), "bold"), *cards], gap=1))
        d.absent(f"What does {person(r)} write?", f"How many stars did {person(r)} give?")
    else:
        d.absent("Who wrote the first review?", "What do the reviews say?")
    details = Column(side, gap=r.pick((0.8, 1.2, 1.8)))
    photo = Photo(r.randint(22, 34), r.uniform(0.7, 1.0))
    head = Row([photo, details], [None, 1], gap=3, top=True, panes=True) if d.shape[1] >= 500 else Column([Photo(r.randint(12, 20), r.uniform(1.0, 1.6)), details], gap=1)
    crumb = [ui.text(f"Home > {category} > {noun.capitalize()}", "small", grey=True)] if r.chance(0.5) else []
    if crumb:
        ui.ask(("In which category is the product?", "Which department of the shop is it in?"), category, crumb[0])
    body = Column([top, Panel(Column([*crumb, head, *([Rule()] if below else []), *below], gap=1.4), pad=(2.5, 1.5), square=True)])
    slug = v.word(r)
    ui.show(browser(ui, f"{shop.split()[0].split('.')[0].lower()}.example/{slug}", name, body))


@kind("shop_basket", 0.7)
def basket(d: Document) -> None:
    """The basket before the order: goods, quantities, sums."""
    ui, r, money, dates = Screen(d), d.r, Money(d.r), Dates(d.r)
    shop = f"{v.name_word(r)}{r.pick(('', ' Shop', ' Store', ' Market', ' Direct'))}"
    step = 100 if money.whole else 1
    chosen = [(r.pick(nouns), option, choices) for _, nouns, option, choices in r.sample(GOODS, r.randint(2, 5))]
    names = [f"{v.name_word(r)} {noun}" for noun, _, _ in chosen]
    counts, prices = [r.choices((1, 2, 3, 4), (6, 3, 1, 1))[0] for _ in names], [money.round(r, 3, 190) for _ in names]
    top = top_bar(ui, shop, None) if r.chance(0.3) else top_bar(ui, shop, sum(counts))
    rows: list[Element] = []
    marks = []
    for (_, option, choices), name, count, price in zip(chosen, names, counts, prices, strict=True):
        a, q, p = ui.text(name, "bold", wrap=True), ui.text(r.pick(("{}", "x {}", "Qty: {}")).format(count)), ui.text(money(price * count), align="r")
        marks.append((a, q, p))
        picked = r.pick(choices) if choices else ""
        under = [ui.text(f"{option}: {picked}", "small", grey=True)] if option else []
        if option:
            ui.ask((f"In which {option.lower()} is the {name} ordered?", f"Which {option.lower()} does the {name} have?", f"What {option.lower()} did I pick for the {name}?"), picked, a, under[0])
        rows.append(Row([Photo(7), Column([a, *under], gap=0.3), Panel(q, 0, 120, (1.5, 0.5)), p], [None, 1, None, None], gap=2.5))
        rows.append(Rule())
        ui.ask((f"How many {name} are in the basket?", f"What quantity of {name} is ordered?", f"How many pieces of {name} do I buy?"), str(count), a, q)
        ui.ask((f"How much is the {name}?", f"What do I pay for the {name}?", f"Which price stands beside {name}?", f"What is charged for the {name}?"), money(price * count), a, p)
    every = [t for mark in marks for t in mark]
    sums = [p * q for p, q in zip(prices, counts, strict=True)]
    if sums.count(max(sums)) == 1:
        ui.ask(("Which article costs the most?", "What is the dearest thing in the basket?", "Which line of the basket is the most expensive?"), names[sums.index(max(sums))], every)
    ui.ask(("How many different products are in the basket?", "How many different articles do I order?"), str(len(names)), every)
    ship = 0 if r.chance(0.3) else money.round(r, 3, 12)
    off = round(sum(sums) * r.pick((0.05, 0.1, 0.2)) / step) * step if r.chance(0.35) else 0
    entries = [(r.pick(("Subtotal", "Items", "Goods")), money(sum(sums)))]
    if off:
        code = f"{v.word(r).upper()[:6]}{r.randint(5, 50)}"
        entries.append((f"Voucher {code}", f"-{money(off)}"))
    entries.append((r.pick(("Shipping", "Delivery")), money(ship) if ship else "free"))
    entries.append((r.pick(("Total", "To pay", "Order total")), money(sum(sums) - off + ship)))
    shown = [(ui.text(a, "bold" if n == len(entries) - 1 else "body"), ui.text(b, "bold" if n == len(entries) - 1 else "body", align="r")) for n, (a, b) in enumerate(entries)]
    ui.ask(("What is the subtotal?", "How much are the goods before shipping?", "What do the articles cost together?"), entries[0][1], *shown[0])
    ui.ask(("How much is the delivery?", "What does shipping cost?", "How high are the shipping costs?", "How much do I pay for delivery?"), entries[-2][1], *shown[-2])
    ui.ask(("What is the total?", "How much do I have to pay?", "How much is the whole order?", "What will the order cost me?", "What is the sum at the end?"), entries[-1][1], *shown[-1])
    if off:
        ui.ask(("Which voucher is used?", "What is the voucher code?", "Which code was redeemed?"), code, shown[1][0])
        ui.ask(("How much does the voucher save?", "What is the discount?", "How much is taken off?"), money(off), *shown[1])
    else:
        d.absent("Which voucher is used?", "What is the voucher code?")
    foot: list[Element] = [Row([a, b], [1, None]) for a, b in shown]
    if r.chance(0.5):
        day = dates.date()
        t = ui.text(r.pick((f"Estimated delivery: {day}", f"Arrives by {day}", f"Expected {day}")), "small")
        foot.append(t)
        ui.ask(("When will the order arrive?", "What is the estimated delivery date?", "When is the delivery expected?"), day, t)
    else:
        d.absent("When will the order arrive?", "What is the estimated delivery date?")
    if r.chance(0.5):
        pay = r.pick(("Invoice", "Credit card ending 4417", "Bank transfer", "Direct debit", f"Credit card ending {v.digits(r, 4)}"))
        t = ui.text(f"{r.pick(('Payment', 'Pay by'))}: {pay}", "small")
        foot.append(t)
        ui.ask(("How is the order paid?", "What is the method of payment?", "Which payment is chosen?"), pay, t)
    else:
        d.absent("How is the order paid?", "What is the method of payment?")
    go, label = ui.button(r.pick(("Checkout", "To checkout", "Place order", "Order now", "Continue")), True)
    foot.append(go)
    ui.ask(("What does the button say?", "Which button finishes the order?", "What is written on the button?"), label.text, label)
    heading = ui.text(r.pick(("Your basket", "Shopping cart", "Basket", "Your order", "Review your order")), "title")
    total = Panel(Column(foot, gap=0.8), r.pick((0, 15)), r.pick((0, 90)), (2, 1.5))
    list_ = Column(rows, gap=0.8)
    content = Row([list_, total], [1.6, 1], gap=3, top=True, panes=True) if d.shape[1] >= 640 else Column([list_, total], gap=1.5)
    body = Column([top, Panel(Column([heading, content], gap=1.5), pad=(2.5, 1.5), square=True)])
    d.absent("To which address is it sent?", "What is the delivery address?")
    ui.show(browser(ui, f"{shop.split()[0].lower()}.example/{r.pick(('cart', 'basket', 'checkout'))}", r.pick(("Basket", "Cart", shop)), body))


@kind("shop_listing", 0.7)
def listing(d: Document) -> None:
    """Goods of one category, with prices and ratings."""
    ui, r, money = Screen(d), d.r, Money(d.r)
    shop = f"{v.name_word(r)}{r.pick(('', ' Shop', ' Store', ' Market', ' Direct'))}"
    category, nouns, _, _ = r.pick(GOODS)
    top = top_bar(ui, shop, r.randint(1, 9) if r.chance(0.5) else None)
    n = r.randint(3, 6)
    brands: list[str] = []
    while len(brands) < n:
        word = v.name_word(r)
        if word not in brands:
            brands.append(word)
    names = [f"{brand} {r.pick(nouns)}" for brand in brands]
    prices = [money.round(r, 5, 300) for _ in names]
    before = [price + money.round(r, 2, max(4, price // 120)) if r.chance(0.35) else 0 for price in prices]
    scores, numbers = [r.randint(20, 50) / 10 for _ in names], [r.randint(2, 990) for _ in names]
    rated = r.chance(0.7)
    cards: list[Element] = []
    marks = []
    grid = r.chance(0.5)
    for name, price, old, score, number in zip(names, prices, before, scores, numbers, strict=True):
        a, p = ui.text(name, "bold", wrap=True), ui.text(money(price), "bold")
        line: list[Element] = [p]
        if old:
            o = ui.text(money(old), "small", grey=True, mark="struck")
            line.append(o)
            ui.ask((f"What did the {name} cost before?", f"What was the old price of the {name}?", f"Which price of the {name} is crossed out?"), money(old), a, o)
        under: list[Element] = [a]
        if rated:
            s = ui.text(f"{score} ({number})", "small")
            under.append(Row([*stars(score), s], gap=0.6))
            ui.ask((f"How is the {name} rated?", f"What is the rating of the {name}?", f"How many stars does the {name} have?"), str(score), a, s)
            ui.ask((f"How many reviews does the {name} have?", f"How many people rated the {name}?"), str(number), a, s)
        under.append(Row(line, gap=2))
        marks += [a, p]
        ui.ask((f"How much is the {name}?", f"What does the {name} cost?", f"What is the price of the {name}?", f"{name}: how much?"), money(price), a, p)
        cards.append(Column([Photo(14, 1.3), Column(under, gap=0.4)], gap=0.6) if grid else Row([Photo(9), Column(under, gap=0.4)], [None, 1], gap=2.5))
    if prices.count(min(prices)) == 1:
        ui.ask(("Which product is the cheapest?", "What is the cheapest thing shown?", "Which one costs the least?", "Which has the lowest price?"), names[prices.index(min(prices))], marks)
    if prices.count(max(prices)) == 1:
        ui.ask(("Which product is the most expensive?", "What costs the most?", "Which one has the highest price?", "What is the dearest article?"), names[prices.index(max(prices))], marks)
    if rated and scores.count(max(scores)) == 1:
        ui.ask(("Which product is rated best?", "Which one has the best rating?", "What has the most stars?"), names[scores.index(max(scores))], marks)
    if not rated:
        d.absent(f"How is the {names[0]} rated?", f"What is the rating of the {names[0]}?")
    plain = [name for name, old in zip(names, before, strict=True) if not old]
    if plain:
        d.absent(f"What did the {plain[0]} cost before?", f"What was the old price of the {plain[0]}?")
    if sum(map(bool, before)) == 1:
        ui.ask(("Which product is reduced?", "What is on sale?", "Which article has a crossed-out price?"), names[[bool(o) for o in before].index(True)], marks)
    found = r.randint(n, 900)
    query = r.chance(0.5)
    heading = ui.text(f'{found} results for "{nouns[0]}"' if query else category, "title")
    order = r.pick(("Price", "Newest", "Popularity", "Rating", "Relevance"))
    sort = ui.text(f"Sort by: {order}", "small")
    ui.ask(("How are the results sorted?", "What is the list sorted by?", "Sorted by what?"), order.lower(), sort)
    if query:
        ui.ask(("How many results are there?", "How many products were found?", "How many hits does the search have?"), str(found), heading)
        ui.ask(("What was searched for?", "Which search term was entered?", "What did the user search?"), nouns[0], heading)
    else:
        ui.ask(("Which category is shown?", "What department of the shop is open?", "Which goods are listed?"), category, heading)
        d.absent("How many results are there?", "How many products were found?")
    across = 3 if d.shape[1] >= 640 else 2
    goods: Element = Column(cards, gap=1.5)
    if grid:
        padded = [*cards, *[Space() for _ in range(-len(cards) % across)]]
        goods = Column([Row(padded[i : i + across], [1] * across, gap=3, top=True, panes=True) for i in range(0, len(padded), across)], gap=2)
    body = Column([top, Panel(Column([Row([heading, Space(), sort], [None, 1, None]), Rule(), goods], gap=1.2), pad=(2.5, 1.5), square=True)])
    ui.show(browser(ui, f"{shop.split()[0].lower()}.example/{category.lower()}", category, body))
