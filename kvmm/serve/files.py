"""Files that came before, as they were decoded and as the model's processor made tensors of them.

A second question about a document finds its packed tokens, but the processor, which also says how many tokens a picture
has, wants the pictures again. Decoding a page and making its pixels takes longer than reading a question, so both are
kept for a while, the least recently used dropped beyond a number of bytes.
"""

from __future__ import annotations

import copy
import hashlib
import sys
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any

import numpy as np
import torch
from PIL import Image

from kvmm.media import Media

MAX_KEPT = 512 * 2**20  # bytes of decoded files and of their tensors
ENTRY_NBYTES = 2048  # of Python's objects around them, about: a picture of one pixel takes that, too
_PARTS = ("image_processor", "feature_extractor", "audio_processor")  # of a processor, each makes tensors of media


class _Unknown(Exception):
    """A call has an argument of which nobody knows whether it changes."""


class HeldMemory:
    """Bytes of pictures, arrays, tensors and texts that several may hold at once, each counted once. Its user sees to
    it that one thread at a time calls it.

    Attributes:
        nbytes: of what is held now.
    """

    def __init__(self) -> None:
        self.nbytes = 0
        self._references: Counter[int] = Counter()  # by address of memory
        self._counted: dict[int, int] = {}  # bytes by address

    def hold(self, parts: Iterable[Any]) -> list[int]:
        """Count these; returns the addresses, which :meth:`release` takes."""
        sizes = dict(_memory(part) for part in parts)
        for address, nbytes in sizes.items():
            # what lay there before may be gone already, though nobody has released it yet
            more = max(nbytes - self._counted.get(address, 0), 0)
            self._counted[address] = self._counted.get(address, 0) + more
            self._references[address] += 1
            self.nbytes += more
        return list(sizes)

    def release(self, addresses: Iterable[int]) -> None:
        """Count them no more."""
        for address in addresses:
            self._references[address] -= 1
            if not self._references[address]:
                del self._references[address]
                self.nbytes -= self._counted.pop(address)


class KeptFiles:
    """What was made of files, found by who sent them and their content; any number of threads may use it.

    Args:
        budget: bytes of everything that is kept; a picture counts once, though its tensors are kept together with it.
    """

    def __init__(self, budget: int = MAX_KEPT) -> None:
        self.budget = budget
        self._guard, self._memory = threading.Lock(), HeldMemory()
        self._kept: OrderedDict[Hashable, tuple[Any, list[int]]] = OrderedDict()  # the least recently used first

    @property
    def nbytes(self) -> int:
        """Bytes of what is kept now."""
        return self._memory.nbytes + ENTRY_NBYTES * len(self._kept)

    def media(self, owner: str, content: bytes, decode: Callable[[], list[Media]]) -> tuple[bytes, list[Media]]:
        """The SHA-256 of a file's content, and the media in it: those kept for the same owner, or what ``decode()``
        returns. Others may hold the same media, so nobody changes them."""
        digest = hashlib.sha256(content).digest()
        found = self.get((owner, digest))
        if found is None:
            items = decode()
            found = self.put((owner, digest), items, [part for item in items for part in (item.data, item.text)])
        return digest, found

    def processor(self, processor: Any) -> Any:
        """A copy of a processor that keeps what its parts make of media, for calls with the same media objects."""
        twin = copy.copy(processor)
        for name in _PARTS:
            if (part := vars(processor).get(name)) is not None:
                setattr(twin, name, _KeepingPart(part, name, self))
        return twin

    def get(self, key: Hashable) -> Any | None:
        """What is kept under a key, or None."""
        with self._guard:
            if key not in self._kept:
                return None
            self._kept.move_to_end(key)
            return self._kept[key][0]

    def put(self, key: Hashable, value: Any, parts: Iterable[Any]) -> Any:
        """Keep something, unless it is larger than the budget.

        Args:
            key: it is found by.
            value: what is kept.
            parts: the pictures, arrays, tensors and texts that it holds.

        Returns:
            what another thread has put there before, else ``value``.
        """
        parts = list(parts)
        size = ENTRY_NBYTES + sum(dict(map(_memory, parts)).values())
        with self._guard:
            if key in self._kept:
                return self._kept[key][0]
            if size <= self.budget:
                self._kept[key] = value, self._memory.hold(parts)
            while self.nbytes > self.budget:
                _, addresses = self._kept.popitem(last=False)[1]
                self._memory.release(addresses)
            return value


class _KeepingPart:
    """An image processor or a feature extractor; in everything but its calls the one that it was made of."""

    def __init__(self, part: Any, name: str, kept: KeptFiles) -> None:
        self._part, self._name, self._kept = part, name, kept

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # Python's own protocols: a copy has no part yet
            raise AttributeError(name)
        return getattr(self._part, name)

    def __call__(self, *args: Any, **options: Any) -> Any:
        held: list[Any] = []  # with the result, so that no other object gets their identity
        try:
            key = self._name, _key_of(args, held), _key_of(options, held)
        except _Unknown:
            return self._part(*args, **options)
        found = self._kept.get(key)
        if found is None:
            result = self._part(*args, **options)
            found = result, held
            tensors = [x for x in result.values() if isinstance(x, (torch.Tensor, np.ndarray))]
            self._kept.put(key, found, [*tensors, *held])
        return copy.copy(found[0])  # processors take entries out of it


def _key_of(value: Any, held: list[Any]) -> Hashable:
    """What tells an argument from others: the identity of pixels and samples, which are put into ``held``."""
    if isinstance(value, (Image.Image, np.ndarray)):
        held.append(value)
        return type(value).__name__, id(value)
    if isinstance(value, (list, tuple)):
        return type(value).__name__, *(_key_of(one, held) for one in value)
    if isinstance(value, Mapping):
        return "mapping", *((name, _key_of(one, held)) for name, one in sorted(value.items()))
    if value is None or isinstance(value, (bool, int, float, str)):
        return type(value).__name__, value
    raise _Unknown


def _memory(part: Any) -> tuple[int, int]:
    """The address and the bytes of the memory of a picture, an array, a tensor or a text."""
    if isinstance(part, torch.Tensor):  # which may show some of it only
        storage = part.untyped_storage()
        return storage.data_ptr(), storage.nbytes()
    if isinstance(part, Image.Image):
        return id(part), 4 * part.width * part.height  # as Pillow holds RGB
    return id(part), part.nbytes if isinstance(part, np.ndarray) else sys.getsizeof(part)


__all__ = ["ENTRY_NBYTES", "MAX_KEPT", "HeldMemory", "KeptFiles"]
