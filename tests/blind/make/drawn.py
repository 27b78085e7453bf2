"""Pages that a program without a layout engine draws: tills, terminals, boarding passes. By Pillow."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from tests.blind.make.files import save_image
from tests.blind.make.wear import worn

FACES = {
    "mono": "/usr/share/fonts/truetype/paratype/PTM55F.ttf",
    "till": "/usr/share/fonts/truetype/dejavu/DejaVuSansMono.ttf",
    "code": "/usr/share/fonts/truetype/jetbrains-mono/JetBrainsMono-Regular.ttf",
    "sans": "/usr/share/fonts/truetype/open-sans/OpenSans-Regular.ttf",
    "bold": "/usr/share/fonts/truetype/open-sans/OpenSans-Bold.ttf",
}

TEA_SHOP = """\
     UJI TEA HOUSE KAWABATA
   2-11 Teramachi-dori, Kyoto
       Reg. T4 1300 0102 2298

2026/11/03 (Tue)      13:27
Staff: Mizuki    Guests: 2
----------------------------
Matcha set     x2     ¥2,400
Warabi mochi   x1       ¥780
Hojicha tin *  x1     ¥1,296
Paper fan      x1     ¥1,650
----------------------------
Subtotal              ¥6,126
 (10% taxable         ¥4,830
   8% taxable *       ¥1,296)
TOTAL                 ¥6,126
IC card               ¥6,126
Balance left            ¥874
----------------------------
Receipt 0457   Thank you!"""

FUEL = """\
 WATTLE CREEK ROADHOUSE
 Stuart Hwy, Ti Tree NT
 ABN 41 660 023 518

 Pump 02    Diesel
 61.35 L @ $2.189/L
 FUEL            $134.30
 Iced coffee       $6.50
 Meat pie          $7.20
 ----------------------
 TOTAL AUD       $148.00
 incl. GST        $13.45
 EFTPOS  ****  7720

 17/06/2026   05:58 AM
 Attendant: Jarrah"""

TERMINAL = """\
ops@larch:~$ df -h
Filesystem   Size  Used  Avail  Use%  Mounted on
/dev/sda2     96G   61G    30G   68%  /
/dev/sda3    468G  433G    12G   98%  /srv/scans
tmpfs        7.8G  1.2M   7.8G    1%  /run
/dev/sdb1    1.9T  774G   1.1T   42%  /backup

ops@larch:~$ uptime
 14:06:51 up 212 days,  3:18,  4 users,  load 0.37

ops@larch:~$ tail -3 /var/log/import.log
14:01 INFO  batch 5512 read, 318 files
14:03 ERROR batch 5513: invoice_0091.tif is empty
14:05 INFO  batch 5514 read, 296 files"""

BOARDING = [  # x, y, size, face, text
    (30, 22, 30, "bold", "AZORIA AIR"),
    (640, 26, 22, "sans", "BOARDING PASS"),
    (30, 90, 15, "sans", "NAME"),
    (30, 108, 26, "bold", "VANDERBEEK / LOTTE MS"),
    (30, 160, 15, "sans", "FROM"),
    (30, 178, 34, "bold", "PONTA DELGADA"),
    (430, 160, 15, "sans", "TO"),
    (430, 178, 34, "bold", "FRANKFURT"),
    (30, 250, 15, "sans", "FLIGHT"),
    (30, 268, 26, "bold", "ZA 4417"),
    (190, 250, 15, "sans", "DATE"),
    (190, 268, 26, "bold", "29 MAR"),
    (340, 250, 15, "sans", "GATE"),
    (340, 268, 26, "bold", "B11"),
    (450, 250, 15, "sans", "BOARDING"),
    (450, 268, 26, "bold", "17:20"),
    (600, 250, 15, "sans", "DEPARTS"),
    (600, 268, 26, "bold", "17:55"),
    (740, 250, 15, "sans", "SEAT"),
    (740, 268, 26, "bold", "22F"),
    (30, 330, 17, "sans", "Group 3 · one cabin bag up to 8 kg · the gate closes 15 minutes before departure"),
]


def lines_of(text: str, face: str, size: int, ink: str, paper: str) -> Image.Image:
    """Lines of one fixed-width face, as large as they need."""
    font = ImageFont.truetype(FACES[face], size)
    rows = text.split("\n")
    width = round(max(font.getlength(row) for row in rows)) + 3 * size
    page = Image.new("RGB", (width, round(len(rows) * size * 1.35) + 3 * size), paper)
    draw = ImageDraw.Draw(page)
    for number, row in enumerate(rows):
        draw.text((1.5 * size, (1.5 + 1.35 * number) * size), row, font=font, fill=ink)
    return page


def boarding_pass() -> Image.Image:
    """Fields at fixed places and a block of dots that is no code."""
    page = Image.new("RGB", (860, 380), "white")
    draw = ImageDraw.Draw(page)
    draw.rectangle((0, 0, 860, 72), fill="#0b6e99")
    for x, y, size, face, text in BOARDING:
        colour = "white" if y < 60 else "#777777" if size == 15 else "black"
        draw.text((x, y), text, font=ImageFont.truetype(FACES[face], size), fill=colour)
    for number in range(24 * 24):
        if number * number % 7 in (1, 4):
            x, y = 720 + number % 24 * 4, 96 + number // 24 * 4
            draw.rectangle((x, y, x + 3, y + 3), fill="black")
    return page


def render(out: Path, wanted: str = "") -> Iterator[tuple[str, list[str]]]:
    """Write the pictures whose names contain ``wanted``; yields each name with its text."""
    made = {
        "receipt-tea-jp": (lines_of(TEA_SHOP, "till", 24, "#1a1a1a", "#fbfaf6"), TEA_SHOP, ["photo"], "jpg"),
        "receipt-fuel-au": (lines_of(FUEL, "mono", 26, "#222244", "#ffffff"), FUEL, ["scan"], "jpg"),
        "screen-terminal": (lines_of(TERMINAL, "code", 19, "#c8e6c9", "#14171c"), TERMINAL, [], "png"),
        "boarding-pass": (boarding_pass(), "\n".join(text for *_, text in BOARDING), [], "png"),
    }
    for name, (page, text, wear, ending) in made.items():
        if wanted in name:
            save_image(worn(page, wear, 200 + len(name)), out / f"{name}.{ending}")
            yield name, [text]
