"""E-mails as printed or shown by a mail program."""

# fmt: off

from training.office.document import Document
from training.office.registry import kind
from training.office.values import Dates, Money, people
from training.pages import values as v

SUBJECTS = ("Holiday plans", "Broken projector", "Invoice missing", "Lunch on Friday", "New printer", "Trip to the fair", "Party for the interns", "Server maintenance", "Your parcel", "Key for the archive")


@kind("email", 4.5)
def email(d: Document) -> None:
    r, dates, money = d.r, Dates(d.r), Money(d.r)
    sender, reader, copied, other = people(r, 4)
    mail = lambda name: f"{name.split()[0].lower()}@{v.name_word(r).lower()}.example".encode("ascii", "ignore").decode()  # noqa: E731
    subject, day, time = r.pick(SUBJECTS), dates.date(), dates.time()
    if r.chance(0.4):
        d.strip(*r.sample(("Reply", "Reply all", "Forward", "Delete", "Archive", "Print", "Move", "Flag"), r.randint(3, 5)), dark=r.chance(0.5))
    shown = r.chance(0.5)
    address = mail(sender)
    if r.chance(0.3):
        top = d.heading(subject)
        fields = d.fields([("From", f"{sender} <{address}>" if shown else sender), ("To", reader), ("Date", f"{day} {time}")], r.pick(("colon", "tab")))
        part_subject = top
    else:
        entries = [("From", f"{sender} <{address}>" if shown else sender), ("To", reader), (r.pick(("Sent", "Date")), f"{day} {time}"), ("Subject", subject)]
        fields = d.fields(entries, r.pick(("colon", "colon", "tab", None)))
        part_subject = fields[3]
    d.ask(("Who sent this email?", "Who is the email from?", "Who wrote the message?", "Which person sent the mail?"), sender, fields[0])
    d.ask(("Who received the email?", "Who is the email to?", "To whom was the mail sent?", "Who is the addressee of the mail?"), reader, fields[1])
    d.ask(("When was the email sent?", "What is the date of the email?", "On which day was the message written?"), day, fields[2])
    d.ask(("At what time was the email sent?", "What time was the mail written?", "At which hour did the mail go out?"), time, fields[2])
    d.ask(("What is the subject of the email?", "What is the subject line?", "What does the subject say?", "Under which subject was it sent?"), subject, part_subject)
    d.about(f"{sender} writes to {reader} about: {subject}.", fields[0], fields[1], part_subject)
    if shown:
        d.ask(("What is the sender's email address?", f"What is the address of {sender}?", f"How can I write to {sender}?"), address, fields[0])
    if r.chance(0.4):
        part = d.line(f"Cc: {copied}")
        d.ask(("Who gets a copy?", "Who is in copy?", "Who else received the email?", "Who was put in cc?"), copied, part)
    else:
        d.absent("Who is in copy?", "Who gets a copy of the email?")
    d.rule()
    d.paragraph(r.pick((f"Hi {reader.split()[0]},", f"Dear {reader.split()[0]},", f"Hello {reader.split()[0]},", f"Good morning {reader.split()[0]},")))
    when, where, cost, count = dates.date(), v.city(r), money(money.round(r, 5, 3000)), r.randint(3, 60)
    bodies = (
        (f"just a quick note that {other} will be away until {when}.", [((f"Until when is {other} away?", f"When does {other} come back?", f"How long will {other} be away?"), when), (("Who will be away?", "Who is not there for a while?", "Which colleague is absent?"), other)]),
        (f"we still need {count} chairs for the event in {where}.", [(("How many chairs are needed?", "How many chairs are missing?", "What number of chairs do they need?"), str(count)), (("Where is the event?", "In which city is the event?", "Where does the event take place?"), where)]),
        (f"the repair will cost {cost}, which is more than we thought.", [(("How much will the repair cost?", "What does the repair cost?", "What is the price of the repair?", "How expensive is the repair?"), cost)]),
        (f"could you ask {other} to send me the figures before {when}?", [(("Who should send the figures?", "Who has the figures?", "From whom are the figures expected?"), other), (("By when are the figures needed?", "Until when should the figures be sent?", "Before which date are the figures needed?"), when)]),
        (f"the train to {where} leaves from platform {count}.", [((f"Which platform does the train to {where} leave from?", "What is the platform?", f"Where does the train to {where} leave?"), f"platform {count}")]),
        ("the lift is out of order again, so please use the stairs.", [(("Why should they use the stairs?", "Why do people have to take the stairs?"), "the lift is out of order"), (("What is out of order?", "What does not work?"), "the lift")]),
        (f"the code for the side door is now {r.randint(1000, 9999)}.", []),
    )
    for text, asks in r.sample(bodies, r.randint(1, 4)):
        part = d.paragraph(text[0].upper() + text[1:])
        for questions, answer in asks:
            d.ask(questions, answer, part)
    d.lines(r.pick(("Best", "Thanks,", "Cheers,", "Kind regards,", "See you soon,")), sender.split()[0] if r.chance(0.5) else sender)
    if r.chance(0.4):
        name = f"{r.pick(('plan', 'figures', 'photo', 'list', 'offer'))}.{r.pick(('pdf', 'xlsx', 'jpg', 'docx'))}"
        part = d.line(r.pick(("Attachment: ", "1 attachment: ", "Attached: ")) + name, small=True)
        d.ask(("What is attached?", "Which file is attached?", "What is the name of the attachment?", "What file came with the mail?"), name, part)
    else:
        d.absent("Which file is attached?", "What is attached to the email?")
