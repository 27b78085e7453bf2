"""Bank statements, timetables and menus: look-ups by row and column."""

# fmt: off

from training.office.document import Document
from training.office.registry import kind
from training.office.values import Dates, Money, distinct, people, person, town
from training.pages import values as v

PAYEES = ("Rent", "Electricity", "Salary", "Supermarket", "Phone bill", "Insurance", "Gym", "Bakery", "Petrol station", "Bookshop", "Cash machine", "Pharmacy", "Train ticket", "Water bill", "Refund", "Dentist")


@kind("bank_statement", 1.5)
def statement(d: Document) -> None:
    r, dates, money = d.r, Dates(d.r), Money(d.r)
    bank, owner = f"{town(r)} {r.pick(('Bank', 'Savings Bank', 'Credit Union'))}", person(r)
    account = f"{r.pick(('DE', 'FR', 'GB', 'ES', 'CH', 'IT'))}{r.randint(10, 99)} {r.randint(1000, 9999)} {r.randint(1000, 9999)} {r.randint(1000, 9999)} {r.randint(10, 99)}"
    top = d.heading(bank)
    d.line(r.pick(("Account statement", "Statement of account", "Bank statement", "Transactions")), bold=True)
    fields = d.fields([(r.pick(("Account holder", "Customer", "Name")), owner), (r.pick(("IBAN", "Account", "Account number")), account)])
    d.ask(("Which bank is it?", "What is the name of the bank?", "Which bank sent the statement?", "At which bank is the account?"), bank, top)
    d.ask(("Whose account is it?", "Who is the account holder?", "To whom does the account belong?", "Who owns the account?"), owner, fields[0])
    d.ask(("What is the account number?", "What is the IBAN?", "Which account is it?"), account, fields[1])
    d.about(f"A statement of the account of {owner} at {bank}.", top, fields)
    month, year = r.randint(1, 12), r.randint(2018, 2030)
    days, payees = sorted(r.sample(range(1, 29), 9)), r.sample(PAYEES, 9)
    n = r.randint(3, 9)
    amounts = [(1 if payee in ("Salary", "Refund") else -1) * money.round(r, 5, 2500) for payee in payees[:n]]
    opening = money.round(r, 3000, 30000)
    running, rows, two = opening, [], r.chance(0.4)
    with_balance = r.chance(0.5)
    for day, payee, amount in zip(days, payees, amounts, strict=False):
        running += amount
        cells = [dates.date(year, month, day), payee]
        cells += [money.bare(-amount) if amount < 0 else "", money.bare(amount) if amount > 0 else ""] if two else [money.bare(amount)]
        rows.append(cells + ([money.bare(running)] if with_balance else []))
    header = [r.pick(("Date", "Booked", "Day")), r.pick(("Description", "Details", "Text")), *(("Out", "In") if two else ("Amount",))]
    start = d.fields([(r.pick(("Opening balance", "Previous balance", "Balance brought forward")), money(opening))], "right")
    parts = d.table(header + (["Balance"] if with_balance else []), rows, numbers=len(header) - 2 + with_balance)
    for row, payee, amount, part in zip(rows, payees, amounts, parts, strict=False):
        shown = money.bare(abs(amount)) if two else money.bare(amount)
        low = payee.lower()
        verb = "paid for" if amount < 0 else "received as"
        d.ask((f"How much was {verb} {low}?", f"What is the amount for {low}?", f"{payee}: how much?", f"How much money is booked for {low}?"), shown, part)
        d.ask((f"When was {low} booked?", f"On which day is the entry {payee}?", f"What is the date of {payee}?"), row[0], part)
        if with_balance:
            d.ask((f"What was the balance after {low}?", f"How much was on the account after {low}?", f"Which balance stands beside {payee}?"), row[-1], part)
    d.ask(("How many entries does the statement have?", "How many transactions are listed?", "How many bookings are there?"), str(n), parts)
    spent = [a for a in amounts if a < 0]
    if spent and spent.count(min(spent)) == 1:
        d.ask(("What was the largest payment for?", "On what was the most money spent?", "Which payment was the largest?", "What cost the most?"), payees[amounts.index(min(spent))], parts)
    end = d.fields([(r.pick(("Closing balance", "New balance", "Balance")), money(running))], "right")
    d.ask(("How much is on the account at the end?", "What is the closing balance?", "What is the new balance?", "How much money is left?"), money(running), end)
    d.ask(("How much was on the account at the start?", "What is the opening balance?", "What was the balance at the beginning?"), money(opening), start)
    missing = r.pick([p for p in PAYEES if p not in payees[:n]]).lower()
    d.absent(f"How much was paid for {missing}?", f"When was {missing} booked?")
    d.absent("What is the overdraft limit?", "How high is the interest rate?")


@kind("timetable", 2.0)
def timetable(d: Document) -> None:
    r, dates = d.r, Dates(d.r)
    dates.clock = "24"
    if r.chance(0.5):  # stops by trips
        line = f"{r.pick(('Bus', 'Line', 'Tram', 'Route'))} {r.randint(1, 990)}"
        stops = distinct(r, lambda r: f"{v.name_word(r)} {r.pick(('Square', 'Street', 'Station', 'School', 'Hospital', 'Park', 'Church'))}", r.randint(3, 8))
        trips, start = r.randint(2, 6), r.randint(5, 9) * 60 + r.randint(0, 50)
        gaps, every = [r.randint(2, 14) for _ in stops], r.pick((15, 20, 30, 60, 47))
        rows = [[stop, *(dates.time(start + every * t + sum(gaps[: i + 1])) for t in range(trips))] for i, stop in enumerate(stops)]
        d.heading(f"{line}   {stops[0]} - {stops[-1]}" if r.chance(0.5) else line)
        note = d.line(r.pick(("Monday to Friday", "Valid on weekdays", "Saturdays only", "Sundays and holidays", "Daily")))
        d.ask(("On which days does it run?", "When is this timetable valid?", "On what days does the bus go?"), d.blocks[-1].texts[0], note)
        heads = ["Stop", *(str(100 + i) for i in range(trips))] if r.chance(0.4) else []
        parts = d.table(heads, rows, numbers=trips)
        names = ("first", "second", "third", "fourth", "fifth", "sixth")
        for row, part in zip(rows, parts, strict=True):
            t = r.randint(0, trips - 1)
            d.ask((f"When does the {names[t]} bus stop at {row[0]}?", f"At what time does the {names[t]} trip reach {row[0]}?", f"What is the {names[t]} time for {row[0]}?"), row[1 + t], part)
            d.ask((f"When does the first bus leave {row[0]}?", f"What is the earliest departure from {row[0]}?", f"When can I first leave from {row[0]}?", f"What time is the first bus at {row[0]}?"), row[1], part)
            d.ask((f"When does the last bus leave {row[0]}?", f"What is the latest departure from {row[0]}?", f"When is the last chance to leave {row[0]}?"), row[-1], part)
            after = r.randint(0, trips - 2)
            d.ask((f"When is the next bus from {row[0]} after {row[1 + after]}?", f"I miss the {row[1 + after]} at {row[0]}. When is the next one?"), row[2 + after], part)
        d.ask(("How many stops are listed?", "How many stops does the line have?", "At how many places does it stop?"), str(len(stops)), parts)
        d.ask(("Which is the last stop?", "Where does the line end?", "What is the terminus?"), stops[-1], parts)
        d.absent(f"When does the bus leave {v.name_word(r)} Bridge?", "How much is a ticket?")
        return
    # a week of lessons or shifts
    days = v.WEEKDAYS[: r.pick((5, 5, 6))]
    hours = [dates.time(480 + 60 * i) for i in range(r.randint(3, 7))]
    what = r.pick((("Maths", "English", "History", "Biology", "Music", "Sport", "Art", "French", "Physics", "Chemistry"), people(r, 8), ("Yoga", "Pilates", "Boxing", "Judo", "Ballet", "Chess", "Choir", "Cooking")))
    rows = [[hour, *(r.pick(what) if r.chance(0.9) else "\u2013" for _ in days)] for hour in hours]
    d.heading(r.pick(("Timetable", "Weekly plan", f"Class {r.randint(5, 12)}{r.pick('abc')}", "Schedule", "Rota", "Course plan")))
    short = r.chance(0.4) and len({day[:3] for day in days}) == len(days)
    parts = d.table(["Time", *(day[:3] if short else day for day in days)], rows)
    for row, part in zip(rows, parts, strict=True):
        for i in r.sample(range(len(days)), 2):
            if row[1 + i] != "\u2013":
                d.ask((f"What is on {days[i]} at {row[0]}?", f"What takes place on {days[i]} at {row[0]}?", f"{days[i]}, {row[0]}: what is planned?", f"Who or what is listed for {days[i]} at {row[0]}?"), row[1 + i], part)
    for i, day in enumerate(days):
        column = [row[1 + i] for row in rows]
        for name in dict.fromkeys(column):
            if name != "\u2013" and column.count(name) == 1:
                d.ask((f"At what time is {name} on {day}?", f"When is {name} on {day}?", f"At which hour is {name} planned on {day}?"), hours[column.index(name)], parts)
                break
    d.ask(("What time does the first entry start?", "When does the day begin?", "What is the earliest time?"), hours[0], parts)
    d.absent("What is on Sunday?", "What takes place on Sunday?")


DISHES = (
    "Tomato soup", "Grilled salmon", "Roast chicken", "Mushroom risotto", "Apple strudel", "Crème brûlée", "Caesar salad", "Fish pie", "Lamb stew", "Vegetable curry", "Spaghetti bolognese", "Pancakes", "Onion tart",
    "Jalapeño burger", "Steak & chips", "Goulash", "Chocolate mousse", "Lemon sorbet", "Käsespätzle", "Ratatouille", "Gazpacho", "Cheese plate", "Duck à l'orange", "Bean chilli", "Sauté potatoes",
)
DRINKS = ("Mineral water", "House red", "Draught beer", "Espresso", "Green tea", "Apple juice", "Ginger ale", "Cider", "Café au lait", "Lemonade")


@kind("menu", 2.0)
def menu(d: Document) -> None:
    r, dates, money = d.r, Dates(d.r), Money(d.r)
    name = f"{r.pick(('The ', 'Café ', 'Restaurant ', 'Chez ', ''))}{v.name_word(r)} {r.pick(('Inn', 'Kitchen', 'Garden', 'House', 'Table', 'Grill'))}"
    top = d.heading(name, align="c")
    d.ask(("What is the restaurant called?", "Which restaurant is it?", "What is the name of the place?", "Whose menu is this?"), name, top)
    d.about(f"The menu of {name}.", top)
    dishes = r.sample(DISHES, 12)
    sections = [("Starters", dishes[:3]), ("Main courses", dishes[3:7]), ("Desserts", dishes[7:10]), ("Drinks", r.sample(DRINKS, 4))]
    prices: dict[str, int] = {}
    show = money if r.chance(0.5) else money.bare
    style, sign = r.pick(("dots", "right", "right", "tab")), []
    for title, names in r.sample(sections, r.randint(2, 4)):
        names = names[: r.randint(2, len(names))]
        d.heading(title, level=2, align=r.pick("lc"))
        for dish in names:
            prices[dish] = money.round(r, 2, 45)
        if r.chance(0.3):
            sides = {dish: r.pick(("with rice", "with salad", "with bread", "vegan", "with nuts", "very spicy", "with garlic")) for dish in names}
            parts = []
            for dish in names:
                parts += d.fields([(dish, show(prices[dish]))], style)
                side = d.line(sides[dish], small=True)
                d.ask((f"What comes with the {dish}?", f"How is the {dish} described?", f"What is written under {dish}?"), sides[dish], parts[-1], side)
        else:
            parts = d.fields([(dish, show(prices[dish])) for dish in names], style)
        for dish, part in zip(names, parts, strict=True):
            d.ask((f"How much is the {dish}?", f"What does the {dish} cost?", f"What is the price of {dish}?", f"How much do I pay for {dish}?"), show(prices[dish]), part)
        d.ask((f"How many {title.lower()} are there?", f"How many dishes are listed under {title}?"), str(len(names)), parts)
        dear = max(names, key=prices.get)
        if sum(prices[n] == prices[dear] for n in names) == 1:
            d.ask((f"What is the most expensive of the {title.lower()}?", f"Which of the {title.lower()} costs the most?", f"What is the dearest under {title}?"), dear, parts)
        cheap = min(names, key=prices.get)
        if sum(prices[n] == prices[cheap] for n in names) == 1:
            d.ask((f"What is the cheapest of the {title.lower()}?", f"Which of the {title.lower()} costs the least?"), cheap, parts)
        sign += parts
    one, two = r.sample(list(prices), 2)
    d.ask((f"Which is dearer, {one} or {two}?", f"What costs more, the {one} or the {two}?"), one if prices[one] > prices[two] else two, sign) if prices[one] != prices[two] else None
    missing = r.pick([dish for dish in (*DISHES, *DRINKS) if dish not in prices])
    d.absent(f"How much is the {missing}?", f"What does the {missing} cost?")
    if r.chance(0.4):
        opens, closes = dates.time(r.randint(8, 17) * 60), dates.time(r.randint(20, 23) * 60)
        part = d.line(f"Open daily {opens} - {closes}", align="c", small=True)
        d.ask(("Until when is it open?", "When does the restaurant close?", "What time does it close?"), closes, part)
        d.ask(("When does the restaurant open?", "From when is it open?", "What time does it open?"), opens, part)
    else:
        d.absent("When does the restaurant open?", "Until when is it open?")
