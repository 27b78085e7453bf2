"""Options of a task as text: ``lengths=500+1000,seed=3``."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from kvmm.errors import KVMMError
from kvmm.eval.tasks.base import Task


def whole_numbers(text: str) -> tuple[int, ...]:
    """ "500+1000" -> (500, 1000)."""
    return tuple(int(part) for part in text.split("+"))


def numbers(text: str) -> tuple[float, ...]:
    """ "0+0.5" -> (0.0, 0.5)."""
    return tuple(float(part) for part in text.split("+"))


def switch(text: str) -> bool:
    """ "yes" or "no" -> True or False."""
    if text.lower() not in ("yes", "no"):
        raise ValueError("give yes or no")
    return text.lower() == "yes"


def function(text: str) -> Callable[..., Any]:
    """The function that a dotted path names; its module is imported."""
    module, _, name = text.rpartition(".")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise KVMMError(f"{text} cannot be imported ({error}): give package.module.function.") from error


def parse_options(kind: type[Task], text: str) -> dict[str, Any]:
    """The options that a text gives to a kind of task.

    Raises:
        KVMMError: the task has no such option, or the value is not of its kind.
    """
    options: dict[str, Any] = {}
    for part in text.split(","):
        name, _, value = part.partition("=")
        if name not in kind.options:
            option_names = ", ".join(kind.options) or "it has none"
            raise KVMMError(f"The task {kind.name} has no option {name!r}: {option_names}.")
        try:
            options[name] = kind.options[name](value)
        except KVMMError:
            raise
        except ValueError as error:
            raise KVMMError(f"The option {name}={value} of {kind.name} is wrong ({error}).") from error
    return options


__all__ = ["function", "numbers", "parse_options", "switch", "whole_numbers"]
