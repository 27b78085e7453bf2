"""From a request's messages to the model's tensors: files decoded, the template rendered, places to share found."""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from jinja2 import TemplateError
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from kvmm import decoding
from kvmm.errors import KVMMError, one_line
from kvmm.media import Media, load_media
from kvmm.modality import placeholder_ids
from kvmm.models import prompting
from kvmm.models.families import family_of
from kvmm.models.pieces import MIN_PIECE, Piece, divide, merge_inputs, placeholder_runs, split_media
from kvmm.models.prompting import Prompt, Turn
from kvmm.models.question import LARGE_PIECE_TOKENS, MIN_ANSWER_TOKENS, PIECE_TOKENS, prompt_of, window_of
from kvmm.serve.errors import APIError, bad_request
from kvmm.serve.files import KeptFiles
from kvmm.serve.protocol import ChatRequest, File, Message

TEXT_BLOCK = 1024  # tokens of text after which a prompt is packed and kept
MIN_PREFIX = 64  # tokens; fewer are read again faster than they are kept
_BELONGS = {  # a file of this kind in a part of another one
    "image": "a picture or a PDF: send it in a part of type image_url or file",
    "audio": "a recording: send it in a part of type input_audio or file",
    "video": "a video, which is not read here: send some of its frames in parts of type image_url",
}
_NO_TOKEN = b"\xff" * 8  # int64 -1, before what stands for a medium among the tokens of a prefix


@dataclass(frozen=True)
class Shown:
    """A medium of a prompt; ``digest`` is of its file's bytes and of its page."""

    media: Media
    digest: bytes


class PrefixKeys:
    """SHA-256 keys of the beginnings of one prompt: over all tokens and, in place of placeholders, the media.

    Args:
        fingerprint: of what else the packed tokens depend on: model, policy, versions.
        ids: int64 ``[1, T]``.
        runs: where the placeholders of each medium begin and end.
        digests: of the media.
    """

    def __init__(
        self, fingerprint: bytes, ids: torch.Tensor, runs: Sequence[tuple[int, int]], digests: Sequence[bytes]
    ):
        self._fingerprint, self._runs, self._digests = fingerprint, list(runs), list(digests)
        self._ids = ids[0].to("cpu", torch.int64)

    def at(self, lengths: Iterable[int]) -> dict[int, str]:
        """Keys of the first so many tokens, for those lengths that end in no medium."""
        found: dict[int, str] = {}
        digest, start, media = hashlib.sha256(self._fingerprint), 0, 0
        for length in sorted(set(lengths)):
            if length > len(self._ids) or any(begin < length < end for begin, end in self._runs):
                continue
            while media < len(self._runs) and self._runs[media][1] <= length:
                begin, end = self._runs[media]
                digest.update(self._bytes(start, begin) + _NO_TOKEN + self._digests[media])
                digest.update((end - begin).to_bytes(8, "little"))
                start, media = end, media + 1
            digest.update(self._bytes(start, length))
            start = length
            found[length] = digest.hexdigest()
        return found

    def _bytes(self, start: int, end: int) -> bytes:
        return self._ids[start:end].numpy().tobytes()

    def extended(self, tokens: Sequence[int]) -> PrefixKeys:
        """Keys of the prompt and the tokens that followed it."""
        ids = torch.cat([self._ids, torch.tensor(tokens, dtype=torch.int64)])[None]
        return PrefixKeys(self._fingerprint, ids, self._runs, self._digests)


@dataclass(frozen=True)
class ServedPrompt:
    """A prompt ready to be read.

    Attributes:
        prompt: its tensors; ``pieces`` are made by :meth:`pieces_from`.
        runs: where its media are, None where the tokens do not show it.
        media: the processor's tensors of each medium; of all together in one entry where they cannot be told apart.
        keys: of its beginnings; None where its media cannot be told apart.
        boundaries: lengths at which it is packed and kept for other requests.
        piece_tokens: about how many tokens are read at once.
    """

    prompt: Prompt
    runs: list[tuple[int, int]] | None
    media: list[dict[str, torch.Tensor]]
    keys: PrefixKeys | None
    boundaries: tuple[int, ...]
    piece_tokens: int

    @property
    def length(self) -> int:
        """Tokens of the prompt."""
        return self.prompt.ids.shape[1]

    @property
    def tensors(self) -> list[torch.Tensor]:
        """Pixels and audio features that are still to be read."""
        return [tensor for tensors in self.media for tensor in tensors.values()]

    def pieces_from(self, past: int) -> list[Piece]:
        """What remains to be read behind the first ``past`` tokens; a piece ends at every boundary."""
        if self.runs is None:
            pages = sum("pixel_values" in tensors for tensors in self.media)
            return [Piece(past, self.length, pages, merge_inputs(self.media))]
        pieces: list[Piece] = []
        for end in [*self._boundaries_behind(past), self.length]:
            places = [i for i, (begin, _) in enumerate(self.runs) if past <= begin < end]
            runs, tensors = [self.runs[i] for i in places], [self.media[i] for i in places]
            pieces += divide(past, end, runs, tensors, self.piece_tokens)
            past = end
        return pieces

    def is_question_behind(self, past: int) -> bool:
        """Whether what follows the first ``past`` tokens is text of which nothing is kept for other requests."""
        if self.runs is None or any(begin >= past for begin, _ in self.runs):
            return False
        return not self._boundaries_behind(past)

    def _boundaries_behind(self, past: int) -> list[int]:
        return [at for at in self.boundaries if at >= past + MIN_PREFIX]


class PromptMaker:
    """Makes prompts for one model; any number of threads may use it.

    Args:
        model, processor: as ``load_model`` returns them.
        fingerprint: as for :class:`PrefixKeys`.
        max_pages: of one PDF.

    Attributes:
        files: that came before.
    """

    def __init__(self, model: PreTrainedModel, processor: Any, fingerprint: bytes, max_pages: int | None = None):
        self.files = KeptFiles()
        plain = isinstance(processor, PreTrainedTokenizerBase)
        self._model, self._processor = model, processor if plain else self.files.processor(processor)
        self._fingerprint, self._max_pages = fingerprint, max_pages
        self._family = family_of(model.config)
        self._tokenizer = getattr(processor, "tokenizer", processor)
        self._reserved = [self._tokenizer.convert_ids_to_tokens(token) for token, _ in placeholder_ids(model.config)]
        self._processing = threading.Lock()  # tokenizers are not for several threads at once

    def make(self, request: ChatRequest, owner: str, stop: threading.Event) -> ServedPrompt:
        """The prompt of a request.

        Args:
            request: what was asked.
            owner: who takes the places in which files are decoded, and finds those sent before.
            stop: set it to end decoding; a ``KVMMError`` is then raised.

        Raises:
            APIError: a file cannot be used, the model cannot read its kind, or the prompt is too long.
        """
        with decoding.owned_by(owner), decoding.stopped_by(stop):
            shown = [[self._parts(part, owner) for part in message.parts] for message in request.messages]
        for message in request.messages:
            self._check_texts(message)
        templated = [self._templated(one, parts) for one, parts in zip(request.messages, shown, strict=True)]
        by_message = [[item for part in parts if isinstance(part, list) for item in part] for parts in shown]
        media = [item for items in by_message for item in items]
        with self._processing:
            text = self._render(templated, add_generation_prompt=True)
            turn = Turn(text, tuple(item.media for item in media))
            try:
                tensors = prompting.fill(turn, prompting.encode(self._processor, text, turn.media))
            except KVMMError as error:
                raise bad_request(str(error), "messages") from None
            except (ValueError, IndexError, RuntimeError, TypeError) as error:
                raise bad_request(f"The model's processor cannot read this prompt ({one_line(error)}).") from error
            earlier = self._earlier_ids(templated)
        self._check_length(turn.ids.shape[1])
        return self._served(turn, tensors, by_message, earlier)

    # -- files and texts ----------------------------------------------------------------------------------------------

    def _parts(self, part: str | File, owner: str) -> str | list[Shown]:
        if isinstance(part, str):
            return part
        try:
            content = base64.b64decode("".join(part.data.split()), validate=True)
        except (binascii.Error, ValueError):
            raise bad_request(f"{part.where}: the file is not base64.", part.where) from None
        try:
            load = partial(load_media, content, max_pages=self._max_pages)
            whole, items = self.files.media(owner, content, load)
        except KVMMError as error:
            line = str(error).replace("The upload", part.name)
            raise bad_request(f"{part.where}: {line}", part.where, "invalid_file") from None
        kinds = {item.kind for item in items}
        wanted = {"image": {"image"}, "audio": {"audio"}, "document": {"image", "audio"}}[part.kind]
        for kind in sorted(kinds - wanted):
            raise bad_request(f"{part.where}: the file is {_BELONGS[kind]}.", part.where, "invalid_file")
        for kind in sorted(kinds - set(self._family.modalities)):
            readable = ", ".join(("text", *self._family.modalities))
            raise bad_request(f"{part.where}: this model reads {readable}, not {kind}.", part.where)
        return [Shown(item, hashlib.sha256(whole + f"{item.kind} {item.page}".encode()).digest()) for item in items]

    def _check_texts(self, message: Message) -> None:
        """Placeholders in a text would stand for media that were not sent."""
        for part in message.parts:
            if isinstance(part, str) and any(token and token in part for token in self._reserved):
                raise bad_request("A text holds a marker that stands for a file in this model: remove it.", "messages")

    def _templated(self, message: Message, parts: Sequence[str | list[Shown]]) -> dict[str, Any]:
        """A message in chat-template form; several pages or pictures of one message are labelled."""
        if isinstance(self._processor, PreTrainedTokenizerBase):
            return {"role": message.role, "content": "".join(part for part in parts if isinstance(part, str))}
        labels = prompting.page_labels([one.media for part in parts if isinstance(part, list) for one in part])
        content: list[dict[str, str]] = []
        for part in parts:
            if isinstance(part, str):
                content.append({"type": "text", "text": part})
                continue
            for one in part:
                if one.media.kind == "image" and labels:
                    content.append({"type": "text", "text": labels.pop(0)})
                content.append({"type": one.media.kind})
        return {"role": message.role, "content": content}

    def _render(self, messages: list[dict[str, Any]], *, add_generation_prompt: bool) -> str:
        try:
            return self._processor.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=add_generation_prompt
            )
        except TemplateError as error:
            raise bad_request(
                f"The model's chat template refuses these messages: {one_line(error)}", "messages"
            ) from None
        except ValueError as error:
            raise APIError(500, "This model has no chat template: serve the instruction-tuned version.") from error

    # -- what can be shared -------------------------------------------------------------------------------------------

    def _earlier_ids(self, messages: list[dict[str, Any]]) -> list[int]:
        """Tokens of all messages but the last, with one placeholder a medium; empty where there are none."""
        if len(messages) < 2:
            return []
        with contextlib.suppress(APIError):
            text = self._render(messages[:-1], add_generation_prompt=False)
            return self._tokenizer(text, add_special_tokens=False)["input_ids"]
        return []

    def _served(
        self,
        turn: Turn,
        tensors: dict[str, torch.Tensor],
        by_message: Sequence[Sequence[Shown]],
        earlier: Sequence[int],
    ) -> ServedPrompt:
        prompt = prompt_of([turn], self._model.device)
        shown = [item for items in by_message for item in items]
        kinds = [item.media.kind for item in shown]
        size = PIECE_TOKENS.get(self._model.device.type, LARGE_PIECE_TOKENS)
        runs = placeholder_runs(prompt.ids, self._model.config, kinds)
        parts = None if runs is None else split_media(tensors, kinds, [end - begin for begin, end in runs])
        if parts is None:
            return ServedPrompt(prompt, None, [tensors], None, (), size)
        keys = PrefixKeys(self._fingerprint, prompt.ids, runs, [item.digest for item in shown])
        ends, count = [], 0
        for items in by_message:
            count += len(items)
            if items:
                ends.append(runs[count - 1][1] + 1)  # with the marker that closes the medium
        ends.append(_expanded_prefix(prompt.ids[0].tolist(), runs, earlier))
        return ServedPrompt(prompt, runs, parts, keys, boundaries_of(ends, runs, prompt.ids.shape[1]), size)

    def _check_length(self, length: int) -> None:
        window = window_of(self._model)
        if window - length < MIN_ANSWER_TOKENS:
            raise bad_request(
                f"The prompt has {length} tokens and this model's window holds {window}: send less.",
                "messages",
                "context_length_exceeded",
            )


def boundaries_of(ends: Iterable[int], runs: Sequence[tuple[int, int]], total: int) -> tuple[int, ...]:
    """The lengths at which a prompt of ``total`` tokens is packed and kept.

    Args:
        ends: where its files and its earlier messages end.
        runs: where its media are.
        total: leaves something to read behind the last boundary.

    Returns:
        those of ``ends`` that are at least :data:`MIN_PREFIX` tokens apart, and every :data:`TEXT_BLOCK` tokens of what
        has no media in it: long texts with different questions behind them share their blocks.
    """
    found: list[int] = []
    last = total - MIN_PIECE
    for end in [*sorted(ends), total]:
        start = found[-1] if found else 0
        if not any(start <= begin < end for begin, _ in runs):
            found += range(start + TEXT_BLOCK, min(end, last + 1), TEXT_BLOCK)
        if end <= last and end - (found[-1] if found else 0) >= MIN_PREFIX:
            found.append(end)
    return tuple(found)


def _expanded_prefix(ids: Sequence[int], runs: Sequence[tuple[int, int]], earlier: Sequence[int]) -> int:
    """How many of a prompt's tokens ``earlier`` covers, in which each medium has one placeholder."""
    place, lengths = 0, dict(runs)
    for token in earlier:
        if place >= len(ids) or ids[place] != token:
            break
        place = lengths.get(place, place + 1)
    return place


__all__ = ["MIN_PREFIX", "TEXT_BLOCK", "PrefixKeys", "PromptMaker", "ServedPrompt", "Shown", "boundaries_of"]
