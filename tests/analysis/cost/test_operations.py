"""Operation counts against formulas written out by hand."""

from __future__ import annotations

import pytest

from kvmm import policies
from kvmm.analysis.cost.model import CostModel
from kvmm.analysis.cost.operations import decode_operations, pack_operations
from kvmm.analysis.cost.shapes import SHAPES, ModelShape

SHAPE = ModelShape("tiny", 2, 4, 2, 64, 256)
PACKED = 1024  # text tokens in pages; 4 sinks and 64 residual tokens stay as they are
TEXT = 4 + 64 + PACKED


def decoded(policy: str, **tokens: int) -> dict[str, int]:
    return decode_operations(CostModel(SHAPE, policy), tokens or {"text": TEXT}).to_dict()


def test_full_precision_only_multiplies():
    product = 2 * 4 * 64 * TEXT
    assert decoded("bf16") == {"qk": product, "pv": product, "rotation": 0, "scale": 0, "norm": 0, "total": 2 * product}
    assert pack_operations(CostModel(SHAPE, "bf16")).total == 0


def test_oscar():
    """Two Hadamard transforms a query head, a norm a token and head, scale and zero point of groups of 128 (of the
    64 channels, for values)."""
    found = decoded("oscar2")
    assert found["rotation"] == 2 * 4 * 2 * (64 * 6)
    assert found["norm"] == 2 * 4 * PACKED
    keys, values = 64 * PACKED // 128, PACKED
    assert found["scale"] == 2 * 4 * 2 * (keys + values)
    pack = pack_operations(CostModel(SHAPE, "oscar2"))
    assert pack.rotation == 2 * 2 * 2 * 64 * 6
    assert pack.norm == 2 * 2 * 2 * 64, "keys only"
    assert pack.quantize == 2 * 2 * 2 * 3 * 64


def test_kivi_neither_rotates_nor_scales():
    found = decoded("kivi2")
    assert found["rotation"] == found["norm"] == 0
    assert found["scale"] == 2 * 4 * 2 * (64 * PACKED // 32 + PACKED * 64 // 32)


def test_a_basis_that_stores_share_is_entered_once():
    text, both = decoded("oscar2"), decoded("oscar2", text=TEXT, image=512)
    assert both["rotation"] == text["rotation"]
    assert both["norm"] == text["norm"] * (PACKED + 512) // PACKED


def test_turboquant_multiplies_by_a_matrix():
    found = decoded("turboquant2")
    assert found["rotation"] == 2 * 4 * 2 * 64 * 64
    assert pack_operations(CostModel(SHAPE, "turboquant2")).quantize == 0


def test_windows_are_read_as_far_as_they_reach():
    shape = SHAPES["gemma-3-12b-it"]
    found = decode_operations(CostModel(shape, "bf16"), {"text": 8192})
    assert found.qk == 16 * 256 * (8 * 8192 + 40 * 1024)


@pytest.mark.parametrize("policy", policies())
def test_every_policy_can_be_counted(policy):
    model = CostModel(SHAPE, policy)
    found = decode_operations(model, {"text": 600, "image": 500})
    assert found.qk == found.pv == 2 * 4 * 64 * 1100
    assert found.total == sum(v for name, v in found.to_dict().items() if name != "total")
    assert policy == "bf16" or found.rotation + found.scale + found.norm > 0
    assert policy == "bf16" or pack_operations(model, "image").total > 0
