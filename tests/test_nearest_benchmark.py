"""The counts of ``benchmarks/nearest_text.py``: what is proposed, and whether it is right."""

from __future__ import annotations

from benchmarks.nearest_text import counts
from kvmm.models.text_layer import TextLayer


def row(doc_id: str, answer: str, target: str, kind: str = "prose") -> dict:
    return {"doc_id": doc_id, "filtered_resps": answer, "target": [target], "metadata": {"kind": kind}}


def test_counts():
    layer = TextLayer(["Leonora Pettigrew paid 5.120,75 to Barker & Sons"])
    rows = [
        row("a", "Leonora Pettigrew", "Leonora Pettigrew"),  # supported
        row("a", "Leonora Petigrew", "Leonora Pettigrew"),  # proposed, and right
        row("a", "Baxter & Sons", "nobody"),  # proposed, and wrong
        row("a", "Marta Olsen", "Leonora Pettigrew"),  # nothing is near
        row("a", "Leonora Petigrew", "Leonora Pettigrew", kind="transcription"),
        row("b", "Leonora Petigrew", "Leonora Pettigrew"),  # no PDF
    ]
    found = counts(rows, {"a": layer})
    assert found == {"n": 4, "not_supported": 3, "proposed": 2, "answers_right": 0, "passages_right": 1}
