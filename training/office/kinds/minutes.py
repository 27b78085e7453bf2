"""Minutes of meetings: who came, what was decided, who does what by when."""

# fmt: off

from training.office.document import Document
from training.office.registry import kind
from training.office.values import Dates, Money, people
from training.pages import values as v

TASKS = (
    "ask for three new offers", "book the hall", "send the plan to the architect", "check the fire alarm", "order new chairs", "update the website", "write to the council",
    "count the stock", "find a caterer", "prepare the budget", "train the new staff", "repair the printer", "call the insurance company", "translate the brochure",
)
TOPICS = (
    "the summer fair", "the new software", "parking spaces", "the annual budget", "the office move", "the winter timetable", "staff training", "energy costs", "the website",
    "the anniversary", "the cleaning contract", "holiday cover", "safety at work",
)
GROUPS = ("Board", "Works Council", "Project Team", "Parents' Association", "Choir Committee", "Management", "Housing Association", "Sports Club", "Steering Group")


@kind("minutes", 3.0)
def minutes(d: Document) -> None:
    r, dates, money = d.r, Dates(d.r), Money(d.r)
    group, names = r.pick(GROUPS), people(r, 9)
    day, start = dates.date(), r.randint(8, 18) * 60 + r.pick((0, 15, 30))
    end = start + r.randint(6, 30) * 5
    place = r.pick(("Room ", "Meeting Room ", "Hall ", "Office ")) + str(r.randint(1, 40)) if r.chance(0.6) else f"{v.name_word(r)} {r.pick(v.VENUES)}"
    d.heading(r.pick((f"Minutes of the {group}", f"{group}: Minutes", "MINUTES", f"Meeting of the {group}", "Minutes of Meeting")))
    chair, clerk, present, excused = names[0], names[1], names[:r.randint(3, 6)], names[6 : 6 + r.randint(0, 2)]
    if r.chance(0.5):
        entries = [("Date", day), (r.pick(("Time", "Start")), dates.time(start)), (r.pick(("Place", "Location", "Venue")), place), (r.pick(("Chair", "Chairperson")), chair), (r.pick(("Minutes", "Taken by", "Secretary")), clerk)]
        a, b, c, e, f = d.fields(entries)
    else:
        part = d.paragraph(r.pick((
            f"The meeting took place on {day} in {place}. It was opened at {dates.time(start)} by {chair}, who took the chair. {clerk} kept the minutes.",
            f"{chair} opened the meeting in {place} on {day} at {dates.time(start)}. The minutes were taken by {clerk}.",
        )))
        a = b = c = e = f = part
    d.ask(("When was the meeting?", "On what date did they meet?", "When did the meeting take place?", "On which day was this meeting held?"), day, a)
    d.ask(("At what time did the meeting begin?", "When did it start, at what time?", "What time was the meeting opened?", "At what hour did they start?"), dates.time(start), b)
    d.ask(("Where did they meet?", "Where was the meeting?", "In which place was the meeting held?", "Where did the meeting take place?"), place, c)
    d.ask(("Who chaired the meeting?", "Who led the meeting?", "Who was in the chair?", "Who presided?"), chair, e)
    d.ask(("Who took the minutes?", "Who wrote the minutes?", "Who kept the record?", "Who was the minute taker?"), clerk, f)
    d.about(f"Minutes of a meeting on {day}, chaired by {chair}.", a, e)
    came = d.paragraph(f"{r.pick(('Present', 'In attendance', 'Attendees'))}: {', '.join(present)}")
    d.ask(("How many people were present?", "How many people attended?", "How many people came to the meeting?", "What was the number of people present?"), str(len(present)), came)
    if excused:
        gone = d.paragraph(f"{r.pick(('Apologies', 'Excused', 'Absent'))}: {' and '.join(excused)}")
        d.ask(("Who was excused?", "Who was missing?", "Who did not come?", "Who sent apologies?"), " and ".join(excused), gone)
    else:
        d.absent("Who was excused?", "Who did not come to the meeting?", "Who sent apologies?")
    tasks, topics = r.sample(TASKS, 6), r.sample(TOPICS, 6)
    doing = people(r, 6)
    for i in range(r.randint(2, 5)):
        d.heading(f"{i + 1}. {topics[i][0].upper()}{topics[i][1:]}" if r.chance(0.7) else topics[i][0].upper() + topics[i][1:], level=2)
        style = r.randint(0, 3)
        who, task, by = doing[i], tasks[i], dates.date()
        if style == 0:
            part = d.paragraph(r.pick((f"{who} will {task} by {by}.", f"It was agreed that {who} will {task}. Deadline: {by}.", f"{v.sentence(r)} {who} offered to {task} before {by}.")))
            d.ask((f"Who will {task}?", f"Who has to {task}?", f"Whose task is it to {task}?", f"Who was asked to {task}?"), who, part)
            d.ask((f"By when will {who} {task}?", f"Until when does {who} have to {task}?", f"What is the deadline to {task}?", f"When must {who} be done?"), by, part)
            d.ask((f"What will {who} do?", f"What is the task of {who}?", f"What did {who} agree to do?"), task, part)
        elif style == 1:
            yes, no = r.randint(4, 30), r.randint(0, 9)
            part = d.paragraph(f"The proposal about {topics[i]} was accepted with {yes} votes to {no}.")
            d.ask((f"How many voted for the proposal about {topics[i]}?", f"How many votes were in favour of {topics[i]}?", f"With how many votes was {topics[i]} accepted?"), str(yes), part)
            d.ask((f"How many votes were against the proposal about {topics[i]}?", f"How many people voted against {topics[i]}?"), str(no), part)
        elif style == 2:
            cost = money(money.round(r, 100, 90000))
            part = d.paragraph(f"{who} reported on {topics[i]}. The costs are expected to be {cost}. {v.sentence(r)}")
            d.ask((f"How much will {topics[i]} cost?", f"What are the expected costs of {topics[i]}?", f"How high are the costs for {topics[i]}?"), cost, part)
            d.ask((f"Who reported on {topics[i]}?", f"Who spoke about {topics[i]}?", f"Who gave the report about {topics[i]}?", f"Who informed the others about {topics[i]}?"), who, part)
        else:
            part = d.paragraph(f"The decision about {topics[i]} was put off to the next meeting because {r.pick(('figures are missing', 'two members were away', 'the plan is not ready', 'time was short'))}.")
            d.ask((f"What was decided about {topics[i]}?", f"What happened with {topics[i]}?"), "the decision was put off to the next meeting", part)
    if r.chance(0.5):
        nxt = dates.date()
        part = d.paragraph(r.pick((f"The next meeting will be held on {nxt}.", f"Next meeting: {nxt}", f"The group will meet again on {nxt}.")))
        d.ask(("When is the next meeting?", "When will they meet again?", "What is the date of the next meeting?", "On which day is the following meeting?"), nxt, part)
    else:
        d.absent("When is the next meeting?", "When will they meet again?")
    if r.chance(0.5):
        part = d.paragraph(r.pick((f"The meeting was closed at {dates.time(end)}.", f"End of the meeting: {dates.time(end)}", f"{chair} closed the meeting at {dates.time(end)} and thanked everybody.")))
        d.ask(("When did the meeting end?", "At what time was the meeting closed?", "When was it over?", "What time did they finish?"), dates.time(end), part)
    else:
        d.absent("When did the meeting end?", "At what time was it over?")
