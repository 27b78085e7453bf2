"""Conversations in files: the packed cache with what was said and shown; questions go on without reading again.

The file is a saved cache (:mod:`kvmm.cache.file`: safetensors with JSON in its header, only for the model that
filled it) with the conversation in its metadata. Pictures are inside as PNG and recordings as samples, so that a
conversation can also be read again, with another policy for example. A conversation whose cache was dropped is kept
without one. Files of your own, such as those that were sent with the questions, may be added. Nothing is unpickled.

Everything in a file is checked before it is used (:mod:`kvmm.models.conversation_checks`). Nobody can
check that its questions were asked and its answers given.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase, ProcessorMixin

from kvmm.cache import KVMMCache
from kvmm.cache.file import save_cache
from kvmm.errors import KVMMError, one_line
from kvmm.media import SAMPLE_RATE, Media, load_audio, load_image
from kvmm.models.conversation_checks import check_conversation
from kvmm.models.positions import kept_rope_deltas, prompt_position_ids
from kvmm.models.prompting import Turn, all_ids, all_per_token, encode, fill
from kvmm.models.question import prompt_of

VERSION = 1
PREFIX = "conversation"
_MEDIA_FIELDS = ("kind", "name", "page", "text", "text_length")


@dataclass(frozen=True)
class SavedConversation:
    """The contents of a conversation's file.

    Attributes:
        cache: filled with everything said and shown, or an empty one of the same model and policy.
        dropped: whether it is that empty one.
        turns: questions with their media and tokens.
        messages: the history in chat-template form, two a turn.
        notes, files: JSON values and file contents that the caller of ``save`` added.
    """

    cache: KVMMCache
    dropped: bool
    turns: list[Turn]
    messages: list[dict[str, Any]]
    notes: dict[str, Any]
    files: list[bytes]


def save_conversation(saved: SavedConversation, path: str | Path) -> None:
    """Write a conversation to a file; one of that name is replaced once the new one is complete.

    Raises:
        KVMMError: a video was shown, or the file cannot be written.
    """
    tensors = {"ids": all_ids(saved.turns)}
    tensors |= {f"per_token.{name}": value for name, value in all_per_token(saved.turns).items()}
    tensors |= {f"file.{k}": _bytes_tensor(content) for k, content in enumerate(saved.files)}
    turns = []
    for i, turn in enumerate(saved.turns):
        tensors |= {f"turn.{i}.{name}": value for name, value in turn.positions.items()}
        tensors |= {f"media.{i}.{k}": _packed(item) for k, item in enumerate(turn.media)}
        media = [{name: getattr(item, name) for name in _MEDIA_FIELDS} for item in turn.media]
        lengths = {"length": turn.ids.shape[1], "answer": len(turn.answer), "per_token": list(turn.per_token)}
        turns.append({"text": turn.text, "media": media, "positions": list(turn.positions), **lengths})
    values = {
        "version": VERSION,
        "messages": saved.messages,
        "turns": turns,
        "per_token": [name.removeprefix("per_token.") for name in tensors if name.startswith("per_token.")],
        "notes": saved.notes,
        "files": len(saved.files),
        "dropped": saved.dropped,
    }
    metadata = {PREFIX: values} | {f"{PREFIX}.{name}": tensor for name, tensor in tensors.items()}
    save_cache(saved.cache, path, metadata, empty=saved.cache.table.modality is None)


def load_conversation(
    path: str | Path, model: PreTrainedModel, processor: ProcessorMixin | PreTrainedTokenizerBase
) -> SavedConversation:
    """Read what :func:`save_conversation` wrote.

    Args:
        path: the file.
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
        check_conversation(values, tensors, model)
        ids, dropped = tensors["ids"], bool(values.get("dropped"))
        per_token = {name: tensors[f"per_token.{name}"] for name in values["per_token"]}
        turns, at = [], 0
        for i, entry in enumerate(values["turns"]):
            media = tuple(_unpacked(tensors[f"media.{i}.{k}"], item) for k, item in enumerate(entry["media"]))
            turn = Turn(str(entry["text"]), media, {name: tensors[f"turn.{i}.{name}"] for name in entry["positions"]})
            turns.append(turn)
            if "length" not in entry:
                continue
            middle, end = at + entry["length"], at + entry["length"] + entry["answer"]
            turn.ids, turn.answer = ids[:, at:middle], tuple(ids[0, middle:end].tolist())
            turn.per_token = {name: per_token[name][:, at:middle] for name in entry["per_token"]}
            at = end
        if turns and not at:  # written before turns had lengths
            at = _find_turns(turns, ids, processor)
        if turns:
            with kept_rope_deltas(model):  # fails where the tokens are of other pictures and recordings
                prompt_position_ids(model, prompt_of(turns, model.device))
        messages, notes = [dict(message) for message in values["messages"]], dict(values["notes"])
        files = [tensors[f"file.{k}"].numpy().tobytes() for k in range(values.get("files", 0))]
    except (KeyError, TypeError, IndexError, ValueError, RuntimeError, AttributeError, OverflowError) as error:
        reason = one_line(error if isinstance(error, KVMMError) else repr(error))
        raise KVMMError(f"{Path(path).name} does not hold a whole conversation ({reason}); save it again.") from None
    # the newest tokens of an answer may not have been forwarded yet
    seen = cache.get_seq_length()
    if ids.shape != (1, at) or len(messages) != 2 * len(turns) or not (seen <= at if seen else dropped):
        raise KVMMError(f"{Path(path).name} holds other tokens than its cache; save the conversation again.")
    return SavedConversation(cache, dropped, turns, messages, notes, files)


def _find_turns(turns: Sequence[Turn], ids: torch.Tensor, processor: Any) -> int:
    """Give turns of an older file their tokens: prompts are made again, and what lies between them are the answers.

    Returns how many tokens that are; raises ``ValueError`` where the prompts are not in ``ids`` ``[1, T]``.
    """
    starts, at = [], 0
    for turn in turns:
        fill(turn, encode(processor, turn.text, turn.media))
        length = turn.ids.shape[1]
        matches = (ids[0].unfold(0, length, 1)[at:] == turn.ids[0]).all(1).nonzero()
        starts.append(at + int(matches[0]))
        at = starts[-1] + length
    for turn, start, after in zip(turns, starts, [*starts[1:], ids.shape[1]], strict=True):
        turn.answer = tuple(ids[0, start + turn.ids.shape[1] : after].tolist())
    return ids.shape[1]


def _bytes_tensor(content: bytes) -> torch.Tensor:
    """uint8 ``[n]``."""
    return torch.from_numpy(np.frombuffer(content, dtype=np.uint8).copy())


def _packed(item: Media) -> torch.Tensor:
    """uint8 ``[n]``, the bytes of a PNG, or float32 ``[n]``, samples at 16 kHz."""
    if item.kind == "image":
        stream = io.BytesIO()
        item.data.save(stream, "PNG")
        return _bytes_tensor(stream.getvalue())
    if item.kind == "audio":
        return torch.from_numpy(np.ascontiguousarray(item.data, dtype=np.float32))
    raise KVMMError("A conversation about a video cannot be saved: the video is not inside the file.")


def _unpacked(tensor: torch.Tensor, item: Mapping[str, Any]) -> Media:
    """``item``: the fields of :data:`_MEDIA_FIELDS`; files of earlier versions have no text layer."""
    kind, name = item["kind"], str(item["name"])
    described = (name, item["page"], str(item.get("text", "")), int(item.get("text_length", 0)))
    if kind == "image":
        content = tensor.numpy().tobytes()
        # as large as it was shown, whatever is made of larger ones today
        image = Media("image", load_image(content, max_pixels=None), *described, content=content, max_pixels=None)
        image.release()
        return image
    if kind == "audio":
        return Media("audio", load_audio((SAMPLE_RATE, tensor.numpy())), *described)
    raise ValueError(f"a medium of kind {kind!r}")


__all__ = ["SavedConversation", "load_conversation", "save_conversation"]
