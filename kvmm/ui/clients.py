"""Who sends a request, as far as the server can know without a cookie: an address, and how much of it is let through.

Behind a proxy the address is the one it forwards (``X-Forwarded-For``), which uvicorn believes from ``127.0.0.1`` and
from ``FORWARDED_ALLOW_IPS`` alone; of a proxy that forwards none, all visitors have one address.
"""

from __future__ import annotations

import ipaddress
import threading
import time
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

NETWORK_BITS = 64  # of an IPv6 address that name the network of one client, which has all addresses in it
MAX_BUCKETS = 1000  # above, those of clients that have been quiet are forgotten

# emptied as the request ends: tasks that it started, such as the queue's worker, go on with a copy of its context
_client: ContextVar[list[str]] = ContextVar("client", default=[])  # noqa: B039


def address_of(scope: dict[str, Any]) -> str:
    """The address of a request's sender, the network of an IPv6 address; empty if unknown."""
    host = (scope.get("client") or ("",))[0] or ""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:  # a socket file, a test
        return host
    if address.version == 6 and address.ipv4_mapped:
        return str(address.ipv4_mapped)
    if address.version == 6 and not address.is_loopback:
        return str(ipaddress.ip_network((int(address), NETWORK_BITS), strict=False))
    return str(address)


def current_client() -> str | None:
    """The address that sent the request which is being handled; None outside of one, as in the queue's worker."""
    return next(iter(_client.get()), None)


class ClientAddress:
    """ASGI middleware by which :func:`current_client` knows the sender."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        address = [address_of(scope)]
        token = _client.set(address)
        try:
            await self.app(scope, receive, send)
        finally:
            address.clear()
            _client.reset(token)


class Rate:
    """How often each client may do something.

    Args:
        per_second: in the long run.
        burst: at once, by a client that has been quiet.
        now: a clock in seconds.
    """

    def __init__(self, per_second: float, burst: int, now: Callable[[], float] = time.monotonic) -> None:
        self.per_second, self.burst, self.now = per_second, burst, now
        self._buckets: dict[str, tuple[float, float]] = {}  # what is left, and when that was, by client
        self._lock = threading.Lock()

    def takes(self, client: str) -> bool:
        """Whether ``client`` may once more, which counts if so."""
        with self._lock:
            left = self._left(client)
            if len(self._buckets) >= MAX_BUCKETS:
                self._buckets = {one: it for one, it in self._buckets.items() if self._left(one) < self.burst}
            if left < 1:
                return False
            self._buckets[client] = left - 1, self.now()
            return True

    def _left(self, client: str) -> float:
        left, when = self._buckets.get(client, (self.burst, self.now()))
        return min(self.burst, left + max(0.0, self.now() - when) * self.per_second)


__all__ = ["ClientAddress", "Rate", "address_of", "current_client"]
