"""How well the model's confidence holds on the blind set: benchmarks/results/confidence/blind.json.

python -m kvmm eval blind --data tests/blind --model tiny-omni --policies bf16 balanced small --out OUT --device cpu
python -m benchmarks.blind_confidence OUT    # the result file, and the table of docs/python.md
python -m benchmarks.blind_confidence        # only the table

Nothing is fitted to these documents: the map beside the weights comes from held-out pages of the training's own kinds.
For questions about PDFs the file also has what the comparison with their text layer says, and how many of the set's
own answers it would take for wrong. Only counts and means are kept: the set stays blind (``tests/blind/README.md``).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.answer_tables import END, marked
from kvmm.eval.metrics import cer
from kvmm.eval.metrics.reliability import calibration_figures, part_figures
from kvmm.eval.run.records import Row, Run, count_failed, read_run
from kvmm.eval.tasks.blind import TRANSCRIPT, TRANSCRIPTION, UNANSWERABLE
from kvmm.media import load_document
from kvmm.models.confidence import FILE_NAME, ConfidenceMap, read_confidence_map
from kvmm.models.loading import TINY_MODEL, assets_folder
from kvmm.models.text_layer import TextLayer

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "confidence" / "blind.json"
SET = ROOT / "tests" / "blind" / "blind.json"
PAGE = ROOT / "docs" / "python.md"
BEGIN = "<!-- python -m benchmarks.blind_confidence: begin -->"
RIGHT = (
    "ANLS of at least .5; of a transcription a character error rate of at most .1; of a question that the document "
    "does not answer, a refusal"
)
GROUPS = {
    "questions about pages": lambda kind: kind not in (TRANSCRIPTION, TRANSCRIPT) and "memo" not in kind,
    "questions about memos": lambda kind: kind != TRANSCRIPT and "memo" in kind,
    "transcriptions": lambda kind: kind in (TRANSCRIPTION, TRANSCRIPT),
}


def is_right(row: Row) -> bool:
    """Whether an answer counts as right, as :data:`RIGHT` says."""
    if row["metadata"]["kind"] in (TRANSCRIPTION, TRANSCRIPT):
        return min(cer(row["filtered_resps"], answer) for answer in row["target"]) <= 0.1
    return row.get("anls", row.get("memo_anls")) >= 0.5


def policy_figures(rows: Sequence[Row], layers: Mapping[str, TextLayer], unsure_below: float) -> dict[str, Any]:
    """Figures of all answers, of each group without its table, and of what the text layers say."""
    out = calibration_figures([row["confidence"] for row in rows], [is_right(row) for row in rows], unsure_below)
    out["groups"] = {}
    for name, has in GROUPS.items():
        part = [row for row in rows if has(row["metadata"]["kind"])]
        found = calibration_figures([row["confidence"] for row in part], [is_right(row) for row in part], unsure_below)
        del found["table"]
        out["groups"][name] = found
    asked = [row for row in rows if row["doc_id"] in layers and row["metadata"]["kind"] != TRANSCRIPTION]
    out["text_layer"] = compared(asked, layers, unsure_below)
    return out


def compared(rows: Sequence[Row], layers: Mapping[str, TextLayer], unsure_below: float) -> dict[str, Any]:
    """Answers about PDFs by whether the text has their values, and the mark without and with that comparison.

    ``exact`` is the share that matches a reference: a value with one digit misread may have an ANLS above .5.
    """
    support = [layers[row["doc_id"]].supports(row["filtered_resps"]) for row in rows]
    low = [row["confidence"] < unsure_below for row in rows]

    def part(which: Sequence[bool]) -> dict[str, Any]:
        chosen = [row for row, one in zip(rows, which, strict=True) if one]
        exact = part_figures([row["exact_match"] > 0 for row in chosen])["right"]
        return {**part_figures([is_right(row) for row in chosen]), "exact": exact}

    marked = [a or b is False for a, b in zip(low, support, strict=True)]
    return {
        **part([True] * len(rows)),
        "supported": part([one is True for one in support]),
        "not_supported": part([one is False for one in support]),
        "without_a_value": part([one is None for one in support]),
        "unsure_by_logits": part(low),
        "unsure": part(marked),
        "sure_by_logits": part([not one for one in low]),
        "sure": part([not one for one in marked]),
    }


def layers_of(data: Sequence[Mapping[str, Any]]) -> dict[str, TextLayer]:
    """By id of a question: the text layer of its PDF, where it can be compared."""
    files = sorted({name for row in data for name in row.get("files", ()) if name.endswith(".pdf")})
    read = {name: TextLayer.of(load_document(SET.parent / name)) for name in files}
    found = {row["questionId"]: read.get(row["files"][0]) for row in data if row.get("files")}
    return {name: layer for name, layer in found.items() if layer is not None}


def reference_figures(data: Sequence[Mapping[str, Any]], layers: Mapping[str, TextLayer]) -> dict[str, int]:
    """What the comparison says of the set's own answers, of which none is wrong."""
    answered = (row for row in data if row["kind"] != TRANSCRIPTION and not row["kind"].startswith(UNANSWERABLE))
    found = [layers[row["questionId"]].supports(row["answers"][0]) for row in answered if row["questionId"] in layers]
    return {"n": len(found), "supported": found.count(True), "not_supported": found.count(False)}


def result_of(run: Run, fitted: ConfidenceMap) -> dict[str, Any]:
    """The content of the result file.

    Raises:
        SystemExit: the answers are of other weights, one is missing, or one is without confidence.
    """
    if run.results["config"]["model_fingerprint"] != fitted.fingerprint:
        raise SystemExit(f"{run.folder} has the answers of other weights than {FILE_NAME}: run kvmm eval again.")
    data = json.loads(SET.read_text(encoding="utf-8"))["data"]
    layers = layers_of(data)
    test = {}
    for policy, rows in run.samples["blind"].items():
        if len(rows) != len(data) or count_failed(rows) or not all("confidence" in row for row in rows):
            raise SystemExit(f"{run.folder} lacks answers of {policy}, or how sure they are: run kvmm eval again.")
        test[policy] = policy_figures(rows, layers, fitted.unsure_below)
    return {
        "right": RIGHT,
        "test": test,
        "own_answers": reference_figures(data, layers),
        "unsure_below": fitted.unsure_below,
        "fingerprint": fitted.fingerprint,
        "model_name": run.model,
        "config": run.results["config"],
        "versions": run.results["versions"],
        "git_hash": run.results["git_hash"],
        "command": "python -m benchmarks.blind_confidence OUT, of kvmm eval blind --out OUT",
    }


def committed_table() -> str:
    """Markdown of the committed results: a row for each policy and group."""
    lines = [
        "| policy | answers to | n | right | mean probability | ECE |",
        "| --- | --- | ---: | ---: | ---: | ---: |",
    ]
    for policy, found in json.loads(RESULTS.read_text(encoding="utf-8"))["test"].items():
        for name, part in {"all": found, **found["groups"]}.items():
            cells = [f"{part[key]:.3f}".removeprefix("0") for key in ("right", "probability", "ece")]
            lines.append(f"| `{policy}` | {name} | {part['n']} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main(out: str | None = None) -> None:
    """Write the result file if the folder of a run is given, from the newest run below it; then the table."""
    if out is not None:
        result = result_of(read_run(out), read_confidence_map(assets_folder() / TINY_MODEL / FILE_NAME))
        RESULTS.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    text = PAGE.read_text(encoding="utf-8")
    old, new = f"{BEGIN}\n{marked(text, BEGIN)}{END}", f"{BEGIN}\n{committed_table()}{END}"
    PAGE.write_text(text.replace(old, new), encoding="utf-8")
    print(committed_table(), end="")


if __name__ == "__main__":
    main(*sys.argv[1:2])
