"""The tables of docs/language-model.md, of the committed results of SmolLM2-135M-Instruct.

python -m benchmarks.language_tables
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.free_running import means
from kvmm import policies
from kvmm.models.caches import DYNAMIC

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "language-model.md"
FORCED, FREE = RESULTS / "language_drift.json", RESULTS / "language_free_running.json"
STREAMING, DIVERGING = RESULTS / "language_streaming.json", RESULTS / "language_diverging.json"
BEGIN, END = "<!-- python -m benchmarks.language_tables {}: begin -->", "<!-- end -->"


def forced_table(path: Path = FORCED) -> str:
    """Markdown of the drift over forced text, the nearest to full precision first."""
    report = json.loads(path.read_text(encoding="utf-8"))
    rows = sorted(report["policies"], key=lambda one: one["logits"]["kl_mean"])
    found = [
        (
            one["policy"],
            _number(one["bits"]["bits"], ".2f"),
            _number(one["bits"]["packed_bits"], ".2f"),
            _number(one["logits"]["kl_mean"], ".4f"),
            _number(one["logits"]["kl_p99"], ".2f"),
            _number(one["logits"]["top1_agreement"], ".3f"),
            _number(one["logits"]["perplexity"], ".2f"),
        )
        for one in rows
    ]
    columns = ("policy", "whole-cache bits", "packed bits", "KL", "KL, 99th percentile", "same top token", "perplexity")
    full = rows[0]["logits"]["perplexity_full"]
    return markdown(columns, found) + _rest([one[0] for one in found], f"Full precision: perplexity {full:.2f}.")


def free_table(path: Path = FREE) -> str:
    """Markdown of what the policies wrote, in the order of the file, full precision first."""
    rows = json.loads(path.read_text(encoding="utf-8"))["results"]
    found = []
    for row in sorted(rows, key=lambda row: (row["name"] != DYNAMIC, means(row)["kl"])):
        one = means(row)
        found.append(
            (
                "full precision" if row["name"] == DYNAMIC else row["name"],
                _number(one["bits"], ".2f"),
                "" if row["name"] == DYNAMIC else f"{one['diverged_at']:.0f}",
                *(_number(one[key], ".4f") for key in ("kl", "first", "last")),
                _number(one["perplexity"], ".2f"),
                f"{100 * one['repetition']:.0f} %",
                f"{one['loops']} of {len(row['texts'])}",
            )
        )
    columns = ("policy", "bits at the end", "same tokens", "KL", "first eighth", "last eighth", "perplexity")
    return markdown((*columns, "repeated 4-grams", "ends in a loop"), found) + _rest([row["name"] for row in rows])


def streaming_table(path: Path = STREAMING) -> str:
    """Markdown of what policies wrote, means over the texts, in the order of the file."""
    rows = [(row["name"], means(row)) for row in json.loads(path.read_text(encoding="utf-8"))["results"]]
    found = [
        (name, _number(one["bits"], ".2f"), f"{one['diverged_at']:.0f}", _number(one["kl"], ".4f"))
        for name, one in rows
        if name != DYNAMIC
    ]
    return markdown(("policy", "bits at the end", "same tokens", "KL"), found)


def _rest(names: Sequence[str], line: str = "") -> str:
    """``line``, and the presets that are not among the names."""
    missing = [f"`{name}`" for name in policies() if name not in names]
    parts = [line, f"Not measured: {', '.join(missing)}." if missing else ""]
    text = " ".join(part for part in parts if part)
    return f"\n{text}\n" if text else ""


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def markdown(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; the first column is left-aligned."""
    lines = [columns, ["---", *["---:"] * (len(columns) - 1)], *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def tables() -> Mapping[str, str]:
    """``{name of the mark: Markdown}`` of the results that there are."""
    made = {"forced": (FORCED, forced_table), "free": (FREE, free_table), "streaming": (STREAMING, streaming_table)}
    made["diverging"] = (DIVERGING, streaming_table)
    return {name: make(path) for name, (path, make) in made.items() if path.is_file()}


def filled(page: str, found: Mapping[str, str], mark: str = BEGIN) -> str:
    """The page with the tables between their marks, ``mark`` with the name of each.

    Raises:
        ValueError: unless there is exactly one pair of marks for each.
    """
    for name, table in found.items():
        begin = mark.format(name)
        page, count = re.subn(
            f"{re.escape(begin)}\n.*?{re.escape(END)}", lambda _, t=f"{begin}\n{table}{END}": t, page, flags=re.DOTALL
        )
        if count != 1:
            raise ValueError(f"{count} places for the table {name}")
    return page


def main() -> None:
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8"), tables()), encoding="utf-8")
    print(PAGE.relative_to(ROOT))


if __name__ == "__main__":
    main()
