"""Watching attention during one exact pass, in memory that does not grow with the square of the prompt.

For the length of a pass the decoder's attention is one that shows each layer's queries, keys and values to an observer
and then computes exact attention: with SDPA where the mask is plainly causal, else a block of queries at a time, whose
rows of the mask are made as they are needed. So neither an attention matrix nor a full mask ever exists, whatever
implementation the model was loaded with; it gets that back afterwards. The cache passes keys and values through and
keeps nothing, so a layer's tensors live until the next layer begins, unless the observer keeps them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import AttentionInterface, DynamicCache
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from kvmm.errors import KVMMError
from kvmm.models.positions import kept_rope_deltas
from kvmm.models.reading import logits_of

NAME = "kvmm-observed"  # must not contain "flash": transformers reads that as FlashAttention
QUERY_BLOCK = 256  # queries a block: at 32K tokens a block's mask is 8 MiB, 32 MiB as the floats SDPA makes of it


@dataclass(frozen=True)
class Seen:
    """One layer's attention as an observer sees it.

    Attributes:
        layer: index in the decoder.
        query: ``[B, H_q, T, D]`` after RoPE, in the model's dtype.
        key, value: ``[B, H_kv, T, D]``, keys after RoPE.
        scaling: of the scores.
        owns_cache: False for a layer that reads the keys and values of an earlier one.
        rows: ``rows(start, stop)`` is the mask of those queries, bool ``[B, 1, stop - start, T]``.
    """

    layer: int
    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    scaling: float
    owns_cache: bool
    rows: Callable[[int, int], torch.Tensor]


class Enough(Exception):
    """An observer raises this when it has seen what it wants: the rest of the pass is skipped."""


# models leave out the queries of such layers but for the tokens whose logits are asked for
_SHARED = "This model has layers that read the keys and values of other layers, which an analysis cannot show."
Observer = Callable[[Seen], None]
_OBSERVER: ContextVar[tuple[Observer, PassThroughCache]] = ContextVar("observer")


class PassThroughCache(DynamicCache):
    """A cache for one pass: it hands keys and values on and keeps none; ``layers_written`` says which came by."""

    def __init__(self, config: Any) -> None:
        super().__init__(config=config)
        self.layers_written: set[int] = set()

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any):
        self.layers_written.add(layer_idx)
        return key_states, value_states


class _MaskRows:
    """A mask that is made a few rows at a time; ``arguments`` are those of transformers' mask functions."""

    def __init__(self, arguments: dict[str, Any]):
        self.arguments = arguments

    def __getitem__(self, index: Any) -> torch.Tensor:
        raise KVMMError(_SHARED)

    def __call__(self, start: int, stop: int) -> torch.Tensor:
        offset = self.arguments.get("q_offset", 0) + start
        changed = {"q_length": stop - start, "q_offset": offset, "allow_is_causal_skip": False}
        return sdpa_mask(**{**self.arguments, **changed})


def _mask(**arguments: Any) -> _MaskRows | None:
    padding, window = arguments.get("attention_mask"), arguments.get("local_size")
    plain = (
        arguments.get("allow_is_causal_skip", True)
        and arguments["q_length"] == arguments["kv_length"]
        and (padding is None or bool(padding.all()))
        and (window is None or arguments["kv_length"] < window)
    )
    return None if plain else _MaskRows(arguments)


def _causal_rows(tokens: int, device: torch.device) -> Callable[[int, int], torch.Tensor]:
    def rows(start: int, stop: int) -> torch.Tensor:
        queries = torch.arange(start, stop, device=device)
        return (queries[:, None] >= torch.arange(tokens, device=device))[None, None]

    return rows


def _tensor_rows(mask: torch.Tensor) -> Callable[[int, int], torch.Tensor]:
    """Of a mask ``[B, 1, T, T]`` that the model made itself: bool, or floats that are added to the scores."""
    return lambda start, stop: mask[:, :, start:stop] if mask.dtype == torch.bool else mask[:, :, start:stop] == 0


def _forward(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: Any,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    if kwargs.get("softcap") is not None or kwargs.get("s_aux") is not None:
        raise KVMMError("Attention with capped logits or learned sinks cannot be recorded: pick another model.")
    observer, cache = _OBSERVER.get()
    if query.shape[2] != key.shape[2]:
        raise KVMMError(_SHARED)
    if isinstance(attention_mask, torch.Tensor):
        rows = _tensor_rows(attention_mask)
    else:
        rows = attention_mask or _causal_rows(key.shape[2], query.device)
    layer = getattr(module, "layer_idx", None)
    if layer is not None:
        scale = query.shape[-1] ** -0.5 if scaling is None else scaling
        observer(Seen(layer, query, key, value, scale, layer in cache.layers_written, rows))
    if attention_mask is None:
        return sdpa_attention_forward(module, query, key, value, None, scaling=scaling, **kwargs)
    outputs = []
    for start in range(0, query.shape[2], QUERY_BLOCK):
        stop = min(start + QUERY_BLOCK, query.shape[2])
        mask = rows(start, stop)
        seen = mask.flatten(0, 2).any(0).nonzero()  # sliding windows and causality leave a run of the keys
        low, high = (int(seen[0]), int(seen[-1]) + 1) if len(seen) else (0, 1)
        part = (tensor[:, :, low:high] for tensor in (key, value))
        mask = mask[..., low:high].to(query.device)
        queries = query[:, :, start:stop]
        outputs.append(sdpa_attention_forward(module, queries, *part, mask, scaling=scaling, **kwargs)[0])
    return torch.cat(outputs, dim=1), None  # [B, T, H_q, D]


AttentionInterface.register(NAME, _forward)
AttentionMaskInterface.register(NAME, _mask)


@contextmanager
def _implementation(model: nn.Module, name: str) -> Iterator[None]:
    """Give the text decoder another attention implementation, and its own back."""
    text = model.config.get_text_config(decoder=True)
    before = text._attn_implementation
    key = next((key for key in model.config.sub_configs if getattr(model.config, key, None) is text), None)

    def use(implementation: str) -> None:
        model.set_attn_implementation(implementation if key is None else {key: implementation})

    use(name)
    try:
        if text._attn_implementation != name:
            raise KVMMError(f"{type(model).__name__} does not let its attention implementation be set.")
        yield
    finally:
        use(before)


@torch.no_grad()
def observe(model: nn.Module, inputs: Mapping[str, Any], observer: Observer) -> None:
    """Run one exact prefill of ``inputs`` and show every decoder layer's attention to ``observer``.

    Memory at any moment: the model's own activations of one layer and the hidden state ``[B, T, hidden]``; no cache, no
    attention matrix, no mask of more than ``QUERY_BLOCK`` rows, and the logits of one token. Hold the model's lock if
    others may use it at the same time.

    Args:
        model: a transformers model with a decoder, of any family kvmm supports.
        inputs: what the processor returned, with ``input_ids`` int64 ``[B, T]`` and optionally ``attention_mask``.
        observer: called with a :class:`Seen` a layer, in order; may raise :class:`Enough`.

    Raises:
        KVMMError: there are no ``input_ids``, or the decoder's attention cannot be observed.
    """
    if inputs.get("input_ids") is None:
        raise KVMMError("An analysis needs input_ids: pass what the processor returned.")
    cache = PassThroughCache(model.config.get_text_config(decoder=True))
    with kept_rope_deltas(model), _implementation(model, NAME):
        token = _OBSERVER.set((observer, cache))
        try:
            with suppress(Enough), logits_of(model, 1) as keep:
                model(**inputs, past_key_values=cache, use_cache=True, **keep)
        finally:
            _OBSERVER.reset(token)


def kept_tokens(inputs: Mapping[str, Any], row: int) -> torch.Tensor:
    """Which tokens of a sequence are no padding, bool ``[T]`` on the CPU. Raises :class:`KVMMError` for no such row."""
    ids, mask = inputs["input_ids"], inputs.get("attention_mask")
    if not 0 <= row < ids.shape[0]:
        raise KVMMError(f"There is no sequence {row}: the batch has {ids.shape[0]}, counted from 0.")
    return torch.ones(ids.shape[1], dtype=torch.bool) if mask is None else mask[row].bool().cpu()


def token_strings(ids: torch.Tensor, tokenizer: Any) -> tuple[str, ...]:
    """``ids`` int64 ``[T]`` as short strings; empty without a tokenizer."""
    if tokenizer is None:
        return ()
    strings = {i: tokenizer.decode([i]) for i in ids.unique().tolist()}
    return tuple(strings[i] for i in ids.tolist())


__all__ = ["NAME", "Enough", "Observer", "PassThroughCache", "Seen", "kept_tokens", "observe", "token_strings"]
