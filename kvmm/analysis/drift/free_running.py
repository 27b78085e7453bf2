"""Free-running generation: how far a policy drifts when it reads what it wrote itself.

Teacher forcing gives every policy the right past. Here each goes on from the same packed prompt with its own greedy
tokens, so errors accumulate as they do for a user. Full precision then reads the policy's text, which gives
``KL(full || policy)`` at every token of it: what the cache adds to the error at that place, however far the text has
strayed. The texts themselves say the rest: where they leave that of full precision, and whether they repeat.

All policies of a call advance together, one per row of the batch, so that the weights are read once for all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers.cache_utils import Cache

from kvmm.attention import PackedHandle, install_attention
from kvmm.cache import KVMMCache
from kvmm.errors import KVMMError
from kvmm.modality import placeholder_ids
from kvmm.models.caches import DYNAMIC, measured_bits
from kvmm.models.documents import Document
from kvmm.models.forced_text import compare_logits
from kvmm.models.positions import all_position_ids, extended_position_ids
from kvmm.policy import KVPolicy

BUCKETS = 8  # of equal length, over which KL is averaged along the way
NGRAM = 4  # tokens of a repeated phrase
_CHUNK = 32  # tokens after which full precision reads what the policies wrote: their logits are held until then


@dataclass(frozen=True)
class FreeRun:
    """One policy's text: ``N`` greedy tokens.

    Attributes:
        tokens: the text.
        kl: float32 ``[N]``, KL(full || policy) in nats at every token, both after the policy's own text.
        nll: float32 ``[N]``, minus the log-probability that full precision gives the token.
        bits: of the cache after the last token (:func:`kvmm.models.caches.measured_bits`).
    """

    tokens: tuple[int, ...]
    kl: np.ndarray
    nll: np.ndarray
    bits: dict[str, float]


@dataclass(frozen=True)
class FreeRunSummary:
    """Figures of one text.

    Attributes:
        tokens: its length.
        diverged_at: number of tokens that equal those of full precision before the first that does not; None if all do.
        kl_mean, kl_max: nats per token over the text.
        kl_by_position: mean KL of :data:`BUCKETS` parts of equal length.
        perplexity: of the text, by full precision: near 1 for a loop, high for a text that makes no sense to it.
        repetition: share of :data:`NGRAM`-grams that occurred earlier in the text.
        loop_at: token from which the text repeats itself to its end, at least twice; None if it does not.
    """

    tokens: int
    diverged_at: int | None
    kl_mean: float
    kl_max: float
    kl_by_position: tuple[float, ...]
    perplexity: float
    repetition: float
    loop_at: int | None


class RowCaches(Cache):
    """A cache for each sequence of a batch, all of the same length, for steps of one token of text without padding.

    Masks and positions follow the first.
    """

    def __init__(self, caches: Sequence[Cache]):
        super().__init__(layers=caches[0].layers)
        self.caches = list(caches)
        install_attention()

    def announce(self, input_ids: torch.Tensor, *_: Any, **described: Any) -> None:
        """Tell the caches their tokens of the coming step ``[B, 1]``; the model's pre-hook calls it."""
        for row, cache in enumerate(self.caches):
            if isinstance(cache, KVMMCache):
                cache.announce(input_ids[row : row + 1], None, None)

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[PackedHandle, PackedHandle]:
        """Append ``[B, H_kv, 1, D]``, one row to each cache."""
        rows = zip(self.caches, key_states.split(1), value_states.split(1), strict=True)
        held = [cache.update(key, value, layer_idx)[:2] for cache, key, value in rows]
        handle = PackedHandle(_Rows(held), key_states.device)
        return handle, handle


class _Rows:
    """One layer of :class:`RowCaches` during a step."""

    packed = True

    def __init__(self, held: Sequence[tuple[Any, Any]]):
        self.held = held

    def observe(self, query: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        raise NotImplementedError("rows are read in place")

    decoded = observe

    def attend(self, query: torch.Tensor, attention_mask: Any, scaling: float) -> torch.Tensor:
        """Attention of every row ``[1, H_q, 1, D]`` over its own cache."""
        outputs = []
        for one, (key, value) in zip(query.split(1), self.held, strict=True):
            if isinstance(key, PackedHandle) and key.layer.packed:
                outputs.append(key.layer.attend(one, None, scaling))
                continue
            if isinstance(key, PackedHandle):
                key, value = key.layer.observe(one)
            outputs.append(
                torch.nn.functional.scaled_dot_product_attention(one, key, value, scale=scaling, enable_gqa=True)
            )
        return torch.cat([output.to(query.dtype) for output in outputs])


def run_free(
    model: Any,
    inputs: Mapping[str, torch.Tensor],
    policies: Mapping[str, str | KVPolicy],
    count: int,
    *,
    packed: int | None = None,
) -> Iterator[int | dict[str, FreeRun]]:
    """Generate ``count`` greedy tokens with every policy after the same packed prompt.

    Texts do not end: end tokens and placeholders of media are never chosen.

    Args:
        model: as ``load_model`` returns it.
        inputs: of one prompt of text, ids ``[1, T]``.
        policies: by name; :data:`kvmm.models.caches.DYNAMIC` is full precision.
        packed: tokens of the prompt that are read exactly and packed, fewer than ``T``; the rest is read over the
            packed cache one by one. Default: all but the last.

    Yields:
        The number of tokens written, now and then; last ``{name: FreeRun}``.

    Raises:
        KVMMError: for no policy, or a text that exceeds the model's positions.
    """
    ids = inputs["input_ids"]
    packed = ids.shape[1] - 1 if packed is None else packed
    window = getattr(model.config.get_text_config(decoder=True), "max_position_embeddings", None)
    if window is not None and ids.shape[1] + count > window:
        raise KVMMError(f"Prompt and text have {ids.shape[1] + count} tokens, the model {window} positions: use less.")
    if not policies or count < 1:
        raise KVMMError("There is nothing to generate: name a policy and one token or more.")
    with torch.no_grad():
        document = Document(model, inputs, packed)
        writer = _Writer(model, inputs, [document.cache(policy) for policy in policies.values()], packed)
        reader = document.cache(DYNAMIC)
        for layer in reader.layers:
            layer.batch_repeat_interleave(len(policies))
        kl, nll = [], []
        while (done := len(writer.tokens)) < count:
            read, logits, chosen = writer.advance(min(_CHUNK, count - done))
            exact = writer.forward(read, reader)[:, -logits.shape[1] :]
            rows = [compare_logits(*row, top_k=1) for row in zip(exact, logits, chosen, strict=True)]
            kl.append(np.stack([row["kl"].numpy() for row in rows]))
            nll.append(np.stack([row["nll_full"].numpy() for row in rows]))
            yield len(writer.tokens)
    texts = torch.stack(writer.tokens, 1).tolist()
    kl, nll = np.concatenate(kl, 1), np.concatenate(nll, 1)
    bits = [measured_bits(cache) for cache in writer.caches.caches]
    yield {name: FreeRun(tuple(texts[row]), kl[row], nll[row], bits[row]) for row, name in enumerate(policies)}


class _Writer:
    """Rows of greedy text, and the tokens of the prompt that they begin with."""

    def __init__(self, model: Any, inputs: Mapping[str, torch.Tensor], caches: Sequence[Cache], start: int):
        self.model, self.caches, self.start = model, RowCaches(caches), start
        self.positions = all_position_ids(model, inputs)
        rest = inputs["input_ids"][:, start:].expand(len(caches), -1)
        self.pending = list(rest.unbind(1))  # [B] each: to be read next
        self.tokens: list[torch.Tensor] = []  # [B] each: written
        end = model.generation_config.eos_token_id
        ends = [] if end is None else [end] if isinstance(end, int) else list(end)
        self.never = torch.tensor([*ends, *(token for token, _ in placeholder_ids(model.config))], dtype=torch.long)

    def forward(self, ids: torch.Tensor, cache: Cache) -> torch.Tensor:
        """Logits ``[B, n, V]`` after tokens ``[B, n]`` that follow what ``cache`` holds."""
        start = cache.get_seq_length()
        if (missing := start + ids.shape[1] - self.positions.shape[-1]) > 0:
            self.positions = extended_position_ids(self.positions, missing)
        positions = self.positions[..., start : start + ids.shape[1]]
        positions = positions.expand(*positions.shape[:-2], len(ids), -1)
        return self.model(input_ids=ids, position_ids=positions, past_key_values=cache, use_cache=True).logits

    def advance(self, count: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Write ``count`` tokens.

        Returns:
            int64 ``[B, m]`` the tokens read on the way, ``m >= count``; logits ``[B, count, V]``; int64 ``[B, count]``
            the tokens chosen by them.
        """
        read, logits, target = [], [], len(self.tokens) + count
        while len(self.tokens) < target:
            read.append(self.pending.pop(0))
            out = self.forward(read[-1][:, None], self.caches)[:, -1]
            if self.pending:
                continue
            logits.append(out)
            self.tokens.append(out.index_fill(1, self.never.to(out.device), -torch.inf).argmax(-1))
            self.pending.append(self.tokens[-1])
        return torch.stack(read, 1), torch.stack(logits, 1), torch.stack(self.tokens[-count:], 1)


def summarise_run(run: FreeRun, full: Sequence[int]) -> FreeRunSummary:
    """Figures of a text beside that of full precision, ``full``."""
    pairs = zip(run.tokens, full, strict=False)
    kl = run.kl.astype(np.float64)
    return FreeRunSummary(
        tokens=len(run.tokens),
        diverged_at=next((i for i, (a, b) in enumerate(pairs) if a != b), None),
        kl_mean=float(kl.mean()),
        kl_max=float(kl.max()),
        kl_by_position=tuple(float(part.mean()) for part in np.array_split(kl, min(BUCKETS, len(kl)))),
        perplexity=float(np.exp(run.nll.astype(np.float64).mean())),
        repetition=repetition(run.tokens),
        loop_at=loop_start(run.tokens),
    )


def repetition(tokens: Sequence[int], n: int = NGRAM) -> float:
    """Share of the ``n``-grams of a text that occurred earlier in it; 0 for a text shorter than one."""
    grams = [tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1)]
    return 1 - len(set(grams)) / len(grams) if grams else 0.0


def loop_start(tokens: Sequence[int], longest: int = 256) -> int | None:
    """First token of the loop in which a text ends: from there it has one period, of ``longest`` tokens at most, and
    goes through it twice or more, over :data:`NGRAM` tokens or more. None without one.
    """
    ids = np.asarray(tokens)
    best = None
    for period in range(1, min(longest, len(ids) // 2) + 1):
        same = ids[period:] == ids[:-period]
        breaks = np.flatnonzero(~same)
        start = 0 if not len(breaks) else int(breaks[-1]) + 1
        if len(ids) - start >= max(2 * period, NGRAM) and (best is None or start < best):
            best = start
    return best


__all__ = ["FreeRun", "FreeRunSummary", "RowCaches", "loop_start", "repetition", "run_free", "summarise_run"]
