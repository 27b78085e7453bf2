"""Tool calls in answers, checked against the schema of the tools (the schema-integrity witness of Spherical KV).

A compressed cache may keep an answer fluent and break its form. A call counts as valid if it is JSON, names a tool and
has the arguments that the tool's JSON Schema asks for; schemas are those that ``transformers.utils.get_json_schema``
makes of a function, which chat templates show to a model.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jsonschema import Draft202012Validator, SchemaError

from kvmm.errors import KVMMError

_TAGGED = re.compile(r"<tool_call>\s*(.*?)\s*(?:</tool_call>|$)", re.DOTALL)
_FENCED = re.compile(r"```(?:json)?\s*(.*?)\s*```", re.DOTALL)
_LONGEST = 1 << 16  # characters of an answer that are read


@dataclass(frozen=True)
class SchemaIntegrity:
    """Tool calls of a policy against those of full precision.

    ``valid_full`` and ``valid`` are shares of the answers that are a valid call; ``kept`` is the share of those valid
    in full precision that the policy's answers are too, None if there are none; ``same`` of those that name the same
    tool with the same arguments.
    """

    answers: int
    valid_full: float
    valid: float
    kept: float | None
    same: float | None


class ToolSchemas:
    """Tools by name.

    Args:
        schemas: as ``transformers.utils.get_json_schema`` returns them: ``{"type": "function", "function": {"name",
            "parameters"}}``.

    Raises:
        KVMMError: for something that is not such a schema.
    """

    def __init__(self, schemas: Sequence[Mapping[str, Any]]):
        self._validators = {}
        for schema in schemas:
            function = schema.get("function") if isinstance(schema, Mapping) else None
            if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
                raise KVMMError("A tool's schema needs a function with a name and parameters.")
            parameters = function.get("parameters") or {"type": "object"}
            try:
                parameters = dict(parameters)
                Draft202012Validator.check_schema(parameters)
            except (TypeError, ValueError, SchemaError) as error:
                reason = getattr(error, "message", "an object is needed")
                raise KVMMError(f"The parameters of tool {function['name']} are no JSON Schema ({reason}).") from None
            parameters.setdefault("additionalProperties", False)
            self._validators[function["name"]] = Draft202012Validator(parameters)

    def call(self, text: str) -> dict[str, Any] | None:
        """The valid tool call that an answer is: ``name`` and ``arguments``; None if it is none.

        It stands alone, between ``<tool_call>`` tags, or in a fenced block.
        """
        text = text[:_LONGEST].strip()
        found = _TAGGED.search(text) or _FENCED.search(text)
        try:
            call = json.loads(found[1] if found else text)
        except (ValueError, RecursionError):
            return None
        if not isinstance(call, dict) or set(call) != {"name", "arguments"}:
            return None
        name, arguments = call["name"], call["arguments"]
        validator = self._validators.get(name) if isinstance(name, str) else None
        return call if validator is not None and validator.is_valid(arguments) else None


def schema_integrity(full: Sequence[str], policy: Sequence[str], schemas: ToolSchemas) -> SchemaIntegrity:
    """Compare the tool calls in answers to the same prompts, in the same order.

    Raises:
        KVMMError: without pairs.
    """
    if not full or len(full) != len(policy):
        raise KVMMError(f"There are {len(full)} answers in full precision and {len(policy)} to compare; pass pairs.")
    pairs = [(schemas.call(f), schemas.call(p)) for f, p in zip(full, policy, strict=True)]
    valid = [(f, p) for f, p in pairs if f is not None]
    return SchemaIntegrity(
        answers=len(pairs),
        valid_full=len(valid) / len(pairs),
        valid=sum(p is not None for _, p in pairs) / len(pairs),
        kept=sum(p is not None for _, p in valid) / len(valid) if valid else None,
        same=sum(p == f for f, p in valid) / len(valid) if valid else None,
    )


__all__ = ["SchemaIntegrity", "ToolSchemas", "schema_integrity"]
