"""Warming up: one-time work of a process is done before answers are timed and compared.

The first answer of a process compiles kernels, reads weights from disk for the first time and fills the libraries'
caches. Whichever side went first would pay for both. So each side first answers a short question about one medium of
each kind, in a conversation of its own that is thrown away.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from kvmm.media import Media
from kvmm.models.conversation import Conversation

QUESTION = "What is this?"
WARM_TOKENS = 4  # the first of the prompt, then steps that pack, read what is packed, and add to it
_warm: WeakKeyDictionary[Any, set[tuple[Any, ...]]] = WeakKeyDictionary()  # model -> sides and kinds that are


def warm_up(
    conversations: Iterable[Conversation], media: Sequence[Media] = (), stop: threading.Event | None = None
) -> None:
    """Warm every side up, in the order given, unless it is warm for these kinds of media.

    Args:
        conversations: the sides; nothing is added to them.
        media: what will be asked about; the first of each kind is read.
        stop: set it to end early.
    """
    first = _first_of_each_kind(media)
    for side, key in _cold(conversations, first):
        twin = Conversation(side.model, side.processor, side.policy, graph=side.graph, **side.overrides)
        *_, last = twin.ask(QUESTION, list(first.values()), max_new_tokens=WARM_TOKENS, stop=stop)
        if last.stopped:
            return
        _warm[side.model].add(key)


def is_warm(conversations: Iterable[Conversation], media: Sequence[Media] = ()) -> bool:
    """Whether all sides are warm, so that :func:`warm_up` would do nothing."""
    return next(_cold(conversations, _first_of_each_kind(media)), None) is None


def _first_of_each_kind(media: Sequence[Media]) -> dict[str, Media]:
    return {item.kind: item for item in reversed(media)}


def _cold(
    conversations: Iterable[Conversation], kinds: Iterable[str]
) -> Iterator[tuple[Conversation, tuple[Any, ...]]]:
    """The sides that are not warm for these kinds of media, each with its key in the record of warm sides."""
    kinds = frozenset(kinds)
    for side in conversations:
        key = (side.policy, frozenset(side.overrides.items()), kinds)
        if key not in _warm.setdefault(side.model, set()):
            yield side, key


__all__ = ["WARM_TOKENS", "is_warm", "warm_up"]
