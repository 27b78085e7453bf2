"""The body of a request that has to keep arriving: for whatever reads bodies of strangers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

STALL_SECONDS = 60.0  # without a byte of a body, after which its request ends
LEAST_RATE = 16 * 2**10  # bytes a second that a body has to arrive at, after its first STALL_SECONDS


class Paced:
    """An ASGI ``receive`` that raises ``TimeoutError`` for a body which stops arriving, or arrives too slowly.

    Args:
        receive: the server's.
        now: a clock in seconds.
        stall_seconds: longest wait for a message, and what the first bytes may take.
        least_rate: bytes a second after that.
    """

    def __init__(
        self, receive: Any, now: Callable[[], float], stall_seconds: float = STALL_SECONDS, least_rate: int = LEAST_RATE
    ) -> None:
        self._receive, self._now = receive, now
        self._stall_seconds, self._least_rate = stall_seconds, least_rate
        self._until = now() + stall_seconds

    async def __call__(self) -> dict[str, Any]:
        left = self._until - self._now()
        if left <= 0:
            raise TimeoutError
        message = await asyncio.wait_for(self._receive(), min(left, self._stall_seconds))
        self._until += len(message.get("body", b"")) / self._least_rate
        return message


__all__ = ["LEAST_RATE", "STALL_SECONDS", "Paced"]
