"""The table of docs/spherical.md: verdicts of the witnesses W1 to W8, of the committed runs.

python -m benchmarks.witness_tables
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.language_tables import markdown

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "spherical.md"
RUNS = {"text": RESULTS / "witnesses_language.json", "pages": RESULTS / "witnesses_documents.json"}
BEGIN, END = "<!-- python -m benchmarks.witness_tables: begin -->", "<!-- end -->"


def witness_table(runs: Mapping[str, Path] = RUNS) -> str:
    """Markdown, a row per run and policy: a verdict per witness with the first figure that fails, else its first."""
    rows = []
    for run, path in runs.items():
        for name, one in json.loads(path.read_text(encoding="utf-8"))["policies"].items():
            rows.append((f"{run}, `{name}`", *map(_cell, one["witnesses"])))
    numbers = ("length", "logits", "seeds", "refusals", "tier flips", "tail", "pages", "tools")
    return markdown(("policy", *(f"W{at} {what}" for at, what in enumerate(numbers, 1))), rows)


def _cell(witness: Mapping[str, Any]) -> str:
    measures = witness["measures"]
    if witness["passed"] is None:
        return "-"
    shown = next((one for one in measures if not one["passed"]), measures[0])
    return f"{'pass' if witness['passed'] else 'fail'} {shown['value']:.3f}"


def marked(page: str) -> str:
    """What stands between the marks. Raises ``ValueError`` unless there is one pair."""
    (found,) = re.findall(f"{re.escape(BEGIN)}\n(.*?){re.escape(END)}", page, re.DOTALL)
    return found


def main() -> None:
    page = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(page.replace(f"{BEGIN}\n{marked(page)}{END}", f"{BEGIN}\n{witness_table()}{END}"), encoding="utf-8")
    print(PAGE.relative_to(ROOT))


if __name__ == "__main__":
    main()
