"""Pages that list things with unlabelled details: agendas, careers, itineraries, menus, contacts."""

from __future__ import annotations

from collections.abc import Callable

from training.pages import values as v
from training.pages.blocks import Box, Setter
from training.pages.facts import Fact
from training.pages.parts import page_title

Things = list[tuple[str, Callable[[v.Rng], str]]]


def _theme(r: v.Rng, theme: int) -> tuple[tuple[str, ...], Callable[[v.Rng], str], Things]:
    """Titles for a page of theme 0 to 7, what its things are called, and their details by attribute."""
    room = lambda r: f"{r.pick(('Room', 'Hall', 'Stage', 'Floor'))} {r.pick(('', 'A', 'B', 'C'))}{r.randint(1, 40)}"  # noqa: E731
    years = lambda r: f"{(y := r.randint(1985, 2020))}{r.pick(('-', ' - '))}{y + r.randint(1, 9)}"  # noqa: E731
    if theme == 0:
        titles, subject = ("Agenda", "Conference", "Festival", "Programme", "Course plan"), v.phrase
        things = [("time", v.time_of_day), ("speaker", v.person), ("room", room)]
        subject = r.pick((v.phrase, v.phrase, lambda r: f"{v.name_word(r)} {r.pick(v.WORK)}", v.name_word))
    elif theme == 1:
        titles, subject = (v.person(r), v.person(r)), v.company
        things = [("job", lambda r: f"{r.pick(v.DEPARTMENTS)} {r.pick(v.JOBS)}"), ("period", years), ("city", v.city)]
    elif theme == 2:
        titles, subject = ("Itinerary", "Departures", "Arrivals", "Connections"), v.city
        things = [
            (r.pick(("departure", "arrival")), v.time_of_day),
            ("platform", lambda r: str(r.randint(1, 24))),
        ]
    elif theme == 3:
        titles, subject = ("Menu", "Price List", "Offers", "Our Services"), v.item
        things = [
            ("price", v.money_format(r)),
            ("size", lambda r: f"{r.randint(1, 900)} {r.pick(('g', 'ml', 'kg', 'cm'))}"),
        ]
        render = things[0][1]
        things[0] = ("price", lambda r: render(v.cents(r, 2, 4.5)))
    elif theme == 4:
        titles, subject = ("Contacts", "Our Team", "Members", "Staff"), v.person
        things = [("phone number", v.phone), ("department", lambda r: r.pick(v.DEPARTMENTS)), ("email", v.email)]
    elif theme == 5:
        titles, subject = ("Tasks", "Plan", "To do", "Projects", "Minutes", "Repairs"), v.phrase
        things = [
            ("person", v.person),
            ("date", v.date),
            ("status", lambda r: r.pick(("open", "done", "late", "planned", "in work", "stopped"))),
        ]
    elif theme == 6:
        titles, subject = (
            ("Results", "Measurements", "Log", "Records", "Check"),
            lambda r: r.pick((v.name_word, v.item))(r),
        )
        things = [
            ("result", lambda r: f"{r.random() * 200:.1f} {r.pick(('mg', 'kg', 'points', 'cm', '%', 'ml'))}"),
            ("date", v.date),
            ("person", v.person),
        ]
    else:
        titles, subject = (
            ("Education", "Schools", "Events", "Courses"),
            lambda r: f"{r.pick(('University', 'School', 'College'))} of {v.city(r)}",
        )
        things = [
            (
                "degree",
                lambda r: (
                    f"{r.pick(('Bachelor', 'Master', 'Diploma'))} of {r.pick(('Arts', 'Science', 'Law', 'Music'))}"
                ),
            ),
            ("period", years),
        ]
    return titles, subject, things


def program(s: Setter, box: Box, headed: bool = True) -> None:
    """Lists of things with unlabelled details: agendas, careers, itineraries, menus, contact lists."""
    r = s.r
    theme = r.randint(0, 7)
    titles, subject, things = _theme(r, theme)
    if headed:
        page_title(s, box, *titles)
    if headed and r.chance(0.5):
        day, place = v.date(r), v.venue(r)
        if theme == 0:
            text, facts = (
                r.pick((f"{day}, {place}", f"{day} - {place}", f"{place}, {day}")),
                [Fact("date", day), Fact("meeting_place", place)],
            )
        else:
            phone, email = v.phone(r), v.email(r)
            text, facts = f"{email}{r.pick((', ', ' | ', '   '))}{phone}", [Fact("email", email), Fact("phone", phone)]
        s.paragraph(box, text, facts)
        s.gap(box)
    chosen = r.sample(things, r.randint(1, len(things)))
    rows, seen = [], set()
    for _ in range(r.randint(2, 9)):
        name = subject(r)
        if name.lower() not in seen:
            seen.add(name.lower())
            rows.append((name, [(attribute, make(r)) for attribute, make in chosen]))
    s.entries(box, rows)
