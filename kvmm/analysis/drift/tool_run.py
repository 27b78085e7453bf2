"""Asking a model for tool calls under several policies: the file of tools, the run, and what the calls were worth."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvmm.analysis.drift.measure import packed_length
from kvmm.analysis.drift.prompts import tool_prompts
from kvmm.analysis.drift.run import AnswerWriter
from kvmm.analysis.drift.tool_calls import SchemaIntegrity, ToolSchemas, schema_integrity
from kvmm.bounded_json import parse_json
from kvmm.errors import KVMMError
from kvmm.models.caches import DYNAMIC
from kvmm.models.conversation import model_lock
from kvmm.models.documents import Document
from kvmm.policy import KVPolicy

MAX_BYTES = 2**20
MAX_REQUESTS = 1000
MAX_NEW_TOKENS = 96  # a call and its arguments


@dataclass(frozen=True)
class ToolRequests:
    """Tools, as ``transformers.utils.get_json_schema`` writes them, what is asked of them, and calls that were made."""

    tools: tuple[Mapping[str, Any], ...]
    requests: tuple[str, ...]
    examples: tuple[tuple[str, Mapping[str, Any]], ...] = ()


def read_tools(path: Path) -> ToolRequests:
    """The file of ``--tools``: ``{"tools": [schema, ...], "requests": ["...", ...]}``.

    ``"examples": [{"request": "...", "call": {"name", "arguments"}}, ...]`` may be there too; they are put before
    every request.

    Raises:
        KVMMError: it cannot be read, is no such JSON, a tool's parameters are no JSON Schema, or an example's call does
            not meet them.
    """
    try:
        if path.stat().st_size > MAX_BYTES:
            raise KVMMError(f"{path} is larger than {MAX_BYTES >> 20} MiB: name a file of tools.")
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8"
        raise KVMMError(f"{path} cannot be read ({reason}): name a JSON file of tools.") from None
    value = parse_json(text, str(path))
    tools, requests = (value.get(key) if isinstance(value, dict) else None for key in ("tools", "requests"))
    if not isinstance(tools, list) or not tools or not _are_requests(requests):
        raise KVMMError(f'{path} must hold {{"tools": [a JSON Schema each], "requests": [a sentence each]}}.')
    try:
        schemas = ToolSchemas(tools)
    except KVMMError as error:
        raise KVMMError(f"{path}: {error}") from None
    examples = value.get("examples", [])
    if not isinstance(examples, list) or not all(_is_example(one, schemas) for one in examples):
        raise KVMMError(
            f'{path}: each of "examples" is {{"request", "call"}} with a call that the tools\' schemas allow.'
        )
    return ToolRequests(tuple(tools), tuple(requests), tuple((one["request"], one["call"]) for one in examples))


def _is_example(value: Any, schemas: ToolSchemas) -> bool:
    if not isinstance(value, dict) or not isinstance(value.get("request"), str):
        return False
    return schemas.call(json.dumps(value.get("call"))) is not None


def _are_requests(value: Any) -> bool:
    return isinstance(value, list) and 0 < len(value) <= MAX_REQUESTS and all(isinstance(x, str) and x for x in value)


def run_tools(
    model: Any,
    processor: Any,
    asked: ToolRequests,
    policies: Mapping[str, KVPolicy],
    *,
    max_new_tokens: int = MAX_NEW_TOKENS,
    progress: Callable[[int, int], None] | None = None,
    answered: dict[str, list[str]] | None = None,
) -> dict[str, SchemaIntegrity]:
    """Tool calls of every policy beside those of full precision, greedy, by name.

    Args:
        model, processor: as ``load_model`` returns them.
        asked: the tools and requests; each request is a prompt of its own, packed with the tools that it is offered.
        policies: by name.
        max_new_tokens: longest answer.
        progress: as in :func:`kvmm.analysis.drift.run.run_drift`.
        answered: takes the answers of every policy and of ``dynamic``, full precision.
    """
    names = (DYNAMIC, *policies)
    answers: dict[str, list[str]] = {name: [] for name in names}
    write = AnswerWriter(model, processor, temperature=1.0)
    prompts = tool_prompts(processor, asked.tools, asked.requests, asked.examples, model.device)
    for at, prompt in enumerate(prompts):
        with model_lock(model):
            inputs = prompt.encode()
            document = Document(model, inputs, packed_length(model, inputs))
            for done, name in enumerate(names, start=1):
                cache = document.cache(policies.get(name, DYNAMIC))
                answers[name].append(write.answer(write.tokens(inputs, cache, max_new_tokens)).text)
                if progress is not None:
                    progress(at * len(names) + done, len(prompts) * len(names))
    if answered is not None:
        answered |= answers
    schemas = ToolSchemas(asked.tools)
    return {name: schema_integrity(answers[DYNAMIC], answers[name], schemas) for name in policies}


__all__ = ["MAX_NEW_TOKENS", "ToolRequests", "read_tools", "run_tools"]
