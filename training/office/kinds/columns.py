"""Newspaper pages and newsletters in columns, and pages of plain prose."""

# fmt: off

from training.office.document import Document
from training.office.prose import prose
from training.office.registry import kind
from training.office.values import Dates, Money, people, town
from training.pages import values as v


@kind("news", 3.0)
def news(d: Document) -> None:
    r, dates = d.r, Dates(d.r)
    name = f"{r.pick(('The ', ''))}{town(r)} {r.pick(('Herald', 'Times', 'Gazette', 'Post', 'Courier', 'Observer', 'Newsletter', 'Weekly'))}"
    day = dates.date()
    top = d.heading(name, align="c")
    under = d.line(f"{day}   {r.pick(('No. ', 'Issue '))}{r.randint(2, 400)}", align="c", small=True)
    d.ask(("What is the newspaper called?", "What is the name of the paper?", "Which newspaper is this?", "What is this paper's name?"), name, top)
    d.ask(("What is the date of the newspaper?", "When did this issue appear?", "From which day is the paper?"), day, under)
    d.rule()
    count = 2 if d.shape[1] < 600 or r.chance(0.6) else 3
    stories = r.sample((_fire, _match, _shop, _prize, _road, _weather), r.randint(count, 5))
    columns = d.columns(count)
    for i, story in enumerate(stories):
        story(columns[i % count], dates, Money(r))
        if r.chance(0.3):
            columns[i % count].paragraph(prose(r, 260))
    for story, questions in ((_fire, ("What burned down?", "Where did it burn?")), (_match, ("Who won the match?", "How did the match end?")), (_weather, ("What will the weather be like?", "How warm will it be?"))):
        if story not in stories:
            d.absent(*questions)


def _author(d: Document, headline: str) -> None:
    if d.r.chance(0.4):
        name = people(d.r, 1)[0]
        part = d.line(f"{d.r.pick(('By ', 'by ', ''))}{name}", small=True)
        d.ask((f'Who wrote "{headline}"?', f'Who is the author of "{headline}"?', f'By whom is the article "{headline}"?'), name, part)


def _fire(d: Document, dates: Dates, money: Money) -> None:
    r = d.r
    what, where, loss, crew = r.pick(("barn", "warehouse", "bakery", "sawmill", "garage")), town(r), money(r.randint(10, 900) * 100000), r.randint(12, 90)
    cause = r.pick(("a broken cable", "lightning", "a forgotten candle", "an overheated machine"))
    headline = r.pick((f"Fire destroys {what}", f"{what.title()} burns down", f"Night fire in {where}"))
    d.heading(headline, level=2)
    _author(d, headline)
    part = d.paragraph(f"A {what} in {where} burned down on {r.pick(v.WEEKDAYS)} night. {crew} firefighters fought the flames. The damage is put at {loss}. The fire was caused by {cause}.")
    d.ask(("What burned down?", "Which building was destroyed?", "What did the fire destroy?"), f"a {what}", part)
    d.ask(("How high is the damage of the fire?", "How much damage did the fire cause?", "What is the damage put at?"), loss, part)
    d.ask(("How many firefighters were there?", "How many firefighters fought the fire?", "What was the number of firefighters?"), str(crew), part)
    d.ask(("What caused the fire?", "Why did it burn?", "What was the cause of the fire?", "How did the fire start?"), cause, part)


def _match(d: Document, dates: Dates, money: Money) -> None:
    r = d.r
    home, away = v.name_word(r) + " FC", v.name_word(r) + " United"
    a, b, crowd, hero = r.randint(3, 7), r.randint(0, 2), r.randint(200, 60000), people(r, 1)[0]
    headline = r.pick((f"{home} beat {away}", f"Great win for {home}"))
    d.heading(headline, level=2)
    _author(d, headline)
    part = d.paragraph(f"{home} beat {away} {a}:{b} in front of {crowd:,} spectators. {hero} scored twice in the second half.")
    d.ask(("Who won the match?", "Which team won?", "Who was the winner of the match?"), home, part)
    d.ask(("How did the match end?", "What was the score?", "What was the result of the match?", "With what score did it end?"), f"{a}:{b}", part)
    d.ask(("How many spectators were there?", "How many people watched the match?", "What was the number of spectators?"), f"{crowd:,}", part)
    d.ask(("Who scored twice?", "Which player scored two goals?", "Who was the scorer?"), hero, part)
    d.ask(("Who lost the match?", "Which team lost?", "Who was beaten?"), away, part)


def _shop(d: Document, dates: Dates, money: Money) -> None:
    r = d.r
    owner, what, street, day = people(r, 1)[0], r.pick(("bookshop", "bakery", "bicycle shop", "flower shop", "tea house")), v.street(r), dates.date()
    headline = r.pick((f"New {what} opens", f"A {what} for the old town"))
    d.heading(headline, level=2)
    part = d.paragraph(f"{owner} will open a {what} at {street} on {day}. {r.randint(2, 30)} new jobs will be created.")
    d.ask((f"Who opens the {what}?", f"Who is the owner of the {what}?", f"To whom does the new {what} belong?"), owner, part)
    d.ask((f"When does the {what} open?", f"What is the opening date of the {what}?", f"On which day is the {what} opened?"), day, part)
    d.ask((f"Where is the {what}?", f"What is the address of the {what}?", f"At which address will the {what} be?"), street, part)


def _prize(d: Document, dates: Dates, money: Money) -> None:
    r = d.r
    who, prize, sum_, age = people(r, 1)[0], f"{v.name_word(r)} Prize", money(r.randint(5, 400) * 100000), r.randint(19, 90)
    d.heading(f"{prize} for {who.split()[-1]}", level=2)
    part = d.paragraph(f"The {prize} goes to {who}, {age}, for a book about {r.pick(('bees', 'rivers', 'clocks', 'the moon', 'old bridges'))}. It is worth {sum_}.")
    d.ask(("Who won the prize?", f"Who gets the {prize}?", f"To whom was the {prize} given?"), who, part)
    d.ask(("How much is the prize worth?", "How much money comes with the prize?", f"What is the {prize} worth?"), sum_, part)
    d.ask((f"How old is {who}?", f"What is the age of {who}?", "How old is the winner of the prize?"), str(age), part)


def _road(d: Document, dates: Dates, money: Money) -> None:
    r = d.r
    road, until = f"{v.name_word(r)} Road", dates.date()
    d.heading(r.pick(("Road works", f"{road} closed")), level=2)
    part = d.paragraph(f"{road} is closed to traffic until {until} while new water pipes are laid. Buses take the route through {v.name_word(r)} Street.")
    d.ask(("Which road is closed?", "What road is closed to traffic?", "Which street has road works?"), road, part)
    d.ask((f"Until when is {road} closed?", f"When does {road} open again?", "How long will the road be closed?"), until, part)
    d.ask((f"Why is {road} closed?", "What is the reason for the road works?", "Why are there road works?"), "new water pipes are laid", part)


def _weather(d: Document, dates: Dates, money: Money) -> None:
    r = d.r
    low, high, sky = r.randint(-9, 12), r.randint(13, 36), r.pick(("sunny", "cloudy with some rain", "windy", "foggy in the morning", "stormy"))
    d.heading("Weather", level=2)
    part = d.paragraph(f"Tomorrow will be {sky} with temperatures between {low} and {high} degrees.")
    d.ask(("What will the weather be like?", "How will the weather be tomorrow?", "What weather is expected?"), sky, part)
    d.ask(("How warm will it be tomorrow?", "What is the highest temperature?", "Up to how many degrees will it get?"), f"{high} degrees", part)


@kind("prose", 2.5)
def page_of_prose(d: Document) -> None:
    r = d.r
    if r.chance(0.6):
        d.heading(v.phrase(r), 1)
    target: list[Document] = [d]
    if r.chance(0.25) and d.shape[1] > 420:
        target = d.columns(2)
    for column in target:
        for _ in range(r.randint(2, 9)):
            text = prose(r, r.pick((150, 260, 420, 700)))
            part = column.paragraph(text)
            words = text.split()
            if r.chance(0.5) and len(words) > 12:
                at = r.randint(0, len(words) - 9)
                d.ask((f'How does the text go on after "{" ".join(words[at : at + 4])}"?', f'What follows "{" ".join(words[at : at + 4])}"?'), " ".join(words[at + 4 : at + 8]), part)
    d.absent("Who signed this?", "Whose signature is on the page?")
    d.absent("What is the total amount?", "How much has to be paid?")
