"""Pages of web shops: a basket, a list of goods."""

# fmt: off

from training.office.document import Document
from training.office.registry import kind
from training.office.screen import Column, Element, Icon, Panel, Photo, Row, Rule, Screen, Space
from training.office.values import Dates, Money
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
