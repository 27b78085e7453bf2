"""Forward calls that read prompts: a piece of one, or pieces of text of several at once."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from transformers import PreTrainedModel

from kvmm.cache.batch import CacheBatch
from kvmm.models.pieces import Piece
from kvmm.models.prompting import Prompt

if TYPE_CHECKING:
    from transformers import Cache


def read_piece(
    model: PreTrainedModel, cache: Cache, prompt: Prompt, piece: Piece, places: dict[str, torch.Tensor]
) -> torch.Tensor:
    """Forward the tokens of a piece into a cache that holds those before it.

    Args:
        model: of the cache.
        cache: it is written to.
        prompt: of which the piece is.
        piece: its tokens and their media.
        places: ``position_ids`` of at least all tokens up to its end, or nothing.

    Returns:
        logits ``[1, 1, V]`` of the last token.
    """
    start, end = piece.start, piece.end
    inputs = {name: value[:, start:end] for name, value in prompt.inputs.items()}
    inputs["attention_mask"] = prompt.inputs["attention_mask"][:, :end]
    places = {name: value[..., start:end] for name, value in places.items()}
    media = on_device(model, piece.inputs)
    with logits_of(model, 1) as keep:
        output = model(**inputs, **media, **places, **keep, past_key_values=cache, use_cache=True, return_dict=True)
    return output.logits[:, -1:]


def read_pieces(
    model: PreTrainedModel,
    caches: Sequence[Cache],
    prompts: Sequence[Prompt],
    pieces: Sequence[Piece],
    positions: Sequence[torch.Tensor],
) -> torch.Tensor:
    """Forward the tokens of a piece of each of several prompts into caches that hold those before it, in one call.

    Args:
        model: of the caches.
        caches: :func:`kvmm.cache.batch.able_to_read_together`; they are written to.
        prompts: of which the pieces are.
        pieces: of text alone.
        positions: of at least all tokens up to the end of each piece, ``[1, N]`` or ``[k, 1, N]``.

    Returns:
        logits ``[B, V]`` of the last token of each piece.
    """
    ids = [
        prompt.inputs["input_ids"][:, piece.start : piece.end] for prompt, piece in zip(prompts, pieces, strict=True)
    ]
    places = [one[..., piece.start : piece.end] for one, piece in zip(positions, pieces, strict=True)]
    counts = [piece.count for piece in pieces]
    last = torch.tensor(counts).cumsum(0) - 1  # indexes on any device: a model may be spread over several
    with logits_of(model, last) as keep:
        output = model(
            input_ids=torch.cat(ids, 1),
            position_ids=torch.cat(places, -1),
            past_key_values=CacheBatch(caches, counts=counts),
            use_cache=True,
            return_dict=True,
            **keep,
        )
    logits = output.logits[0]
    return logits if len(logits) == len(last) else logits[last]


@contextlib.contextmanager
def logits_of(model: PreTrainedModel, tokens: int | torch.Tensor) -> Iterator[dict[str, Any]]:
    """Within it calls make logits of a few tokens alone: those of a whole prompt may take more memory than its cache.

    Args:
        model: of which nobody else makes a call meanwhile (:data:`kvmm.models.conversation.model_lock`).
        tokens: how many at the end, or indexes int64 ``[n]``.

    Yields:
        arguments for the calls: ``logits_to_keep``, or nothing for a model whose forward has none (Qwen-Omni's
        thinkers, Qwen2-Audio), whose output embeddings get fewer hidden states. One without such a module makes all.
    """
    if "logits_to_keep" in inspect.signature(model.forward).parameters:
        yield {"logits_to_keep": tokens}
        return
    head = model.get_output_embeddings()
    if head is None:
        yield {}
        return
    kept = slice(-tokens, None) if isinstance(tokens, int) else tokens
    # before other hooks: one may spread hidden states over devices
    hook = head.register_forward_pre_hook(lambda _, inputs: (inputs[0][:, kept], *inputs[1:]), prepend=True)
    try:
        yield {}
    finally:
        hook.remove()


def on_device(model: PreTrainedModel, media: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Pixels and audio features where the model is, in its dtype."""
    device, dtype = model.device, model.dtype
    return {n: value.to(device, dtype if value.is_floating_point() else None) for n, value in media.items()}


__all__ = ["logits_of", "on_device", "read_piece", "read_pieces"]
