"""Weeks of a calendar program: days side by side, hours below one another, entries as long as they last."""

# fmt: off

import datetime
from dataclasses import dataclass

from training.office.document import Document
from training.office.registry import kind
from training.office.screen import Column, Element, Icon, Look, Panel, Row, Rule, Screen, Text, plate
from training.office.values import first_name, people
from training.office.windows import browser, clock, phone_bar, window
from training.pages import values as v

TITLES = (
    "Team meeting", "Dentist", "Yoga", "Budget review", "Job interview", "Parents' evening", "Piano lesson", "Design workshop", "Client call", "Physiotherapy", "Choir", "Staff lunch", "Training", "Football", "Car inspection", "Board meeting",
    "German course", "Stand-up", "Planning", "Haircut", "Site visit", "Exam", "Book club", "Swimming", "Release", "Vet", "Handover", "Rehearsal",
)
ROOMS = ("Room 12", "Room 3", "Online", "Main hall", "Room B2", "Office", "Library", "Studio", "Gym", "Canteen")


@dataclass
class Entry:
    """An entry of a calendar: ``day`` counts from the first, times are minutes."""

    day: int
    start: int
    end: int
    texts: list[Text]


@dataclass
class Week(Element):
    """Days with the hours ``first`` to ``last``."""

    heads: list[Text]
    hours: list[Text]
    first: int
    last: int
    entries: list[Entry]
    level: int

    def height(self, look: Look, width: float) -> float:
        return (self.last - self.first) * 1.9 * look.faces["small"].height

    def draw(self, look: Look, x: float, y: float, width: float, height: float) -> None:
        f = look.faces["small"]
        left = x + max(t.width(look) for t in self.hours) + look.unit
        wide, top = (x + width - left) / len(self.heads), y + 2 * look.faces["body"].height
        tall = (y + height - top - look.unit) / (self.last - self.first)
        for n, head in enumerate(self.heads):
            head.draw(look, left + n * wide, y, wide - 3, top - y)
        if tall < f.height:
            return
        if not look.dry:
            for n in range(len(self.heads) + 1):
                look.canvas.line(left + n * wide - 2, top - 4, left + n * wide - 2, top + tall * (self.last - self.first), 60)
            look.pane()
        for n, hour in enumerate(self.hours):
            if not look.dry:
                look.canvas.line(left - 4, top + n * tall, x + width, top + n * tall, 60)
            hour.draw(look, x, top + n * tall, left - x - look.unit, f.height)
        if not look.dry:
            look.pane()
        for entry in self.entries:
            at, low = left + entry.day * wide, top + (entry.start / 60 - self.first) * tall
            high = (entry.end - entry.start) / 60 * tall - 2
            if not look.dry:
                plate(look.canvas.ink(), at, low + 1, wide - 5, high, self.level, 150, int(look.rounded * 2))
            inner, gap = low + 2, high - 2
            for text in entry.texts:
                need = text.height(look, wide - 11)
                if need > gap:
                    break
                text.draw(look, at + 3, inner, wide - 11, gap)
                inner, gap = inner + need, gap - need
            if not look.dry:
                look.pane()


@kind("week_calendar", 1.8)
def week_calendar(d: Document) -> None:
    ui, r = Screen(d), d.r
    count = r.pick((5, 7, 5, 6)) if d.shape[1] >= 700 else r.pick((3, 4, 5)) if ui.wide else r.pick((1, 2, 2))
    monday = datetime.date(2019, 1, 7) + datetime.timedelta(days=7 * r.randint(0, 620))
    start = monday + datetime.timedelta(days=0 if count >= 5 else r.randint(0, 6 - count + 1))
    dates = [start + datetime.timedelta(days=n) for n in range(count)]
    names = [v.WEEKDAYS[day.weekday()] for day in dates]
    short = r.chance(0.6) or count > 3
    heads = [ui.text(f"{name[:3] if short else name} {day.day}", r.pick(("small", "body")), align="c") for name, day in zip(names, dates, strict=True)]
    first = r.randint(7, 9)
    last = r.randint(15, 19)
    twelve = r.chance(0.3)

    def told(minutes: int) -> str:
        h, m = divmod(minutes, 60)
        return f"{(h - 1) % 12 + 1}:{m:02d} {'am' if h < 12 else 'pm'}" if twelve else f"{h:02d}:{m:02d}"

    hours = [ui.text(told(60 * h).replace(":00", "") if twelve else f"{h}:00", "small", align="r") for h in range(first, last)]
    titles = r.sample(TITLES, min(r.randint(3, 2 + 2 * count), len(TITLES)))
    entries: list[Entry] = []
    found: list[tuple] = []
    with_places = r.chance(0.5)
    for title in titles:
        if r.chance(0.2):
            title = r.pick((f"Lunch with {first_name(r)}", f"Call {first_name(r)}", f"{first_name(r)}'s birthday", f"Interview {people(r, 1)[0]}"))
        length = r.pick((60, 60, 60, 90, 90, 120, 150, 180))
        day, begin = r.randint(0, count - 1), 30 * r.randint(2 * first, 2 * last - length // 30)
        if any(e.day == day and begin < e.end and e.start < begin + length for e in entries) or title in [f[0] for f in found]:
            continue
        span = f"{told(begin)} - {told(begin + length)}" if r.chance(0.6) else told(begin)
        place = r.pick(ROOMS) if with_places and r.chance(0.6) else ""
        texts = [ui.text(title, r.pick(("small", "bold")), wrap=True), ui.text(span, "small", wrap=True)]
        if place:
            texts.append(ui.text(place, "small", wrap=True))
        entries.append(Entry(day, begin, begin + length, texts))
        found.append((title, day, begin, length, place, texts, span))
    everything = [*heads, *(e.texts[0] for e in entries)]
    for title, day, begin, length, place, texts, span in found:
        named, today = title, names[day]
        ui.ask((f"On which day is {named}?", f"Which day is {named} on?", f"What weekday is {named}?", f"On what day of the week does {named} take place?", f"{named}: which day?"), today, heads, texts[0])
        ui.ask((f"What time does {named} start?", f"When does {named} start?", f"At what time is {named}?", f"When does {named} begin?", f"From when on is {named}?"), told(begin), texts[:2])
        if span != told(begin):
            ui.ask((f"When does {named} end?", f"Until when does {named} last?", f"At what time is {named} over?", f"What time does {named} finish?"), told(begin + length), texts[:2])
            if length % 60 == 0:
                ui.ask((f"How long is {named}?", f"How many hours does {named} take?", f"How long does {named} last?"), f"{length // 60} hour{'s' if length > 60 else ''}", texts[:2])
        if place:
            ui.ask((f"Where is {named}?", f"In which room is {named}?", f"Where does {named} take place?", f"What is the place of {named}?"), place, texts[0], texts[2])
        elif title == found[0][0]:
            d.absent(f"Where is {named}?", f"In which room is {named}?", f"Where does {named} take place?")
    for n, name in enumerate(names):
        own = sorted((f for f in found if f[1] == n), key=lambda f: f[2])
        if own:
            ui.ask((f"How many entries are there on {name}?", f"How many appointments are on {name}?", f"How many things are planned for {name}?"), str(len(own)), everything)
            ui.ask((f"What is the first appointment on {name}?", f"What is first on {name}?", f"Which entry comes first on {name}?", f"With what does {name} start?"), own[0][0], everything)
            if len(own) > 1:
                ui.ask((f"What is the last appointment on {name}?", f"What comes last on {name}?", f"With what does {name} end?"), own[-1][0], everything)
            else:
                ui.ask((f"What is planned for {name}?", f"What is on {name}?", f"Which appointment is on {name}?", f"What do I have on {name}?"), own[0][0], everything)
        else:
            ui.ask((f"How many appointments are on {name}?", f"How many entries does {name} have?"), "0", everything)
            d.absent(f"What is planned for {name}?", f"What time is the appointment on {name}?")
        ui.ask((f"What is the date of {name}?", f"Which day of the month is {name}?", f"What date is {name}?"), str(dates[n].day), heads[n])
    free = [n for n in range(count) if not any(f[1] == n for f in found)]
    if len(free) == 1 and count > 2:
        ui.ask(("Which day is free?", "On which day is there nothing?", "Which day has no entries?"), names[free[0]], everything)
    ui.ask(("How many days are shown?", "How many days does the calendar show?"), str(count), heads)
    ui.ask(("How many entries are there in all?", "How many appointments are shown?", "How many entries does the calendar have?"), str(len(found)), everything)
    lengths = [f[3] for f in found]
    if lengths.count(max(lengths)) == 1 and len(found) > 2:
        ui.ask(("Which appointment is the longest?", "What takes longest?", "Which entry lasts the longest?"), found[lengths.index(max(lengths))][0], everything)
    gone = r.pick([t for t in TITLES if t not in [f[0] for f in found]])
    d.absent(f"On which day is {gone}?", f"When does {gone} start?", f"At what time is {gone}?")
    month = f"{v.MONTHS[start.month - 1]} {start.year}"
    top = ui.text(month, "title")
    ui.ask(("Which month is shown?", "What month is it?", "In which month is the week?"), month, top)
    tools: list[Element] = [Icon("left", 0.8), Icon("right", 0.8), top]
    weights: list[float | None] = [None, None, 1]
    week = start.isocalendar().week
    if r.chance(0.4) and ui.wide:
        t = ui.text(f"Week {week}", "small")
        tools.append(t)
        weights.append(None)
        ui.ask(("Which week is it?", "What is the number of the week?", "Which calendar week is shown?"), str(week), t)
    else:
        d.absent("What is the number of the week?", "Which calendar week is shown?")
    if ui.wide:
        views = [ui.text(name, "small") for name in ("Day", "Week", "Month")]
        tools.append(Row([Panel(t, 60 if t.text == "Week" else 0, 90, (1.2, 0.4)) for t in views], gap=0.4))
        weights.append(None)
    body: Element = Column([Panel(Row(tools, weights), pad=(1.5, 1), square=True), Rule(), Panel(Week(heads, hours, first, last, entries, r.pick((25, 40, 60))), pad=(1, 0.5), square=True)], elastic=2)
    if r.chance(0.4) and d.shape[1] >= 640:
        owner = people(r, r.randint(2, 4))
        ticks = [r.chance(0.6) for _ in owner]
        labels = ui.texts(owner, "small")
        side = Column([ui.text("Calendars", "bold"), *(Row([Icon("ticked" if on else "box", 0.7), t], [None, 1], gap=1) for on, t in zip(ticks, labels, strict=True))], gap=0.8)
        if sum(ticks) == 1:
            ui.ask(("Whose calendar is ticked?", "Which calendar is switched on?", "Whose calendar is shown?"), owner[ticks.index(True)], labels)
        ui.ask(("How many calendars are ticked?", "How many calendars are switched on?"), str(sum(ticks)), labels)
        body = Row([Panel(side, 15, pad=(1, 1), square=True), body], [1, 4.2], gap=0, top=True, panes=False)
    else:
        d.absent("Whose calendar is it?", "Who owns the calendar?")
    if not ui.wide:
        ui.show(Column([phone_bar(ui, clock(r)), body], elastic=1))
    elif r.chance(0.5):
        ui.show(window(ui, ui.text(r.pick(("Calendar", f"Calendar - {v.name_word(r)} Mail", "Kalender", "Week view"))), body, ("File", "Edit", "View", "Events", "Help") if r.chance(0.5) else ()))
    else:
        ui.show(browser(ui, f"calendar.{v.word(r).lower()}.example/week", "Calendar", body))
