"""16-bit floats in files: the same numbers afterwards, and one line about whatever is damaged or made up."""

from __future__ import annotations

import zlib

import pytest
import torch
from safetensors.torch import load_file

from kvmm import KVMMCache, KVMMError
from kvmm.cache.file_bundle import decode_bundle
from kvmm.cache.file_floats import decode_floats, encode_floats
from tests.tiny_models import build

NAME = "layer.0.dense_key"


def floats(dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(2, 3, 40, 16, generator=torch.Generator().manual_seed(0)).to(dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_numbers_come_back(dtype):
    special = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan, torch.finfo(dtype).tiny], dtype=dtype)
    tensors = {
        NAME: floats(dtype),
        "special": special.repeat(400),
        "codes": torch.arange(9),
        "few": floats(dtype)[0, 0, 0],
    }
    coded = encode_floats(tensors)
    assert sum(x.nbytes for x in coded.values()) < 0.9 * sum(x.nbytes for x in tensors.values())
    found = decode_floats(coded)
    assert found.keys() == tensors.keys() != coded.keys()
    for name, tensor in tensors.items():
        assert found[name].dtype == tensor.dtype and found[name].shape == tensor.shape
        assert torch.equal(found[name].view(torch.uint8), tensor.view(torch.uint8))


def test_noise_stays_as_it_is():
    noise = torch.randint(0, 256, (4096,), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    tensors = {NAME: noise.view(torch.float16)}
    assert encode_floats(tensors).keys() == tensors.keys()


def low_and_high():
    coded = encode_floats({NAME: floats(torch.bfloat16)})
    low, high = sorted(coded, reverse=True)
    return coded, low, high


@pytest.mark.parametrize("change", ["cut", "longer", "other bytes", "no high", "no low", "dtype", "both", "empty"])
def test_damaged(change):
    coded, low, high = low_and_high()
    if change == "cut":
        coded[high] = coded[high][:-9]
    elif change == "longer":
        coded[low] = torch.cat((coded[low], coded[low]))
    elif change == "other bytes":
        coded[high] = torch.full_like(coded[high], 255)
    elif change == "no high":
        del coded[high]
    elif change == "no low":
        del coded[low]
    elif change == "dtype":
        coded[high] = coded[high].to(torch.int32)
    elif change == "both":
        coded[NAME] = floats(torch.bfloat16)
    else:
        coded[high] = coded[high][:0]
    with pytest.raises(KVMMError, match=r"layer\.0\.dense_key"):
        decode_floats(coded)


def test_few_bytes_that_claim_many_are_refused_as_they_are_read():
    """The reader stops behind the bytes that the floats have, whatever the rest would become."""
    coder = zlib.compressobj(9, zlib.DEFLATED, -15)
    bomb = coder.compress(bytes(1 << 26)) + coder.flush()
    coded, _, high = low_and_high()
    coded[high] = torch.frombuffer(bytearray(bomb), dtype=torch.uint8)
    with pytest.raises(KVMMError, match="not as many bytes"):
        decode_floats(coded)


def test_metadata_may_have_any_name(tmp_path):
    """A tensor of the user's own that is called as the parts of one are."""
    model, mine = build("qwen3").to(torch.bfloat16), torch.arange(5, dtype=torch.uint8)
    cache = KVMMCache.for_model(model, "kivi2")
    with torch.no_grad():
        model(input_ids=torch.randint(3, 110, (1, 300)), past_key_values=cache)
    cache.save(tmp_path / "coded", {"x.bfloat16.low": mine})
    assert any(name.endswith(".high") for name in decode_bundle(load_file(tmp_path / "coded")))
    assert torch.equal(KVMMCache.load(tmp_path / "coded", model).metadata["x.bfloat16.low"], mine)
