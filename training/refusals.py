"""How many questions of training steps are answered with a refusal, by kind of page.

    python -m training.refusals --pages 2000 --out runs/refusals.json

A model that meets many questions without an answer refuses whenever it doubts; one that meets none always answers.
Questions are drawn as training draws them (`training.questions.questions_about`), from pages as it draws them.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from training.office_dataset import MOST_QUESTIONS, absent_share, any_page
from training.pages import Page, Rng
from training.questions import questions_about
from training.wordings import NOT_STATED

SHAPES = ((756, 532), (560, 448), (812, 588), (504, 784))


def training_page(r: Rng, height: int, width: int) -> Page:
    """A page as training draws it."""
    return any_page(r, height, width, False)


def measure(pages: int, seed: int, make: Callable[[Rng, int, int], Page] = training_page) -> dict:
    """Shares of refusals among the questions of ``pages`` pages that ``make(r, height, width)`` draws.

    Returns:
        ``share`` of all questions, the number of ``questions``, and under ``kinds`` each kind's share and number.
    """
    asked: Counter[str] = Counter()
    refused: Counter[str] = Counter()
    for i in range(pages):
        r = Rng(seed + i)
        page = make(r, *SHAPES[i % len(SHAPES)])
        for _, answer, _ in questions_about(r, [page], MOST_QUESTIONS, False, absent_share(page)):
            asked[page.kind] += 1
            refused[page.kind] += answer == NOT_STATED
    shares = {kind: {"share": round(refused[kind] / n, 4), "questions": n} for kind, n in sorted(asked.items())}
    total = sum(asked.values())
    return {"share": round(sum(refused.values()) / max(total, 1), 4), "questions": total, "kinds": shares}


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m training.refusals",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--pages", type=int, default=2000, help="pages to draw (default 2000)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="JSON file to write")
    args = parser.parse_args()
    report = measure(args.pages, args.seed)
    for kind, row in report["kinds"].items():
        print(f"{kind:18} {row['share']:7.1%} of {row['questions']}")
    print(f"{'all':18} {report['share']:7.1%} of {report['questions']}")
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(
            json.dumps({"pages": args.pages, "seed": args.seed, **report}, indent=1) + "\n", encoding="utf-8"
        )


if __name__ == "__main__":
    main()
