"""Pages that name people without saying who is what: senders, signatories, speakers, hosts; the layout or a verb tells."""

# fmt: off

from training.office.document import Document
from training.office.registry import kind
from training.office.values import Dates, first_name, people, person, town
from training.pages import values as v

POSTS = ("Managing Director", "Head of Sales", "Secretary", "Treasurer", "Office Manager", "Head Teacher", "Warden", "Project Lead", "Chief Engineer", "Librarian", "Matron", "Branch Manager", "Customer Service", "Estate Agent", "Curator", "Chair of the Board")
CLOSINGS = ("Yours sincerely,", "Kind regards,", "Best wishes,", "With best regards,", "Yours faithfully,", "Many thanks,", "Warmly,", "All the best,", "Sincerely,")
NEWS = (
    "the lift will be out of service from Monday", "your application has been received", "we cannot offer the room that day", "the meeting has been moved to the large hall", "your subscription ends next month", "the keys can be fetched at the desk", "the roof has been repaired at last",
    "your order has left our warehouse", "we are looking for helpers at the summer fair", "the choir needs two more tenors", "the water will be turned off on Thursday", "the parcel came back to us", "your contract has been extended", "the garden will be closed for the winter",
)
SAID = (
    ("asked whether {x}", "Who asked whether {x}?"), ("said that {x}", "Who said that {x}?"), ("reported that {x}", "Who reported that {x}?"), ("pointed out that {x}", "Who pointed out that {x}?"), ("doubted that {x}", "Who doubted that {x}?"), ("confirmed that {x}", "Who confirmed that {x}?"), ("complained that {x}", "Who complained that {x}?"),
)
CLAIMS = (
    "the heating is too expensive", "the hall is booked until May", "the old printer still works", "the car park is full every morning", "two windows are broken", "the budget has been spent", "the new timetable is better", "the coffee machine needs a service", "the flyers are ready", "the neighbours are content",
    "more chairs are needed", "the website is out of date", "the trees must be cut back", "the insurance pays for the damage", "the caretaker is on holiday", "the door does not lock", "ticket sales are going well", "the bus stop will be moved", "the invoices are complete", "the music was too loud",
)
JOBS = ("book the band", "paint the fence", "call the plumber", "bring the cake", "write the report", "fetch the keys", "check the accounts", "order the paper", "invite the mayor", "take the photos", "clean the kitchen", "print the programme")
SAYINGS = ("Can somebody open the door?", "I am running ten minutes late.", "The cake is in the fridge.", "Who has the projector?", "Lunch at one?", "I left my umbrella in your car.", "The tickets are sold out.", "We won three to one!", "Do not forget the contract.", "The train is cancelled again.", "I will bring salad.", "Happy birthday!", "The code has changed.", "See you at the station.", "I found your glasses.", "The boss is away today.")
ROLES = ("Speaker", "Visitor", "Exhibitor", "Staff", "Press", "Guest", "Volunteer", "Crew", "Trainee", "Physician", "Security")


@kind("unlabelled_letter", 4.0)
def unlabelled_letter(d: Document) -> None:
    """Sender and reader stand where letters have them; nothing says so."""
    r, dates = d.r, Dates(d.r)
    sender, reader, boss, other = people(r, 4)
    firm, post, place, day = v.company(r), r.pick(POSTS), town(r), dates.date()
    street, readers_street, readers_town = v.street(r), v.street(r), town(r)
    head = r.randint(0, 2)
    if head == 0:
        d.heading(firm)
        d.line(f"{street}, {place}", r.pick("lc"), small=True)
    elif head == 1:
        own = d.lines(sender, street, place, align=r.pick("rl"))
        d.ask((f"Where does {sender} live?", "What is the sender's address?", "Which street is the letter from?", "In which street does the writer live?"), street, own)
    else:
        d.line(f"{firm} \u2022 {street} \u2022 {place}", small=True)
    d.gap()
    to = d.lines(reader, *((v.company(r),) if r.chance(0.3) else ()), readers_street, readers_town)
    dated = d.line(r.pick((day, f"{place}, {day}")), r.pick("rl"))
    d.ask(("Who is the letter addressed to?", "Who gets this letter?", "To whom is it written?", "Who is the reader?", "For whom is the letter meant?", "Who should receive it?"), reader, to)
    d.ask(("In which town does the reader live?", "Where is the letter sent to?", f"In which town is {reader}?", "To which town does the letter go?"), readers_town, to)
    d.ask(("When was the letter written?", "What is the date of the letter?", "Date?", "On which day was this written?"), day, dated)
    d.gap()
    d.paragraph(r.pick((f"Dear {reader},", f"Dear {reader.split()[0]},", f"Hello {reader.split()[0]},", "Dear Sir or Madam,")))
    news = r.sample(NEWS, 2)
    part = d.paragraph(f"{r.pick(('I am writing to tell you that', 'This is to let you know that', 'We wish to inform you that', 'Please note that'))} {news[0]}. {v.sentence(r)}")
    d.ask(("What is the news?", "What does the writer want to say?", "What is the reader told?", "What is the letter about?"), news[0], part)
    if r.chance(0.6):
        task = r.pick(JOBS)
        part = d.paragraph(r.pick((f"{other} will {task}, as we agreed on the telephone.", f"I have asked {other} to {task}.", f"Meanwhile {other} is going to {task}.", f"Please talk to {other}, who will {task}.")))
        d.ask((f"Who will {task}?", f"Whose job is it to {task}?", f"Who is going to {task}?", f"Who was asked to {task}?"), other, part)
    if r.chance(0.4):
        part = d.paragraph(f"{boss}{r.pick((' sends greetings to you and your family.', ' asks me to give you kind regards.', ' would like to see you again soon.'))}")
        d.ask(("Who sends greetings?", "Who else sends regards?", "Whose regards are passed on?"), boss, part) if "would" not in d.blocks[-1].texts[0] else d.ask(("Who would like to see the reader again?", "Who wants to meet the reader?"), boss, part)
    d.lines(r.pick(CLOSINGS))
    if r.chance(0.6):
        signed = [d.written(r.pick((sender, sender.split()[0] + " " + sender.split()[1][0] + ".", sender)))]
        printed = d.lines(sender, *((post,) if r.chance(0.7) else ()))
    else:
        signed, printed = [], d.lines(sender, *((post,) if r.chance(0.7) else ()))
    d.ask(("Who wrote the letter?", "Who signed the letter?", "Who is it from?", "Who is the sender?", "Which person sent this?", "Who is the author of the letter?"), sender, printed[0], signed)
    if len(printed) > 1:
        d.ask((f"What is the position of {sender}?", f"What does {sender} do?", "What post does the writer hold?", "In what role does the sender write?", f"Who is {sender}?"), post, printed[1])
        d.ask((f"Who is the {post}?", f"What is the name of the {post}?", f"Which person is {post}?"), sender, printed)
    d.about(f"A letter from {sender} to {reader}: {news[0]}.", printed[0], to)
    if r.chance(0.3):
        copied = d.line(f"cc {boss}", small=True)
        d.ask(("Who gets a copy?", "To whom does a copy go?", "Who is in copy?"), boss, copied)


@kind("who_said", 5.0)
def who_said(d: Document) -> None:
    """Minutes, reports and interviews: who said what, who does what."""
    r, dates = d.r, Dates(d.r)
    names = people(r, 7)
    short = r.chance(0.3)
    d.heading(r.pick(("Notes of the meeting", "Residents' meeting", "Team meeting", f"Meeting of {dates.date()}", "Record of discussion", "Protocol", "Weekly round", "Committee")))
    if r.chance(0.6):
        part = d.paragraph(", ".join(names[:6]))
        d.ask(("Who was there?", "Who took part?", "Which people are listed at the top?", "Who attended?"), ", ".join(names[:6]), part)
        d.ask(("How many people took part?", "How many names are listed at the top?", "How many were there?"), "6", part)
    claims, jobs = r.sample(CLAIMS, 6), r.sample(JOBS, 6)
    style = r.randint(0, 2)
    for i in range(r.randint(3, 6)):
        who = names[i]
        shown = who.split()[0] if short else who
        claim, job = claims[i], jobs[i]
        verb, question = r.pick(SAID)
        sort = r.randint(0, 3)
        if style == 0 and sort < 3:  # a play of turns
            part = d.paragraph(f"{shown}: {claim[0].upper()}{claim[1:]}.")
            asks = (f"Who said that {claim}?", f"Who thinks that {claim}?", f"Who holds that {claim}?", f"Whose words are \"{claim}\"?", f"Who remarks that {claim}?")
            d.ask(asks, shown, part)
            d.ask((f"What did {shown} say?", f"What does {shown} think?", f"What are the words of {shown}?"), claim, part)
        elif sort == 0:
            part = d.paragraph(f"{shown} {verb.format(x=claim)}. {v.sentence(r)}")
            d.ask((question.format(x=claim), f"Who spoke about this: {claim}?", f"From whom does it come that {claim}?"), shown, part)
        elif sort == 1:
            part = d.paragraph(r.pick((f"{v.sentence(r)} {shown} agreed to {job}.", f"{shown} is going to {job}.", f"It falls to {shown} to {job}.", f"{job[0].upper()}{job[1:]}: {shown}.", f"{job[0].upper()}{job[1:]} ({shown}).")))
            d.ask((f"Who will {job}?", f"Who is going to {job}?", f"Whose task is it to {job}?", f"Who agreed to {job}?", f"Who has to {job}?"), shown, part)
            d.ask((f"What will {shown} do?", f"What is the job of {shown}?", f"What has {shown} agreed to?"), job, part)
        elif sort == 2:
            other = names[6] if r.chance(0.5) else names[(i + 1) % 6]
            told = other.split()[0] if short else other
            part = d.paragraph(f"{shown} thanked {told} for the {r.pick(('help', 'good work', 'flowers', 'figures', 'organisation'))}.")
            d.ask((f"Who thanked {told}?", f"From whom did {told} get thanks?", f"By whom was {told} thanked?"), shown, part)
            d.ask((f"Whom did {shown} thank?", f"To whom did {shown} say thanks?", f"Who was thanked by {shown}?"), told, part)
        else:
            part = d.paragraph(f"\u201c{claim[0].upper()}{claim[1:]},\u201d {r.pick(('said', 'remarked', 'replied', 'added', 'warned'))} {shown}.")
            d.ask((f"Who said: {claim}?", f"Who is quoted with \"{claim}\"?", f"Who said that {claim}?", f"Whose opinion is it that {claim}?"), shown, part)
    if r.chance(0.5):
        part = d.line(r.pick((names[5], f"{names[5]}, {dates.date()}", f"Signed: {names[5]}")), r.pick("lr"))
        d.ask(("Who signed the notes?", "Who wrote this down?", "Whose name stands at the end?", "Who is the author of the notes?"), names[5], part)


@kind("name_badge", 3.0)
def name_badge(d: Document) -> None:
    """Badges, door plates, place cards, desk signs: a name among other words."""
    r = d.r
    name = person(r) if r.chance(0.75) else first_name(r)
    title = r.pick(("Dr. ", "Prof. ", "")) if " " in name and r.chance(0.3) else ""
    firm, role, where, pronoun = v.company(r), r.pick(ROLES), town(r), r.pick(("she/her", "he/him", "they/them"))
    room = f"{r.randint(1, 6)}.{r.randint(10, 60)}"
    lines = [("name", title + name), *r.sample([("firm", firm), ("role", role), ("town", where), ("room", room), ("hello", r.pick(("Hello, my name is", "HELLO my name is", "Welcome", "Guest of honour"))), ("pronoun", pronoun)], r.randint(1, 4))]
    if r.chance(0.6):
        r.shuffle(lines)
    lines.sort(key=lambda pair: pair[0] != "hello") if r.chance(0.8) else None
    align, parts = r.pick("lcc"), {}
    box = d.framed() if r.chance(0.5) else d
    by_hand = r.chance(0.3)
    for key, text in lines:
        if key == "name" and by_hand:
            parts[key] = box.written(text)
        elif key == "name":
            parts[key] = box.heading(text.upper() if r.chance(0.2) else text, 1, align)
        else:
            parts[key] = box.line(text.upper() if key == "role" and r.chance(0.3) else text, align, bold=r.chance(0.3))
        if r.chance(0.3):
            box.gap()
    d.ask(("Who wears this?", "What is the name?", "Whose badge is it?", "What is the person called?", "Which name is shown?", "Who is it?", "Name?", "To whom does it belong?"), _text(box, parts["name"]), parts["name"])
    for key, answer, asks in (
        ("firm", firm, ("Which company does the person belong to?", "Where does the person work?", "What firm is named?", "For whom does he or she work?")), ("role", role, ("What is the person's role?", "In which role is the person there?", "As what is the person there?", "What function is shown?")),
        ("town", where, ("Which town is the person from?", "Where does the person come from?", "Which city is on the badge?", "What place is named?")), ("room", room, ("Which room is it?", "What is the room number?", "Room?", "In which room does the person sit?")),
        ("pronoun", pronoun, ("Which pronouns does the person use?", "What are the pronouns?", "How should one refer to the person?")),
    ):
        if key in parts:
            d.ask(asks, answer.upper() if key == "role" and _text(box, parts[key]).isupper() else answer, parts[key])
        elif r.chance(0.3):
            d.absent(*asks)
    if " " in name:
        d.ask(("What is the first name?", "First name?", "What is the given name?"), _text(box, parts["name"]).removeprefix(title).removeprefix(title.upper()).split()[0], parts["name"])
        d.ask(("What is the last name?", "Surname?", "What is the family name?"), _text(box, parts["name"]).split()[-1], parts["name"])


def _text(d: Document, part: int) -> str:
    """The text of a part of one text."""
    return next(block.texts[block.parts.index(part)] for block in d.blocks if part in block.parts)


@kind("group_chat", 1.5)
def group_chat(d: Document) -> None:
    """Messages of several people, the name before, above or after each."""
    r, dates = d.r, Dates(d.r)
    names = [n.split()[0] if r.chance(0.7) else n for n in people(r, r.randint(2, 4))]
    style, clock = r.randint(0, 3), r.randint(480, 1200)
    group = r.pick(("Neighbours", "Family", "Football Tuesday", "Office", "Class 4b", "Choir", "Book club", "Weekend trip"))
    if r.chance(0.7):
        top = d.heading(group)
        d.ask(("What is the group called?", "Which group is it?", "What is the name of the chat?"), group, top)
    texts = r.sample(SAYINGS, r.randint(3, 7))
    said: dict[str, list[str]] = {}
    for n, text in enumerate(texts):
        who, at = (r.pick(names) if n >= len(names) else names[n]), dates.time(clock)
        clock += r.randint(1, 25)
        said.setdefault(who, []).append(text)
        if style == 0:
            parts = [d.paragraph(f"{who}: {text}")]
        elif style == 1:
            parts = [d.line(f"{who}  {at}", small=True, bold=True), d.paragraph(text)]
        elif style == 2:
            parts = [d.paragraph(f"[{at}] {who}: {text}")]
        else:
            parts = [d.paragraph(text), d.line(f"{who}, {at}", r.pick("lr"), small=True)]
        quoted = text.rstrip(".!?")
        d.ask((f"Who wrote \"{quoted}\"?", f"Whose message is \"{quoted}\"?", f"From whom is: {text}", f"Which person sent \"{quoted}\"?", f"Who said {quoted}?"), who, parts)
        if style:
            d.ask((f"At what time was \"{quoted}\" written?", f"When did {who} write \"{quoted}\"?", f"Time of the message \"{quoted}\"?"), at, parts)
        if n == 0:
            d.ask(("Who wrote first?", "Who started the conversation?", "From whom is the first message?"), who, parts)
        elif n == 1:
            d.ask(("Who answered first?", "Who wrote the second message?", "From whom is the second message?"), who, parts)
    for who, own in said.items():
        if len(own) == 1:
            d.ask((f"What did {who} write?", f"What does {who} say?", f"What is the message of {who}?"), own[0], [b.parts[0] for b in d.blocks if b.parts])
    d.ask(("How many people write?", "How many people take part in the chat?", "How many different names are there?"), str(len(said)), [p for b in d.blocks for p in b.parts])
