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

from kvmm.errors import KVMMError
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
    "one bit": (64, [1] * 64),
    "of 128": (128, [*MIXED, *[2] * 70]),
    "of 80": (80, [3] * 70),  # and not a power of two
}


class Written:
    """Sequences in a cache that the reference wrote, in blocks of any order, with other bytes between the blocks."""

    def __init__(self, form: SlotFormat, pasts: list[int], new: int = 1):
        self.form = SlotFormat(form.key.to(DEVICE), form.value.to(DEVICE), form.block_size, form.dtype)
        self.pasts, self.new = pasts, new
        blocks = -(-max(pasts) // form.block_size) + 1
        generator = torch.Generator().manual_seed(1)
        table = torch.randperm(blocks * len(pasts), generator=generator).view(len(pasts), -1)
        self.table = table.to(DEVICE, torch.int32)
        shape = (2 * table.numel(), HEADS, form.block_size, form.nbytes)
        self.cache = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator).to(DEVICE)[::2]
        self.tokens = [[x.to(DEVICE) for x in tokens(form, past + new, n)] for n, past in enumerate(pasts)]
        for number in range(len(pasts)):
            reference.write(self.form, self.cache, *self.to_write(number))

    def to_write(self, number: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Slots of a sequence's past tokens, with one more that is not written, and keys and values."""
        past, size = self.pasts[number], self.form.block_size
        places = torch.arange(past + 1, device=DEVICE)
        where = self.table[number].long()[places // size] * size + places % size
        where[-1] = -1
        key, value = self.tokens[number]
        return where, key[: past + 1], value[: past + 1]

    def newest(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of the new tokens of all sequences, and of a row without a sequence."""
        rows = []
        for side in range(2):
            x = [each[side][-self.new :] for each in self.tokens]
            rows.append(torch.cat([*x, torch.full_like(x[0], float("nan"))]))
        return rows[0], rows[1]

    def decoded(self, number: int) -> list[torch.Tensor]:
        """Keys and values float32 ``[past, H, D]``, the first of each block exact."""
        form, past = self.form, self.pasts[number]
        where = self.to_write(number)[0][:-1]
        slots = form.slots(self.cache)[where // form.block_size, :, where % form.block_size]
        found = []
        for side, start, x in zip((form.key, form.value), form.starts, self.tokens[number], strict=True):
            back = reference.decode(side, slots[..., start : start + side.nbytes].contiguous())
            back[:: form.block_size] = x[: past : form.block_size].float()
            found.append(back)
        return found


def attention_error(written: Written, groups: int, splits: int | None = None, dtype=torch.float32) -> float:
    """The relative distance from the reference, of the worst sequence; behind them is a row without one."""
    form, new = written.form, written.new
    count = len(written.pasts) * new
    query = torch.randn(count + new, groups * HEADS, form.key.dim, generator=torch.Generator().manual_seed(5))
    query, (key, value) = query.to(DEVICE, form.dtype), written.newest()
    table = torch.cat((written.table, written.table[:1]))
    lengths = torch.tensor([*(past + new for past in written.pasts), 0], dtype=torch.int32, device=DEVICE)
    out = torch.full_like(query, float("nan"), dtype=dtype)
    scaling, slots = 0.5 * form.key.dim**-0.5, TritonSlots(form)
    assert slots.takes(written.cache, query, key, value)
    slots.attend(query, key, value, written.cache, table, lengths, scaling, out, splits)
    assert not out[count:].any()
    worst = 0.0
    for number, past in enumerate(written.pasts):
        part, blocks = slice(number * new, (number + 1) * new), written.table[number].long()
        wanted = reference.attend(form, query[part], key[part], value[part], written.cache, blocks, past, scaling)
        worst = max(worst, float((out[part].float() - wanted).norm() / wanted.norm()))
    return worst


def differing(written: Written, expected: torch.Tensor) -> float:
    """The share of tokens some byte of whose slot is not as expected."""
    form, found = written.form, written.form.slots(written.cache) != written.form.slots(expected)
    used = torch.zeros(form.stride, dtype=torch.bool, device=DEVICE)
    for side, start in zip((form.key, form.value), form.starts, strict=True):
        used[start : start + side.nbytes] = True
    assert not found[..., ~used].any()
    return float(found.any(-1).float().sum() / (HEADS * sum(written.pasts)))


@pytest.mark.parametrize("norms", [(False, True), (True, False)])
@pytest.mark.parametrize("case", WIDTHS)
def test_writing(case, norms):
    written = Written(make_format(*WIDTHS[case], norms), [70])
    expected, (where, key, value) = written.cache.clone(), written.to_write(0)
    used, form = where[:-1], written.form
    for side, start in zip((form.key, form.value), form.starts, strict=True):
        form.slots(written.cache)[used // 32, :, used % 32, start : start + side.nbytes] = 7
    slots = TritonSlots(form)
    order = torch.randperm(len(where), generator=torch.Generator().manual_seed(0)).to(DEVICE)
    for part in order.split(50):  # in any order
        slots.write(written.cache, where[part], key[part], value[part])
    assert differing(written, expected) < 0.02  # sums of floats in another order: now and then another code


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_writing_in_other_dtypes(dtype):
    written = Written(make_format(*WIDTHS["rd2"], block_size=128, dtype=dtype), [150])
    expected, (where, key, value) = written.cache.clone(), written.to_write(0)
    blocks = written.table[0].long()[:2]
    written.form.exact(written.cache)[blocks] = 0
    wide = torch.stack((key, value), 2)  # rows that are not contiguous
    TritonSlots(written.form).write(written.cache, where.int(), wide[:, :, 0], wide[:, :, 1])
    assert torch.equal(written.form.exact(written.cache), written.form.exact(expected))
    assert differing(written, expected) < 0.02


@pytest.mark.parametrize("norms", [(False, True), (True, False)])
@pytest.mark.parametrize("case", WIDTHS)
def test_attention(case, norms):
    assert attention_error(Written(make_format(*WIDTHS[case], norms), [70, 1]), 3) < 1e-3


@pytest.mark.parametrize("splits", [1, 2, 5, 20])
def test_splits_and_lengths(splits):
    written = Written(make_format(*WIDTHS["rd2"]), [0, 1, 31, 32, 33, 170])
    assert attention_error(written, 2, splits) < 1e-3


@pytest.mark.parametrize("groups", [1, 4, 7, 16])
def test_queries_a_head(groups):
    assert attention_error(Written(make_format(*WIDTHS["few"]), [40, 65]), groups) < 1e-3


@pytest.mark.parametrize(("new", "groups"), [(3, 2), (5, 4)])
def test_several_new_tokens(new, groups):
    written = Written(make_format(*WIDTHS["few"]), [40, 0], new)
    assert attention_error(written, groups) < 1e-3
    with pytest.raises(ValueError, match="new tokens"):
        attention_error(Written(make_format(*WIDTHS["few"]), [4], 17), 1)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_model_dtypes(dtype):
    written = Written(make_format(*WIDTHS["oscar2"], block_size=128, dtype=dtype), [200])
    assert attention_error(written, 4) < 1e-3
    assert attention_error(written, 4, dtype=dtype) < 4e-3  # the output is rounded to it


@pytest.mark.parametrize("case", WIDTHS)
def test_decoding(case):
    written = Written(make_format(*WIDTHS[case], (True, False)), [70, 0, 33])
    starts, lengths = [4, 75, 80], torch.tensor(written.pasts, dtype=torch.int32, device=DEVICE)
    out = [torch.full((120, HEADS, written.form.key.dim), float("nan"), device=DEVICE) for _ in range(2)]
    places = torch.tensor(starts, dtype=torch.int32, device=DEVICE)
    TritonSlots(written.form).decode(written.cache, written.table, lengths, places, *out, 90)
    untouched = torch.ones(120, dtype=torch.bool)
    for number, (start, past) in enumerate(zip(starts, written.pasts, strict=True)):
        untouched[start : start + past] = False
        for found, wanted in zip(out, written.decoded(number), strict=True):
            found = found[start : start + past]
            assert not past or (found - wanted).norm() < 2e-3 * wanted.norm()
            assert torch.equal(found[:: written.form.block_size], wanted[:: written.form.block_size])
    assert all(x[untouched].isnan().all() for x in out)


@pytest.mark.parametrize("start", [0, 3, 8])
@pytest.mark.parametrize("case", WIDTHS)
def test_every_bit_is_in_one_column(case, start):
    side = make_format(*WIDTHS[case]).key
    bits = SideBits(side, start)
    lowest, _ = bits._columns
    expected = [*range(0, side.paired, 2), *range(side.paired, bits.layout.flag + 1)]
    assert sorted(bit for bit in lowest.tolist() if bit <= bits.layout.flag) == expected
    assert len(lowest) == bits.layout.columns


def test_few_columns_hold_nothing():
    for bits in (1, 2):
        for words in range(1, 140):
            width, full, rest = divided(words, bits)
            assert words <= width * full + rest <= max(2, words * 1.8)


def test_what_the_kernels_do_not_take():
    form = make_format(*WIDTHS["few"])
    slots, (key, value) = TritonSlots(form), tokens(form, 1, 0)
    cache = torch.zeros(2, HEADS, form.block_size, form.nbytes, dtype=torch.uint8)
    assert slots.takes(cache, key, value)
    assert not slots.takes(cache, key.half(), value)
    assert not slots.takes(cache[..., :-1], key, value)
    for query, other in ((key.half(), cache), (key, cache.int()), (key, cache[..., :-1])):
        with pytest.raises(KVMMError, match=f"slots of {form.nbytes} bytes and torch.float32"):
            slots.warm_up(query, key, value, other, 1.0, torch.empty_like(key))
    with pytest.raises(ValueError, match="power of two"):
        TritonSlots(make_format(*WIDTHS["few"], block_size=48))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize(("batch", "groups"), [(1, 4), (9, 7)])
def test_a_graph_reads_lengths_and_blocks_on_the_device(batch, groups):
    """A captured step gives, after other blocks, lengths and slots were put in place, what a call gives."""
    form = make_format(*WIDTHS["of 128"], block_size=128, dtype=torch.bfloat16)
    written = Written(form, [1000] * batch)
    slots, cache = TritonSlots(written.form), written.cache.clone()
    table, (key, value) = written.table.clone(), written.newest()
    key, value = key[:batch], value[:batch]
    query = torch.randn(batch, groups * HEADS, 128, device=DEVICE, dtype=torch.bfloat16)
    lengths = torch.full((batch,), 5, dtype=torch.int32, device=DEVICE)
    where, out = torch.full((batch,), -1, device=DEVICE), torch.empty_like(query)

    def step() -> None:
        slots.write(cache, where, key, value)
        slots.attend(query, key, value, cache, table, lengths, 0.1, out)

    step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    for past in (1000, 0, 129, 512):
        lengths.fill_(past + 1)
        table.copy_(table.flip(0))
        where.copy_(table[:, past // 128].long() * 128 + past % 128)
        graph.replay()
        found, held = out.clone(), cache.clone()
        out.fill_(float("nan"))
        step()
        assert torch.equal(found, out) and torch.equal(held, cache)
        graph.replay()
        assert torch.equal(found, out)


_COMPILE = """
import json, torch
from tests.kernels.compiled_launches import recorded, resources
from tests.kernels.test_slots import HEADS, make_format
from kvmm.kernels.slots.triton import TritonSlots
form = make_format(128, [2] * 128, (True, True), 128, torch.bfloat16)
slots = TritonSlots(form)
cache = torch.zeros(4, HEADS, 128, form.nbytes, dtype=torch.uint8)
x, q = torch.zeros(4, HEADS, 128, dtype=torch.bfloat16), torch.zeros(4, 4 * HEADS, 128, dtype=torch.bfloat16)
table, lengths = torch.zeros(4, 64, dtype=torch.int32), torch.zeros(4, dtype=torch.int32)
with recorded() as found:
    slots.write(cache, lengths.long(), x, x)
    slots.attend(q, x, x, cache, table, lengths, 0.1, q, splits=16)
    slots.decode(cache, table, lengths, lengths, x, x, 1000)
print(json.dumps({name: resources(kernel) for name, kernel in found}))
"""


def test_kernels_compile_for_hopper():
    """Without a GPU; nothing spills, and the tensor cores multiply."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run([sys.executable, "-c", _COMPILE], env=environment, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert set(found) == {f"{name}_kernel" for name in ("write", "expand", "attend", "merge", "output", "decode")}
    assert {name: each["stack"] for name, each in found.items()} == dict.fromkeys(found, 0)
    assert found["attend_kernel"]["HMMA"] >= 64


def test_warming_up_changes_nothing():
    written = Written(make_format(*WIDTHS["few"]), [40])
    key, value = written.newest()
    query = torch.randn(len(key), 2 * HEADS, written.form.key.dim, device=DEVICE)
    out, before = torch.full_like(query, 7.0), written.cache.clone()
    TritonSlots(written.form).warm_up(query, key, value, written.cache, 0.1, out)
    assert torch.equal(written.cache, before) and (out == 7).all()


_WARM = """
import json, torch
from tests.kernels.compiled_launches import recorded
from tests.kernels.test_slots import HEADS, make_format
from kvmm.kernels.slots.triton import TritonSlots
form = make_format(64, [2] * 64, (True, True), 128, torch.bfloat16)
slots = TritonSlots(form)
cache = torch.zeros(4, HEADS, 128, form.nbytes, dtype=torch.uint8)
q, k, v = torch.zeros(2000, 6 * HEADS * 64, dtype=torch.bfloat16).split([4 * HEADS * 64, HEADS * 64, HEADS * 64], 1)
q, k, v = (x.view(2000, -1, 64) for x in (q, k, v))
out, table, lengths = torch.empty_like(q), torch.zeros(9, 17, dtype=torch.int32), torch.zeros(8, dtype=torch.int32)
where = torch.zeros(2000, dtype=torch.int64)
with recorded() as warm:
    slots.warm_up(q, k, v, cache, 0.1, out)
with recorded() as later:
    for tokens in (1, 7, 1024, 2000):
        slots.write(cache, where[:tokens], k[:tokens], v[:tokens])
    for batch, splits in ((1, 1), (1, 17), (8, 5), (8, 16)):
        slots.attend(q[:batch], k[:batch], v[:batch], cache, table[:batch], lengths[:batch], 0.1, out[:batch], splits)
    for batch, first in ((1, 0), (8, 1)):  # rows that are not aligned to 16 bytes
        keys, values = k.new_empty(3000, HEADS, 64), v.new_empty(3000, HEADS, 64)
        slots.decode(cache, table[first : first + batch], lengths[:batch], lengths[:batch], keys, values, 1500)
print(json.dumps([sorted({(name, kernel.hash) for name, kernel in found}) for found in (warm, later)]))
"""


def test_nothing_is_left_to_compile_after_warming_up():
    """Without a GPU: the kernels of later calls, of queries that are columns of a projection, are among those."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run([sys.executable, "-c", _WARM], env=environment, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    warm, later = json.loads(done.stdout.splitlines()[-1])
    assert warm == later and len(warm) == 7  # writing has two
