"""All presets on one document and question: what each stores, how far it moves the answer, how long it takes.

The prompt up to the end of its last medium is the document (without media, all but its last token). It is read exactly,
once, and packed under every policy; the question comes after the packing, as when a document is asked many questions.
Two things are measured of a policy: the next-token distributions along the full-precision answer
(:mod:`kvmm.analysis.drift.measure`), and the answer that it writes itself.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase, StoppingCriteria, StoppingCriteriaList

from kvmm.analysis.common.prefill import one_prompt
from kvmm.analysis.drift.measure import packed_length, summarise
from kvmm.errors import KVMMError
from kvmm.models.caches import DYNAMIC, copy_cache, measured_bits
from kvmm.models.conversation import model_lock
from kvmm.models.documents import Document, answer_tokens
from kvmm.models.forced_text import ForcedText
from kvmm.models.prompting import first_tokens
from kvmm.policy import KVPolicy, get_policy
from kvmm.policy import policies as presets

MAX_NEW_TOKENS = 64


@dataclass(frozen=True)
class MethodRow:
    """One policy.

    Attributes:
        policy, description: its name and line.
        stored_as: what a policy that needs a calibration file stores instead where there is none, else the same name.
        error: why there are no figures; None if there are, and then nothing below is None unless said.
        nbytes, nbytes_dense: bytes that the cache holds after the answer (:mod:`kvmm.cache.memory`), and of the same in
            16 bits.
        ratio: ``nbytes_dense / nbytes``.
        bits: bits per value of the whole cache; ``packed_bits``: of its packed pages alone, None without any.
        media_bits: those of the whole cache of images, video and audio; None without any.
        by_component: bytes by component, as in ``memory().by_component``, without what is reserved.
        kl, kl_max: mean and largest KL(full precision || policy) of the next token, in nats, along the full-precision
            answer.
        top1: share of those positions with the same most probable token.
        positions: how many there are.
        answer: what the policy writes.
        identical: whether its tokens are those of full precision.
        tokens: generated tokens, the end included.
        pack_seconds: of encoding the document that was read; ``answer_seconds``: of reading the question and writing.
    """

    policy: str
    description: str
    stored_as: str
    error: str | None = None
    nbytes: int | None = None
    nbytes_dense: int | None = None
    ratio: float | None = None
    bits: float | None = None
    packed_bits: float | None = None
    media_bits: float | None = None
    by_component: dict[str, int] | None = None
    kl: float | None = None
    kl_max: float | None = None
    top1: float | None = None
    positions: int | None = None
    answer: str | None = None
    identical: bool | None = None
    tokens: int | None = None
    pack_seconds: float | None = None
    answer_seconds: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class MethodsReport:
    """The results of :func:`iter_methods` so far.

    Attributes:
        prompt_tokens, document_tokens: of the prompt, and of its part that is packed.
        answer: of full precision; ``answer_tokens``, ``answer_seconds``: its length and time.
        read_seconds: of reading the document; 0 if it was given.
        rows: one per policy, in the order asked for.
        total: how many there will be.
        stopped: whether it was stopped before that.
    """

    prompt_tokens: int
    document_tokens: int
    answer: str
    answer_tokens: int
    answer_seconds: float
    read_seconds: float
    rows: tuple[MethodRow, ...]
    total: int
    stopped: bool = False

    @property
    def done(self) -> bool:
        """Whether nothing more will come."""
        return self.stopped or len(self.rows) == self.total

    def measured(self) -> tuple[MethodRow, ...]:
        """The rows with figures."""
        return tuple(row for row in self.rows if row.error is None)

    def pareto(self) -> tuple[str, ...]:
        """Names of the policies on the Pareto front: no other has a KL and bytes as small, and one of them smaller.

        By bytes, smallest first.
        """
        rows = sorted(self.measured(), key=lambda row: (row.nbytes, row.kl))
        return tuple(row.policy for row in rows if not any(_beats(other, row) for other in rows))

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        values = asdict(self)
        values["rows"] = [row.to_dict() for row in self.rows]
        return values | {"pareto": list(self.pareto())}


def _beats(one: MethodRow, other: MethodRow) -> bool:
    as_good = one.nbytes <= other.nbytes and one.kl <= other.kl
    return as_good and (one.nbytes < other.nbytes or one.kl < other.kl)


def iter_methods(
    model: Any,
    processor: Any,
    inputs: Mapping[str, torch.Tensor],
    policies: Sequence[str | KVPolicy] | None = None,
    *,
    document: Document | None = None,
    prompt_length: int | None = None,
    max_new_tokens: int = MAX_NEW_TOKENS,
    stop: threading.Event | None = None,
) -> Iterator[MethodsReport]:
    """Measure one policy after another; yields the report first without rows, then after every row.

    It takes the model's lock (:func:`kvmm.models.conversation.model_lock`) by itself, a row at a time, so that others
    get their turn in between: callers must not hold it.

    Args:
        model, processor: as ``load_model`` returns them.
        inputs: of one prompt that ends where the answer begins, as ``encode_question`` returns. What
            ``Conversation.prompt_inputs`` returns ends with an answer: it is cut where the last one begins.
        policies: presets, YAML files or :class:`KVPolicy` objects; None for all presets.
        document: if it has been read already, with the same ``inputs``.
        prompt_length: tokens of the prompt, if the cut is known; None finds it.
        max_new_tokens: longest answer.
        stop: set it to end early, also within an answer; the last report then has ``stopped``.

    Raises:
        KVMMError: for a prompt that is not one sequence, or an unknown policy. What goes wrong with a policy that is
            known, or a lack of memory, is the ``error`` of its row.
    """
    chosen = [get_policy(one) for one in (presets() if policies is None else policies)]
    if not chosen:
        raise KVMMError("There is no policy to compare: name at least one.")
    inputs = question_inputs(processor, one_prompt(model, inputs), prompt_length)
    inputs.pop("position_ids", None)  # kvmm.models.documents computes them, also those of the answer
    stop = stop or threading.Event()
    halt = StoppingCriteriaList([_Stop(stop)])
    tokenizer = getattr(processor, "tokenizer", processor)
    end = model.generation_config.eos_token_id
    ends = set() if end is None else {end} if isinstance(end, int) else set(end)

    def write(cache: Any) -> tuple[torch.Tensor, str, float]:
        begin = time.perf_counter()
        tokens = answer_tokens(model, inputs, cache, max_new_tokens, stopping_criteria=halt)
        seconds = time.perf_counter() - begin
        ids = tokens.tolist()
        text = tokenizer.decode(ids[:-1] if ids and ids[-1] in ends else ids, skip_special_tokens=True).strip()
        return tokens, text, seconds

    with model_lock(model), torch.no_grad():
        begin = time.perf_counter()
        given = document is not None
        if not given:
            # the last token is read after the packing, to predict the first of the answer
            length = min(packed_length(model, inputs), inputs["input_ids"].shape[1] - 1)
            document = Document(model, inputs, length)
        _finish(model)
        read_seconds = 0.0 if given else time.perf_counter() - begin
        full, answer, seconds = write(document.cache(DYNAMIC))
        forced = None if stop.is_set() else ForcedText(document, inputs, full[None])
    prompt = inputs["input_ids"].shape[1]

    def report(rows: Sequence[MethodRow]) -> MethodsReport:
        return MethodsReport(
            prompt, document.length, answer, len(full), seconds, read_seconds, tuple(rows), len(chosen), stop.is_set()
        )

    rows: list[MethodRow] = []
    yield report(rows)
    for policy in chosen:
        if stop.is_set():
            break
        with model_lock(model), torch.no_grad():
            row = _measure(document, forced, policy, full, write)
        if stop.is_set():
            break  # the answer was cut short
        rows.append(row)
        yield report(rows)
    if stop.is_set():
        yield report(rows)


def _measure(
    document: Document, forced: ForcedText, policy: KVPolicy, full: torch.Tensor, write: Callable
) -> MethodRow:
    stored_as = policy.name
    try:
        cache = document.unpacked(policy)
        if policy.uncalibrated is not None and cache.policy != _plain(policy):
            stored_as = policy.uncalibrated
        _finish(document.model)
        begin = time.perf_counter()
        cache.pack()
        _finish(document.model)
        pack_seconds = time.perf_counter() - begin
        drift = summarise(forced.measure(policy, copy_cache(cache)))
        tokens, answer, seconds = write(cache)
        memory, bits = cache.memory(), measured_bits(cache)
    except (KVMMError, torch.OutOfMemoryError) as error:
        reason = str(error) if isinstance(error, KVMMError) else "There is not enough memory on the device."
        return MethodRow(policy.name, policy.description, stored_as, error=reason)
    return MethodRow(
        policy.name,
        policy.description,
        stored_as,
        None,
        memory.held_nbytes,
        memory.nbytes_dense,
        memory.ratio,
        bits["bits"],
        bits.get("packed_bits"),
        bits.get("media_bits"),
        {name: nbytes for name, nbytes in memory.by_component.items() if name != "reserved"},
        drift.kl_mean,
        drift.kl_max,
        drift.top1_agreement,
        drift.positions,
        answer,
        torch.equal(tokens, full),
        len(tokens),
        pack_seconds,
        seconds,
    )


def compare_methods(
    model: Any,
    processor: Any,
    inputs: Mapping[str, torch.Tensor],
    policies: Sequence[str | KVPolicy] | None = None,
    *,
    progress: Callable[[MethodsReport], None] | None = None,
    **options: Any,
) -> MethodsReport:
    """:func:`iter_methods` to the end; ``progress`` gets every report, ``options`` are its other arguments."""
    report = None
    for report in iter_methods(model, processor, inputs, policies, **options):
        if progress is not None:
            progress(report)
    return report


def question_inputs(
    processor: Any, inputs: Mapping[str, torch.Tensor], prompt_length: int | None = None
) -> dict[str, torch.Tensor]:
    """The inputs up to where the last answer begins.

    Args:
        processor: its chat template tells how answers begin.
        inputs: of one prompt, with or without an answer at its end.
        prompt_length: tokens of the prompt; None looks for the template's opening of an answer, and takes everything
            where there is none.

    Raises:
        KVMMError: for a ``prompt_length`` that is not within the inputs.
    """
    ids = inputs["input_ids"]
    length = _answer_start(processor, ids[0].tolist()) if prompt_length is None else prompt_length
    if not 2 <= length <= ids.shape[1]:
        raise KVMMError(f"A prompt of {length} of {ids.shape[1]} tokens cannot be asked: it needs 2 or more.")
    return first_tokens(inputs, length)


def _answer_start(processor: Any, ids: Sequence[int]) -> int:
    text_only = isinstance(processor, PreTrainedTokenizerBase)
    content = "?" if text_only else [{"type": "text", "text": "?"}]
    tokenizer = processor if text_only else processor.tokenizer
    try:
        asked, opened = (
            processor.apply_chat_template(
                [{"role": "user", "content": content}], tokenize=False, add_generation_prompt=opens
            )
            for opens in (False, True)
        )
    except ValueError:  # no chat template: a plain text
        return len(ids)
    if not opened.startswith(asked):
        return len(ids)
    opening = tokenizer(opened[len(asked) :], add_special_tokens=False)["input_ids"]
    for end in range(len(ids), len(opening) - 1, -1) if opening else ():
        if list(ids[end - len(opening) : end]) == opening:
            return end
    return len(ids)


def _finish(model: Any) -> None:
    """Wait for what the device still does, before a clock is read."""
    if model.device.type == "cuda":
        torch.cuda.synchronize(model.device)


def _plain(policy: KVPolicy) -> KVPolicy:
    return replace(policy, uncalibrated=None)


class _Stop(StoppingCriteria):
    """Ends an answer when an event is set."""

    def __init__(self, event: threading.Event):
        self.event = event

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        return torch.full((len(input_ids),), self.event.is_set(), dtype=torch.bool, device=input_ids.device)


__all__ = ["MethodRow", "MethodsReport", "compare_methods", "iter_methods", "question_inputs"]
