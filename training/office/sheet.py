"""Contact sheets of the office's kinds, and what a page of each costs a data worker.

    python -m training.office.sheet --out runs/sheet                  # PNGs and sheet.json
    python -m training.office.sheet --out runs/sheet --kinds menu chart --photographed --steps 1

A worker that needs longer than about 60 ms a page starves the accelerator: the mean over the kinds, by their weights,
is printed last, with `--steps` also the rate of whole training steps.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from training.office.pages import make_office_page
from training.office.registry import kinds
from training.pages import Page

SHAPES = ((756, 532), (560, 448), (812, 588), (504, 784))  # of the samples in turn
PER_SHEET, COLUMNS = 12, 4


def measure(kind: str, count: int, seed: int = 0) -> tuple[dict[str, float], list[Page]]:
    """``count`` pages of one kind in the shapes of :data:`SHAPES`.

    Returns:
        milliseconds a page on this processor, questions and open questions a page, and the pages.
    """
    make_office_page(seed, *SHAPES[0], kind=kind)  # fonts and word lists are read once
    start = time.process_time()
    pages = [make_office_page(seed + i, *SHAPES[i % len(SHAPES)], kind=kind) for i in range(count)]
    spent = time.process_time() - start
    mean = lambda values: round(sum(values) / count, 2)  # noqa: E731
    return {
        "ms_per_page": round(1000 * spent / count, 1),
        "questions": mean([len(page.facts) for page in pages]),
        "open_questions": mean([len(page.absent or ()) for page in pages]),
        "wordings": mean([np.mean([len(fact.asks) for fact in page.facts] or [0]) for page in pages]),
        "characters": mean([sum(map(len, page.lines)) for page in pages]),
    }, pages


def measure_steps(count: int) -> list[dict[str, float | str]]:
    """Milliseconds a step of every spec of ``training.office_dataset``, and pages or seconds of recordings a second."""
    from training.office_dataset import SPECS, make_step

    rows = []
    for i, (spec, share) in enumerate(SPECS):
        make_step(i, spec)
        start = time.process_time()
        for seed in range(count):
            make_step(1000 * i + seed, spec)
        spent = (time.process_time() - start) / count
        pages = spec.sequences * max(spec.pages, 0 if spec.frames else 1)
        seconds = spec.sequences * spec.clips * spec.frames / 100
        rows.append({
            "spec": f"{spec.name} {spec.sequences} x {spec.pages} x {spec.height} x {spec.width}, {spec.frames} frames",
            "share": round(share, 3), "ms_per_step": round(1000 * spent), "pages_per_second": round(pages / spent, 1),
            "recorded_seconds_per_second": round(seconds / spent, 1),
        })  # fmt: skip
    return rows


def photographed(pages: Sequence[Page]) -> list[np.ndarray]:
    """Pages of one shape as training spoils them on the accelerator; uint8 ``[height, width, 3]`` each."""
    import torch

    from training.augment import IMAGE_MEAN, IMAGE_STD, render_pages

    ink, shade = (torch.from_numpy(np.stack([getattr(p, name) for p in pages])) for name in ("ink", "shade"))
    pixels, _ = render_pages(ink, shade, training=True)
    mean, std = (torch.tensor(c).view(1, 3, 1, 1) for c in (IMAGE_MEAN, IMAGE_STD))
    return list(((pixels * std + mean) * 255).clamp(0, 255).byte().permute(0, 2, 3, 1).numpy())


def contact_sheet(pictures: Sequence[np.ndarray], titles: Sequence[str], columns: int = COLUMNS) -> Image.Image:
    """Pictures uint8 ``[height, width, 3]`` in rows with their titles above, at their own size."""
    wide = max(p.shape[1] for p in pictures) + 8
    rows = [range(i, min(i + columns, len(pictures))) for i in range(0, len(pictures), columns)]
    heights = [max(pictures[i].shape[0] for i in row) + 18 for row in rows]
    sheet = Image.new("RGB", (wide * min(columns, len(pictures)), sum(heights)), (90, 110, 130))
    draw, top = ImageDraw.Draw(sheet), 0
    for row, height in zip(rows, heights, strict=True):
        for column, i in enumerate(row):
            draw.text((column * wide + 4, top + 2), titles[i], fill=(255, 255, 255))
            sheet.paste(Image.fromarray(pictures[i]), (column * wide + 4, top + 16))
        top += height
    return sheet


def questions_text(pages: Iterable[tuple[str, Page]]) -> str:
    """What is asked of each page: a line a question with its answer and its wordings."""
    out = []
    for title, page in pages:
        out.append(f"== {title}")
        out += [f"{fact.value}  <-  {' | '.join(fact.asks)}" for fact in (*page.facts, *(page.absent or ()))]
    return "\n".join(out) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m training.office.sheet",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--out", type=Path, required=True, help="folder to write")
    add("--kinds", nargs="*", help="only these kinds (default all)")
    add("--pages", type=int, default=12, help="pages of each kind to measure (default 12)")
    add("--samples", type=int, default=4, help="pages of each kind on the sheets (default 4)")
    add("--photographed", action="store_true", help="spoil the samples as training does")
    add("--steps", type=int, default=0, help="also measure so many training steps of every spec (default 0)")
    add("--seed", type=int, default=0)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    known = kinds()
    if unknown := set(args.kinds or ()) - set(known):
        parser.error(f"no such kind: {', '.join(sorted(unknown))}; known are {', '.join(known)}")
    figures, shown = {}, []
    for name in args.kinds or known:
        figures[name], pages = measure(name, max(args.pages, args.samples), args.seed)
        shown += [(f"{name} {args.seed + i}", page) for i, page in enumerate(pages[: args.samples])]
        print(f"{name:18}", "  ".join(f"{key} {value:7.1f}" for key, value in figures[name].items()), flush=True)
    weights = [known[name][1] for name in figures]
    mean = float(np.average([f["ms_per_page"] for f in figures.values()], weights=weights))
    print(f"{'weighted mean':18} ms_per_page {mean:7.1f}  pages a second of one worker {1000 / mean:.1f}")
    report: dict = {"kinds": figures, "weighted_ms_per_page": round(mean, 1)}
    if args.steps:
        report["steps"] = measure_steps(args.steps)
        for row in report["steps"]:
            print("  ".join(f"{key} {value}" for key, value in row.items()))
    for n, at in enumerate(range(0, len(shown), PER_SHEET)):
        chosen = shown[at : at + PER_SHEET]
        pictures = [photographed([p])[0] if args.photographed else p.rgb() for _, p in chosen]
        contact_sheet(pictures, [title for title, _ in chosen]).save(args.out / f"sheet_{n:02d}.png")
    (args.out / "questions.txt").write_text(questions_text(shown), encoding="utf-8")
    (args.out / "sheet.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
