"""What ``retention_budgets.json`` and ``retention.json`` in ``benchmarks/results`` say, put where it is shown.

python -m benchmarks.retention_tables      # the tables in docs/spherical.md
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvmm.eval.report.pages import markdown_table

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "spherical.md"
BEGIN, END = "<!-- python -m benchmarks.retention_tables: begin -->", "<!-- end -->"
_EXACT = "exact pages"


def marked(text: str) -> str:
    """What stands between the marks of a page. Raises ``ValueError`` unless there is exactly one pair of marks."""
    (found,) = re.findall(f"{re.escape(BEGIN)}\n(.*?){re.escape(END)}", text, re.DOTALL)
    return found


def tables(report: Mapping[str, Any], restless: Mapping[str, Any]) -> str:
    """Markdown of two result files: of ``report`` what ran, codes without a budget and ways to meet budgets, and of
    ``restless`` how often tiers change."""
    found = {(row["variant"], row["share"]): row for row in report["results"]}
    count = max(row["questions"] for row in found.values())
    packed = "the prompt packed whole" if report["settings"]["packed"] == "prompt" else "pages packed before questions"
    parts = [
        f"`{report['model']['name']}` in {report['dtype']}, {count} questions, {packed}; "
        "KL divergence from full precision in nats per token of the answer.\n",
        _free(found),
        _under(found, count),
        _iso(report),
    ]
    return "\n".join([*parts, _restless(restless)])


def _free(found: Mapping[tuple[str, float], Mapping[str, Any]]) -> str:
    exact = found[_EXACT, 1.0]["nbytes"]
    rows = [
        (name, f"{100 * row['nbytes'] / exact:.0f} %", f"{row['kl']:.3f}", f"{row['kl_p95']:.2f}")
        for (name, share), row in found.items()
        if share == 1.0 and name != _EXACT
    ]
    return markdown_table(("Without a budget", "Of the bytes of exact pages", "KL", "95th percentile"), rows)


def _under(found: Mapping[tuple[str, float], Mapping[str, Any]], count: int) -> str:
    shares = sorted({share for _, share in found} - {1.0}, reverse=True)
    tight = shares[-2:]  # where it matters most what is held
    heads = [
        f"{what} at {100 * share:.0f} %" for share in shares for what in ("KL", "held, lowered")[: 1 + (share in tight)]
    ]
    rows = []
    for name in dict.fromkeys(name for name, share in found if share != 1.0):
        cells = [name]
        for share in shares:
            row = found.get((name, share))
            if row is None or row["questions"] < count:
                cells += ["cannot be met", ""][: 1 + (share in tight)]
                continue
            held, lowered = (100 * row[of] / row["entries"] for of in ("held", "lowered"))
            cells += [f"{row['kl']:.3f}", f"{held:.0f} %, {lowered:.0f} %"][: 1 + (share in tight)]
        rows.append(tuple(cells))
    return markdown_table(("Under a budget", *heads), rows)


def _iso(report: Mapping[str, Any]) -> str:
    """The iso-quality front and the synergy gap, in sentences."""
    front: dict[float, list[str]] = {}
    for one in report["iso_quality"]:
        front.setdefault(one["share"] or 0.0, []).append(one["variant"])
    within = "within 0.8 points of full precision's accuracy by token"
    lines = [
        f"{within[0].upper()}{within[1:]} down to {100 * share:.0f} %: {'; '.join(names)}."
        if share
        else f"Not {within} at any of these budgets: {'; '.join(names)}."
        for share, names in sorted(front.items())
    ]
    lines += [
        f"Synergy gap at {100 * one['share']:.0f} %: {one['gap']:+.2f} nats (alone {one['alone']:.2f}, joint "
        f"{one['joint']:.2f})."
        for one in report["synergy_gap"]
    ]
    return "".join(f"- {line}\n" for line in lines)


def _restless(report: Mapping[str, Any]) -> str:
    steps, share = report["settings"]["steps"], min(report["settings"]["shares"])
    count = max(one["documents"] for one in report["stability"])
    rows = [
        (one["settings"], f"{one['flip_rate']:.3f}", f"{one['raised']:.0f}", f"{one['kl']:.3f}")
        for one in report["stability"]
    ]
    head = f"Tiers that may rise, {count} questions, {steps} steps at {100 * share:.0f} %"
    return markdown_table((head, "Changes per decision", "raised", "KL"), rows)


def main() -> None:
    text = PAGE.read_text(encoding="utf-8")
    names = ("retention_budgets", "retention")
    new = tables(*(json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8")) for name in names))
    PAGE.write_text(text.replace(f"{BEGIN}\n{marked(text)}{END}", f"{BEGIN}\n{new}{END}"), encoding="utf-8")
    print(PAGE.relative_to(ROOT))


if __name__ == "__main__":
    main()
