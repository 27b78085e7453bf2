"""Which common words the recordings of training never say.

    python -m training.utterances.coverage common.txt      # a word a line, the most frequent first

Utterances are drawn as training draws them. A word of letters and apostrophes counts as covered where it occurs in
their transcripts at least once, and as frequent where it occurs :data:`OFTEN` times.
"""

from __future__ import annotations

import argparse
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from training.dataset import SPECS
from training.office_dataset import any_utterance
from training.pages.values import Rng
from training.utterances.aloud import plain

OFTEN = 5


def said(draws: int, seed: int = 0) -> Counter[str]:
    """How often each word occurs in the transcripts of ``draws`` utterances for clips of the lengths of training."""
    lengths = [(spec.frames, share * spec.sequences) for spec, share in SPECS if spec.frames and not spec.pages]
    r, counts = Rng(seed), Counter()
    for _ in range(draws):
        frames = r.choices([n for n, _ in lengths], [share for _, share in lengths])[0]
        counts.update(plain(any_utterance(r, False, frames).transcript).split())
    return counts


def common_words(lines: Sequence[str], size: int) -> list[str]:
    """The first ``size`` entries that are words of at least two letters, ``a`` and ``i``."""
    kept = (line.strip().lower() for line in lines)
    return [w for w in kept if re.fullmatch(r"[a-z]+('[a-z]+)?", w) and (len(w) > 1 or w in "ai")][:size]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("words", type=Path, help="a word a line, the most frequent first")
    parser.add_argument("--size", type=int, default=6000)
    parser.add_argument("--draws", type=int, default=20_000)
    parser.add_argument("--show", type=int, default=100, help="so many of the missing words")
    args = parser.parse_args()
    common, counts = common_words(args.words.read_text(encoding="utf-8").split(), args.size), said(args.draws)
    missing = [word for word in common if not counts[word]]
    often = sum(counts[word] >= OFTEN for word in common)
    print(f"{args.draws} utterances, {sum(counts.values())} words, {len(counts)} different ones")
    print(f"of {len(common)} common words: {len(common) - len(missing)} occur, {often} at least {OFTEN} times")
    print("missing:", *missing[: args.show])


if __name__ == "__main__":
    main()
