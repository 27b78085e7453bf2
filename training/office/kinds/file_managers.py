"""Windows of file managers: folders and files with sizes and dates, places at the side, free space below."""

# fmt: off

import datetime
from dataclasses import dataclass

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
UNITS = {"KB": 1, "MB": 1000, "GB": 1000000}  # in kilobytes


@dataclass(frozen=True)
class Item:
    """A file, or a folder, which has no size; ``date`` and ``size`` are as shown."""

    name: str
    day: datetime.datetime
    date: str
    size: str
    kilobytes: int


@dataclass(frozen=True)
class Folder:
    """What is in the open folder; ``timed``: dates have a time of day."""

    folders: list[Item]
    files: list[Item]
    timed: bool


@dataclass(frozen=True)
class View:
    """How a folder is shown: as tiles or in columns; ``selected`` counts folders and files, or is -1."""

    tiles: bool
    sized: bool
    dated: bool
    typed: bool
    selected: int
    heads: list[str]
    weights: list[float]
    face: str  # of all but names


@dataclass(frozen=True)
class Texts:
    """What the window says about one item."""

    name: Text
    size: Text | None
    date: Text | None
    sort: Text | None


def entries(r: v.Rng, count: int) -> list[str]:
    """Names of files, none of which contains another's stem."""
    out: dict[str, str] = {}
    while len(out) < count:
        stem = r.pick(STEMS)
        if stem not in out:
            middle = r.pick((str(r.randint(2012, 2030)), f"{r.randint(1, 99):02d}", v.word(r).lower(), v.first_name(r), "final", "new", "copy"))
            out[stem] = f"{stem}{r.pick('_- ')}{middle}.{r.pick(tuple(TYPES))}"
    return list(out.values())


def draw_folder(r: v.Rng) -> Folder:
    n, n_folders = r.randint(3, 9), r.choices((0, 1, 2, 3), (3, 2, 2, 1))[0]
    names = entries(r, n)
    folders = r.sample(("Archive", "Old", "Private", "Work", "School", "Shared", "2023", "2024", "Family", "Music for Anna"), n_folders)
    sizes = [("", 0)] * n_folders + draw_sizes(r, names)
    days = [datetime.datetime(2019, 1, 1) + datetime.timedelta(minutes=k) for k in r.sample(range(6 * 525600), n + n_folders)]
    style = r.pick(("%d.%m.%Y", "%Y-%m-%d", "%d/%m/%Y", "%d %b %Y", "%b %d, %Y"))
    style += r.pick(("", "", " %H:%M"))
    items = [Item(name, day, day.strftime(style), *size) for name, day, size in zip([*folders, *names], days, sizes, strict=True)]
    return Folder(items[:n_folders], items[n_folders:], "H" in style)


def draw_sizes(r: v.Rng, names: list[str]) -> list[tuple[str, int]]:
    """Sizes that files with such endings have, as shown and in kilobytes."""
    amounts = r.sample(range(2, 990), len(names))
    units = [r.pick(("MB", "MB", "GB") if name.endswith(("mp4", "zip")) else ("KB", "KB", "KB", "MB")) for name in names]
    sizes = []
    for amount, unit, name in zip(amounts, units, names, strict=True):
        if unit == "GB" or (unit == "MB" and not name.endswith(("mp4", "zip", "mp3"))):
            amount = amount % 60 + 1
        sizes.append((f"{amount} {unit}", amount * UNITS[unit]))
    return sizes


def draw_view(ui: Screen, folder: Folder) -> View:
    r = ui.r
    tiles, typed = r.chance(0.2), ui.wide and ui.d.shape[1] >= 700 and r.chance(0.6)
    sized, dated = not tiles or r.chance(0.5), not tiles and r.chance(0.9)
    selected = len(folder.folders) + r.randint(0, len(folder.files) - 1) if r.chance(0.5) else -1
    heads = ["Name", *(["Size"] if sized else []), *([r.pick(("Modified", "Date modified", "Changed", "Last change"))] if dated else []), *(["Type"] if typed else [])]
    weights = [4.6, *([1.5] if sized else []), *([2.8 if folder.timed else 2.2] if dated else []), *([2.6] if typed else [])]
    return View(tiles, sized, dated, typed, selected, heads, weights, r.pick(("body", "small")))


def item_texts(ui: Screen, item: Item, view: View) -> Texts:
    name = ui.text(item.name)
    size = ui.text(item.size, view.face, align="r") if item.size and view.sized else None
    date = ui.text(item.date, view.face) if view.dated else None
    sort = ui.text(TYPES[item.name.rpartition(".")[2]] if item.size else "Folder", view.face, grey=True) if view.typed else None
    return Texts(name, size, date, sort)


def item_panel(item: Item, texts: Texts, view: View, marked: bool) -> Element:
    """A row or a tile, dark or grey if it is the ``marked`` one."""
    shape = "file" if item.size else "folder"
    if view.tiles:
        picture = Row([Space(), Icon(shape, 2.2), Space()], [1, None, 1])
        tile = Column([picture, *(centred(t) for t in (texts.name, texts.size) if t)], gap=0.5)
        return Panel(tile, pad=(1, 0.5), fill=35 if marked else 0)
    cells: list[Element] = [Row([Icon(shape), texts.name], [None, 1], gap=1.5)]
    cells += [texts.size or Space()] if view.sized else []
    cells += [t for t in (texts.date, texts.sort) if t]
    return Panel(Row(cells, view.weights, gap=2.5), pad=(1, 0.5), dark=200 if marked else 0)


def ask_about_folder(ui: Screen, folder: Item, texts: Texts) -> None:
    name, a, c = folder.name, texts.name, texts.date
    if c:
        ui.ask((f"When was the folder {name} changed?", f"What is the date of the folder {name}?", f"When was something last changed in {name}?"), folder.date, a, c)


def ask_about_file(ui: Screen, file: Item, texts: Texts) -> None:
    name, a, b, c, sort = file.name, texts.name, texts.size, texts.date, texts.sort
    if b:
        ui.ask((f"How large is {name}?", f"What is the size of {name}?", f"How big is {name}?", f"{name}: size?", f"How much space does {name} take?"), file.size, a, b)
    if c:
        ui.ask((f"When was {name} changed?", f"What is the date of {name}?", f"When was {name} last modified?", f"When did someone last save {name}?"), file.date, a, c)
    if sort:
        ui.ask((f"What type of file is {name}?", f"Which type does {name} have?", f"{name}: what sort of file?"), sort.text, a, sort)


def compare_files(ui: Screen, files: list[Item], texts: list[Texts], view: View) -> None:
    """Questions about the largest, the smallest, the newest and the oldest file."""
    names, named = [file.name for file in files], [t.name for t in texts]
    sizes, days = [file.kilobytes for file in files], [file.day for file in files]
    size_texts, date_texts = [t.size for t in texts if t.size], [t.date for t in texts if t.date]
    if view.sized and len(set(sizes)) == len(files):
        big, little = names[sizes.index(max(sizes))], names[sizes.index(min(sizes))]
        ui.ask(("Which file is the largest?", "What is the largest file?", "Which file takes up most space?", "What is the biggest file in the folder?"), big, named, size_texts)
        ui.ask(("Which file is the smallest?", "What is the smallest file?", "Which file takes up least space?"), little, named, size_texts)
    if not view.dated:
        ui.d.absent(f"When was {names[0]} changed?", f"What is the date of {names[0]}?", "Which file is the newest?")
    elif len({day.date() for day in days}) == len(files):
        ui.ask(("Which file is the newest?", "What is the newest file?", "Which file was changed last?", "What was saved most recently?"), names[days.index(max(days))], named, date_texts)
        ui.ask(("Which file is the oldest?", "What is the oldest file?", "Which file has not been changed for the longest time?"), names[days.index(min(days))], named, date_texts)


def ask_about_endings(ui: Screen, names: list[str], every: list[Text]) -> None:
    ends = [name.rpartition(".")[2] for name in names]
    for end in dict.fromkeys(ends):
        if ends.count(end) == 1:
            ui.ask((f"What is the {end} file called?", f"What is the name of the .{end} file?", f"Which file ends in .{end}?", f"Which one is the {end} file?"), names[ends.index(end)], every)
        else:
            ui.ask((f"How many {end} files are there?", f"How many files end in .{end}?"), str(ends.count(end)), every)


def ask_about_list(ui: Screen, folder: Folder, every: list[Text], selected: int) -> None:
    """Questions about how many files and folders there are, the first and the selected one."""
    folders, names, n = [item.name for item in folder.folders], [item.name for item in folder.files], len(folder.folders)
    ui.ask(("How many files are in the folder?", "How many files are shown?", "Count the files."), str(len(names)), every)
    if folders:
        ui.ask(("How many folders are there?", "How many subfolders does it have?", "How many folders are in the list?"), str(n), every)
        ui.ask(("Which folders are there?", "What are the folders called?", "What are the names of the folders in the list?"), " and ".join(folders) if n < 3 else ", ".join(folders), every[:n])
    ui.ask(("What is the first file?", "Which file stands first?", "Which file is at the top of the files?"), names[0], every[: n + 1])
    if selected >= 0:
        ui.ask(("Which file is selected?", "Which file is marked?", "What is the highlighted file?"), names[selected - n], every)


def leave_files_open(ui: Screen, names: list[str]) -> None:
    """Questions about a file that is not there, and about who made one that is."""
    d = ui.d
    gone = next(name for name in entries(ui.r, len(names) + 4) if name.split("_")[0].split("-")[0].split(" ")[0] not in " ".join(names))
    d.absent(f"How large is {gone}?", f"When was {gone} changed?", f"What is the size of {gone}?")
    d.absent(f"Who created {names[-1]}?", f"Who is the author of {names[-1]}?", "Who made the newest file?")


def listing(ui: Screen, folder: Folder, view: View) -> Element:
    """Folders and files, with questions about them."""
    items, n_folders, names = [*folder.folders, *folder.files], len(folder.folders), [file.name for file in folder.files]
    texts, panels = [], []
    for i, item in enumerate(items):
        own = item_texts(ui, item, view)
        texts.append(own)
        panels.append(item_panel(item, own, view, i == view.selected))
        (ask_about_file if item.size else ask_about_folder)(ui, item, own)
    every = [t.name for t in texts]
    compare_files(ui, folder.files, texts[n_folders:], view)
    ask_about_endings(ui, names, every)
    ask_about_list(ui, folder, every, view.selected)
    leave_files_open(ui, names)
    return tiles_of(panels, 4 if ui.d.shape[1] >= 640 else 3) if view.tiles else table_of(ui, panels, view)


def tiles_of(panels: list[Element], across: int) -> Element:
    padded = [*panels, *[Space() for _ in range(-len(panels) % across)]]
    return Column([Row(padded[i : i + across], [1] * across, gap=1, top=True, panes=True) for i in range(0, len(padded), across)], gap=1.5)


def table_of(ui: Screen, panels: list[Element], view: View) -> Element:
    head = Row(ui.texts(view.heads, "small", grey=ui.r.chance(0.5)), view.weights, gap=2.5)
    return Column([Panel(head, pad=(1, 0.3)), Rule(), *panels])


def status_bar(ui: Screen, count: int) -> Element | None:
    """How many items there are and how much space is free, of most windows."""
    d, r = ui.d, ui.r
    free = f"{r.randint(1, 900)}{r.pick(('', '.' + str(r.randint(1, 9))))} {r.pick(('GB', 'GB', 'TB', 'MB'))}"
    total = ui.text(f"{count} {r.pick(('items', 'objects', 'elements'))}", "small") if r.chance(0.75) else None
    right = ui.text(r.pick((f"{free} free", f"Free space: {free}", f"{free} available")), "small") if total and r.chance(0.75) else None
    if total:
        ui.ask(("How many items are there?", "How many items does the status bar count?", "How many items does the folder hold?"), str(count), total)
    if right:
        ui.ask(("How much space is free?", "How much free space is left?", "How much room is left on the disk?", "What does the window say about free space?"), free, right)
    else:
        d.absent("How much space is free?", "How much room is left on the disk?")
    return Row([total, Space(), *([right] if right else [])], [None, 1, *([None] if right else [])]) if total else None


def tool_bar(ui: Screen, path: str, folder: str) -> Element:
    """Arrows and the path of the open folder."""
    where = ui.text(path, "body")
    ui.ask(("Which path is shown?", "What is the path of the folder?", "What does the address bar say?", "Where are the files stored?"), path, where)
    ui.ask(("Which folder is open?", "What is the name of the open folder?", "In which folder are we?"), folder, where)
    tools = Row([Icon("left", 0.7), Icon("right", 0.7), Icon("up", 0.7), Panel(where, 0, 110, (1.5, 0.6)), Icon("search", 0.8)], [None, None, None, 1, None])
    return Panel(tools, 15, pad=(1.5, 0.8), square=True)


def side_bar(ui: Screen, folder: str) -> Element:
    """Places, and how full the disk is."""
    r = ui.r
    places = r.sample(PLACES, r.randint(4, 8))
    texts = ui.texts(places, "small")
    side: list[Element] = [Panel(Row([Icon("folder", 0.6), t], [None, 1], gap=1.2), 50 if t.text == folder else 0, pad=(0.6, 0.4)) for t in texts]
    if r.chance(0.35):
        share, disk = r.randint(15, 97), r.pick(("Disk", "System (C:)", "Data (D:)"))
        used = ui.text(f"{disk}: {share}% used", "small")
        side += [Space(1), used, Bar(share / 100)]
        ui.ask(("How full is the disk?", "How many percent of the disk are used?"), f"{share}%", used)
    ui.ask(("Which places are listed at the side?", "What stands in the side bar?", "Which places are in the left column?"), ", ".join(places), texts)
    ui.ask(("How many places are in the side bar?", "How many entries does the left column have?"), str(len(places)), texts)
    return Panel(Column(side, gap=0.4), 20, pad=(1, 1), square=True)


@kind("file_manager", 1.8)
def file_manager(d: Document) -> None:
    ui, r = Screen(d), d.r
    name, user = r.pick((*PLACES[1:7], v.name_word(r), "Project", "Scans", "Tax 2024")), v.first_name(r).lower()
    path = r.pick((f"/home/{user}/{name}", f"C:\\Users\\{user}\\{name}", f"Home > {name}", f"This PC > {name}"))
    folder = draw_folder(r)
    body = listing(ui, folder, draw_view(ui, folder))
    status = status_bar(ui, len(folder.folders) + len(folder.files))
    tools = tool_bar(ui, path, name)
    content: Element = Panel(body, pad=(1.5, 1), square=True)
    if ui.wide and r.chance(0.75):
        content = Row([side_bar(ui, name), content], [1, 3.4], gap=0, top=True, panes=True)
    title = ui.text(r.pick((name, f"{name} - Files", "Files", f"{name} - File Manager", "Explorer")))
    menus = ("File", "Edit", "View", "Go", "Help") if r.chance(0.4) else ()
    if not ui.wide and r.chance(0.5):
        d.absent("What is the battery level?", "How full is the battery?")
    ui.show(window(ui, title, Column([tools, content], elastic=1), menus, status))


def centred(text: Text) -> Text:
    text.align = "c"
    return text
