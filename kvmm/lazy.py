"""Packages that import a name when it is first used (PEP 562): ``kvmm --help`` must not wait for torch."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any


def lazy_names(package: str, homes: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """``__getattr__`` and ``__dir__`` of a package.

    Args:
        package: its ``__name__``.
        homes: ``{name: module that defines it}``. Submodules are found without being named here, as they would be in a
            package that imports them all.
    """

    def get(name: str) -> Any:
        if name in homes:
            value = getattr(importlib.import_module(homes[name]), name)
            setattr(sys.modules[package], name, value)  # the next access does not come here
            return value
        if not name.startswith("_"):
            module = f"{package}.{name}"
            try:
                return importlib.import_module(module)
            except ModuleNotFoundError as error:
                if error.name != module:  # a submodule that lacks one of its dependencies
                    raise
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *homes})

    return get, names
