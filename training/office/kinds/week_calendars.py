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
    """An entry of a calendar: ``day`` counts from the first, ``start`` and ``end`` are minutes.

    ``starts`` and ``ends`` are the times as shown; ``ends`` and ``place`` are empty where the calendar leaves them out.
    """

    title: str
    day: int
    start: int
    end: int
    starts: str
    ends: str
    place: str
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


@dataclass
class Days:
    """The days of a calendar with their headings, and what is entered for them."""

    dates: list[datetime.date]
    heads: list[Text]
    entries: list[Entry]

    @property
    def names(self) -> list[str]:
        return [_weekday(date) for date in self.dates]

    @property
    def texts(self) -> list[Text]:
        """Headings and titles, which questions about whole days rest on."""
        return [*self.heads, *(entry.texts[0] for entry in self.entries)]

    def of(self, day: int) -> list[Entry]:
        """Entries of a day, the earliest first."""
        return sorted((entry for entry in self.entries if entry.day == day), key=lambda entry: entry.start)


def _weekday(date: datetime.date) -> str:
    return v.WEEKDAYS[date.weekday()]


def _dates(ui: Screen) -> list[datetime.date]:
    """Days in a row, as many as the screen has room for, from a Monday on if they are most of a week."""
    r = ui.r
    count = r.pick((5, 7, 5, 6)) if ui.d.shape[1] >= 700 else r.pick((3, 4, 5)) if ui.wide else r.pick((1, 2, 2))
    monday = datetime.date(2019, 1, 7) + datetime.timedelta(days=7 * r.randint(0, 620))
    start = monday + datetime.timedelta(days=0 if count >= 5 else r.randint(0, 6 - count + 1))
    return [start + datetime.timedelta(days=n) for n in range(count)]


def _heads(ui: Screen, dates: list[datetime.date]) -> list[Text]:
    r = ui.r
    short = r.chance(0.6) or len(dates) > 3
    names = [_weekday(date)[:3] if short else _weekday(date) for date in dates]
    return [ui.text(f"{name} {date.day}", r.pick(("small", "body")), align="c") for name, date in zip(names, dates, strict=True)]


def _time(minutes: int, twelve: bool) -> str:
    """A time of day, of ``twelve`` hours or of 24."""
    h, m = divmod(minutes, 60)
    return f"{(h - 1) % 12 + 1}:{m:02d} {'am' if h < 12 else 'pm'}" if twelve else f"{h:02d}:{m:02d}"


def _entries(ui: Screen, count: int, first: int, last: int, twelve: bool) -> list[Entry]:
    """Entries on ``count`` days between the hours ``first`` and ``last``, none of which overlap."""
    r = ui.r
    titles = r.sample(TITLES, min(r.randint(3, 2 + 2 * count), len(TITLES)))
    entries: list[Entry] = []
    with_places = r.chance(0.5)
    for title in titles:
        if r.chance(0.2):
            title = r.pick((f"Lunch with {first_name(r)}", f"Call {first_name(r)}", f"{first_name(r)}'s birthday", f"Interview {people(r, 1)[0]}"))
        length = r.pick((60, 60, 60, 90, 90, 120, 150, 180))
        day, start = r.randint(0, count - 1), 30 * r.randint(2 * first, 2 * last - length // 30)
        end = start + length
        if any(e.day == day and start < e.end and e.start < end for e in entries) or title in [e.title for e in entries]:
            continue
        starts = _time(start, twelve)
        ends = _time(end, twelve) if r.chance(0.6) else ""
        place = r.pick(ROOMS) if with_places and r.chance(0.6) else ""
        texts = [ui.text(title, r.pick(("small", "bold")), wrap=True), ui.text(f"{starts} - {ends}" if ends else starts, "small", wrap=True)]
        if place:
            texts.append(ui.text(place, "small", wrap=True))
        entries.append(Entry(title, day, start, end, starts, ends, place, texts))
    return entries


def _ask_entry(ui: Screen, days: Days, entry: Entry) -> None:
    """When and where an entry takes place."""
    named, today, texts, length = entry.title, days.names[entry.day], entry.texts, entry.end - entry.start
    ui.ask((f"On which day is {named}?", f"Which day is {named} on?", f"What weekday is {named}?", f"On what day of the week does {named} take place?", f"{named}: which day?"), today, days.heads, texts[0])
    ui.ask((f"What time does {named} start?", f"When does {named} start?", f"At what time is {named}?", f"When does {named} begin?", f"From when on is {named}?"), entry.starts, texts[:2])
    if entry.ends:
        ui.ask((f"When does {named} end?", f"Until when does {named} last?", f"At what time is {named} over?", f"What time does {named} finish?"), entry.ends, texts[:2])
        if length % 60 == 0:
            ui.ask((f"How long is {named}?", f"How many hours does {named} take?", f"How long does {named} last?"), f"{length // 60} hour{'s' if length > 60 else ''}", texts[:2])
    if entry.place:
        ui.ask((f"Where is {named}?", f"In which room is {named}?", f"Where does {named} take place?", f"What is the place of {named}?"), entry.place, texts[0], texts[2])
    elif entry is days.entries[0]:
        ui.d.absent(f"Where is {named}?", f"In which room is {named}?", f"Where does {named} take place?")


def _ask_day(ui: Screen, days: Days, day: int) -> None:
    """What is entered for a day, and its date."""
    name, own, everything = days.names[day], days.of(day), days.texts
    if own:
        ui.ask((f"How many entries are there on {name}?", f"How many appointments are on {name}?", f"How many things are planned for {name}?"), str(len(own)), everything)
        ui.ask((f"What is the first appointment on {name}?", f"What is first on {name}?", f"Which entry comes first on {name}?", f"With what does {name} start?"), own[0].title, everything)
        if len(own) > 1:
            ui.ask((f"What is the last appointment on {name}?", f"What comes last on {name}?", f"With what does {name} end?"), own[-1].title, everything)
        else:
            ui.ask((f"What is planned for {name}?", f"What is on {name}?", f"Which appointment is on {name}?", f"What do I have on {name}?"), own[0].title, everything)
    else:
        ui.ask((f"How many appointments are on {name}?", f"How many entries does {name} have?"), "0", everything)
        ui.d.absent(f"What is planned for {name}?", f"What time is the appointment on {name}?")
    ui.ask((f"What is the date of {name}?", f"Which day of the month is {name}?", f"What date is {name}?"), str(days.dates[day].day), days.heads[day])


def _ask_week(ui: Screen, days: Days) -> None:
    """Questions about all days together, and about an entry that there is not."""
    count, entries, everything = len(days.dates), days.entries, days.texts
    free = [n for n in range(count) if not days.of(n)]
    if len(free) == 1 and count > 2:
        ui.ask(("Which day is free?", "On which day is there nothing?", "Which day has no entries?"), days.names[free[0]], everything)
    ui.ask(("How many days are shown?", "How many days does the calendar show?"), str(count), days.heads)
    ui.ask(("How many entries are there in all?", "How many appointments are shown?", "How many entries does the calendar have?"), str(len(entries)), everything)
    lengths = [entry.end - entry.start for entry in entries]
    if lengths.count(max(lengths)) == 1 and len(entries) > 2:
        ui.ask(("Which appointment is the longest?", "What takes longest?", "Which entry lasts the longest?"), entries[lengths.index(max(lengths))].title, everything)
    gone = ui.r.pick([title for title in TITLES if title not in [entry.title for entry in entries]])
    ui.d.absent(f"On which day is {gone}?", f"When does {gone} start?", f"At what time is {gone}?")


def _toolbar(ui: Screen, start: datetime.date) -> Element:
    """The month of the first day, perhaps its week, and what else the calendar can show."""
    month = f"{v.MONTHS[start.month - 1]} {start.year}"
    top = ui.text(month, "title")
    ui.ask(("Which month is shown?", "What month is it?", "In which month is the week?"), month, top)
    tools: list[Element] = [Icon("left", 0.8), Icon("right", 0.8), top]
    weights: list[float | None] = [None, None, 1]
    week = start.isocalendar().week
    if ui.r.chance(0.4) and ui.wide:
        t = ui.text(f"Week {week}", "small")
        tools.append(t)
        weights.append(None)
        ui.ask(("Which week is it?", "What is the number of the week?", "Which calendar week is shown?"), str(week), t)
    else:
        ui.d.absent("What is the number of the week?", "Which calendar week is shown?")
    if ui.wide:
        views = [ui.text(name, "small") for name in ("Day", "Week", "Month")]
        tools.append(Row([Panel(t, 60 if t.text == "Week" else 0, 90, (1.2, 0.4)) for t in views], gap=0.4))
        weights.append(None)
    return Panel(Row(tools, weights), pad=(1.5, 1), square=True)


def _with_owners(ui: Screen, body: Element) -> Element:
    """The calendar, perhaps beside a list of whose calendars can be ticked."""
    r = ui.r
    if not (r.chance(0.4) and ui.d.shape[1] >= 640):
        ui.d.absent("Whose calendar is it?", "Who owns the calendar?")
        return body
    owner = people(r, r.randint(2, 4))
    ticks = [r.chance(0.6) for _ in owner]
    labels = ui.texts(owner, "small")
    side = Column([ui.text("Calendars", "bold"), *(Row([Icon("ticked" if on else "box", 0.7), t], [None, 1], gap=1) for on, t in zip(ticks, labels, strict=True))], gap=0.8)
    if sum(ticks) == 1:
        ui.ask(("Whose calendar is ticked?", "Which calendar is switched on?", "Whose calendar is shown?"), owner[ticks.index(True)], labels)
    ui.ask(("How many calendars are ticked?", "How many calendars are switched on?"), str(sum(ticks)), labels)
    return Row([Panel(side, 15, pad=(1, 1), square=True), body], [1, 4.2], gap=0, top=True, panes=False)


def _show(ui: Screen, body: Element) -> None:
    """Shows the calendar on a phone, in a window or in a browser."""
    r = ui.r
    if not ui.wide:
        ui.show(Column([phone_bar(ui, clock(r)), body], elastic=1))
    elif r.chance(0.5):
        ui.show(window(ui, ui.text(r.pick(("Calendar", f"Calendar - {v.name_word(r)} Mail", "Kalender", "Week view"))), body, ("File", "Edit", "View", "Events", "Help") if r.chance(0.5) else ()))
    else:
        ui.show(browser(ui, f"calendar.{v.word(r).lower()}.example/week", "Calendar", body))


@kind("week_calendar", 1.8)
def week_calendar(d: Document) -> None:
    ui, r = Screen(d), d.r
    dates = _dates(ui)
    heads = _heads(ui, dates)
    first = r.randint(7, 9)
    last = r.randint(15, 19)
    twelve = r.chance(0.3)
    hours = [ui.text(_time(60 * h, twelve).replace(":00", "") if twelve else f"{h}:00", "small", align="r") for h in range(first, last)]
    days = Days(dates, heads, _entries(ui, len(dates), first, last, twelve))
    for entry in days.entries:
        _ask_entry(ui, days, entry)
    for day in range(len(dates)):
        _ask_day(ui, days, day)
    _ask_week(ui, days)
    tools = _toolbar(ui, dates[0])
    week = Week(heads, hours, first, last, days.entries, r.pick((25, 40, 60)))
    body = Column([tools, Rule(), Panel(week, pad=(1, 0.5), square=True)], elastic=2)
    _show(ui, _with_owners(ui, body))
