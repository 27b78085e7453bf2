"""Documents that are read and packed before questions are asked about them.

The *document* is the part of a prompt up to the marker that closes its last medium. It is read once and packed, and
every question goes on with a copy of that cache. Questions then never attend to exact keys, which is the harder order.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from transformers.cache_utils import Cache

from kvmm.cache import KVMMCache
from kvmm.errors import KVMMError
from kvmm.media import load_audio, load_image
from kvmm.modality import placeholder_ids
from kvmm.models.caches import DYNAMIC, copy_cache, new_cache
from kvmm.models.positions import all_position_ids, extended_position_ids
from kvmm.models.prompting import document_length, encode_question, first_tokens, is_per_token
from kvmm.models.reading import logits_of
from kvmm.policy import KVPolicy


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
        with logits_of(self.model, 1) as keep:
            self.model(**self._head, position_ids=self._positions, past_key_values=cache, use_cache=True, **keep)
        return cache

    def cache(self, policy: str | KVPolicy) -> Cache:
        """A new cache of ``policy`` that holds the packed document."""
        if policy == DYNAMIC:
            return copy_cache(self._exact)
        if policy not in self._packed:
            self._packed[policy] = self.unpacked(policy).pack()
        return copy_cache(self._packed[policy])

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
    """Generate after a prompt, over a ``cache`` that holds its beginning: int64 ``[n]``, with the end token if it came.

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


class DocumentQA:
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
            cache = copy_cache(self._prefix)
            arguments = {name: value for name, value in inputs.items() if is_per_token(value, inputs)}
            arguments["position_ids"] = positions
        else:
            cache = new_cache(self.model, policy)
        tokens = self.model.generate(
            **arguments, past_key_values=cache, max_new_tokens=self.max_new_tokens, do_sample=False
        )
        text = self.processor.batch_decode(tokens[:, ids.shape[1] :], skip_special_tokens=True)[0]
        return text.strip(), cache


__all__ = ["Document", "DocumentQA", "answer_tokens", "greedy_settings", "read_on"]
