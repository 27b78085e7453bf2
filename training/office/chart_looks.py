"""What charts look like: the shades of their series, and the looks of programs and people."""

from __future__ import annotations

PALETTES = (
    (255, 110, 180, 55, 215, 145, 80, 30),
    (190, 90, 240, 140, 45, 215, 115, 165),
    (120, 215, 60, 165, 255, 90, 190, 35),
)
# what programs and people have in common in their charts; what a look leaves out is drawn at random
LOOKS: dict[str, dict] = {
    "any": {},
    "spreadsheet": {"rough": False, "dark": False, "framed": True, "grid": 60, "dash": 0, "legend": "bottom"},
    "statistics": {"rough": False, "dark": False, "framed": False, "grid": 50, "axis": 255, "legend": "top"},
    "newspaper": {"rough": False, "dark": False, "grid": 60, "dash": 4, "axis": 0, "edge": None, "legend": "ends"},
    "by hand": {"rough": True, "dark": False, "framed": False},
    "slide": {"rough": False, "dark": True, "grid": 0, "legend": "right", "edge": None},
}  # fmt: skip
LOOK_WEIGHTS = (6, 3, 3, 3, 2, 1)
