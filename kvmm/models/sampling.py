"""How the next token is chosen: greedily, or by temperature and nucleus with a seed of the answer's own.

One definition for conversations, the command line and the server. The random numbers of an answer come from a generator
of its own on the host, so that a seed gives the same answer whatever else the process does, and whatever other answers
share its steps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from transformers import LogitsProcessor

from kvmm.errors import KVMMError

MAX_TEMPERATURE = 2.0
MAX_TOP_LOGPROBS = 20
MAX_STOP, MAX_STOP_CHARACTERS = 16, 256
MAX_SEED = 2**63 - 1


def is_number(value: object) -> bool:
    """Whether a value from outside is a number that a float can hold, and no truth value."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number beyond those of floats
        return False


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


@dataclass(frozen=True)
class Sampling:
    """How tokens are chosen, and where an answer ends beside the model's own end.

    Args:
        temperature: 0 takes the most likely token; up to 2.
        top_p: tokens are drawn from the smallest set of this probability (nucleus sampling, arXiv 1904.09751).
        seed: of the random numbers; None for another one each time.
        stop: texts that end an answer; they are not part of it.
        logprobs: record the log-probability of every token, and of this many alternatives; None for neither.

    Raises:
        KVMMError: for a value outside these limits.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    logprobs: int | None = None

    def __post_init__(self) -> None:
        if not (is_number(self.temperature) and 0 <= self.temperature <= MAX_TEMPERATURE):
            raise KVMMError(f"temperature must be a number from 0 to {MAX_TEMPERATURE:g}.")
        if not (is_number(self.top_p) and 0 < self.top_p <= 1):
            raise KVMMError("top_p must be a number above 0 and at most 1.")
        if self.seed is not None and not (_is_whole(self.seed) and -MAX_SEED <= self.seed <= MAX_SEED):
            raise KVMMError("seed must be a whole number of at most 63 bits.")
        if self.logprobs is not None and not (_is_whole(self.logprobs) and 0 <= self.logprobs <= MAX_TOP_LOGPROBS):
            raise KVMMError(f"logprobs: the number of alternatives must be from 0 to {MAX_TOP_LOGPROBS}.")
        stops = self.stop
        fits = isinstance(stops, tuple) and len(stops) <= MAX_STOP
        if not fits or not all(isinstance(one, str) and 0 < len(one) <= MAX_STOP_CHARACTERS for one in stops):
            raise KVMMError(f"stop must be up to {MAX_STOP} texts of 1 to {MAX_STOP_CHARACTERS} characters.")

    @property
    def is_greedy(self) -> bool:
        """Whether the most likely token is taken."""
        return self.temperature == 0

    @property
    def is_plain(self) -> bool:
        """Whether the tokens of an answer are those of ``generate`` without sampling, and nothing is recorded."""
        return self.is_greedy and self.logprobs is None


GREEDY = Sampling()


@dataclass(frozen=True)
class Choice:
    """A chosen token; ``logprob`` and the most likely ``top`` (token, log-probability) where they are recorded."""

    token: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


@dataclass
class Sampler:
    """Chooses the tokens of one answer.

    Log-probabilities are the model's own, before temperature and nucleus.
    """

    sampling: Sampling = GREEDY
    generator: torch.Generator = field(default_factory=torch.Generator)

    def __post_init__(self) -> None:
        if self.sampling.seed is None:
            self.generator.seed()
        else:
            self.generator.manual_seed(self.sampling.seed)

    def choose(self, logits: torch.Tensor) -> Choice:
        """A token by the logits ``[V]``, -inf where a token is out of the question."""
        sampling = self.sampling
        if sampling.is_plain:
            return Choice(int(logits.argmax()))
        logits = logits.detach().to("cpu", torch.float32)
        token = int(logits.argmax()) if sampling.is_greedy else self._draw(logits)
        if sampling.logprobs is None:
            return Choice(token)
        logprobs = logits.log_softmax(-1)
        top = logprobs.topk(min(sampling.logprobs, logprobs.numel()))
        pairs = zip(top.indices.tolist(), top.values.tolist(), strict=True)
        return Choice(token, float(logprobs[token]), tuple(pair for pair in pairs if math.isfinite(pair[1])))

    def _draw(self, logits: torch.Tensor) -> int:
        probabilities, order = (logits.double() / self.sampling.temperature).softmax(-1).sort(descending=True)
        total = probabilities.cumsum(-1)
        # the first token that brings the sum to top_p is the last one
        kept = max(1, int((total < self.sampling.top_p * total[-1]).sum()) + 1)
        total = total[:kept]
        drawn = torch.rand((), dtype=torch.float64, generator=self.generator) * total[-1]
        place = int(torch.searchsorted(total, drawn, right=True))
        return int(order[min(place, kept - 1)])


class SamplerProcessor(LogitsProcessor):
    """A :class:`Sampler` inside ``generate``, which then takes the only token that is left.

    Attributes:
        choices: of all steps so far.
    """

    def __init__(self, sampler: Sampler):
        self.sampler = sampler
        self.choices: list[Choice] = []

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self.choices.append(self.sampler.choose(scores[0]))
        chosen = torch.full_like(scores, -torch.inf)
        chosen[0, self.choices[-1].token] = 0
        return chosen


def cut_at_stop(text: str, stop: Sequence[str], start: int = 0) -> tuple[str, bool]:
    """The text up to the first of the stop texts in it, and whether there is one; what lies before ``start`` has none.

    A stop text may begin before ``start``: it is looked for from where it could have begun.
    """
    longest = max(map(len, stop), default=0)
    found = [place for one in stop if (place := text.find(one, max(0, start - longest))) >= 0]
    return (text[: min(found)], True) if found else (text, False)


def held_back(text: str, stop: Sequence[str]) -> int:
    """How many characters at the end of a text may be the beginning of a stop text."""
    for count in range(min(len(text), max(map(len, stop), default=0)), 0, -1):
        if any(one.startswith(text[-count:]) for one in stop):
            return count
    return 0


__all__ = ["GREEDY", "Choice", "Sampler", "SamplerProcessor", "Sampling", "cut_at_stop", "held_back", "is_number"]
