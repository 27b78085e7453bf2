"""Batches of prompts: documents are read once, packed under any number of policies, and questions decoded together.

The rows of a batch are left-padded twice, documents to one length and what follows them to another, so that every
document is packed before any question is read, as for a prompt that is alone::

    pad pad doc doc | pad what is
    doc doc doc doc | where is it
"""

from __future__ import annotations

import copy
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import LogitsProcessorList, StoppingCriteria, StoppingCriteriaList
from transformers.cache_utils import Cache

from kvmm.cache import KVMMCache
from kvmm.errors import KVMMError
from kvmm.modality import MODALITY_NAMES, modality_of_ids
from kvmm.models.caches import DYNAMIC, copy_cache, new_cache
from kvmm.models.confidence import BatchLogprobRecorder, Confidence, confidence_map_of
from kvmm.models.documents import Document, greedy_settings
from kvmm.models.peers import batch_cache_nbytes, is_peer
from kvmm.models.positions import all_position_ids
from kvmm.models.prompting import document_length, first_tokens, is_per_token
from kvmm.policy import KVPolicy

_PADDED_MEDIA = ("input_features", "feature_attention_mask")  # recordings of unequal length, zeros at the end


class Uncollatable(KVMMError):
    """The media of the prompts have shapes that cannot be batched; ask the prompts one by one."""


@dataclass(frozen=True)
class EncodedPrompt:
    """One prompt, encoded.

    Attributes:
        inputs: the model's inputs for one sequence of ``T`` tokens without padding.
        positions: explicit positions ``[1, T]``, or ``[4, 1, T]`` of M-RoPE models.
        shared: how many of the first tokens are the document.
        packs: whether the document is packed before the rest is read. If not, all but the last two tokens are shared:
            they are read exactly, and two tokens at once are no decode step, so that packing waits for the answer.
    """

    inputs: Mapping[str, torch.Tensor]
    positions: torch.Tensor
    shared: int
    packs: bool

    @property
    def length(self) -> int:
        """Tokens."""
        return self.inputs["input_ids"].shape[1]

    def tokens_by_modality(self, config: Any) -> dict[str, int]:
        """Token counts of the modalities present."""
        counts = Counter(modality_of_ids(self.inputs["input_ids"], config)[0].tolist())
        return {MODALITY_NAMES[code]: count for code, count in sorted(counts.items())}


def make_prompt(model: Any, inputs: Mapping[str, torch.Tensor], *, pack_first: bool, context: int = 0) -> EncodedPrompt:
    """A prompt from the inputs of one sequence.

    Args:
        pack_first: pack the document before the question is read; a prompt without any is packed with the first token
            of the answer, whatever this says.
        context: tokens of a text that stands for a document; 0 for none.

    Raises:
        KVMMError: the prompt has fewer than three tokens.
    """
    length = inputs["input_ids"].shape[1]
    if length < 3:
        raise KVMMError(f"The prompt has {length} tokens: ask a question of a word or more.")
    document = max(document_length(inputs["input_ids"], model.config), context)
    packs = pack_first and 1 < document < length
    return EncodedPrompt(inputs, all_position_ids(model, inputs), document if packs else length - 2, packs)


@dataclass(frozen=True)
class MeasuredAnswer:
    """One answer with its times and bytes.

    Attributes:
        tokens: generated ids, the end token included if it came.
        ttft: seconds from the prompt to the first token: reading the document (also when it was read once for several
            policies and questions), packing it, reading the question. Of a batch: until the batch has its first tokens.
        tpot: seconds per token after the first; None for a single token. Of a batch: a step of the batch.
        kv_bytes: bytes of the cache that hold something (:mod:`kvmm.cache.memory`) after the answer's last step; of a
            batch's cache those of the prompt's own tokens and pages.
        kv_bytes_bf16: what the keys and values of the same tokens take in bf16.
        packed_bits: bits per value of the packed pages alone, of a batch's cache those of all; None without any.
        tokens_by_modality: tokens in the cache.
        confidence: how sure the model is of a greedy answer; None without a map (:mod:`kvmm.models.confidence`). Of a
            transcription it is for the whole, from log-probabilities normalised by length.
    """

    tokens: list[int]
    ttft: float
    tpot: float | None
    kv_bytes: int
    kv_bytes_bf16: int
    packed_bits: float | None
    tokens_by_modality: dict[str, int]
    confidence: Confidence | None = None


class DocumentBatch(Document):
    """Documents of several prompts, read exactly, once, and packed under any number of policies.

    Args:
        model: as ``load_model`` returns it.
        prompts: one per document; all or none of them pack it before the question.

    Raises:
        Uncollatable: their media cannot be put into one batch.
    """

    def __init__(self, model: Any, prompts: Sequence[EncodedPrompt]):
        self.model = model
        self.packs = prompts[0].packs
        self.length = max(prompt.shared for prompt in prompts)
        heads = [first_tokens(prompt.inputs, prompt.shared) for prompt in prompts]
        self._head = _collate(heads, self.length)
        self._ids = self._head["input_ids"]
        self._mask = self._head["attention_mask"]
        self._positions = _stack([p.positions[..., : p.shared] for p in prompts], self.length, batch=-2)
        self._packed: dict[Any, Cache] = {}
        self._seconds: dict[Any, float] = {}
        self._confidence = confidence_map_of(model)
        begin = time.perf_counter()
        self._exact = self._read(new_cache(model, DYNAMIC))
        _synchronize(model)
        self.seconds = time.perf_counter() - begin
        layers = [x for x in self._exact.layers if getattr(x, "keys", None) is not None and x.keys.dim() == 4]
        self.values_per_token = sum(x.shape[1] * x.shape[3] for layer in layers for x in (layer.keys, layer.values))

    def cache(self, policy: str | KVPolicy) -> Cache:
        """A new cache of ``policy`` that holds the documents, packed if the prompts have ``packs`` set."""
        if policy not in self._packed:
            begin = time.perf_counter()
            self._packed[policy] = self._make(policy)
            _synchronize(self.model)
            self._seconds[policy] = time.perf_counter() - begin
        return copy_cache(self._packed[policy])

    def forget(self, policy: str | KVPolicy) -> None:
        """Free the packed documents of a policy."""
        self._packed.pop(policy, None)

    def _make(self, policy: str | KVPolicy) -> Cache:
        if policy == DYNAMIC:
            return copy.deepcopy(self._exact)
        if is_peer(policy):
            cache = new_cache(self.model, policy)
            for index, layer in enumerate(self._exact.layers):
                cache.update(layer.keys, layer.values, index)
            return cache
        cache = self.unpacked(policy)
        return cache.pack() if self.packs else cache

    def answers(
        self,
        policy: str | KVPolicy,
        prompts: Sequence[EncodedPrompt],
        documents: Sequence[int],
        max_new_tokens: int,
        stop: threading.Event | None = None,
        **sampling: Any,
    ) -> list[MeasuredAnswer]:
        """Answers, decoded as one batch.

        Args:
            policy: what the documents' cache is packed by.
            prompts: whole prompts, each over one of the documents.
            documents: which document each prompt has.
            max_new_tokens: of every answer.
            stop: once it is set, the answers end where they are.
            sampling: other arguments of ``generate``; greedy without any.
        """
        cache = self.cache(policy)
        ready = self.seconds + self._seconds[policy]
        rows = torch.as_tensor(list(documents), device=self._ids.device)
        if rows.tolist() != list(range(self._ids.shape[0])):
            cache.reorder_cache(rows)
        tails = [_last_tokens(prompt.inputs, prompt.shared) for prompt in prompts]
        width = max(prompt.length - prompt.shared for prompt in prompts)
        tail = _collate(tails, width)
        inputs = {
            name: torch.cat([self._head[name][rows], tail[name]], dim=1)
            for name, value in self._head.items()
            if is_per_token(value, self._head)
        }
        ends = _stack([p.positions[..., p.shared :] for p in prompts], width, batch=-2)
        positions = torch.cat([self._positions.index_select(-2, rows), ends], dim=-1)
        sizes: dict[int, tuple[int, int, float | None]] = {}

        def measure(ended: Sequence[int]) -> None:
            if isinstance(cache, KVMMCache) and not cache.is_packed:
                cache.pack()  # an answer of one token has no step in which it would happen
            grown = cache.get_seq_length() - self.length - width
            tokens = [prompt.length + grown for prompt in prompts]
            row_sizes = cache_sizes(cache, tokens, self._ids.shape[0], self.values_per_token)
            sizes.update((row, row_sizes[row]) for row in ended)

        clock = _Clock(stop or threading.Event(), _end_tokens(self.model), measure)
        unknown = self._confidence is None or sampling.get("do_sample", False)  # the map holds for greedy answers alone
        recorder = None if unknown else BatchLogprobRecorder()
        begin = time.perf_counter()
        out = self.model.generate(
            **inputs,
            position_ids=positions,
            past_key_values=cache,
            max_new_tokens=max_new_tokens,
            stopping_criteria=StoppingCriteriaList([clock]),
            logits_processor=LogitsProcessorList([] if recorder is None else [recorder]),
            **{**greedy_settings(self.model), **sampling},
        )
        _synchronize(self.model)
        end = time.perf_counter()
        first = clock.first or end
        tokens = [_until_end(row, self.model) for row in out[:, inputs["input_ids"].shape[1] :].tolist()]
        steps = out.shape[1] - inputs["input_ids"].shape[1]
        tpot = (end - first) / (steps - 1) if steps > 1 else None
        if unended := [row for row in range(len(prompts)) if row not in sizes]:
            measure(unended)
        by_modality = [self._cached_tokens(prompt, len(one)) for prompt, one in zip(prompts, tokens, strict=True)]
        sure: list[Confidence | None] = [None] * len(tokens)
        if recorder is not None:
            sure = [self._confidence.confidence(one) for one in recorder.logprobs([len(one) for one in tokens])]
        return [
            MeasuredAnswer(
                one, ready + first - begin, tpot if len(one) > 1 else None, *sizes[row], by_modality[row], sure[row]
            )
            for row, one in enumerate(tokens)
        ]

    def _cached_tokens(self, prompt: EncodedPrompt, generated: int) -> dict[str, int]:
        """Tokens in the cache by modality: the last token of an answer is never read."""
        counts = prompt.tokens_by_modality(self.model.config)
        counts["text"] = counts.get("text", 0) + max(generated - 1, 0)
        return counts


def cache_sizes(
    cache: Cache, tokens: Sequence[int], documents: int, values_per_token: int
) -> list[tuple[int, int, float | None]]:
    """Per row of a cache: its bytes, the bytes of its keys and values in bf16, and bits per value of packed pages.

    ``tokens``: how many each row holds, padding not counted.
    """
    rows = len(tokens)
    if not isinstance(cache, KVMMCache):  # transformers' caches hold padding like any token
        each = batch_cache_nbytes(cache, rows, documents) / (rows * cache.get_seq_length())
        return [(round(each * count), 2 * values_per_token * count, None) for count in tokens]
    report, table = cache.memory(), cache.table
    full = report.by_component.get("sink", 0) + report.by_component.get("residual", 0)
    token_counts = (table.dense >= 0).sum(1).cpu()
    sizes = full / max(int(token_counts.sum()), 1) * token_counts.double()
    rest = report.held_nbytes - full
    for modality, positions in table.stores.items():
        count, page = (positions >= 0).sum(1).cpu(), table.page_sizes[modality]
        names = report.by_modality if cache.policy.mixed_modalities else (MODALITY_NAMES[modality],)
        packed = sum(report.by_modality[name]["packed_nbytes"] for name in names)
        kv = getattr(cache.policy, MODALITY_NAMES[modality])
        if kv.key.is_lossless or kv.value.is_lossless:  # empty slots of exact pages are reserved, not held
            sizes += packed / max(int(count.sum()), 1) * count.double()
        else:
            sizes += packed / max(positions.numel(), 1) * page * -(-count // page).double()
        token_counts = token_counts + count
        rest -= packed
    sizes += rest / (rows * table.length) * token_counts.double()
    dense = report.nbytes_dense / report.tokens * token_counts.double()
    packed_bits = report.packed_bits_per_value if report.packed_tokens else None
    return [(round(a), round(b), packed_bits) for a, b in zip(sizes.tolist(), dense.tolist(), strict=True)]


class _Clock(StoppingCriteria):
    """Records the time of the first tokens, calls ``measure`` for rows that end, and stops generation at ``stop``."""

    def __init__(self, stop: threading.Event, end_tokens: set[int], measure: Callable[[Sequence[int]], None]):
        self.stop, self.end_tokens, self.measure = stop, end_tokens, measure
        self.first: float | None = None
        self.ended: set[int] = set()

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor, **_: Any) -> torch.Tensor:
        if self.first is None:
            if input_ids.is_cuda:
                torch.cuda.synchronize(input_ids.device)
            self.first = time.perf_counter()
        newest = enumerate(input_ids[:, -1].tolist())
        if ended := [row for row, token in newest if token in self.end_tokens and row not in self.ended]:
            self.ended.update(ended)
            self.measure(ended)
        return torch.full((input_ids.shape[0],), self.stop.is_set(), dtype=torch.bool, device=input_ids.device)


def _synchronize(model: Any) -> None:
    if model.device.type == "cuda":
        torch.cuda.synchronize(model.device)


def _until_end(tokens: list[int], model: Any) -> list[int]:
    """A row of generated tokens without the padding after its end token."""
    ends = _end_tokens(model)
    for count, token in enumerate(tokens, start=1):
        if token in ends:
            return tokens[:count]
    return tokens


def _end_tokens(model: Any) -> set[int]:
    eos = model.generation_config.eos_token_id
    return set() if eos is None else {eos} if isinstance(eos, int) else set(eos)


def _last_tokens(inputs: Mapping[str, torch.Tensor], start: int) -> dict[str, torch.Tensor]:
    return {name: value[:, start:] for name, value in inputs.items() if is_per_token(value, inputs)}


def _stack(parts: Sequence[torch.Tensor], width: int, batch: int) -> torch.Tensor:
    """Left-padded rows, along dimension ``batch``; zeros where there is no token."""
    return torch.cat([torch.nn.functional.pad(part, (width - part.shape[-1], 0)) for part in parts], dim=batch)


def _collate(parts: Sequence[Mapping[str, torch.Tensor]], width: int) -> dict[str, torch.Tensor]:
    """One batch of the inputs of single sequences: what is per token is left-padded, media are put end to end."""
    inputs: dict[str, torch.Tensor] = {}
    masks = [torch.ones_like(part["input_ids"]) for part in parts]
    for name in dict.fromkeys(name for part in parts for name in part):
        if name == "attention_mask":
            continue
        if is_per_token(parts[0].get(name), parts[0]):
            inputs[name] = _stack([part[name] for part in parts], width, batch=0)
            continue
        values = [part[name] for part in parts if name in part]
        if name in _PADDED_MEDIA:
            longest = max(value.shape[-1] for value in values)
            values = [torch.nn.functional.pad(value, (0, longest - value.shape[-1])) for value in values]
        if any(value.shape[1:] != values[0].shape[1:] for value in values):
            raise Uncollatable(f"The prompts' {name} have different shapes: ask them one by one.")
        inputs[name] = torch.cat(values)
    return {**inputs, "attention_mask": _stack(masks, width, batch=0)}


__all__ = ["DocumentBatch", "EncodedPrompt", "MeasuredAnswer", "Uncollatable", "cache_sizes", "make_prompt"]
