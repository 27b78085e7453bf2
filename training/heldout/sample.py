"""A small fixed part of the held-out set, kept with the tests: ``python -m training.heldout.sample``."""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

from training.pages import Rng

# set: (groups of conversations about the same media, conversations of each, largest group of files in bytes)
QUOTA: dict[str, tuple[int, int, int]] = {
    "fonts": (4, 2, 60_000),
    "wordings": (4, 2, 60_000),
    "tables": (2, 3, 60_000),
    "transcription": (2, 1, 60_000),
    "unanswerable": (2, 3, 60_000),
    "pages2-8": (2, 2, 150_000),
    "pages8": (1, 4, 400_000),
    "turns": (2, 1, 60_000),
    "speech": (4, 2, 110_000),
    "speech-wordings": (2, 2, 80_000),
    "spoken": (4, 1, 120_000),
    "layouts": (4, 2, 90_000),
    "scans": (2, 2, 110_000),
}


def media(line: dict) -> list[str]:
    """The files a conversation needs."""
    return [*line["images"], *([line["audio"]] if line["audio"] else [])]


def choose(lines: list[dict], folder: Path, seed: int = 7) -> list[dict]:
    """Conversations drawn at random within ``QUOTA``."""
    r = Rng(seed)
    chosen: list[dict] = []
    for name, (groups, each, largest) in QUOTA.items():
        by_media: dict[tuple[str, ...], list[dict]] = {}
        for line in lines:
            if line["set"] == name:
                by_media.setdefault(tuple(media(line)), []).append(line)
        small = [files for files in by_media if sum((folder / f).stat().st_size for f in files) <= largest]
        small = [files for files in small if len(by_media[files]) >= each]
        for files in r.sample(small, groups):
            chosen += sorted(r.sample(by_media[files], each), key=lambda line: line["id"])
    return chosen


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m training.heldout.sample", description=__doc__)
    parser.add_argument("--data", type=Path, default=Path("runs/heldout"))
    parser.add_argument("--out", type=Path, default=Path("tests/data/heldout"))
    args = parser.parse_args()
    lines = [json.loads(line) for line in (args.data / "heldout.jsonl").read_text(encoding="utf-8").splitlines()]
    chosen = choose(lines, args.data)
    shutil.rmtree(args.out, ignore_errors=True)
    for name in sorted({file for line in chosen for file in media(line)}):
        (args.out / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(args.data / name, args.out / name)
    text = "".join(json.dumps(line) + "\n" for line in chosen)
    (args.out / "sample.jsonl").write_text(text, encoding="utf-8")
    size = sum(path.stat().st_size for path in args.out.rglob("*") if path.is_file())
    print(f"{sum(len(line['turns']) for line in chosen)} questions, {size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
