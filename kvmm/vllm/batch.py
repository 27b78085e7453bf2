"""A batch of vLLM's as kernels want it; nothing here needs vLLM."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch

_Made = TypeVar("_Made")
_LOOKUP = ("ngram", "ngram_gpu", "suffix")  # drafts that are found in what was said, so that nothing else attends


def has_drafter(config: Any) -> bool:
    """Whether a model makes drafts for speculative decoding.

    Args:
        config: vLLM's.
    """
    asked = getattr(config, "speculative_config", None)
    return asked is not None and asked.method not in _LOOKUP


def once(common: Any, make: Callable[[Any], _Made]) -> _Made:
    """``make(common)``, or what it gave last time if that was for the same batch.

    Args:
        common: what vLLM says of a batch, which keeps what was made. vLLM copies it, and puts other blocks or other
            sequences into it.
        make: of it.
    """
    tensors = (common.block_table_tensor, common.query_start_loc, common.seq_lens)
    numbers = (common.num_reqs, common.num_actual_tokens, common.max_query_len)
    known = common.__dict__.get("_kvmm")
    if known and known[1] == numbers and all(a is b for a, b in zip(known[0], tensors, strict=True)):
        return known[2]
    made = make(common)
    common.__dict__["_kvmm"] = (tensors, numbers, made)
    return made


def sized(spec: Any, nbytes: int) -> Any:
    """The cache of a layer, with slots of so many bytes a head.

    vLLM 0.32 has a field for them. Before that a slot has the bytes of a key and a value of the spec's dtype, uint8: a
    key of all the bytes, and a value of none.
    """
    if hasattr(spec, "state_content_bytes"):
        return replace(spec, state_content_bytes=nbytes)
    return replace(spec, head_size=nbytes, head_size_v=0)


@dataclass
class Prompts:
    """Sequences of a batch that have several new tokens, one after the other, and what they attend to: the past of each
    from slots and its new tokens behind that, in rows of a workspace.

    Attributes:
        rows: the sequences.
        tokens: their new tokens.
        query_starts: int32 ``[n + 1]``, where each begins among these tokens.
        key_starts: int32 ``[n + 1]``, where each begins in the workspace.
        past: int32 ``[n]``, tokens in slots.
        places: int64 ``[tokens]``, rows of the workspace for the new tokens; None if nothing is in slots, and keys and
            values are read as they come.
        max_query, max_length, max_past: at least what the longest has.
        size: at least the rows of the workspace that are used.
    """

    rows: slice
    tokens: slice
    query_starts: torch.Tensor
    key_starts: torch.Tensor
    past: torch.Tensor
    places: torch.Tensor | None
    max_query: int
    max_length: int
    max_past: int
    size: int


def prompts(
    starts: Sequence[int],
    lengths: Sequence[int],
    query_starts: torch.Tensor,
    seq_lens: torch.Tensor,
    first: int,
    limit: int,
) -> list[Prompts]:
    """The sequences from ``first`` on, in parts that need at most ``limit`` rows, or one sequence's.

    Args:
        starts: ``[n + 1]``, where the new tokens of each sequence of the batch begin.
        lengths: ``[n]``, tokens of each with the new ones, or more.
        query_starts, seq_lens: int32, the same on the device, and exact.
        first: sequence.
        limit: of a part.
    """
    found: list[Prompts] = []
    stop = len(lengths)
    while first < stop:
        last, size = first, 0
        fresh = _past(starts, lengths, first) == 0
        while last < stop and (_past(starts, lengths, last) == 0) == fresh:
            if last > first and size + lengths[last] > limit:
                break
            size += lengths[last]
            last += 1
        found.append(_part(starts, lengths, query_starts, seq_lens, slice(first, last), fresh))
        first = last
    return found


def _past(starts: Sequence[int], lengths: Sequence[int], row: int) -> int:
    return lengths[row] - (starts[row + 1] - starts[row])


def _part(
    starts: Sequence[int],
    lengths: Sequence[int],
    query_starts: torch.Tensor,
    seq_lens: torch.Tensor,
    rows: slice,
    fresh: bool,
) -> Prompts:
    first, last = rows.start, rows.stop
    tokens = slice(starts[first], starts[last])
    counts = [starts[row + 1] - starts[row] for row in range(first, last)]
    begins = query_starts[first : last + 1] - query_starts[first]
    news = begins[1:] - begins[:-1]
    past = seq_lens[rows] - news
    if fresh:
        ends, places = begins, None
    else:
        ends = torch.nn.functional.pad(seq_lens[rows].cumsum(0, dtype=torch.int32), (1, 0))
        count = tokens.stop - tokens.start
        shift = (ends[:-1] + past - begins[:-1]).long()
        shift = torch.repeat_interleave(shift, news.long(), output_size=count)
        places = torch.arange(count, device=shift.device) + shift
    return Prompts(
        rows=rows,
        tokens=tokens,
        query_starts=begins.int(),
        key_starts=ends.int(),
        past=past.int(),
        places=places,
        max_query=max(counts),
        max_length=max(lengths[rows]),
        max_past=0 if fresh else max(_past(starts, lengths, row) for row in range(first, last)),
        size=sum(lengths[rows]),
    )


__all__ = ["Prompts", "has_drafter", "once", "prompts", "sized"]
