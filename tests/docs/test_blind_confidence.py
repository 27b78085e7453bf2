"""The figures of confidence on the blind set: what counts as right, and what the comparison with text says."""

from __future__ import annotations

import pytest

from benchmarks import blind_confidence
from kvmm.eval.run.records import Run
from kvmm.models.confidence import ConfidenceMap
from kvmm.models.text_layer import TextLayer

FITTED = ConfidenceMap(0.0, {"mean_token": 1.0}, 0.5, "f" * 64)


def row(name: str, answer: str, kind: str = "prose", confidence: float = 0.9, **scores: float) -> dict:
    known = {"target": ["Total $42.50"], "metadata": {"kind": kind}, "confidence": confidence}
    return {"doc_id": name, "filtered_resps": answer, **known, **scores}


@pytest.mark.parametrize(
    ("found", "right"),
    [
        (row("a", "", anls=0.5), True),
        (row("a", "", anls=0.49), False),
        (row("a", "", "memo", memo_anls=1.0), True),
        (row("a", "Total $42.51", "transcription"), True),
        (row("a", "Total 4", "memo transcript"), False),
    ],
)
def test_what_is_right(found, right):
    assert blind_confidence.is_right(found) is right


def test_answers_are_counted_by_what_the_text_has():
    layers = {name: TextLayer(["Total $42.50"]) for name in "abcd"}
    rows = [
        row("a", "$42.50", anls=1.0, exact_match=1.0),
        row("b", "$47.50", anls=0.8, exact_match=0.0),
        row("c", "$42.50", confidence=0.4, anls=0.0, exact_match=0.0),
        row("d", "blue", anls=0.0, exact_match=0.0),
    ]
    found = blind_confidence.compared(rows, layers, 0.5)
    assert found["supported"] == {"n": 2, "right": 0.5, "exact": 0.5}
    assert found["not_supported"] == {"n": 1, "right": 1.0, "exact": 0.0}
    assert found["unsure_by_logits"]["n"] == 1 and found["unsure"]["n"] == 2
    assert found["sure"] == {"n": 2, "right": 0.5, "exact": 0.5} and found["without_a_value"]["n"] == 1


def test_answers_of_other_weights_and_half_a_run_are_refused(tmp_path):
    config = {"config": {"model_fingerprint": "0" * 64}}
    with pytest.raises(SystemExit, match="other weights"):
        blind_confidence.result_of(Run(tmp_path, "1", config, {"blind": {}}), FITTED)
    config["config"]["model_fingerprint"] = FITTED.fingerprint
    with pytest.raises(SystemExit, match="lacks answers of bf16"):
        blind_confidence.result_of(Run(tmp_path, "1", config, {"blind": {"bf16": [row("a", "", anls=1.0)]}}), FITTED)
