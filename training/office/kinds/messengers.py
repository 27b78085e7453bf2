"""Messengers: a list of chats with times and unread counts, an open conversation, or both."""

# fmt: off

from dataclasses import dataclass

from training.office.document import Document
from training.office.kinds.bookings import hm
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
Questions = tuple[tuple[str, ...], str]  # wordings and the answer


@dataclass(frozen=True)
class Contacts:
    """Whom the chats are with: ``names`` are of persons or groups; there are two persons more than chats."""

    persons: list[str]
    names: list[str]
    open_one: int


@dataclass(frozen=True)
class Chat:
    """An entry of the list of chats; ``author``: who wrote last in a group, if others did."""

    name: str
    said: str
    time: str
    unread: int
    author: str

    @property
    def mine(self) -> bool:
        return self.said.startswith("You")


@dataclass(frozen=True)
class Partner:
    """Whom the open conversation is with; a group has ``members``."""

    name: str
    members: tuple[str, ...] = ()


@dataclass(frozen=True)
class Message:
    """A message of the open conversation; ``who`` wrote it is empty for the owner of the phone."""

    text: str
    asks: list[Questions]
    who: str
    time: str
    dark: bool


def talk(r: v.Rng, other: str) -> list[tuple[str, list[Questions], bool]]:
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


def draw_contacts(r: v.Rng) -> Contacts:
    n = r.randint(4, 9)
    persons = people(r, n + 2)
    names = [r.pick((p, p, p.split()[0])) for p in persons[:n]]
    for place, group in zip(r.sample(range(n), r.randint(0, 3)), r.sample(GROUPS, 3), strict=False):
        names[place] = group
    return Contacts(persons, names, r.randint(0, min(3, n - 1)))


def draw_chats(r: v.Rng, contacts: Contacts) -> list[Chat]:
    names, n = contacts.names, len(contacts.names)
    said = r.sample(LAST, n)
    minutes = sorted(r.sample(range(1, 1439), n), reverse=True)
    recent = r.randint(2, n)
    weekday = r.randint(0, 6)
    times = [hm(m) if i < recent else "Yesterday" if i == recent else v.WEEKDAYS[(weekday - i) % 7][:3] for i, m in enumerate(minutes)]
    unread = [r.randint(1, 14) if r.chance(0.35) and not said[i].startswith("You") and i != contacts.open_one else 0 for i in range(n)]
    authors = [first_name(r) if name in GROUPS and not text.startswith("You") else "" for name, text in zip(names, said, strict=True)]
    return [Chat(*facts) for facts in zip(names, said, times, unread, authors, strict=True)]


def chat_row(ui: Screen, chat: Chat, marked: bool) -> tuple[Element, Text, list[Text]]:
    """A row of the list with questions about it, its name and its unread messages."""
    a = ui.text(chat.name, "bold")
    b = ui.text(f"{chat.author}: {chat.said}" if chat.author else chat.said, "small", grey=True)
    c = ui.text(chat.time, "small")
    badges = ui.texts([str(chat.unread)] if chat.unread else [], "small")
    right = [Panel(badge, dark=210, pad=(1.1, 0.1)) for badge in badges]
    lines = Column([Row([a, c], [1, None]), Row([b, *right], [1, *[None] * len(right)])], gap=0.2)
    ask_about_chat(ui, chat, a, c, badges)
    ask_what_was_said(ui, chat, a, b)
    return Panel(Row([Icon("avatar", 1.6), lines], [None, 1], gap=2), 40 if marked else 0, pad=(1, 0.7)), a, badges


def ask_about_chat(ui: Screen, chat: Chat, named: Text, time: Text, badges: list[Text]) -> None:
    """Questions about the unread messages of a chat and the time of the last one."""
    name = chat.name
    if chat.unread:
        ui.ask((f"How many unread messages are there from {name}?", f"How many messages from {name} have not been read?", f"How many new messages does {name} have?", f"What number stands beside {name}?", f"How many unread messages are in the chat with {name}?"), str(chat.unread), named, badges)
    ui.ask((f"When was the last message in the chat with {name}?", f"Which time stands beside {name}?", f"Of when is the latest message with {name}?", *(() if name in GROUPS or chat.mine else (f"When did {name} last write?",)), f"How recent is the chat with {name}, which time is given?"), chat.time, named, time)


def ask_what_was_said(ui: Screen, chat: Chat, a: Text, b: Text) -> None:
    """Questions about the last message of a chat."""
    name, text, who = chat.name, chat.said.removeprefix("You: "), chat.author
    if chat.mine:
        ui.ask((f"What did I write to {name}?", f"What was my last message to {name}?"), text, a, b)
    elif who:
        ui.ask((f"Who wrote last in {name}?", f"Who sent the last message in {name}?", f"Whose message is the last one in the group {name}?"), who, a, b)
        ui.ask((f"What did {who} write in {name}?", f"What is the last message in {name}?", f"What was written last in the group {name}?"), text, a, b)
    else:
        ui.ask((f"What did {name} write?", f"What is the last message from {name}?", f"What does {name} say?", f"What did {name} send last?"), text, a, b)
        if text not in ("Photo", "Sticker"):
            ui.ask((f'Who wrote "{text}"?', f'Who sent the message "{text}"?', f'From whom is "{text}"?'), name, a, b)


def ask_about_unread(ui: Screen, chats: list[Chat], marks: list[Text], badges: list[Text]) -> None:
    """Questions about which chats have unread messages, and how many."""
    unread = [chat.unread for chat in chats]
    having = [chat.name for chat in chats if chat.unread]
    if len(having) == 1:
        ui.ask(("Who has sent unread messages?", "Which chat has unread messages?", "From whom are there new messages?"), having[0], marks, badges)
    elif unread.count(max(unread)) == 1:
        ui.ask(("Which chat has the most unread messages?", "From whom are the most unread messages?", "Where are most messages unread?"), chats[unread.index(max(unread))].name, marks, badges)
    ui.ask(("How many chats have unread messages?", "How many conversations are unread?", "In how many chats is there something new?"), str(len(having)), marks, badges)


def list_head(ui: Screen, top: Text) -> Element:
    """The name above the chats, and tabs below it in half of the lists."""
    r = ui.r
    lines: list[Element] = [Row([top, Icon("search", 0.9), Icon("menu", 0.9)], [1, None, None])]
    if r.chance(0.5):
        labels = ui.texts(r.sample(("All", "Unread", "Groups", "Favourites", "Calls", "Status"), 3), "small")
        lines.append(Row([Panel(t, 55 if k == 0 else 15, pad=(1.5, 0.4)) for k, t in enumerate(labels)], gap=1))
    return Panel(Column(lines, gap=0.8), 15, pad=(1.5, 1), square=True)


def chat_list(ui: Screen, app: str, contacts: Contacts, marking: bool) -> Element:
    """All chats; ``marking``: the open one is grey."""
    d, r = ui.d, ui.r
    top = ui.text(app if r.chance(0.7) else "Chats", "title")
    if top.text == app:
        ui.ask(("Which app is it?", "What is the messenger called?", "What is the name of the app?"), app, top)
    chats = draw_chats(r, contacts)
    shown = [chat_row(ui, chat, marking and i == contacts.open_one) for i, chat in enumerate(chats)]
    marks, badges = [name for _, name, _ in shown], [badge for *_, own in shown for badge in own]
    first, stranger = chats[0].name, contacts.persons[-1]
    ask_about_unread(ui, chats, marks, badges)
    ui.ask(("How many chats are listed?", "How many conversations are there?", "How many chats can I see?"), str(len(chats)), marks)
    ui.ask(("Which chat is at the top?", "Which conversation is the latest?", "Which chat had the most recent message?", "With whom is the first chat in the list?"), first, marks)
    if not all(chat.unread for chat in chats):
        d.absent(f"How many unread messages are there from {stranger}?", f"What did {stranger} write?")
    d.absent(f"What is the phone number of {first}?", f"How can I call {first}?")
    head = list_head(ui, top)
    return Column([head, Column([row for row, *_ in shown], gap=r.pick((0, 0.3)))])


def partner_of(contacts: Contacts, groups: bool) -> Partner:
    """Whom the open conversation is with; a person where ``groups`` are not wanted."""
    persons, name = contacts.persons, contacts.names[contacts.open_one]
    if name not in GROUPS:
        return Partner(name)
    return Partner(name, tuple(p.split()[0] for p in persons[-4:-1])) if groups else Partner(persons[contacts.open_one])


def conversation_head(ui: Screen, partner: Partner) -> tuple[Element, Text]:
    """The bar above a conversation, and the name in it."""
    r, name = ui.r, partner.name
    head = ui.text(name, "bold")
    state = r.pick(("online", "typing...", f"last seen {clock(r)}", f"last seen today at {clock(r)}")) if not partner.members else f"{r.randint(3, 40)} members"
    status = ui.text(state, "small", grey=True)
    ui.ask(("Who is the open conversation with?", "With whom is the chat?", "Whose chat is open?", "Who am I writing with?"), name, head)
    if partner.members:
        ui.ask((f"How many members does {name} have?", "How many people are in the group?", "How large is the group?"), state.split()[0], head, status)
    elif "seen" in state:
        ui.ask((f"When was {name} last seen?", f"When was {name} last online?", f"At what time was {name} last there?"), state.split()[-1], head, status)
    else:
        ui.d.absent(f"When was {name} last seen?", f"When was {name} last online?")
    return Panel(Row([Icon("left", 0.8), Icon("avatar", 1.5), Column([head, status])], [None, None, 1]), 15, pad=(1.5, 0.8), square=True), head


def day_line(ui: Screen) -> Element:
    """The day above the messages."""
    r = ui.r
    today = r.pick(("Today", "Yesterday", f"{r.pick(v.WEEKDAYS)}", f"{r.randint(1, 28)} {r.pick(v.MONTHS)}"))
    text = ui.text(today, "small")
    ui.ask(("Which day stands above the messages?", "Of which day are the messages?", "When was the conversation?"), today, text)
    return Row([Space(), Panel(text, 35, pad=(1.5, 0.3)), Space()], [1, None, 1])


def draw_messages(r: v.Rng, partner: Partner, minute: int) -> list[Message]:
    """Messages of a conversation that begins after that minute of the day."""
    messages = []
    for text, asks, _ in r.sample(talk(r, partner.name), r.randint(3, 7)):
        mine = r.chance(0.45)
        who = "" if mine else r.pick(partner.members) if partner.members else partner.name
        minute += r.randint(1, 25)
        messages.append(Message(text, asks, who, hm(minute), dark=mine and r.chance(0.5)))
    return messages


def bubble(ui: Screen, message: Message, in_group: bool, head: Text) -> tuple[Element, Text]:
    """A message with questions about it, at the left or, if it is mine, at the right; and its text."""
    text, who = message.text, message.who
    a, t = ui.text(text, wrap=True), ui.text(message.time, "small", grey=True, align="r")
    names = ui.texts([who] if who and in_group else [], "bold")
    for questions, answer in message.asks:
        ui.ask(questions, answer, a)
    ui.ask((f'When was "{text}" written?', f'At what time was "{text}" sent?', f'What is the time of the message "{text}"?'), message.time, a, t)
    if who:
        ui.ask((f'Who wrote "{text}"?', f'Who says "{text}"?', f'From whom is "{text}"?'), who, a, t, names, head)
    inside = Column([*names, a, t], gap=0.1)
    if message.dark:
        panel = Panel(inside, pad=(1.5, 0.6), dark=190)
    else:
        panel = Panel(inside, 15 if who else 45, 80, (1.5, 0.6))
    return Row([panel, Space()], [2.6, 1]) if who else Row([Space(), panel], [1, 2.6]), a


def ask_about_messages(ui: Screen, messages: list[Message], asked: list[Text], partner: Partner, head: Text) -> None:
    """Questions about how many messages a conversation shows."""
    ui.ask(("How many messages does the conversation show?", "How many messages can be seen in the open chat?", "How many bubbles are there?"), str(len(messages)), asked)
    if not partner.members:
        count = sum(1 for message in messages if message.who)
        ui.ask((f"How many of the messages are from {partner.name}?", f"How many messages in the open chat did {partner.name} write?"), str(count), asked, head)


def message_field(ui: Screen) -> Element:
    """Where the next message is written."""
    field = ui.text(ui.r.pick(("Message", "Type a message", "Write something...", "Aa")), "small", grey=True)
    return Panel(Row([Panel(field, 0, 110, (2, 0.7)), Icon("right", 0.9)], [1, None]), 15, pad=(1.5, 0.8), square=True)


def leave_messages_open(ui: Screen, messages: list[Message], partner: Partner, alone: bool) -> None:
    """Questions about what nobody wrote."""
    d, r, said = ui.d, ui.r, " ".join(message.text for message in messages)
    missing = [asks for text, asks, _ in talk(r, partner.name) if asks and text.split()[0] not in said]
    if missing and alone:
        d.absent(*r.pick(r.pick(missing))[0][:2])
    d.absent(f"Who founded {partner.name}?" if partner.members else f"How old is {partner.name}?", "Who sent a photo of the dog?")


def conversation(ui: Screen, partner: Partner, alone: bool) -> Element:
    """The messages of a chat; ``alone``: without the list of chats, whose last messages would answer some questions."""
    r = ui.r
    top, head = conversation_head(ui, partner)
    minute = r.randint(420, 1200)
    day = day_line(ui)
    messages = draw_messages(r, partner, minute)
    shown = [bubble(ui, message, bool(partner.members), head) for message in messages]
    bubbles, asked = [row for row, _ in shown], [text for _, text in shown]
    if alone:
        ui.ask(("What is the last message?", "What was written last?", "What is the newest message in the conversation?"), messages[-1].text, asked)
    ask_about_messages(ui, messages, asked, partner, head)
    foot = message_field(ui)
    leave_messages_open(ui, messages, partner, alone)
    return Column([top, Panel(Column([day, *bubbles], gap=1), pad=(1.5, 1), square=True), foot], elastic=1)


@kind("messenger", 1.8)
def messenger(d: Document) -> None:
    ui, r = Screen(d), d.r
    lists = d.shape[1] >= 640 or r.chance(0.5)
    talks = (d.shape[1] >= 640 and r.chance(0.7)) or not lists
    app = f"{v.name_word(r)}{r.pick(('', 'Chat', ' Messenger', ' Talk'))}"
    contacts = draw_contacts(r)
    panes = [chat_list(ui, app, contacts, talks)] if lists else []
    if talks:
        panes.append(conversation(ui, partner_of(contacts, lists), not lists))
    body = panes[0] if len(panes) == 1 else Row(panes, [1, 1.5], gap=0.5, top=True, panes=True)
    if d.shape[1] >= 640 or (ui.wide and r.chance(0.4)):
        ui.show(window(ui, ui.text(app), body) if r.chance(0.7) else body)
        return
    extra: list[Element] = []
    if lists and not talks and r.chance(0.5):
        extra = [Rule(), Panel(Row([Space(), *ui.texts(("Chats", "Calls", "Settings"), "small"), Space()], [1, None, None, None, 1], gap=6), pad=(1, 0.8))]
    ui.show(Column([phone_bar(ui), body, *extra], elastic=1))
