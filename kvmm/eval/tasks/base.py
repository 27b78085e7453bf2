"""The parts of a benchmark: samples, sets of samples, and the task that loads and scores them.

A task turns a source (a file, a folder, a data set's id) into samples, and predictions into scores. It never sees a
model. Whatever is wrong with a single item ends in ``SampleSet.skipped`` with a reason; only a source that cannot be
read at all raises.
"""

from __future__ import annotations

import inspect
import os
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import numpy as np
from PIL import Image

from kvmm.media import Frames, load_audio, load_image, load_pdf, load_video

MediaSource = str | os.PathLike[str] | bytes | Image.Image | tuple[int, np.ndarray] | Callable[[], Any]
"""A path, a file's bytes, a Pillow image, ``(sample_rate, samples)``, or a function that returns one of these."""


@dataclass(frozen=True, eq=False)
class Sample:
    """One question. Media are sources and opened only by :meth:`load_images`, :meth:`load_audio`, :meth:`load_video`.

    Attributes:
        doc_id: unique in its set, the same in every run.
        question: the whole prompt text, the benchmark's suffix included; may be empty when ``audio`` asks it.
        answers: accepted references; never empty, except where the task says that it needs none.
        images: sources, in the order in which the model sees them, before the question; the path of a PDF stands for
            its pages.
        audio, video: a source or None; the model sees the video first.
        sampling: ``fps`` and ``max_frames`` of the video, as :func:`kvmm.media.load_video` takes them.
        group: samples of equal group have the same images, audio and video and are neighbours in their set; None when
            nothing is known to be shared.
        metadata: plain JSON values: the type of the question, choices, page ...
    """

    doc_id: str
    question: str
    answers: tuple[str, ...]
    images: tuple[MediaSource, ...] = ()
    audio: MediaSource | None = None
    video: MediaSource | None = None
    sampling: Mapping[str, Any] = field(default_factory=dict)
    group: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def load_images(self) -> list[Image.Image]:
        """The images, RGB, a PDF as its pages. Raises ``KVMMError`` for one that is missing or damaged."""
        return [image for source in self.images for image in _pages(opened(source))]

    def load_audio(self) -> np.ndarray | None:
        """Mono samples at 16 kHz, float32 ``[n]``, or None. Raises ``KVMMError`` as ``kvmm.media.load_audio`` does."""
        return None if self.audio is None else load_audio(opened(self.audio))

    def load_video(self) -> Frames | None:
        """The sampled frames, or None. Raises ``KVMMError`` as ``kvmm.media.load_video`` does."""
        return None if self.video is None else load_video(opened(self.video), **self.sampling)


def opened(source: MediaSource) -> Any:
    """A source that ``kvmm.media`` takes: functions are called, anything else is returned."""
    return source() if callable(source) else source


def _pages(source: Any) -> list[Image.Image]:
    """The pages of a PDF, given by its path, or one image."""
    is_pdf = isinstance(source, (str, os.PathLike)) and os.fspath(source).lower().endswith(".pdf")
    return load_pdf(source) if is_pdf else [load_image(source)]


@dataclass(frozen=True, eq=False)
class SampleSet:
    """The samples of a source, and what was left out of it.

    Attributes:
        name: the task's name.
        source: where the samples come from, as text.
        samples: in the source's order, those of one group brought together where the first of them stands.
        skipped: ``(doc_id, reason)`` for each item left out; a reason is "kind: detail" or only a kind.
    """

    name: str
    source: str
    samples: Sequence[Sample]
    skipped: Sequence[tuple[str, str]] = ()

    def __len__(self) -> int:
        return len(self.samples)

    def __iter__(self) -> Iterator[Sample]:
        return iter(self.samples)

    def skipped_by_kind(self) -> dict[str, int]:
        """How many items were left out for each kind of reason, most frequent first."""
        return dict(Counter(reason.split(":", 1)[0] for _, reason in self.skipped).most_common())

    def summary(self) -> str:
        """One line for people: how many questions there are and what was left out."""
        line = f"{self.name}: {len(self.samples)} question{'s' * (len(self.samples) != 1)} from {self.source}"
        if not self.skipped:
            return line
        kinds = ", ".join(f"{count} {kind}" for kind, count in self.skipped_by_kind().items())
        return f"{line}; {len(self.skipped)} left out ({kinds})"


class Scored(NamedTuple):
    """One answered sample: what :meth:`Task.score` returned, and the prediction, which corpus metrics read again."""

    sample: Sample
    scores: Mapping[str, float]
    prediction: str


LOWER_IS_BETTER = frozenset({"cer", "wer", "rejected"})  # metrics of an answer; all others are to be high


class Task(ABC):
    """A benchmark. Instances hold options only and can be pickled.

    Attributes:
        name: as on the command line.
        metric: the headline metric, a key of what :meth:`aggregate` returns; higher is better.
        max_new_tokens: how long an answer may be.
        mini: the folder in ``assets/mini`` that ``"mini"`` means, or None.
        default_source: what is loaded when no source is given, or None when one must be.
        options: how each option of the class is read from text.
        recorded: metrics of an answer that are kept as they were recorded, because scoring it again costs a judge's
            work or gives another value.
        reads_on: samples are texts to read on, not questions to answer: the scores come from their likelihood. Such a
            task has ``context``, ``tokens`` and ``stride``, as :class:`~kvmm.eval.tasks.pg19.PG19`.
    """

    name: str  # the class has one; an instance with options has them in it
    metric: ClassVar[str]
    max_new_tokens: int
    mini: ClassVar[str | None] = None
    default_source: ClassVar[str | None] = None
    options: ClassVar[Mapping[str, Callable[[str], Any]]] = {}
    recorded: ClassVar[tuple[str, ...]] = ()
    reads_on: ClassVar[bool] = False

    def option_values(self) -> dict[str, Any]:
        """The options of this instance by their names, as plain JSON values; functions by their dotted paths."""
        names = inspect.signature(type(self)).parameters
        return {name: _plain(getattr(self, name)) for name in names if hasattr(self, name)}

    @abstractmethod
    def load(self, source: str | os.PathLike[str], *, split: str | None = None, limit: int | None = None) -> SampleSet:
        """The samples of a source.

        Args:
            source: a file or folder in the official format, parquet, a data set's id, or ``"mini"``.
            split: the part of the source; default the task's own choice.
            limit: at most this many samples, the first ones.

        Raises:
            KVMMError: the source cannot be read at all, or holds no usable item.
        """

    @abstractmethod
    def score(self, sample: Sample, prediction: str) -> dict[str, float]:
        """Metrics of one answer; corpus metrics that need all answers appear only in :meth:`aggregate`."""

    @abstractmethod
    def aggregate(self, scored: Sequence[Scored]) -> dict[str, float]:
        """Metrics of all answers, :attr:`metric` among them (0 for an empty list); parts are named "metric/part".

        The metric is left out where there are answers and none of them was scored.
        """


def _plain(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    if isinstance(value, (set, frozenset)):
        return sorted(map(_plain, value))
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    named = value if hasattr(value, "__qualname__") else type(value)
    return f"{named.__module__}.{named.__qualname__}"


def mean(values: Iterable[float]) -> float:
    """Arithmetic mean, 0 of nothing."""
    values = list(values)
    return sum(values) / len(values) if values else 0.0


def mean_by(scored: Iterable[Scored], metric: str, key: Callable[[Sample], Any]) -> dict[str, float]:
    """The mean of one metric for each value of ``key``, as "metric/value", in order of the names.

    Samples that lack the metric do not count, nor do those whose key is None.
    """
    parts: dict[str, list[float]] = {}
    for sample, scores, _ in scored:
        if metric in scores and (part := key(sample)) is not None:
            parts.setdefault(str(part), []).append(float(scores[metric]))
    return {f"{metric}/{part}": mean(values) for part, values in sorted(parts.items())}
