"""The kinds of documents: a function each, in a file of its own in ``kinds/``, joined by a decorator."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from functools import lru_cache

from training.office.document import Document

Kind = Callable[[Document], None]
_KINDS: dict[str, tuple[Kind, float]] = {}


def kind(name: str, weight: float = 1.0) -> Callable[[Kind], Kind]:
    """Registers a function that fills a :class:`Document` as pages of kind ``name``.

    Raises:
        ValueError: the name is taken.
    """

    def register(function: Kind) -> Kind:
        if name in _KINDS:
            raise ValueError(f"two kinds of documents are called {name}")
        _KINDS[name] = function, weight
        return function

    return register


@lru_cache(None)
def kinds() -> dict[str, tuple[Kind, float]]:
    """All kinds by name, with their weights."""
    from training.office import kinds as package

    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")
    return dict(sorted(_KINDS.items()))
