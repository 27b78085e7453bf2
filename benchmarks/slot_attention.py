"""Writing and decode attention of one layer over a paged cache of slots, against dense attention, in one process.

    python -m benchmarks.slot_attention [--shapes 1x32k 32x4k ...] [--dtypes kvmm_rd2 ...] [--profile]

What is timed is what a layer does with a token of every sequence: ``TritonSlots.write`` of its key and value and
``TritonSlots.attend`` over the sequence's slots, whose blocks lie in any order. Both run in a CUDA graph of several
calls, which leaves host time out, in turn on as many caches as the second-level cache cannot hold. Dense attention
reads one tensor of the same tokens (``baseline`` is the fastest of those asked for). ``prefill_us`` is writing, and
``decode_us`` decoding to dense keys and values, of ``prefill_tokens`` tokens of the first sequence.

``bytes`` are the slots and exact tokens that attention reads, the new tokens, queries and outputs; their time at the
measured bandwidth (the better of a copy and a sum) is the floor. ``error`` is the relative distance from the torch
reference on the first sequence.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.decode_attention import BASELINES, Shape, baseline, queries
from benchmarks.report import Report, add_common_options, table
from benchmarks.synthetic import make_calibration, random_vectors
from benchmarks.timing import bandwidth, free_memory, kernel_times, l2_bytes, time_calls
from kvmm.calibration import Calibration
from kvmm.kernels.slots import SlotFormat, reference
from kvmm.kernels.slots.triton import TritonSlots, Tuning
from kvmm.modality import TEXT
from kvmm.vllm.dtypes import DTYPES, dtype_codec
from kvmm.vllm.slots import LayerSlots

SHAPES = {"1x32k": Shape(1, 2**15), "32x4k": Shape(32, 2**12), "128x2k": Shape(128, 2**11)}
_SMOKE = Shape(1, 150, heads=2, rows=2, dim=64)
_BLOCK = 128
_LAYER, _LAYERS = 6, 8  # whose spectrum the made-up calibration has
_PREFILL = 2**13


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line; prints a table and writes JSON after every row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", default=list(SHAPES), choices=list(SHAPES))
    parser.add_argument("--dtypes", nargs="+", default=["kvmm_rd2", "kvmm_rd4", "kvmm_oscar2"], choices=list(DTYPES))
    parser.add_argument("--baselines", nargs="+", default=["flash", "cudnn", "flash_rows", "cudnn_rows"])
    parser.add_argument("--splits", type=int, help="KV splits of every sequence; default: the kernel's")
    for name in ("tile", "programs", "registers", "stages"):
        parser.add_argument(f"--{name}", type=int, default=getattr(Tuning(), name), help="of Tuning")
    parser.add_argument("--model-length", type=int, help="tokens that the block table has room for; default: in use")
    parser.add_argument("--runs", type=int, default=50, help="timed replays, of which the median counts")
    parser.add_argument("--profile", action="store_true", help="also the time of every kernel of a step")
    add_common_options(parser, "slot_attention")
    given = sys.argv[1:] if arguments is None else list(arguments)
    options = parser.parse_args(given)
    if unknown := set(options.baselines) - set(BASELINES):
        parser.error(f"no baseline {', '.join(sorted(unknown))}")

    torch.manual_seed(options.seed)
    report = Report("slot_attention", given, options)
    report.run["bandwidth"] = bandwidth(options.device)
    report.run["l2_bytes"] = l2_bytes(options.device)
    report.run["settings"] = {"runs": options.runs, "dtype": "bfloat16", "block_size": _BLOCK}
    report.run["settings"] |= {name: getattr(options, name) for name in Tuning._fields}
    for name in options.shapes:
        shape_rows(report, name, _SMOKE if options.smoke else SHAPES[name], options)
    keys = ("us", "write_us", "baseline_us", "baseline", "ratio", "slot_bytes", "floor_us", "floor_share", "error")
    header = ("row", "us", "write", "dense", "by", "ratio", "B/slot", "floor", "share", "error", "prefill", "decode")
    table(header, [[row["name"], *(row.get(k) for k in (*keys, "prefill_us", "decode_us"))] for row in report.rows])
    report.finish()


@dataclass
class Step:
    """What a layer gets of a batch of sequences with one new token each, and its cache."""

    slots: TritonSlots
    query: torch.Tensor  # [B, H_q, D]
    key: torch.Tensor  # [B, H, D]
    value: torch.Tensor
    cache: torch.Tensor
    block_table: torch.Tensor
    lengths: torch.Tensor
    where: torch.Tensor  # int64 [B], slots of the new tokens
    out: torch.Tensor
    splits: int | None

    def write(self) -> None:
        """Write the new tokens."""
        self.slots.write(self.cache, self.where, self.key, self.value)

    def attend(self) -> torch.Tensor:
        """Their attention."""
        scaling = self.query.shape[-1] ** -0.5
        given = (self.cache, self.block_table, self.lengths, scaling, self.out, self.splits)
        return self.slots.attend(self.query, self.key, self.value, *given)

    def copy(self) -> Step:
        """The same with a cache of its own."""
        return Step(**{**vars(self), "cache": self.cache.clone(), "out": self.out.clone()})

    @property
    def nbytes(self) -> int:
        """That attention has to read or write."""
        form, past = self.slots.form, (self.lengths - 1).tolist()
        heads = form.key.heads
        slots = sum(n * form.stride + -(-n // form.block_size) * form.exact_bytes for n in past) * heads
        return slots + sum(x.nbytes for x in (self.query, self.key, self.value, self.out))

    def error(self) -> float:
        """Relative distance of the first sequence's attention from the reference."""
        past, form = int(self.lengths[0]) - 1, self.slots.form
        blocks = self.block_table[0, : -(-past // form.block_size)].long()
        given = (self.query[:1], self.key[:1], self.value[:1], self.cache, blocks, past, self.query.shape[-1] ** -0.5)
        expected = reference.attend(form, *given)
        return float((self.attend()[:1].float() - expected).norm() / expected.norm())


def make_step(
    calibration: Calibration, name: str, key: torch.Tensor, value: torch.Tensor, query: torch.Tensor, options: Any
) -> Step:
    """A cache that holds all tokens of keys and values ``[B, H, T, D]`` but the last, which is new."""
    batch, heads, count, _ = key.shape
    codec = dtype_codec(name)
    assert codec is not None
    form = LayerSlots(calibration, _LAYER, *codec, _BLOCK, torch.bfloat16).form
    device = key.device
    tuning = Tuning(options.tile, options.programs, options.registers, options.stages)
    slots = TritonSlots(SlotFormat(form.key.to(device), form.value.to(device), _BLOCK, form.dtype), tuning)
    used = -(-count // _BLOCK)
    blocks = torch.randperm(batch * used, device=device, dtype=torch.int64).view(batch, used)
    cache = torch.zeros(batch * used, heads, _BLOCK, form.nbytes, dtype=torch.uint8, device=device)
    places = torch.arange(count, device=device)
    where = blocks[:, places // _BLOCK] * _BLOCK + places % _BLOCK  # [B, T]
    for number in range(batch):
        slots.write(cache, where[number, :-1], *(x[number, :, :-1].transpose(0, 1) for x in (key, value)))
    columns = max(used, (options.model_length or 0) // _BLOCK)
    block_table = torch.zeros(batch, columns, dtype=torch.int32, device=device)
    block_table[:, :used] = blocks
    new = (x[:, :, -1].contiguous() for x in (key, value))
    lengths = torch.full((batch,), count, dtype=torch.int32, device=device)
    rows = query[:, :, 0].contiguous()
    return Step(
        slots,
        rows,
        *new,
        cache,
        block_table,
        lengths,
        where[:, -1].contiguous(),
        torch.empty_like(rows),
        options.splits,
    )


def shape_rows(report: Report, name: str, shape: Shape, options: argparse.Namespace) -> None:
    """The baselines of one shape, then a row for each dtype."""
    size = (shape.batch, shape.heads, shape.tokens, shape.dim)
    key, value = (random_vectors(size, options.device, torch.bfloat16) for _ in range(2))
    query = queries(shape, key, options.device)
    count = min(16, 1 + 4 * l2_bytes(options.device) // (key.nbytes + value.nbytes))
    sets = [(query, key, value)] + [(query.clone(), key.clone(), value.clone()) for _ in range(count - 1)]
    dense = baseline(sets, options)
    del sets
    free_memory()
    calibration = make_calibration(_LAYERS, shape.heads, shape.dim, (TEXT,), pooled=False)
    for dtype in options.dtypes:
        row = {"name": f"{name} {dtype}", "shape": name, "cache_dtype": dtype, **vars(shape), **dense}
        with report.guarded(row):
            step = make_step(calibration, dtype, key, value, query, options)
            row |= measure(step, dense, report, options) | prefill(step, key, value, options)
        free_memory()


def measure(step: Step, dense: dict[str, Any], report: Report, options: argparse.Namespace) -> dict[str, Any]:
    """Times of a step of decoding, its floor and its error."""
    speed, form = max(report.run["bandwidth"].values()), step.slots.form
    found: dict[str, Any] = {"error": step.error(), "slot_bytes": form.nbytes, "bytes": step.nbytes}
    found["capacity"] = form.exact_bytes / form.nbytes  # tokens of bfloat16 in the memory of a slot
    free_memory()
    count = min(16, 1 + 4 * l2_bytes(options.device) // step.nbytes)
    steps = [step, *(step.copy() for _ in range(count - 1))]
    timing = time_calls([one.attend for one in steps], options.device, options.runs)
    write = time_calls([one.write for one in steps], options.device, options.runs)
    batch, blocks = step.block_table.shape
    found |= {
        "us": timing.median * 1e6,
        "ratio": dense["baseline_us"] * 1e-6 / timing.median,
        "timing": timing.to_dict(),
        "write_us": write.median * 1e6,
        "no_graph_us": time_calls([step.attend], options.device, options.runs, graph=False).median * 1e6,
        "splits": step.splits or step.slots.splits(batch, blocks, step.cache.device),
        "sets": len(steps),
        "bandwidth": step.nbytes / timing.median,
        "floor_us": step.nbytes / speed * 1e6,
        "floor_share": step.nbytes / speed / timing.median,
    }
    if options.profile and options.device != "cpu":
        found["kernels"] = kernel_times(lambda: (step.write(), step.attend()))
    return found


def prefill(step: Step, key: torch.Tensor, value: torch.Tensor, options: argparse.Namespace) -> dict[str, Any]:
    """Times of writing and of decoding many tokens of the first sequence."""
    count, device = min(_PREFILL, key.shape[2] - 1), key.device
    table_row, places = step.block_table[:1], torch.arange(count, device=device)
    where = table_row[0].long()[places // _BLOCK] * _BLOCK + places % _BLOCK
    rows = [x[0, :, :count].transpose(0, 1).contiguous() for x in (key, value)]
    lengths = torch.full((1,), count, dtype=torch.int32, device=device)
    out = [torch.empty_like(x) for x in rows]

    def decode() -> None:
        step.slots.decode(step.cache, table_row, lengths, torch.zeros_like(lengths), *out, count)

    write = time_calls([lambda: step.slots.write(step.cache, where, *rows)], options.device, options.runs)
    read = time_calls([decode], options.device, options.runs)
    return {"prefill_tokens": count, "prefill_us": write.median * 1e6, "decode_us": read.median * 1e6}


if __name__ == "__main__":
    main()
