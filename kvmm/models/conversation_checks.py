"""Checks of a saved conversation, made before anything of it reaches a model or a page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from transformers import PreTrainedModel

from kvmm.errors import KVMMError
from kvmm.fields import Field, check_fields, whole_number
from kvmm.models.prompting import POSITION_INPUTS

_MAX_FILES = 10_000
_MAX_GRID = 2**16  # patches along a side of a picture
_ROLES = ("user", "assistant")


def check_conversation(values: Mapping[str, Any], tensors: Mapping[str, torch.Tensor], model: PreTrainedModel) -> None:
    """Check the JSON and the tensors that ``save_conversation`` wrote.

    Raises:
        KVMMError: with the name of what is not as it must be.
    """
    vocabulary = model.get_input_embeddings().num_embeddings
    fields = {"ids": Field(torch.int64, (1, "tokens"), 0, vocabulary)}
    for name in _strings(values, "per_token"):
        if name in ("input_ids", "attention_mask"):
            raise KVMMError(f"per_token.{name}: is no input of its own")
        fields[f"per_token.{name}"] = Field((torch.int64, torch.int32, torch.int8), (1, "tokens"), 0, 64)
    for k in range(whole_number(values, "files", 0, _MAX_FILES) if "files" in values else 0):
        fields[f"file.{k}"] = Field(torch.uint8, (f"bytes {k}",))
    if not isinstance(values.get("turns"), list) or not isinstance(values.get("notes"), dict):
        raise KVMMError("turns or notes: is of the wrong kind")
    for number, entry in enumerate(values["turns"]):
        fields |= _turn_fields(entry, f"turn.{number}", f"media.{number}")
    sizes = check_fields(tensors, fields, closed=False)
    if sum(entry.get("length", 0) + entry.get("answer", 0) for entry in values["turns"]) > sizes["tokens"]:
        raise KVMMError("turns: are longer than the tokens")
    _check_grids(values["turns"], tensors, model)
    _check_messages(values.get("messages"))


def _strings(values: Mapping[str, Any], name: str) -> list[str]:
    texts = values.get(name)
    if not isinstance(texts, list) or not all(isinstance(one, str) for one in texts):
        raise KVMMError(f"{name}: must be a list of names")
    return texts


def _turn_fields(entry: Any, turn: str, media: str) -> dict[str, Field]:
    """The tensors of one turn; its JSON is checked here."""
    if (
        not isinstance(entry, dict)
        or not isinstance(entry.get("text"), str)
        or not isinstance(entry.get("media"), list)
    ):
        raise KVMMError(f"{turn}: must have a text and media")
    if "length" in entry:
        whole_number(entry, "length", 1, where=f"{turn}.")
        whole_number(entry, "answer", 0, where=f"{turn}.")
        _strings(entry, "per_token")
    fields = {}
    for k, item in enumerate(entry["media"]):
        if not isinstance(item, dict) or item.get("kind") not in ("image", "audio"):
            raise KVMMError(f"{media}.{k}: is of a kind that is not saved")
        page, length = item.get("page"), item.get("text_length", 0)
        if any(isinstance(x, bool) or not isinstance(x, int) or not 0 <= x < 2**31 for x in (page or 0, length)):
            raise KVMMError(f"{media}.{k}: page and text_length must be numbers")
        dtype = torch.uint8 if item["kind"] == "image" else torch.float32
        fields[f"{media}.{k}"] = Field(dtype, (f"{media}.{k}",))
    for name in _strings(entry, "positions"):
        if name not in POSITION_INPUTS:
            raise KVMMError(f"{turn}.{name}: no positions depend on it")
        if name.endswith("grid_thw"):
            fields[f"{turn}.{name}"] = Field(torch.int64, (f"{turn}.{name}", 3), 1, _MAX_GRID)
        elif name.endswith("mask"):
            dtypes = (torch.int64, torch.int32, torch.bool)
            fields[f"{turn}.{name}"] = Field(dtypes, (f"{turn}.{name}", f"{turn}.{name} length"), 0, 2)
        else:
            fields[f"{turn}.{name}"] = Field((torch.float32, torch.float64, torch.int64), (f"{turn}.{name}",), 0, 2**31)
    return fields


def _check_grids(turns: list[dict[str, Any]], tensors: Mapping[str, torch.Tensor], model: PreTrainedModel) -> None:
    """Pictures have as many placeholders among the tokens as their grids say, and recordings a mask each."""
    config = getattr(model.config, "thinker_config", None) or model.config
    token = next(
        (t for n in ("image_token_id", "image_token_index") if (t := getattr(config, n, None)) is not None), None
    )
    merge = getattr(getattr(config, "vision_config", None), "spatial_merge_size", None)
    at = 0
    for number, entry in enumerate(turns):
        kinds = [item["kind"] for item in entry["media"]]
        grid = tensors.get(f"turn.{number}.image_grid_thw") if "image_grid_thw" in entry["positions"] else None
        mask = tensors.get(f"turn.{number}.feature_attention_mask")
        if "feature_attention_mask" in entry["positions"] and len(mask) != kinds.count("audio"):
            raise KVMMError(f"turn.{number}.feature_attention_mask: is of another number of recordings")
        if grid is not None and len(grid) != kinds.count("image"):
            raise KVMMError(f"turn.{number}.image_grid_thw: is of another number of pictures")
        if "length" not in entry:
            return
        ids = tensors["ids"][0, at : at + entry["length"]]
        at += entry["length"] + entry["answer"]
        if grid is None or token is None or merge is None:
            continue
        patches = grid.prod(-1)
        if bool((patches % merge**2 != 0).any()) or int((ids == token).sum()) != int(patches.sum()) // merge**2:
            raise KVMMError(f"turn.{number}.image_grid_thw: is of other pictures than the tokens")


def _check_messages(messages: Any) -> None:
    if not isinstance(messages, list):
        raise KVMMError("messages: must be a list")
    for number, message in enumerate(messages):
        content = message.get("content") if isinstance(message, dict) else None
        blocks = content if isinstance(content, list) else [{"type": "text", "text": content}]
        whole = isinstance(message, dict) and message.get("role") == _ROLES[number % 2] and len(message) == 2
        for block in blocks:
            whole = whole and isinstance(block, dict) and block.get("type") in ("text", "image", "audio")
            whole = whole and (block["type"] != "text" or isinstance(block.get("text"), str))
        if not whole:
            raise KVMMError(f"messages: number {number} is no question or answer")


__all__ = ["check_conversation"]
