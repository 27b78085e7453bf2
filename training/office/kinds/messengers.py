"""Messengers: a list of chats with times and unread counts, an open conversation, or both."""

# fmt: off

from training.office.document import Document
from training.office.registry import kind
from training.office.screen import Column, Element, Icon, Panel, Row, Rule, Screen, Space, Text
from training.office.values import first_name, people, town
from training.office.windows import clock, phone_bar, window
from training.pages import values as v

GROUPS = ("Family", "Class 7b", "Football parents", "Flat 3", "Book club", "Work lunch", "Hiking group", "Neighbours", "Choir", "Holiday in Crete", "Band", "Running club", "Wedding planning", "Chess team")
LAST = (
    "Thanks!", "See you tomorrow", "Can you call me back?", "I'm on the train", "Photo", "Voice message (0:42)", "Happy birthday!", "Where are you?", "The key is under the mat", "Will be ten minutes late", "Did you get my mail?", "OK, sounds good",
    "Dinner is ready", "Who brings the salad?", "I sent you the tickets", "Missed voice call", "No worries", "Meeting moved to room 4", "Good night", "The parcel has arrived", "Not today, sorry", "You: on my way", "You: thank you so much", "Sticker", "Let me check",
)


def talk(r: v.Rng, other: str) -> list[tuple[str, list[tuple[tuple[str, ...], str]], bool]]:
    """Messages that say something, with questions; whether the owner of the phone may have written it."""
    day, day2 = r.sample(v.WEEKDAYS, 2)
    time, city, n, m, friend = clock(r), town(r), r.randint(3, 90), r.randint(2, 12), first_name(r)
    thing, place = r.pick(("the ladder", "my charger", "the blue folder", "the tent", "your umbrella", "the drill", "the car keys")), r.pick(("in the kitchen", "at the office", "in the car", "behind the door", "at the station", "in the hall"))
    return [
        (f"The train gets in at {time}, platform {m}", [(("When does the train arrive?", "At what time does the train get in?", "What time is the train?"), time), (("Which platform does the train arrive at?", "What is the platform?"), str(m))], True),
        (f"I left {thing} {place}", [((f"Where is {thing}?", f"Where was {thing} left?", f"Where can I find {thing}?"), place), (("What was left behind?", "What did the person leave?"), thing)], True),
        (f"It was {n} euros each, you can pay me back on {day}", [(("How much was it each?", "How much did each person have to pay?", "What did it cost per person?"), f"{n} euros"), (("When should the money be paid back?", "On which day can the money be paid back?"), day)], True),
        (f"{friend} is in {city} until {day2}", [((f"Where is {friend}?", f"In which city is {friend}?"), city), ((f"Until when is {friend} away?", f"How long is {friend} in {city}?"), day2)], True),
        (f"Can we meet at {clock(r)} instead?", [], False), ("Sure, no problem", [], False), ("Great, thanks!", [], False), ("Haha", [], False), ("Did you read the news?", [], False),
        (f"I booked a table for {m} at the {v.name_word(r)}", [(("For how many people is the table?", "How many people is the table booked for?"), str(m))], True),
        (f"Please bring {r.pick(('bread', 'salad', 'two chairs', 'a cake', 'your guitar', 'the contract'))}, we start around {r.randint(5, 9)}", [], True),
        (f"The doctor says {r.randint(2, 9)} days of rest", [], False),
    ]


@kind("messenger", 1.8)
def messenger(d: Document) -> None:
    ui, r = Screen(d), d.r
    lists = d.shape[1] >= 640 or r.chance(0.5)
    talks = (d.shape[1] >= 640 and r.chance(0.7)) or not lists
    app = f"{v.name_word(r)}{r.pick(('', 'Chat', ' Messenger', ' Talk'))}"
    n = r.randint(4, 9)
    persons = people(r, n + 2)
    names = [r.pick((p, p, p.split()[0])) for p in persons[:n]]
    for place, group in zip(r.sample(range(n), r.randint(0, 3)), r.sample(GROUPS, 3), strict=False):
        names[place] = group
    panes: list[Element] = []
    rows: list[Element] = []
    open_one = r.randint(0, min(3, n - 1))
    if lists:
        top = ui.text(app if r.chance(0.7) else "Chats", "title")
        if top.text == app:
            ui.ask(("Which app is it?", "What is the messenger called?", "What is the name of the app?"), app, top)
        said = r.sample(LAST, n)
        minutes = sorted(r.sample(range(1, 1439), n), reverse=True)
        recent = r.randint(2, n)
        weekday = r.randint(0, 6)
        times = [f"{m // 60:02d}:{m % 60:02d}" if i < recent else "Yesterday" if i == recent else v.WEEKDAYS[(weekday - i) % 7][:3] for i, m in enumerate(minutes)]
        unread = [r.randint(1, 14) if r.chance(0.35) and not said[i].startswith("You") and i != open_one else 0 for i in range(n)]
        marks, badges = [], []
        for i, name in enumerate(names):
            group = name in GROUPS
            who = first_name(r) if group and not said[i].startswith("You") else ""
            a, b, c = ui.text(name, "bold"), ui.text(f"{who}: {said[i]}" if who else said[i], "small", grey=True), ui.text(times[i], "small")
            right: list[Element] = []
            if unread[i]:
                badge = ui.text(str(unread[i]), "small")
                badges.append(badge)
                right = [Panel(badge, dark=210, pad=(1.1, 0.1))]
                ui.ask((f"How many unread messages are there from {name}?", f"How many messages from {name} have not been read?", f"How many new messages does {name} have?", f"What number stands beside {name}?", f"How many unread messages are in the chat with {name}?"), str(unread[i]), a, badge)
            marks.append(a)
            rows.append(Panel(Row([Icon("avatar", 1.6), Column([Row([a, c], [1, None]), Row([b, *right], [1, *[None] * len(right)])], gap=0.2)], [None, 1], gap=2), 40 if i == open_one and talks else 0, pad=(1, 0.7)))
            ui.ask((f"When was the last message in the chat with {name}?", f"Which time stands beside {name}?", f"Of when is the latest message with {name}?", *(() if group or said[i].startswith("You") else (f"When did {name} last write?",)), f"How recent is the chat with {name}, which time is given?"), times[i], a, c)
            text = said[i].removeprefix("You: ")
            if said[i].startswith("You"):
                ui.ask((f"What did I write to {name}?", f"What was my last message to {name}?"), text, a, b)
            elif who:
                ui.ask((f"Who wrote last in {name}?", f"Who sent the last message in {name}?", f"Whose message is the last one in the group {name}?"), who, a, b)
                ui.ask((f"What did {who} write in {name}?", f"What is the last message in {name}?", f"What was written last in the group {name}?"), text, a, b)
            else:
                ui.ask((f"What did {name} write?", f"What is the last message from {name}?", f"What does {name} say?", f"What did {name} send last?"), text, a, b)
                if text not in ("Photo", "Sticker") and said.count(text) == 1:
                    ui.ask((f'Who wrote "{text}"?', f'Who sent the message "{text}"?', f'From whom is "{text}"?'), name, a, b)
        if sum(map(bool, unread)) == 1:
            i = [bool(u) for u in unread].index(True)
            ui.ask(("Who has sent unread messages?", "Which chat has unread messages?", "From whom are there new messages?"), names[i], marks, badges)
        elif unread.count(max(unread)) == 1:
            ui.ask(("Which chat has the most unread messages?", "From whom are the most unread messages?", "Where are most messages unread?"), names[unread.index(max(unread))], marks, badges)
        ui.ask(("How many chats have unread messages?", "How many conversations are unread?", "In how many chats is there something new?"), str(sum(map(bool, unread))), marks, badges)
        ui.ask(("How many chats are listed?", "How many conversations are there?", "How many chats can I see?"), str(n), marks)
        ui.ask(("Which chat is at the top?", "Which conversation is the latest?", "Which chat had the most recent message?", "With whom is the first chat in the list?"), names[0], marks)
        silent = [name for name, u in zip(names, unread, strict=True) if not u]
        if silent:
            d.absent(f"How many unread messages are there from {persons[n + 1]}?", f"What did {persons[n + 1]} write?")
        d.absent(f"What is the phone number of {names[0]}?", f"How can I call {names[0]}?")
        bar = Row([top, Icon("search", 0.9), Icon("menu", 0.9)], [1, None, None])
        tabs: list[Element] = []
        if r.chance(0.5):
            labels = ui.texts(r.sample(("All", "Unread", "Groups", "Favourites", "Calls", "Status"), 3), "small")
            tabs = [Row([Panel(t, 55 if k == 0 else 15, pad=(1.5, 0.4)) for k, t in enumerate(labels)], gap=1)]
        panes.append(Column([Panel(Column([bar, *tabs], gap=0.8), 15, pad=(1.5, 1), square=True), Column(rows, gap=r.pick((0, 0.3)))]))
    if talks:
        partner = names[open_one] if names[open_one] not in GROUPS else persons[open_one]
        if lists and names[open_one] in GROUPS:
            partner = names[open_one]
        group = partner in GROUPS
        members = [p.split()[0] for p in persons[n - 2 : n + 1]]
        head = ui.text(partner, "bold")
        state = r.pick(("online", "typing...", f"last seen {clock(r)}", f"last seen today at {clock(r)}")) if not group else f"{r.randint(3, 40)} members"
        status = ui.text(state, "small", grey=True)
        ui.ask(("Who is the open conversation with?", "With whom is the chat?", "Whose chat is open?", "Who am I writing with?"), partner, head)
        if group:
            ui.ask((f"How many members does {partner} have?", "How many people are in the group?", "How large is the group?"), state.split()[0], head, status)
        elif "seen" in state:
            ui.ask((f"When was {partner} last seen?", f"When was {partner} last online?", f"At what time was {partner} last there?"), state.split()[-1], head, status)
        else:
            d.absent(f"When was {partner} last seen?", f"When was {partner} last online?")
        bubbles: list[Element] = []
        minute = r.randint(420, 1200)
        today = r.pick(("Today", "Yesterday", f"{r.pick(v.WEEKDAYS)}", f"{r.randint(1, 28)} {r.pick(v.MONTHS)}"))
        day_text = ui.text(today, "small")
        bubbles.append(Row([Space(), Panel(day_text, 35, pad=(1.5, 0.3)), Space()], [1, None, 1]))
        ui.ask(("Which day stands above the messages?", "Of which day are the messages?", "When was the conversation?"), today, day_text)
        shown: list[tuple[str, str, Text]] = []
        asked: list[Text] = []
        for text, asks, _ in r.sample(talk(r, partner), r.randint(3, 7)):
            mine = r.chance(0.45)
            who = "" if mine else r.pick(members) if group else partner
            minute += r.randint(1, 25)
            time = f"{minute // 60:02d}:{minute % 60:02d}"
            a, t = ui.text(text, wrap=True), ui.text(time, "small", grey=True, align="r")
            inside: list[Element] = [a, t]
            needs = [a, t]
            if who and group:
                name = ui.text(who, "bold")
                inside.insert(0, name)
                needs.append(name)
            asked.append(a)
            for questions, answer in asks:
                ui.ask(questions, answer, a)
            ui.ask((f'When was "{text}" written?', f'At what time was "{text}" sent?', f'What is the time of the message "{text}"?'), time, a, t)
            if who:
                ui.ask((f'Who wrote "{text}"?', f'Who says "{text}"?', f'From whom is "{text}"?'), who, *needs, head)
            dark = 190 if mine and r.chance(0.5) else 0
            bubble = Panel(Column(inside, gap=0.1), 0 if dark else 45 if mine else 15, 0 if dark else 80, (1.5, 0.6), dark=dark)
            shown.append((text, who, a))
            bubbles.append(Row([Space(), bubble], [1, 2.6]) if mine else Row([bubble, Space()], [2.6, 1]))
        if lists is False or n == 1:
            ui.ask(("What is the last message?", "What was written last?", "What is the newest message in the conversation?"), shown[-1][0], asked)
        ui.ask(("How many messages does the conversation show?", "How many messages can be seen in the open chat?", "How many bubbles are there?"), str(len(shown)), asked)
        if not group:
            count = sum(1 for s in shown if s[1])
            ui.ask((f"How many of the messages are from {partner}?", f"How many messages in the open chat did {partner} write?"), str(count), asked, head)
        field = ui.text(r.pick(("Message", "Type a message", "Write something...", "Aa")), "small", grey=True)
        foot = Panel(Row([Panel(field, 0, 110, (2, 0.7)), Icon("right", 0.9)], [1, None]), 15, pad=(1.5, 0.8), square=True)
        top_ = Panel(Row([Icon("left", 0.8), Icon("avatar", 1.5), Column([head, status])], [None, None, 1]), 15, pad=(1.5, 0.8), square=True)
        panes.append(Column([top_, Panel(Column(bubbles, gap=1), pad=(1.5, 1), square=True), foot], elastic=1))
        missing = [asks for text, asks, _ in talk(r, partner) if asks and text.split()[0] not in " ".join(s[0] for s in shown)]
        if missing and not lists:
            d.absent(*r.pick(r.pick(missing))[0][:2])
        d.absent(f"How old is {partner}?" if not group else f"Who founded {partner}?", "Who sent a photo of the dog?")
    body = panes[0] if len(panes) == 1 else Row(panes, [1, 1.5], gap=0.5, top=True, panes=True)
    if d.shape[1] >= 640 or (ui.wide and r.chance(0.4)):
        ui.show(window(ui, ui.text(app), body) if r.chance(0.7) else body)
        return
    extra: list[Element] = []
    if lists and not talks and r.chance(0.5):
        extra = [Rule(), Panel(Row([Space(), *ui.texts(("Chats", "Calls", "Settings"), "small"), Space()], [1, None, None, None, 1], gap=6), pad=(1, 0.8))]
    ui.show(Column([phone_bar(ui), body, *extra], elastic=1))
