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
from graphlib import CycleError, TopologicalSorter
from typing import Any, NoReturn

from jsonschema import Draft202012Validator, SchemaError
from referencing import Registry
from referencing.exceptions import CannotDetermineSpecification, Unresolvable
from referencing.jsonschema import DRAFT202012, UnknownDialect

from kvmm.errors import KVMMError, one_line

_TAGGED = re.compile(r"<tool_call>\s*(.*?)\s*(?:</tool_call>|$)", re.DOTALL)
_FENCED = re.compile(r"```(?:json)?\s*(.*?)\s*```", re.DOTALL)
_LONGEST = 1 << 16  # characters of an answer that are read
_REFERENCES = ("$ref", "$dynamicRef")
_SAME_VALUE = ("allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas")  # not a part of it
# of a reference, and of an answer that a schema cannot be put to, such as a number too large to divide
_FAILURES = (Unresolvable, UnknownDialect, CannotDetermineSpecification, RecursionError)


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
        KVMMError: for something that is not such a schema, or has a ``$ref`` to what is not in it or, on the same
            value, to itself. Nothing is fetched.
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
                _check_references(parameters)
            except (TypeError, ValueError, SchemaError, *_FAILURES) as error:
                reason = "an object is needed" if isinstance(error, TypeError) else one_line(_reason(error))
                name = one_line(function["name"])
                raise KVMMError(f"The parameters of tool {name} are no JSON Schema ({reason}).") from None
            parameters.setdefault("additionalProperties", False)
            self._validators[function["name"]] = Draft202012Validator(parameters, registry=Registry())

    def call(self, text: str) -> dict[str, Any] | None:
        """The valid tool call that an answer is: ``name`` and ``arguments``; None if it is none.

        It stands alone, between ``<tool_call>`` tags, or in a fenced block.
        """
        text = text[:_LONGEST].strip()
        found = _TAGGED.search(text) or _FENCED.search(text)
        try:
            call = json.loads(found[1] if found else text, parse_constant=_no_json)
        except (ValueError, RecursionError):
            return None
        if not isinstance(call, dict) or set(call) != {"name", "arguments"}:
            return None
        name, arguments = call["name"], call["arguments"]
        validator = self._validators.get(name) if isinstance(name, str) else None
        try:
            return call if validator is not None and validator.is_valid(arguments) else None
        except (ValueError, ArithmeticError, *_FAILURES):
            return None


def _no_json(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def _reason(error: Exception) -> str:
    match error:
        case SchemaError():
            return error.message
        case CycleError():
            return "a $ref leads back to itself"
        case RecursionError():
            return "it is nested too deeply"
        case Unresolvable():
            return f"$ref {getattr(error, 'anchor', error.ref)} is not in it"
    return str(error)


def _check_references(schema: Mapping[str, Any]) -> None:
    """Raise an error of :mod:`referencing` if what a reference names is not in the schema, :class:`SchemaError` if that
    is no schema, and :class:`CycleError` if one leads back to itself before it comes to another part of a value."""
    left = [(schema, Registry().resolver_with_root(DRAFT202012.create_resource(schema)))]
    same: dict[int, list[int]] = {}  # by id, schemas of the same value
    while left:
        one, resolver = left.pop()
        if not isinstance(one, Mapping) or id(one) in same:
            continue
        same[id(one)] = []
        for key in _REFERENCES:
            if key in one:
                found = resolver.lookup(one[key])
                Draft202012Validator.check_schema(found.contents)
                left.append((found.contents, found.resolver))
                same[id(one)].append(id(found.contents))
        for key in _SAME_VALUE:
            inner = one.get(key, [])
            inner = inner if isinstance(inner, list) else inner.values() if key == "dependentSchemas" else [inner]
            same[id(one)] += [id(each) for each in inner if isinstance(each, Mapping)]
        for part in DRAFT202012.create_resource(one).subresources():
            left.append((part.contents, resolver.in_subresource(part)))
    TopologicalSorter(same).prepare()


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
