"""Command line of the mini sets."""

from __future__ import annotations

import argparse
from pathlib import Path

from training.assets import FONT_ROOT
from training.mini.documents import audio, docvqa, multipage, read_heldout
from training.mini.files import Folder
from training.mini.ocrbench import ocrbench
from training.mini.readme import readme

SEEDS = {"docvqa": 9101, "ocrbench": 9102, "audio": 9103, "multipage": 9104}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m training.mini", description="Write the bundled mini sets.")
    parser.add_argument("--out", type=Path, default=Path("assets/mini"))
    parser.add_argument("--heldout", type=Path, default=Path("runs/heldout"), help="folder made by training.heldout")
    parser.add_argument("--fonts", type=Path, nargs="*", default=[], help="more folders like /usr/share/fonts")
    args = parser.parse_args()
    lines = read_heldout(args.heldout)
    roots = [*args.fonts, FONT_ROOT]
    folders = {name: Folder(args.out / name) for name in SEEDS}
    rows, used = docvqa(folders["docvqa"], args.heldout, lines, SEEDS["docvqa"])
    sets = {"docvqa": rows}
    sets["ocrbench"] = ocrbench(folders["ocrbench"], args.heldout, lines, SEEDS["ocrbench"], used, roots)
    sets["audio"] = audio(folders["audio"], args.heldout, lines, SEEDS["audio"])
    sets["multipage"] = multipage(folders["multipage"], args.heldout, lines, SEEDS["multipage"])
    (args.out / "README.md").write_text(readme(sets, SEEDS), encoding="utf-8")
    for name, rows in sets.items():
        size = sum(path.stat().st_size for path in (args.out / name).rglob("*") if path.is_file())
        print(f"{name}: {len(rows)} questions, {size / 1e6:.2f} MB", flush=True)


if __name__ == "__main__":
    main()
