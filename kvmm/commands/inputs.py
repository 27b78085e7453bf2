"""The media, texts and questions of a command line, and the prompts made of them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvmm.errors import KVMMError
from kvmm.samples import SampleQuestion, load_samples

MAX_TEXT_BYTES = 16 * 2**20


@dataclass(frozen=True)
class Given:
    """The files and the question of a command line; nothing is read yet."""

    images: Sequence[Path] = ()
    pdfs: Sequence[Path] = ()
    audio: Path | None = None
    text: Path | None = None
    question: str | None = None

    @property
    def media(self) -> list[Path]:
        """All files but the text."""
        return [*self.images, *self.pdfs, *([self.audio] if self.audio else [])]

    @property
    def empty(self) -> bool:
        """Whether there is no file at all: then samples are used."""
        return not self.media and self.text is None

    def check(self) -> Given:
        """Itself. Raises ``KVMMError`` for a question without media, or a text beside them."""
        if self.text is not None and (self.media or self.question is not None):
            raise KVMMError("A text is continued, not asked about: give --text, or media and --question.")
        if self.question is not None and not self.media:
            raise KVMMError("There is nothing to ask about: give an --image, a --pdf or a recording with the question.")
        return self

    def load(self) -> dict[str, Any]:
        """``images`` and ``audio`` as prompts take them; empty without media."""
        from kvmm.media import load_audio, load_image, load_pdf

        pages = [load_image(path) for path in self.images] + [page for path in self.pdfs for page in load_pdf(path)]
        media: dict[str, Any] = {"images": pages} if pages else {}
        return media | ({"audio": load_audio(self.audio)} if self.audio is not None else {})

    def read_text(self) -> str | None:
        """The text file's words, or None without one."""
        return None if self.text is None else read_text(self.text)

    def asked(self) -> str:
        """The question, or one that fits the media."""
        from kvmm.analysis.drift.prompts import DESCRIBE, TRANSCRIBE

        return self.question or (TRANSCRIBE if self.images or self.pdfs else DESCRIBE)


@dataclass(frozen=True)
class PromptInputs:
    """One prompt and where it is from: ``inputs`` of the model, ``files`` and ``question`` for reports."""

    inputs: dict[str, Any]
    files: tuple[str, ...]
    question: str

    def to_dict(self) -> dict[str, Any]:
        """Its origin, for JSON."""
        return {"files": list(self.files), "question": self.question}


def read_text(path: Path) -> str:
    """The words of a UTF-8 file. Raises ``KVMMError`` if it cannot be read, or is larger than a window could hold."""
    try:
        if path.stat().st_size > MAX_TEXT_BYTES:
            raise KVMMError(f"{path} is larger than {MAX_TEXT_BYTES >> 20} MiB: cut out the part that matters.")
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8"
        raise KVMMError(f"{path} cannot be read as text ({reason}): name a text file.") from None


def check_output(path: Path | None, *, folder: bool) -> None:
    """Find out before minutes of work whether its result can be written; ``path`` is a folder or a file to make.

    Raises ``KVMMError`` if it cannot be.
    """
    if path is None:
        return
    place = path if folder else path.resolve().parent
    while not place.exists() and place != place.parent:
        place = place.resolve().parent
    if not place.is_dir() or not os.access(place, os.W_OK) or (not folder and path.is_dir()):
        raise KVMMError(f"{path} cannot be written: name another {'folder' if folder else 'file'} with --out.")


def quiet_transformers() -> None:
    """Keep transformers from writing to the terminal."""
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()


def check_modalities(network: Any, media: dict[str, Any]) -> None:
    """Raise ``KVMMError`` if the model cannot read one of the media."""
    from kvmm.models import family_of

    input_modalities = family_of(network.config).modalities
    for kind in ("images", "audio"):
        if len(media.get(kind, ())) and kind.removesuffix("s") not in input_modalities:
            readable = ", ".join(("text", *input_modalities))
            raise KVMMError(f"This model reads {readable}: leave the {kind} out or name another model.")


def sample_media(network: Any) -> list[tuple[SampleQuestion, dict[str, Any]]]:
    """The samples whose media the model can read, with the media as prompts take them.

    Raises:
        KVMMError: if there are none.
    """
    from kvmm.media import load_media
    from kvmm.models import family_of

    input_modalities = family_of(network.config).modalities
    samples = []
    for sample in load_samples():
        items = [item for path in sample.files for item in load_media(path)]
        if not {item.kind for item in items} <= set(input_modalities):
            continue
        media: dict[str, Any] = {"images": [item.data for item in items if item.kind == "image"]}
        for item in items:
            if item.kind == "audio":
                media["audio"] = item.data
        samples.append((sample, media))
    if not samples:
        raise KVMMError("There are no samples that this model can read: give --text, or media of your own.")
    return samples


def one_prompt(network: Any, processor: Any, given: Given, media: dict[str, Any], words: str | None) -> PromptInputs:
    """The prompt of a command that looks at one.

    Without files it is the sample with the most modalities, so that there is something to compare.

    Args:
        given: the command line's inputs.
        media, words: the results of ``given.load()`` and ``given.read_text()``.
    """
    import torch

    from kvmm.models.prompting import encode_question

    if words is not None:
        tokenizer = getattr(processor, "tokenizer", processor)
        ids = torch.tensor([tokenizer(words)["input_ids"]], dtype=torch.long, device=network.device)
        if not ids.shape[1]:
            raise KVMMError(f"{given.text} is empty: name a text file with something in it.")
        return PromptInputs({"input_ids": ids, "attention_mask": torch.ones_like(ids)}, (given.text.name,), "")
    if media:
        check_modalities(network, media)
        files, question = tuple(path.name for path in given.media), given.asked()
    else:
        # The first of those with the most kinds of media.
        sample, media = max(sample_media(network), key=lambda one: bool(one[1]["images"]) + ("audio" in one[1]))
        files, question = tuple(path.name for path in sample.files), sample.question
    inputs = encode_question(network, processor, question, media.get("images", ()), media.get("audio"))
    return PromptInputs(inputs, files, question)
