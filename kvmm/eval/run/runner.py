"""Answers of samples under several policies, as rows; every document is read once.

All policies and all questions of a document share its exact pass. Nothing here knows of files: see
:mod:`kvmm.eval.run.evaluate`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from kvmm import decoding
from kvmm.errors import KVMMError
from kvmm.eval.run.batching import DocumentBatch, EncodedPrompt, MeasuredAnswer, make_prompt
from kvmm.eval.run.perplexity import TextReader
from kvmm.eval.run.records import Row, repetition_rate, sample_hash
from kvmm.eval.tasks.base import Sample, Task
from kvmm.models.caches import new_cache
from kvmm.models.conversation import model_lock
from kvmm.models.families import family_of
from kvmm.models.prompting import encode_question
from kvmm.policy import KVPolicy

GPU_BATCH = 8
"""Samples decoded together on a GPU when nothing else is said; a CPU gains nothing from batches of short answers."""


def default_batch_size(model: Any) -> int:
    """The default number of samples per batch."""
    return GPU_BATCH if model.device.type == "cuda" else 1


@dataclass(frozen=True)
class Settings:
    """How samples are answered.

    Attributes:
        batch_size: samples decoded together; answers are the same as one by one up to the rounding of sums.
        max_new_tokens: length of the longest answer.
        pack_before_question: pack each document before its question is read, which is the harder order: the question
            cannot look at exact keys. Prompts without media are packed with the first token of the answer either way.
        sampling: other arguments of ``generate``; answers are greedy without any.
    """

    batch_size: int
    max_new_tokens: int
    pack_before_question: bool = True
    sampling: Mapping[str, Any] = field(default_factory=dict)


# --------------------------------------------------------------------------------------------------------------------
# Units of work


def units(samples: Sequence[Sample], batch_size: int) -> Iterator[list[list[Sample]]]:
    """Units of work in the order of answering: lists of documents, each a list of its samples.

    A document with at least ``batch_size`` questions is a unit of its own, which is decoded in several batches over one
    reading; documents with fewer are put together until they have ``batch_size`` questions.
    """
    unit: list[list[Sample]] = []
    for document in documents(samples):
        if sum(map(len, unit)) + len(document) > batch_size and unit:
            yield unit
            unit = []
        unit.append(document)
        if sum(map(len, unit)) >= batch_size:
            yield unit
            unit = []
    if unit:
        yield unit


def documents(samples: Sequence[Sample]) -> list[list[Sample]]:
    """Samples by document: neighbours of one group together, samples without a group alone."""
    groups: list[list[Sample]] = []
    for sample in samples:
        if groups and sample.group is not None and groups[-1][0].group == sample.group:
            groups[-1].append(sample)
        else:
            groups.append([sample])
    return groups


def share_of(samples: Sequence[Sample], rank: int, world: int) -> list[Sample]:
    """The samples of one of ``world`` processes: every ``world``-th document."""
    return [sample for document in documents(samples)[rank::world] for sample in document]


# --------------------------------------------------------------------------------------------------------------------
# Answers


class SampleRunner:
    """Answers samples with one model; ``unit`` is one unit of work under all policies."""

    def __init__(
        self,
        model: Any,
        processor: Any,
        task: Task,
        policies: Mapping[str, str | KVPolicy],
        settings: Settings,
        stop: threading.Event | None = None,
    ):
        self.model, self.processor, self.task, self.policies, self.settings = model, processor, task, policies, settings
        self.stop = stop or threading.Event()
        for policy in policies.values():
            new_cache(model, policy)  # raises now for a policy that does not fit the model, instead of in every sample
        config = model.config.get_text_config(decoder=True)
        self.window = getattr(config, "max_position_embeddings", None) or 1 << 30
        self.input_modalities = family_of(model.config).modalities

    def unit(self, unit: Sequence[Sequence[Sample]], done: Mapping[str, Any]) -> Iterator[Row]:
        """The rows of a unit that are not done yet: ``done`` holds the doc_ids of each policy, or nothing of it."""
        wanted = {
            name: {s.doc_id for document in unit for s in document if s.doc_id not in done.get(name, ())}
            for name in self.policies
        }
        if self.task.reads_on:
            for sample in (sample for document in unit for sample in document):
                yield from self._read_on(sample, wanted)
            return
        needed = set().union(*wanted.values())
        prompts: dict[str, EncodedPrompt] = {}
        for document in unit:
            asked = [sample for sample in document if sample.doc_id in needed]
            encoded = self._encode(asked)
            if self.stop.is_set():  # an interrupted read is no failure of its sample
                return
            for sample, prompt in zip(asked, encoded, strict=True):
                if isinstance(prompt, EncodedPrompt):
                    prompts[sample.doc_id] = prompt
                    continue
                for name in self.policies:
                    if sample.doc_id in wanted[name]:
                        yield self._failed(sample, name, prompt)
        readable = [[sample for sample in document if sample.doc_id in prompts] for document in unit]
        for packs in (True, False):
            part = [[s for s in document if prompts[s.doc_id].packs is packs] for document in readable]
            part = [document for document in part if document]
            # without a document each prompt is read by itself
            part = part if packs else [[sample] for document in part for sample in document]
            if part:
                yield from self._answer(part, prompts, wanted)

    def _encode(self, asked: Sequence[Sample]) -> list[EncodedPrompt | str]:
        """The prompts of one document's samples; an error line instead of a prompt that cannot be made."""
        if not asked:
            return []
        try:
            with decoding.stopped_by(self.stop):
                images, audio, video = asked[0].load_images(), asked[0].load_audio(), asked[0].load_video()
            for kind, present in (("image", images), ("audio", audio is not None), ("video", video is not None)):
                if present and kind not in self.input_modalities:
                    raise KVMMError(f"the model reads {', '.join(('text', *self.input_modalities))}, not {kind}")
        except Exception as error:
            return [reason(error)] * len(asked)
        prompts: list[EncodedPrompt | str] = []
        for sample in asked:
            try:
                media = (images, audio, video)
                prompts.append(self.prompt(encode_question(self.model, self.processor, sample.question, *media)))
            except Exception as error:
                prompts.append(reason(error))
        return prompts

    def prompt(self, inputs: Mapping[str, Any]) -> EncodedPrompt:
        """A prompt from the inputs of one sequence. Raises ``KVMMError`` if the model's window cannot hold it."""
        with model_lock(self.model):
            prompt = make_prompt(self.model, inputs, pack_first=self.settings.pack_before_question)
        if prompt.length + self.settings.max_new_tokens > self.window:
            raise KVMMError(
                f"the prompt has {prompt.length} tokens and the answer may have "
                f"{self.settings.max_new_tokens}; the model's window holds {self.window}"
            )
        return prompt

    def _answer(
        self, part: Sequence[Sequence[Sample]], prompts: Mapping[str, EncodedPrompt], wanted: Mapping[str, set[str]]
    ) -> Iterator[Row]:
        """Rows of readable documents; all of them are packed before the question, or none is."""
        samples = [(number, sample) for number, document in enumerate(part) for sample in document]
        given: dict[str, set[str]] = {name: set() for name in self.policies}
        name: str | None = None  # the policy in hand
        try:
            with model_lock(self.model):
                batch = DocumentBatch(self.model, [prompts[document[0].doc_id] for document in part])
            for name, policy in self.policies.items():
                pending = [(number, sample) for number, sample in samples if sample.doc_id in wanted[name]]
                for start in range(0, len(pending), self.settings.batch_size):
                    chunk = pending[start : start + self.settings.batch_size]
                    begin = time.perf_counter()
                    with model_lock(self.model):
                        answers = batch.answers(
                            policy,
                            [prompts[sample.doc_id] for _, sample in chunk],
                            [number for number, _ in chunk],
                            self.settings.max_new_tokens,
                            self.stop,
                            **self.settings.sampling,
                        )
                    if self.stop.is_set():
                        return
                    seconds = (time.perf_counter() - begin) / len(chunk)
                    for (_, sample), answer in zip(chunk, answers, strict=True):
                        row = self._row(sample, name, prompts[sample.doc_id], answer, seconds)
                        given[name].add(sample.doc_id)
                        yield row
                batch.forget(policy)
        except Exception as error:
            problem = reason(error)
        else:
            return
        left = {name: wanted[name] - given[name] for name in self.policies}
        batch = None  # its caches are freed before the next attempt
        # an error under one policy concerns that policy; an error while documents are read concerns all
        failed = self.policies if name is None else (name,)
        for _, sample in samples:
            if len(samples) > 1:
                again = {n: left[n] & {sample.doc_id} if n in failed else set() for n in self.policies}
                if any(again.values()):
                    yield from self._answer([[sample]], prompts, again)
                continue
            for one in failed:
                if sample.doc_id in left[one]:
                    yield self._failed(sample, one, problem)
        left |= {one: set() for one in failed}
        if any(left.values()):
            yield from self._answer(part, prompts, left)

    def _read_on(self, sample: Sample, wanted: Mapping[str, set[str]]) -> Iterator[Row]:
        """The rows of a text whose likelihood is measured: its beginning is read once for all policies."""
        task, tokenizer = self.task, getattr(self.processor, "tokenizer", self.processor)
        reader: TextReader | None = None
        for name in (name for name in self.policies if sample.doc_id in wanted[name]):
            if self.stop.is_set():
                return
            try:
                with model_lock(self.model):
                    if reader is None:
                        sizes = (task.context, task.tokens, self.window)
                        reader = TextReader(self.model, tokenizer, sample.question, *sizes)
                    read = reader.read(self.policies[name], task.stride)
                    reader.batch.forget(self.policies[name])
            except Exception as error:
                yield self._failed(sample, name, reason(error))
                continue
            row = {**self._head(sample, name), "filtered_resps": "", **read}
            yield {**row, "error": None, "metadata": dict(sample.metadata)}

    def _head(self, sample: Sample, policy: str) -> Row:
        return {
            "doc_id": sample.doc_id,
            "task": self.task.name,
            "policy": policy,
            "input": sample.question,
            "target": list(sample.answers),
            "doc_hash": sample_hash(sample.question, sample.answers),
            "group": sample.group,
        }

    def _row(self, sample: Sample, policy: str, prompt: EncodedPrompt, answer: MeasuredAnswer, seconds: float) -> Row:
        tokenizer = getattr(self.processor, "tokenizer", self.processor)
        text = tokenizer.decode(answer.tokens, skip_special_tokens=True).strip()
        return {
            **self._head(sample, policy),
            "filtered_resps": text,
            "token_counts": {"prompt": prompt.length, "output": len(answer.tokens)},
            **self.task.score(sample, text),
            "kv_bytes": answer.kv_bytes,
            "kv_bytes_bf16": answer.kv_bytes_bf16,
            "bits_per_value": 16 * answer.kv_bytes / answer.kv_bytes_bf16,
            "packed_bits_per_value": answer.packed_bits,
            "tokens_by_modality": answer.tokens_by_modality,
            "ttft_s": answer.ttft,
            "tpot_s": answer.tpot,
            "seconds": seconds,
            "output_tokens": len(answer.tokens),
            "repetition_rate": repetition_rate(answer.tokens),
            **({} if answer.confidence is None else {"confidence": round(answer.confidence.probability, 6)}),
            "error": None,
            "metadata": dict(sample.metadata),
        }

    def _failed(self, sample: Sample, policy: str, problem: str) -> Row:
        return {
            **self._head(sample, policy),
            "filtered_resps": "",
            "token_counts": {"prompt": 0, "output": 0},
            "output_tokens": 0,
            "error": problem,
            "metadata": dict(sample.metadata),
        }


def reason(error: Exception) -> str:
    """The error of a sample as one line.

    Raises:
        KVMMError: the GPU failed, after which it answers nothing.
    """
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return "memory ran out: use a smaller --batch-size or a policy with fewer bits"
    text = " ".join(str(error).split())[:300]
    if isinstance(error, torch.AcceleratorError):
        raise KVMMError(f"The GPU failed: {text}. What is written is kept; the same command goes on.") from error
    is_expected = isinstance(error, (KVMMError, OSError))
    return text if text and is_expected else f"{type(error).__name__}: {text}".removesuffix(": ")


def answer_samples(
    model: Any,
    processor: Any,
    task: Task,
    samples: Sequence[Sample],
    policies: Mapping[str, str | KVPolicy],
    *,
    batch_size: int | None = None,
    max_new_tokens: int | None = None,
    pack_before_question: bool = True,
    done: Mapping[str, Any] | None = None,
    stop: threading.Event | None = None,
) -> Iterator[Row]:
    """Rows as they come: all policies of a unit of samples, then the next unit.

    Args:
        policies: from :func:`kvmm.models.caches.resolve_policies`.
        batch_size, max_new_tokens, pack_before_question: see :class:`Settings`; None takes :func:`default_batch_size`
            and the task's length.
        done: for each policy the doc_ids to leave out.
        stop: once it is set, the sample in hand is dropped and the iterator ends.

    Raises:
        KVMMError: a policy does not fit the model. What is wrong with a single sample is the ``error`` of its rows.
    """
    settings = make_settings(model, task, batch_size, max_new_tokens, pack_before_question)
    runner = SampleRunner(model, processor, task, policies, settings, stop)
    for unit in units(samples, settings.batch_size):
        if runner.stop.is_set():
            return
        yield from runner.unit(unit, done or {})


def make_settings(
    model: Any, task: Task, batch_size: int | None, max_new_tokens: int | None, pack_before_question: bool
) -> Settings:
    """Settings, with defaults for values that are None."""
    return Settings(
        batch_size or default_batch_size(model), max_new_tokens or task.max_new_tokens, pack_before_question
    )


__all__ = [
    "SampleRunner",
    "Settings",
    "answer_samples",
    "default_batch_size",
    "documents",
    "make_settings",
    "share_of",
    "units",
]
