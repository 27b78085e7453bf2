"""Prompts to measure drift on: a text, questions about pages and recordings, pages hidden in documents."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from kvmm.analysis.drift.run import DriftPrompt
from kvmm.errors import KVMMError
from kvmm.media import load_audio, load_image
from kvmm.models.prompting import encode_question

TRANSCRIBE = "Transcribe the page."
DESCRIBE = "What do you hear?"
TOOLS = """You can call tools. Their JSON Schemas:
{}
Answer with one call and nothing else:
<tool_call>
{{"name": <name of the tool>, "arguments": <object of its arguments>}}
</tool_call>"""


def text_prompts(
    model: Any, processor: Any, text: str, prefill: Sequence[int], count: int, name: str = "The text", start: int = 0
) -> list[DriftPrompt]:
    """Prompts that are the beginning of a text, each followed by the text itself.

    Args:
        text: is tokenised as the tokenizer does by default.
        prefill: tokens that are read and packed, one prompt for each number.
        count: tokens that follow and are forced; fewer if the text or the model's window ends before.
        name: what an error calls the text.
        start: tokens of the text that are left out at its beginning.

    Raises:
        KVMMError: if the text or the model has no room for a prompt and two tokens after it.
    """
    tokenizer = getattr(processor, "tokenizer", processor)
    ids = torch.tensor([tokenizer(text)["input_ids"]], dtype=torch.long)[:, start:]
    window = getattr(model.config.get_text_config(decoder=True), "max_position_embeddings", None) or ids.shape[1]
    prompts = []
    for length in prefill:
        end = min(length + count, ids.shape[1], window)
        if length < 1 or end < length + 3:
            after = f" after the first {start}" if start else ""
            has = f"{name} has {ids.shape[1]} tokens{after} and the model {window} positions"
            raise KVMMError(f"{has}: with --prefill {length} nothing is left to continue; lower it or give more text.")
        # The first token after the packed ones counts as prompt: what follows it is the first thing that can drift.
        prompt = {"input_ids": ids[:, : length + 1].to(model.device)}
        prompt["attention_mask"] = torch.ones_like(prompt["input_ids"])
        prompts.append(DriftPrompt(lambda p=prompt: p, packed=length, continuation=ids[:, length + 1 : end]))
    return prompts


def question_prompt(
    model: Any, processor: Any, question: str, images: Sequence[Any] = (), audio: Any = None, **fields: Any
) -> DriftPrompt:
    """A question about media that are packed before it; the rest of :class:`DriftPrompt`'s fields by name.

    Args:
        images: PIL images, or paths.
        audio: float32 samples, or a path; None for none.
    """

    def encode() -> dict[str, torch.Tensor]:
        pages = [load_image(image) if isinstance(image, (str, Path)) else image for image in images]
        sound = load_audio(audio) if isinstance(audio, (str, Path)) else audio
        return encode_question(model, processor, question, pages, sound)

    return DriftPrompt(encode, **fields)


def tool_prompts(
    processor: Any,
    schemas: Sequence[Mapping[str, Any]],
    requests: Sequence[str],
    examples: Sequence[tuple[str, Mapping[str, Any]]] = (),
    device: Any = None,
) -> list[DriftPrompt]:
    """A prompt per request, in which the model is offered tools.

    The model's own chat template writes the tools. One that knows none gets them in a system message, which says how
    to call them.

    Args:
        processor: or the tokenizer, with a chat template.
        schemas: as ``transformers.utils.get_json_schema`` returns them.
        requests: what a user asks.
        examples: requests with their calls (``{"name", "arguments"}``), as earlier turns of the conversation: a small
            model calls tools only after some.
        device: where the token ids go; None for the CPU.

    Raises:
        KVMMError: if the model has no chat template.
    """
    tokenizer = getattr(processor, "tokenizer", processor)
    template = str(getattr(tokenizer, "chat_template", None) or "")
    if not template:
        raise KVMMError("The model has no chat template, so it cannot be asked for a tool call.")

    earlier: list[dict[str, str]] = []
    for question, call in examples:
        written = f"<tool_call>\n{json.dumps(call, ensure_ascii=False)}\n</tool_call>"
        earlier += [{"role": "user", "content": question}, {"role": "assistant", "content": written}]

    def encode(request: str) -> dict[str, torch.Tensor]:
        messages = [*earlier, {"role": "user", "content": request}]
        options: dict[str, Any] = {"add_generation_prompt": True, "return_tensors": "pt", "return_dict": True}
        if "tools" in template:
            options["tools"] = list(schemas)
        else:
            offered = "\n".join(json.dumps(schema, ensure_ascii=False) for schema in schemas)
            messages.insert(0, {"role": "system", "content": TOOLS.format(offered)})
        inputs = tokenizer.apply_chat_template(messages, **options)
        return {name: tensor.to(device) if device is not None else tensor for name, tensor in inputs.items()}

    return [DriftPrompt(partial(encode, request)) for request in requests]


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The questions of a JSON-lines file: ``images``, ``audio``, ``question``, ``answers``, ``kind``, ``page``.

    A line with ``turns`` stands for its first turn, as later ones may refer to it. Paths become absolute.

    Raises:
        KVMMError: if the file is missing or a line is not such a question.
    """
    try:
        rows = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise KVMMError(f"{path} cannot be read as text ({error}): name a JSON-lines file.") from None
    lines = []
    for number, row in enumerate(rows, start=1):
        if not row.strip():
            continue
        try:
            line = json.loads(row)
            turn = line["turns"][0] if "turns" in line else line
            lines.append(
                {
                    "images": [path.parent / name for name in line.get("images") or ()],
                    "audio": path.parent / line["audio"] if line.get("audio") else None,
                    "question": turn["question"],
                    "answers": tuple(turn.get("answers") or ()),
                    "kind": line.get("kind"),
                    "page": line.get("page"),
                    "metric": turn.get("metric"),
                }
            )
        except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
            raise KVMMError(f"Line {number} of {path} is not a question about images or audio: {error!r}.") from None
    if not lines:
        raise KVMMError(f"{path} holds no questions: give a line for each.")
    return lines


def line_prompts(model: Any, processor: Any, lines: Sequence[Mapping[str, Any]]) -> list[DriftPrompt]:
    """Prompts of :func:`read_lines`; neighbours about the same files share the reading of them."""
    return [
        question_prompt(
            model,
            processor,
            line["question"],
            line["images"],
            line["audio"],
            document=_files(line) or None,
            max_new_tokens=line.get("transcribe"),
            forced_only="transcribe" in line,
            references=line["answers"],
            place=(line["page"], len(line["images"])) if line.get("page") else None,
        )
        for line in lines
    ]


def with_transcriptions(lines: Sequence[Mapping[str, Any]], tokens: int) -> list[dict[str, Any]]:
    """The lines, and after the last one about each single page or recording, one that asks what it says.

    Args:
        lines: questions, those about the same files next to each other.
        tokens: how much of a transcription is forced; 0 adds none. Its text is the one of full precision.
    """
    questions = [dict(line) for line in lines]
    for index in reversed(range(len(questions) if tokens else 0)):
        line = questions[index]
        last = index + 1 == len(questions) or _files(questions[index + 1]) != _files(line)
        if last and len(_files(line)) == 1:
            question = TRANSCRIBE if line["images"] else DESCRIBE
            questions.insert(index + 1, {**line, "question": question, "answers": (), "transcribe": tokens})
    return questions


def _files(line: Mapping[str, Any]) -> tuple[Path, ...]:
    return (*line["images"], *([line["audio"]] if line["audio"] else []))


def hidden_pages(lines: Sequence[Mapping[str, Any]], pages: int) -> list[dict[str, Any]]:
    """Questions about single pages, each asked at every place of a document of ``pages`` pages.

    The other pages come from other lines with pages of another kind, so that the question fits one page only. Lines
    whose page cannot be hidden so are left out.

    Raises:
        KVMMError: if no line can be used.
    """
    single = [line for line in lines if len(line["images"]) == 1 and not line["audio"] and line["answers"]]
    hidden = []
    for index, line in enumerate(single):
        order = single[index + 1 :] + single[:index]
        others = dict.fromkeys(other["images"][0] for other in order if other["kind"] != line["kind"])
        if len(others) < pages - 1:
            continue
        fillers = list(others)[: pages - 1]
        for place in range(pages):
            images = [*fillers[:place], line["images"][0], *fillers[place:]]
            hidden.append({**line, "images": images, "page": place + 1})
    if not hidden:
        raise KVMMError(f"No question can be hidden among {pages} pages: too few pages are of other kinds.")
    return hidden


def shortened(lines: Sequence[Any], limit: int | None) -> list[Any]:
    """At most ``limit`` of them, spread evenly over all."""
    if limit is None or limit >= len(lines):
        return list(lines)
    return [lines[i * len(lines) // limit] for i in range(limit)]


__all__ = [
    "DESCRIBE",
    "TRANSCRIBE",
    "hidden_pages",
    "line_prompts",
    "question_prompt",
    "read_lines",
    "shortened",
    "text_prompts",
    "with_transcriptions",
]
