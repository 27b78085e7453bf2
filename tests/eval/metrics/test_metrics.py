"""The metrics against rows that lmms-eval's own functions scored, and by hand."""

from __future__ import annotations

import importlib
import json
import random
import sys
from pathlib import Path

import pytest

from kvmm.eval import anls, cer, exact_match, ocrbench_hit
from kvmm.eval.metrics import text

VECTORS = Path(__file__).parents[2] / "data" / "vectors"


def rows(name: str) -> list[dict]:
    return json.loads((VECTORS / f"{name}.json").read_text(encoding="utf-8"))


def test_anls_agrees_with_every_row():
    data = rows("anls")
    assert len(data) == 400
    for row in data:
        assert anls(row["prediction"], row["answers"]) == pytest.approx(row["anls"], abs=1e-12), row


def test_ocrbench_agrees_with_every_row():
    data = rows("ocrbench")
    assert len(data) == 400 and {row["score"] for row in data} == {0, 1}
    for row in data:
        assert ocrbench_hit(row["prediction"], row["answer"], row["dataset"]) == bool(row["score"]), row


def test_anls_by_hand():
    assert anls("Total", "total") == 1
    assert anls("ab", "ax") == 0.5  # the threshold itself stays
    assert anls("abc", "axy") == 0
    assert anls("a  b", "a b") == 1
    assert anls("", "") == 1
    with pytest.raises(ValueError):
        anls("x", [])


def test_exact_match():
    assert exact_match(" It does  not say ", "It does not say.")
    assert exact_match("12.50", ["12,50", "12.50"])
    assert not exact_match("12.5", "12.50")


def test_cer():
    assert cer("abcd", "abcd") == 0
    assert cer("abxd", "abcd") == 0.25
    assert cer("a\nb", "a b") == 0
    assert cer("ABCD", "abcd") == 1
    assert cer("", "") == 0 and cer("x", "") == 1


def test_fallback_distance_equals_rapidfuzz(monkeypatch: pytest.MonkeyPatch):
    fast = pytest.importorskip("rapidfuzz.distance.Levenshtein").distance
    monkeypatch.setitem(sys.modules, "rapidfuzz.distance.Levenshtein", None)
    slow = importlib.reload(text).levenshtein
    try:
        assert slow is not fast
        r = random.Random(0)
        for _ in range(300):
            a, b = ("".join(r.choices("abc ", k=r.randint(0, 9))) for _ in range(2))
            assert slow(a, b) == fast(a, b)
    finally:
        monkeypatch.undo()
        importlib.reload(text)
