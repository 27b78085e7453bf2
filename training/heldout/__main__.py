"""Command line of the held-out set."""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Callable
from pathlib import Path

from training.heldout import layouts, pages, recordings
from training.heldout.writer import Writer
from training.office.pages import CHARTED

SETS: dict[str, Callable[[Writer], None]] = {
    "fonts": lambda w: pages.single_pages(w, "fonts", 9001, 60, held_wordings=False),
    "wordings": lambda w: pages.single_pages(w, "wordings", 9002, 60, held_wordings=True),
    "tables": lambda w: pages.tables(w, 9003, 30),
    "transcription": lambda w: pages.transcriptions(w, 9004, 32),
    "unanswerable": lambda w: pages.unanswerable(w, 9005, 45),
    "pages2-8": lambda w: pages.documents(w, "pages2-8", 9006, [2, 3, 4, 5, 6, 7, 8] * 2, 8),
    "pages8": lambda w: pages.documents(w, "pages8", 9007, [8] * 10, 12),
    "turns": lambda w: pages.conversations(w, 9008, 70),
    "speech": lambda w: recordings.speech(w, "speech", 9009, 130, held_wordings=False),
    "speech-wordings": lambda w: recordings.speech(w, "speech-wordings", 9010, 60, held_wordings=True),
    "spoken": lambda w: recordings.spoken_questions(w, 9011, 60),
    "layouts": lambda w: layouts.layouts(w, 9012),
    "scans": lambda w: layouts.scans(w, 9013),
    "office": lambda w: pages.office(w, 9014, 2),
    "unseen": lambda w: pages.unseen(w, 9015, 640),
    "charts": lambda w: pages.office(w, 9016, 6, "charts", CHARTED),
    "first-words": lambda w: pages.first_words(w, 9017, 60),
}
BY_NAME = ("office", "unseen", "charts", "first-words")  # written only if asked for


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m training.heldout", description="Write the held-out set.")
    parser.add_argument("--out", type=Path, default=Path("runs/heldout"))
    parser.add_argument("--sets", nargs="+", choices=SETS, default=[n for n in SETS if n not in BY_NAME])
    args = parser.parse_args()
    for name in ("images", "audio"):
        shutil.rmtree(args.out / name, ignore_errors=True)
    writer = Writer(args.out)
    for name in args.sets:
        SETS[name](writer)
        own = [line for line in writer.lines if line["set"] == name]
        print(f"{name}: {len(own)} conversations, {sum(len(line['turns']) for line in own)} questions", flush=True)
    writer.save()
    size = sum(path.stat().st_size for path in args.out.rglob("*") if path.is_file())
    print(f"{args.out}: {size / 2**20:.1f} MiB")


if __name__ == "__main__":
    main()
