"""Which importance ``rd`` is fitted to, chosen by what packing changes in the predictions on prompts held out.

A Fisher matrix says what a small error costs. Errors of one or two bits are not small, and the gradients of a few
prompts may be those of a few tokens, so on some models transforms fitted to queries and output weights are better,
on others worse. Both follow from the same samples, and a few prompts that neither has seen say which it is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any

import torch

from kvmm.calibration.data import Calibration, SiteSamples, site_name
from kvmm.calibration.file import model_fingerprint
from kvmm.codecs.rd import RD
from kvmm.errors import KVMMError
from kvmm.models.documents import Document
from kvmm.models.forced_text import ForcedText
from kvmm.policy import KVPolicy, get_policy

GRADIENT, QUERY = "gradient", "query"
MEASURED = ("rd1", "rd2", "rd3")  # what the file will be used for
_ONE_IN, _MOST = 5, 8  # documents held out

Samples = Mapping[tuple[int, str, int], SiteSamples]


def held_out(documents: Sequence[Any]) -> list[int]:
    """The examples that the choice is measured on, spread over the data; none where there are fewer than five
    documents.

    Args:
        documents: what each example is about; neighbours about the same document are held out together.

    Returns:
        Indices of examples: those of one document in five, of eight documents at most.
    """
    number, numbers = -1, []
    for at, document in enumerate(documents):
        number += not at or document != documents[at - 1]
        numbers.append(number)
    step = max(_ONE_IN, -(-(number + 1) // _MOST))
    return [at for at, own in enumerate(numbers) if own % step == step - 1]


def without_gradients(samples: Samples) -> dict[tuple[int, str, int], SiteSamples]:
    """The samples as :class:`kvmm.calibration.collect.Collector` gives them without gradients."""
    return {site: replace(own, importance=None) for site, own in samples.items()}


class ImportanceChoice:
    """Fits ``rd`` to samples with either importance and compares both on prompts that are not among them.

    A context manager: the fits lie in files of a temporary folder.

    Args:
        model: as ``load_model`` returns it.
        measured: presets that are compared.

    Attributes:
        policies: by importance and preset, after :meth:`fit`.
    """

    def __init__(self, model: Any, measured: Sequence[str] = MEASURED):
        self.model, self.measured = model, measured
        self.policies: dict[tuple[str, str], KVPolicy] = {}
        self._folder = TemporaryDirectory()
        self._sums: dict[tuple[str, str], float] = {}
        self._positions = 0

    def fit(self, samples: Samples) -> None:
        """Fit both to samples that have gradients."""
        for importance, own in ((GRADIENT, samples), (QUERY, without_gradients(samples))):
            path = Path(self._folder.name) / f"{importance}.safetensors"
            tensors = {site_name(RD.name, *site) + n: x for site, one in own.items() for n, x in RD.fit(one).items()}
            Calibration(model_fingerprint(self.model), tensors, {"importance": importance}).save(path)
            for name in self.measured:
                self.policies[importance, name] = get_policy(name, calibration=str(path))
        self._sums, self._positions = dict.fromkeys(self.policies, 0.0), 0

    def __enter__(self) -> ImportanceChoice:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._folder.cleanup()

    def measure(self, text: ForcedText) -> dict[tuple[str, str], float]:
        """KL of both on one prompt and its answer, summed over positions, by importance and preset."""
        return {
            key: float(text.measure(policy, text.document.unpacked(policy).pack()).kl.sum())
            for key, policy in self.policies.items()
        }

    def add(self, inputs: Mapping[str, torch.Tensor], answer: torch.Tensor, document: Document) -> None:
        """Let the choice depend on one prompt and its answer, int64 ``[n]``, too; after :meth:`fit`.

        A prompt that exceeds the model's positions can be calibrated on, but says nothing here.
        """
        try:
            text = ForcedText(document, inputs, answer[None])
        except KVMMError:
            return
        for key, total in self.measure(text).items():
            self._sums[key] += total
        self._positions += text.count

    @property
    def divergence(self) -> dict[str, dict[str, float]]:
        """KL in nats a token, by importance and policy; empty before the first prompt."""
        found: dict[str, dict[str, float]] = {}
        for (importance, name), total in self._sums.items() if self._positions else ():
            found.setdefault(importance, {})[name] = total / self._positions
        return found

    @property
    def best(self) -> str:
        """The importance of the lower KL, as a geometric mean over policies; :data:`GRADIENT` if both are the same. One
        whose KL is no number is the worst."""
        scores = {
            importance: sum(math.log(max(kl, 1e-12)) if math.isfinite(kl) else math.inf for kl in by_policy.values())
            for importance, by_policy in self.divergence.items()
        }
        return min(scores, key=scores.get, default=GRADIENT)


__all__ = ["GRADIENT", "MEASURED", "QUERY", "ImportanceChoice", "held_out", "without_gradients"]
