"""Numbers of charts: how they are written, the ticks of an axis, and values that can be read off."""

from __future__ import annotations

from collections.abc import Sequence

from training.pages.values import Rng

STEPS = (2, 4, 10, 20, 40, 50, 100, 200, 500, 1000, 2000, 10000)
SHOWN_UNITS = ("%", "°C", "€", "£", "$", "mm", "kg", "cm")  # may stand at every number


class Numbers:
    """How one chart writes its numbers, with or without the unit."""

    def __init__(self, r: Rng, unit: str, high: float) -> None:
        self.separator = r.choices(("", ",", " ", "."), (4, 4, 1, 1))[0] if high > 999 else ""
        self.point = "," if self.separator in (" ", ".") else r.pick("...,") if high <= 999 else "."
        self.unit = unit if unit in SHOWN_UNITS and r.chance(0.5) else ""
        self.before, self.space = unit in "£$" and unit != "", "" if unit == "%" and r.chance(0.6) else " "
        self.thousands = not self.unit and high >= 2000 and r.chance(0.2)

    def bare(self, x: float) -> str:
        if self.thousands and x and x % 100 == 0:
            return f"{x / 1000:g}k"
        text = f"{x:,.1f}" if x != int(x) else f"{int(x):,}"
        return text.replace(",", "\0").replace(".", self.point).replace("\0", self.separator)

    def __call__(self, x: float) -> str:
        text = self.bare(x)
        return text if not self.unit else f"{self.unit}{text}" if self.before else f"{text}{self.space}{self.unit}"


def scale(r: Rng, high: int, floor: bool, loss: bool) -> tuple[float, list[float]]:
    """The step of an axis up to about ``high``, and its ticks."""
    step = next((s for s in STEPS if r.randint(4, 8) * s >= high), STEPS[-1])
    count = max(-(-high // step), 3)
    start = step * r.randint(3, 30) if floor else -step * r.randint(1, 3) if loss else 0
    return step, [start + step * i for i in range(count + 1)]


def apart(r: Rng, count: int, length: int, most: int) -> list[list[int]]:
    """Rows of whole numbers from 1 to ``most``, no two rows with the same number at one place.

    Lines through them meet only between their points, so that each can be followed. Half of the drawings move on from
    point to point by small steps, as measurements do.

    Raises:
        ValueError: fewer numbers than rows.
    """
    if most < count:
        raise ValueError(f"{count} rows need as many numbers, not {most}")
    smooth, places = r.chance(0.5), []
    for _ in range(length):
        column = r.sample(range(1, most + 1), count)
        if smooth and places:
            reach = max(most // 4, 1)
            near = [min(max(x + r.randint(-reach, reach), 1), most) for x in places[-1]]
            column = near if len(set(near)) == count else column
        places.append(column)
    return [list(row) for row in zip(*places, strict=True)]


def shares(r: Rng, count: int, least: int = 3) -> list[int]:
    """``count`` whole numbers of at least ``least`` that make 100."""
    room = 100 - count * least
    cuts = sorted(r.randint(0, room) for _ in range(count - 1))
    return [least + b - a for a, b in zip([0, *cuts], [*cuts, room], strict=True)]


def clear(values: Sequence[float], best: float, gap: float) -> bool:
    """Whether no other of ``values`` comes within ``gap`` of ``best``, one of them, so that the eye can tell them."""
    return sum(abs(x - best) < gap or x == best for x in values) == 1
