"""Forms filled in by hand: ticked boxes, signatures, entries in handwriting."""

# fmt: off

from training.office.document import Document
from training.office.registry import kind
from training.office.values import Dates, first_name, last_name, town
from training.pages import values as v

NAMES = ("Accident report", "Application for membership", "Holiday request", "Registration", "Lost property", "Order form", "Medical history", "Change of address", "Travel expenses", "Survey", "Repair request", "Library card")


@kind("form_hand", 2.0)
def form(d: Document) -> None:
    r, dates = d.r, Dates(d.r)
    title = r.pick(NAMES)
    top = d.heading(title)
    d.ask(("What kind of form is it?", "What is the form for?", "What is the title of the form?", "What is the form called?"), title, top)
    d.about(f"A form: {title}.", top)
    number = v.code(r)
    if r.chance(0.5):
        part = d.line(f"Form {number}", small=True)
        d.ask(("What is the number of the form?", "Which number does the form have?"), number, part)
    given, family, born = first_name(r), last_name(r), dates.date(r.randint(1940, 2012))
    entries = [
        (("First name", "Given name"), given, ("What is the first name of the person?", "What is the given name?", "Which first name was written?")),
        (("Surname", "Last name", "Family name"), family, ("What is the surname?", "What is the family name of the person?", "Which last name was entered?")),
        (("Date of birth", "Born"), born, ("When was the person born?", "What is the date of birth?", "On which day was the person born?")),
        (("Street", "Address"), v.street(r), ("In which street does the person live?", "What is the address?", "Which street was written down?")),
        (("Town", "City"), town(r), ("In which town does the person live?", "What is the town?", "Which city was entered?")),
        (("Postcode", "ZIP code"), str(r.randint(10000, 99999)), ("What is the postcode?", "Which ZIP code was entered?")),
        (("Telephone", "Phone", "Mobile"), v.phone(r), ("What is the phone number of the person?", "How can the person be called?", "Under which number can the person be reached?")),
        (("Nationality", "Citizenship"), r.pick(("French", "German", "Spanish", "Danish", "Irish", "Polish", "Swiss")), ("What is the nationality?", "Which nationality does the person have?")),
        (("Occupation", "Profession", "Job"), r.pick(("nurse", "baker", "teacher", "farmer", "pilot", "lawyer", "cook", "painter")), ("What does the person do for a living?", "What is the profession of the person?", "What is the occupation?")),
        (("Number of children", "Children"), str(r.randint(0, 6)), ("How many children does the person have?", "What is the number of children?")),
        (("Colour", "Favourite colour"), r.pick(v.COLOURS), ("Which colour was entered?", "What colour was written?")),
    ]
    chosen = r.sample(entries, r.randint(4, 9))
    parts = d.fields([(r.pick(labels), value) for labels, value, _ in chosen], hand=r.chance(0.85))
    for (_, value, questions), part in zip(chosen, parts, strict=True):
        d.ask(questions, value, part)
    for _, _, questions in entries:
        if all(questions != used for *_, used in chosen):
            d.absent(*questions)
            break
    options = r.pick((("Yes", "No"), ("Single", "Married", "Divorced", "Widowed"), ("Cash", "Card", "Transfer"), ("Morning", "Afternoon", "Evening"), ("Email", "Post", "Telephone"), ("Small", "Medium", "Large")))
    what = {"Yes": "Insured", "Single": "Marital status", "Cash": "Payment", "Morning": "Preferred time", "Email": "Contact by", "Small": "Size"}[options[0]]
    ticked = r.randint(0, len(options) - 1)
    on, off = r.pick((("[x]", "[ ]"), ("(x)", "( )"), ("[X]", "[ ]")))
    part = d.line(f"{what}:  " + "   ".join(f"{on if i == ticked else off} {option}" for i, option in enumerate(options)))
    d.ask((f"What is ticked for {what.lower()}?", f"Which box is ticked at {what}?", f"What was chosen for {what.lower()}?", f"{what}: which option is marked?"), options[ticked], part)
    if r.chance(0.6):
        place, day = town(r), dates.date()
        signed = d.fields([("Place, date", f"{place}, {day}"), ("Signature", f"{given} {family}")], r.pick(("above", "colon")), hand=True)
        d.ask(("Who signed the form?", "Whose signature is on the form?", "By whom was the form signed?"), f"{given} {family}", signed[1])
        d.ask(("When was the form signed?", "What is the date of the signature?", "On which day was the form filled in?"), day, signed[0])
    else:
        d.absent("When was the form signed?", "Who signed the form?")
