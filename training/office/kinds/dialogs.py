"""Dialogs of programs (tabs, paths, check boxes, buttons) and the notifications of a phone."""

# fmt: off

from training.office.document import Document
from training.office.registry import kind
from training.office.screen import Bar, Column, Element, Icon, Panel, Row, Rule, Screen, Space, Text
from training.office.values import Money, first_name, person
from training.office.windows import clock, phone_bar, window
from training.pages import values as v

TABS = ("General", "Display", "Network", "Privacy", "Sound", "Accounts", "Advanced", "Updates", "Storage", "Keyboard", "Editor", "Export", "Backup", "Printing")
BOXES = (
    "Start with the computer", "Check for updates", "Show hidden files", "Save automatically", "Play a sound", "Use dark mode", "Ask before closing", "Show line numbers", "Check spelling", "Keep a backup copy", "Send crash reports",
    "Remember open tabs", "Encrypt the backup", "Show tips", "Use a proxy", "Wrap long lines", "Delete after upload", "Notify by email", "Sync over mobile data", "Compress pictures",
)
FOLDERS = ("Save files in", "Backup folder", "Download folder", "Export to", "Temporary files", "Database", "Log file", "Templates")
LISTS = (
    ("Language", ("English", "Deutsch", "Français", "Español", "Polski")), ("Theme", ("Light", "Dark", "System")), ("Font size", ("10 pt", "11 pt", "12 pt", "14 pt")), ("Paper size", ("A4", "A5", "Letter", "Legal")), ("Quality", ("Low", "Medium", "High", "Best")), ("Resolution", ("1280 x 720", "1920 x 1080", "2560 x 1440")),
    ("Output device", ("Speakers", "Headphones", "HDMI")), ("Format", ("PDF", "PNG", "CSV", "JPEG")), ("Encoding", ("UTF-8", "Latin-1", "UTF-16")), ("Time zone", ("UTC", "UTC+1", "UTC-5", "UTC+9")), ("Printer", ("Office 2", "Laser Hall", "Inkjet", "PDF printer")), ("Refresh rate", ("60 Hz", "75 Hz", "120 Hz", "144 Hz")),
)
NUMBERS = (("Port", 1, 9999, ""), ("Timeout", 5, 120, " s"), ("Keep backups for", 3, 90, " days"), ("Largest file size", 5, 500, " MB"), ("Volume", 0, 100, " %"), ("Brightness", 5, 100, " %"), ("Autosave every", 1, 60, " min"), ("Tab width", 2, 8, ""), ("History", 10, 999, " entries"), ("Zoom", 50, 200, " %"))
RADIOS = (("Open new files in", ("a new tab", "a new window", "the same window")), ("When closing", ("Quit", "Minimise", "Ask me")), ("Updates", ("Install automatically", "Only download", "Never")), ("Back up", ("Every day", "Every week", "By hand")), ("Page margins", ("Narrow", "Normal", "Wide")), ("Show dates as", ("31.12.", "12/31", "31 Dec")))


def folder_fields(ui: Screen, user: str) -> list[Element]:
    """Paths with a button each, or none."""
    d, r = ui.d, ui.r
    blocks: list[Element] = []
    for label in r.sample(FOLDERS, r.randint(0, 2)):
        path = r.pick((f"/home/{user}/{v.word(r).lower()}", f"C:\\Users\\{user}\\{v.name_word(r)}", f"D:\\{v.name_word(r)}", f"/mnt/{v.word(r).lower()}/{v.word(r).lower()}", f"~/{v.name_word(r)}/{v.word(r).lower()}"))
        a, b = ui.text(f"{label}:"), ui.text(path)
        browse, _ = ui.button(r.pick(("Browse...", "Change...", "...")))
        blocks.append(Column([a, Row([Panel(b, 0, 120, (1, 0.5)), browse], [1, None], gap=1)], gap=0.4))
        low = label[0].lower() + label[1:]
        ui.ask((f'Which path is given for "{label}"?', f"What is entered under {label}?", f"Which folder is set for {label}?", *((f"Where is the {low}?", f"What is the path of the {low}?") if label not in ("Save files in", "Export to", "Temporary files", "Templates") else ())), path, a, b)
    if not blocks:
        d.absent("In which folder are the files saved?", "Which path is set?", "What is the path of the backup folder?")
    return blocks


def drop_downs(ui: Screen) -> list[Element]:
    """Lists of which one value is shown."""
    r = ui.r
    blocks: list[Element] = []
    lists = r.sample(LISTS, r.randint(1, 4))
    for label, values in lists:
        value = r.pick(values)
        a, b = ui.text(r.pick((label, f"{label}:"))), ui.text(value)
        blocks.append(Row([a, Panel(Row([b, Icon("down", 0.6)], [1, None]), 0, 120, (1, 0.5))], [1, 1.2]))
        low = label.lower()
        ui.ask((f"What is the {low} set to?", f"Which {low} is set?", f"Which {low} is selected?", f"{label}: what is chosen?", f"What {low} did the user pick?"), value, a, b)
    gone = r.pick([label for label, _ in LISTS if label not in dict(lists)]).lower()
    ui.d.absent(f"What is the {gone} set to?", f"Which {gone} is selected?", f"Which {gone} is set?")
    return blocks


def number_fields(ui: Screen) -> list[Element]:
    """Numbers in fields or, of percentages, beside sliders."""
    r = ui.r
    blocks: list[Element] = []
    for label, least, most, unit in r.sample(NUMBERS, r.randint(0, 3)):
        n = r.randint(least, most)
        a, b = ui.text(label), ui.text(f"{n}{unit}")
        slider = unit == " %" and r.chance(0.6)
        blocks.append(Row([a, Bar(min((n - least) / (most - least), 1)), b], [1, 1.2, None]) if slider else Row([a, Panel(b, 0, 120, (1, 0.5)), Space()], [1, 0.6, 0.6]))
        ui.ask((f'What is "{label}" set to?', f"Which value is set for {label.lower()}?", f"What number stands beside {label}?", f"{label}: which value?"), f"{n}{unit}", a, b)
    return blocks


def radio_buttons(ui: Screen) -> list[Element]:
    """Options of which one is chosen."""
    r = ui.r
    blocks: list[Element] = []
    for label, options in r.sample(RADIOS, r.randint(0, 2)):
        pick = r.randint(0, len(options) - 1)
        a, texts = ui.text(label, "bold"), ui.texts(options)
        dots: list[Element] = [Row([Icon("chosen" if i == pick else "radio", 0.75), t], [None, 1], gap=1) for i, t in enumerate(texts)]
        wide = ui.wide and r.chance(0.5)
        blocks.append(Column([a, Row(dots, [1] * len(dots)) if wide else Column(dots, gap=0.4)], gap=0.4))
        ui.ask((f'What is chosen under "{label}"?', f"Which option is selected for {label}?", f"{label}: which of the options is marked?", f"What is selected below {label}?"), options[pick], a, texts)
    return blocks


def check_boxes(ui: Screen) -> Element:
    """Options that are on or off, as boxes or as switches."""
    r = ui.r
    chosen = r.sample(BOXES, r.randint(3, 7))
    ticks = [r.chance(0.5) for _ in chosen]
    switches = r.chance(0.25)
    texts = ui.texts(chosen)
    boxes = []
    for on, t in zip(ticks, texts, strict=True):
        boxes.append(Row([t, Icon("on" if on else "off", 1.2)], [1, None]) if switches else Row([Icon("ticked" if on else "box", 0.8), t], [None, 1], gap=1.2))
    ask_what_is_ticked(ui, ticks, texts, switches)
    ticked = "switched on" if switches else "ticked"
    for i in r.sample(range(len(chosen)), min(3, len(chosen))):
        ui.ask((f'Is "{chosen[i]}" {ticked}?', f'Is "{chosen[i]}" on or off: {ticked}, yes or no?', f"Did the user choose {chosen[i][0].lower() + chosen[i][1:]}, yes or no?"), "yes" if ticks[i] else "no", texts[i])
    other = r.pick([b for b in BOXES if b not in chosen])
    ui.d.absent(f'Is "{other}" {ticked}?', f'Is "{other}" on or off?')
    return Column(boxes, gap=0.6)


def ask_what_is_ticked(ui: Screen, ticks: list[bool], texts: list[Text], switches: bool) -> None:
    """Questions about all boxes or switches: which are on, which are not, how many."""
    ticked = "switched on" if switches else "ticked"
    on_names, off_names = [[t.text for on, t in zip(ticks, texts, strict=True) if on is state] for state in (True, False)]
    if len(on_names) == 1:
        ui.ask((f"What is {ticked}?", f"Which option is {ticked}?", f"Which of the options is {ticked}?") if switches else ("What is ticked?", "Which box is ticked?", "Which check box is checked?", "Which option has a tick?"), on_names[0], texts)
    elif 1 < len(on_names) < 4:
        ui.ask((f"Which options are {ticked}?", f"What is {ticked}?", f"Name the options that are {ticked}."), " and ".join(on_names) if len(on_names) == 2 else ", ".join(on_names), texts)
    if len(off_names) == 1:
        ui.ask((f"Which option is not {ticked}?", f"What is not {ticked}?", f"Which one is not {ticked}?"), off_names[0], texts)
    ui.ask((f"How many options are {ticked}?", f"How many of them are {ticked}?", "How many switches are on?" if switches else "How many boxes are ticked?"), str(len(on_names)), texts)
    ui.ask(("How many switches are there?",) if switches else ("How many check boxes are there?", "How many boxes can be ticked?"), str(len(texts)), texts)


def tab_texts(ui: Screen) -> tuple[list[Text], int]:
    """The names of the tabs, and which one is open."""
    r = ui.r
    tabs = r.sample(TABS, r.randint(3, 6))
    open_tab = r.randint(0, len(tabs) - 1)
    texts = [ui.text(t, "body" if i != open_tab else "bold") for i, t in enumerate(tabs)]
    ui.ask(("Which tab is open?", "Which tab is selected?", "Which page of the settings is shown?", "On which tab are we?"), tabs[open_tab], texts)
    ui.ask(("Which tabs are there?", "What are the tabs called?", "What pages do the settings have?"), ", ".join(tabs), texts)
    ui.ask(("How many tabs are there?", "How many pages do the settings have?"), str(len(tabs)), texts)
    return texts, open_tab


def bottom_buttons(ui: Screen) -> Element:
    r = ui.r
    names = r.pick((("OK", "Cancel"), ("OK", "Cancel", "Apply"), ("Save", "Discard"), ("Help", "Reset", "Close"), ("Defaults", "OK", "Cancel"), ("Apply", "Close")))
    made = [ui.button(b, i == len(names) - 1 and r.chance(0.5)) for i, b in enumerate(names)]
    texts = [t for _, t in made]
    ui.ask(("Which buttons are at the bottom?", "What buttons does the dialog have?", "Which buttons are there?", "What can be clicked at the bottom?"), " and ".join(names) if len(names) == 2 else ", ".join(names), texts)
    ui.ask(("How many buttons are at the bottom?", "How many buttons are in the bottom row?"), str(len(names)), texts)
    return Panel(Row([Space(), *(b for b, _ in made)], [1, *[None] * len(made)], gap=1.5), pad=(2, 1), square=True)


def with_tabs(ui: Screen, content: Element, texts: list[Text], open_tab: int) -> Element:
    """Tabs at the side of the content or above it."""
    if ui.wide and ui.r.chance(0.5):
        side = Column([Panel(t, 60 if i == open_tab else 0, pad=(1, 0.6)) for i, t in enumerate(texts)], gap=0.3)
        return Row([Panel(side, 20, pad=(0.8, 1), square=True), content], [1, 3], gap=0, top=True, panes=True)
    strip = Row([Panel(t, 0 if i == open_tab else 40, 110, (1.2, 0.5), square=True) for i, t in enumerate(texts)], gap=0.3)
    return Column([Panel(strip, 15, pad=(1.5, 0.8), square=True), content], elastic=1)


@kind("settings_dialog", 1.2)
def settings_dialog(d: Document) -> None:
    ui, r = Screen(d), d.r
    name, user = f"{v.name_word(r)}{r.pick((' Editor', ' Backup', ' Player', ' Mail', ' Scan', ' Draw', ''))}", v.first_name(r).lower()
    title = ui.text(r.pick((f"{name} - Settings", f"Preferences - {name}", f"{name} Options", f"Settings - {name}")))
    ui.ask(("Which program do the settings belong to?", "What is the program called?", "Which program is it?", "The settings of which program are shown?"), name, title)
    blocks = [*folder_fields(ui, user), *drop_downs(ui), *number_fields(ui), *radio_buttons(ui), check_boxes(ui)]
    r.shuffle(blocks)
    tabs, open_tab = tab_texts(ui)
    foot = bottom_buttons(ui)
    d.absent("Which version of the program is it?", "What is the version number?", f"Who made {name}?")
    content = Panel(Column(blocks, gap=r.pick((1.2, 1.8, 2.4))), pad=(3, 2), square=True)
    body = with_tabs(ui, content, tabs, open_tab)
    ui.show(window(ui, title, Column([body, Rule(), foot], elastic=0)))


@kind("phone_notifications", 0.9)
def phone_notifications(d: Document) -> None:
    """What a phone shows on its lock screen or when its top is pulled down."""
    ui, r, money = Screen(d), d.r, Money(d.r)
    now = r.randint(0, 1439)
    time = f"{now // 60:02d}:{now % 60:02d}"
    weekday, day, month = r.pick(v.WEEKDAYS), r.randint(1, 28), r.pick(v.MONTHS)
    lock = r.chance(0.6)
    date = ui.text(r.pick((f"{weekday}, {day} {month}", f"{weekday[:3]}, {month[:3]} {day}", f"{weekday} {day} {month}")), "body", align="c")
    top: list[Element] = []
    bar = phone_bar(ui, time)
    if lock:
        big = ui.text(time, "large", align="c")
        top = [Space(1), big, date]
        ui.ask(("What time is it?", "How late is it?", "What time does the lock screen show?", "Which time is shown in large digits?"), time, big)
    else:
        date.align = "l"
        quick = r.sample(("Wi-Fi", "Bluetooth", "Torch", "Location", "Flight mode", "Hotspot", "Silent"), 4)
        states = [r.chance(0.5) for _ in quick]
        labels = [ui.text(q, "small", align="c") for q in quick]
        top = [date, Row([Panel(t, 0 if on else 30, 0 if on else 70, (0.8, 1), dark=210 if on else 0) for t, on in zip(labels, states, strict=True)], [1] * 4, gap=1)]
        ui.ask(("Which quick settings are there?", "What can be switched at the top?", "Which switches are shown?"), ", ".join(quick), labels)
    ui.ask(("What is the date?", "Which day is it?", "What is today's date on the phone?", "Which date does the phone show?"), date.text, date)
    first, other, city, amount = first_name(r), person(r), v.city(r), money(money.round(r, 2, 400))
    shop, n, m = v.name_word(r), r.randint(2, 40), r.randint(2, 30)
    later = clock(r)
    pool = (
        ("Messages", other, "Are you coming tonight?", [((f"What did {other} ask?", f"What does {other} want to know?", f"What did {other} write?"), "Are you coming tonight?", 1), (("Who sent a message?", "Who wrote a message?", "From whom is the message?"), other, 1)]),
        ("Bank", "Card payment", f"{amount} paid at {shop}", [(("How much was paid by card?", "What is the amount of the card payment?", "How much money was spent?"), amount, 1), (("Where was the card used?", "To whom was the money paid?", "At which shop was it paid?"), shop, 1)]),
        ("Weather", city, f"Rain from {later}, {r.randint(-5, 32)}\u00b0", [(("From when will it rain?", "When does the rain begin?", "At what time is rain expected?"), later, 1), (("For which town is the weather?", "Which city is the weather for?"), city, 1)]),
        ("Parcel", "Your delivery", f"{n} stops away, today by {later}", [(("How many stops away is the parcel?", "How many stops are left before my parcel?"), str(n), 1), (("By when will the parcel come?", "When is the delivery expected?", "Until what time will it be delivered?"), later, 1)]),
        ("Calendar", f"Meeting with {first}", f"{later}, Room {m}", [((f"When is the meeting with {first}?", f"At what time do I meet {first}?", "At what time is the meeting?"), later, 1), (("In which room is the meeting?", "Where is the meeting?"), f"Room {m}", 1), (("With whom is the meeting?", "Who is the meeting with?"), first, 1)]),
        ("Phone", "Missed call", f"{first} ({r.randint(2, 5)} calls)", [(("Who called?", "Whose call was missed?", "From whom is the missed call?"), first, 1)]),
        ("System", "Update available", f"Version {m}.{r.randint(0, 9)}, {n} MB", [(("How large is the update?", "How many megabytes does the update have?"), f"{n} MB", 1)]),
        ("Battery", "Battery saver", f"Switched on at {r.randint(5, 25)} %", []),
        ("Steps", "Daily goal", f"{r.randint(1, 9)},{r.randint(100, 999)} of 10,000 steps", [(("What is the goal in steps?", "How many steps is the daily goal?"), "10,000", 1)]),
        ("Music", v.phrase(r).capitalize(), person(r), []),
        ("Backup", "Backup complete", f"{n}{r.randint(10, 99)} photos saved", []),
        ("Trains", f"Train to {city}", f"{n} minutes late, platform {m}", [(("How late is the train?", "By how many minutes is the train delayed?", "What is the delay of the train?"), f"{n} minutes", 1), (("Which platform does the train leave from?", "What is the platform of the train?"), str(m), 1), (("Where does the train go?", "Which train is late?"), city, 1)]),
        ("Alarm", "Next alarm", f"Tomorrow {later}", [(("When will the alarm ring?", "For when is the alarm set?", "What time is the next alarm?"), later, 1)]),
    )
    count = r.randint(3, 7)
    chosen = r.sample(range(len(pool)), count)
    ages = sorted(r.sample(range(1, 59), count))
    far = [k for k in range(count) if r.chance(0.3) and k > count // 2]
    cards: list[Element] = []
    heads: list[Text] = []
    style = r.randint(0, 2)
    whens = []
    for k, i in enumerate(chosen):
        app, title, text, asks = pool[i]
        when = "now" if not k and r.chance(0.3) else f"{k} h ago" if k in far and k == count - 1 else (f"{ages[k]} min ago", f"{ages[k]}m", f"{(now - ages[k]) % 1440 // 60:02d}:{(now - ages[k]) % 60:02d}")[style]
        whens.append(when)
        a, t, b, w = ui.text(app, "small"), ui.text(title, "bold"), ui.text(text, wrap=True), ui.text(when, "small", grey=True)
        heads.append(a)
        cards.append(Panel(Row([Icon("app", 1.3), Column([Row([a, w], [1, None]), t, b], gap=0.2)], [None, 1], gap=1.8), r.pick((0, 20)) if k == 0 else 20, r.pick((0, 80)), (1.4, 1)))
        for questions, answer, _ in asks:
            ui.ask(questions, answer, t, b)
        ui.ask((f"What does the notification of {app} say?", f"What is the text of the {app} notification?", f"What does {app} report?"), text, a, b)
        ui.ask((f"When did the notification from {app} come?", f"How old is the {app} notification?", f"Which time stands beside {app}?"), when, a, w)
        ui.ask((f'Which app says "{title}"?', f'From which app is "{title}"?', f'Which app sent "{title}"?'), app, a, t)
    ui.ask(("How many notifications are there?", "How many apps have sent something?", "Count the notifications."), str(count), heads)
    ui.ask(("Which app sent the newest notification?", "Which app is at the top of the notifications?", "From which app is the first notification?"), pool[chosen[0]][0], heads)
    ui.ask(("Which notification is the last one?", "Which app is at the bottom of the list?", "From which app is the oldest notification?"), pool[chosen[-1]][0], heads)
    left = [k for k in range(len(pool)) if k not in chosen and pool[k][3]]
    for k in r.sample(left, 2):
        d.absent(*pool[k][3][0][0])
    clear = [Row([Space(), ui.button(r.pick(("Clear all", "Manage", "Delete all")))[0]], [1, None])] if r.chance(0.5) else []
    body = Panel(Column([*top, Space(0.5), *cards, *clear], gap=r.pick((0.8, 1.2))), pad=(2, 1), square=True)
    ui.show(Column([bar, body], elastic=1), dark=0.5)
