"""Running drift measurements: policies against full precision on prompts of text, pages and recordings."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from statistics import fmean, median
from typing import Any

import torch

from kvmm.analysis.drift import answer_metrics
from kvmm.analysis.drift.answer_metrics import GeneratedAnswer
from kvmm.analysis.drift.measure import long_context_tail, packed_length, standard_error, summarise
from kvmm.analysis.drift.report import Bits, DriftReport, PolicyReport
from kvmm.errors import KVMMError
from kvmm.eval.metrics import exact_match
from kvmm.models.caches import DYNAMIC, measured_bits
from kvmm.models.conversation import model_lock
from kvmm.models.documents import Document, answer_tokens
from kvmm.models.forced_text import TOP_K, ForcedText, PositionDrift
from kvmm.policy import KVPolicy


@dataclass(frozen=True)
class DriftPrompt:
    """One prompt to compare policies on.

    Attributes:
        encode: makes the model's inputs; called once, when the prompt's turn comes.
        document: neighbours with an equal value that is not None begin with the same document, which is read once.
        packed: the document's tokens; None for :func:`kvmm.analysis.drift.measure.packed_length`.
        continuation: int64 ``[1, n]`` text to force; None forces the greedy answer of full precision.
        max_new_tokens: longest answer to this prompt; None for the run's.
        forced_only: no answers are compared on this prompt, it only adds positions.
        references: right answers, if known.
        place: ``(page, pages)`` of the page that holds the answer, if known.
    """

    encode: Callable[[], dict[str, torch.Tensor]]
    document: Hashable | None = None
    packed: int | None = None
    continuation: torch.Tensor | None = None
    max_new_tokens: int | None = None
    forced_only: bool = False
    references: tuple[str, ...] = ()
    place: tuple[int, int] | None = None


@dataclass
class _Measurements:
    """Measurements of one policy, or of full precision, over the prompts."""

    drift: list[PositionDrift] = field(default_factory=list)
    bits: list[dict[str, float]] = field(default_factory=list)
    answers: list[GeneratedAnswer] = field(default_factory=list)
    sampled: list[list[GeneratedAnswer]] = field(default_factory=list)
    tiers: list[answer_metrics.TierFlips] = field(default_factory=list)


def device_name(model: Any) -> str:
    """The GPU's name, or "cpu"."""
    return torch.cuda.get_device_name(model.device) if model.device.type == "cuda" else model.device.type


def make_report(
    model: Any,
    processor: Any,
    prompts: Sequence[DriftPrompt],
    policies: Mapping[str, KVPolicy],
    *,
    name: str,
    command: str,
    settings: Mapping[str, Any],
    **options: Any,
) -> DriftReport:
    """:func:`run_drift` with what a report says of its origin: the model's ``name``, the command, its settings."""
    origin = {"name": name, "command": command, "settings": settings}
    return report_of(model, prompts, run_drift(model, processor, prompts, policies, **options), **origin)


def report_of(
    model: Any,
    prompts: Sequence[DriftPrompt],
    measured: Sequence[PolicyReport],
    *,
    name: str,
    command: str,
    settings: Mapping[str, Any],
) -> DriftReport:
    """A report of policies that have been measured; see :func:`make_report`."""
    return DriftReport(
        model=name,
        device=device_name(model),
        dtype=str(model.dtype).removeprefix("torch."),
        command=command,
        versions={package: version(package) for package in ("torch", "transformers")},
        settings=dict(settings),
        prompts=len(prompts),
        policies=tuple(measured),
    )


def run_drift(
    model: Any,
    processor: Any,
    prompts: Sequence[DriftPrompt],
    policies: Mapping[str, KVPolicy],
    *,
    answers: bool = False,
    seeds: int = 0,
    temperature: float = 1.0,
    max_new_tokens: int = 64,
    refusals: Sequence[str] = (),
    top_k: int = TOP_K,
    progress: Callable[[int, int], None] | None = None,
    collected: dict[str, PositionDrift] | None = None,
    answered: dict[str, list[str]] | None = None,
) -> tuple[PolicyReport, ...]:
    """Compare policies with full precision on every prompt.

    Each document is read exactly once and packed under every policy; all forced positions are read in one pass.

    Args:
        model, processor: as ``load_model`` returns them.
        prompts, policies: what to compare; policies by name (:func:`kvmm.models.caches.resolve_policies`).
        answers: also generate a greedy answer with every policy, for length drift, early stop and refusal flips.
        seeds: sampled answers per prompt and policy, for seed sensitivity; 0 for none, else 2 or more.
        temperature: of the sampled answers.
        max_new_tokens: longest answer.
        refusals: beginnings of answers that count as refusals instead of those of :func:`kvmm.eval.metrics.is_refusal`.
        top_k: size of the sets of most probable tokens compared.
        progress: called with (steps done, steps) after every policy on every prompt, full precision included.
        collected: takes the positions of every policy, for :mod:`kvmm.analysis.drift.witnesses`.
        answered: takes the greedy answers of every policy and of ``dynamic``, full precision, if ``answers``.

    Raises:
        KVMMError: for no prompts, or prompts and seeds that leave nothing to compare.
    """
    if not prompts:
        raise KVMMError("There is no prompt to measure drift on.")
    if seeds == 1:
        raise KVMMError("Seed sensitivity needs 2 or more seeds, or 0 to leave it out.")
    measured = {name: _Measurements() for name in (DYNAMIC, *policies)}
    write = AnswerWriter(model, processor, temperature)
    document: Document | None = None
    done = 0
    for index, prompt in enumerate(prompts):
        with model_lock(model):
            inputs = prompt.encode()
            if document is None or prompt.document is None or prompt.document != prompts[index - 1].document:
                packed = packed_length(model, inputs) if prompt.packed is None else prompt.packed
                document = Document(model, inputs, packed)
            compared = answers and not prompt.forced_only
            greedy, longest = None, prompt.max_new_tokens or max_new_tokens
            if prompt.continuation is None or compared:
                greedy = write.tokens(inputs, document.cache(DYNAMIC), longest)
            forced = ForcedText(document, inputs, _forced(prompt, greedy), top_k=top_k)
            for name, one in measured.items():
                policy = policies.get(name, DYNAMIC)
                if name != DYNAMIC:
                    one.drift.append(forced.measure(policy))
                    one.bits.append(measured_bits(document.cache(policy)))
                if compared:
                    cache = document.cache(policy)
                    tokens = greedy if name == DYNAMIC else write.tokens(inputs, cache, longest)
                    one.answers.append(write.answer(tokens))
                    one.tiers += _flips(policy, cache)
                if seeds and not prompt.forced_only:
                    caches = (document.cache(policy) for _ in range(seeds))
                    sampled = [write.tokens(inputs, cache, longest, seed) for seed, cache in enumerate(caches)]
                    one.sampled.append([write.answer(tokens) for tokens in sampled])
                done += 1
                if progress is not None:
                    progress(done, len(prompts) * len(measured))
    if answered is not None:
        answered |= {name: [answer.text for answer in one.answers] for name, one in measured.items()}
    full = measured.pop(DYNAMIC)
    if collected is not None:
        collected |= {name: PositionDrift.pooled(one.drift) for name, one in measured.items()}
    return tuple(
        _policy_report(name, one, full, prompts, temperature, refusals, top_k) for name, one in measured.items()
    )


def run_forced(
    model: Any, prompts: Sequence[DriftPrompt], policies: Mapping[str, KVPolicy], *, top_k: int = TOP_K
) -> Iterator[PolicyReport]:
    """:func:`run_drift` of prompts with a text to force and nothing else, one policy after another.

    Every prompt and its text are read once in full precision and stay in memory, so that a run over many policies can
    keep what it has after each of them.

    Yields:
        the report of each policy, in order.

    Raises:
        KVMMError: for no prompts.
    """
    if not prompts:
        raise KVMMError("There is no prompt to measure drift on.")
    texts = []
    with model_lock(model):
        for prompt in prompts:
            inputs = prompt.encode()
            packed = packed_length(model, inputs) if prompt.packed is None else prompt.packed
            texts.append(ForcedText(Document(model, inputs, packed), inputs, prompt.continuation, top_k=top_k))
    for name, policy in policies.items():
        one = _Measurements()
        with model_lock(model):
            for text in texts:
                cache = text.document.unpacked(policy).pack()
                one.bits.append(measured_bits(cache))
                one.drift.append(text.measure(policy, cache))
        yield _policy_report(name, one, _Measurements(), prompts, 1.0, (), top_k)


def _forced(prompt: DriftPrompt, greedy: torch.Tensor | None) -> torch.Tensor:
    return greedy[None] if prompt.continuation is None else prompt.continuation


def _flips(policy: KVPolicy | str, cache: Any) -> list[answer_metrics.TierFlips]:
    """How restless the controller of a cache with a budget was, if it ran."""
    if policy == DYNAMIC or not policy.budget:
        return []
    flips = answer_metrics.tier_flips(cache.retention_report())
    return [] if flips is None else [flips]


class AnswerWriter:
    """Generates and decodes answers over packed documents."""

    def __init__(self, model: Any, processor: Any, temperature: float):
        self.model = model
        self.tokenizer = getattr(processor, "tokenizer", processor)
        self.temperature = temperature
        eos = model.generation_config.eos_token_id
        self.eos = set() if eos is None else {eos} if isinstance(eos, int) else set(eos)

    def tokens(self, inputs: Mapping[str, torch.Tensor], cache: Any, longest: int, seed: int | None = None):
        if seed is None:
            return answer_tokens(self.model, inputs, cache, longest)
        device = self.model.device
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            torch.manual_seed(seed)
            sampling = {"do_sample": True, "temperature": self.temperature, "top_p": 1.0, "top_k": 0}
            return answer_tokens(self.model, inputs, cache, longest, **sampling)

    def answer(self, tokens: torch.Tensor) -> GeneratedAnswer:
        ids = tokens.tolist()
        ended = bool(ids) and ids[-1] in self.eos
        ids = ids[:-1] if ended else ids
        text = self.tokenizer.decode(ids, skip_special_tokens=True).strip()
        return GeneratedAnswer(tuple(ids), text, ended)


def _policy_report(
    name: str,
    one: _Measurements,
    full: _Measurements,
    prompts: Sequence[DriftPrompt],
    temperature: float,
    refusals: Sequence[str],
    top_k: int,
) -> PolicyReport:
    pooled = PositionDrift.pooled(one.drift)
    bits = {
        name: fmean(values) if (values := [b[name] for b in one.bits if name in b]) else None
        for name in (f.name for f in dataclasses.fields(Bits))
    }
    pairs = (full.answers, one.answers)
    asked = [prompt for prompt in prompts if not prompt.forced_only]
    placed = [i for i, prompt in enumerate(asked) if prompt.place and prompt.references and one.answers]

    def right(answers: Sequence[GeneratedAnswer]) -> list[bool]:
        return [exact_match(answers[i].text, asked[i].references) for i in placed]

    return PolicyReport(
        policy=name,
        bits=Bits(**bits),
        logits=summarise(pooled, top_k),
        kl_error=standard_error(one.drift),
        median_kl=median(float(d.kl.mean(dtype="float64")) for d in one.drift),
        median_top1=median(float(d.top1.mean()) for d in one.drift),
        tail=long_context_tail(pooled),
        length=answer_metrics.length_drift(*pairs) if one.answers else None,
        early_stop=answer_metrics.early_stop(*pairs) if one.answers else None,
        agreement=answer_metrics.answer_agreement(*pairs) if one.answers else None,
        refusals=answer_metrics.refusal_flips(*pairs, refusals) if one.answers else None,
        seeds=answer_metrics.seed_sensitivity(full.sampled, one.sampled, temperature) if one.sampled else None,
        retrieval=(
            answer_metrics.retrieval_raggedness(
                [asked[i].place for i in placed], right(full.answers), right(one.answers)
            )
            if placed
            else None
        ),
        tier_flips=answer_metrics.pooled_flips(one.tiers),
    )


__all__ = ["AnswerWriter", "DriftPrompt", "device_name", "make_report", "report_of", "run_drift", "run_forced"]
