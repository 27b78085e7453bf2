"""What commands measure on: media, texts and questions, and how they become prompts."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvmm.errors import KVMMError

if TYPE_CHECKING:
    from kvmm.samples import Sample


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
        if self.text is None:
            return None
        try:
            return self.text.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "it is not UTF-8"
            raise KVMMError(f"{self.text} cannot be read as text ({reason}): name a text file.") from None

    def asked(self) -> str:
        """The question, or one that fits the media."""
        from kvmm.analysis.drift_prompts import DESCRIBE, TRANSCRIBE

        return self.question or (TRANSCRIBE if self.images or self.pdfs else DESCRIBE)


@dataclass(frozen=True)
class Prompt:
    """One prompt and where it is from: ``inputs`` of the model, ``files`` and ``question`` for reports."""

    inputs: dict[str, Any]
    files: tuple[str, ...]
    question: str

    def to_dict(self) -> dict[str, Any]:
        """Its origin, for JSON."""
        return {"files": list(self.files), "question": self.question}


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


def check_senses(network: Any, media: dict[str, Any]) -> None:
    """Raise ``KVMMError`` if the model cannot read one of the media."""
    from kvmm.models import family_of

    senses = family_of(network.config).modalities
    for kind in ("images", "audio"):
        if len(media.get(kind, ())) and kind.removesuffix("s") not in senses:
            known = ", ".join(("text", *senses))
            raise KVMMError(f"This model reads {known}: leave the {kind} out or name another model.")


def sample_media(network: Any) -> list[tuple[Sample, dict[str, Any]]]:
    """The samples that the model has the senses for, with their media as prompts take them.

    Raises:
        KVMMError: if there are none.
    """
    from kvmm.media import load_media
    from kvmm.models import family_of
    from kvmm.samples import load_samples

    senses = family_of(network.config).modalities
    found = []
    for sample in load_samples():
        items = [item for path in sample.files for item in load_media(path)]
        if not {item.kind for item in items} <= set(senses):
            continue
        media: dict[str, Any] = {"images": [item.data for item in items if item.kind == "image"]}
        for item in items:
            if item.kind == "audio":
                media["audio"] = item.data
        found.append((sample, media))
    if not found:
        raise KVMMError("There are no samples that this model can read: give --text, or media of your own.")
    return found


def one_prompt(network: Any, processor: Any, given: Given, media: dict[str, Any], words: str | None) -> Prompt:
    """The prompt of a command that looks at one.

    Without files it is the sample with the most senses, so that there is something to compare.

    Args:
        given: what was asked for; ``media`` and ``words`` are what its ``load`` and ``read_text`` returned.
    """
    import torch

    from kvmm.eval.asking import encode_question

    if words is not None:
        tokenizer = getattr(processor, "tokenizer", processor)
        ids = torch.tensor([tokenizer(words)["input_ids"]], dtype=torch.long, device=network.device)
        if not ids.shape[1]:
            raise KVMMError(f"{given.text} is empty: name a text file with something in it.")
        return Prompt({"input_ids": ids, "attention_mask": torch.ones_like(ids)}, (given.text.name,), "")
    if media:
        check_senses(network, media)
        files, question = tuple(path.name for path in given.media), given.asked()
    else:
        # The first of those with the most kinds of media.
        sample, media = max(sample_media(network), key=lambda one: bool(one[1]["images"]) + ("audio" in one[1]))
        files, question = tuple(path.name for path in sample.files), sample.question
    inputs = encode_question(network, processor, question, media.get("images", ()), media.get("audio"))
    return Prompt(inputs, files, question)
