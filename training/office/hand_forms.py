"""Printed forms filled in with a pen: lines, boxes, combs, tick boxes, corrections, signatures; on the ink canvas.

An entry is a dict: ``label``, ``value`` (empty: nothing was written), ``style`` (line, box, comb, under, ticks, sign),
for ticks ``options`` and ``chosen`` (their indices), and ``struck``, a value crossed out before the final one.
"""

from __future__ import annotations

from training.office.sketch import Sketch
from training.pages.blocks import Box, Setter
from training.pages.canvas import Face, face

MARKS = ("cross", "cross", "tick", "tick", "fill", "ring", "slash")


class HandForm:
    """One form: the print and the pen that filled it in."""

    def __init__(self, s: Setter, hand: str | None, accented: str | None, box: Box) -> None:
        self.s, self.r, self.box = s, s.r, box
        r = s.r
        self.hands = hand, accented
        low = max(face(hand, 20).cap_height, 8) if hand else 14  # some hands are small for their size
        self.size = int(max(17, s.style.body.size + r.randint(2, 9)) * max(1.0, min(1.5, 13.5 / low)))
        self.pen = r.choices((255, 215, 180, 150), (5, 3, 3, 1))[0]
        self.width, self.slope = r.pick((1, 1.5, 2)), r.uniform(-0.006, 0.004)
        self.sink = r.randint(-3, 5)  # how far the writing stands over or through its line
        self.mark, self.round = r.pick(MARKS), r.chance(0.2)
        self.label = r.pick((s.style.small, s.style.body, s.style.bold))
        self.colon, self.dotted = r.pick((":", ":", "")), r.chance(0.25)
        self.comb_open, self.grey = r.chance(0.4), r.pick((255, 200, 140, 90))
        self.gap = 3.0
        self.sketch = Sketch(s, Box(0, s.canvas.width - 3, box.y, box.bottom), True)
        self.base = 0.0

    def hand(self, text: str, width: float, least: int = 14) -> Face | None:
        """The pen's face, smaller where ``text`` would be wider than ``width``; None if it cannot be that small."""
        path = self.hands[0] if text.isascii() else self.hands[1]
        path = path or self.s.style.body.path
        for size in range(self.size, least - 1, -2):
            if face(path, size).width(text) <= width:
                return face(path, size)
        return None

    def write(self, x: float, baseline: float, text: str, f: Face) -> bool:
        """Words one after the other, on a line that rises or falls."""
        if baseline - f.ascent < 2 or baseline + 4 > self.s.canvas.height:
            return False
        for word in text.split():
            drift = max(-2, min(2, self.slope * (x - self.box.x0)))
            if not self.s.canvas.text(x, baseline + drift, word, f, fill=self.pen):
                return False
            self.s.canvas.items[-1] = (self.base, x, word)  # reads as one line with its label
            x += f.width(word) + f.space + self.r.randint(0, 2)
        return True

    def rule(self, x0: float, x1: float, y: float) -> None:
        if self.dotted:
            for x in range(int(x0), int(x1), 4):
                self.s.canvas.rect(x, y, x, y, fill=self.grey)
        else:
            self.s.canvas.line(x0, y, x1, y, self.grey)

    def draw(self, rows: list[list[dict]], parts: list[int]) -> list[int]:
        """Draws the rows that fit and returns the parts of the entries that are on the page."""
        done, parts = [], list(parts)
        spare = (self.box.bottom - self.box.y - sum(max(map(self.height, row)) for row in rows)) / (len(rows) + 1)
        self.gap = self.r.uniform(3, max(5, min(0.8 * spare, 30)))
        for row in rows:
            mine, parts = parts[: len(row)], parts[len(row) :]
            height = max(map(self.height, row))
            if not self.box.fits(height + 4):
                continue
            total, x = sum(entry.get("weight", 1) for entry in row), self.box.x0
            for entry, part in zip(row, mine, strict=True):
                width = self.box.width * entry.get("weight", 1) / total
                if getattr(self, f"draw_{entry['style']}")(entry, x, x + width - (10 if len(row) > 1 else 0), height):
                    done.append(part)
                x += width
            self.box.y += height + self.gap
        self.sketch.press(self.s.canvas.ink())
        return done

    def height(self, entry: dict) -> float:
        label, size = self.label.height, self.size * 1.35
        return {
            "line": max(label, size) + 3, "box": label + size + 3, "comb": label + size + 4, "under": label + size + 2,
            "sign": label + 1.9 * size, "ticks": max(label, 15) + 4,
        }[entry["style"]]  # fmt: skip

    def entry(self, entry: dict, x0: float, x1: float, baseline: float) -> bool:
        """The value between ``x0`` and ``x1``, behind what was struck out."""
        struck, value = entry.get("struck", ""), entry["value"]
        if not value:
            return True
        f = self.hand(f"{struck}  {value}" if struck else value, x1 - x0 - 4)
        if f is None:
            return False
        x = x0 + 3 + self.r.randint(0, max(0, min(24, int(x1 - x0 - f.width(value + struck) - 30))))
        if struck:
            if not self.write(x, baseline, struck, f):
                return False
            wide, y = f.width(struck), baseline - f.cap_height * 0.4
            for k in range(self.r.pick((1, 1, 2))):
                up, down = (y + 3 * k + self.r.randint(-2, 2) for _ in range(2))
                self.sketch.line(x - 3, up, x + wide + 3, down, self.pen, self.width)
            x += wide + 2 * f.space + 4
        return self.write(x, baseline, value, f)

    def print(self, x: float, baseline: float, text: str, width: float) -> float | None:
        """A label; returns its width, or None where it is too wide."""
        f = self.label
        while f.width(text) > width and f.size > 9:
            f = face(f.path, f.size - 1)
        return f.width(text) if f.width(text) <= width and self.s.canvas.text(x, baseline, text, f) else None

    def draw_line(self, entry: dict, x0: float, x1: float, height: float) -> bool:
        base = self.base = self.box.y + height - 5
        lead = self.label.width(entry["label"] + self.colon)
        if not self._room(entry, x1 - x0 - lead - 8):
            return False
        wide = self.print(x0, base, entry["label"] + self.colon, (x1 - x0) * 0.6)
        if wide is None:
            return False
        self.rule(x0 + wide + 5, x1, base + 2)
        return self.entry(entry, x0 + wide + 6, x1, base - self.sink)

    def _room(self, entry: dict, width: float) -> bool:
        text = f"{entry['struck']}  {entry['value']}" if entry.get("struck") else entry["value"]
        return not text or self.hand(text, width - 4) is not None

    def draw_box(self, entry: dict, x0: float, x1: float, height: float) -> bool:
        if not self._room(entry, x1 - x0 - 8):
            return False
        top = self.box.y
        self.base = top + height - 7
        if self.print(x0 + 4, top + self.label.ascent + 1, entry["label"], x1 - x0 - 8) is None:
            return False
        self.s.canvas.rect(x0, top - 1, x1, top + height - 1, outline=self.grey)
        return self.entry(entry, x0 + 4, x1 - 2, top + height - 7 - max(self.sink, 0))

    def draw_under(self, entry: dict, x0: float, x1: float, height: float) -> bool:
        """A line with its label below."""
        if not self._room(entry, x1 - x0):
            return False
        line = self.base = self.box.y + height - self.label.height - 2
        if self.print(x0 + 2, line + self.label.ascent + 2, entry["label"], x1 - x0) is None:
            return False
        self.rule(x0, x1, line)
        return self.entry(entry, x0, x1, line - 1 - self.sink)

    def draw_comb(self, entry: dict, x0: float, x1: float, height: float) -> bool:
        """A character a box."""
        text = entry["value"]
        cells = max(len(text), entry.get("cells", 0))
        pitch = min((x1 - x0 - 4) / max(cells, 1), self.size * 1.15)
        path = self.hands[0] if text.isascii() else self.hands[1]
        f = face(path or self.s.style.body.path, max(14, min(self.size, int(pitch * 0.95))))
        if pitch < 12 or (text and max(f.width(c) for c in text) > pitch + 4):
            return False
        top, low = self.box.y + self.label.height + 2, self.box.y + height
        if self.print(x0, self.box.y + self.label.ascent, entry["label"], x1 - x0) is None:
            return False
        for k in range(cells + 1):
            x = x0 + k * pitch
            self.s.canvas.line(x, low - 7 if self.comb_open else top, x, low, self.grey)
        self.s.canvas.line(x0, low, x0 + cells * pitch, low, self.grey)
        if not self.comb_open:
            self.s.canvas.line(x0, top, x0 + cells * pitch, top, self.grey)
        if text:
            self.s.canvas.comb(x0, low - 5, text, f, pitch, self.pen)
        return True

    def draw_sign(self, entry: dict, x0: float, x1: float, height: float) -> bool:
        """A signature, larger than other writing and across its line."""
        line = self.base = self.box.y + height - self.label.height - 3
        path = (self.hands[0] if entry["value"].isascii() else self.hands[1]) or self.s.style.body.path
        f = face(path, int(self.size * 1.25))
        if entry["value"] and f.width(entry["value"]) > x1 - x0 - 12:
            return False
        if self.print(x0 + 2, line + self.label.ascent + 2, entry["label"], x1 - x0) is None:
            return False
        self.rule(x0, x1, line)
        if not entry["value"]:
            return True
        x = x0 + 8 + self.r.randint(0, max(int((x1 - x0 - f.width(entry["value"])) / 3), 0))
        if self.r.chance(0.4):  # a flourish
            end = x + f.width(entry["value"])
            self.sketch.line(x, line + 2, end + 6, line - self.r.randint(2, 6), self.pen, self.width)
        return self.write(x, line - self.r.randint(0, 4), entry["value"], f)

    def draw_ticks(self, entry: dict, x0: float, x1: float, height: float) -> bool:
        """A label and boxes with their options behind or before them, some of them marked."""
        f, side, base = self.label, 11, self.box.y + height - 5
        lead = f"{entry['label']}{self.colon}"
        x = x0 + f.width(lead) + 12
        if x + sum(f.width(option) + side + 18 for option in entry["options"]) > x1 or not self.s.canvas.text(
            x0, base, lead, f
        ):
            return False
        after = self.r.chance(0.15)
        for k, option in enumerate(entry["options"]):
            at = x + f.width(option) + 5 if after else x
            if not self.s.canvas.text(x if after else x + side + 5, base, option, f):
                return False
            if self.round:
                self.sketch.rough = False
                self.sketch.dot(at + side / 2, base - side / 2 + 1, side / 2, 0)
                self.sketch.rough = True
            else:
                self.s.canvas.rect(at, base - side + 1, at + side, base + 1, outline=255)
            if k in entry["chosen"]:
                self.tick(at, base + 1, side)
            self.s.canvas.items.append((base, at, "[x]" if k in entry["chosen"] else "[ ]"))
            x += f.width(option) + side + 18
        return True

    def tick(self, x: float, base: float, side: float) -> None:
        """A mark in the box whose lower left corner is given; by hand it leaves the box."""
        over, line = self.r.uniform(0, 5), lambda *p: self.sketch.line(*p, self.pen, max(self.width, 1.5))
        if self.mark == "cross":
            line(x - over, base - side - over, x + side + over, base + over)
            line(x + side + over, base - side - over, x - over, base + over)
        elif self.mark == "tick":
            line(x - 1, base - side * 0.5, x + side * 0.4, base)
            line(x + side * 0.4, base, x + side + over + 2, base - side - over - 2)
        elif self.mark == "fill":
            for k in range(2, int(side), 2):
                line(x + 1, base - k, x + side - 1, base - k - 1)
        elif self.mark == "ring":
            self.sketch.dot(x + side / 2, base - side / 2, side * 0.32, self.pen)
        else:
            line(x - over, base + over, x + side + over, base - side - over)
