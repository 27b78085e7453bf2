"""Recipes, prescriptions, shopping lists, bills of a household, payslips, calendars and programmes of a day."""

# fmt: off

from training.office.document import Document
from training.office.registry import kind
from training.office.values import Dates, Money, amount_of, distinct, people, person, town
from training.pages import values as v

FOODS = ("flour", "butter", "sugar", "milk", "cream", "grated cheese", "lentils", "rice", "carrots", "onions", "red peppers", "basil", "olive oil", "honey", "walnuts", "raisins", "cocoa", "yeast", "spinach", "potatoes", "chicken breast", "salmon", "ginger", "lemon juice")
UNITS = ("g", "ml", "cups", "tbsp", "tsp", "oz", "handfuls", "dl", "pinches")
DRUGS = ("Amoxil", "Cortisan", "Ibuflex", "Paradol", "Ventolar", "Zinkomed", "Omeprin", "Laxovit", "Vitadrop", "Histanol", "Bronchisol", "Cardiopril")


def _much(food: str) -> str:
    return "many" if food.endswith("s") else "much"


@kind("recipe", 2.0)
def recipe(d: Document) -> None:
    r = d.r
    dish = f"{r.pick(('Grandma', 'Aunt ' + v.first_name(r), v.first_name(r), 'Uncle ' + v.first_name(r)))}'s {r.pick(('lentil soup', 'apple pie', 'walnut cake', 'fish stew', 'rice pudding', 'onion tart', 'spinach lasagne', 'bread', 'plum jam'))}" if r.chance(0.4) else f"{v.name_word(r)} {r.pick(('soup', 'pie', 'cake', 'stew', 'salad', 'bread', 'curry'))}"
    top = d.heading(dish)
    d.ask(("What is being cooked?", "What is the recipe for?", "Which dish is it?", "What is the dish called?"), dish, top)
    serves, minutes, degrees = r.randint(2, 12), r.randint(3, 24) * 5, r.randint(14, 24) * 10
    facts = d.line(r.pick((f"Serves {serves}   Ready in {minutes} min", f"{serves} portions, {minutes} minutes", f"For {serves} people | {minutes} min")), small=r.chance(0.5))
    d.ask(("How many people does it serve?", "For how many people is the recipe?", "How many portions does it make?"), str(serves), facts)
    d.ask(("How long does it take?", "How many minutes does it take?", "In how much time is it ready?"), f"{minutes} {'minutes' if 'minutes' in d.blocks[-1].texts[0] else 'min'}", facts)
    foods = r.sample(FOODS, r.randint(4, 9))
    amounts = [f"{amount_of(r, 1, 9)} {u}" if (u := r.pick(UNITS)) not in ("g", "ml", "dl") else f"{r.randint(1, 40) * 25} {u}" for _ in foods]
    d.heading(r.pick(("Ingredients", "You need", "What you need")), level=2)
    style, hand = r.randint(0, 2), r.chance(0.2)
    if style == 0:
        parts = d.items([f"{a} {f}" for a, f in zip(amounts, foods, strict=True)], r.pick(("-", "\u2022")))
    elif style == 1:
        parts = d.fields(list(zip(foods, amounts, strict=True)), r.pick(("right", "dots", "tab")), hand=hand)
    else:
        parts = d.lines(*(f"{a} {f}" for a, f in zip(amounts, foods, strict=True)))
    for food, amount, part in zip(foods, amounts, parts, strict=True):
        d.ask((f"How {_much(food)} {food} do I need?", f"What amount of {food} do I need?", f"How {_much(food)} {food} must I take?", f"{food}: how much?"), amount, part)
    d.ask(("How many ingredients are there?", "How many ingredients do I need?", "What is the number of ingredients?"), str(len(foods)), parts)
    d.heading(r.pick(("Method", "Preparation", "How to make it", "Directions")), level=2)
    a, b, rest = foods[0], foods[1], r.randint(2, 12) * 5
    steps = [f"Mix the {a} with the {b} in a large bowl.", f"Let it rest for {rest} minutes.", f"Bake at {degrees} \u00b0C until golden.", f"Add the {foods[2]} last.", f"Serve with {r.pick(('bread', 'salad', 'cream', 'a little honey'))}."]
    parts = d.items(steps, r.pick(("1", "1", "-"))) if r.chance(0.7) else [d.paragraph(" ".join(steps))] * len(steps)
    d.ask(("At what temperature is it baked?", "How hot must the oven be?", "How many degrees are needed?"), f"{degrees} \u00b0C", parts[2])
    d.ask(("How long does it rest?", "For how many minutes must it rest?", "How long do I let it rest?"), f"{rest} minutes", parts[1])
    d.ask((f"What is mixed with the {a}?", f"With what do I mix the {a}?"), b, parts[0])
    d.ask(("What is added last?", "Which ingredient comes last?"), foods[2], parts[3])
    d.about(f"A recipe for {dish}.", top)
    missing = r.pick([f for f in FOODS if f not in foods])
    d.absent(f"How {_much(missing)} {missing} do I need?", f"How {_much(missing)} {missing} must I take?", f"What amount of {missing} do I need?")


@kind("prescription", 2.0)
def prescription(d: Document) -> None:
    r, dates = d.r, Dates(d.r)
    doctor, patient, day, born = person(r), person(r), dates.date(), dates.date(r.randint(1935, 2015))
    clinic = f"{r.pick(('Dr. ' + doctor.split()[-1], town(r), v.name_word(r)))} {r.pick(('Surgery', 'Clinic', 'Practice', 'Health Centre', 'Hospital'))}"
    top = d.heading(clinic)
    d.line(f"{v.street(r)}, {town(r)}", small=True)
    d.ask(("Which clinic is it?", "Where was it prescribed?", "What is the name of the practice?"), clinic, top)
    labelled = r.chance(0.6)
    if labelled:
        part = d.fields([(r.pick(("Patient", "Name")), patient), ("Date of birth", born), ("Date", day)], hand=r.chance(0.4))
    else:
        part = d.lines(patient, f"born {born}", day)
    d.ask(("Who is the patient?", "For whom is the medicine?", "What is the patient's name?", "Who gets the prescription?"), patient, part[0])
    d.ask(("When was the patient born?", "What is the patient's date of birth?"), born, part[1])
    d.ask(("When was it prescribed?", "What is the date of the prescription?", "On which day was it written?"), day, part[2])
    d.line(r.pick(("Rx", "Prescription", "Medication", "R/")), bold=True)
    drugs = r.sample(DRUGS, r.randint(1, 3))
    for drug in drugs:
        size, often, how, days = f"{r.pick((5, 10, 20, 50, 100, 250, 400, 500))} mg", r.pick(("once a day", "twice a day", "three times a day", "every 8 hours", "at bedtime", "1-0-1")), r.pick(("with food", "before meals", "after meals", "with plenty of water", "on an empty stomach")), f"{r.randint(3, 30)} days"
        count = r.randint(1, 9) * 10
        part = d.written(f"{drug} {size}, {count} tablets. {often}, {how}, for {days}") if r.chance(0.4) else d.paragraph(f"{drug} {size} ({count} tablets): take {often} {how} for {days}.")
        d.ask((f"How often should {drug} be taken?", f"When is {drug} taken?", f"How many times is {drug} taken?"), often, part)
        d.ask((f"How long should {drug} be taken?", f"For how many days is {drug} taken?", f"How many days does one take {drug}?"), days, part)
        d.ask((f"What is the strength of {drug}?", f"How many milligrams does {drug} have?", f"Which dose of {drug} is it?"), size, part)
        d.ask((f"How should {drug} be taken?", f"What must I keep in mind with {drug}?"), how, part)
        d.ask((f"How many tablets of {drug} are there?", f"How many pills of {drug} does the patient get?"), str(count), part)
    if len(drugs) == 1:
        d.ask(("Which medicine is prescribed?", "What is the medicine called?", "What should be taken?"), drugs[0], part)
    signed = d.written(f"Dr. {doctor}") if r.chance(0.5) else d.line(f"Dr. {doctor}", "r")
    d.ask(("Who prescribed it?", "Which doctor signed it?", "Who is the doctor?", "What is the name of the doctor?"), f"Dr. {doctor}", signed)
    d.about(f"Dr. {doctor} prescribes {', '.join(drugs)} for {patient}.", top, signed)
    other = r.pick([x for x in DRUGS if x not in drugs])
    d.absent(f"How often should {other} be taken?", f"How long should {other} be taken?")
    d.absent("What is the illness?", "Which diagnosis was made?")


@kind("shopping_list", 1.5)
def shopping(d: Document) -> None:
    """Handwritten or printed lists of things to buy or to do."""
    r, money = d.r, Money(d.r)
    d.heading(r.pick(("Shopping", "To buy", "Market", "Groceries", "For Saturday", "List")))
    foods = r.sample((*FOODS, "bread", "eggs", "apples", "toothpaste", "light bulbs", "stamps", "dog food", "candles"), r.randint(3, 10))
    counts = [r.pick((str(r.randint(2, 12)), f"{r.randint(1, 9)} kg", f"{r.randint(100, 900)} g", f"{r.randint(1, 6)} packs", amount_of(r, 1, 4) + " l")) for _ in foods]
    mark = r.pick(("[ ] ", "- ", "", "\u2022 "))
    hand, done = r.chance(0.7), set(r.sample(range(len(foods)), r.randint(0, 2))) if mark == "[ ] " else set()
    for i, (food, count) in enumerate(zip(foods, counts, strict=True)):
        text = f"{'[x] ' if i in done else mark}{count} {food}"
        part = d.written(text) if hand else d.line(text)
        d.ask((f"How {_much(food)} {food} should be bought?", f"How {_much(food)} {food} must I get?", f"What amount of {food} is noted?", f"{food}: how much?"), count, part)
    parts = [b.parts[0] for b in d.blocks[1:]]
    d.ask(("How many things are on the list?", "How many items are there?", "How many things should be bought?"), str(len(foods)), parts)
    d.ask(("What is the first thing on the list?", "Which item comes first?"), foods[0], parts[0])
    d.ask(("What is the last thing on the list?", "Which item comes last?"), foods[-1], parts)
    if len(done) == 1:
        d.ask(("What is ticked off?", "What has been bought already?", "Which item is done?"), foods[next(iter(done))], parts)
    if r.chance(0.4):
        most = money(money.round(r, 10, 90))
        part = d.written(f"max. {most}!") if hand else d.line(f"not more than {most}")
        d.ask(("How much may be spent?", "What is the limit?", "How much money may it cost at most?"), most, part)
    else:
        d.absent("How much may be spent?", "What is the limit of the spending?")
    missing = r.pick([f for f in FOODS if f not in foods])
    d.absent(f"How {_much(missing)} {missing} should be bought?", "Who goes shopping?")


@kind("utility_bill", 2.0)
def utility(d: Document) -> None:
    r, dates, money = d.r, Dates(d.r), Money(d.r)
    firm, reader, number = f"{v.name_word(r)} {r.pick(('Energy', 'Power', 'Water', 'Gas', 'Electric', 'Telecom'))}", person(r), v.code(r)
    unit = r.pick(("kWh", "m\u00b3"))
    old = r.randint(1000, 90000)
    used = r.randint(90, 4000)
    total, monthly = money(money.round(r, 30, 900)), money(money.round(r, 20, 200))
    begin, end = dates.period(380)
    due = dates.date()
    top = d.heading(firm)
    d.ask(("Which company sent the bill?", "Who is the supplier?", "From whom is the bill?", "Who supplies the energy?"), firm, top)
    who = d.lines(reader, v.street(r), town(r))
    d.ask(("Whose bill is it?", "Who is the customer?", "Who has to pay?", "To whom was the bill sent?"), reader, who[0])
    part = d.line(f"{r.pick(('Customer no. ', 'Account ', 'Contract '))}{number}")
    d.ask(("What is the customer number?", "Which account number is on the bill?", "What is the number of the contract?"), number, part)
    part = d.line(f"{r.pick(('Period: ', 'Billing period ', ''))}{begin} {chr(0x2013)} {end}")
    d.ask(("When does the billing period begin?", "From when is the bill?", "What is the first day of the period?"), begin, part)
    d.ask(("When does the billing period end?", "Until when does the bill go?", "What is the last day of the period?"), end, part)
    rows = [["Meter reading, old", str(old)], ["Meter reading, new", str(old + used)], ["Consumption", f"{used} {unit}"]]
    parts = d.table(["", unit] if r.chance(0.3) else [], rows, numbers=1) if r.chance(0.6) else d.fields([tuple(row) for row in rows])
    d.ask(("How much was used?", "What was the consumption?", "How much energy or water was used?", f"How many {unit} were used?"), f"{used} {unit}", parts[2])
    d.ask(("What is the new meter reading?", "What does the meter show now?"), str(old + used), parts[1])
    d.ask(("What was the old meter reading?", "What did the meter show before?"), str(old), parts[0])
    pay = d.paragraph(r.pick((f"Please pay {total} by {due}. From then on your monthly instalment is {monthly}.", f"The amount of {total} will be taken from your account on {due}. Your new monthly payment: {monthly}.")))
    d.ask(("How much has to be paid?", "What is the amount due?", "How much is the bill?", "How much do I owe?"), total, pay)
    d.ask(("When is the payment due?", "By when must it be paid?", "On which day is it paid?"), due, pay)
    d.ask(("What is the new monthly payment?", "How much is paid each month?", "How high is the instalment?"), monthly, pay)
    d.about(f"A bill from {firm} to {reader} over {total}.", top, who, pay)
    d.absent("What is the price per unit?", f"What does one {unit} cost?")


@kind("payslip", 1.5)
def payslip(d: Document) -> None:
    r, money = d.r, Money(d.r)
    name, firm, month, number = person(r), v.company(r), v.month(r), str(r.randint(100, 99999))
    gross = money.round(r, 1800, 9000)
    step = 100 if money.whole else 1
    taxes = [(label, round(gross * r.uniform(0.02, 0.2) / step) * step) for label in r.sample(("Income tax", "Pension", "Health insurance", "Union fee", "Unemployment insurance", "Canteen"), r.randint(2, 4))]
    net = gross - sum(a for _, a in taxes)
    d.heading(r.pick(("Payslip", "Pay statement", "Salary slip", f"Payslip {month}")))
    parts = d.fields([("Employer", firm), ("Employee", name), (r.pick(("Staff no.", "Personnel number")), number), ("Month", month)]) if r.chance(0.6) else d.lines(firm, name, number, month)
    d.ask(("Who gets the salary?", "Whose payslip is it?", "Who is the employee?", "What is the name of the employee?"), name, parts[1])
    d.ask(("Who pays the salary?", "Who is the employer?", "Which company is it?", "For whom does the person work?"), firm, parts[0])
    d.ask(("For which month is it?", "Which month is paid?", "What period is the payslip for?"), month, parts[3])
    d.ask(("What is the personnel number?", "Which staff number does the person have?"), number, parts[2])
    rows = [["Gross pay", money.bare(gross)], *([label, "-" + money.bare(a)] for label, a in taxes), ["Net pay", money.bare(net)]]
    parts = d.table(["", money.currency] if r.chance(0.5) else [], rows, numbers=1)
    d.ask(("How much is paid out?", "What is the net pay?", "How much does the person get in the end?", "How much money is left?"), money.bare(net), parts[-1])
    d.ask(("What is the gross pay?", "How much is the salary before deductions?", "How much is earned before tax?"), money.bare(gross), parts[0])
    for (label, amount), part in zip(taxes, parts[1:], strict=False):
        d.ask((f"How much is taken off for {label.lower()}?", f"What is the {label.lower()}?", f"How high is the deduction for {label.lower()}?"), f"-{money.bare(amount)}", part)
    d.ask(("How many deductions are there?", "How many items are taken off?"), str(len(taxes)), parts)
    d.absent("How many days of holiday are left?", "How many days was the person ill?")
    d.absent("To which account is the salary paid?", "What is the bank account?")


@kind("calendar", 2.0)
def calendar(d: Document) -> None:
    """A week or a month with entries."""
    r, dates = d.r, Dates(d.r)
    month, start = v.month(r), r.randint(0, 6)
    days = 31 if month.split()[0] in ("January", "March", "May", "July", "August", "October", "December") else 28 if month.startswith("February") else 30
    what = distinct(r, lambda r: r.pick(("Dentist", "Team meeting", "Yoga", "Piano lesson", "Oil change", "Book club", f"Lunch with {v.first_name(r)}", f"Call {v.first_name(r)}", f"{v.first_name(r)}'s birthday", "Choir", "Recycling", "Parents' evening", "Haircut", "Deadline", "Vet")), r.randint(3, 7))
    top = d.heading(month)
    d.ask(("Which month is shown?", "What month is it?", "For which month is the calendar?"), month, top)
    chosen = sorted(r.sample(range(1, days + 1), len(what)))
    if r.chance(0.5) and d.shape[1] >= 440:  # a grid of weeks
        short = r.pick((2, 3))
        heads = [day[:short] for day in v.WEEKDAYS]
        cells = ["" for _ in range(start)] + [str(n) for n in range(1, days + 1)]
        cells += [""] * (-len(cells) % 7)
        rows = [cells[i : i + 7] for i in range(0, len(cells), 7)]
        grid = d.table(heads, rows)
        for _ in range(2):
            n = r.randint(1, days)
            d.ask((f"Which weekday is the {n}?", f"On what day of the week is the {n}?", f"What weekday is {month.split()[0]} {n}?"), v.WEEKDAYS[(start + n - 1) % 7], *grid)
        d.ask(("How many days does the month have?", "What is the last day of the month?", "How many days are in the month?"), str(days), *grid)
    times = [dates.time() if r.chance(0.6) else "" for _ in what]
    parts = []
    for n, name, time in zip(chosen, what, times, strict=True):
        weekday = v.WEEKDAYS[(start + n - 1) % 7]
        parts.append(d.line(r.pick((f"{n}  {name}", f"{weekday[:3]} {n}: {name}", f"{n}. {name}", f"{weekday} {n}   {name}")) + (f" {time}" if time else "")))
        d.ask((f"What is on the {n}?", f"What is planned for the {n}?", f"What is entered for {month.split()[0]} {n}?"), name, parts[-1])
        d.ask((f"On which day is {name}?", f"When is {name}?", f"Which day has {name}?", f"On what date is {name}?"), str(n), parts[-1])
        if time:
            d.ask((f"At what time is {name}?", f"What time does {name} start?", f"When does {name} begin, at what time?"), time, parts[-1])
    d.ask(("How many entries are there?", "How many things are planned?", "How many appointments are in the calendar?"), str(len(what)), parts)
    d.ask(("What is the first appointment?", "What comes first in the month?", "Which entry is the earliest?"), what[0], parts)
    d.ask(("What is the last appointment?", "What comes last in the month?", "Which entry is the latest?"), what[-1], parts)
    empty = r.pick([n for n in range(1, days + 1) if n not in chosen])
    d.absent(f"What is planned for the {empty}?", f"What is entered for {month.split()[0]} {empty}?")


@kind("agenda", 2.5)
def agenda(d: Document) -> None:
    """The programme of a conference or an evening: times, talks, speakers, rooms."""
    r, dates = d.r, Dates(d.r)
    d.heading(r.pick(("Programme", "Agenda", "Schedule", "Order of the day", f"{v.name_word(r)} Conference", "Running order")))
    day = dates.date()
    if r.chance(0.6):
        part = d.line(f"{day}, {town(r)}", small=r.chance(0.5))
        d.ask(("On which day is it?", "What is the date of the programme?", "When does the event take place?"), day, part)
    n = r.randint(3, 8)
    talks = distinct(r, lambda r: r.pick((f"The future of {v.word(r)}", f"{v.name_word(r)} and {v.word(r)}", f"How to {v.word(r)}", f"{v.phrase(r, 2, 3)}", "Welcome", "Coffee break", "Lunch", "Panel discussion", "Closing words")), n)
    names, start = people(r, n), r.randint(8, 18) * 60
    times: list[str] = []
    for _ in talks:
        times.append(dates.time(start))
        start += r.pick((15, 20, 30, 45, 60, 90))
    style = r.randint(0, 3)
    speaks = [t not in ("Coffee break", "Lunch", "Panel discussion") for t in talks]
    if style == 0:
        parts = d.table(["Time", r.pick(("Topic", "Session", "Item")), r.pick(("Speaker", "Who"))], [[a, b, c if s else ""] for a, b, c, s in zip(times, talks, names, speaks, strict=False)])
    elif style == 1:
        parts = [d.paragraph(f"{a}  {b}{f' ({c})' if s else ''}") for a, b, c, s in zip(times, talks, names, speaks, strict=False)]
    elif style == 2:
        parts = d.fields([(a, b + (f", {c}" if s else "")) for a, b, c, s in zip(times, talks, names, speaks, strict=False)], "tab")
    else:
        parts = []
        for a, b, c, s in zip(times, talks, names, speaks, strict=False):
            line = d.line(f"{a} {b}", bold=True)
            parts.append([line, d.line(c, small=True)] if s else line)
    for i, (talk, name, time, part) in enumerate(zip(talks, names, times, parts, strict=False)):
        d.ask((f'When does "{talk}" begin?', f'At what time is "{talk}"?', f'When is "{talk}"?', f'What time does "{talk}" start?'), time, part)
        d.ask((f"What takes place at {time}?", f"What is on at {time}?", f"What begins at {time}?"), talk, part)
        if speaks[i]:
            d.ask((f'Who speaks about "{talk}"?', f'Who gives "{talk}"?', f'Who is named for "{talk}"?', f'Which person is responsible for "{talk}"?'), name, part)
            d.ask((f"What does {name} talk about?", f"What is the topic of {name}?", f"Which item does {name} have?"), talk, part)
            d.ask((f"When does {name} speak?", f"At what time is it {name}'s turn?", f"What time is {name} on?"), time, part)
        if i:
            d.ask((f'What comes after "{talks[i - 1]}"?', f'What follows "{talks[i - 1]}"?'), talk, parts[i - 1], part)
    everything = [p for part in parts for p in (part if isinstance(part, list) else [part])]
    d.ask(("How many items does the programme have?", "How many sessions are there?", "How many items are on the agenda?"), str(n), everything)
    d.ask(("What is the first item?", "With what does it begin?", "What comes first?"), talks[0], everything)
    d.ask(("What is the last item?", "With what does it end?", "What comes last?"), talks[-1], everything)
    d.absent(f"When does {person(r)} speak?", f"What does {person(r)} talk about?")
    d.absent("How much does it cost to take part?", "What is the fee?")
