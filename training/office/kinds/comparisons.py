"""Comparisons of plans, models and rooms, whose first column holds for several rows."""

# fmt: off

from __future__ import annotations

from training.office.document import Document
from training.office.registry import kind
from training.office.values import Money, distinct
from training.pages import values as v

PLANS = (
    ("Basic", "Plus", "Premium"), ("Free", "Personal", "Business"), ("S", "M", "L"), ("Bronze", "Silver", "Gold"), ("Starter", "Family", "Pro"), ("Standard", "Comfort"), ("Light", "Classic", "Max"), ("Economy", "Business", "First"),
)
# what is compared, its titles, and its features by category: "feature|value;value;..." of the plans, or a feature alone, which a plan has or has not
COMPARED: tuple[tuple[str, tuple[str, ...], dict[str, tuple[str, ...]]], ...] = (
    ("plan", ("Mobile plans", "Our phone plans", "Compare our plans", "Which plan suits you?"), {
        "Calls": ("Free minutes|100;250;500;1000;unlimited", "Calls abroad", "Voicemail", "Conference calls", "Second SIM card"),
        "Data": ("Data volume|2 GB;5 GB;10 GB;25 GB;60 GB;unlimited", "Speed|25 Mbit/s;50 Mbit/s;100 Mbit/s;300 Mbit/s;500 Mbit/s", "Data roaming", "Hotspot", "Data rollover"),
        "Contract": ("Duration|1 month;6 months;12 months;24 months", "Setup fee|0;5;10;15;25;30", "Free phone", "Family discount"),
    }),
    ("package", ("Insurance", "What is covered", "Cover at a glance", "Travel insurance"), {
        "Medical": ("Doctor's visits", "Dental treatment", "Hospital|1000;5000;20000;50000;100000", "Transport home", "Medicines"),
        "Luggage": ("Theft", "Delay|100;200;300;500;800", "Lost passport", "Sports equipment", "Damage"),
        "Journey": ("Cancellation", "Missed flight", "Rental car", "Excess|0;50;100;150;250", "Legal help"),
    }),
    ("model", ("Compare models", "Technical data", "Our bicycles", "Which model for whom?"), {
        "Frame": ("Material|steel;aluminium;carbon;titanium", "Weight|9.5 kg;11.2 kg;12.8 kg;14 kg;16.5 kg", "Colour|black;red;green;white;blue;grey", "Suspension"),
        "Equipment": ("Gears|3;7;8;11;21;27", "Lights", "Luggage rack", "Mudguards", "Bell", "Kickstand"),
        "Service": ("Warranty|1 year;2 years;5 years;10 years", "Free inspection", "Delivery", "Assembly"),
    }),
    ("membership", ("Membership", "Gym membership", "Become a member", "What you get"), {
        "Gym": ("Weights", "Courses|2 a week;4 a week;8 a week;unlimited", "Personal trainer", "Opening hours|8-16;6-22;24 hours;7-23"),
        "Wellness": ("Sauna", "Pool", "Massage|1 a month;2 a month;4 a month;6 a year", "Towels", "Solarium"),
        "Extras": ("Drinks", "Parking", "Guest passes|1;2;5;10;12", "Child care", "Locker"),
    }),
    ("edition", ("Software editions", "Features", "Compare editions", "Price and features"), {
        "Storage": ("Space|5 GB;50 GB;100 GB;500 GB;1 TB;2 TB", "Backup", "Encryption", "Versions|3;10;30;90;unlimited"),
        "Team": ("Users|1;3;5;10;25;100;unlimited", "Guest access", "Shared calendar", "Video calls", "Roles"),
        "Support": ("Email support", "Telephone support", "Response time|1 hour;4 hours;24 hours;48 hours;3 days", "Training", "Updates"),
    }),
    ("room", ("Our rooms", "Rooms and equipment", "Meeting rooms", "Rooms for hire"), {
        "Size": ("Area|24 m\u00b2;36 m\u00b2;48 m\u00b2;75 m\u00b2;120 m\u00b2", "Seats|8;12;20;36;60;100", "Floor|ground;first;second;third"),
        "Equipment": ("Projector", "Whiteboard", "Microphone", "Piano", "Air conditioning", "Wi-Fi"),
        "Service": ("Coffee", "Kitchen use", "Cleaning", "Parking spaces|2;5;10;20;40"),
    }),
)
COUNTED = ("Free minutes", "Versions", "Users", "Gears", "Seats", "Guest passes", "Parking spaces")
MARKS = (("yes", "no"), ("Yes", "No"), ("x", "\u2013"), ("X", ""), ("\u2022", "\u2013"), ("included", "\u2013"), ("x", ""), ("Yes", "\u2014"), ("+", "\u2013"))


@kind("comparison", 1.5)
def comparison(d: Document) -> None:
    """What several plans, models or rooms have, by category: a category holds for the rows beside it."""
    r, money = d.r, Money(d.r)
    what, titles, features = r.pick(COMPARED)
    plans = distinct(r, v.name_word, 3) if what in ("model", "room") or r.chance(0.15) else list(r.pick(PLANS))
    have, lack = r.pick(MARKS)
    name = d.heading(r.pick(titles))
    d.about(f"A comparison of the {what}s {', '.join(plans[:-1])} and {plans[-1]}.", name)
    rows, entries = [], []  # entries: feature, category, values
    for category, options in r.sample(sorted(features.items()), r.randint(2, 3)):
        for option in r.sample(options, r.randint(1, min(4, len(options)))):
            feature, _, values = option.partition("|")
            if values:
                known = values.split(";")
                chosen = sorted(r.sample(range(len(known)), len(plans))) if len(known) >= len(plans) and r.chance(0.7) else [r.randint(0, len(known) - 1) for _ in plans]
                cells = [known[i] for i in chosen]
            else:
                cells = [r.pick((have, have, lack)) for _ in plans]
            first = not entries or entries[-1][1] != category
            entries.append((feature, category, cells, bool(values)))
            rows.append([category if first else "", feature, *cells])
    prices = [money(100 * p + r.pick((0, 0, 50, 90, 99))) if not money.whole else money(100 * p) for p in sorted(r.sample(range(3, 120), len(plans)))]
    priced = r.chance(0.6)
    if priced:
        per = r.pick(("per month", "a month", "per year")) if what not in ("model", "room") else r.pick(("from", "list price")) if what == "model" else r.pick(("per hour", "per day"))
        entries.append((per, "Price", prices, True))
        rows.append(["Price", per, *prices])
    head = r.pick((["", ""], ["Category", "Feature"], ["", what.capitalize()]))
    parts = d.table([*head, *plans], rows, merged=True)
    starts = [i for i, row in enumerate(rows) if row[0]]
    needs = [[p for p, first in zip(parts, range(len(rows)), strict=True) if max(s for s in starts if s <= first) == max(s for s in starts if s <= i)] for i in range(len(rows))]

    for i in r.sample(range(len(entries)), min(len(entries), 7)):
        feature, category, cells, valued = entries[i]
        low = feature if feature.isupper() or "Wi-Fi" in feature or "SIM" in feature else feature[0].lower() + feature[1:]
        p = r.randint(0, len(plans) - 1)
        plan = plans[p]
        if category == "Price":
            d.ask((f"How much is {plan}?", f"What does {plan} cost?", f"What is the price of {plan}?", f"{plan}: price?", f"How much do I pay for {plan}?"), cells[p], needs[i])
            continue
        if valued:
            low = f"number of {low}" if feature in COUNTED else low
            verb = "are" if feature in ("Opening hours", "Courses") else "is"
            d.ask((f"What {verb} the {low} of {plan}?", f"{plan}: {low}?", f"Which {low} does {plan} have?", f"What does {plan} have under {feature}?", f"Look up {low} for {plan}.", f"For {plan}, what {verb} the {low}?"), cells[p], needs[i])
            if cells.count(cells[p]) == 1:
                d.ask((f"Which {what} has {cells[p]} under {feature}?", f"For which {what} {verb} the {low} {cells[p]}?", f"Where does the row {feature} say {cells[p]}?", f"{feature} {cells[p]}: which {what} is that?"), plan, needs[i])
        else:
            d.ask((f"Is {low} included in {plan}?", f"Does {plan} include {low}?", f"{plan} with {low}: yes or no?", f"Do I get {low} with {plan}?", f"Does {plan} come with {low}?"), "yes" if cells[p] == have else "no", needs[i])
            having = [plan for plan, cell in zip(plans, cells, strict=True) if cell == have]
            if 0 < len(having) < len(plans):
                said = having[0] if len(having) == 1 else f"{', '.join(having[:-1])} and {having[-1]}"
                plural = f"{what}s" if len(having) > 1 else what
                d.ask((f"Which {plural} {'include' if len(having) > 1 else 'includes'} {low}?", f"With which {plural} do I get {low}?", f"Where is {low} included?", f"What do I have to take to get {low}?"), said, needs[i])
                without = [plan for plan in plans if plan not in having]
                if len(without) == 1:
                    d.ask((f"Which {what} does not include {low}?", f"Which {what} comes without {low}?", f"Where is {low} missing?", f"Without {low}: which {what}?"), without[0], needs[i])
    if not valued or r.chance(0.6):
        feature, category, _, _ = r.pick(entries[: len(entries) - priced] or entries)
        i = [e[0] for e in entries].index(feature)
        d.ask((f"In which category is {feature}?", f"To which section does {feature} belong?", f"Under what is {feature} listed?", f"Beside which heading does {feature} stand?"), category, needs[i])
    category = r.pick([row[0] for row in rows if row[0] and row[0] != "Price"])
    inside = [e[0] for e in entries if e[1] == category]
    d.ask((f"How many rows belong to {category}?", f"How many features are listed under {category}?", f"How many lines stand beside {category}?", f"How many points are there for {category}?"), str(len(inside)), parts)
    if len(inside) > 1:
        d.ask((f"What is listed under {category}?", f"Which features belong to {category}?", f"What stands beside {category}?", f"Name the features of {category}."), ", ".join(inside), parts)
    d.ask((f"How many {what}s are compared?", f"How many {what}s are there?", f"How many {what}s does the table show?", f"Between how many {what}s can I choose?"), str(len(plans)), parts)
    if priced:
        d.ask((f"Which {what} is the cheapest?", f"What is the cheapest {what}?", f"Which {what} costs the least?", "What costs the least?"), plans[0], parts)
        d.ask((f"Which {what} is the most expensive?", f"What is the dearest {what}?", f"Which {what} costs the most?", "What costs the most?"), plans[-1], parts)
    else:
        d.absent(f"How much is {r.pick(plans)}?", f"What does {r.pick(plans)} cost?", f"Which {what} is the cheapest?")
    known = {e[0] for e in entries}
    others = [o.partition("|")[0] for options in features.values() for o in options if o.partition("|")[0] not in known]
    if others:
        feature, plan = r.pick(others), r.pick(plans)
        d.absent(f"What does {plan} have under {feature}?", f"What does the table say about {feature}?", f"{feature} of {plan}?")
    strange = [plan for own in PLANS for plan in own if plan not in plans and len(plan) > 1]
    d.absent(f"How much is {r.pick(strange)}?", f"What does {r.pick(strange)} include?")
