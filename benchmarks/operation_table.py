"""The table of docs/analysis.md with the operations of OScaR's paper, and of kvmm's policies for the same shape.

python -m benchmarks.operation_table
"""

from __future__ import annotations

import re
from pathlib import Path

from benchmarks.language_tables import markdown
from kvmm.analysis.cost.paper_operations import PAPER_OPERATIONS, policy_operations

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "analysis.md"
BEGIN, END = "<!-- python -m benchmarks.operation_table: begin -->", "<!-- end -->"


def operation_table() -> str:
    """Markdown, a row per method; millions of operations of a layer."""
    rows = []
    for method, one in PAPER_OPERATIONS.items():
        packing, added, products = policy_operations(one.policy) if one.policy else (None, None, None)
        own = ("", "", "") if products is None else (f"`{one.policy}`", _millions(packing), _millions(added + products))
        rows.append((method, _millions(one.prefill()), _millions(one.step()), *own))
    columns = ("method", "paper: prompt", "paper: a step", "policy", "kvmm: prompt", "kvmm: a step")
    return markdown(columns, rows)


def _millions(count: float) -> str:
    return f"{count / 1e6:,.1f}"


def marked(page: str) -> str:
    """What stands between the marks. Raises ``ValueError`` unless there is one pair."""
    (found,) = re.findall(f"{re.escape(BEGIN)}\n(.*?){re.escape(END)}", page, re.DOTALL)
    return found


def main() -> None:
    page = PAGE.read_text(encoding="utf-8")
    table = f"{BEGIN}\n{operation_table()}{END}"
    PAGE.write_text(page.replace(f"{BEGIN}\n{marked(page)}{END}", table), encoding="utf-8")
    print(PAGE.relative_to(ROOT))


if __name__ == "__main__":
    main()
