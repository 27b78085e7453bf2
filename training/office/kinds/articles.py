"""Articles, reports and notices: facts in running text, between text that nothing is asked about."""

# fmt: off

from training.office.document import Document
from training.office.prose import prose
from training.office.registry import kind
from training.office.sentences import tell
from training.office.values import Dates, Money, person, town
from training.pages import values as v

SECTIONS = ("Background", "What happened", "Next steps", "History", "In brief", "The people behind it", "Outlook", "Where we stand", "A closer look", "From the archive", "Questions that remain")


@kind("article", 6.0)
def article(d: Document) -> None:
    r, dates, money = d.r, Dates(d.r), Money(d.r)
    title = f"{r.pick(('Notes on', 'A report from', 'News from', 'Life in', 'A year in', 'The story of', 'Letter from', 'Looking back at', 'Around'))} {town(r)}"
    top = d.heading(title)
    d.ask(("What is the title of the text?", "What is the article called?", "What does the headline say?", "How is the text titled?"), title, top)
    author, day = person(r), dates.date()
    style = r.randint(0, 3)
    if style:
        by = d.line((f"by {author}", f"{author}, {day}", f"{day}  |  Text: {author}")[style - 1], small=r.chance(0.6))
        d.ask(("Who wrote the text?", "Who is the author of the text?", "By whom was this written?", "What is the author's name?"), author, by)
        d.about(f"{author} writes about {title.split(' ', 2)[-1] if title.startswith(('Notes', 'Life', 'News')) else 'life in ' + title.split()[-1]}.", top, by) if r.chance(0.3) else None
        if style > 1:
            d.ask(("When was the text written?", "What is the date of the article?", "From when is the article?"), day, by)
    else:
        d.absent("Who wrote the text?", "Who is the author?", "By whom was this written?")
    if r.chance(0.5):
        d.paragraph(prose(r, 300))
    if r.chance(0.35) and d.shape[1] >= 500:
        left, right = d.columns(2)
        tell(left, r.randint(1, 3), dates, money, hide=0.3)
        right.paragraph(prose(r, 500))
        return
    if r.chance(0.4):
        d.heading(r.pick(SECTIONS), level=2)
    tell(d, r.randint(2, 6), dates, money, hide=r.pick((0.0, 0.4, 0.8)), longest=r.pick((150, 300, 450)))
    if r.chance(0.4):
        d.paragraph(prose(r, 400))


@kind("notice", 2.0)
def notice(d: Document) -> None:
    """A note to tenants, staff or visitors: few sentences, large, signed."""
    r, dates, money = d.r, Dates(d.r), Money(d.r)
    head = r.pick(("NOTICE", "Important", "To all residents", "Please note", "Dear neighbours,", "Information", "ATTENTION", "To whom it may concern", "Staff information", "Lost!", "House rules"))
    d.heading(head, align=r.pick("lcc"))
    box = d.framed() if r.chance(0.3) else d
    tell(box, r.randint(1, 3), dates, money, hide=0.15, longest=140)
    signed, role = person(r), r.pick(("caretaker", "for the management", "head of the house", "reception", "your neighbour", "the office"))
    part = d.lines(signed, role, align=r.pick("lr"))
    d.ask(("Who signed the notice?", "Who wrote the notice?", "Whose notice is it?", "Who put up the note?"), signed, part[0])
    d.ask((f"What is the function of {signed}?", "As what did the person sign?", "What stands under the name?"), role, part)
    day = dates.date()
    if r.chance(0.5):
        part = d.line(r.pick(("", f"{town(r)}, ")) + day, small=True)
        d.ask(("When was the notice put up?", "What is the date of the notice?", "From which day is the notice?"), day, part)
    d.absent("To whom is the notice addressed by name?", f"What does {person(r)} have to do?")


@kind("faq", 1.0)
def faq(d: Document) -> None:
    """Questions and answers, or entries of a glossary."""
    r, money = d.r, Money(d.r)
    d.heading(r.pick(("Frequently asked questions", "FAQ", "Questions and answers", "Good to know", "Help")))
    known = [
        ("How do I cancel my order?", f"Write to us within {r.randint(2, 30)} days.", ("How can an order be cancelled?", "What must I do to cancel?", "How do I cancel?")),
        ("Where do I park?", f"In the {v.name_word(r)} car park, level {r.randint(1, 9)}.", ("Where can I leave the car?", "Where can visitors park?", "Which car park is there?")),
        ("What does membership cost?", f"{money(money.round(r, 5, 300))} a year.", ("How much is the membership?", "How much do members pay?", "What is the annual fee?")),
        ("Can I bring my dog?", r.pick(("Yes, on a lead.", "No, dogs must stay outside.", "Only on weekdays.")), ("Are dogs allowed?", "May dogs come in?", "What is the rule for dogs?")),
        ("Who answers questions on the phone?", f"{person(r)}, Monday to {r.pick(('Thursday', 'Friday'))}.", ("Who can be called with questions?", "Who answers the phone?")),
        ("When will my parcel arrive?", f"After {r.randint(2, 14)} working days.", ("How long does a parcel take?", "How many days until the parcel is there?")),
        ("How do I reset my password?", r.pick(("Click on \u201cForgotten?\u201d below the login.", "Ask the service desk for a new one.", "Hold the red key for ten seconds.")), ("What do I do if I forgot my password?", "How can the password be reset?")),
        ("Is there a reduction for students?", f"Yes, {r.randint(5, 50)} % with a student card.", ("What do students get off?", "How much less do students pay?")),
        ("When was the house built?", f"In {r.randint(1700, 2015)}, and enlarged in {r.randint(2016, 2029)}.", ("In which year was it built?", "How old is the house?")),
    ]
    for question, answer, ways in r.sample(known, r.randint(3, 7)):
        d.heading(question, level=2) if r.chance(0.7) else d.line(question, bold=True)
        part = d.paragraph(answer)
        d.ask((*ways, question), answer, part)
    d.absent("How many members are there?", "What is the number of members?")
    d.absent("What is the address of the office?", "In which street is the office?")
