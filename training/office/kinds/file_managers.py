"""Windows of file managers: folders and files with sizes and dates, places at the side, free space below."""

# fmt: off

import datetime

from training.office.document import Document
from training.office.registry import kind
from training.office.screen import Bar, Column, Element, Icon, Panel, Row, Rule, Screen, Space, Text
from training.office.windows import window
from training.pages import values as v

STEMS = (
    "invoice", "holiday", "report", "backup", "photo", "contract", "budget", "minutes", "plan", "letter", "song", "scan", "list", "tickets", "recipe", "thesis", "logo", "map", "offer", "notes", "podcast",
    "manual", "timetable", "tax", "payroll", "draft", "garden", "kitchen", "wedding", "trip",
)
TYPES = {
    "pdf": "PDF document", "docx": "Word document", "xlsx": "Spreadsheet", "jpg": "JPEG image", "png": "PNG image", "mp3": "Audio file", "mp4": "Video", "zip": "Archive", "txt": "Text file", "pptx": "Presentation", "csv": "CSV file",
}
PLACES = ("Home", "Desktop", "Documents", "Downloads", "Music", "Pictures", "Videos", "Trash", "Network", "USB stick", "Backup", "Recent")


def entries(r: v.Rng, count: int) -> list[str]:
    """Names of files, none of which contains another's stem."""
    out: dict[str, str] = {}
    while len(out) < count:
        stem = r.pick(STEMS)
        if stem not in out:
            middle = r.pick((str(r.randint(2012, 2030)), f"{r.randint(1, 99):02d}", v.word(r).lower(), v.first_name(r), "final", "new", "copy"))
            out[stem] = f"{stem}{r.pick('_- ')}{middle}.{r.pick(tuple(TYPES))}"
    return list(out.values())


@kind("file_manager", 1.8)
def file_manager(d: Document) -> None:
    ui, r = Screen(d), d.r
    folder, user = r.pick((*PLACES[1:7], v.name_word(r), "Project", "Scans", "Tax 2024")), v.first_name(r).lower()
    path = r.pick((f"/home/{user}/{folder}", f"C:\\Users\\{user}\\{folder}", f"Home > {folder}", f"This PC > {folder}"))
    n, n_folders = r.randint(3, 9), r.choices((0, 1, 2, 3), (3, 2, 2, 1))[0]
    names = entries(r, n)
    folders = r.sample(("Archive", "Old", "Private", "Work", "School", "Shared", "2023", "2024", "Family", "Music for Anna"), n_folders)
    amounts = r.sample(range(2, 990), n)
    units = [r.pick(("MB", "MB", "GB") if name.endswith(("mp4", "zip")) else ("KB", "KB", "KB", "MB")) for name in names]
    amounts = [a % 60 + 1 if u == "GB" or (u == "MB" and not name.endswith(("mp4", "zip", "mp3"))) else a for a, u, name in zip(amounts, units, names, strict=True)]
    days = [datetime.datetime(2019, 1, 1) + datetime.timedelta(minutes=k) for k in r.sample(range(6 * 525600), n + n_folders)]
    style = r.pick(("%d.%m.%Y", "%Y-%m-%d", "%d/%m/%Y", "%d %b %Y", "%b %d, %Y"))
    style += r.pick(("", "", " %H:%M"))
    shown_days = [day.strftime(style) for day in days]
    tiles, typed = r.chance(0.2), ui.wide and d.shape[1] >= 700 and r.chance(0.6)
    sized, dated = not tiles or r.chance(0.5), not tiles and r.chance(0.9)
    rows: list[Element] = []
    name_texts, size_texts, day_texts = [], [], []
    selected = n_folders + r.randint(0, n - 1) if r.chance(0.5) else -1
    heads = ["Name", *(["Size"] if sized else []), *([r.pick(("Modified", "Date modified", "Changed", "Last change"))] if dated else []), *(["Type"] if typed else [])]
    weights = [4.6, *([1.5] if sized else []), *([2.8 if "H" in style else 2.2] if dated else []), *([2.6] if typed else [])]
    small = r.pick(("body", "small"))
    for i, name in enumerate([*folders, *names]):
        is_folder = i < n_folders
        a = ui.text(name)
        cells: list[Element] = [Row([Icon("folder" if is_folder else "file"), a], [None, 1], gap=1.5)]
        size = f"{amounts[i - n_folders]} {units[i - n_folders]}" if not is_folder else ""
        b = ui.text(size, small, align="r") if size and sized else None
        c = ui.text(shown_days[i], small) if dated else None
        cells += [b or Space()] if sized else []
        cells += [c] if c else []
        sort = ui.text("Folder" if is_folder else TYPES[name.rpartition(".")[2]], small, grey=True) if typed else None
        cells += [sort] if sort else []
        row: Element = Row(cells, weights, gap=2.5)
        if tiles:
            row = Column([Row([Space(), Icon("folder" if is_folder else "file", 2.2), Space()], [1, None, 1]), centred(a), *([centred(b)] if b else [])], gap=0.5)
        rows.append(Panel(row, pad=(1, 0.5), dark=200 if i == selected and not tiles else 0, fill=35 if i == selected and tiles else 0))
        name_texts.append(a)
        if is_folder:
            if c:
                ui.ask((f"When was the folder {name} changed?", f"What is the date of the folder {name}?", f"When was something last changed in {name}?"), shown_days[i], a, c)
            continue
        if b:
            size_texts.append(b)
            ui.ask((f"How large is {name}?", f"What is the size of {name}?", f"How big is {name}?", f"{name}: size?", f"How much space does {name} take?"), size, a, b)
        if c:
            day_texts.append(c)
            ui.ask((f"When was {name} changed?", f"What is the date of {name}?", f"When was {name} last modified?", f"When did someone last save {name}?"), shown_days[i], a, c)
        if sort:
            ui.ask((f"What type of file is {name}?", f"Which type does {name} have?", f"{name}: what sort of file?"), sort.text, a, sort)
    every, file_texts = name_texts, name_texts[n_folders:]
    power = {"KB": 1, "MB": 1000, "GB": 1000000}
    bytes_ = [a * power[u] for a, u in zip(amounts, units, strict=True)]
    if sized and len(set(bytes_)) == n:
        big, little = names[bytes_.index(max(bytes_))], names[bytes_.index(min(bytes_))]
        ui.ask(("Which file is the largest?", "What is the largest file?", "Which file takes up most space?", "What is the biggest file in the folder?"), big, file_texts, size_texts)
        ui.ask(("Which file is the smallest?", "What is the smallest file?", "Which file takes up least space?"), little, file_texts, size_texts)
    if dated:
        own = days[n_folders:]
        if len({day.date() for day in own}) == n:
            ui.ask(("Which file is the newest?", "What is the newest file?", "Which file was changed last?", "What was saved most recently?"), names[own.index(max(own))], file_texts, day_texts)
            ui.ask(("Which file is the oldest?", "What is the oldest file?", "Which file has not been changed for the longest time?"), names[own.index(min(own))], file_texts, day_texts)
    else:
        d.absent(f"When was {names[0]} changed?", f"What is the date of {names[0]}?", "Which file is the newest?")
    ends = [name.rpartition(".")[2] for name in names]
    for end in set(ends):
        if ends.count(end) == 1:
            ui.ask((f"What is the {end} file called?", f"What is the name of the .{end} file?", f"Which file ends in .{end}?", f"Which one is the {end} file?"), names[ends.index(end)], every)
        else:
            ui.ask((f"How many {end} files are there?", f"How many files end in .{end}?"), str(ends.count(end)), every)
    ui.ask(("How many files are in the folder?", "How many files are shown?", "Count the files."), str(n), every)
    if n_folders:
        ui.ask(("How many folders are there?", "How many subfolders does it have?", "How many folders are in the list?"), str(n_folders), every)
        ui.ask(("Which folders are there?", "What are the folders called?", "What are the names of the folders in the list?"), " and ".join(folders) if n_folders < 3 else ", ".join(folders), every[:n_folders])
    ui.ask(("What is the first file?", "Which file stands first?", "Which file is at the top of the files?"), names[0], every[: n_folders + 1])
    if selected >= 0:
        ui.ask(("Which file is selected?", "Which file is marked?", "What is the highlighted file?"), names[selected - n_folders], every)
    gone = next(name for name in entries(r, n + 4) if name.split("_")[0].split("-")[0].split(" ")[0] not in " ".join(names))
    d.absent(f"How large is {gone}?", f"When was {gone} changed?", f"What is the size of {gone}?")
    d.absent(f"Who created {names[-1]}?", f"Who is the author of {names[-1]}?", "Who made the newest file?")
    if tiles:
        across = 4 if d.shape[1] >= 640 else 3
        padded = [*rows, *[Space() for _ in range(-len(rows) % across)]]
        body: Element = Column([Row(padded[i : i + across], [1] * across, gap=1, top=True, panes=True) for i in range(0, len(padded), across)], gap=1.5)
    else:
        head = Row(ui.texts(heads, "small", grey=r.chance(0.5)), weights, gap=2.5)
        body = Column([Panel(head, pad=(1, 0.3)), Rule(), *rows])
    free = f"{r.randint(1, 900)}{r.pick(('', '.' + str(r.randint(1, 9))))} {r.pick(('GB', 'GB', 'TB', 'MB'))}"
    status = None
    if r.chance(0.75):
        total = ui.text(f"{n + n_folders} {r.pick(('items', 'objects', 'elements'))}", "small")
        right = ui.text(r.pick((f"{free} free", f"Free space: {free}", f"{free} available")), "small") if r.chance(0.75) else None
        status = Row([total, Space(), *([right] if right else [])], [None, 1, *([None] if right else [])])
        ui.ask(("How many items are there?", "How many items does the status bar count?", "How many items does the folder hold?"), str(n + n_folders), total)
        if right:
            ui.ask(("How much space is free?", "How much free space is left?", "How much room is left on the disk?", "What does the window say about free space?"), free, right)
        else:
            d.absent("How much space is free?", "How much room is left on the disk?")
    else:
        d.absent("How much space is free?", "How much room is left on the disk?")
    where = ui.text(path, "body")
    ui.ask(("Which path is shown?", "What is the path of the folder?", "What does the address bar say?", "Where are the files stored?"), path, where)
    ui.ask(("Which folder is open?", "What is the name of the open folder?", "In which folder are we?"), folder, where)
    tools = Row([Icon("left", 0.7), Icon("right", 0.7), Icon("up", 0.7), Panel(where, 0, 110, (1.5, 0.6)), Icon("search", 0.8)], [None, None, None, 1, None])
    content: Element = Panel(body, pad=(1.5, 1), square=True)
    if ui.wide and r.chance(0.75):
        places = r.sample(PLACES, r.randint(4, 8))
        texts: list[Text] = [ui.text(place, "small") for place in places]
        side: list[Element] = [Panel(Row([Icon("folder", 0.6), t], [None, 1], gap=1.2), 50 if t.text == folder else 0, pad=(0.6, 0.4)) for t in texts]
        if r.chance(0.35):
            share, disk = r.randint(15, 97), r.pick(("Disk", "System (C:)", "Data (D:)"))
            used = ui.text(f"{disk}: {share}% used", "small")
            side += [Space(1), used, Bar(share / 100)]
            ui.ask(("How full is the disk?", "How many percent of the disk are used?"), f"{share}%", used)
        ui.ask(("Which places are listed at the side?", "What stands in the side bar?", "Which places are in the left column?"), ", ".join(places), texts)
        ui.ask(("How many places are in the side bar?", "How many entries does the left column have?"), str(len(places)), texts)
        content = Row([Panel(Column(side, gap=0.4), 20, pad=(1, 1), square=True), content], [1, 3.4], gap=0, top=True, panes=True)
    title = ui.text(r.pick((folder, f"{folder} - Files", "Files", f"{folder} - File Manager", "Explorer")))
    menus = ("File", "Edit", "View", "Go", "Help") if r.chance(0.4) else ()
    if not ui.wide and r.chance(0.5):
        d.absent("What is the battery level?", "How full is the battery?")
    ui.show(window(ui, title, Column([Panel(tools, 15, pad=(1.5, 0.8), square=True), content], elastic=1), menus, status))


def centred(text: Text) -> Text:
    text.align = "c"
    return text
