"""The table of what ``rd`` is to hold, in docs/results.md, of the committed results.

python -m benchmarks.goal_tables
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.answer_tables import AT_REST as REPORT
from benchmarks.answer_tables import committed_run
from benchmarks.language_tables import markdown

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "results.md"
AT_REST = "rd1.5-stream8-outliers"
BEGIN, END = "<!-- python -m benchmarks.goal_tables: begin -->", "<!-- end -->"


class Goal(NamedTuple):
    """A bound and what was measured.

    Attributes:
        what: is measured, Markdown.
        bound: that it is to keep, with its sign.
        found: the figure, as it is shown.
        kept: whether it keeps the bound.
        file: in ``benchmarks/results/``.
    """

    what: str
    bound: str
    found: str
    kept: bool
    file: str


def language_goals() -> list[Goal]:
    """KL on SmolLM2-135M: a policy, and the bits of pages that the bound is for."""
    report = _read("language_drift.json")
    rows = {one["policy"]: (one["logits"]["kl_mean"], one["bits"]["packed_bits"]) for one in report["policies"]}
    found = []
    for name, bound in (("rd1.5", 0.10), ("rd2", 0.05), ("rd2.5", 0.03)):
        kl, bits = rows[name]
        what = f"KL of `{name}` on SmolLM2-135M, two texts, {bits:.2f} bits in pages"
        found.append(Goal(what, f"<= {_short(bound)}", _short(kl, 4), kl <= bound, "language_drift.json"))
    return found


def free_goals() -> list[Goal]:
    """Tokens that a text of its own has in common with full precision's, mean over prompts."""
    rows = {row["name"]: list(row["texts"].values()) for row in _read("language_diverging.json")["results"]}
    same = {
        name: sum(t["tokens"] if t["diverged_at"] is None else t["diverged_at"] for t in texts) / len(texts)
        for name, texts in rows.items()
    }
    found = []
    # both of 3 bits; differences of a few tokens are not an order
    most, other = max((same[other], other) for other in ("kivi2", "oscar2-g32"))
    for name in ("rd2", "rd2.5", "rd3"):
        what = f"tokens of `{name}` before its own text leaves full precision's, mean of {len(rows[name])} prompts"
        found.append(
            Goal(what, f"> {most:.0f}, `{other}`", f"{same[name]:.0f}", same[name] > most, "language_diverging.json")
        )
    return found


def document_goals() -> list[Goal]:
    """Whole-cache bits of four pages, and the ratio of files."""
    rows = {row["name"]: row for row in _read("at_rest.json")["results"]}
    found = []
    for rate, bound in (("rd2", 2.3), ("rd1", 1.3)):
        bits = round(rows[f"{rate}-stream8-outliers"]["whole_bits"], 2)
        what = f"bits of the whole cache of four pages, `{rate}-stream8-outliers`"
        found.append(Goal(what, f"<= {bound}", f"{bits:.2f}", bits <= bound, "at_rest.json"))
    for bound, most, said in (
        (12, rows["rd2"]["kl"], f"that of `rd2`, {_short(rows['rd2']['kl'], 4)}"),
        (16, 0.1, ".1"),
    ):
        best = max((row for row in rows.values() if row["kl"] <= most), key=lambda row: row["coded_ratio"])
        what = f"file of four pages against bf16, KL at most {said}: `{best['name']}`, {_short(best['kl'], 4)}"
        ratio = round(best["coded_ratio"], 1)
        found.append(Goal(what, f">= {bound}x", f"{ratio:.1f}x", ratio >= bound, "at_rest.json"))
    return [*found, answers_goal(rows[AT_REST]["coded_ratio"])]


def answers_goal(ratio: float) -> Goal:
    """The ratio of files whose answers are to be no worse than those of ``rd2``."""
    worse = {
        task.task: 100 * (task.policy(AT_REST).score - task.policy("rd2").score) for task in committed_run(REPORT).tasks
    }
    points = ", ".join(f"{task} {gained:+.1f}" for task, gained in worse.items())
    what = f"file of four pages against bf16, answers no worse than those of `rd2`: `{AT_REST}`, {points} points"
    kept = ratio >= 12 and min(worse.values()) >= 0
    return Goal(what, ">= 12x", f"{ratio:.1f}x", kept, "mini_at_rest/report.json")


def _short(value: float, digits: int = 2) -> str:
    return f"{value:.{digits}f}".removeprefix("0")


def _read(name: str) -> Any:
    return json.loads((RESULTS / name).read_text(encoding="utf-8"))


def goal_table() -> str:
    """Markdown."""
    goals = [*language_goals(), *free_goals(), *document_goals()]
    lines = [(one.what, one.bound, one.found, "yes" if one.kept else "no", f"`{one.file}`") for one in goals]
    return markdown(("what", "bound", "measured", "kept", "file"), lines)


def marked(page: str) -> str:
    """What stands between the marks. Raises ``ValueError`` unless there is one pair."""
    (found,) = re.findall(f"{re.escape(BEGIN)}\n(.*?){re.escape(END)}", page, re.DOTALL)
    return found


def main() -> None:
    page = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(page.replace(f"{BEGIN}\n{marked(page)}{END}", f"{BEGIN}\n{goal_table()}{END}"), encoding="utf-8")
    print(PAGE.relative_to(ROOT))


if __name__ == "__main__":
    main()
