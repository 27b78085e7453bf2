"""Entropy-coded weights: what rounding costs for how many bits, exact codes, one clear line for damage."""

from __future__ import annotations

import json
import math
import zlib

import pytest
import torch

from kvmm.errors import KVMMError
from kvmm.models.coded_weights import CODED, COLUMNS, STEPS, _deflated, code_matrix, dequantize_rows, quantize_rows
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


def test_less_error_than_five_bits_in_groups():
    weight = torch.randn(256, 576, generator=torch.Generator().manual_seed(3))
    grouped, coded = pack_weights({"w": weight}, 5, 64), code_weights({"w": weight}, 0.08)
    sizes = [8 * sum(t.nbytes for t in packed.values()) / weight.numel() for packed in (coded, grouped)]
    assert 5.7 < sizes[0] < 5.8 and sizes[1] == 5.5
    errors = [(unpack_weights(packed)["w"] - weight).square().mean() for packed in (coded, grouped)]
    assert errors[0] < 0.3 * errors[1]


def test_large_levels_have_a_plane_of_their_own():
    weight = gaussian(4, 4096)
    weight[1, 5], weight[2], weight[3, 0] = 1e4, 0, -3e15
    packed = code_weights({"w": weight}, 0.08)
    again = unpack_weights(packed)["w"]
    assert "w.upper" in packed and "w.upper" not in code_weights({"w": gaussian(4, 4096)}, 0.08)
    assert abs(again[1, 5] / 1e4 - 1) < 0.005 and abs(again[3, 0] / -3e15 - 1) < 0.005
    assert torch.equal(again[2], torch.zeros(4096))
    assert (again[0] - weight[0]).abs().max() <= 0.041 * weight[0].square().mean().sqrt()
    for bad in (float("nan"), float("inf")):
        weight[0, 0] = bad
        with pytest.raises(ValueError, match="not finite"):
            code_weights({"w": weight}, 0.08)


def test_an_outlier_leaves_the_steps_of_its_row():
    weight = gaussian(2, 4096)
    weight[1, 7] = 40 * weight[1].square().mean().sqrt()  # more than 127 steps
    steps = quantize_rows(weight, 0.08)[1].float().squeeze(1)
    assert torch.allclose(steps, 0.08 * weight.square().mean(1).sqrt(), rtol=0.005)


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


def test_what_is_read_is_what_rounding_gives():
    weight = gaussian(16, 96).T.contiguous().T  # not contiguous, too
    levels, steps = quantize_rows(weight, 0.08)
    assert torch.equal(unpack_weights(code_weights({"w": weight}, 0.08))["w"], dequantize_rows(levels, steps))


def test_damage_is_one_line(tmp_path):
    packed = code_weights({"w": gaussian(8, 64)}, 0.08)
    codes = packed["w" + CODED]
    damaged = {
        "no steps": {n: t for n, t in packed.items() if n != "w" + STEPS},
        "cut": {**packed, "w" + CODED: codes[: len(codes) // 2]},
        "other rows": {**packed, "w" + STEPS: packed["w" + STEPS][:5]},
        "other columns": {**packed, "w" + COLUMNS: torch.tensor(70)},
        "noise": {**packed, "w" + CODED: torch.full_like(codes, 255)},
        "more behind": {**packed, "w" + CODED: torch.cat([codes, codes[:3]])},
        "no codes": {n: t for n, t in packed.items() if n != "w" + CODED},
        "too many": {**packed, "w" + COLUMNS: torch.tensor(2**62)},
        "fewer than none": {**packed, "w" + COLUMNS: torch.tensor(-64)},
        "one step": {**packed, "w" + STEPS: packed["w" + STEPS][0]},
        "other steps": {**packed, "w" + STEPS: packed["w" + STEPS].float()},
        "other codes": {**packed, "w" + CODED: codes.bfloat16()},
    }
    for bit in range(0, 8 * len(codes), 97):
        damaged[f"bit {bit}"] = {**packed, "w" + CODED: codes.clone()}
        damaged[f"bit {bit}"]["w" + CODED][bit // 8] ^= 1 << bit % 8
    for tensors in damaged.values():
        with pytest.raises(KVMMError, match=r"packed weights of w are not complete; copy or download it again\.$"):
            unpack_weights(tensors)
    with pytest.raises(ValueError, match="cannot be coded in steps of 0 of"):
        quantize_rows(gaussian(4, 64), 0)
    path = save_packed(packed, tmp_path)
    header = json.loads(path.read_bytes()[8 : 8 + int.from_bytes(path.read_bytes()[:8], "little")])
    assert (path.name, header["__metadata__"]["elements"]) == (PACKED_FILE, str(8 * 64))


def test_a_small_file_does_not_fill_the_memory():
    zeros = code_weights({"w": torch.zeros(64, 4096)}, 0.08)
    assert torch.equal(unpack_weights(zeros)["w"], torch.zeros(64, 4096))
    packed = {**zeros, "w" + CODED: _deflated(torch.zeros(64 * 4096), zlib.Z_DEFAULT_STRATEGY)}
    with pytest.raises(KVMMError, match="not complete"):
        unpack_weights(packed)
