"""How sure a model is of its answer: a probability from the logits of greedy decoding, calibrated on held-out pages.

Decoding computes the log-probability of every token anyway. A few numbers of them go through a logistic map that was
fitted to questions whose answers are known (``training.confidence``) and lies beside the weights, in
``kvmm_confidence.json``. The map is monotone: an answer whose tokens are more probable is never less sure. A model
without such a file says nothing about its confidence.

An answer of any length has one probability. Of a transcription, too, ``mean_token`` is the log-probability of the whole
divided by its tokens, so that length alone makes no answer less sure; tiny-omni's map gives no weight to the
least likely token, which gets worse with every token. It was fitted to answers of a few words: of a transcription it
says whether the page is one that the model reads, and not that all characters are right.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from transformers import LogitsProcessor

from kvmm.bounded_json import parse_json
from kvmm.calibration import model_fingerprint
from kvmm.errors import KVMMError, one_line

if TYPE_CHECKING:
    from kvmm.models.text_layer import TextLayer

FILE_NAME = "kvmm_confidence.json"
FORMAT, FORMAT_VERSION = "kvmm-confidence", 1
MAX_FILE_CHARACTERS = 2**20
UNSURE = "Unsure"
NOT_IN_TEXT = "not in the text of the PDF"
LARGER_MODEL = "Qwen/Qwen2.5-Omni-3B"  # reads pages and hears recordings
ADVICE = f"check it, or ask a larger model, such as --model {LARGER_MODEL}"
# Log-probabilities of sure tokens differ by powers of ten; below this they are all alike.
_SURE = 1e-4
FEATURES = ("first_token", "mean_token", "least_token")  # larger is surer


@dataclass(frozen=True)
class Confidence:
    """How sure the model is of an answer.

    Attributes:
        probability: that the answer is right, calibrated, between 0 and 1; by the model's logits alone.
        unsure: whether that is below the threshold of the model's file, or ``supported`` is False: such an answer is
            shown with a mark.
        supported: whether the answer's numbers and names occur in the text layer of the PDF pages; None where there is
            nothing to compare (:class:`kvmm.models.text_layer.TextLayer`).
    """

    probability: float
    unsure: bool
    supported: bool | None = None

    @property
    def line(self) -> str:
        """What to say of an unsure answer, in a line; empty for a sure one."""
        why = NOT_IN_TEXT if self.supported is False else f"{self.probability:.0%} likely right"
        return f"{UNSURE} ({why}): {ADVICE}." if self.unsure else ""

    def checked(self, answer: str, layer: TextLayer | None) -> Confidence:
        """The same of an answer whose values have been looked for; those that are not in the text make it unsure."""
        supported = None if layer is None else layer.supports(answer)
        return replace(self, unsure=self.unsure or supported is False, supported=supported)

    def to_dict(self) -> dict[str, Any]:
        """Values for JSON; ``supported`` where it is known, ``advice`` where the model is unsure."""
        supported = {} if self.supported is None else {"supported": self.supported}
        advice = {"advice": self.line} if self.unsure else {}
        return {"probability": round(self.probability, 4), "unsure": self.unsure, **supported, **advice}


def best_logprobs(logits: torch.Tensor) -> torch.Tensor:
    """The log-probability of the most likely token: float32 ``[...]`` of logits ``[..., V]`` of any dtype."""
    logits = logits.float()
    return logits.amax(-1) - logits.logsumexp(-1)


class LogprobRecorder(LogitsProcessor):
    """Keeps the log-probability of every greedy choice where the logits are; inside ``generate`` it changes nothing.

    Nothing waits for the device before the answer's end.
    """

    def __init__(self) -> None:
        self._rows: list[torch.Tensor] = []

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self.add(scores[:1])
        return scores

    def add(self, logits: torch.Tensor) -> None:
        """Record the choices by logits ``[n, V]`` of ``n`` tokens that follow each other."""
        self.keep(best_logprobs(logits.detach()))

    def keep(self, logprobs: torch.Tensor) -> None:
        """Record what :func:`best_logprobs` returned, ``[n]``."""
        self._rows.append(logprobs)

    def logprobs(self, count: int) -> list[float]:
        """Those of the first ``count`` tokens."""
        return torch.cat(self._rows)[:count].tolist() if self._rows else []


class BatchLogprobRecorder(LogitsProcessor):
    """As :class:`LogprobRecorder`, of every row of a batch that ``generate`` decodes."""

    def __init__(self) -> None:
        self._steps: list[torch.Tensor] = []  # float32 [B] each

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self._steps.append(best_logprobs(scores.detach()))
        return scores

    def logprobs(self, counts: Sequence[int]) -> list[list[float]]:
        """Of each row those of its first so many tokens; what follows a row's end is padding."""
        if not self._steps:
            return [[] for _ in counts]
        rows = torch.stack(self._steps, dim=1).tolist()
        return [row[:count] for row, count in zip(rows, counts, strict=True)]


def answer_features(logprobs: Sequence[float]) -> dict[str, float]:
    """The numbers that the map weighs.

    Args:
        logprobs: natural log-probabilities of the answer's greedy tokens, the one that ends it included; at least one.

    Returns:
        by name ``-log(1e-4 - logprob)`` of the first token, of the mean and of the least likely token.
    """
    picked = (logprobs[0], sum(logprobs) / len(logprobs), min(logprobs))
    return {name: -math.log(_SURE - min(one, 0.0)) for name, one in zip(FEATURES, picked, strict=True)}


@dataclass(frozen=True)
class ConfidenceMap:
    """From an answer's features to the probability that it is right: a logistic function of their weighted sum.

    Attributes:
        intercept, weights: of the sum; features without a weight do not count.
        unsure_below: answers of a smaller probability are shown as unsure.
        fingerprint: of the model that it was fitted to (:func:`kvmm.calibration.model_fingerprint`).
        metadata: how it was fitted, for people.
    """

    intercept: float
    weights: Mapping[str, float]
    unsure_below: float
    fingerprint: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, value in {"intercept": self.intercept, "unsure_below": self.unsure_below, **self.weights}.items():
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
                raise KVMMError(f"{name} is no finite number")
        if unknown := [name for name in self.weights if name not in FEATURES]:
            raise KVMMError(f"there is no feature {one_line(unknown[0])!r}")
        if falling := [name for name in FEATURES if self.weights.get(name, 0) < 0]:
            raise KVMMError(f"the weight of {falling[0]} is negative")
        if not 0 <= self.unsure_below <= 1:
            raise KVMMError("unsure_below is no probability")

    def probability(self, features: Mapping[str, float]) -> float:
        """The probability that an answer of these features is right."""
        total = self.intercept + sum(weight * features[name] for name, weight in self.weights.items())
        return 1 / (1 + math.exp(-max(-50.0, min(50.0, total))))

    def confidence(self, logprobs: Sequence[float]) -> Confidence | None:
        """How sure an answer is by its tokens' log-probabilities; None for one without a token."""
        if not logprobs:
            return None
        probability = self.probability(answer_features(logprobs))
        return Confidence(probability, probability < self.unsure_below)

    def save(self, path: Path) -> None:
        """Write the file."""
        content = {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "fingerprint": self.fingerprint,
            "intercept": self.intercept,
            "weights": dict(self.weights),
            "unsure_below": self.unsure_below,
            "metadata": dict(self.metadata),
        }
        path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def read_confidence_map(path: Path) -> ConfidenceMap:
    """Read what :meth:`ConfidenceMap.save` wrote.

    Raises:
        KVMMError: the file cannot be read, is of another format, or a value in it is none that it may have.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise KVMMError(f"{path} cannot be read ({one_line(error)}): copy or download it again.") from None
    content = parse_json(text, str(path), MAX_FILE_CHARACTERS)
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise KVMMError(f"{path} is no confidence file: make it with `python -m training.confidence`, or delete it.")
    if content.get("format_version") != FORMAT_VERSION:
        version = one_line(str(content.get("format_version")))
        raise KVMMError(f"{path} has confidence format {version}, this kvmm reads {FORMAT_VERSION}: make it again.")
    try:
        weights, metadata = content["weights"], content.get("metadata") or {}
        if not isinstance(weights, dict) or not isinstance(metadata, dict):
            raise KVMMError("weights or metadata: is of the wrong kind")
        fingerprint = str(content["fingerprint"])
        return ConfidenceMap(content["intercept"], weights, content["unsure_below"], fingerprint, metadata)
    except KeyError as error:
        raise KVMMError(f"{path} is no whole confidence file ({error} is missing): make it again.") from None
    except KVMMError as error:
        raise KVMMError(f"{path} is no whole confidence file ({one_line(error)}): make it again.") from None


def confidence_map_of(model: nn.Module) -> ConfidenceMap | None:
    """The map in the model's folder; None without one, and with a warning for one that was fitted to other weights.

    Raises:
        KVMMError: the file is damaged.
    """
    name = getattr(model, "name_or_path", "")
    path = Path(name or "") / FILE_NAME
    if not name or not path.is_file():
        return None
    found = read_confidence_map(path)
    if found.fingerprint == model_fingerprint(model):
        return found
    warnings.warn(
        f"{path} was fitted to other weights: make it again with `python -m training.confidence`.", stacklevel=2
    )
    return None


__all__ = [
    "ADVICE",
    "FEATURES",
    "FILE_NAME",
    "LARGER_MODEL",
    "NOT_IN_TEXT",
    "UNSURE",
    "BatchLogprobRecorder",
    "Confidence",
    "ConfidenceMap",
    "LogprobRecorder",
    "answer_features",
    "best_logprobs",
    "confidence_map_of",
    "read_confidence_map",
]
