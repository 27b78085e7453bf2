"""Slots in Triton against the reference in torch, under the interpreter (on a GPU: natively)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

from kvmm.kernels.slots import SlotFormat, reference
from kvmm.kernels.slots.bits import SideBits, divided
from kvmm.kernels.slots.triton import TritonSlots, interpreted
from tests.kernels.test_slots import HEADS, MIXED, make_format, tokens

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available() and not interpreted(), reason="Triton was imported without its interpreter"
)
ROOT = Path(__file__).parents[2]
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
WIDTHS = {
    "rd2": (64, [6, 5, 5, 4, 4, 4, 3, 3, 3, 3, *[2] * 30, *[1] * 24]),
    "oscar2": (64, [2] * 64),
    "rd4": (64, [7, 6, 6, *[4] * 58]),
    "rd8": (64, [8] * 63),
    "few": (64, MIXED[:3]),
    "of 128": (128, [*MIXED, *[2] * 70]),
    "of 80": (80, [3] * 70),
}
BOTH = [(False, True), (True, False)]


def on_device(form: SlotFormat) -> SlotFormat:
    return SlotFormat(form.key.to(DEVICE), form.value.to(DEVICE), form.block_size, form.dtype)


class Written:
    """Sequences in a cache that the reference wrote, in blocks of any order, each behind others' heads."""

    def __init__(self, form: SlotFormat, pasts: list[int], new: int = 1):
        self.form, self.pasts, self.new = on_device(form), pasts, new
        per = -(-max(pasts) // form.block_size) + 1
        generator = torch.Generator().manual_seed(1)
        self.table = torch.randperm(per * len(pasts), generator=generator).view(len(pasts), -1).to(DEVICE, torch.int32)
        shape = (2 * self.table.numel(), HEADS, form.block_size, form.nbytes)
        self.cache = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator).to(DEVICE)[::2]
        self.tokens = [[x.to(DEVICE) for x in tokens(form, past + new, n)] for n, past in enumerate(pasts)]
        for number in range(len(pasts)):
            where, key, value = self.slots(number)
            reference.write(self.form, self.cache, where, key, value)

    def slots(self, number: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Where the past tokens of a sequence go, with one more that is not written; keys and values."""
        past, size = self.pasts[number], self.form.block_size
        places = torch.arange(past + 1, device=DEVICE)
        where = self.table[number].long()[places // size] * size + places % size
        where[-1] = -1
        key, value = self.tokens[number]
        return where, key[: past + 1], value[: past + 1]

    def decoded(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values float32 ``[past, H, D]``, the first of each block exact."""
        form, past = self.form, self.pasts[number]
        where = self.slots(number)[0][:-1]
        slots = form.slots(self.cache)[where // form.block_size, :, where % form.block_size]
        found = []
        for side, start, x in zip((form.key, form.value), form.starts, self.tokens[number], strict=True):
            back = reference.decode(side, slots[..., start : start + side.nbytes])
            back[:: form.block_size] = x[: past : form.block_size].float()
            found.append(back)
        return found[0], found[1]


def attention_error(written: Written, groups: int, splits: int | None = None, dtype: torch.dtype | None = None) -> float:
    """The relative distance of attention from the reference's, the worst of the sequences; the last row has none."""
    form, new = written.form, written.new
    generator = torch.Generator().manual_seed(5)
    count = len(written.pasts) * new
    query = torch.randn(count + new, groups * HEADS, form.key.dim, generator=generator).to(DEVICE, form.dtype)
    key, value = (torch.cat([x[i][-new:] for x in written.tokens] + [x[0].new_ones(new, *x[0].shape[1:])])
                  for i, x in ((0, written.tokens), (1, written.tokens))) if False else _newest(written)
    table = torch.cat((written.table, written.table[:1]))
    lengths = torch.tensor([*(past + new for past in written.pasts), 0], dtype=torch.int32, device=DEVICE)
    out = torch.full_like(query, float("nan"), dtype=dtype or torch.float32)
    scaling = 0.5 * form.key.dim**-0.5
    slots = TritonSlots(form)
    assert slots.takes(written.cache, query, key, value)
    slots.attend(query, key, value, written.cache, table, lengths, scaling, out, splits)
    assert not out[count:].any()  # a row without a sequence
    worst = 0.0
    for number, past in enumerate(written.pasts):
        part = slice(number * new, (number + 1) * new)
        wanted = reference.attend(
            form, query[part], key[part], value[part], written.cache, written.table[number].long(), past, scaling
        )
        worst = max(worst, float((out[part].float() - wanted).norm() / wanted.norm()))
    return worst


def _newest(written: Written) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values of the new tokens of all sequences, and of a row without one."""
    rows = []
    for side in range(2):
        x = [each[side][len(each[side]) - written.new :] for each in written.tokens]
        rows.append(torch.cat([*x, torch.full_like(x[0], float("nan"))]))
    return rows[0], rows[1]
