"""The table of ``benchmarks/results/blind/results.json`` by kind of question, put into docs/evaluation.md.

python -m kvmm eval blind --data tests/blind --model tiny-omni --policies bf16 balanced small --out OUT --device cpu
python -m benchmarks.blind_table OUT    # OUT's newest results become benchmarks/results/blind/results.json
python -m benchmarks.blind_table        # only the table

The answers of a run are not kept: the set stays blind (``tests/blind/README.md``). Nor are its times: several processes
share the cores, and other work does.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.answer_tables import END, marked

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "blind" / "results.json"
SET = ROOT / "tests" / "blind" / "blind.json"
PAGE = ROOT / "docs" / "evaluation.md"
BEGIN = "<!-- python -m benchmarks.blind_table: begin -->"
KINDS = ("prose", "column lookup", "labelled value", "unlabelled name", "chart", "receipt", "form")  # of questions
MEMO, SPOKEN = "memo", "memo transcript"
TIMES = ("ttft_s", "tpot_s")
REFERENCE = "blind_bf16"


def table(results: dict[str, Any], counts: Counter[str]) -> str:
    """Markdown: a row for each kind of question, a column for each policy.

    Args:
        results: what ``kvmm eval blind`` wrote.
        counts: how many questions of each kind the set has.
    """
    policies = {name.removeprefix("blind_"): scores for name, scores in results["results"].items()}
    pages = sum(counts[kind] for kind in (*KINDS, "unanswerable"))
    memos = counts[MEMO] + counts["unanswerable memo"]
    rows = [
        ("questions about pages: ANLS", pages, "anls"),
        ("questions about pages: exact match", pages, "exact_match"),
        ("those that the page answers: ANLS", pages - counts["unanswerable"], "answerable_anls"),
        *((f"{kind}: ANLS", counts[kind], f"anls/{kind}") for kind in KINDS),
        ("it does not say: precision", pages + memos, "refusal_precision"),
        ("it does not say: recall", counts["unanswerable"] + counts["unanswerable memo"], "refusal_recall"),
        ("transcription of a page: CER, mean", counts["transcription"], "cer"),
        ("transcription of a page: CER, median", counts["transcription"], "cer_median"),
        ("voice memos: WER", counts[SPOKEN], "wer"),
        ("questions about memos: exact match", counts[MEMO], f"memo_exact_match/{MEMO}"),
    ]
    lines = [f"| | questions | {' | '.join(policies)} |", f"| --- | ---: |{' ---: |' * len(policies)}"]
    for label, count, key in rows:
        cells = [f"{scores[f'{key},none']:.3f}".removeprefix("0") for scores in policies.values()]
        lines.append(f"| {label} | {count} | {' | '.join(cells)} |")
    bits = [f"{scores['bits_per_value,none']:.2f}" for scores in policies.values()]
    lines.append(f"| whole-cache bits per value | | {' | '.join(bits)} |")
    return "\n".join(lines) + "\n"


def committed_table() -> str:
    """The table of the committed results."""
    rows = json.loads(SET.read_text(encoding="utf-8"))["data"]
    return table(json.loads(RESULTS.read_text(encoding="utf-8")), Counter(row["kind"] for row in rows))


def answered(results: dict[str, Any]) -> list[str]:
    """The names of the policies that have answered every question."""
    counts = results["n-samples"].items()
    return [name for name, one in counts if one["effective"] == one["original"] and not one["left_out"]]


def keep(out: Path) -> None:
    """Make the newest results below a folder the committed ones, those of policies that answered every question.

    Raises:
        SystemExit: there are no results, or none of full precision.
    """
    found = sorted(out.rglob("*_results.json"))
    if not found:
        raise SystemExit(f"{out} holds no results of kvmm eval.")
    results = json.loads(found[-1].read_text(encoding="utf-8"))
    names = answered(results)
    if REFERENCE not in names:
        raise SystemExit(f"{found[-1]} lacks answers in full precision: run the same command again.")
    for part in ("results", "configs", "n-samples", "higher_is_better"):
        results[part] = {name: results[part][name] for name in names}
    for config in results["configs"].values():
        config["dataset_path"] = SET.parent.relative_to(ROOT).as_posix()
    results["group_subtasks"] = {"blind": names}
    results["complete"] = True
    for scores in results["results"].values():
        for name in TIMES:
            scores.pop(f"{name},none", None)
    for name in ("throughput", "total_evaluation_time_seconds"):
        results.pop(name, None)
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def main(out: str | None = None) -> None:
    """Keep new results if a folder is given, and write the table."""
    if out is not None:
        keep(Path(out))
    text = PAGE.read_text(encoding="utf-8")
    old, new = f"{BEGIN}\n{marked(text, BEGIN)}{END}", f"{BEGIN}\n{committed_table()}{END}"
    PAGE.write_text(text.replace(old, new), encoding="utf-8")
    print(committed_table(), end="")


if __name__ == "__main__":
    main(*sys.argv[1:2])
