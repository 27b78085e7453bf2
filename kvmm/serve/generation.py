"""One answer on its way: what the engine knows of it, and what its client is told."""

from __future__ import annotations

import re
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers.convert_slow_tokenizer import bytes_to_unicode

from kvmm.cache import KVMMCache
from kvmm.models.confidence import Confidence, LogprobRecorder
from kvmm.models.pieces import Piece
from kvmm.models.sampling import Choice, Sampler, Sampling
from kvmm.models.speculative import DraftedSteps
from kvmm.models.text import TextStream
from kvmm.serve.errors import APIError
from kvmm.serve.prompts import ServedPrompt
from kvmm.serve.protocol import TokenLogprob, Usage

_PART = "\ufffd"  # what a tokenizer shows in place of a part of a character
_BYTES = {c: byte for byte, c in bytes_to_unicode().items()}


@dataclass(frozen=True)
class Delta:
    """New text, and its tokens' log-probabilities where they were asked for."""

    text: str
    logprobs: Sequence[TokenLogprob] = ()


@dataclass(frozen=True)
class Finish:
    """The end of an answer: ``reason`` is "stop" or "length"."""

    reason: str
    usage: Usage


Event = Delta | Finish | APIError


@dataclass(eq=False)
class Generation:
    """One request in the engine.

    Args:
        prompt: what is read.
        sampling: how tokens are chosen.
        max_tokens: longest answer.
        scope: of the prefixes that it may use and leaves.
        tokenizer: of the model.
        tell: takes events, in the engine's thread.
    """

    prompt: ServedPrompt
    sampling: Sampling
    max_tokens: int
    scope: str
    tokenizer: Any
    tell: Callable[[Event], None]
    cancelled: threading.Event = field(default_factory=threading.Event)
    arrived: float = field(default_factory=time.perf_counter)
    cache: KVMMCache | None = None
    positions: torch.Tensor | None = None  # of the prompt and of all tokens that may follow, [1, N] or [k, 1, N]
    pieces: deque[Piece] = field(default_factory=deque)
    tokens: list[int] = field(default_factory=list)
    cached_tokens: int = 0
    alone: bool = False  # its prompt is read again without those of others, because reading them together failed
    steps: DraftedSteps | None = None  # where drafts are checked
    recorder: LogprobRecorder | None = None  # of a greedy answer, where the model has a confidence map
    confidence: Confidence | None = None  # of the whole answer
    nearest_text: str | None = None  # of a PDF, to an answer that it does not have

    def __post_init__(self) -> None:
        self.sampler = Sampler(self.sampling)
        self._text = TextStream(self.tokenizer, self.sampling.stop)
        self._prompt_ids: list[int] | None = None
        self._held: deque[tuple[int, TokenLogprob]] = deque()  # with where in the answer the token's text begins

    def ids(self, device: torch.device) -> torch.Tensor:
        """int64 ``[1, T]``: the tokens of the prompt and of the answer so far."""
        answer = torch.tensor([self.tokens], dtype=torch.long)
        return torch.cat([self.prompt.prompt.ids.cpu(), answer], dim=1).to(device)

    def text_ids(self) -> list[int]:
        """The tokens of the prompt and of the answer so far."""
        if self._prompt_ids is None:
            self._prompt_ids = self.prompt.prompt.ids[0].tolist()
        return self._prompt_ids + self.tokens

    def take(self, choice: Choice, ends: frozenset[int]) -> str | None:
        """Add a token and tell its text; the reason if the answer ends with it."""
        self.tokens.append(choice.token)
        if choice.token in ends:
            return "stop"
        self._tell(choice)
        if self._text.stopped:
            return "stop"
        return "length" if len(self.tokens) >= self.max_tokens else None

    def _tell(self, choice: Choice) -> None:
        if choice.logprob is not None:
            self._held.append((len(self._text.text), logprob_of(self.tokenizer, choice)))
        text = self._text.add(choice.token)
        if text:
            self.tell(Delta(text, self._logprobs_shown()))

    def _logprobs_shown(self) -> tuple[TokenLogprob, ...]:
        """Of the tokens whose text has been shown, or its beginning, since the last call; not of a stop text."""
        shown = []
        while self._held and self._held[0][0] < self._text.shown:
            shown.append(self._held.popleft()[1])
        return tuple(shown)

    def finish(self, reason: str) -> None:
        """Tell the rest of the text and the end."""
        text = self._text.finish()
        layer = self.prompt.prompt.layer
        if self.confidence is not None:
            self.confidence = self.confidence.checked(self._text.text, layer)
        if layer is not None:
            self.nearest_text = layer.nearest(self._text.text)
        logprobs = self._logprobs_shown()
        if not self._text.stopped:  # tokens without text
            logprobs += tuple(logprob for _, logprob in self._held)
        if text or logprobs:
            self.tell(Delta(text, logprobs))
        self.tell(Finish(reason, self.usage()))

    def usage(self) -> Usage:
        """Tokens and bytes so far, and at the end how sure the model is."""
        report = None if self.cache is None else self.cache.memory()
        told = {}
        if report is not None:
            told = {
                "cache_nbytes": report.held_nbytes,
                "cache_nbytes_bf16": report.nbytes_dense,
                "bits_per_value": round(report.bits_per_value, 3),
                "packed_bits_per_value": round(report.packed_bits_per_value, 3),
            }
        if self.confidence is not None:
            sure = self.confidence
            told |= {"confidence": round(sure.probability, 4), "unsure": sure.unsure}
            told |= {} if sure.supported is None else {"supported": sure.supported}
        told |= {} if self.nearest_text is None else {"nearest_text": self.nearest_text}
        drafts = None if self.steps is None else self.steps.found
        drafted, accepted = (0, 0) if drafts is None else (drafts.drafted, drafts.accepted)
        return Usage(self.prompt.length, len(self.tokens), self.cached_tokens, told, accepted, drafted - accepted)


def logprob_of(tokenizer: Any, choice: Choice) -> TokenLogprob:
    """A choice whose log-probability was recorded, with its tokens as text."""

    def shown(token: int) -> tuple[str, bytes]:
        text = tokenizer.decode([token], skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return text, _bytes_of(tokenizer, token, text)

    return TokenLogprob(
        *shown(choice.token), choice.logprob, [(*shown(token), logprob) for token, logprob in choice.top]
    )


def _bytes_of(tokenizer: Any, token: int, text: str) -> bytes:
    """The bytes of a token whose text is ``text``; those of a part of a character are in its name in the vocabulary."""
    if _PART not in text:
        return text.encode("utf-8", "replace")
    name = tokenizer.convert_ids_to_tokens(token)
    if fallback := re.fullmatch(r"<0x([0-9A-Fa-f]{2})>", name):  # SentencePiece's
        return bytes([int(fallback[1], 16)])
    if all(c in _BYTES for c in name):  # byte-level BPE's
        return bytes(_BYTES[c] for c in name)
    return text.encode("utf-8", "replace")


__all__ = ["Delta", "Event", "Finish", "Generation"]
