"""Answers that are compared start from the same place: what happens once a process happens before either is timed.

The first answer of a process compiles kernels, reads weights from disk for the first time and fills the libraries'
caches. Whichever side went first would pay for both. So each side first answers a short question about one medium of
each kind, in a conversation of its own that is thrown away.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
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
    """Warm every side up, in the order given, unless it was before with the same kinds of media.

    Args:
        conversations: the sides; nothing is added to them.
        media: what will be asked about; the first of each kind is read.
        stop: set it to end early.
    """
    first = {item.kind: item for item in reversed(media)}
    for side in conversations:
        known = _warm.setdefault(side.model, set())
        key = (side.policy, frozenset(side.overrides.items()), frozenset(first))
        if key in known:
            continue
        twin = Conversation(side.model, side.processor, side.policy, graph=side.graph, **side.overrides)
        *_, last = twin.ask(QUESTION, list(first.values()), max_new_tokens=WARM_TOKENS, stop=stop)
        if last.stopped:
            return
        known.add(key)


__all__ = ["WARM_TOKENS", "warm_up"]
