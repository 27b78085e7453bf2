"""The progress of an answer, which a conversation yields while it generates."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kvmm.cache import MemoryReport
from kvmm.cache.key_norms import KeyNormRecorder, KeyNorms
from kvmm.models.confidence import Confidence
from kvmm.models.generation import Reading, Worker
from kvmm.models.sampling import Choice, cut_at_stop, held_back
from kvmm.models.speculative import Speculation


@dataclass(frozen=True)
class Progress:
    """How far an answer has come.

    ``text`` is the whole answer so far; ``tokens`` how many were generated; ``seconds`` the time since the question;
    ``ttft`` the time to the first token, in seconds, None before it; ``first_step`` the seconds of the step behind it,
    which also packs what was read, None until it is done; ``tokens_per_second`` the rate of the steps after that one,
    of that one where there are no others, 0.0 until there are two tokens. ``memory`` is None while the cache is empty,
    and for "dynamic", which is not measured. ``token_ids`` are all generated tokens, the one that ends the answer
    included. ``reading`` says how far the prompt has been read, None once there is a token. ``key_norms`` are those of
    all tokens so far, where the conversation records them. ``choices`` has the log-probabilities of ``token_ids`` where
    they were asked for. ``usage`` and ``logprobs`` are what a server told of the answer, where one gave it
    (``logprobs``: its tokens, each a :class:`kvmm.serve.protocol.TokenLogprob`, None if it was not asked for them);
    ``speculation`` is what drafts took and gave. ``confidence`` says at the end how sure the model is of a greedy
    answer, where it has a calibrated file for that, and whether the text layer of PDF pages has the answer's numbers
    and names; ``nearest_text`` is at the end the passage of that text which an answer without them misses by a few
    characters, if there is one (:meth:`kvmm.models.text_layer.TextLayer.nearest`).
    """

    text: str
    tokens: int
    seconds: float
    ttft: float | None
    tokens_per_second: float
    memory: MemoryReport | None
    done: bool
    stopped: bool
    token_ids: tuple[int, ...] = ()
    reading: Reading | None = None
    key_norms: KeyNorms | None = None
    choices: tuple[Choice, ...] = ()
    usage: Any = None
    logprobs: tuple[Any, ...] | None = None
    speculation: Speculation | None = None
    confidence: Confidence | None = None
    nearest_text: str | None = None
    first_step: float | None = None


def step_times(times: Sequence[float], count: int | None = None) -> tuple[float | None, float]:
    """The seconds of the first step behind the first token, and the rate of tokens of the steps after it.

    Args:
        times: of the tokens, ascending; those of one step, as drafts give them, have one time.
        count: how many tokens there were, where some have no time of their own; those are taken to be among the last.

    Returns:
        ``first_step`` and ``tokens_per_second`` of :class:`Progress`.
    """
    first = bisect_right(times, times[0]) if times else 0
    if first == len(times):
        return None, 0.0
    seconds = times[first] - times[0]
    rest = bisect_right(times, times[first])
    count = len(times) if count is None else count
    if rest == len(times):
        return seconds, max(count - first, 0) / seconds
    return seconds, max(count - rest, 0) / (times[-1] - times[first])


def progress_of(
    worker: Worker,
    processor: Any,
    begin: float,
    key_norms: KeyNormRecorder | None = None,
    *,
    done: bool = False,
    stopped: bool = False,
) -> Progress:
    """The output of a worker so far.

    Args:
        worker: of the answer.
        processor: of the model; the tokenizer for a text-only one.
        begin: the time of the question, of ``time.perf_counter``.
        key_norms: the recorder of the conversation, if it has one.
        done, stopped: whether this is the last one, and whether the answer was stopped.
    """
    times, tokenizer = worker.times, getattr(processor, "tokenizer", processor)
    first_step, rate = step_times(times)
    text = tokenizer.decode(worker.tokens, skip_special_tokens=True)
    text = cut_at_stop(text, worker.stop_texts)[0]
    if not done:
        text = text[: len(text) - held_back(text, worker.stop_texts)]
    text = text.strip()
    choices = () if worker.sampler is None else tuple(worker.sampler.choices[: len(worker.tokens)])
    finished, layer = done and not stopped, worker.prompt.layer
    confidence = worker.confidence() if finished else None
    return Progress(
        text=text if done else text.rstrip("\ufffd"),  # a character still waiting for its last bytes
        tokens=len(worker.tokens),
        seconds=time.perf_counter() - begin,
        ttft=times[0] - begin if times else None,
        tokens_per_second=rate,
        memory=worker.memory,
        done=done,
        stopped=stopped,
        token_ids=tuple(worker.tokens),
        reading=None if done else worker.reading,
        key_norms=None if key_norms is None else key_norms.norms,
        choices=choices,
        speculation=worker.speculation,
        confidence=None if confidence is None else confidence.checked(text, layer),
        nearest_text=layer.nearest(text) if finished and layer is not None else None,
        first_step=first_step,
    )


__all__ = ["Progress", "progress_of", "step_times"]
