"""The token by which the app knows a browser."""

from __future__ import annotations

from kvmm.ui.server.cookie import VisitorCookie, is_token, new_token, token_of
from tests.ui import event_loop


def test_tokens_are_made_here_only():
    key, token = b"k" * 32, new_token(b"k" * 32)
    assert is_token(token, key) and len({new_token(key) for _ in range(50)}) == 50
    for wrong in (None, "", "x", token[:-1], "a" + token, new_token(b"other" * 8), "ä." + token):
        assert not is_token(wrong, key)
    assert token_of({"cookie": f"a=b; kvmm-visitor-80={token}"}, key, 80) == token
    assert token_of({"cookie": f"kvmm-visitor-81={token}"}, key, 80) is None and token_of({}, key, 80) is None


def test_the_page_and_nothing_else_sets_the_cookie():
    key = b"k" * 32

    def cookies(path: str, cookie: str = "", scheme: str = "http", method: str = "GET") -> list[str]:
        sent: list[dict] = []

        async def app(scope, receive, send):
            await send({"type": "http.response.start", "status": 200, "headers": []})

        async def send(message):
            sent.append(message)

        scope = {"type": "http", "method": method, "path": path, "scheme": scheme, "server": ("h", 80)}
        scope["headers"] = [(b"cookie", cookie.encode())] if cookie else []
        event_loop.run(VisitorCookie(app, key)(scope, None, send))
        return [value.decode() for name, value in sent[0]["headers"] if name == b"set-cookie"]

    (first,) = cookies("/")
    assert "HttpOnly" in first and "SameSite=Lax" in first and "Secure" not in first
    pair = first.partition(";")[0]
    assert cookies("/", pair)[0].startswith(pair)  # it is kept
    assert not cookies("/", "kvmm-visitor-80=made-up.token")[0].startswith("kvmm-visitor-80=made-up")
    assert "; Secure" in cookies("/", scheme="https")[0]
    assert cookies("/gradio_api/queue/data") == [] and cookies("/", method="POST") == []


def test_a_shared_cache_keeps_no_page_with_a_token():
    sent: list[dict] = []

    async def app(scope, receive, send):
        headers = [(b"Cache-Control", b"public, max-age=60"), (b"content-type", b"text/html")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "method": "GET", "path": "/", "scheme": "http", "server": ("h", 80), "headers": []}
    event_loop.run(VisitorCookie(app, b"k" * 32)(scope, None, send))
    values = [value for name, value in sent[0]["headers"] if name.lower() == b"cache-control"]
    assert values == [b"private, no-store"] and (b"content-type", b"text/html") in sent[0]["headers"]
