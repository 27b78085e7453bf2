"""Packed beginnings of prompts, kept for the requests that begin in the same way.

A document that many questions are about is read once: its cache is packed where the document ends and kept under a
SHA-256 of its tokens and media. A request that begins so goes on with a fork, which shares the packed pages until it
adds to them and copies little more than the newest tokens. Answers are kept in the same way, so that a conversation
goes on where it stopped.

Every prefix has a *scope*: that of one API key, or one for all. A prefix is found in its own scope alone.
"""

from __future__ import annotations

import logging
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from kvmm.cache import KVMMCache
from kvmm.cache.memory import storages
from kvmm.errors import KVMMError
from kvmm.serve.disk import DiskPrefixes
from kvmm.serve.prompts import PrefixKeys

logger = logging.getLogger(__name__)
Name = tuple[str, int, str]  # scope, tokens, key


@dataclass
class Prefix:
    """A packed cache that is forked and never written to; ``storages`` are its tensors' memory, by address."""

    name: Name
    cache: KVMMCache
    storages: dict[int, int]


@dataclass
class PrefixCounts:
    """What happened so far, for the metrics."""

    hits: int = 0
    misses: int = 0
    disk_hits: int = 0
    evictions: int = 0
    tokens: Counter[str] = field(default_factory=Counter)  # "read" and "cached"


class PrefixStore:
    """Prefixes in memory, the least recently used dropped beyond a budget; with a folder, also on disk.

    Used by the engine's thread alone.

    Args:
        budget: bytes of all prefixes together; memory that several share counts once.
        disk: where they are written to and found again, or None.
        load: reads a cache from a file of ``disk``.
    """

    def __init__(
        self, budget: int, disk: DiskPrefixes | None = None, load: Callable[[Name], KVMMCache] | None = None
    ) -> None:
        self.budget, self.disk, self._load = budget, disk, load
        self.counts = PrefixCounts()
        self._prefixes: OrderedDict[Name, Prefix] = OrderedDict()  # the least recently used first
        self._lengths: dict[str, Counter[int]] = {}
        self._references: Counter[int] = Counter()  # prefixes by address of memory
        self.nbytes = 0

    def __len__(self) -> int:
        return len(self._prefixes)

    def find(self, scope: str, keys: PrefixKeys, most: int, *, counted: bool = True) -> tuple[KVMMCache, int] | None:
        """A fork of the longest prefix of a prompt that has at most ``most`` tokens, and its length; ``counted``: among
        the hits and misses."""
        for name in self._names(scope, keys, most):
            prefix = self._prefixes.get(name) or self._from_disk(name, counted)
            if prefix is None:
                continue
            if name in self._prefixes:
                self._prefixes.move_to_end(name)
            self.counts.hits += counted
            return prefix.cache.fork(), name[1]
        self.counts.misses += counted
        return None

    def longest(self, scope: str, keys: PrefixKeys, most: int, least: int = 0) -> int:
        """The length of what :meth:`find` finds, unless its file turns out to be damaged, and 0 for one of fewer than
        ``least`` tokens; nothing is counted."""
        on_disk = self.disk.has if self.disk is not None else lambda name: False
        names = self._names(scope, keys, most, least)
        return next((name[1] for name in names if name in self._prefixes or on_disk(name)), 0)

    def _names(self, scope: str, keys: PrefixKeys, most: int, least: int = 0) -> list[Name]:
        """What the prefixes of a prompt that have ``least`` to ``most`` tokens would be called, the longest first."""
        lengths = set(self._lengths.get(scope, ()))
        if self.disk is not None:
            lengths |= self.disk.lengths(scope)
        found = keys.at(length for length in lengths if least <= length <= most)
        return [(scope, length, found[length]) for length in sorted(found, reverse=True)]

    def add(self, scope: str, key: str, length: int, cache: KVMMCache, *, write: bool = False) -> None:
        """Keep a packed cache, which nobody writes to from now on.

        Args:
            scope, key, length: what it is found by.
            cache: of one sequence.
            write: to disk now; else when it has to go from memory.
        """
        name = (scope, length, key)
        if name in self._prefixes:
            self._prefixes.move_to_end(name)
            return
        self._keep(Prefix(name, cache, storages(cache)))
        if write and self.disk is not None:
            self.disk.write(name, cache)

    def _keep(self, prefix: Prefix) -> None:
        self._prefixes[prefix.name] = prefix
        self._lengths.setdefault(prefix.name[0], Counter())[prefix.name[1]] += 1
        for address, nbytes in prefix.storages.items():
            self.nbytes += 0 if self._references[address] else nbytes
            self._references[address] += 1
        while self.nbytes > self.budget and self._prefixes:
            self._drop(next(iter(self._prefixes)))

    def _drop(self, name: Name) -> None:
        prefix = self._prefixes.pop(name)
        lengths = self._lengths[name[0]]
        lengths[name[1]] -= 1
        if not lengths[name[1]]:
            del lengths[name[1]]
        if not lengths:
            del self._lengths[name[0]]
        for address, nbytes in prefix.storages.items():
            self._references[address] -= 1
            if not self._references[address]:
                del self._references[address]
                self.nbytes -= nbytes
        self.counts.evictions += 1
        if self.disk is not None:
            self.disk.write(name, prefix.cache)

    def _from_disk(self, name: Name, counted: bool) -> Prefix | None:
        if self.disk is None or self._load is None or not self.disk.has(name):
            return None
        try:
            prefix = Prefix(name, self._load(name), {})
        except KVMMError as error:  # damaged, or gone: the document is read again
            logger.warning("A prefix on disk cannot be used and is removed: %s", error)
            self.disk.remove(name)
            return None
        self.counts.disk_hits += counted
        prefix.storages = storages(prefix.cache)
        self._keep(prefix)
        return prefix

    def close(self) -> None:
        """Write to disk what is in memory alone, which may take a while."""
        if self.disk is not None:
            left = [prefix for name, prefix in self._prefixes.items() if not self.disk.has(name)]
            if left:
                what = "1 prefix is" if len(left) == 1 else f"{len(left)} prefixes are"
                logger.warning("Stopping: %s written to %s first.", what, self.disk.folder)
            for prefix in left:
                self.disk.write(prefix.name, prefix.cache, wait=True)
            self.disk.close()


__all__ = ["Name", "Prefix", "PrefixCounts", "PrefixStore"]
