"""Slots of tokens, without vLLM."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from kvmm import KVMMError
from kvmm.calibration import read_calibration
from kvmm.modality import TEXT
from kvmm.models.loading import default_model
from kvmm.vllm import DTYPES, dtype_codec
from kvmm.vllm.slots import ABOUT_ZERO_BITS, LayerSlots, SlotCodec, oscar_side, rd_side
from tests.vllm_plugin.models import fitted

BLOCK = 32
HEADS, DIM = 2, 64


@pytest.fixture(scope="module")
def calibration():
    generator = torch.Generator().manual_seed(0)
    spread = 0.93 ** torch.arange(DIM)
    return fitted(
        [tuple(torch.randn(HEADS, 900, DIM, generator=generator) * spread for _ in range(2)) for _ in range(2)]
    )


def tokens(count: int, seed: int = 1) -> torch.Tensor:
    x = torch.randn(count, HEADS, DIM, generator=torch.Generator().manual_seed(seed))
    return x * 0.93 ** torch.arange(DIM)


@pytest.mark.parametrize("bits", [1, 1.5, 2, 4, 8])
def test_a_slot_gives_back_its_token_whatever_is_beside_it(calibration, bits):
    codec, x = SlotCodec(rd_side(calibration, 0, "key", bits)), tokens(70)
    slots = codec.encode(x)
    assert slots.shape == (70, HEADS, codec.nbytes) and slots.dtype == torch.uint8
    assert torch.equal(codec.encode(x[40:41]), slots[40:41])
    error = (codec.decode(slots) - x).square().sum() / x.square().sum()
    assert 0 < error < max(0.25**bits, 2e-4)  # what plain rounding of equal channels would leave


@pytest.mark.parametrize("bits", [2, 3, 4])
def test_only_fine_levels_are_tried_about_zero(calibration, bits):
    """The bit that says so is never set below 4 bits; the levels lie about the mean either way."""
    site = calibration.site("rd", 0, "key", TEXT)
    shifted = {"rd.0.key.text.mean": site["mean"] + 20 * torch.eye(DIM)[:HEADS]}  # one channel of a head far from zero
    moved = replace(calibration, tensors={**calibration.tensors, **shifted})
    side = rd_side(moved, 0, "key", bits)
    x = torch.cat((tokens(40) + shifted["rd.0.key.text.mean"], tokens(40)))  # half of them about zero
    slots = SlotCodec(side).encode(x)
    bit = int(side.widths.sum())
    about_zero = slots[..., bit // 8] >> bit % 8 & 1
    assert bool(about_zero[:40].any()) is False and bool(about_zero[40:].any()) is (bits >= ABOUT_ZERO_BITS)


def test_norms_are_in_slots_where_calibration_says_so():
    calibration = read_calibration(default_model() / "kvmm_calibration.safetensors")
    codecs = [SlotCodec(rd_side(calibration, i, side, 2)) for i in range(8) for side in ("key", "value")]
    assert sum(codec.nbytes for codec in codecs) < 16 * (2.3 * codecs[0].dim / 8 + 2)
    for codec in codecs:
        x = torch.randn(9, codec.heads, codec.dim)
        doubled = codec.decode(codec.encode(2 * x))
        if codec.side.norm:
            torch.testing.assert_close(doubled, 2 * codec.decode(codec.encode(x)), rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize("past", [0, 1, 31, 32, 33, 100])
@pytest.mark.parametrize("count", [1, 5])
def test_attention_is_that_over_what_slots_give_back(calibration, past, count):
    slots = LayerSlots(calibration, 1, "rd", 2, BLOCK, torch.float32)
    cache = torch.full((9, HEADS, BLOCK, slots.nbytes), 7, dtype=torch.uint8)
    key, value = tokens(past + count, 2), tokens(past + count, 3)
    blocks = torch.tensor([5, 2, 8, 0])
    places = torch.arange(past)
    where = blocks[places // BLOCK] * BLOCK + places % BLOCK
    order = torch.randperm(past, generator=torch.Generator().manual_seed(0))
    for part in order.split(7):  # in any order, and some that are not to be written
        held = torch.cat((where[part], torch.tensor([-1])))
        rows = torch.cat((part, torch.tensor([0])))
        slots.write(cache, held, key[rows], value[rows])
    query = torch.randn(count, 3 * HEADS, DIM, generator=torch.Generator().manual_seed(4))
    scaling = DIM**-0.5
    found = slots.attend(query, key[past:], value[past:], cache, blocks[: -(-past // BLOCK)], past, scaling)
    seen = []
    for codec, x in ((slots.key, key), (slots.value, value)):
        back = torch.cat((codec.decode(codec.encode(x[:past])), x[past:]))
        back[:past:BLOCK] = x[:past:BLOCK]
        seen.append(back.repeat_interleave(3, 1).transpose(0, 1))
    mask = torch.ones(count, past + count, dtype=torch.bool).tril(past)
    wanted = torch.nn.functional.scaled_dot_product_attention(
        query.transpose(0, 1), seen[0], seen[1], attn_mask=mask, scale=scaling
    )
    torch.testing.assert_close(found, wanted.transpose(0, 1), rtol=1e-4, atol=1e-5)


def test_oscar_codes_by_what_calibration_saw():
    """A channel far from zero and a narrow one, as the rotation leaves them, of vectors of any length."""
    generator = torch.Generator().manual_seed(0)
    x = 1 + torch.randn(HEADS, 4000, DIM, generator=generator) * 0.9 ** torch.arange(DIM)
    one = fitted([(x, x)])
    for side in ("key", "value"):
        codec = SlotCodec(oscar_side(one, 0, side, 2))
        assert codec.side.norm and codec.nbytes == 2 * DIM // 8 + 1 + 2
        rotated = x / x.norm(dim=-1, keepdim=True) @ codec.side.forward.mT
        torch.testing.assert_close(codec.side.offset, rotated.mean(1), atol=0.02, rtol=0.05)
        tokens = x[:, :100].transpose(0, 1)
        found = codec.decode(codec.encode(tokens))
        centred = (x - x.mean(1, keepdim=True)).square().sum(-1).mean()
        assert (found - tokens).square().sum(-1).mean() < 0.2 * centred  # .119 is what a Gaussian leaves
        torch.testing.assert_close(codec.decode(codec.encode(8 * tokens)), 8 * found, rtol=1e-2, atol=1e-2)
    with pytest.raises(KVMMError, match="no fit of rd to the keys of layer 3"):
        oscar_side(one, 3, "key", 2)


def test_rd2_takes_a_sixth_of_bf16(calibration):
    layers = [LayerSlots(calibration, i, "rd", 2, 128) for i in range(2)]
    assert 2 * (2 * DIM * 2) / sum(layer.nbytes for layer in layers) > 6
    assert all(layer.nbytes % 4 == 0 for layer in layers)


def test_a_layer_without_a_fit_is_one_line(calibration):
    with pytest.raises(KVMMError, match="no fit of rd to the keys of layer 7") as error:
        rd_side(calibration, 7, "key", 2)
    assert "\n" not in str(error.value)


def test_names_of_dtypes():
    assert [dtype_codec(name)[1] for name in DTYPES] == [1, 1.5, 2, 2.5, 3, 4, 6, 8, 2]
    assert {dtype_codec(name)[0] for name in DTYPES[:-1]} == {"rd"} and dtype_codec(DTYPES[-1]) == ("oscar", 2)
    assert dtype_codec("fp8_e4m3") is None and dtype_codec("kvmm_rd99") is None


def test_without_a_vllm_that_fits_registering_is_one_line():
    code = (
        "import sys; sys.modules['vllm'] = None\n"
        "from kvmm import KVMMError\nfrom kvmm.vllm import register\n"
        "try:\n    register()\nexcept KVMMError as error:\n    print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.count("\n") == 1 and "docs/vllm.md" in done.stdout
