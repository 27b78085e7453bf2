"""A page of HTML with its questions, and what templates draw and mark up alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

from training.pages import Rng
from training.pages import values as v


@dataclass(frozen=True)
class Ask:
    """A question in one of several wordings, and its answers."""

    key: str
    wordings: tuple[str, ...]
    answers: tuple[str, ...]


@dataclass(frozen=True)
class Layout:
    """One page: size in CSS pixels, which are the model's pixels; ``style`` may use --accent, --head and --body."""

    kind: str
    height: int
    width: int
    style: str
    body: str
    asks: tuple[Ask, ...]


def ask(key: str, answer: str | Sequence[str], *wordings: str) -> Ask:
    return Ask(key, wordings, (answer,) if isinstance(answer, str) else tuple(answer))


def rows(cells: Sequence[Sequence[str]], tag: str = "td") -> str:
    """Table rows of escaped cells."""
    return "".join("<tr>" + "".join(f"<{tag}>{escape(c)}</{tag}>" for c in row) + "</tr>" for row in cells)


def pairs(fields: Sequence[tuple[str, str]], tag: str = "div") -> str:
    """Label and value in a row each."""
    return "".join(f"<{tag} class=p><b>{escape(a)}</b><span>{escape(b)}</span></{tag}>" for a, b in fields)


def distinct(r: Rng, draw: Callable[[Rng], str], n: int) -> list[str]:
    """``n`` different values whose words do not repeat."""
    found: list[str] = []
    while len(found) < n:
        value = draw(r)
        if not set(value.lower().split()) & {word for other in found for word in other.lower().split()}:
            found.append(value)
    return found


def full_name(r: Rng) -> str:
    return f"{r.pick(v.FIRST_NAMES)} {r.pick(v.LAST_NAMES)}"


def month_dates(r: Rng, n: int, style: int) -> list[str]:
    """``n`` dates of one month in their order, in a style of ``values.date``."""
    year, month = r.randint(2012, 2031), r.randint(1, 12)
    name = v.MONTHS[month - 1]
    days = sorted(r.sample(range(1, 29), n))
    forms = {3: "{n} {d}, {y}", 4: "{d} {a} {y}"}
    return [forms[style].format(n=name, a=name[:3], d=day, y=year) for day in days]


def street_address(r: Rng) -> str:
    return f"{r.randint(1, 240)} {r.pick(v.STREETS)} {r.pick(('Street', 'Road', 'Lane', 'Avenue'))}"
