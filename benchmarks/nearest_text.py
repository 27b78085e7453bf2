"""What "The PDF's text has: ..." proposes on the blind set: benchmarks/results/confidence/nearest_text.json.

python -m kvmm eval blind --data tests/blind --policies bf16 --model office-omni --out OUT --device cpu
python -m benchmarks.nearest_text OUT

Only counts are kept: the set stays blind (``tests/blind/README.md``).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.blind_confidence import SET, layers_of
from kvmm.eval.metrics import exact_match
from kvmm.eval.run.records import Row, read_run
from kvmm.eval.tasks.blind import TRANSCRIPTION
from kvmm.models.text_layer import TextLayer

RESULTS = Path(__file__).resolve().parent / "results" / "confidence" / "nearest_text.json"


def counts(rows: Sequence[Row], layers: Mapping[str, TextLayer]) -> dict[str, int]:
    """How many answers about PDFs there are, how many the text does not support, for how many of these a passage is
    proposed, and how many of these answers and of the passages are exactly a reference."""
    asked = [row for row in rows if row["doc_id"] in layers and row["metadata"]["kind"] != TRANSCRIPTION]
    missed = [row for row in asked if layers[row["doc_id"]].supports(row["filtered_resps"]) is False]
    found = [(row, layers[row["doc_id"]].nearest(row["filtered_resps"])) for row in missed]
    proposed = [(row, passage) for row, passage in found if passage is not None]
    return {
        "n": len(asked),
        "not_supported": len(missed),
        "proposed": len(proposed),
        "answers_right": sum(exact_match(row["filtered_resps"], row["target"]) for row, _ in proposed),
        "passages_right": sum(exact_match(passage, row["target"]) for row, passage in proposed),
    }


def main(out: str) -> None:
    """Write the result file from the newest run below a folder."""
    run = read_run(out)
    layers = layers_of(json.loads(SET.read_text(encoding="utf-8"))["data"])
    result: dict[str, Any] = {
        "policies": {policy: counts(rows, layers) for policy, rows in run.samples["blind"].items()},
        "fingerprint": run.results["config"]["model_fingerprint"],
        "versions": run.results["versions"],
        "git_hash": run.results["git_hash"],
        "command": "python -m benchmarks.nearest_text OUT, of kvmm eval blind --model office-omni --out OUT",
    }
    RESULTS.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(result["policies"], indent=1))


if __name__ == "__main__":
    main(*sys.argv[1:])
