"""The fonts of screens."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from training.pages.canvas import font_files

SANS = (
    "Arimo", "ClearSans", "DejaVuSans", "FreeSans", "Inter-", "Lato", "LiberationSans", "NimbusSans", "NotoSans", "OpenSans", "Cantarell", "Carlito", "Manrope", "Go-Regular",
    "Go-Medium", "PTF55", "PTC55", "Roboto", "Oxygen", "Karla", "B612-",
)  # fmt: skip
FIXED = (
    "AnonymousPro", "Cousine", "DejaVuSansMono", "FantasqueSansMono", "FiraCode", "FreeMono", "Go-Mono", "Hack", "LiberationMono", "Monoid", "NimbusMono", "PTM55", "mononoki",
    "B612Mono", "JetBrainsMono",
)  # fmt: skip


@lru_cache(None)
def faces_of(held: bool, fixed: bool) -> tuple[str, ...]:
    """Font files of terminals (``fixed``) or of other programs; all where the assets have none of them."""
    files, names = font_files(held, latin=True), FIXED if fixed else SANS
    chosen = [f for f in files if Path(f).name.startswith(names) and (fixed or "Mono" not in f)]
    return tuple(f for f in chosen if "Italic" not in f and not f[:-4].endswith("BI")) or files


@lru_cache(None)
def bold_of(path: str) -> str:
    """The bold face that belongs to a font file, or the file itself."""
    for old, new in (("-Regular", "-Bold"), ("-Light", "-Bold"), ("-Medium", "-Bold"), ("Sans.", "Sans-Bold.")):
        other = Path(path.replace(old, new))
        if old in path and other.is_file():
            return str(other)
    return path
