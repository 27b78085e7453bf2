"""CVs, chats and conversations by email: who said what, in which order."""

# fmt: off

from training.office.document import Document
from training.office.registry import kind
from training.office.sentences import EVENTS, THINGS
from training.office.values import Dates, Money, people, person, town
from training.pages import values as v

SKILLS = ("spreadsheets", "welding", "bookkeeping", "photo editing", "first aid", "Python", "SQL", "public speaking", "forklift licence", "driving licence B", "touch typing", "negotiation", "event planning", "gardening")
HOBBIES = ("chess", "sailing", "choir", "hiking", "pottery", "cycling", "baking", "bird watching", "football", "knitting")
DEGREES = ("BSc Physics", "MA History", "Diploma in Nursing", "BA Economics", "PhD Chemistry", "Master of Law", "Apprenticeship as a joiner", "BEng Civil Engineering", "MSc Statistics", "A levels")


@kind("cv", 2.0)
def cv(d: Document) -> None:
    r = d.r
    name, profession = person(r), r.pick(("Nurse", "Civil Engineer", "Accountant", "Graphic Designer", "Translator", "Electrician", "Data Analyst", "Teacher", "Cook", "Office Manager", "Gardener"))
    top = d.heading(name, align=r.pick("lc"))
    d.ask(("Whose CV is it?", "Who is applying?", "What is the name of the applicant?", "Who is the person?", "Who wrote this CV?"), name, top)
    if r.chance(0.7):
        part = d.line(profession, align="l")
        d.ask(("What is the profession?", "What does the person do?", "Which job title stands below the name?"), profession, part)
    phone, mail, city = v.phone(r), v.email(r), town(r)
    if r.chance(0.5):
        contact = d.line(r.pick((" | ", "   ", ", ")).join((city, phone, mail)), small=True)
        where = [contact] * 3
    else:
        where = d.fields([("Town", city), (r.pick(("Phone", "Mobile")), phone), ("Email", mail)])
    d.ask(("In which town does the person live?", "Where does the applicant live?", "What is the place of residence?"), city, where[0])
    d.ask(("What is the phone number?", "How can I call the applicant?", "Which phone number is given?"), phone, where[1])
    d.ask(("What is the email address?", "Where can I write to the applicant?", "Which email is given?"), mail, where[2])
    year = r.randint(2019, 2030)
    sections = [_work, _study, _skills]
    if r.chance(0.3):
        r.shuffle(sections)
    for section in sections:
        year = section(d, year)
    hobby = r.sample(HOBBIES, 2)
    if r.chance(0.5):
        part = d.paragraph(f"{r.pick(('Interests', 'Hobbies'))}: {', '.join(hobby)}")
        d.ask(("What are the hobbies?", "What does the person do in the free time?", "Which interests are named?"), ", ".join(hobby), part)
    else:
        d.absent("What are the hobbies?", "What does the person do in the free time?")
    d.absent("What salary is expected?", "How much does the person want to earn?")


def _work(d: Document, year: int) -> int:
    r = d.r
    d.heading(r.pick(("Experience", "Employment", "Work experience", "Professional background")), level=2)
    n, firms, jobs, parts, spans = r.randint(2, 4), [], r.sample(v.jobs(), 4), [], []
    for i in range(n):
        firm, start = v.company(r), year - r.randint(1, 6)
        end = "today" if i == 0 and r.chance(0.5) else str(year)
        span = f"{start} {r.pick(('-', chr(0x2013)))} {end}"
        text = r.pick((f"{span}  {jobs[i]}, {firm}", f"{jobs[i]} at {firm} ({span})", f"{firm}: {jobs[i]}, {span}"))
        parts.append(d.paragraph(text))
        firms.append(firm)
        spans.append(span)
        year = start
    for firm, job, span, part in zip(firms, jobs, spans, parts, strict=False):
        d.ask((f"What was the job at {firm}?", f"As what did the person work at {firm}?", f"Which position was held at {firm}?", f"What did the person do at {firm}?"), job, part)
        d.ask((f"Where did the person work as {job.lower()}?", f"At which company was the person employed as {job.lower()}?", f"Who employed the person as {job.lower()}?"), firm, part)
        d.ask((f"When did the person work at {firm}?", f"In which years was the person at {firm}?", f"From when to when was the job at {firm}?"), span, part)
    d.ask(("What was the latest job?", "Where does the person work now or last?", "What is the most recent employer?"), firms[0], parts)
    d.ask(("How many jobs are listed?", "How many employers are named?", "How many positions has the person had?"), str(n), parts)
    return year


def _study(d: Document, year: int) -> int:
    r = d.r
    d.heading(r.pick(("Education", "Training", "Qualifications")), level=2)
    for degree in r.sample(DEGREES, r.randint(1, 2)):
        year -= r.randint(1, 4)
        school = f"{r.pick(('University of ', 'College of '))}{town(r)}"
        part = d.paragraph(r.pick((f"{year}  {degree}, {school}", f"{degree}, {school}, {year}", f"{school}: {degree} ({year})")))
        d.ask((f"Where was the {degree} earned?", f"At which school was the {degree} taken?", f"Which place gave the {degree}?"), school, part)
        d.ask((f"When was the {degree} earned?", f"In which year was the {degree} finished?", f"What year is the {degree} from?"), str(year), part)
        d.ask((f"What was studied at the {school}?", f"Which degree is from the {school}?", f"What did the person earn at the {school}?"), degree, part)
    return year


def _skills(d: Document, year: int) -> int:
    r = d.r
    d.heading(r.pick(("Skills", "Knowledge", "Languages and skills")), level=2)
    skills, languages = r.sample(SKILLS, r.randint(2, 5)), r.sample(v.LANGUAGES, 2)
    levels = [r.pick(("fluent", "native", "basic", "good", "B2", "C1")) for _ in languages]
    part = d.items(skills, r.pick(("\u2022", "-"))) if r.chance(0.5) else [d.paragraph(", ".join(skills))]
    d.ask(("Which skills are listed?", "What can the person do?", "What skills does the applicant have?"), ", ".join(skills), part)
    part = d.paragraph("Languages: " + ", ".join(f"{a} ({b})" for a, b in zip(languages, levels, strict=True)))
    for language, level in zip(languages, levels, strict=True):
        d.ask((f"How well does the person speak {language}?", f"What is the level of {language}?", f"How good is the {language}?"), level, part)
    d.ask(("Which languages does the person speak?", "What languages are listed?", "How many and which languages are there?"), " and ".join(languages), part)
    return year


# message, (question wordings, answer); {a} writes, {b} reads
MESSAGES = (
    ("are you coming to the {event} on {day}?", (("What is {a} asking about?", "Which event does {a} ask about?", "What does {a} want to know about?"), "the {event}")),
    ("I'll be there at {time}", (("When will {a} be there?", "At what time does {a} arrive?", "What time did {a} promise?"), "{time}")),
    ("can you bring the {thing} keys?", (("What should be brought?", "What should {b} bring?", "What does {a} want {b} to bring?"), "the {thing} keys")),
    ("I paid {money} for everyone", (("How much did {a} pay?", "What did {a} spend?", "How much money did {a} pay for everyone?"), "{money}")),
    ("sorry, running {n} minutes late", (("How late is {a}?", "By how many minutes is {a} late?", "How many minutes late will {a} be?"), "{n} minutes")),
    ("let's meet at {place}", (("Where does {a} want to meet?", "What meeting place does {a} suggest?", "Where do they meet?"), "{place}")),
    ("the {thing} is broken again", (("What is broken?", "What does not work, says {a}?", "What does {a} report?"), "the {thing}")),
    ("I have the day off on {day2}", (("When does {a} have a day off?", "On which day is {a} off?", "Which day is {a} not working?"), "{day2}")),
    ("ask {c}, she knows the password", (("Who knows the password?", "Whom should {b} ask?", "Who should be asked for the password?"), "{c}")),
    ("we need {n2} chairs, not more", (("How many chairs are needed?", "What number of chairs does {a} name?"), "{n2}")),
    ("I can't, my train was cancelled", (("Why can {a} not come?", "What is the reason {a} gives?", "What happened to {a}?"), "the train was cancelled")),
    ("happy birthday, {b}!", (("Whose birthday is it?", "Who has a birthday?", "To whom does {a} wish a happy birthday?"), "{b}")),
)


@kind("chat", 2.0)
def chat(d: Document) -> None:
    r, dates, money = d.r, Dates(d.r), Money(d.r)
    names = [name.split()[0] for name in people(r, r.pick((2, 2, 3)))]
    group = r.pick((f"{names[1]}", f"{v.name_word(r)} group", "Team", "Neighbours", "Family"))
    d.strip("<", group, dark=r.chance(0.5))
    start, gap = r.randint(7 * 60, 21 * 60), r.randint(1, 9)
    dates.clock = "24"
    days = r.sample(v.WEEKDAYS, 2)
    aligned, stamped = r.chance(0.6), r.chance(0.8)
    chosen = r.sample(MESSAGES, r.randint(3, 8))
    blanks = {"event": r.pick(EVENTS), "day": days[0], "day2": days[1], "time": dates.time(), "thing": r.pick(THINGS), "money": money(money.round(r, 3, 300)), "n": str(r.randint(2, 19) * 5), "n2": str(r.randint(3, 60)), "place": f"{v.name_word(r)} {r.pick(v.VENUES)}", "c": person(r).split()[0]}
    said, authors = [], []
    for i, (text, (ways, answer)) in enumerate(chosen):
        a = r.pick(names)
        b = r.pick([n for n in names if n != a])
        fill = lambda t, a=a, b=b: t.format(a=a, b=b, **blanks)  # noqa: E731
        shown = fill(text)
        shown = shown[0].upper() + shown[1:] if r.chance(0.5) else shown
        time = dates.time(start + gap * i)
        side = "r" if aligned and a == names[0] else "l"
        if r.chance(0.5) or not aligned:
            lead = d.line(f"{a}{f', {time}' if stamped else ''}", side, small=True, bold=r.chance(0.5))
            part = d.line(shown, side)
            d.ask((f'Who wrote "{shown}"?', f'Who said "{shown}"?', f'From whom is the message "{shown}"?'), a, lead, part)
            needs = (lead, part)
        else:
            part = d.line(f"{a}: {shown}{f'  {time}' if stamped else ''}", side)
            needs = (part,)
        if stamped:
            d.ask((f'At what time was "{shown}" written?', f'When was "{shown}" sent?'), time, *needs)
        d.ask(tuple(map(fill, ways)), fill(answer), *needs)
        said.append(needs)
        authors.append(a)
    d.ask(("How many messages are shown?", "How many messages are there?", "What is the number of messages?"), str(len(said)), *(p for needs in said for p in needs))
    d.ask(("Who wrote the last message?", "From whom is the last message?", "Who wrote last?"), authors[-1], *(p for needs in said for p in needs))
    d.absent(f"What does {person(r).split()[0]} write?", "Who left the group?")
    d.absent("What is the phone number?", "Which number should be called?")


@kind("email_thread", 3.0)
def thread(d: Document) -> None:
    """A reply above the messages that it quotes."""
    r, dates, money = d.r, Dates(d.r), Money(d.r)
    a, b, c = people(r, 3)
    subject, thing, event = "", r.pick(THINGS), r.pick(EVENTS)
    subject = r.pick((f"Repair of the {thing}", f"Costs of the {event}", f"Date for the {event}", "Our meeting"))
    first, second, price, day, limit = dates.date(), dates.date(), money(money.round(r, 20, 4000)), r.pick(v.WEEKDAYS), dates.date()
    head = d.fields([("From", a), ("To", b), ("Subject", f"Re: {subject}")], r.pick(("colon", "tab"))) if r.chance(0.7) else [d.line(f"{a} to {b}")] * 2 + [d.heading(f"Re: {subject}")]
    d.ask(("Who wrote the latest message?", "Who answers?", "From whom is the top message?", "Who sent the reply?"), a, head[0])
    d.ask(("Who gets the reply?", "To whom is the answer sent?", "Who receives the latest message?"), b, head[1])
    d.ask(("What is the subject?", "What is the conversation about?", "Which subject line does it have?"), subject, head[2])
    d.paragraph(f"{r.pick(('Hi', 'Dear', 'Hello'))} {b.split()[0]},")
    answer = d.paragraph(r.pick((f"thanks for asking. {c} will take care of it, and we should be done by {limit}.", f"yes, that works. Please talk to {c}; the last day is {limit}.")))
    d.ask(("Who will take care of it?", "Who is in charge of it?", "Whom should one talk to?", "Who is named in the reply?"), c, answer)
    d.ask(("By when should it be done?", "What is the last day?", "Which date is in the reply?", "Until when must it be done?"), limit, answer)
    d.line(a.split()[0])
    d.gap()
    lead = d.paragraph(r.pick((f"On {second}, {b} wrote:", f"{b} wrote on {second}:", f"----- {b}, {second} -----")))
    mark = r.pick(("> ", "> ", "| ", ""))
    asked = d.paragraph(f"{mark}the {thing} costs {price}. Can we still pay that before {day}?")
    d.ask((f"How much does the {thing} cost?", f"What is the price of the {thing}?", f"What did {b} say the {thing} costs?"), price, asked)
    d.ask(("When was the quoted message written?", f"When did {b} write?", f"On which day did {b} write?"), second, lead)
    d.ask(("Before which day should it be paid?", f"Which weekday does {b} name?"), day, asked)
    d.ask(("Who asked the question?", f"Who told the price of the {thing}?", "Whose message is quoted?"), b, lead, asked)
    if r.chance(0.5):
        lead = d.paragraph(f"{mark}{r.pick((f'On {first}, {a} wrote:', f'{a} wrote on {first}:'))}")
        count = r.randint(20, 400)
        part = d.paragraph(f"{mark}{mark}{count} people have signed up for the {event} so far.")
        d.ask(("How many people have signed up?", f"How many are coming to the {event}?", "What number of people signed up?"), str(count), part)
        d.ask(("When did the conversation begin?", "What is the date of the first message?", "When was the oldest message written?"), first, lead)
    else:
        d.absent("How many people have signed up?", f"How many are coming to the {event}?")
    d.absent(f"What does {person(r)} think?", "Who is in copy?")
