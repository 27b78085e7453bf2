"""OpenAI's chat completions: a request's JSON as values that are checked, and answers as JSON.

A field that would change the answer and is not supported is refused, never passed over, and so is one that is spelt
nearly like a field that is read. What only describes a request (``user``, ``metadata``, ``store``) is passed over.
"""

from __future__ import annotations

import difflib
import itertools
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvmm.errors import KVMMError
from kvmm.models.sampling import Sampling
from kvmm.serve.errors import APIError, bad_request

MAX_MESSAGES = 2000
MAX_PARTS = 200  # of one message
MAX_CHARACTERS = 2_000_000  # of all texts
MAX_MEDIA = 64  # files of one request
ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}

# Fields of the API that change an answer, with the values that leave it as it is.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "n": (None, 1),
    "presence_penalty": (None, 0),
    "frequency_penalty": (None, 0),
    "logit_bias": (None, {}),
    "tools": (None, []),
    "tool_choice": (None, "none", "auto"),
    "functions": (None, []),
    "function_call": (None, "none", "auto"),
    "response_format": (None, {"type": "text"}),
    "modalities": (None, ["text"]),
    "audio": (None,),
    "prediction": (None,),
    "web_search_options": (None,),
    # those of vLLM, llama.cpp and others
    "top_k": (None, -1, 0),
    "min_p": (None, 0),
    "typical_p": (None, 1),
    "repetition_penalty": (None, 1),
    "repeat_penalty": (None, 1),
    "length_penalty": (None, 1),
    "min_tokens": (None, 0),
    "ignore_eos": (None, False),
    "stop_token_ids": (None, []),
    "allowed_token_ids": (None,),
    "bad_words": (None, []),
    "use_beam_search": (None, False),
    "best_of": (None, 1),
    "echo": (None, False),
    "continue_final_message": (None, False),
    "add_generation_prompt": (None, True),
    "structured_outputs": (None,),
    "guided_json": (None,),
    "guided_regex": (None,),
    "guided_choice": (None,),
    "guided_grammar": (None,),
    "grammar": (None, ""),
    "json_schema": (None, {}),
}
_READ = (
    "model", "messages", "temperature", "top_p", "seed", "stop", "logprobs", "top_logprobs", "max_tokens",
    "max_completion_tokens", "stream", "stream_options",
)  # fmt: skip
MAX_UNKNOWN = 64  # fields that are compared with those of the API
MAX_NAME = 32  # characters of a field that may be a misspelt one


@dataclass(frozen=True)
class File:
    """One file of a message as it was sent: base64, not decoded yet. ``where`` names its field in messages."""

    kind: str  # "image", "audio" or "document"
    data: str
    name: str
    where: str


@dataclass(frozen=True)
class Message:
    """One message: ``parts`` are texts and files in their order."""

    role: str
    parts: tuple[str | File, ...]


@dataclass(frozen=True)
class ChatRequest:
    """A request for one answer."""

    model: str
    messages: tuple[Message, ...]
    sampling: Sampling
    max_tokens: int | None
    stream: bool
    include_usage: bool


def parse_request(body: Any) -> ChatRequest:
    """The request in a JSON body.

    Raises:
        APIError: 400 with the name of the first field that is wrong.
    """
    if not isinstance(body, dict):
        raise bad_request("The body must be a JSON object with model and messages.")
    model = body.get("model")
    if not isinstance(model, str) or not model:
        raise bad_request("model must be the name of a model, as /v1/models lists it.", "model")
    for name, neutral in _NEUTRAL.items():
        value = body.get(name)
        if not any(value == one and isinstance(value, bool) == isinstance(one, bool) for one in neutral):
            raise bad_request(f"{name} is not supported here: leave it out.", name, "unsupported_parameter")
    _check_spelling(body)
    options = body.get("stream_options")
    if options is not None and not isinstance(options, dict):
        raise bad_request("stream_options must be an object.", "stream_options")
    return ChatRequest(
        model,
        _messages(body.get("messages")),
        _sampling(body),
        _max_tokens(body),
        _flag(body, "stream"),
        _flag(options or {}, "include_usage", "stream_options."),
    )


def _check_spelling(body: Mapping[str, Any]) -> None:
    """Raise ``APIError`` for a field that is nearly one of the API's, which nobody would miss until the answer."""
    known = {*_READ, *_NEUTRAL}
    for name in itertools.islice((name for name in body if name not in known), MAX_UNKNOWN):
        if len(name) > MAX_NAME or not name.isascii():
            continue
        if near := difflib.get_close_matches(name.lower(), _READ, 1, 0.8):
            raise bad_request(f"There is no field {name!r}: did you mean {near[0]}?", name, "unknown_parameter")


def _flag(body: Mapping[str, Any], name: str, where: str = "") -> bool:
    value = body.get(name)
    if value is not None and not isinstance(value, bool):
        raise bad_request(f"{where}{name} must be true or false.", f"{where}{name}")
    return bool(value)


def _max_tokens(body: Mapping[str, Any]) -> int | None:
    for name in ("max_completion_tokens", "max_tokens"):
        value = body.get(name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise bad_request(f"{name} must be a whole number of at least 1.", name)
        return value
    return None


def _sampling(body: Mapping[str, Any]) -> Sampling:
    stop = body.get("stop")
    stops = () if stop is None else (stop,) if isinstance(stop, str) else stop
    top = body.get("top_logprobs")
    wanted = _flag(body, "logprobs")
    if top is not None and not wanted:
        raise bad_request("top_logprobs needs logprobs: true.", "top_logprobs")
    values: dict[str, Any] = {
        name: body[name] for name in ("temperature", "top_p", "seed") if body.get(name) is not None
    }
    values["stop"] = tuple(stops) if isinstance(stops, (list, tuple)) else stops
    if wanted:
        values["logprobs"] = 0 if top is None else top
    try:
        return Sampling(**values)
    except KVMMError as error:
        name = str(error).partition(" ")[0].rstrip(":")
        raise bad_request(str(error), "top_logprobs" if name == "logprobs" else name) from None


def _messages(given: Any) -> tuple[Message, ...]:
    if not isinstance(given, list) or not given:
        raise bad_request("messages must be a list with at least one message.", "messages")
    if len(given) > MAX_MESSAGES:
        raise bad_request(f"There are {len(given)} messages and may be {MAX_MESSAGES}: send fewer.", "messages")
    messages = tuple(_message(one, f"messages[{i}]") for i, one in enumerate(given))
    if messages[-1].role != "user":
        raise bad_request("The last message must be the user's: it is what is answered.", "messages")
    characters = sum(len(part) for one in messages for part in one.parts if isinstance(part, str))
    if characters > MAX_CHARACTERS:
        raise bad_request(f"The texts have {characters:,} characters and may have {MAX_CHARACTERS:,}.", "messages")
    if any(not _is_unicode(part) for one in messages for part in one.parts if isinstance(part, str)):
        raise bad_request("A text holds half of a surrogate pair, which is no character: send whole ones.", "messages")
    files = sum(isinstance(part, File) for one in messages for part in one.parts)
    if files > MAX_MEDIA:
        raise bad_request(f"There are {files} files and may be {MAX_MEDIA}: send fewer.", "messages")
    return messages


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _message(given: Any, where: str) -> Message:
    role = given.get("role") if isinstance(given, dict) else None
    if not isinstance(role, str) or role not in ROLES:
        raise bad_request(f"{where}.role must be one of {', '.join(ROLES)}.", f"{where}.role")
    if given.get("tool_calls") or given.get("function_call"):
        raise bad_request(f"{where}: tools are not supported here.", where, "unsupported_parameter")
    content = given.get("content")
    if isinstance(content, str):
        return Message(ROLES[role], (content,))
    if not isinstance(content, list) or not content or len(content) > MAX_PARTS:
        raise bad_request(f"{where}.content must be a text or a list of 1 to {MAX_PARTS} parts.", f"{where}.content")
    parts = tuple(_part(one, f"{where}.content[{i}]") for i, one in enumerate(content))
    if role != "user" and any(isinstance(part, File) for part in parts):
        raise bad_request(f"{where}: files belong into messages of the user.", f"{where}.content")
    return Message(ROLES[role], parts)


def _part(given: Any, where: str) -> str | File:
    kind = given.get("type") if isinstance(given, dict) else None
    if kind == "text" and isinstance(given.get("text"), str):
        return given["text"]
    inner = given.get(kind) if kind in ("image_url", "input_audio", "file") else None
    if kind == "image_url" and isinstance(inner, str):
        inner = {"url": inner}
    if not isinstance(inner, dict):
        raise bad_request(f"{where} must be a part of type text, image_url, input_audio or file.", where)
    if kind == "image_url":
        return File("image", _data_url(inner.get("url"), f"{where}.image_url.url"), "The image", where)
    if kind == "input_audio":
        data = inner.get("data")
        if not isinstance(data, str):
            raise bad_request(f"{where}.input_audio.data must be a recording in base64.", where)
        return File("audio", data.rpartition(",")[2] if data.startswith("data:") else data, "The recording", where)
    if inner.get("file_data") is None:
        raise bad_request(f"{where}.file needs file_data: there are no uploaded files here.", where)
    name = inner.get("filename")
    name = "".join(c for c in name[:200] if c.isprintable()).strip() if isinstance(name, str) else ""
    name = name or "The file"
    return File("document", _data_url(inner["file_data"], f"{where}.file.file_data", bare=True), name, where)


def _data_url(value: Any, where: str, *, bare: bool = False) -> str:
    """The base64 text of a data URL; ``bare``: it may also stand alone."""
    if not isinstance(value, str):
        raise bad_request(f"{where} must be a data URL.", where)
    if not value.startswith("data:"):
        if bare and "://" not in value[:16]:
            return value
        raise bad_request(f"{where} must be a data URL (data:...;base64,...): addresses are not fetched.", where)
    head, comma, data = value.partition(",")
    if not comma or not head.endswith(";base64"):
        raise bad_request(f"{where} must be a data URL in base64 (data:...;base64,...).", where)
    return data


# --------------------------------------------------------------------------------------------------------------------
# Answers


@dataclass
class Usage:
    """What an answer took. ``cached_tokens`` of the prompt were read before; ``told`` is of its KV cache, and how sure
    the model is; ``accepted`` and ``rejected`` are drafted tokens that were right and wrong."""

    prompt_tokens: int
    completion_tokens: int = 0
    cached_tokens: int = 0
    told: dict[str, Any] = field(default_factory=dict)
    accepted: int = 0
    rejected: int = 0

    def to_dict(self) -> dict[str, Any]:
        """OpenAI's fields, and kvmm's own under ``kvmm``."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens, "audio_tokens": 0},
            "completion_tokens_details": {
                "reasoning_tokens": 0,
                "accepted_prediction_tokens": self.accepted,
                "rejected_prediction_tokens": self.rejected,
            },
            "kvmm": self.told,
        }


@dataclass(frozen=True)
class TokenLogprob:
    """A token as text with its log-probability, and the most likely ones."""

    text: str
    content: bytes
    logprob: float
    top: Sequence[tuple[str, bytes, float]]

    def to_dict(self) -> dict[str, Any]:
        """An entry of ``logprobs.content``."""
        top = [{"token": text, "logprob": p, "bytes": list(content)} for text, content, p in self.top]
        return {"token": self.text, "logprob": self.logprob, "bytes": list(self.content), "top_logprobs": top}


@dataclass(frozen=True)
class Reply:
    """The fields that all objects of one answer share."""

    id: str
    model: str
    created: int = field(default_factory=lambda: int(time.time()))

    def completion(
        self, text: str, finish_reason: str, logprobs: Sequence[TokenLogprob] | None, usage: Usage
    ) -> dict[str, Any]:
        """A whole answer."""
        message = {"role": "assistant", "content": text, "refusal": None}
        choice = {"index": 0, "message": message, "logprobs": _logprobs(logprobs), "finish_reason": finish_reason}
        return self._object("chat.completion", [choice]) | {"usage": usage.to_dict()}

    def chunk(
        self, delta: Mapping[str, Any], finish_reason: str | None = None, logprobs: Sequence[TokenLogprob] | None = None
    ) -> dict[str, Any]:
        """A piece of a streamed answer."""
        choice = {"index": 0, "delta": dict(delta), "logprobs": _logprobs(logprobs), "finish_reason": finish_reason}
        return self._object("chat.completion.chunk", [choice])

    def usage_chunk(self, usage: Usage) -> dict[str, Any]:
        """The last piece, where usage was asked for."""
        return self._object("chat.completion.chunk", []) | {"usage": usage.to_dict()}

    def _object(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        shared = {"id": self.id, "object": kind, "created": self.created, "model": self.model}
        return {**shared, "system_fingerprint": None, "choices": choices}


def _logprobs(entries: Sequence[TokenLogprob] | None) -> dict[str, Any] | None:
    return None if entries is None else {"content": [one.to_dict() for one in entries], "refusal": None}


__all__ = ["APIError", "ChatRequest", "File", "Message", "Reply", "TokenLogprob", "Usage", "parse_request"]
