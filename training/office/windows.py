"""What stands around the content of a screen: bars of browsers, windows and phones."""

from __future__ import annotations

from training.office.screen import Column, Element, Icon, Panel, Row, Rule, Screen, Space, Text
from training.pages import values as v


def clock(r: v.Rng) -> str:
    """A time of day as screens show it."""
    return f"{r.randint(0, 23):02d}:{r.randint(0, 59):02d}"


def phone_bar(ui: Screen, time: str | None = None) -> Element:
    """The top of a phone's screen, with questions about time and battery."""
    r = ui.r
    shown, charge = ui.text(time or clock(r), "small"), ui.text(f"{r.randint(4, 100)}%", "small")
    net = [ui.text(r.pick(("4G", "5G", "LTE")), "small")] if r.chance(0.5) else []
    ui.ask(
        (
            "What time does the phone show?",
            "What time is it on the phone?",
            "How late is it in the status bar?",
            "Which time stands at the top of the phone?",
        ),
        shown.text,
        shown,
    )
    ui.ask(
        (
            "How full is the battery?",
            "What is the battery level?",
            "How much battery is left?",
            "Battery charge in percent?",
        ),
        charge.text,
        charge,
    )
    right = [Icon("signal", 0.6), *net, charge, Icon("battery", 0.6)]
    return Panel(Row([shown, Space(), *right], [None, 1, *[None] * len(right)]), pad=(2, 0.6))


def browser(ui: Screen, address: str, title: str, body: Element) -> Element:
    """A web page with the bars of its browser, or of a phone's, or without any."""
    r = ui.r
    if r.chance(0.25):
        return body
    where = ui.text(address, r.pick(("body", "small")))
    ui.ask(
        (
            "What is the address of the page?",
            "Which web address is open?",
            "What does the address bar say?",
            "What is the URL?",
        ),
        address,
        where,
    )
    field = Panel(where, 20, r.pick((0, 90)), (2, 0.6))
    if not ui.wide:
        bar = Panel(Row([field, Icon("menu")], [1, None]), 10, pad=(1.5, 0.8), square=True)
        return Column([phone_bar(ui), bar, body], elastic=2)
    tabs = [Panel(Row([ui.text(title, "small"), Icon("close", 0.5)]), 10, 90, (2, 0.6))]
    if r.chance(0.6):
        other = r.pick(("Inbox", "Weather", "New tab", "News", "Maps", "Translate", v.name_word(r)))
        tabs.append(Panel(Row([ui.text(other, "small", grey=True), Icon("close", 0.5)]), 45, pad=(2, 0.6)))
    ends = [Icon(shape, 0.6) for shape in ("minus", "square", "close")]
    strip = Row([*tabs, Space(), *ends], [*[None] * len(tabs), 1, None, None, None], gap=1.5)
    bar = Row([Icon("left", 0.7), Icon("right", 0.7), field, Icon("menu", 0.8)], [None, None, 1, None])
    return Column(
        [Panel(strip, 45, pad=(1.5, 0.6), square=True), Panel(bar, pad=(2, 0.8), square=True), Rule(), body], elastic=3
    )


def window(
    ui: Screen, title: Text, body: Element, menus: tuple[str, ...] = (), status: Element | None = None
) -> Element:
    """A window of a desktop program: title, menus, content, status bar."""
    r = ui.r
    ends, shapes = [], ("minus", "square", "close") if r.chance(0.6) else ("dot", "dot", "dot")
    ends = [Icon(shape, 0.6) for shape in shapes]
    left = r.chance(0.3)
    title.align = r.pick("lc")
    top = Row([*ends, title], [None, None, None, 1]) if left else Row([title, *ends], [1, None, None, None])
    parts: list[Element] = [Panel(top, r.pick((0, 25, 45)), dark=r.pick((0, 0, 225, 190)), pad=(2, 1), square=True)]
    if parts[0].dark:
        parts[0].fill = 0
    if menus:
        parts.append(Panel(Row(ui.texts(menus, r.pick(("body", "small"))), gap=4), pad=(2, 0.6), square=True))
        parts.append(Rule())
    parts.append(body)
    place = len(parts) - 1
    if status is not None:
        parts += [Rule(), Panel(status, r.pick((0, 20)), pad=(2, 0.6), square=True)]
    return Column(parts, elastic=place)
