"""ASGI middlewares in front of Gradio: the login, limits of request bodies, security headers.

Gradio parses bodies before it asks who sent them, holds a JSON body whole whatever its size, and leaves some routes
(MCP, heartbeats, cancelling) open when a login is set. These are ASGI middlewares, so streams pass through untouched.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import json
import secrets
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

from starlette.requests import cookie_parser

from kvmm.paced import LEAST_RATE, STALL_SECONDS, Paced
from kvmm.ui.server.clients import address_of

API = "/gradio_api"
UPLOAD = f"{API}/upload"
MCP = f"{API}/mcp"
LOGIN_BYTES = 16 * 2**10  # of the form with user name and password
JSON_BYTES = 8 * 2**20  # of any body that is no upload; it travels as one text and is held several times
JSON_ITEMS = 50_000  # items of all lists and objects: parsing them blocks the event loop, about 1 us each
LARGE_JSON = 256 * 2**10  # bytes from which a body counts in ...
JSON_IN_FLIGHT = 64 * 2**20  # ... those of all requests that are being received
UPLOAD_EXTRA = 64 * 2**10  # bytes of an upload beside its files: boundaries and names
JSON_OF_CLIENT = JSON_IN_FLIGHT // 2  # ... of them from one address

# Gradio's routes that the app does not use, each a way to files or hosts that are none of a visitor's business:
# links that store the page's state on disk, the proxy, the screen recorder, functions that components export.
CLOSED = tuple(f"{API}/{name}" for name in ("deep_link", "proxy=", "process_recording", "component_server"))
REMOTE_FILES = (f"{API}/file=http:", f"{API}/file=https:", f"{API}/file/http:", f"{API}/file/https:")

# What a browser may ask for before it has logged in: the page with its login form, and the parts of that page.
OPEN = ("/", "/login", "/logout", "/theme.css", "/favicon.ico", "/manifest.json", "/robots.txt", "/pwa_icon")
OPEN_API = (f"{API}/theme.css", f"{API}/startup-events", f"{API}/login_check", f"{API}/app_id")
OPEN_FOLDERS = ("/assets/", "/static/", "/svelte/", "/pwa_icon/")

# Gradio needs inline scripts and styles, and `eval` for the `js=` of its events; nothing comes from another host.
CONTENT_SECURITY_POLICY = "; ".join(
    (
        "default-src 'self'",
        "script-src 'self' 'unsafe-inline' 'unsafe-eval'",
        "style-src 'self' 'unsafe-inline'",
        "img-src 'self' data: blob:",
        "media-src 'self' data: blob:",
        "font-src 'self' data:",
        "connect-src 'self' data: blob:",
        "worker-src 'self' blob:",
        "frame-src 'self' blob:",
        "object-src 'none'",
        "base-uri 'self'",
        "form-action 'self'",
        "frame-ancestors 'self'",
    )
)
HEADERS = (
    (b"content-security-policy", CONTENT_SECURITY_POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"same-origin"),
)

Scope = dict[str, Any]


def path_of(scope: Scope) -> str:
    """The path of a request below the app's root, without a slash at its end; ``/`` for the page."""
    path, root = scope.get("path", ""), urlsplit(scope.get("root_path", "")).path.rstrip("/")  # Gradio's may be a URL
    if f"{path}/".startswith(f"{root}/"):  # a proxy may have taken it away
        path = path[len(root) :]
    return path.rstrip("/") or "/"


def header_of(scope: Scope, name: bytes) -> str:
    """One header of a request; empty without it."""
    return next((value.decode("latin-1") for key, value in scope["headers"] if key.lower() == name), "")


class SecurityHeaders:
    """Send a Content-Security-Policy with everything, and close the routes that no part of the app uses."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def send_with_headers(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.start":
                names = {name for name, _ in HEADERS}
                others = [pair for pair in message.get("headers", ()) if pair[0].lower() not in names]
                message["headers"] = [*others, *HEADERS]
            await send(message)

        path = path_of(scope)
        if path.startswith(CLOSED):
            await refuse(send_with_headers, 404, "This app has no such page.")
        elif path.lower().startswith(REMOTE_FILES):
            await refuse(send_with_headers, 403, "Files of other hosts are not fetched.")
        else:
            await self.app(scope, receive, send_with_headers)


class LoginRequired:
    """Where the app has a login, answer 401 to all but the login page until somebody has logged in.

    A browser shows the cookie of Gradio's login. A program, such as an MCP client, may send the user name and the
    password as HTTP Basic authentication instead. No browser is asked for those: it would send them along with the
    requests of any other site, and after a logout.
    """

    def __init__(self, app: Any) -> None:
        self.app = app
        self._tokens: dict[str, str] = {}  # by user, of those who send their password with every request

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        gradio = scope["app"]
        if gradio.auth is None or self._is_open(scope) or self._has_cookie(scope):
            await self.app(scope, receive, send)
        elif not self._is_foreign(scope) and (user := self._basic_user(scope)):
            await self.app(self._logged_in(scope, user), receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            challenge = [(b"www-authenticate", b'Basic realm="kvmm"')] if self._is_challenged(scope) else None
            await refuse(send, 401, "Not authenticated", challenge)

    @staticmethod
    def _is_open(scope: Scope) -> bool:
        path = path_of(scope)
        if path in ("/", *OPEN_API):
            return scope.get("method") in ("GET", "HEAD")
        return path in OPEN or path.startswith(OPEN_FOLDERS)

    @staticmethod
    def _has_cookie(scope: Scope) -> bool:
        gradio, cookies = scope["app"], cookie_parser(header_of(scope, b"cookie"))
        names = (f"access-token-{gradio.cookie_id}", f"access-token-unsecure-{gradio.cookie_id}")
        return any(cookies[name] in gradio.tokens for name in names if name in cookies)

    @staticmethod
    def _is_challenged(scope: Scope) -> bool:
        """Whether this is an MCP client, which may wait to be asked; a browser would open a dialog over the page."""
        is_mcp = path_of(scope) == MCP or path_of(scope).startswith(f"{MCP}/")
        return is_mcp and not any(header_of(scope, name) for name in (b"sec-fetch-mode", b"sec-fetch-site", b"origin"))

    @staticmethod
    def _is_foreign(scope: Scope) -> bool:
        """Whether a browser sent this for a page of another origin. Programs send neither of the headers."""
        if site := header_of(scope, b"sec-fetch-site"):
            return site not in ("same-origin", "none")
        origin = header_of(scope, b"origin")  # browsers send the other header by HTTPS and to localhost only
        return bool(origin) and origin.partition("://")[2].lower() != header_of(scope, b"host").lower()

    @staticmethod
    def _basic_user(scope: Scope) -> str:
        kind, _, encoded = header_of(scope, b"authorization").partition(" ")
        accounts = scope["app"].auth
        if kind.lower() != "basic" or not isinstance(accounts, Mapping):
            return ""
        try:
            user, _, password = base64.b64decode(encoded, validate=True).decode().partition(":")
        except (binascii.Error, ValueError):
            return ""
        expected = accounts.get(user)
        right = expected is not None and hmac.compare_digest(password.encode(), expected.encode())
        return user if right else ""

    def _logged_in(self, scope: Scope, user: str) -> Scope:
        """The request with the cookie that Gradio's own checks look for."""
        gradio = scope["app"]
        if self._tokens.get(user) not in gradio.tokens:  # a logout ends it, too
            self._tokens[user] = secrets.token_urlsafe(32)
            gradio.tokens[self._tokens[user]] = user
        login_cookie = f"access-token-unsecure-{gradio.cookie_id}={self._tokens[user]}"
        cookies = "; ".join(filter(None, (header_of(scope, b"cookie"), login_cookie)))
        others = [pair for pair in scope["headers"] if pair[0].lower() != b"cookie"]
        return {**scope, "headers": [*others, (b"cookie", cookies.encode("latin-1"))]}


class BodyLimit:
    """Bound the body of every request: its bytes as they arrive, the items of its JSON, and the wait for it.

    Uploads stream through. Any other body is read here and given on whole, so that a parser never sees one which is
    too large.

    Args:
        app: what the requests go to.
        max_upload: bytes of all files of one upload.
        now: a clock in seconds.
    """

    def __init__(self, app: Any, max_upload: int, now: Callable[[], float] = time.monotonic) -> None:
        self.app, self.max_upload, self.now = app, max_upload, now
        self._in_flight = 0
        self._of_client: Counter[str] = Counter()

    def limit(self, path: str) -> int:
        """Bytes that the body of a request to ``path`` may have. A file in base64 is a third larger than itself."""
        if path == UPLOAD:
            return self.max_upload + UPLOAD_EXTRA
        return LOGIN_BYTES if path == "/login" else min(JSON_BYTES, self.max_upload * 4 // 3 + LARGE_JSON)

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        path = path_of(scope)
        limit, announced = self.limit(path), header_of(scope, b"content-length")
        if announced and (not announced.isdecimal() or int(announced) > limit):
            await refuse(send, 413, too_large(path, limit))
        elif path == UPLOAD:
            await self.app(scope, _Bounded(scope, Paced(receive, self.now, STALL_SECONDS, LEAST_RATE), limit), send)
        elif announced == "0" or (scope["method"] in ("GET", "HEAD") and not header_of(scope, b"transfer-encoding")):
            await self.app(scope, receive, send)
        else:
            await self._buffered(scope, receive, send, limit)

    async def _buffered(self, scope: Scope, receive: Any, send: Any, limit: int) -> None:
        body, counted, more, paced = bytearray(), 0, True, Paced(receive, self.now, STALL_SECONDS, LEAST_RATE)
        client = address_of(scope)
        try:
            while more:
                try:
                    message = await paced()
                except TimeoutError:
                    await refuse(send, 408, "The request arrived too slowly: send it again.")
                    return
                if message["type"] == "http.disconnect":
                    return
                body += message.get("body", b"")
                more = message.get("more_body", False)
                if len(body) > limit:
                    await refuse(send, 413, too_large(path_of(scope), limit))
                    return
                if len(body) > LARGE_JSON:
                    self._in_flight += len(body) - counted
                    self._of_client[client] += len(body) - counted
                    counted = len(body)
                if self._in_flight > JSON_IN_FLIGHT or self._of_client[client] > JSON_OF_CLIENT:
                    await refuse(send, 503, "The app is receiving too much at once: try again in a moment.")
                    return
            if sum(map(body.count, (b",", b"[", b"{"))) > JSON_ITEMS:
                await refuse(send, 413, f"A request may have {JSON_ITEMS:,} items; send text or files instead.")
                return
        finally:
            self._in_flight -= counted
            self._of_client[client] -= counted
            if not self._of_client[client]:
                del self._of_client[client]
        await self.app(scope, _Replayed(bytes(body), receive), send)


class _Replayed:
    """``receive`` for a body that has been read, and then for what follows it: the end of the connection."""

    def __init__(self, body: bytes, receive: Any) -> None:
        self._first: dict[str, Any] | None = {"type": "http.request", "body": body, "more_body": False}
        self._receive = receive

    async def __call__(self) -> dict[str, Any]:
        if self._first is None:
            return await self._receive()
        first, self._first = self._first, None
        return first


class _Bounded:
    """``receive`` that ends the connection of a body which is larger than ``limit`` bytes, or too slow.

    ``scope["kvmm.too_large"]`` then says why it ended.
    """

    def __init__(self, scope: Scope, receive: Any, limit: int) -> None:
        self._scope, self._receive, self._left = scope, receive, limit

    async def __call__(self) -> dict[str, Any]:
        try:
            message = await self._receive()
        except TimeoutError:
            return {"type": "http.disconnect"}
        self._left -= len(message.get("body", b""))
        if self._left >= 0:
            return message
        self._scope["kvmm.too_large"] = True
        return {"type": "http.disconnect"}


def too_large(path: str, limit: int) -> str:
    """One line for a visitor who sent a request of more than ``limit`` bytes."""
    if path == UPLOAD:
        return f"These files are larger than the {limit / 2**20:.0f} MiB that this app takes at once: send fewer."
    return f"This request is larger than {limit / 2**20:.1f} MiB: upload files instead of sending them inside it."


async def refuse(send: Any, status: int, line: str, headers: list[tuple[bytes, bytes]] | None = None) -> None:
    """Answer a request without reading any more of it."""
    body = json.dumps({"detail": line, "error": line}).encode()
    length = (b"content-length", str(len(body)).encode())
    added = [(b"content-type", b"application/json"), length, (b"connection", b"close")]
    await send({"type": "http.response.start", "status": status, "headers": [*added, *(headers or ())]})
    await send({"type": "http.response.body", "body": body})


__all__ = ["CONTENT_SECURITY_POLICY", "BodyLimit", "LoginRequired", "SecurityHeaders", "path_of", "refuse"]
