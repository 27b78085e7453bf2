"""Prompts as tensors: messages in chat-template form, the processor's tensors, the turns of a conversation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from PIL import Image
from transformers import PreTrainedTokenizerBase

from kvmm.decoding.video import FRAME_FACTOR
from kvmm.errors import KVMMError
from kvmm.media import SAMPLE_RATE, Frames, Media, load_video
from kvmm.modality import TEXT, modality_of_ids
from kvmm.models.pieces import Piece
from kvmm.models.text_layer import TextLayer

SECONDS_INPUTS = ("second_per_grid_ts", "video_second_per_grid")  # float32 [videos]: between two rows of patches
# Outputs of a processor that the positions of later turns depend on.
POSITION_INPUTS = (
    "image_grid_thw",
    "video_grid_thw",
    *SECONDS_INPUTS,
    "feature_attention_mask",
)
ANSWER = "\ue000kvmm answer\ue001"  # private-use characters: no template and no user writes them


@dataclass
class Turn:
    """The tokens and media that one question added to the prompt, and its answer: enough to build the cache again.

    ``text`` is the rendered template with one placeholder a medium, ``ids`` its tokens ``[1, T]`` with the placeholders
    expanded, ``per_token`` the processor's other ``[1, T]`` outputs. ``answer`` holds the generated tokens without the
    one that ends the answer.
    """

    text: str
    media: tuple[Media, ...]
    positions: dict[str, torch.Tensor] = field(default_factory=dict)
    ids: torch.Tensor = field(default_factory=lambda: torch.empty(1, 0, dtype=torch.long))
    per_token: dict[str, torch.Tensor] = field(default_factory=dict)
    answer: tuple[int, ...] = ()


@dataclass
class Prompt:
    """The inputs of one call of ``generate``, on the model's device, and its ids on the CPU.

    ``inputs`` has ``input_ids`` and ``attention_mask`` ``[1, T]`` and what else has a value per token; the media to
    read are in ``pieces``, which cover the tokens that the cache does not hold.
    """

    inputs: dict[str, torch.Tensor]
    history: dict[str, torch.Tensor]  # the position inputs of all turns
    ids: torch.Tensor  # [1, T] all token ids, on the CPU
    per_token: dict[str, torch.Tensor]  # other [1, T] inputs, on the CPU
    pieces: list[Piece] = field(default_factory=list)
    past: int = 0  # tokens that the cache keeps
    layer: TextLayer | None = None  # the text of its pages, where an answer's values can be looked for


def user_message(processor: Any, question: str, media: Sequence[Media]) -> dict[str, Any]:
    """The question and its media in chat-template form: media first, several pages with labels."""
    if isinstance(processor, PreTrainedTokenizerBase):
        return {"role": "user", "content": question}
    content: list[dict[str, str]] = []
    labels = page_labels(media)
    for item in media:
        if item.kind == "image" and labels:
            content.append({"type": "text", "text": labels.pop(0)})
        content.append({"type": item.kind})
    if question.strip():
        content.append({"type": "text", "text": question})
    return {"role": "user", "content": content}


def assistant_message(processor: Any, text: str) -> dict[str, Any]:
    """An answer in chat-template form."""
    plain = isinstance(processor, PreTrainedTokenizerBase)
    return {"role": "assistant", "content": text if plain else [{"type": "text", "text": text}]}


def text_of(message: Mapping[str, Any]) -> str:
    """The question or answer in a message, without the page labels that come before pictures."""
    content = message["content"]
    if isinstance(content, str):
        return content
    return content[-1]["text"] if content and content[-1]["type"] == "text" else ""


def render(processor: Any, messages: Sequence[dict[str, Any]], message: dict[str, Any]) -> str:
    """The text that ``message`` adds to ``messages``: the whole template at first, later what follows the last answer.

    Raises:
        KVMMError: the model has no chat template, or one that hides earlier answers.
    """
    messages = [*messages, message]
    is_first = len(messages) == 1
    if not is_first:
        messages[-2] = assistant_message(processor, ANSWER)
    try:
        text = processor.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    except ValueError as error:
        raise KVMMError("This model has no chat template: load the instruction-tuned version.") from error
    if is_first:
        return text
    if text.count(ANSWER) != 1:
        raise KVMMError("This model's chat template hides earlier answers: reset the conversation to ask again.")
    return text.partition(ANSWER)[2]


def encode(processor: Any, text: str, media: Sequence[Media]) -> dict[str, torch.Tensor]:
    """The processor's tensors for one turn: input_ids ``[1, T]``, pixels, audio features.

    Raises:
        KVMMError: a recording is longer than the model hears.
    """
    if isinstance(processor, PreTrainedTokenizerBase):
        return dict(processor([text], return_tensors="pt", add_special_tokens=False))
    inputs: dict[str, Any] = {}
    for kind, name in (("image", "images"), ("audio", "audio")):
        data = [item.data for item in media if item.kind == kind]
        if data:
            inputs[name] = data
    if clips := [load_video(item.data, **item.sampling) for item in media if item.kind == "video"]:
        inputs |= video_arguments(clips)
    if "audio" in inputs:
        _check_audio_length(processor, inputs["audio"])
        inputs["sampling_rate"] = SAMPLE_RATE
    return with_seconds(dict(processor(text=[text], return_tensors="pt", add_special_tokens=False, **inputs)), inputs)


def video_arguments(clips: Sequence[Frames]) -> dict[str, Any]:
    """The arguments of a processor for some videos."""
    return {
        "videos": [torch.from_numpy(clip.pixels).permute(0, 3, 1, 2).contiguous() for clip in clips],
        "video_metadata": [clip.metadata() for clip in clips],
        "do_sample_frames": False,
    }


def with_seconds(encoded: dict[str, torch.Tensor], arguments: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Put in how many seconds a pair of frames takes, of each video; the omni processors assume one rate for all."""
    for name in SECONDS_INPUTS:
        if name in encoded:
            rates = [len(one["frames_indices"]) / one["duration"] for one in arguments["video_metadata"]]
            encoded[name] = torch.tensor([FRAME_FACTOR / rate for rate in rates])
    return encoded


def _check_audio_length(processor: Any, recordings: Sequence[Any]) -> None:
    """Feature extractors truncate recordings silently; raise an error instead."""
    extractor = processor.feature_extractor
    limit = extractor.n_samples / extractor.sampling_rate
    longest = max(len(recording) for recording in recordings) / SAMPLE_RATE
    if longest > limit:
        raise KVMMError(
            f"The recording is {longest:.0f} seconds long and this model hears {limit:.0f}: cut it into parts."
        )


def fill(turn: Turn, encoded: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Put a processor's outputs into ``turn``; returns the remaining ones, the tensors of its media."""
    turn.ids = encoded.pop("input_ids")
    encoded.pop("attention_mask", None)
    # copies: a mask of 3000 frames is a view of one of 480 000 samples, which would stay with the turn
    turn.positions = {
        name: encoded[name].clone(memory_format=torch.contiguous_format) for name in POSITION_INPUTS if name in encoded
    }
    turn.per_token = {name: value for name, value in encoded.items() if value.shape == turn.ids.shape}
    return {name: value for name, value in encoded.items() if name not in turn.per_token}


def all_ids(turns: Sequence[Turn]) -> torch.Tensor:
    """int64 ``[1, T]``: prompts and answers of all turns."""
    parts = [part for turn in turns for part in (turn.ids, torch.tensor([turn.answer], dtype=torch.long))]
    return torch.cat(parts, dim=1) if parts else torch.empty(1, 0, dtype=torch.long)


def all_per_token(turns: Sequence[Turn]) -> dict[str, torch.Tensor]:
    """The other ``[1, T]`` inputs of all turns; zeros for answers, and for turns that have none."""
    kinds = {name: value.dtype for turn in turns for name, value in turn.per_token.items()}
    out = {}
    for name, dtype in kinds.items():
        parts = []
        for turn in turns:
            missing = torch.zeros_like(turn.ids, dtype=dtype)
            parts += [turn.per_token.get(name, missing), torch.zeros(1, len(turn.answer), dtype=dtype)]
        out[name] = torch.cat(parts, dim=1)
    return out


def page_labels(media: Sequence[Media]) -> list[str]:
    """ "Page k" lines for several images: their own page numbers if those tell them apart, else their order."""
    images = [item for item in media if item.kind == "image"]
    if len(images) < 2:
        return []
    pages = [item.page for item in images]
    if None in pages or len(set(pages)) < len(pages):
        pages = list(range(1, len(images) + 1))
    return [f"Page {page}\n" for page in pages]


def encode_question(
    model: Any,
    processor: Any,
    question: str,
    images: Sequence[Image.Image] = (),
    audio: Any = None,
    video: Frames | None = None,
) -> dict[str, torch.Tensor]:
    """The model's inputs for one question: ids, mask, pixels, audio features, on the model's device.

    Args:
        model, processor: as ``load_model`` returns them; the processor of a text-only model is its tokenizer.
        question: may be empty when a recording asks it.
        images: pages, before the question; several are labelled "Page 1", "Page 2" ...
        audio: float32 ``[n]``, mono at ``kvmm.media.SAMPLE_RATE``, after the images; None for none.
        video: as :func:`kvmm.media.load_video` returns it, before everything else; None for none.
    """
    content: list[dict[str, str]] = [{"type": "video"}] if video is not None else []
    for page in range(len(images)):
        if len(images) > 1:
            content.append({"type": "text", "text": f"Page {page + 1}\n"})
        content.append({"type": "image"})
    if audio is not None:
        content.append({"type": "audio"})
    if question:
        content.append({"type": "text", "text": question})
    return encode_messages(
        model,
        processor,
        [{"role": "user", "content": content}],
        images,
        [] if audio is None else [audio],
        [] if video is None else [video],
    )


def encode_messages(
    model: Any,
    processor: Any,
    messages: Sequence[Mapping[str, Any]],
    images: Sequence[Image.Image] = (),
    audios: Sequence[Any] = (),
    videos: Sequence[Frames] = (),
) -> dict[str, torch.Tensor]:
    """The model's inputs for a chat that ends where the answer begins.

    Args:
        model, processor: as for :func:`encode_question`.
        messages: ``{"role": ..., "content": [...]}`` with parts ``{"type": "text", "text": ...}``,
            ``{"type": "image"}``, ``{"type": "audio"}`` and ``{"type": "video"}``. A text-only model reads the texts
            alone.
        images, audios, videos: one for each part, in their order; recordings and videos as for
            :func:`encode_question`.
    """
    media: dict[str, Any] = {"images": list(images)} if images else {}
    if audios:
        media |= {"audio": list(audios), "sampling_rate": SAMPLE_RATE}
    if videos:
        media |= video_arguments(videos)
    if isinstance(processor, PreTrainedTokenizerBase):
        messages = [
            {**one, "content": "".join(part["text"] for part in one["content"] if part["type"] == "text")}
            for one in messages
        ]
    text = processor.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True)
    inputs = with_seconds(dict(processor(text=[text], return_tensors="pt", add_special_tokens=False, **media)), media)
    return {
        # seconds decide positions, which the model's dtype would round
        name: value.to(model.device, model.dtype if value.is_floating_point() and name not in SECONDS_INPUTS else None)
        for name, value in inputs.items()
    }


def document_length(input_ids: torch.Tensor, config: Any) -> int:
    """Tokens of the document in a prompt ``[1, T]``; 1 for a prompt without media."""
    media = (modality_of_ids(input_ids, config) != TEXT).nonzero()
    return int(media[-1, 1]) + 2 if len(media) else 1  # the marker that closes the last medium comes after it


def is_per_token(value: Any, inputs: Mapping[str, Any]) -> bool:
    """Whether one of the model's inputs has one entry per token, as ids and masks have."""
    return isinstance(value, torch.Tensor) and value.shape == inputs["input_ids"].shape


def first_tokens(inputs: Mapping[str, torch.Tensor], count: int) -> dict[str, torch.Tensor]:
    """The inputs of the first ``count`` tokens, with all media."""
    return {name: value[:, :count] if is_per_token(value, inputs) else value for name, value in inputs.items()}


def eos_token_ids(model: Any) -> frozenset[int]:
    """Tokens that end an answer."""
    eos = model.generation_config.eos_token_id
    return frozenset() if eos is None else frozenset([eos] if isinstance(eos, int) else eos)


__all__ = [
    "ANSWER",
    "POSITION_INPUTS",
    "Prompt",
    "Turn",
    "all_ids",
    "all_per_token",
    "assistant_message",
    "document_length",
    "encode",
    "encode_messages",
    "encode_question",
    "eos_token_ids",
    "fill",
    "first_tokens",
    "is_per_token",
    "page_labels",
    "render",
    "text_of",
    "user_message",
]
