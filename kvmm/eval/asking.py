"""Questions about documents that are read and packed before the questions are known.

The part of a prompt up to the marker that closes its last medium is the *document*: it is read once, packed, and every
question is asked of a copy of that cache. A question then cannot look at exact keys, which is the harder order.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from transformers import DynamicCache, PreTrainedTokenizerBase
from transformers.cache_utils import Cache

from kvmm.cache import KVMMCache
from kvmm.media import SAMPLE_RATE, load_audio, load_image
from kvmm.modality import TEXT, modality_of_ids
from kvmm.policy import KVPolicy

DYNAMIC = "dynamic"  # transformers' own cache: the reference that needs no kvmm code


def encode_question(
    model: Any, processor: Any, question: str, images: Sequence[Image.Image] = (), audio: Any = None
) -> dict[str, torch.Tensor]:
    """The model's inputs for one question: ids, mask, pixels, audio features, on the model's device.

    Args:
        model, processor: as ``load_model`` returns them; the processor of a text-only model is its tokenizer.
        question: may be empty when a recording asks it.
        images: pages, before the question; several are labelled "Page 1", "Page 2" ...
        audio: float32 ``[n]``, mono at ``kvmm.media.SAMPLE_RATE``, after the images; None for none.
    """
    content: list[dict[str, str]] = []
    for page in range(len(images)):
        if len(images) > 1:
            content.append({"type": "text", "text": f"Page {page + 1}\n"})
        content.append({"type": "image"})
    media: dict[str, Any] = {"images": list(images)} if images else {}
    if audio is not None:
        content.append({"type": "audio"})
        media |= {"audio": [audio], "sampling_rate": SAMPLE_RATE}
    if question:
        content.append({"type": "text", "text": question})
    text_only = isinstance(processor, PreTrainedTokenizerBase)
    text = processor.apply_chat_template(
        [{"role": "user", "content": question if text_only else content}], tokenize=False, add_generation_prompt=True
    )
    inputs = processor(text=[text], return_tensors="pt", add_special_tokens=False, **media)
    return {
        name: value.to(model.device, model.dtype if value.is_floating_point() else None)
        for name, value in inputs.items()
    }


def document_length(input_ids: torch.Tensor, config: Any) -> int:
    """How many of the prompt's tokens ``[1, T]`` are the document; 1 for a prompt without media."""
    media = (modality_of_ids(input_ids, config) != TEXT).nonzero()
    return int(media[-1, 1]) + 2 if len(media) else 1  # the marker that closes the last medium comes after it


def is_per_token(value: Any, inputs: Mapping[str, Any]) -> bool:
    """Whether one of the model's inputs has an entry a token, as ids and masks have."""
    return isinstance(value, torch.Tensor) and value.shape == inputs["input_ids"].shape


def all_position_ids(model: Any, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Explicit positions of all tokens of ``inputs``, ``[1, T]`` or for M-RoPE models ``[4, 1, T]``.

    Giving them in every call keeps the Qwen families from guessing with the ``rope_deltas`` of another prompt; those
    that the model holds are left as they were.
    """
    holders = [module for module in (model, getattr(model, "model", None)) if hasattr(module, "rope_deltas")]
    kept = [module.rope_deltas for module in holders]
    try:
        return model._prepare_position_ids_for_generation(inputs["input_ids"], dict(inputs))
    finally:
        for module, deltas in zip(holders, kept, strict=True):
            module.rope_deltas = deltas


def first_tokens(inputs: Mapping[str, torch.Tensor], count: int) -> dict[str, torch.Tensor]:
    """The inputs of the first ``count`` tokens, with all media."""
    return {name: value[:, :count] if is_per_token(value, inputs) else value for name, value in inputs.items()}


def followed_by(inputs: Mapping[str, torch.Tensor], ids: torch.Tensor) -> dict[str, torch.Tensor]:
    """``inputs`` with text tokens ``ids`` ``[1, n]`` after them."""
    longer = dict(inputs)
    for name, value in inputs.items():
        if name == "input_ids":
            longer[name] = torch.cat([value, ids.to(value)], dim=1)
        elif is_per_token(value, inputs):  # masks grow by ones, token types by text
            fill = 1 if name == "attention_mask" else 0
            longer[name] = torch.cat([value, value.new_full(ids.shape, fill)], dim=1)
    return longer


def new_cache(model: Any, policy: str | KVPolicy) -> Cache:
    """A cache of a policy, or transformers' own for :data:`DYNAMIC`."""
    if policy == DYNAMIC:
        return DynamicCache(config=model.config.get_text_config(decoder=True))
    return KVMMCache.for_model(model, policy)


class Asker:
    """Asks the questions of one document after another; a document is read once when it is packed beforehand."""

    def __init__(self, model: Any, processor: Any, max_new_tokens: int):
        self.model, self.processor, self.max_new_tokens = model, processor, max_new_tokens
        self._document: tuple | None = None
        self._prefix: Cache | None = None

    def encode(self, line: Mapping[str, Any], folder: Path) -> dict[str, torch.Tensor]:
        """The model's inputs for one line of data: ``images``, ``audio`` (paths in ``folder``), ``question``."""
        return encode_question(
            self.model,
            self.processor,
            line["question"],
            [load_image(folder / path) for path in line["images"]],
            load_audio(folder / line["audio"]) if line.get("audio") else None,
        )

    def answer(self, inputs: dict[str, torch.Tensor], policy: str, document: tuple, before: bool) -> tuple[str, Cache]:
        """Ask one question; ``document`` names the media, ``before`` packs them before the question is read."""
        ids = inputs["input_ids"]
        arguments = dict(inputs)
        if before:
            cut = document_length(ids, self.model.config)
            positions = all_position_ids(self.model, inputs)
            if self._document != (policy, document):
                prefix = new_cache(self.model, policy)
                head = first_tokens(inputs, cut)
                self.model(**head, position_ids=positions[..., :cut], past_key_values=prefix, use_cache=True)
                if isinstance(prefix, KVMMCache):
                    prefix.pack()
                self._document, self._prefix = (policy, document), prefix
            cache = copy.deepcopy(self._prefix)
            arguments = {name: value for name, value in inputs.items() if is_per_token(value, inputs)}
            arguments["position_ids"] = positions
        else:
            cache = new_cache(self.model, policy)
        tokens = self.model.generate(
            **arguments, past_key_values=cache, max_new_tokens=self.max_new_tokens, do_sample=False
        )
        text = self.processor.batch_decode(tokens[:, ids.shape[1] :], skip_special_tokens=True)[0]
        return text.strip(), cache


__all__ = [
    "DYNAMIC",
    "Asker",
    "all_position_ids",
    "document_length",
    "encode_question",
    "first_tokens",
    "followed_by",
    "is_per_token",
    "new_cache",
]
