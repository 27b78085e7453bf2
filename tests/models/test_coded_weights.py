"""Entropy-coded weights: what rounding costs for how many bits, exact codes, one clear line for damage."""

from __future__ import annotations

import json
import math

import pytest
import torch

from kvmm.errors import KVMMError
from kvmm.models.coded_weights import CODED, COLUMNS, STEPS, code_matrix, dequantize_rows, quantize_rows
from kvmm.models.loading import _parameters
from kvmm.models.packed_weights import PACKED_FILE, code_weights, load_packed, pack_weights, save_packed, unpack_weights


def gaussian(rows: int, columns: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    scales = torch.logspace(-3, 1, rows)[:, None]
    return torch.randn(rows, columns, generator=generator) * scales


@pytest.mark.parametrize("share", [0.04, 0.08, 0.5])
def test_error_is_that_of_the_step(share):
    weight = gaussian(64, 576)
    error = dequantize_rows(*quantize_rows(weight, share)) - weight
    per_row = error.square().mean(1) / weight.square().mean(1)
    assert (per_row.mean() / (share**2 / 12) - 1).abs() < 0.05  # of a uniform distribution within a step, in any row


def test_rate_is_the_entropy_of_the_levels():
    share, weight = 0.08, gaussian(512, 576)
    bits = 8 * sum(part.nbytes for part in code_matrix(weight, share).values()) / weight.numel()
    entropy = 0.5 * math.log2(2 * math.pi * math.e) - math.log2(share)  # of a Gaussian in steps of its deviation
    assert entropy < bits < entropy + 0.1  # steps, the code's tables, codes of whole bits


def test_less_error_than_groups_of_the_same_size():
    weight = torch.randn(256, 576, generator=torch.Generator().manual_seed(3))
    grouped, coded = pack_weights({"w": weight}, 6, 64), code_weights({"w": weight}, 0.05)
    assert sum(t.nbytes for t in coded.values()) < sum(t.nbytes for t in grouped.values())
    errors = [(unpack_weights(packed)["w"] - weight).square().mean() for packed in (coded, grouped)]
    assert errors[0] < 0.5 * errors[1]


def test_outliers_and_empty_rows():
    weight = gaussian(4, 64)
    weight[1, 5], weight[2] = 1e4, 0
    again = unpack_weights(code_weights({"w": weight}, 0.08))["w"]
    assert abs(again[1, 5] / 1e4 - 1) < 1 / 127
    assert torch.equal(again[2], torch.zeros(64))
    assert (again[3] - weight[3]).abs().max() <= 0.041 * weight[3].square().mean().sqrt()


def test_names_shapes_and_finer_matrices(tmp_path):
    weights = {"a.weight": gaussian(8, 64), "embed.weight": gaussian(8, 64), "norm": torch.randn(8)}
    weights |= {"narrow": torch.randn(4, 8), "conv": torch.randn(4, 3, 2, 8, 8)}
    packed = code_weights(weights, 0.1, finer=("embed",))
    again = unpack_weights(packed)
    assert {n: t.shape for n, t in again.items()} == {n: t.shape for n, t in weights.items()}
    assert torch.equal(packed["embed.weight" + STEPS], quantize_rows(weights["embed.weight"], 0.05)[1].squeeze(1))
    for name in ("norm", "narrow"):
        assert torch.equal(again[name], weights[name].bfloat16().float())
    save_packed(packed, tmp_path)
    loaded = load_packed(tmp_path, torch.bfloat16)
    assert all(torch.equal(loaded[n], again[n].bfloat16()) for n in again)
    assert _parameters(tmp_path) == sum(t.numel() for t in weights.values())


def test_coding_twice_changes_nothing():
    """What a chain of runs carries along is what it was."""
    weight = gaussian(16, 96)
    levels, steps = quantize_rows(weight, 0.08)
    packed = code_weights({"w": weight}, 0.08)
    assert torch.equal(unpack_weights(packed)["w"], levels * steps.float())


def test_damage_is_one_line(tmp_path):
    packed = code_weights({"w": gaussian(8, 64)}, 0.08)
    codes = packed["w" + CODED]
    damaged = {
        "no steps": {n: t for n, t in packed.items() if n != "w" + STEPS},
        "cut": {**packed, "w" + CODED: codes[: len(codes) // 2]},
        "other rows": {**packed, "w" + STEPS: packed["w" + STEPS][:5]},
        "other columns": {**packed, "w" + COLUMNS: torch.tensor(70)},
        "noise": {**packed, "w" + CODED: torch.full_like(codes, 255)},
    }
    for tensors in damaged.values():
        with pytest.raises(KVMMError, match=r"packed weights of w are not complete; copy or download it again\.$"):
            unpack_weights(tensors)
    with pytest.raises(ValueError, match="cannot be coded in steps of 0 of"):
        quantize_rows(gaussian(4, 64), 0)
    path = save_packed(packed, tmp_path)
    header = json.loads(path.read_bytes()[8 : 8 + int.from_bytes(path.read_bytes()[:8], "little")])
    assert (path.name, header["__metadata__"]["elements"]) == (PACKED_FILE, str(8 * 64))
