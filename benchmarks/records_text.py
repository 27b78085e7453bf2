"""A text to calibrate on: a novel with records of numbers, which are asked for at the end of each piece.

python -m benchmarks.records_text benchmarks/texts/persuasion.txt OUT.txt

``kvmm calibrate`` cuts a text into pieces of 2048 tokens, and the last quarter of each is what is predicted; here that
quarter repeats the numbers of the piece. The wording is another than that of ``kvmm eval niah``.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

NAMES = (
    "Harding", "Wexford", "Ilsley", "Morrow", "Tennant", "Quill", "Ashby", "Dunmore", "Fairlie", "Garrod", "Hollis",
    "Jessop", "Kemble", "Larkin", "Munday", "Norris", "Oakes", "Pryor", "Radley", "Selwyn",
)  # fmt: skip
THINGS = (
    "the invoice of {}", "the telephone of {}", "the account of {}", "the order of {}", "the ticket of {}",
    "the parcel for {}", "the policy of {}", "the room of {}",
)  # fmt: skip
RECORDS = ("The number of {0} is {1}.", "{0}: {1}.", "Please note that {0} has number {1}.")
PIECES = 10
READ, ASKED = 5200, 2200  # characters of a piece that are read, and that are predicted
SHORTEST, LONGEST = 200, 1200  # characters of a paragraph


def made_text(novel: str, seed: int = 7) -> str:
    """The text; the same for the same novel and seed."""
    r = random.Random(seed)
    paragraphs = [one for one in novel.split("\n\n") if len(one) > SHORTEST]
    out: list[str] = []
    at = 0
    for _ in range(PIECES):
        size, facts = 0, []
        while size < READ:
            paragraph = paragraphs[at % len(paragraphs)]
            at += 1
            if len(paragraph) > LONGEST:
                paragraph = paragraph[:LONGEST].rsplit(". ", 1)[0] + "."
            thing = r.choice(THINGS).format(f"Mr. {r.choice(NAMES)}")
            digits = r.choice((3, 4, 5, 5, 6, 7))
            facts.append((thing, str(r.randint(10 ** (digits - 1), 10**digits - 1))))
            record = r.choice(RECORDS)
            written = thing[0].upper() + thing[1:] if r.random() < 0.5 else thing
            record = record.format(written, facts[-1][1])
            out += [paragraph, record[0].upper() + record[1:]]
            size += len(paragraph) + len(record)
        r.shuffle(facts)
        asked = [f"What is the number of {thing}? It is {number}." for thing, number in facts]
        while sum(map(len, asked)) < ASKED:
            asked += asked[: len(facts)]
        out += asked
    return "\n\n".join(out)


def main() -> None:
    source, target = map(Path, sys.argv[1:])
    target.write_text(made_text(source.read_text(encoding="utf-8")), encoding="utf-8")
    print(target)


if __name__ == "__main__":
    main()
