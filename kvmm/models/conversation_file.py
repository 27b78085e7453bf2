"""Conversations in files: the packed cache with what was said and shown; questions go on without reading again.

The file is a saved cache (:mod:`kvmm.cache.storage`: safetensors with JSON in its header, only for the model that
filled it) with the conversation in its metadata. Pictures are inside as PNG and recordings as samples, so that a
conversation can also be read again, with another policy for example. Nothing is unpickled.

A file from somebody you do not trust is not safe to load: its tensors are read by compiled kernels.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase, ProcessorMixin

from kvmm.cache import KVMMCache
from kvmm.errors import KVMMError
from kvmm.media import SAMPLE_RATE, Media, load_audio, load_image
from kvmm.models.conversation import Conversation, Turn

VERSION = 1
PREFIX = "conversation"


def save_conversation(conversation: Conversation, path: str | Path, notes: Mapping[str, Any] | None = None) -> None:
    """Write a conversation to a file.

    Args:
        conversation: one with a kvmm cache and at least one answer.
        path: the file; one of that name is replaced once the new one is complete.
        notes: JSON values of your own, found again in the loaded conversation's ``notes``.

    Raises:
        KVMMError: nothing has been answered, the cache was dropped or is transformers' own, a video was shown, or the
            file cannot be written.
    """
    with conversation.idle():
        if not conversation.messages:
            raise KVMMError("There is nothing to save yet: ask a question first.")
        if conversation.cache is None:
            raise KVMMError("The packed document was dropped to save memory: ask once more, then save.")
        if not isinstance(conversation.cache, KVMMCache):
            raise KVMMError("Only a conversation with a kvmm cache can be saved: choose another policy than 'dynamic'.")
        tensors = {"ids": conversation._ids}
        tensors |= {f"per_token.{name}": value for name, value in conversation._per_token.items()}
        turns = []
        for i, turn in enumerate(conversation._turns):
            tensors |= {f"turn.{i}.{name}": value for name, value in turn.positions.items()}
            tensors |= {f"media.{i}.{k}": _packed(item) for k, item in enumerate(turn.media)}
            media = [{"kind": item.kind, "name": item.name, "page": item.page} for item in turn.media]
            turns.append({"text": turn.text, "media": media, "positions": list(turn.positions)})
        values = {
            "version": VERSION,
            "messages": conversation.messages,
            "turns": turns,
            "per_token": list(conversation._per_token),
            "notes": dict(notes or {}),
        }
        metadata = {PREFIX: values} | {f"{PREFIX}.{name}": tensor for name, tensor in tensors.items()}
        conversation.cache.save(path, metadata)


def load_conversation(
    path: str | Path, model: PreTrainedModel, processor: ProcessorMixin | PreTrainedTokenizerBase
) -> Conversation:
    """Read a conversation that :func:`save_conversation` wrote.

    Args:
        path: the file; only load one that you trust.
        model: the same model in the same dtype, on any device.
        processor: its processor.

    Raises:
        KVMMError: the file is missing, damaged, no conversation, or belongs to another model or dtype.
    """
    cache = KVMMCache.load(path, model)
    values = cache.metadata.pop(PREFIX, None)
    names = [name for name in cache.metadata if name.startswith(f"{PREFIX}.")]
    tensors = {name.removeprefix(f"{PREFIX}."): cache.metadata.pop(name).cpu() for name in names}
    if not isinstance(values, dict) or values.get("version") != VERSION:
        raise KVMMError(f"{Path(path).name} holds no conversation that this kvmm reads; try KVMMCache.load.")
    try:
        turns = []
        for i, entry in enumerate(values["turns"]):
            media = tuple(
                _unpacked(tensors[f"media.{i}.{k}"], item["kind"], str(item["name"]), item["page"])
                for k, item in enumerate(entry["media"])
            )
            positions = {name: tensors[f"turn.{i}.{name}"] for name in entry["positions"]}
            turns.append(Turn(str(entry["text"]), media, positions))
        ids = tensors["ids"]
        per_token = {name: tensors[f"per_token.{name}"] for name in values["per_token"]}
        messages, notes = [dict(message) for message in values["messages"]], dict(values["notes"])
    except (KeyError, TypeError, IndexError, ValueError) as error:
        raise KVMMError(f"{Path(path).name} does not hold a whole conversation ({error!r}); save it again.") from None
    # the newest tokens of an answer may not have been forwarded yet
    if ids.shape != (1, ids.numel()) or not 0 < cache.get_seq_length() <= ids.numel():
        raise KVMMError(f"{Path(path).name} holds other tokens than its cache; save the conversation again.")
    conversation = Conversation(model, processor, cache.policy, graph=False)
    conversation.messages, conversation.cache, conversation.notes = messages, cache, notes
    conversation._turns, conversation._ids, conversation._per_token = turns, ids, per_token
    conversation._memory = cache.memory()
    return conversation


def _packed(item: Media) -> torch.Tensor:
    """uint8 ``[n]``, the bytes of a PNG, or float32 ``[n]``, samples at 16 kHz."""
    if item.kind == "image":
        stream = io.BytesIO()
        item.data.save(stream, "PNG")
        return torch.from_numpy(np.frombuffer(stream.getvalue(), dtype=np.uint8).copy())
    if item.kind == "audio":
        return torch.from_numpy(np.ascontiguousarray(item.data, dtype=np.float32))
    raise KVMMError("A conversation about a video cannot be saved: the video is not inside the file.")


def _unpacked(tensor: torch.Tensor, kind: str, name: str, page: int | None) -> Media:
    if kind == "image":
        return Media("image", load_image(tensor.numpy().tobytes()), name, page)
    if kind == "audio":
        return Media("audio", load_audio((SAMPLE_RATE, tensor.numpy())), name, page)
    raise ValueError(f"a medium of kind {kind!r}")


__all__ = ["load_conversation", "save_conversation"]
