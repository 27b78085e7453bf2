"""Bodies of requests: read after the sender is known, bounded in bytes, time and number of values."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request

from kvmm.bounded_json import parse_json
from kvmm.errors import KVMMError
from kvmm.paced import Paced
from kvmm.serve.errors import APIError, bad_request, busy

MAX_VALUES = 2_500_000  # commas and opening brackets of one body: parsed values take up to 64 bytes each
MAX_DIGITS = 20  # of an announced length
BODIES_HELD = 4  # bodies of the largest size that may arrive, or wait for their files to be decoded, at once


@dataclass
class Held:
    """A body that is held; ``nbytes`` of it have arrived."""

    nbytes: int = 0


class Bodies:
    """Reads bodies.

    Args:
        limit: bytes that one may have.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.nbytes = 0  # of all bodies that are held

    @contextmanager
    def holding(self) -> Iterator[Held]:
        """Inside, a body that is read counts among those that are held."""
        held = Held()
        try:
            yield held
        finally:
            self.nbytes -= held.nbytes

    async def read_json(self, request: Request, held: Held) -> Any:
        """The JSON value of a body, which is held until ``held`` ends.

        Raises:
            APIError: 415 for another type, 413 for too large a body, 408 for one that arrives too slowly, 503 where too
                many arrive, 400 for what is not JSON.
        """
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":  # what a page of another site may send without asking is of other types
            raise APIError(415, "Send JSON, with the header Content-Type: application/json.", "unsupported_media_type")
        announced = request.headers.get("content-length")
        if announced is not None and not _is_at_most(announced, self.limit):
            raise self._too_large()
        body = await self._read(request, held)
        if body.count(b",") + body.count(b"[") + body.count(b"{") > MAX_VALUES:
            raise bad_request(f"A body may have {MAX_VALUES:,} values.")
        return await asyncio.to_thread(self._parsed, body)

    async def _read(self, request: Request, held: Held) -> bytes:
        body, more, receive = bytearray(), True, Paced(request.receive, time.monotonic)
        while more:
            try:
                message = await receive()
            except TimeoutError:
                raise APIError(408, "The request arrived too slowly: send it again.", "request_timeout") from None
            if message["type"] == "http.disconnect":
                raise ClientGone
            body += message.get("body", b"")
            more = message.get("more_body", False)
            if len(body) > self.limit:
                raise self._too_large()
            self.nbytes += len(body) - held.nbytes
            held.nbytes = len(body)
            if self.nbytes > BODIES_HELD * self.limit:
                raise busy()
        return bytes(body)

    def _parsed(self, body: bytes) -> Any:
        try:
            return parse_json(body.decode(), "The body", self.limit)
        except UnicodeDecodeError:
            raise bad_request("The body is not JSON in UTF-8.") from None
        except KVMMError as error:
            raise bad_request(str(error)) from None

    def _too_large(self) -> APIError:
        mib = self.limit / 2**20
        return APIError(413, f"The body is larger than {mib:.0f} MiB: send fewer or smaller files.", "body_too_large")


def _is_at_most(announced: str, limit: int) -> bool:
    """Whether a header is a number of at most ``limit``, however many digits it has."""
    return announced.isdecimal() and len(announced) <= MAX_DIGITS and int(announced) <= limit


class ClientGone(Exception):
    """The connection ended: there is nobody to answer."""


__all__ = ["Bodies", "ClientGone", "Held"]
