"""Dataclasses as the schema of JSON files: which fields a file must have, and of which types."""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Mapping
from typing import Any


def fields_of(cls: type) -> dict[str, dict[str, str]]:
    """``{class: {field: type}}`` of a dataclass and of all that it holds."""
    fields: dict[str, dict[str, str]] = {cls.__name__: {f.name: str(f.type) for f in dataclasses.fields(cls)}}
    for hint in typing.get_type_hints(cls).values():
        for part in (hint, *typing.get_args(hint)):
            if dataclasses.is_dataclass(part):
                fields |= fields_of(part)
    return fields


def problems_of(hint: Any, value: Any, where: str, limits: Mapping[str, tuple[float, float]]) -> list[str]:
    """Reasons why a value read from JSON does not match ``hint`` (a dataclass or the type of a field), one line each.

    Checked are presence and type of every field, that numbers are finite, and that those whose field is named in
    ``limits`` lie between the two limits. ``where`` is how the lines call the value.
    """
    if dataclasses.is_dataclass(hint):
        if not isinstance(value, Mapping):
            return [f"{where} is not an object"]
        hints = typing.get_type_hints(hint)
        faults = [f"{where}.{name} is missing" for name in hints if name not in value]
        faults += [f"{where}.{name} is unknown" for name in value if name not in hints]
        for name in hints:
            if name in value:
                faults += problems_of(hints[name], value[name], f"{where}.{name}", limits)
        return faults
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        if value is None:
            return [] if type(None) in args else [f"{where} is null"]
        return problems_of(next(arg for arg in args if arg is not type(None)), value, where, limits)
    if origin is tuple:
        if not isinstance(value, list):
            return [f"{where} is not a list"]
        items = (problems_of(args[0], item, f"{where}[{i}]", limits) for i, item in enumerate(value))
        return [problem for problems in items for problem in problems]
    if origin is dict:
        return [] if isinstance(value, Mapping) else [f"{where} is not an object"]
    if hint is float or hint is int:
        number = isinstance(value, int if hint is int else (int, float)) and not isinstance(value, bool)
        if not number or not math.isfinite(value):
            return [f"{where} is not a finite {'whole ' if hint is int else ''}number"]
        low, high = limits.get(where.rpartition(".")[2], (-math.inf, math.inf))
        return [] if low <= value <= high else [f"{where} is out of range: {value}"]
    return [] if isinstance(value, hint) else [f"{where} is not a {hint.__name__}"]


def build(hint: Any, value: Any) -> Any:
    """The ``hint`` that :func:`problems_of` found nothing wrong with."""
    if dataclasses.is_dataclass(hint):
        hints = typing.get_type_hints(hint)
        return hint(**{f.name: build(hints[f.name], value[f.name]) for f in dataclasses.fields(hint)})
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return None if value is None else build(next(arg for arg in args if arg is not type(None)), value)
    if origin is tuple:
        return tuple(build(args[0], item) for item in value)
    return float(value) if hint is float else value


__all__ = ["build", "fields_of", "problems_of"]
