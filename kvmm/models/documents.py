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
from transformers.cache_utils import Cache, QuantizedCache

from kvmm.cache import KVMMCache
from kvmm.errors import KVMMError
from kvmm.media import SAMPLE_RATE, load_audio, load_image
from kvmm.modality import TEXT, modality_of_ids, placeholder_ids
from kvmm.models.peers import copy_peer_cache, is_peer, new_peer_cache
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
    if audio is not None:
        content.append({"type": "audio"})
    if question:
        content.append({"type": "text", "text": question})
    return encode_messages(
        model, processor, [{"role": "user", "content": content}], images, [] if audio is None else [audio]
    )


def encode_messages(
    model: Any,
    processor: Any,
    messages: Sequence[Mapping[str, Any]],
    images: Sequence[Image.Image] = (),
    audios: Sequence[Any] = (),
) -> dict[str, torch.Tensor]:
    """The model's inputs for a chat that ends where the answer begins.

    Args:
        model, processor: as for :func:`encode_question`.
        messages: ``{"role": ..., "content": [...]}`` with parts ``{"type": "text", "text": ...}``,
            ``{"type": "image"}`` and ``{"type": "audio"}``. A text-only model reads the texts alone.
        images, audios: one for each part, in their order; recordings as for :func:`encode_question`.
    """
    media: dict[str, Any] = {"images": list(images)} if images else {}
    if audios:
        media |= {"audio": list(audios), "sampling_rate": SAMPLE_RATE}
    if isinstance(processor, PreTrainedTokenizerBase):
        messages = [
            {**one, "content": "".join(part["text"] for part in one["content"] if part["type"] == "text")}
            for one in messages
        ]
    text = processor.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True)
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


def extended_position_ids(positions: torch.Tensor, count: int) -> torch.Tensor:
    """Positions of all tokens and of ``count`` text tokens after them; the shapes of :func:`all_position_ids`.

    Text counts on from the largest position so far. With M-RoPE that is the largest of the three axes, and the first
    of four rows, which numbers the tokens, counts by itself.
    """
    last = positions.amax(-1, keepdim=True)
    if last.dim() == 3:
        rows = last[-3:]
        last = torch.cat([last[:-3], rows.amax(0, keepdim=True).expand_as(rows)])
    steps = torch.arange(1, count + 1, device=positions.device)
    return torch.cat([positions, last + steps], dim=-1)


def new_cache(model: Any, policy: str | KVPolicy) -> Cache:
    """A cache of a policy, transformers' own for :data:`DYNAMIC`, or one of :data:`kvmm.models.peers.PEERS`."""
    if policy == DYNAMIC:
        return DynamicCache(config=model.config.get_text_config(decoder=True))
    if is_peer(policy):
        return new_peer_cache(model, policy)
    return KVMMCache.for_model(model, policy)


def own_copy(cache: Cache) -> Cache:
    """A cache that goes on by itself; packed pages are shared until one of the two adds to them."""
    if isinstance(cache, KVMMCache):
        return cache.fork()
    return copy_peer_cache(cache) if isinstance(cache, QuantizedCache) else copy.deepcopy(cache)


def measured_bits(cache: Cache) -> dict[str, float]:
    """Bits a value that a cache holds, from its tensors; empty for transformers' own.

    ``bits`` counts everything and all tokens, ``packed_bits`` what is in packed pages; ``media_bits`` and
    ``media_packed_bits`` the same of images, video and audio, and are absent without any.
    """
    if not isinstance(cache, KVMMCache):
        return {}
    report = cache.memory()
    bits = {"bits": report.bits_per_value}
    media = [numbers for name, numbers in report.by_modality.items() if name != "text"]
    if media and any(m["packed_tokens"] for m in media):
        bits["media_bits"] = 16 * sum(m["nbytes"] for m in media) / sum(m["nbytes_dense"] for m in media)
        bits["media_packed_bits"] = _packed_bits(media)
    if any(m["packed_tokens"] for m in report.by_modality.values()):
        bits["packed_bits"] = _packed_bits(list(report.by_modality.values()))
    return bits


def _packed_bits(modalities: Sequence[Mapping[str, float]]) -> float:
    tokens = sum(m["packed_tokens"] for m in modalities)
    return sum(m["packed_bits_per_value"] * m["packed_tokens"] for m in modalities) / tokens


class Document:
    """The first tokens of a prompt, read exactly, once, and packed under any number of policies.

    Args:
        model: as ``load_model`` returns it.
        inputs: the inputs of a prompt of one sequence that starts with the document.
        length: tokens of the document; default :func:`document_length`.

    Raises:
        KVMMError: for several sequences, padding, or an empty document.
    """

    def __init__(self, model: Any, inputs: Mapping[str, torch.Tensor], length: int | None = None):
        ids = inputs["input_ids"]
        self.length = document_length(ids, model.config) if length is None else length
        mask = inputs.get("attention_mask")
        if ids.shape[0] != 1 or (mask is not None and not bool(mask.all())):
            raise KVMMError("A document is one sequence without padding: pass the inputs of one prompt.")
        if not 0 < self.length <= ids.shape[1]:
            raise KVMMError(
                f"The document has {self.length} of the prompt's {ids.shape[1]} tokens; it needs 1 or more."
            )
        self.model = model
        self._ids = ids[:, : self.length]
        self._head = first_tokens(inputs, self.length)
        self._mask: torch.Tensor | None = None  # int [B, length], 0 where there is padding; None for no padding
        self._positions = all_position_ids(model, inputs)[..., : self.length]
        self._packed: dict[Any, Cache] = {}
        self._exact = self._read(new_cache(model, DYNAMIC))

    @torch.no_grad()
    def _read(self, cache: Cache) -> Cache:
        self.model(**self._head, position_ids=self._positions, past_key_values=cache, use_cache=True, logits_to_keep=1)
        return cache

    def cache(self, policy: str | KVPolicy) -> Cache:
        """A cache of ``policy`` that holds the document, packed; it is the caller's own."""
        if policy == DYNAMIC:
            return own_copy(self._exact)
        if policy not in self._packed:
            self._packed[policy] = self.unpacked(policy).pack()
        return own_copy(self._packed[policy])

    def unpacked(self, policy: str | KVPolicy) -> KVMMCache:
        """A cache of ``policy`` that has read the document and packed nothing yet; without another forward pass, unless
        a codec weighs by the prompt's queries.
        """
        cache = KVMMCache.for_model(self.model, policy)
        if not cache.packed_layers or any(cache.layers[index].needs_queries for index in cache.packed_layers):
            return self._read(cache)
        cache.announce(self._ids, None, self._mask)
        for index, layer in enumerate(self._exact.layers):
            if index in cache.packed_layers:
                cache.update(layer.keys, layer.values, index)
            else:
                cache.layers[index] = copy.deepcopy(layer)
        return cache


def read_on(
    model: Any,
    inputs: Mapping[str, torch.Tensor],
    cache: Cache,
    continuation: torch.Tensor,
    *,
    gradients: bool = False,
) -> torch.Tensor:
    """Read the rest of a prompt and its continuation in one pass, over a cache that holds the prompt's beginning.

    Args:
        inputs: the inputs of the whole prompt, ``T`` tokens.
        cache: from :meth:`Document.cache`; it is written to.
        continuation: int64 ``[1, n]`` text tokens after the prompt.
        gradients: record the graph, to differentiate the logits.

    Returns:
        logits ``[T + n - length, V]`` after each of the tokens read, in the model's dtype.
    """
    start = cache.get_seq_length()
    positions = extended_position_ids(all_position_ids(model, inputs), continuation.shape[1])
    ids = torch.cat([inputs["input_ids"], continuation.to(inputs["input_ids"])], dim=1)
    with torch.set_grad_enabled(gradients):
        out = model(
            input_ids=ids[:, start:],
            attention_mask=torch.ones_like(ids),
            position_ids=positions[..., start:],
            past_key_values=cache,
            use_cache=True,
        )
    return out.logits[0]


def answer_tokens(
    model: Any, inputs: Mapping[str, torch.Tensor], cache: Cache, max_new_tokens: int, **sampling: Any
) -> torch.Tensor:
    """Generate after a prompt whose beginning is in ``cache``: int64 ``[n]``, the end token included if it came.

    ``sampling``: other arguments of ``generate``; greedy without any. Placeholders of media are never generated.
    """
    arguments = {name: value for name, value in inputs.items() if is_per_token(value, inputs)}
    tokens = model.generate(
        **arguments,
        position_ids=all_position_ids(model, inputs),
        past_key_values=cache,
        max_new_tokens=max_new_tokens,
        **{**greedy_settings(model), **sampling},
    )
    return tokens[0, inputs["input_ids"].shape[1] :]


def greedy_settings(model: Any) -> dict[str, Any]:
    """Arguments of ``generate`` for greedy answers that hold no placeholder of a medium."""
    settings: dict[str, Any] = {"do_sample": False, "temperature": None, "top_p": None, "top_k": None, "num_beams": 1}
    if placeholders := [token for token, _ in placeholder_ids(model.config)]:
        settings["suppress_tokens"] = placeholders
    config = model.generation_config
    if config.pad_token_id is None and config.eos_token_id is not None:
        eos = config.eos_token_id
        settings["pad_token_id"] = eos if isinstance(eos, int) else eos[0]
    return settings


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
            cache = own_copy(self._prefix)
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
    "Document",
    "all_position_ids",
    "answer_tokens",
    "document_length",
    "encode_messages",
    "encode_question",
    "extended_position_ids",
    "first_tokens",
    "greedy_settings",
    "is_per_token",
    "measured_bits",
    "new_cache",
    "own_copy",
    "read_on",
]
