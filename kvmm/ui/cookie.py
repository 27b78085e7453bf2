"""The token by which the server knows a browser again after a reload.

It is a cookie that scripts cannot read, never part of an address: 32 random bytes that nobody can guess, and the mark
of this installation. Tokens that others made up are replaced when a page is loaded.
"""

from __future__ import annotations

import functools
import hashlib
import hmac
import http.cookies
import secrets
from collections.abc import Mapping
from typing import Any

from kvmm.ui.middleware import path_of
from kvmm.ui.signing import app_key

NAME = "kvmm-visitor"
MAX_AGE_SECONDS = 7 * 24 * 60 * 60  # of the cookie; how long conversations live is the server's matter


@functools.cache
def visitor_key() -> bytes:
    """The key behind the marks, the same in all of this process."""
    return app_key()


def new_token(key: bytes) -> str:
    """A token that nobody can guess."""
    secret = secrets.token_urlsafe(32)
    return f"{secret}.{_mark(secret, key)}"


def is_token(token: str | None, key: bytes) -> bool:
    """Whether this installation made ``token``."""
    secret, _, mark = (token or "").partition(".")
    return bool(secret) and token.isascii() and hmac.compare_digest(mark, _mark(secret, key))


def token_of(headers: Mapping[str, str] | None, key: bytes, port: int | None = None) -> str | None:
    """The token in the cookies of a request; None without a valid one."""
    cookies: http.cookies.SimpleCookie = http.cookies.SimpleCookie()
    try:
        cookies.load((headers or {}).get("cookie") or "")
    except http.cookies.CookieError:
        return None
    found = cookies.get(_name(port))
    return found.value if found is not None and is_token(found.value, key) else None


def token_of_request(request: Any, key: bytes) -> str | None:
    """The token of a Gradio request; None for callers without cookies."""
    inner = getattr(request, "request", None)
    scope = getattr(inner, "scope", None) or {}
    try:
        return token_of(request.headers, key, _port(scope))
    except AttributeError:
        return None


def _name(port: int | None) -> str:
    # browsers do not keep the cookies of two ports of one host apart
    return NAME if port is None else f"{NAME}-{port}"


def _port(scope: Mapping[str, Any]) -> int | None:
    server = scope.get("server")
    return server[1] if server else None


def _mark(secret: str, key: bytes) -> str:
    return hmac.new(key, f"visitor {secret}".encode(), hashlib.sha256).hexdigest()


class VisitorCookie:
    """ASGI middleware that gives a browser its token with the page. Streams pass through untouched."""

    def __init__(self, app: Any, key: bytes | None = None) -> None:
        self.app, self.key = app, key or visitor_key()

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] != "http" or scope["method"] != "GET" or path_of(scope) != "/":
            await self.app(scope, receive, send)
            return
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        port = _port(scope)
        token = token_of(headers, self.key, port) or new_token(self.key)
        secure = "; Secure" if scope.get("scheme") == "https" else ""
        cookie = f"{_name(port)}={token}; Path=/; Max-Age={MAX_AGE_SECONDS}; HttpOnly; SameSite=Lax{secure}"

        async def send_with_cookie(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.start":
                others = [pair for pair in message.get("headers", ()) if pair[0].lower() != b"cache-control"]
                own = [(b"set-cookie", cookie.encode()), (b"cache-control", b"private, no-store")]
                message["headers"] = [*others, *own]  # a shared cache would give one visitor's token to another
            await send(message)

        await self.app(scope, receive, send_with_cookie)


__all__ = ["VisitorCookie", "is_token", "new_token", "token_of", "token_of_request", "visitor_key"]
