"""The progress of an answer, which a conversation yields while it generates."""

from __future__ import annotations

import time
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
    ``ttft`` the time to the first token, in seconds, None before it; ``tokens_per_second`` the rate after the first
    token, 0.0 until there are two. ``memory`` is None while the cache is empty, and for "dynamic", which is not
    measured. ``token_ids`` are all generated tokens, the one that ends the answer included. ``reading`` says how far
    the prompt has been read, None once there is a token. ``key_norms`` are those of all tokens so far, where the
    conversation records them. ``choices`` has the log-probabilities of ``token_ids`` where they were asked for.
    ``usage`` and ``logprobs`` are what a server told of the answer, where one gave it (``logprobs``: its tokens, each
    a :class:`kvmm.serve.protocol.TokenLogprob`, None if it was not asked for them); ``speculation`` is what drafts took
    and gave.
    ``confidence`` says at the end how sure the model is of a greedy answer, where it has a calibrated file for that,
    and whether the text layer of PDF pages has the answer's numbers and names; ``nearest_text`` is at the end the
    passage of that text which an answer without them misses by a few characters, if there is one
    (:meth:`kvmm.models.text_layer.TextLayer.nearest`).
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
    spread = times[-1] - times[0] if len(times) > 1 else 0.0
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
        tokens_per_second=(len(times) - 1) / spread if spread > 0 else 0.0,
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
    )


__all__ = ["Progress", "progress_of"]
