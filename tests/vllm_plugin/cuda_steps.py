"""Steps of the CUDA backend on a CPU, under Triton's interpreter: run as a program, prints errors as JSON."""

from __future__ import annotations

import json
import os
from types import SimpleNamespace

os.environ["TRITON_INTERPRET"] = "1"

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from vllm.v1.attention.backend import CommonAttentionMetadata

from kvmm.errors import KVMMError
from kvmm.kernels.slots import reference
from kvmm.kernels.slots.triton import TritonSlots
from kvmm.vllm import layers
from kvmm.vllm.cuda_backend import CudaMetadataBuilder, KVMMCudaImpl
from kvmm.vllm.slots import LayerSlots
from tests.vllm_plugin.models import fitted

HEADS, DIM, GROUPS, BLOCK = 2, 64, 2, 128
NEW, PAST = [1, 1, 5, 40, 20], [30, 200, 129, 0, 0]


def make_layer() -> tuple[KVMMCudaImpl, CudaMetadataBuilder, LayerSlots]:
    """A layer without an engine."""
    generator = torch.Generator().manual_seed(0)
    spread = 0.93 ** torch.arange(DIM)
    pair = tuple(torch.randn(HEADS, 900, DIM, generator=generator) * spread for _ in range(2))
    slots = LayerSlots(fitted([pair]), 0, "rd", 4, BLOCK, torch.float32)
    layer, builder = object.__new__(KVMMCudaImpl), object.__new__(CudaMetadataBuilder)
    layer.num_heads, layer.head_size, layer.num_kv_heads = GROUPS * HEADS, DIM, HEADS
    layer.scale, layer._found, layer._version = DIM**-0.5, slots, None
    layer._triton = TritonSlots(slots.form)
    builder._limit = 150
    return layer, builder, slots


def batch_of(starts: list[int], lengths: list[int], table: torch.Tensor, mapping: torch.Tensor):
    """What vLLM says of a batch."""
    known = torch.tensor(lengths, dtype=torch.int32)
    begins = torch.tensor(starts, dtype=torch.int32)
    return CommonAttentionMetadata(
        query_start_loc=begins,
        query_start_loc_cpu=begins,
        seq_lens=known.clone(),
        num_reqs=len(lengths),
        num_actual_tokens=starts[-1],
        max_query_len=int((begins[1:] - begins[:-1]).max()),
        max_seq_len=max(lengths),
        block_table_tensor=table,
        slot_mapping=mapping,
        seq_lens_cpu_upper_bound=known,
    )


class Sizes(TorchDispatchMode):
    """Notes the shapes of what is allocated."""

    def __init__(self):
        super().__init__()
        self.found: list[list[int]] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        if "empty" in str(func):
            self.found.append(list(made.shape))
        return made


def workspace() -> list[list[int]]:
    """What a call without a batch and without a cache allocates, in which vLLM measures memory."""
    layer, _, _ = make_layer()
    layer._config = SimpleNamespace(model_config=SimpleNamespace(max_model_len=20000))
    query, key, value = (torch.zeros(3, heads, DIM) for heads in (GROUPS * HEADS, HEADS, HEADS))
    with Sizes() as sizes:
        layer.forward(None, query, key, value, torch.tensor([]), None, torch.empty_like(query))
    return [shape for shape in sizes.found if shape[0] > 3]


def refused(method: str) -> str:
    """What a layer says to speculative decoding with drafts of a method."""
    asked = SimpleNamespace(speculative_config=SimpleNamespace(method=method))
    layers.get_current_vllm_config = lambda: asked
    try:
        KVMMCudaImpl(GROUPS * HEADS, DIM, 1.0, HEADS, kv_cache_dtype="kvmm_rd4")
    except KVMMError as error:
        return str(error)
    return ""


def steps() -> dict:
    """Errors of a batch of decoding steps and prompts, and of steps alone with a row without a sequence."""
    torch.manual_seed(0)
    layer, builder, slots = make_layer()
    lengths = [a + b for a, b in zip(NEW, PAST, strict=True)]
    starts = [0, *torch.tensor(NEW).cumsum(0).tolist()]
    table, free = torch.zeros(len(NEW), 2, dtype=torch.int32), torch.randperm(12).int()
    for row, length in enumerate(lengths):
        table[row, : -(-length // BLOCK)] = free[2 * row : 2 * row - (-length // BLOCK)]

    def places(row: int, begin: int, end: int) -> torch.Tensor:
        t = torch.arange(begin, end)
        return table[row][t // BLOCK].long() * BLOCK + t % BLOCK

    cache = torch.randint(0, 255, (12, HEADS, BLOCK, slots.nbytes), dtype=torch.uint8)
    keys, values = ([torch.randn(n, HEADS, DIM) for n in lengths] for _ in range(2))
    for row, past in enumerate(PAST):
        if past:
            layer.do_kv_cache_update(None, keys[row][:past], values[row][:past], cache, places(row, 0, past))
    new = [torch.cat([one[past:] for one, past in zip(x, PAST, strict=True)]) for x in (keys, values)]
    key, value = (torch.nn.functional.pad(x, (0, 0, 0, 0, 0, 3)) for x in new)  # rows without tokens
    query = torch.randn(len(key), GROUPS * HEADS, DIM)
    mapping = torch.cat([places(row, past, n) for row, (past, n) in enumerate(zip(PAST, lengths, strict=True))])
    layer.do_kv_cache_update(None, key, value, cache, mapping)
    common = batch_of(starts, lengths, table, mapping)
    plan = builder.build(0, common)
    assert builder.build(0, common) is plan
    assert plan.decodes == 2 and len(plan.prompts) == 2
    out = torch.full_like(query, 7.0)
    layer.forward(None, query, key, value, cache, plan, out)
    before, idle = cache.clone(), torch.full_like(query, 7.0)
    layer._warm = False
    layer.forward(None, query, key, value, cache, None, idle)  # as vLLM does before it serves
    errors = []
    for row, past in enumerate(PAST):
        run = slice(starts[row], starts[row + 1])
        blocks = table[row, : -(-past // BLOCK)].long()
        wanted = reference.attend(slots.form, query[run], key[run], value[run], cache, blocks, past, layer.scale)
        errors.append(float((out[run] - wanted).abs().max() / wanted.abs().max()))
    common = batch_of([0, 1, 2, 3], [31, 201, 0], table[:3], mapping[:3])
    plan = builder.build_for_cudagraph_capture(common)
    captured, again = (torch.full_like(query[:3], 7.0) for _ in range(2))
    layer.forward(None, query[:3], key[:3], value[:3], cache, plan, captured)
    alone = float((captured - value[:3].repeat_interleave(GROUPS, 1)).abs().max())
    plan.lengths.copy_(torch.tensor([31, 201, 0]))  # as a graph that was captured finds them later
    layer.forward(None, query[:3], key[:3], value[:3], cache, plan, again)
    same = float((again[:2] - out[:2]).abs().max())
    return {
        "errors": errors,
        "warm": layer._warm and torch.equal(cache, before) and not bool(idle.any()),
        "alone": alone,
        "same": same,
        "empty": float(again[2].abs().max()),
        "rest": out[-3:].tolist(),
        "workspace": workspace(),
        "refused": refused("eagle3"),
    }


if __name__ == "__main__":
    print("FOUND " + json.dumps(steps()))
