"""Forms as people fill them in with a pen: entries of many sorts, some left empty, some corrected."""

# fmt: off

from training.office.document import Document
from training.office.registry import kind
from training.office.values import Dates, Money, first_name, last_name, person, town
from training.pages import values as v
from training.pages.values import Rng

HINTS = ("Please write in block capitals.", "Please complete in ink.", "Fill in all fields and sign below.", "Please tick as appropriate.", "Return this form to the front desk.", "Use black or blue ink only.", "Please print clearly.")
SECTIONS = ("Personal details", "Your details", "Contact", "Part A", "Section 1", "Applicant", "To be filled in by the applicant", "About you")
# name: (labels, value, wordings)
ENTRIES = {
    "first": (("First name", "Given name", "Forename", "First name(s)"), lambda r, c: c["first"], ("What is the first name?", "Which first name was written?", "What given name is entered?", "What is the person called, first name only?", "First name?", "What was written as the forename?")),
    "last": (("Surname", "Last name", "Family name"), lambda r, c: c["last"], ("What is the surname?", "Which last name was entered?", "What is the family name?", "Surname?", "What was filled in as last name?", "Which surname did the person write?")),
    "name": (("Name", "Full name", "Name of applicant", "Your name"), lambda r, c: f"{c['first']} {c['last']}", ("Who filled in the form?", "What is the name on the form?", "Whose form is this?", "What is the full name?", "Who is the applicant?", "Which name was written?", "Whose details are these?")),
    "born": (("Date of birth", "Born", "Birth date", "DOB"), lambda r, c: c["dates"].date(r.randint(1935, 2014)), ("When was the person born?", "What is the date of birth?", "Birthday?", "On which day was the applicant born?", "What birth date was entered?")),
    "street": (("Street", "Address", "Street and number"), lambda r, c: v.street(r), ("What is the address?", "In which street does the person live?", "Which street was written?", "Where does the applicant live, street and number?", "Street?")),
    "town": (("Town", "City", "Place of residence"), lambda r, c: town(r), ("In which town does the person live?", "Which city was entered?", "Town?", "What is the place of residence?", "Where does the person come from?")),
    "code": (("Postcode", "ZIP code", "Post code"), lambda r, c: str(r.randint(10000, 99999)), ("What is the postcode?", "Which ZIP code was entered?", "Postal code?", "What was written as postcode?", "Which post code does the address have?")),
    "phone": (("Telephone", "Phone", "Mobile", "Tel. no.", "Daytime phone"), lambda r, c: v.phone(r), ("What is the phone number?", "Under which number can the person be reached?", "Phone?", "Which number should one ring?", "What telephone number was written?")),
    "mail": (("E-mail", "Email", "Email address"), lambda r, c: f"{r.pick(v.FIRST_NAMES).lower()}{r.randint(1, 99)}@{v.name_word(r).lower()}.example", ("What is the email address?", "Where can one write an email to?", "Which e-mail was entered?", "Email?", "At which mail address can the person be reached?")),
    "nation": (("Nationality", "Citizenship"), lambda r, c: r.pick(("French", "German", "Spanish", "Danish", "Irish", "Polish", "Swiss", "Italian", "Dutch", "British")), ("What is the nationality?", "Which citizenship was entered?", "Nationality?", "From which country is the person, by citizenship?", "Of what nationality is the applicant?")),
    "job": (("Occupation", "Profession", "Job title", "Employment"), lambda r, c: r.pick(("nurse", "baker", "teacher", "farmer", "pilot", "lawyer", "cook", "painter", "electrician", "librarian", "student", "retired", "bus driver", "plumber", "vet")), ("What does the person do for a living?", "What is the occupation?", "Which profession was entered?", "Job?", "What work does the applicant do?")),
    "firm": (("Employer", "Company", "Organisation"), lambda r, c: v.company(r), ("For whom does the person work?", "Who is the employer?", "Which company was written?", "Employer?", "What is the name of the organisation?")),
    "kids": (("Number of children", "Children", "No. of children"), lambda r, c: str(r.randint(0, 6)), ("How many children does the person have?", "Number of children?", "How many kids were entered?", "What was written for children?", "How many children are there?")),
    "plate": (("Registration number", "Number plate", "Vehicle reg."), lambda r, c: f"{''.join(r.pick('ABCDEFGHKLMNPRSTUVWXYZ') for _ in range(2))} {r.randint(100, 9999)}", ("What is the number plate?", "Which registration does the car have?", "Number plate?", "What plate was written down?", "Which vehicle is it, by its plate?")),
    "make": (("Make and model", "Vehicle", "Make of car"), lambda r, c: r.pick(("blue Golf", "Fiat Panda", "Volvo estate", "white van", "Ford Focus", "red Polo", "Skoda Fabia", "Toyota Yaris")), ("What car is it?", "Which vehicle was entered?", "Make of the car?", "What does the person drive?", "Which make and model is it?")),
    "meter": (("Meter reading", "Reading", "Present reading"), lambda r, c: str(r.randint(10000, 99999)), ("What is the meter reading?", "What did the meter show?", "Reading?", "Which figure was read off the meter?", "How much does the meter say?")),
    "meterno": (("Meter number", "Meter no."), lambda r, c: str(r.randint(1000000, 9999999)), ("What is the number of the meter?", "Which meter was read?", "Meter number?", "What meter no. was entered?", "By which number is the meter known?")),
    "amount": (("Amount", "Sum", "Amount claimed", "Total"), lambda r, c: c["money"](c["money"].round(r, 5, 900)), ("What is the amount?", "How much money is claimed?", "Which sum was written?", "Amount?", "How much is it?")),
    "item": (("Item", "Article", "Object", "Description"), lambda r, c: r.pick(("black umbrella", "silver watch", "brown wallet", "green scarf", "school bag", "reading glasses", "bunch of keys", "red bicycle", "camera", "leather gloves")), ("What is the item?", "Which object is described?", "Item?", "What thing is it about?", "What was written as description?")),
    "where": (("Place", "Location", "Where"), lambda r, c: r.pick(("car park", "main hall", "platform 3", "bus line 12", "canteen", "second floor", "reception", "swimming pool", "corridor B", "rear entrance")), ("Where did it happen?", "Which place was entered?", "Where was it?", "Location?", "What was written for the place?")),
    "when": (("Time", "At what time", "Hour"), lambda r, c: c["dates"].time(), ("At what time was it?", "Which time was written?", "Time?", "At which hour did it happen?", "What time was entered?")),
    "on": (("Date", "Date of event", "On"), lambda r, c: c["dates"].date(), ("When was it?", "On which day was it?", "Which day was it, not that of the signature?", "On what date was it?", "On which date did it happen?")),
    "from": (("From", "First day", "Leave from"), lambda r, c: c["leave"][0], ("From when?", "Which is the first day?", "When does it begin?", "Start date?", "From which date on?")),
    "until": (("Until", "Last day", "Leave until"), lambda r, c: c["leave"][1], ("Until when?", "Which is the last day?", "When does it end?", "End date?", "Up to which date?")),
    "days": (("Number of days", "Days"), lambda r, c: str(r.randint(1, 30)), ("How many days are asked for?", "Number of days?", "How many days were entered?", "For how many days is it?", "How long is it, in days?")),
    "deputy": (("Deputy", "Covered by", "Replacement"), lambda r, c: person(r), ("Who is the deputy?", "Who covers for the person?", "Replacement?", "Who stands in?", "Which colleague is the replacement?")),
    "doctor": (("Family doctor", "GP", "Doctor"), lambda r, c: f"Dr {last_name(r)}", ("Who is the family doctor?", "Which doctor was named?", "Doctor?", "What is the GP called?", "Who treats the patient?")),
    "allergy": (("Allergies", "Known allergies"), lambda r, c: r.pick(("none", "nuts", "penicillin", "pollen", "cats", "milk", "wasp stings", "latex")), ("Which allergies are there?", "What is the person allergic to?", "Allergies?", "Which allergy was entered?", "What was written under allergies?")),
    "insurer": (("Insurance", "Health insurance", "Insurer"), lambda r, c: v.company(r), ("Which insurance is it?", "Who is the insurer?", "Insurance?", "With whom is the person insured?", "Which insurance company was written?")),
    "policy": (("Policy number", "Insurance no.", "Policy no."), lambda r, c: f"{r.pick('ABCDEFG')}{r.randint(100000, 999999)}", ("What is the policy number?", "Which insurance number was entered?", "Policy no.?", "Under which number is the person insured?", "What policy was written?")),
    "contact": (("Emergency contact", "In an emergency call", "Next of kin"), lambda r, c: person(r), ("Who is the emergency contact?", "Whom should one call in an emergency?", "Next of kin?", "Who must be told if something happens?", "Which emergency contact was named?")),
    "child": (("Name of child", "Child", "Pupil"), lambda r, c: c["child"], ("What is the name of the child?", "Which child is it?", "Child?", "Who is the pupil?", "For which child was the form filled in?")),
    "class": (("Class", "Form", "Year"), lambda r, c: f"{r.randint(1, 12)}{r.pick('abc')}", ("Which class is it?", "In which class is the pupil?", "Class?", "What class was entered?", "Which class does the child go to?")),
    "member": (("Membership no.", "Member number", "Card number"), lambda r, c: str(r.randint(1000, 99999)), ("What is the membership number?", "Which card number was written?", "Member no.?", "Under which number is the person a member?", "What number does the card have?")),
    "size": (("Size", "Shoe size", "Shirt size"), lambda r, c: str(r.randint(34, 47)), ("Which size was entered?", "What size is it?", "Size?", "Which size does the person need?", "What was written for the size?")),
    "room": (("Room", "Room no.", "Department"), lambda r, c: r.pick((str(r.randint(1, 420)), r.pick(v.DEPARTMENTS))), ("Which room or department is it?", "What was entered for the room or department?", "Room?", "Where in the house is it?", "Which room was written?")),
    "reason": (("Reason", "Reason for request", "Purpose"), lambda r, c: r.pick(("moving house", "family visit", "broken zip", "wrong colour", "training course", "doctor's visit", "arrived damaged", "wedding", "lost card", "school trip", "too small")), ("What is the reason?", "Why was the form filled in?", "Reason?", "What was given as the reason?", "Which purpose was written?")),
    "host": (("Visiting", "To see", "Host"), lambda r, c: person(r), ("Whom does the visitor want to see?", "Who is being visited?", "Host?", "To see whom did the person come?", "Who is the host?")),
    "iban": (("Account", "Account number"), lambda r, c: str(r.randint(10000000, 99999999)), ("What is the account number?", "Into which account should the money go?", "Account?", "Which account was written?", "What account number is on the form?")),
    "weight": (("Weight (kg)", "Weight in kg"), lambda r, c: str(r.randint(2, 98)), ("How much does it weigh, in kg?", "What weight was entered?", "Weight?", "How heavy is it?", "What was written for the weight?")),
}
FORMS = (
    (("Application for membership", "Membership form", "Join our club"), "first last born street town code phone mail job"), (("Holiday request", "Leave request", "Application for leave"), "name room from until days deputy reason"),
    (("Accident report", "Damage report", "Incident form"), "name phone on when where item plate make"), (("Lost property", "Lost and found", "Loss report"), "name phone item where on when"), (("Meter reading card", "Reading of your meter"), "name street town meterno meter on"),
    (("Patient registration", "New patient form", "Medical questionnaire"), "first last born street phone doctor allergy insurer policy contact weight"), (("Parking permit", "Resident's parking"), "name street plate make phone from until"),
    (("School trip: consent", "Permission slip", "Consent form"), "child class contact phone allergy doctor"), (("Library card", "Registration of readers"), "first last born street town code mail nation member"), (("Expense claim", "Refund request", "Reimbursement"), "name room amount reason on iban"),
    (("Visitor slip", "Visitor registration", "Gate pass"), "name firm host on when plate"), (("Return slip", "Returns form", "Complaint"), "name member item reason size amount phone"), (("Registration", "Course registration", "Sign-up sheet"), "first last mail phone town job size"),
    (("Change of address", "Removal notice"), "name born street town code phone from"), (("Job application form", "Application"), "first last born nation street town phone mail job firm kids"), (("Survey of residents", "Household questionnaire"), "name street kids job nation make"),
)
# label, options, whether several may be ticked, what it is called in questions
TICKS = (
    ("Title", "Mr,Ms,Dr", False, "the title"), ("Sex", "male,female,other", False, "sex"), ("Marital status", "single,married,divorced,widowed", False, "marital status"), ("Payment", "cash,card,transfer", False, "the payment"), ("Preferred time", "morning,afternoon,evening", False, "the preferred time"),
    ("Contact by", "email,post,phone", True, "the way of contact"), ("Size", "S,M,L,XL", False, "the size"), ("Insured", "yes,no", False, "insured"), ("Smoker", "yes,no", False, "smoker"), ("Meals", "meat,fish,vegetarian,vegan", False, "the meals"), ("Membership", "full,youth,family", False, "membership"),
    ("Days", "Mon,Tue,Wed,Thu,Fri", True, "the days"), ("Languages", "English,French,German,Spanish", True, "languages"), ("Newsletter", "yes,no", False, "the newsletter"), ("Transport", "car,bus,train,bicycle", False, "transport"), ("Swimmer", "yes,no", False, "swimmer"), ("Interests", "music,sport,cooking,travel", True, "interests"),
    ("Delivery", "pick up,by post,courier", False, "delivery"), ("Floor", "ground,first,second", False, "the floor"), ("Condition", "new,used,damaged", False, "the condition"), ("Satisfied", "yes,partly,no", False, "satisfied"), ("Paid leave", "yes,no", False, "paid leave"), ("Photos allowed", "yes,no", False, "photos"),
)
# Where these are left empty, the signature may tell: only the field itself is asked for.
SIGNED = frozenset(("first", "last", "name", "town", "on"))
STYLES = ("line", "line", "box", "box", "under", "comb")


def _entry(r: Rng, style: str, label: str, value: str) -> dict:
    """An entry in the style of the form; combs take short ones only, in capitals."""
    if style == "comb":
        capitals = value.upper()
        if len(value) > 16 or "ß" in value or "ÿ" in value or "@" in value or any(len(c.upper()) > 1 for c in value):
            style = "line"
        else:
            return {"label": label, "value": capitals, "style": "comb", "cells": len(value) + r.randint(0, 4), "weight": max(len(value), 6)}
    return {"label": label, "value": value, "style": style, "weight": max(len(value) + len(label) * (style == "line"), 8)}


def _rows(r: Rng, entries: list[dict], wide: bool) -> list[list[dict]]:
    """Entries one, two or three a row, as their lengths allow."""
    rows: list[list[dict]] = []
    limit = r.pick((22, 36, 50)) if wide else r.pick((18, 26))
    for entry in entries:
        long = entry["style"] in ("ticks", "comb")
        if rows and not long and rows[-1][0]["style"] not in ("ticks", "comb") and len(rows[-1]) < 3 and sum(e["weight"] for e in rows[-1]) + entry["weight"] <= limit:
            rows[-1].append(entry)
        else:
            rows.append([entry])
    return rows


@kind("pen_form", 12.0)
def pen_form(d: Document) -> None:
    r, dates = d.r, Dates(d.r)
    titles, names = r.pick(FORMS)
    title = r.pick(titles)
    top = d.heading(title)
    d.ask(("What is the title of the form?", "What kind of form is it?", "What is the form for?", "What is the form called?", "Which form is this?"), title, top)
    d.about(f"A form filled in by hand: {title}.", top)
    if r.chance(0.4):
        d.line(r.pick(HINTS), small=True)
    if r.chance(0.3):
        d.heading(r.pick(SECTIONS), 2)
    context = {"first": first_name(r), "last": last_name(r), "child": first_name(r), "dates": dates, "leave": dates.period(40), "money": Money(r)}
    style, mixed = r.pick(STYLES), r.chance(0.3)
    order = names.split()
    order = order if r.chance(0.6) else r.sample(order, r.randint(4, len(order)))
    entries, asks = [], []
    for name in order:
        labels, make, questions = ENTRIES[name]
        label, value = r.pick(labels), make(r, context)
        entry = _entry(r, r.pick(STYLES) if mixed else style, label, value)
        fate = r.random()
        if fate < 0.11:
            entry["value"] = ""
        elif fate < 0.19 and entry["style"] != "comb" and len(value) < 18:
            entry["struck"] = make(r, {**context, "first": first_name(r), "last": last_name(r), "child": first_name(r)})
            if entry["struck"] == value or len(entry["struck"]) > 18:
                del entry["struck"]
        entries.append(entry)
        asks.append(questions)
    labels = {entry["label"] for entry in entries}  # two fields of one label could not be told apart
    ticks = [_tick(r, *tick) for tick in r.sample(TICKS, r.randint(0, 3)) if tick[0] not in labels]
    parts = d.hand_form(_rows(r, [*entries, *ticks], d.shape[1] > 500))
    for name, entry, questions, part in zip(order, entries, asks, parts, strict=False):
        _ask_entry(d, entry, questions, part, name in SIGNED)
    for entry, part in zip(ticks, parts[len(entries):], strict=True):
        _ask_tick(d, entry, part)
    _empty(d, entries, parts)
    _signed(d, context, dates, labels)
    if r.chance(0.3):
        number = v.code(r)
        d.ask(("What is the number of the form?", "Which form number is printed?", "Form number?"), number, d.line(f"Form {number}", r.pick("lr"), small=True))


def _ask_entry(d: Document, entry: dict, questions: tuple[str, ...], part: int, signed: bool) -> None:
    low = entry["label"] if entry["label"][:2].isupper() else entry["label"][0].lower() + entry["label"][1:]
    by_label = (f"What was written at \"{entry['label']}\"?", f"What does it say after {low}?", f"{entry['label']}: what was entered?")
    if not entry["value"]:
        d.absent(*(() if signed else questions[:-1]), by_label[0])
        d.ask((f"Is the field {low} filled in?", f"Was anything written at \"{entry['label']}\"?", f"Did the person fill in {low}?"), "no", part)
        return
    d.ask((*questions[:-1], d.r.pick(by_label), questions[-1]), entry["value"], part)
    if d.r.chance(0.12):
        d.ask((f"Is the field {low} filled in?", f"Was anything written at \"{entry['label']}\"?", f"Did the person fill in {low}?"), "yes", part)
    if "struck" in entry:
        d.ask((f"What was crossed out at {low}?", f"What was written at {low} before it was corrected?", f"Which entry for {low} was struck out?"), entry["struck"], part)


def _tick(r: Rng, label: str, options: str, several: bool, name: str) -> dict:
    shown = options.split(",")
    count = 0 if r.chance(0.08) else r.randint(1, min(3, len(shown) - 1)) if several else 1
    return {"label": label, "style": "ticks", "options": shown, "chosen": sorted(r.sample(range(len(shown)), count)), "value": "", "name": name, "weight": 60}


def _ask_tick(d: Document, entry: dict, part: int) -> None:
    r, name = d.r, entry["name"]
    chosen = [entry["options"][k] for k in entry["chosen"]]
    questions = (f"What is ticked for {name}?", f"Which box is ticked at {entry['label']}?", f"What was chosen for {name}?", f"{entry['label']}: which option is marked?", f"Which answer was given for {name}?")
    if not chosen:
        d.absent(*questions)
        d.ask((f"Is anything ticked at {entry['label']}?", f"Was an answer given for {name}?"), "no", part)
        return
    d.ask(questions, ", ".join(chosen), part)
    if entry["options"][-1] not in ("no",):
        option = r.pick(entry["options"])
        d.ask((f"Is {option} ticked?", f"Was the box \"{option}\" marked?", f"At {entry['label']}, is {option} chosen?"), "yes" if option in chosen else "no", part)
    else:
        plain = name.removeprefix("the ")
        d.ask((f"Is the answer for {plain} yes or no?", f"{entry['label']}: yes or no?"), chosen[0], part) if chosen[0] in ("yes", "no") else None
    if r.chance(0.3):
        d.ask((f"What are the options for {name}?", f"Between which options can one choose at {entry['label']}?"), ", ".join(entry["options"]), part)


def _empty(d: Document, entries: list[dict], parts: list[int]) -> None:
    blank = [entry["label"] for entry in entries if not entry["value"]]
    own = parts[:len(entries)]
    if len(blank) == 1:
        d.ask(("Which field was left empty?", "What was not filled in?", "Which entry is missing?", "Where was nothing written?"), blank[0], own)
    elif blank:
        d.ask(("Which fields were left empty?", "What was not filled in?", "Which entries are missing?", "Where was nothing written?"), ", ".join(blank), own)
    struck = [entry for entry in entries if "struck" in entry]
    if len(struck) == 1:
        d.ask(("Which field was corrected?", "Where was something crossed out?", "In which field is there a correction?"), struck[0]["label"], own)


def _signed(d: Document, context: dict, dates: Dates, labels: set[str]) -> None:
    """The foot of the form: place, date and signature, one of them left out now and then."""
    r = d.r
    if r.chance(0.25):
        return
    name = f"{context['first']} {context['last']}"
    shown = r.pick((name, name, f"{context['first'][0]}. {context['last']}", context["last"]))
    day, place, signed = dates.date(), town(r), r.chance(0.85)
    date_label = r.pick(("Place, date", "Date of signature" if "Date" in labels else "Date", "Place and date"))
    written = day if date_label.startswith("Date") else f"{place}, {day}"
    sign = {"label": r.pick(("Signature", "Signed", "Signature of applicant", "Sign here")), "value": shown if signed else "", "style": "sign", "weight": 2}
    when = {"label": date_label, "value": written, "style": "under", "weight": 2}
    d.gap()
    pair = [when, sign] if r.chance(0.7) else [sign, when]
    parts = dict(zip(("when", "sign") if pair[0] is when else ("sign", "when"), d.hand_form([pair] if d.shape[1] > 420 else [[p] for p in pair]), strict=True))
    d.ask(("When was the form signed?", "What is the date of the signature?", "On which day was it signed?", "Date of signing?"), day, parts["when"])
    if not date_label.startswith("Date"):
        d.ask(("Where was the form signed?", "In which town was it signed?", "Place of signing?"), place, parts["when"])
    if signed:
        d.ask(("Who signed the form?", "Whose signature is it?", "By whom was it signed?", "Which name is the signature?", "What does the signature say?"), shown, parts["sign"])
        d.ask(("Is the form signed?", "Did anybody sign?", "Is there a signature?"), "yes", parts["sign"])
    else:
        d.absent("Who signed the form?", "Whose signature is it?", "By whom was it signed?")
        d.ask(("Is the form signed?", "Did anybody sign?", "Is there a signature?"), "no", parts["sign"])
