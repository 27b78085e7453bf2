"""Spreadsheets, settings of a phone, dashboards and price lists: values beside and above their names."""

# fmt: off

from training.office.document import Document
from training.office.registry import kind
from training.office.values import Dates, Money, distinct, people, person, quantity
from training.pages import values as v


@kind("spreadsheet", 2.5)
def spreadsheet(d: Document) -> None:
    """Cells by letter and number, with a row of sums now and then."""
    r, dates = d.r, Dates(d.r)
    columns = r.randint(2, 5)
    heads = r.sample(("Units", "Hours", "Price", "Stock", "Budget", "Age", "Points", "Distance", "Weight", "Score", "Rooms", "Visits"), columns - 1)
    first = r.pick(("Name", "Item", "City", "Project", "Team"))
    make = {"Name": person, "Item": lambda r: r.pick(v.PRODUCTS), "City": lambda r: r.pick(v.CITIES), "Project": lambda r: v.name_word(r), "Team": lambda r: r.pick(v.DEPARTMENTS)}[first]
    names = people(r, r.randint(3, 9)) if first == "Name" else distinct(r, make, r.randint(3, 9))
    cells = [[name, *(str(r.randint(1, 990)) for _ in heads)] for name in names]
    sums = r.chance(0.3)
    file = f"{v.word(r)}.{r.pick(('xlsx', 'ods', 'csv'))}"
    if r.chance(0.7):
        top = d.strip(f"{file} {chr(0x2013)} {r.pick(('Calc', 'Sheets', 'Tables'))}", dark=r.chance(0.6))
        d.ask(("What is the name of the file?", "Which file is open?", "What is the spreadsheet called?"), file, top)
    letters = r.chance(0.6)
    header = [first, *heads]
    if letters:
        rows = [[str(i + 1), *row] for i, row in enumerate([header, *cells])]
        parts = d.table(["", *"ABCDE"[:columns]], rows, numbers=columns - 1)[1:]
    else:
        parts = d.table(header, cells, numbers=columns - 1)
    for row, (i, part) in zip(cells, enumerate(parts), strict=False):
        for c in r.sample(range(1, columns), 1):
            head = heads[c - 1].lower()
            noun, verb = quantity(head)
            d.ask((f"What {verb} the {noun} of {row[0]}?", f"{row[0]}: {head}?", f"Which {noun} stands beside {row[0]}?", f"Look up the {noun} for {row[0]}.", f"What {noun} does {row[0]} have?", f"In the column {heads[c - 1]}, what is entered for {row[0]}?"), row[c], part)
            if letters:
                d.ask((f"What is in cell {'ABCDE'[c]}{i + 2}?", f"What does cell {'ABCDE'[c]}{i + 2} contain?", f"Read cell {'ABCDE'[c]}{i + 2}.", f"Which value stands in {'ABCDE'[c]}{i + 2}?"), row[c], part)
    for c, head in enumerate(heads, 1):
        numbers, noun = [int(row[c]) for row in cells], quantity(head.lower())[0]
        if numbers.count(max(numbers)) == 1:
            d.ask((f"Which has the highest {noun}?", f"Which one has the highest {noun}?", f"What is in first place by {head.lower()}?", f"Largest {noun}?"), names[numbers.index(max(numbers))], parts)
        if numbers.count(min(numbers)) == 1:
            d.ask((f"Which has the lowest {noun}?", f"Which one has the lowest {noun}?", f"Smallest {noun}?"), names[numbers.index(min(numbers))], parts)
    d.ask(("How many rows of data are there?", "How many entries does the sheet have?", "How many rows are filled in, without the header?"), str(len(names)), parts)
    if sums:
        totals = [str(sum(int(row[c]) for row in cells)) for c in range(1, columns)]
        line = d.line("   ".join(f"Sum {head}: {total}" for head, total in zip(heads, totals, strict=True)), small=True)
        for head, total in zip(heads, totals, strict=True):
            d.ask((f"What is the sum of {head.lower()}?", f"How much is {head.lower()} in total?", f"What is the total of the column {head}?"), total, line)
    else:
        d.absent("Who made the sheet?", "When was the sheet saved?")
    tabs = d.strip(*r.sample(("Sheet1", "Sheet2", "Data", str(r.randint(2015, 2030)), "Costs", dates.date()), 2))
    d.ask(("Which sheets are there?", "What are the tabs called?", "What tabs does the file have?"), " and ".join(d.blocks[-1].texts), tabs)
    d.absent(f"What is the {quantity(heads[0].lower())[0]} of {v.name_word(r)}?", f"{v.name_word(r)}: {heads[0].lower()}?")


SWITCHES = ("Wi-Fi", "Bluetooth", "Flight mode", "Location", "Dark mode", "Mobile data", "Do not disturb", "Auto-lock", "Backup", "Hotspot", "Vibration", "Face unlock")


@kind("settings", 1.5)
def settings(d: Document) -> None:
    """A phone's list of settings with their states."""
    r = d.r
    clock = f"{r.randint(0, 23):02d}:{r.randint(0, 59):02d}"
    charge = f"{r.randint(3, 100)}%"
    top = d.strip(clock, r.pick(("4G", "5G", "LTE", "Wi-Fi")), charge)
    d.ask(("What time is shown?", "What time does the phone show?", "How late is it on the phone?"), clock, top)
    d.ask(("How full is the battery?", "What is the charge of the battery?", "How many percent does the battery have?"), charge, top)
    d.heading(r.pick(("Settings", "Options", "Quick settings", "Preferences")), align=r.pick("lc"))
    chosen = r.sample(SWITCHES, r.randint(4, 9))
    states = [r.pick((("On", "Off"), ("on", "off"), ("[x]", "[ ]")))] * len(chosen)
    on = [r.chance(0.5) for _ in chosen]
    parts = d.fields([(name, state[0] if yes else state[1]) for name, state, yes in zip(chosen, states, on, strict=True)], r.pick(("right", "right", "ruled", "tab")))
    for name, yes, part in zip(chosen, on, parts, strict=True):
        d.ask((f"Is {name} on or off?", f"What is the state of {name}?", f"{name}: on or off?", f"Is {name} switched on?"), ("on" if yes else "off"), part) if states[0][0] != "[x]" else d.ask((f"Is {name} ticked or not?", f"{name}: ticked or not?"), ("ticked" if yes else "not ticked"), part)
    if sum(on) == 1:
        d.ask(("Which setting is on?", "What is switched on?"), chosen[on.index(True)], parts)
    d.ask(("How many settings are listed?", "How many settings are there?", "How many entries are on the screen?"), str(len(chosen)), parts)
    missing = r.pick([name for name in SWITCHES if name not in chosen])
    d.absent(f"Is {missing} on or off?", f"What is the state of {missing}?")
    d.absent("Whose phone is it?", "What is the phone's number?")


@kind("dashboard", 1.5)
def dashboard(d: Document) -> None:
    """Large numbers above or below their names, in columns."""
    r, money = d.r, Money(d.r)
    d.heading(r.pick(("Dashboard", "Overview", "Today", "Key figures", f"{v.name_word(r)} report", "This week at a glance")))
    figures = [("Visitors", str(r.randint(100, 99999))), ("Revenue", money(money.round(r, 100, 90000))), ("Orders", str(r.randint(2, 990))), ("Returns", str(r.randint(0, 99))), ("Conversion", f"{r.randint(0, 9)}.{r.randint(0, 9)} %"), ("Open tickets", str(r.randint(0, 250))), ("New customers", str(r.randint(1, 400))), ("Average rating", f"{r.randint(2, 4)}.{r.randint(0, 9)}"), ("Uptime", f"{r.randint(90, 99)}.{r.randint(0, 99):02d} %"), ("Response time", f"{r.randint(9, 990)} ms")]
    chosen, above = r.sample(figures, r.randint(3, 8)), r.chance(0.5)
    wide = d.shape[1] >= 440
    targets = d.columns(r.pick((2, 3)) if wide else 2)
    parts = []
    for i, (name, value) in enumerate(chosen):
        box = targets[i % len(targets)].framed() if r.chance(0.5) else targets[i % len(targets)]
        shown = [box.heading(value, 2, "l"), box.line(name, small=True)] if above else [box.line(name, small=True), box.heading(value, 2, "l")]
        parts += shown
        low = name.lower()
        noun = quantity(low)[0]
        d.ask((f"What is the {noun}?", f"How high is the {noun}?", f"{name}?", f"Which figure is given for {low}?", f"What number belongs to {low}?", f"How much is shown for {low}?"), value, shown)
        if sum(value == other for _, other in chosen) == 1:
            d.ask((f"What does {value} stand for?", f"To what does the number {value} belong?", f"Which figure is {value}?"), name, shown)
    d.ask(("How many figures are shown?", "How many key figures are there?", "How many boxes are on the screen?"), str(len(chosen)), parts)
    missing = quantity(r.pick([name for name, _ in figures if name not in dict(chosen)]).lower())[0]
    d.absent(f"What is the {missing}?", f"How high is the {missing}?")


@kind("price_list", 2.0)
def price_list(d: Document) -> None:
    """Services or goods in lines with their prices, with or without dots, sizes and remarks."""
    r, money, dates = d.r, Money(d.r), Dates(d.r)
    shop = f"{v.name_word(r)} {r.pick(('Hair', 'Cycles', 'Garage', 'Nails', 'Laundry', 'Studio', 'Print', 'Keys & Shoes', 'Boat Hire'))}"
    top = d.heading(shop, align=r.pick("lc"))
    d.ask(("What is the shop called?", "Whose price list is it?", "Which business is it?", "What is the name of the shop?"), shop, top)
    d.line(r.pick(("Prices", "Price list", "Our services", "Tariff", "What we charge")))
    services = ("Cut", "Wash and dry", "Colour", "Tyre change", "Oil change", "Key copy", "Heel repair", "Shirt, ironed", "Suit, cleaned", "Business cards", "Poster A2", "Full day", "Half day", "Per hour", "Deposit", "Express service", "Home visit", "Beard trim", "Gift voucher")
    chosen = r.sample(services, r.randint(3, 10))
    prices = [money.round(r, 2, 120) for _ in chosen]
    show = money if r.chance(0.6) else money.bare
    parts = d.fields([(a, show(b)) for a, b in zip(chosen, prices, strict=True)], r.pick(("dots", "right", "tab", "ruled"))) if r.chance(0.7) else d.lines(*(f"{a} {r.pick(('-', ' ', chr(0x2013)))} {show(b)}" for a, b in zip(chosen, prices, strict=True)))
    for name, price, part in zip(chosen, prices, parts, strict=True):
        low = name[0].lower() + name[1:]
        d.ask((f"How much is {low}?", f"What does {low} cost?", f"What is the price of {low}?", f"{name}: how much?", f"How much do they charge for {low}?", f"What must I pay for {low}?"), show(price), part)
        if prices.count(price) == 1:
            d.ask((f"What costs {show(price)}?", f"For what do they charge {show(price)}?", f"What do I get for {show(price)}?"), name, part)
    if prices.count(max(prices)) == 1:
        d.ask(("What is the most expensive?", "Which service costs the most?", "What has the highest price?", "What is dearest?"), chosen[prices.index(max(prices))], parts)
    if prices.count(min(prices)) == 1:
        d.ask(("What is the cheapest?", "Which service costs the least?", "What has the lowest price?"), chosen[prices.index(min(prices))], parts)
    i, j = r.sample(range(len(chosen)), 2)
    if prices[i] != prices[j]:
        d.ask((f"What is cheaper, {chosen[i]} or {chosen[j]}?", f"Which costs less, {chosen[i]} or {chosen[j]}?"), chosen[i] if prices[i] < prices[j] else chosen[j], parts[i], parts[j])
    d.ask(("How many prices are listed?", "How many services are there?", "How many lines does the list have?"), str(len(chosen)), parts)
    if r.chance(0.5):
        day = dates.date()
        part = d.line(f"{r.pick(('Valid from ', 'As of ', 'Prices from '))}{day}", small=True)
        d.ask(("From when are the prices valid?", "Since when do the prices apply?", "What is the date of the price list?"), day, part)
    else:
        d.absent("From when are the prices valid?", "Since when do the prices apply?")
    missing = r.pick([s for s in services if s not in chosen])
    d.absent(f"How much is {missing[0].lower() + missing[1:]}?", f"What does {missing[0].lower() + missing[1:]} cost?")
