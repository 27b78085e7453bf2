"""The models of an app: named when it starts, loaded once at their first use, shared by all visitors."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from kvmm.errors import KVMMError
from kvmm.models import Conversation, load_model
from kvmm.models.loading import EMBEDDED_MODELS, assets_folder, default_model, embedded_folder
from kvmm.models.packaged import PACKAGED

Loaded = tuple[Any, Any]  # a model and its processor


class Models:
    """Names and how to load them; the first is the default.

    Args:
        loaders: ``{name: function that returns (model, processor)}``, at least one.
    """

    def __init__(self, loaders: Mapping[str, Callable[[], Loaded]]) -> None:
        self._loaders = dict(loaders)
        self._loaded: dict[str, Loaded] = {}
        self._loading = threading.Lock()

    @classmethod
    def of(cls, model: Any, processor: Any, name: str | None = None) -> Models:
        """One model that is loaded already; its name is that of its folder if none is given."""
        name = name or (_short(model.name_or_path) if model.name_or_path else type(model).__name__)
        return cls({name: lambda: (model, processor)})

    @classmethod
    def named(cls, names: Sequence[str | None], **options: Any) -> Models:
        """Folders or hub ids; None is the default one. ``options`` go to ``load_model``. A folder that is named twice
        is offered once.

        Visitors see the last part of a folder's path, all of it where two folders share that or where it is the name of
        a model that comes with the app.
        """
        places = {_place(name): name for name in reversed(names)}  # the first name of each counts
        names = [name for name in dict.fromkeys(names) if places[_place(name)] == name] or [None]
        short = [_short(name) for name in names]
        whole = [name or str(default_model()) for name in names]
        shown = [one if short.count(one) == 1 else path for one, path in zip(short, whole, strict=True)]
        return cls({one: partial(load_model, name, **options) for one, name in zip(shown, names, strict=True)})

    @property
    def names(self) -> list[str]:
        """All names, the default first."""
        return list(self._loaders)

    @property
    def default(self) -> str:
        """The name of the model that is selected first."""
        return self.names[0]

    @property
    def remote(self) -> str | None:
        """The address of the server that has the models; None where they are this app's own."""
        return None

    def converse(self, name: str | None, policy: Any, **options: Any) -> Conversation:
        """A new conversation with a model, whose cache is of ``policy``; ``options`` as in :class:`Conversation`.

        Raises:
            KVMMError: as :meth:`get`, or the policy does not suit the model.
        """
        return Conversation(*self.get(name), policy=policy, **options)

    def get(self, name: str | None = None) -> Loaded:
        """The model and its processor, loaded now if nobody has used it yet.

        Raises:
            KVMMError: the name is not one of ``names`` (visitors never name paths), or it cannot be loaded.
        """
        name = self.default if name is None else name
        if name not in self._loaders:
            raise KVMMError(f"There is no model {name!r} here; choose one of: {', '.join(self.names)}.")
        with self._loading:
            if name not in self._loaded:
                self._loaded[name] = self._loaders[name]()
            return self._loaded[name]

    def is_loaded(self, name: str) -> bool:
        """Whether ``get`` returns at once."""
        return name in self._loaded


def _place(name: str | None) -> str:
    """What tells models apart: a folder, or an id of the hub."""
    folder = default_model() if name is None else embedded_folder(name)
    return str(folder.resolve()) if folder.is_dir() else str(name)


def _short(name: str | None) -> str:
    """What visitors see of a model's name; those of the app's own models are of their folders in assets alone."""
    folder = embedded_folder(name) if name else default_model()
    if not folder.is_dir():
        return name or folder.name
    folder, assets = folder.resolve(), assets_folder().resolve()
    taken = folder.name in (*EMBEDDED_MODELS, *PACKAGED) and folder.parent != assets
    return str(folder) if taken else folder.name


__all__ = ["Models"]
