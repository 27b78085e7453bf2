"""Weights in few bits: levels survive packing, errors shrink with the bits, damage is one clear line."""

from __future__ import annotations

import re

import pytest
import torch
from safetensors.torch import save_file

from kvmm.errors import KVMMError
from kvmm.models.packed_weights import (
    PACKED_FILE,
    WIDTHS,
    dequantize,
    load_packed,
    pack_levels,
    pack_weights,
    quantize,
    save_packed,
    unpack_levels,
    unpack_weights,
)


@pytest.mark.parametrize("bits", WIDTHS)
def test_levels_round_trip(bits):
    levels = torch.randint(0, 2**bits, (6, 64), dtype=torch.uint8, generator=torch.Generator().manual_seed(bits))
    low, high = pack_levels(levels, bits)
    assert low.nbytes + (0 if high is None else high.nbytes) == 6 * 64 * bits // 8
    assert torch.equal(unpack_levels(low, high, bits), levels)


@pytest.mark.parametrize("bits", WIDTHS)
def test_error_is_below_the_step_of_the_range(bits):
    weight = torch.randn(40, 96, generator=torch.Generator().manual_seed(0))
    error = (dequantize(*quantize(weight, bits, 32)) - weight).square().mean().sqrt()
    plain = (weight.unflatten(1, (-1, 32)).amax(-1) - weight.unflatten(1, (-1, 32)).amin(-1)).mean() / (2**bits - 1)
    assert error < plain / 12**0.5 * 1.02  # no worse than rounding over the whole range


def test_weights_that_lie_on_a_grid_are_kept_exactly():
    """As those of a GGUF file do, whose groups use their lowest and highest level."""
    generator = torch.Generator().manual_seed(1)
    levels = torch.randint(0, 16, (8, 4, 32), generator=generator)
    levels[..., 0], levels[..., 1] = 0, 15
    step = (torch.rand(8, 4, 1, generator=generator) * 0.01 + 0.01).half().float()
    weight = (levels * step - 7 * step.half().float()).flatten(1)
    again = unpack_weights(pack_weights({"w": weight}, 4, 32))["w"]
    assert (again - weight).abs().max() < 1e-3 * weight.abs().max()


def test_names_shapes_and_wide_matrices(tmp_path):
    weights = {
        "a.weight": torch.randn(8, 64),
        "embed.weight": torch.randn(8, 64),
        "norm": torch.randn(8),
        "odd": torch.randn(4, 30),
    }
    weights["conv"] = torch.randn(4, 3, 2, 8, 8)
    packed = pack_weights(weights, 5, 32, wide=("embed",))
    again = unpack_weights(packed)
    assert {n: t.shape for n, t in again.items()} == {n: t.shape for n, t in weights.items()}
    assert (again["embed.weight"] - weights["embed.weight"]).abs().max() < (
        again["a.weight"] - weights["a.weight"]
    ).abs().max()
    assert torch.equal(again["odd"], weights["odd"].bfloat16().float())
    save_packed(packed, tmp_path)
    loaded = load_packed(tmp_path)
    assert all(torch.equal(loaded[n], again[n]) for n in again)


def test_damaged_files_are_refused(tmp_path):
    packed = pack_weights({"w": torch.randn(4, 64)}, 4, 32)
    with pytest.raises(KVMMError, match=r"packed weights of w are not complete"):
        unpack_weights({n: t for n, t in packed.items() if n != "w.step"})
    with pytest.raises(KVMMError, match="not complete"):
        unpack_weights({**packed, "w.step": packed["w.step"][:2]})
    save_file(packed, tmp_path / PACKED_FILE)
    with pytest.raises(KVMMError, match="not a file of packed weights"):
        load_packed(tmp_path)
    (tmp_path / PACKED_FILE).write_bytes(b"\0" * 40)
    with pytest.raises(KVMMError, match="not a complete safetensors file"):
        load_packed(tmp_path)
    with pytest.raises(ValueError, match="cannot be packed in 3 bits"):
        quantize(torch.randn(4, 64), 3, 32)


def test_a_packed_model_finds_the_calibration_in_its_folder(tmp_path):
    from safetensors.torch import load_file

    from kvmm import load_model
    from kvmm.calibration import calibration_of
    from kvmm.models.loading import default_model

    source = default_model()
    for file in source.iterdir():
        if file.suffix in (".json", ".jinja") or file.name == "kvmm_calibration.safetensors":
            (tmp_path / file.name).write_bytes(file.read_bytes())
    save_packed(pack_weights(load_file(source / "model.safetensors"), 8, 32), tmp_path)
    model, _ = load_model(tmp_path, device="cpu")
    with pytest.warns(UserWarning, match=re.escape(str(tmp_path))):  # found, though it is of the weights before packing
        assert calibration_of(model) is None
