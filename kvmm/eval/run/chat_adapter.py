"""The adapter for other evaluators: chats with images and recordings, answered as ``kvmm eval`` answers samples."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from kvmm.errors import KVMMError
from kvmm.eval.run.batching import EncodedPrompt
from kvmm.eval.run.records import Row
from kvmm.eval.run.runner import SampleRunner, Settings, reason, units
from kvmm.eval.tasks.base import Sample
from kvmm.media import load_audio, load_image, load_video
from kvmm.models.prompting import encode_messages, first_tokens
from kvmm.policy import KVPolicy

AHEAD = 4
"""Batches that are encoded together, so that neighbours that ask about the same document share its reading."""

_SAMPLING = ("temperature", "top_p", "top_k")
_KNOWN = {"max_new_tokens", "max_gen_toks", "do_sample", "num_beams", "until", *_SAMPLING}


@dataclass(frozen=True)
class Decoding:
    """How the answers to some chats are decoded.

    Attributes:
        max_new_tokens: length of the longest answer.
        until: an answer ends before the first of these texts.
        sampling: arguments of ``generate``; none is greedy.
        ignored: names of settings that have no effect here.
    """

    max_new_tokens: int
    until: tuple[str, ...] = ()
    sampling: tuple[tuple[str, Any], ...] = ()
    ignored: tuple[str, ...] = ()

    @classmethod
    def of(cls, settings: Mapping[str, Any] | None, max_new_tokens: int) -> Decoding:
        """From the generation settings of a task of lmms-eval or lm-eval.

        Args:
            settings: ``max_new_tokens``, ``until``, ``do_sample``, ``temperature``, ``top_p``, ``top_k`` ...
            max_new_tokens: where the settings name no length.

        Raises:
            KVMMError: for beam search, or a length that is no positive number.
        """
        settings = {name: value for name, value in (settings or {}).items() if value is not None}
        if settings.get("num_beams", 1) != 1:
            raise KVMMError("kvmm decodes without beam search: set num_beams=1.")
        length = settings.get("max_new_tokens", settings.get("max_gen_toks", max_new_tokens))
        if isinstance(length, bool) or not isinstance(length, (int, float)) or length < 1:
            raise KVMMError(f"max_new_tokens must be a number of tokens, 1 or more, not {length!r}.")
        until = settings.get("until", ())
        until = (until,) if isinstance(until, str) else tuple(until)
        # temperature 0 is how tasks say greedy, whatever do_sample is
        warm = settings.get("temperature", 1.0 if settings.get("do_sample") else 0.0) > 0
        sampling: dict[str, Any] = {}
        if warm and settings.get("do_sample", True):
            sampling = {"do_sample": True} | {name: settings[name] for name in _SAMPLING if name in settings}
        ignored = tuple(sorted(set(settings) - _KNOWN))
        return cls(int(length), tuple(end for end in until if end), tuple(sampling.items()), ignored)

    def cut(self, text: str) -> str:
        """An answer up to its first stop text."""
        for end in self.until:
            text = text.split(end, 1)[0]
        return text.strip()


def answer_chats(
    model: Any,
    processor: Any,
    policy: str | KVPolicy,
    chats: Sequence[Sequence[Mapping[str, Any]] | Any],
    decoding: Decoding,
    *,
    batch_size: int = 1,
    pack_before_question: bool = True,
) -> Iterator[Row]:
    """Rows as of ``kvmm eval``, without scores, in the order of the chats; ``filtered_resps`` is the answer.

    What is wrong with a single chat is the ``error`` of its row.

    Args:
        policy: as :func:`kvmm.models.caches.resolve_policies` returns it.
        chats: messages ``{"role": ..., "content": [...]}`` with parts ``{"type": "text", "text": ...}``, or
            ``"image"``, ``"audio"`` and ``"video"`` with their source as ``"url"``; or functions that return the
            messages, which are called when it is their turn.
        batch_size: chats decoded together.
        pack_before_question: see :class:`kvmm.eval.run.runner.Settings`.

    Raises:
        KVMMError: the policy does not fit the model, or a chat shows what the model cannot read.
    """
    settings = Settings(batch_size, decoding.max_new_tokens, pack_before_question, dict(decoding.sampling))
    runner = _ChatRunner(model, processor, policy, settings)
    for start in range(0, len(chats), AHEAD * batch_size):
        window = chats[start : start + AHEAD * batch_size]
        samples = runner.take(window)
        rows = {}
        for unit in units(samples, batch_size):
            for row in runner.unit(unit, {}):
                rows[row["doc_id"]] = {**row, "filtered_resps": decoding.cut(row["filtered_resps"])}
        yield from (rows[sample.doc_id] for sample in samples)


class _Unscored:
    """A task without scores: the caller scores the answers."""

    name = "chat"
    reads_on = False

    @staticmethod
    def score(sample: Sample, prediction: str) -> dict[str, float]:
        return {}


class _ChatRunner(SampleRunner):
    """A :class:`SampleRunner` with prompts from messages."""

    def __init__(self, model: Any, processor: Any, policy: str | KVPolicy, settings: Settings):
        name = policy if isinstance(policy, str) else policy.name
        super().__init__(model, processor, _Unscored(), {name: policy}, settings)
        self._prompts: dict[str, EncodedPrompt | str] = {}

    def take(self, chats: Sequence[Any]) -> list[Sample]:
        """Encode chats; chats about the same document (equal tokens and pixels) get the same group."""
        self._prompts.clear()
        samples = []
        for number, chat in enumerate(chats):
            messages = chat() if callable(chat) else chat
            sample = Sample(str(number), "", ())
            try:
                prompt = self._prompts[sample.doc_id] = self._prompt(messages)
            except _Unreadable as error:
                raise KVMMError(str(error)) from error
            except (ValueError, OSError, MemoryError) as error:
                self._prompts[sample.doc_id] = reason(error)
            else:
                if prompt.packs:
                    sample = replace(sample, group=_fingerprint(prompt))
            samples.append(sample)
        return samples

    def _prompt(self, messages: Sequence[Mapping[str, Any]]) -> EncodedPrompt:
        messages = [{**message, "content": _parts(message["content"])} for message in messages]
        parts = [part for message in messages for part in message["content"]]
        for kind in dict.fromkeys(part["type"] for part in parts):
            if kind not in ("text", *self.input_modalities):
                readable = ", ".join(("text", *self.input_modalities))
                raise _Unreadable(f"This model reads {readable}, and the task shows {kind}: choose another task.")
        images = [load_image(image_source(part["url"])) for part in parts if part["type"] == "image"]
        audios = [load_audio(audio_source(part["url"])) for part in parts if part["type"] == "audio"]
        videos = [load_video(image_source(part["url"])) for part in parts if part["type"] == "video"]
        bare = [{**message, "content": [_without_source(part) for part in message["content"]]} for message in messages]
        return self.prompt(encode_messages(self.model, self.processor, bare, images, audios, videos))

    def _encode(self, asked: Sequence[Sample]) -> list[EncodedPrompt | str]:
        return [self._prompts[sample.doc_id] for sample in asked]


class _Unreadable(KVMMError):
    """The model cannot read a medium of the task."""


def _parts(content: str | Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _without_source(part: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in part.items() if name in ("type", "text")}


def image_source(source: Any) -> Any:
    """A data set's picture or video as :mod:`kvmm.media` takes it; of ``{"bytes": ..., "path": ...}`` what it holds."""
    if isinstance(source, Mapping):
        return source.get("bytes") or source.get("path")
    return source


def audio_source(source: Any) -> Any:
    """The argument of :func:`load_audio` for a recording of a data set.

    Data sets hold paths, ``{"array": ..., "sampling_rate": ...}`` with ``[n]`` or ``[channels, n]`` samples,
    ``{"bytes": ..., "path": ...}``, and decoders with ``get_all_samples()``.
    """
    if hasattr(source, "get_all_samples"):
        samples = source.get_all_samples()
        return int(samples.sample_rate), np.asarray(samples.data).T
    if isinstance(source, Mapping):
        if source.get("array") is not None:
            array = np.asarray(source["array"])
            return int(source["sampling_rate"]), array.T if array.ndim == 2 and len(array) < array.shape[1] else array
        return source.get("bytes") or source.get("path")
    return source


def _fingerprint(prompt: EncodedPrompt) -> str:
    """A hash of all inputs of the document, media included; equal documents have equal hashes."""
    digest = hashlib.sha256()
    for name, value in sorted(first_tokens(prompt.inputs, prompt.shared).items()):
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        digest.update(value.detach().cpu().reshape(-1).contiguous().view(torch.uint8).numpy())
    return digest.hexdigest()


__all__ = ["AHEAD", "Decoding", "answer_chats", "audio_source", "image_source"]
