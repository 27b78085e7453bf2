"""The table of docs/results.md that says what departures from the papers cost, of the committed drift reports.

python -m benchmarks.departure_tables
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from benchmarks.language_tables import markdown

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "results.md"
TEXT, PAGES = RESULTS / "drift_papers_lm.json", RESULTS / "drift.json"
BEGIN, END = "<!-- python -m benchmarks.departure_tables: begin -->", "<!-- end -->"

# presets, and files of benchmarks/policies; those that differ in one thing are neighbours
DEPARTURES: dict[str, str] = {
    "oscar2": "a norm per KV head, the default",
    "oscar2-token": "one norm over all KV heads",
    "oscar2-integer": "whole zero points",
    "oscar2-authors": "both, as in the authors' code",
    "oscar2-max": "scaled by the largest magnitude",
    "oscar2-mean": "scaled by the mean magnitude",
    "oscar2-rotation": "rotation alone",
    "oscar2-scaling": "scaling alone",
    "quarot2": "float zero points, the keys' mean subtracted",
    "quarot2-integer": "whole zero points",
    "quarot2-no-offset": "float zero points, no mean",
    "quarot2-authors": "whole zero points, no mean",
    "quarot2-unclipped": "ranges not clipped",
    "rotatekv2": "float zero points, mean and spread",
    "rotatekv2-integer": "whole zero points",
    "rotatekv2-mean": "the authors' order, no mean",
    "rotatekv2-authors": "the same with whole zero points",
    "rotatekv2-unordered": "no order of channels",
    "rotatekv2-head1": "every head rotated alone",
    "rotatekv2-sinks4": "4 sinks instead of 20",
    "rotatekv2-pivots20": "4 sinks and 20 smallest keys of each span",
    "ott2": "five outlier tokens, groups of 128",
    "ott2-pool3": "three outlier tokens",
    "ott2-pool0": "none, which is KIVI",
    "ott2-window128": "a pool for every 128 tokens",
    "ott2-g32": "groups of 32",
    "turboquant2": "the keys' mean subtracted, no sketch",
    "turboquant2-no-offset": "no mean",
    "turboquant2-qjl": "1 bit and the residual sketch (QJL)",
    "turboquant2.25": "any quarter of the rotated channels at 3 bits",
    "turboquant2.25-magnitude": "the strongest quarter",
    "turboquant2.5": "any half",
    "turboquant2.5-magnitude": "the strongest half",
    "turboquant3": "3 bits",
    "turboquant3-qjl": "2 bits and the sketch",
    "turboquant4": "4 bits",
    "turboquant4-qjl": "3 bits and the sketch",
    "kitty": "channels by magnitude, as in the paper",
    "kitty-range": "by range",
    "kitty-query-range": "by range and queries",
    "kitty-random": "drawn at random, the paper's ablation",
    "calibquant1": "1 bit, min/max levels (on text: packed as pages are)",
    "calibquant1-shrunk": "ranges shrunk about zero, as in the authors' code",
    "calibquant1-authors": "the same, logits shifted by (0, 3)",
    "calibquant1-mean": "conditional means",
    "calibquant1-tensor": "min/max, one range for all values (the paper's Table 4)",
    "calibquant2": "2 bits, min/max levels",
    "calibquant2-authors": "logits shifted by (0, 3)",
    "calibquant2-mean": "least-squares levels",
    "calibquant2-tensor": "one range for all values (Table 4)",
    "kivi2": "4 sinks, 32 newest tokens",
    "paper-kivi2": "the paper's protocol: no exact tokens before the answer",
    "paper-kivi2-window128": "the same, newest 128 keys and values exact",
    "paper-kitty": "the paper's protocol",
    "paper-kitty-window128": "the same, newest 128 keys and values exact",
    "paper-kitty-pro": "the paper's protocol",
    "paper-kitty-pro-window128": "the same, newest 128 keys and values exact",
    "paper-oscar2": "the papers' protocols",
    "paper-oscar2-g32": "the same",
    "paper-quarot2": "the same",
    "paper-rotatekv2": "the same",
    "paper-ott2": "the same",
    "paper-turboquant2.5": "the same",
}


def measured(path: Path) -> dict[str, tuple[str, str]]:
    """Packed bits and KL divergence of every policy of a report, by the name that the table has for it."""
    report = json.loads(path.read_text(encoding="utf-8"))
    found = {}
    for one in report["policies"]:
        bits = one["bits"]["packed_bits"]
        name = one["policy"].removesuffix("-text")
        found[name] = (f"{bits:.2f}", f"{one['logits']['kl_mean']:.4f}".removeprefix("0"))
    return found


def departure_table(text: Path = TEXT, pages: Path = PAGES) -> str:
    """Markdown, a row per policy of :data:`DEPARTURES` that is in one of the reports.

    Raises:
        ValueError: the report on text, which is of nothing else, has a policy that the table does not know.
    """
    both = [measured(path) for path in (text, pages)]
    if unknown := set(both[0]) - set(DEPARTURES):
        raise ValueError(f"DEPARTURES does not say what these are: {', '.join(sorted(unknown))}")
    columns = ("Departure", "what it is", "packed bits, text", "KL, text", "packed bits, pages", "KL, pages")
    rows = []
    for name, what in DEPARTURES.items():
        cells = [cell for one in both for cell in one.get(name, ("", ""))]
        if any(cells):
            rows.append((f"`{name}`", what, *cells))
    return markdown(columns, rows).replace("| --- | ---: |", "| --- | --- |", 1)  # words are left-aligned


def marked(page: str) -> str:
    """What stands between the marks. Raises ``ValueError`` unless there is one pair."""
    (found,) = re.findall(f"{re.escape(BEGIN)}\n(.*?){re.escape(END)}", page, re.DOTALL)
    return found


def main() -> None:
    page = PAGE.read_text(encoding="utf-8")
    table = f"{BEGIN}\n{departure_table()}{END}"
    PAGE.write_text(page.replace(f"{BEGIN}\n{marked(page)}{END}", table), encoding="utf-8")
    print(PAGE.relative_to(ROOT))


if __name__ == "__main__":
    main()
