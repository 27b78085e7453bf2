"""Speculative decoding over a packed cache: several drafted tokens are checked in one call, with the greedy answer.

Each call forwards the newest token and a draft of what may follow it; the model's own choices behind each of them say
how much of the draft was right, and the cache is cropped to that (Leviathan et al., arXiv 2211.17192, with greedy
choices). Drafts come from the text itself (:class:`PromptLookup`) or from a smaller model (:class:`DraftModel`).

The answer is that of one token a step. A cache packs between steps only, and only tokens that stay, so a draft is never
longer than the tokens that may come before the next page would have been packed
(:meth:`kvmm.cache.token_table.TokenTable.tokens_before_packing`): every token is chosen over the same packed pages as
without drafts. What is left is rounding, of a matrix product of several rows instead of one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from transformers import DynamicCache, PreTrainedModel, RepetitionPenaltyLogitsProcessor
from transformers.cache_utils import Cache

from kvmm.cache import KVMMCache
from kvmm.errors import KVMMError
from kvmm.modality import placeholder_ids
from kvmm.models.confidence import LogprobRecorder
from kvmm.models.loading import load_model
from kvmm.models.positions import all_position_ids, extended_position_ids
from kvmm.models.prompting import eos_token_ids, is_per_token
from kvmm.models.reading import logits_of
from kvmm.models.sampling import GREEDY, Sampling

NO_DRAFTS = "Drafts are checked against the most likely tokens: leave temperature and logprobs out, or the drafts."
NO_WAY_BACK = (
    "Drafts that are wrong are taken back, which layers with a sliding window or a recurrent state cannot do: answer "
    "without drafts."
)
_LONGEST = 64  # tokens of a draft; drafters have smaller bounds of their own
_LONGEST_PAUSE = 15  # steps
LOOKUP = "lookup"  # names PromptLookup where drafters are chosen by name


class Drafter(Protocol):
    """Guesses how a text goes on."""

    def draft(self, ids: Sequence[int], most: int) -> list[int]:
        """Up to ``most`` tokens that may follow ``ids``, the prompt and the answer so far."""


@dataclass(frozen=True)
class PromptLookup:
    """Drafts what followed the newest tokens where they stood before (prompt lookup decoding, Saxena 2023).

    Args:
        longest, shortest: how many of the newest tokens are looked for; the longer match counts, then the newer.
        count: most tokens of a draft.
    """

    longest: int = 3
    shortest: int = 2
    count: int = 8

    def draft(self, ids: Sequence[int], most: int) -> list[int]:
        """See :class:`Drafter`."""
        text, most = np.asarray(ids, dtype=np.int64), min(most, self.count)
        for size in range(min(self.longest, len(text) - 1), self.shortest - 1, -1):
            windows = np.lib.stride_tricks.sliding_window_view(text[:-1], size)
            places = np.flatnonzero((windows == text[-size:]).all(1))
            if len(places):
                start = int(places[-1]) + size
                return text[start : start + most].tolist()
        return []


@dataclass
class DraftModel:
    """Drafts what a smaller model of the same vocabulary would say.

    Media stand in its prompt as their placeholders. Its cache is transformers' own and is cropped to what was right.

    Args:
        model: a text-only causal model.
        count: most tokens of a draft.

    Raises:
        KVMMError: the model has layers with a sliding window, which cannot forget wrong tokens.
    """

    model: PreTrainedModel
    count: int = 4
    _cache: DynamicCache | None = field(default=None, init=False, repr=False)
    _ids: list[int] = field(default_factory=list, init=False, repr=False)

    def __post_init__(self) -> None:
        if not _takes_tokens_back(self._new_cache()):
            raise KVMMError(NO_WAY_BACK)

    def _new_cache(self) -> DynamicCache:
        return DynamicCache(config=self.model.config.get_text_config(decoder=True))

    @torch.no_grad()
    def draft(self, ids: Sequence[int], most: int) -> list[int]:
        """See :class:`Drafter`."""
        most = min(most, self.count)
        if most < 1:
            return []
        ids = list(ids)
        same = next((i for i, (a, b) in enumerate(zip(ids, self._ids, strict=False)) if a != b), None)
        same = min(len(ids) - 1, len(self._ids) if same is None else same)  # the last one is read for its choice
        if self._cache is None or same == 0:
            self._cache, same = self._new_cache(), 0
        elif surplus := self._cache.get_seq_length() - same:
            self._cache.crop(-surplus)
        draft: list[int] = []
        new = ids[same:]
        while len(draft) < most:
            tokens = torch.tensor([new], device=self.model.device)
            with logits_of(self.model, 1) as keep:
                logits = self.model(input_ids=tokens, past_key_values=self._cache, use_cache=True, **keep).logits
            new = [int(logits[0, -1].argmax())]
            draft += new
        self._ids = ids + draft[:-1]
        return draft


@dataclass
class Speculation:
    """An answer and what drafting it took.

    Attributes:
        tokens: of the answer, the one that ends it included.
        calls: of the model behind the prompt; as many as tokens, less one, without drafts.
        drafted, accepted: tokens of all drafts, and those of them that were right.
    """

    tokens: list[int]
    calls: int = 0
    drafted: int = 0
    accepted: int = 0

    @property
    def acceptance(self) -> float:
        """The share of drafted tokens that were right; 0 without any."""
        return self.accepted / self.drafted if self.drafted else 0.0

    def to_dict(self) -> dict[str, float]:
        """Numbers for JSON."""
        counts = {"calls": self.calls, "drafted": self.drafted, "accepted": self.accepted}
        return {**counts, "acceptance": self.acceptance}


@dataclass
class _Pace:
    """How long the next draft may be: drafts that were right make it longer, wrong ones shorter, then rarer.

    Checking a draft costs time also where nothing of it is right, on a CPU nearly that of as many steps.
    """

    most: int = 4
    wrong: int = 0  # drafts in a row of which nothing was right
    pause: int = 0  # steps until the next one

    def next(self) -> int:
        """Tokens that the draft of this step may have, 0 for none."""
        if self.pause:
            self.pause -= 1
            return 0
        return self.most

    def learn(self, drafted: int, right: int) -> None:
        """Of the last draft ``right`` tokens were."""
        if not drafted:
            return
        self.most = min(2 * self.most, _LONGEST) if right == drafted else max(1, right)
        self.wrong = 0 if right else self.wrong + 1
        self.pause = min(2**self.wrong - 1, _LONGEST_PAUSE)


class DraftedSteps:
    """The steps of one answer, each a call of the model that checks a draft.

    Args:
        model: of the cache.
        cache: it holds a prompt, but for the newest token of ``text``.
        positions: of all tokens up to the answer's end, as :func:`extended_position_ids` returns them.
        drafter: guesses tokens.
        recorder: is told the log-probabilities of the tokens that stay.

    Raises:
        KVMMError: for several sequences, or a cache with a budget, whose pages change with every call.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        cache: Cache,
        positions: torch.Tensor,
        drafter: Drafter,
        recorder: LogprobRecorder | None = None,
    ) -> None:
        if positions.shape[-2] != 1:
            raise KVMMError("Drafts are made for one sequence at a time.")
        check_drafts(drafter, cache=cache)
        self._model, self._cache, self._positions, self._drafter = model, cache, positions, drafter
        self._recorder = recorder
        never = [token for token, _ in placeholder_ids(model.config)]
        self._never = torch.tensor(never, dtype=torch.long, device=positions.device)
        penalty = model.generation_config.repetition_penalty if model.can_generate() else None
        self._penalty = None if penalty in (None, 1.0) else RepetitionPenaltyLogitsProcessor(penalty)
        self.found = Speculation([])
        self._pace = _Pace()

    @torch.no_grad()
    def step(self, text: Sequence[int], most: int) -> list[int]:
        """The tokens, at least one and at most ``most``, that follow ``text``: the prompt and the answer so far.

        The cache then holds all of them but the last one; see :meth:`hold` for an answer that ends before.
        """
        cache, text = self._cache, list(text)
        room = min(most - 1, self._pace.next())
        if isinstance(cache, KVMMCache):
            room = min(room, cache.pack().table.tokens_before_packing() - 1)
        draft = self._drafter.draft(text, room) if room > 0 else []
        chosen = self.choices(text, torch.tensor([[text[-1], *draft]], device=self._positions.device))
        right = next((i for i, token in enumerate(draft) if token != chosen[i]), len(draft))
        found = self.found
        found.calls, found.drafted, found.accepted = found.calls + 1, found.drafted + len(draft), found.accepted + right
        self._pace.learn(len(draft), right)
        self._record(right + 1)
        self.hold(len(text) + right)
        return chosen[: right + 1]  # the draft as far as it was right, and one token more

    def first(self, text: Sequence[int], logits: torch.Tensor) -> list[int]:
        """The token behind a prompt ``text`` that has been read; ``logits`` ``[1, V]`` are of its last token."""
        tokens = self.chosen(text, logits)
        self._record(1)
        return tokens

    def _record(self, count: int) -> None:
        if self._recorder is not None:
            self._recorder.add(self._logits[:count])

    def hold(self, count: int) -> None:
        """Keep the first ``count`` tokens in the cache."""
        if surplus := self._cache.get_seq_length() - count:
            self._cache.crop(-surplus)

    def choices(
        self, text: Sequence[int], new: torch.Tensor, media: Mapping[str, torch.Tensor] | None = None
    ) -> list[int]:
        """The model's choices behind each of the new tokens ``[1, q]``, the first of which ends ``text``."""
        start = self._cache.get_seq_length()
        end = start + new.shape[1]
        logits = self._model(
            input_ids=new,
            attention_mask=torch.ones(1, end, dtype=torch.long, device=new.device),
            position_ids=self._positions[..., start:end],
            past_key_values=self._cache,
            use_cache=True,
            **(media or {}),
        ).logits[0]
        return self.chosen([*text[:-1], *new[0].tolist()] if self._penalty else [], logits)

    def chosen(self, text: Sequence[int], logits: torch.Tensor) -> list[int]:
        """The greedy choices by ``logits`` ``[q, V]`` behind the last ``q`` tokens of ``text``."""
        if self._penalty is not None:
            ids = torch.tensor([list(text)], device=logits.device)
            ends = range(ids.shape[1] - len(logits) + 1, ids.shape[1] + 1)
            rows = [self._penalty(ids[:, :end], row[None].float()) for end, row in zip(ends, logits, strict=True)]
            logits = torch.cat(rows)
        self._logits = logits.index_fill(-1, self._never, -torch.inf)
        return self._logits.argmax(-1).tolist()


def check_drafts(drafter: Drafter | None, *, cache: Any = None, sampling: Sampling = GREEDY) -> None:
    """Raise ``KVMMError`` where there is a drafter, and the cache has a budget or layers that cannot forget wrong
    tokens, or the answer is not greedy."""
    if drafter is None:
        return
    if getattr(cache, "retention", None) is not None:
        raise KVMMError("A cache with a budget changes its pages step by step: draft without budget=.")
    if not _takes_tokens_back(cache):
        raise KVMMError(NO_WAY_BACK)
    if not sampling.is_plain:
        raise KVMMError(NO_DRAFTS)


def _takes_tokens_back(cache: Any) -> bool:
    """Whether all layers can be cropped, however long they are: not what slides on, nor recurrent states."""
    layers = getattr(cache, "layers", ())
    return not any(getattr(one, "is_sliding", False) or not getattr(one, "is_croppable", True) for one in layers)


@torch.no_grad()
def generate_with_drafts(
    model: PreTrainedModel,
    inputs: Mapping[str, torch.Tensor],
    cache: Cache,
    max_new_tokens: int,
    drafter: Drafter,
) -> Speculation:
    """Generate after a prompt of one sequence, over a ``cache`` that holds its beginning or nothing.

    Args:
        model: of the cache.
        inputs: the inputs of the whole prompt; its media are read if the cache is empty.
        cache: :class:`kvmm.KVMMCache` or transformers' own; afterwards it holds all but the answer's last token.
        max_new_tokens: longest answer.
        drafter: guesses tokens.

    Raises:
        KVMMError: for several sequences, or a cache with a budget, whose pages change with every call.
    """
    ids = inputs["input_ids"]
    if ids.shape[0] != 1:
        raise KVMMError("Drafts are made for one sequence at a time.")
    check_drafts(drafter, cache=cache)
    ends, text = eos_token_ids(model), ids[0].tolist()
    positions = extended_position_ids(all_position_ids(model, inputs), max_new_tokens)
    steps, past = DraftedSteps(model, cache, positions, drafter), cache.get_seq_length()
    media = {} if past else {n: x for n, x in inputs.items() if not is_per_token(x, inputs)}
    tokens = [steps.choices(text[: past + 1], ids[:, past:], media)[-1]]
    while tokens[-1] not in ends and len(tokens) < max_new_tokens:
        new = steps.step(text + tokens, max_new_tokens - len(tokens))
        ended = next((i for i, token in enumerate(new) if token in ends), None)
        tokens += new if ended is None else new[: ended + 1]
    steps.hold(len(text) + len(tokens) - 1)
    steps.found.tokens = tokens
    return steps.found


def drafter_of(name: str, processor: Any, **loading: Any) -> Drafter:
    """The drafter of a name.

    Args:
        name: "lookup" for :class:`PromptLookup`, else a smaller model, as :func:`kvmm.models.load_model` takes it.
        processor: of the model whose answers are drafted; the tokenizer for a text-only one.
        loading: options of ``load_model``.

    Raises:
        KVMMError: the model cannot be loaded, or has another vocabulary.
    """
    if name == LOOKUP:
        return PromptLookup()
    model, of_draft = load_model(name, **loading)
    vocabularies = [getattr(one, "tokenizer", one).get_vocab() for one in (processor, of_draft)]
    if vocabularies[0] != vocabularies[1]:
        raise KVMMError(f"{name} has another vocabulary, so it cannot draft for this model: choose one of its family.")
    return DraftModel(model)


__all__ = [
    "LOOKUP",
    "NO_DRAFTS",
    "DraftModel",
    "DraftedSteps",
    "Drafter",
    "PromptLookup",
    "Speculation",
    "check_drafts",
    "drafter_of",
    "generate_with_drafts",
]
