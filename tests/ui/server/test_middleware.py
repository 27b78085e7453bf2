"""Login, limits of bodies and headers, on a small app whose handlers tell what reached them."""

from __future__ import annotations

import asyncio
import base64
import contextlib
from types import SimpleNamespace

import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from kvmm.ui.server import middleware
from kvmm.ui.server.middleware import BodyLimit, LoginRequired, SecurityHeaders
from tests.ui import event_loop

MIB = 2**20


async def answer(request: Request) -> JSONResponse:
    return JSONResponse({"received": len(await request.body())})


def served(*layers: Middleware, auth: dict | None = None) -> Starlette:
    methods = ["GET", "POST"]
    app = Starlette(routes=[Route("/{path:path}", answer, methods=methods)], middleware=list(layers))
    app.auth, app.tokens, app.cookie_id = auth, {}, "id"
    return app


def send(app, scope: dict, messages: list[dict]) -> tuple[int, int]:
    """Run one request; returns the status and how many messages of its body were taken."""
    sent, taken = [], []

    async def receive() -> dict:
        if len(taken) == len(messages):
            await asyncio.sleep(60)
        taken.append(1)
        return messages[len(taken) - 1]

    async def keep(message: dict) -> None:
        sent.append(message)

    base = {"type": "http", "method": "POST", "path": "/", "root_path": "", "headers": [], "query_string": b""}
    event_loop.run(app({**base, **scope}, receive, keep))
    return (sent[0]["status"] if sent else 0), len(taken)


CHUNKS = [{"type": "http.request", "body": bytes(MIB), "more_body": True}] * 400


def test_a_body_is_bounded_as_it_arrives_whatever_it_announces():
    app = BodyLimit(served(), max_upload=20 * MIB)
    for path, limit in (("/gradio_api/queue/join", 8), ("/gradio_api/mcp/", 8), ("/gradio_api/run/ask", 8), ("/x", 8)):
        assert send(app, {"path": path}, CHUNKS) == (413, limit + 1)
        announced = [(b"content-length", str(limit * MIB + 1).encode())]
        assert send(app, {"path": path, "headers": announced}, CHUNKS) == (413, 0)
        lying = [(b"content-length", b"10")]
        assert send(app, {"path": path, "headers": lying}, CHUNKS) == (413, limit + 1)
        for wrong in (b"-1", b"1e9", b"x", b"\xb2"):
            assert send(app, {"path": path, "headers": [(b"content-length", wrong)]}, CHUNKS) == (413, 0)
    assert send(app, {"path": "/login"}, CHUNKS) == (413, 1)
    assert send(app, {"method": "GET", "headers": [(b"transfer-encoding", b"chunked")]}, CHUNKS) == (413, 9)
    assert app._in_flight == 0


def test_an_upload_may_have_max_upload_and_a_request_no_more_than_an_upload():
    app = BodyLimit(served(), max_upload=2 * MIB)
    small = [{"type": "http.request", "body": bytes(MIB), "more_body": n < 1} for n in range(2)]
    assert send(app, {"path": "/gradio_api/upload"}, small) == (200, 2)
    scope = {"path": "/gradio_api/upload"}
    with pytest.raises(Exception):  # noqa: B017  the handler sees the end of the connection
        send(app, scope, CHUNKS)
    assert app.limit("/gradio_api/queue/join") < 3 * MIB  # 2 MiB in base64 and what is around them


def test_a_body_arrives_as_it_was_sent():
    app = TestClient(served(Middleware(BodyLimit, max_upload=MIB)))
    for size in (0, 1, 300_000, MIB):
        assert app.post("/gradio_api/queue/join", content=bytes(size)).json() == {"received": size}
    assert app.get("/gradio_api/x").json() == {"received": 0}


@pytest.mark.parametrize(
    "body", ["[" * 60_000, "[1" + ",1" * 60_000 + "]", '[{"a":' * 30_000], ids=["deep", "long", "both"]
)
def test_json_of_many_items_never_reaches_a_parser(body):
    app = TestClient(served(Middleware(BodyLimit, max_upload=MIB)))
    assert app.post("/gradio_api/run/ask", content=body).status_code == 413
    text = base64.b64encode(bytes(MIB // 2)).decode()
    assert app.post("/gradio_api/run/ask", json={"data": [text, "a, b, c" * 100]}).status_code == 200


def test_bodies_of_all_requests_together_are_bounded(monkeypatch):
    monkeypatch.setattr(middleware, "JSON_IN_FLIGHT", 3 * MIB)
    app = BodyLimit(served(), max_upload=20 * MIB)
    app._in_flight = 2 * MIB  # of others
    assert send(app, {"path": "/x"}, CHUNKS) == (503, 2)
    assert app._in_flight == 2 * MIB
    assert send(app, {"path": "/x"}, [{"type": "http.request", "body": b"{}"}]) == (200, 1)


def test_a_body_that_stops_arriving_ends(monkeypatch):
    monkeypatch.setattr(middleware, "STALL_SECONDS", 0.05)
    app = BodyLimit(served(), max_upload=MIB)
    assert send(app, {"path": "/x"}, CHUNKS[:1]) == (408, 1)
    assert app._in_flight == 0
    assert send(app, {"path": "/x"}, [{"type": "http.disconnect"}]) == (0, 1)


@pytest.mark.parametrize("path", ["/gradio_api/run/ask", "/gradio_api/upload"])
@pytest.mark.parametrize("rate", [1, middleware.LEAST_RATE // 2, middleware.LEAST_RATE, MIB])
def test_a_body_that_trickles_ends_and_one_that_keeps_its_pace_does_not(path, rate):
    clock, sent, count = [0.0], [], 20
    app = BodyLimit(served(), max_upload=200 * MIB, now=lambda: clock[0])
    seconds = 10 if rate < MIB else 0.1

    async def receive() -> dict:
        clock[0] += seconds
        sent.append(1)
        return {"type": "http.request", "body": bytes(int(rate * seconds)), "more_body": len(sent) < count}

    answers = []

    async def keep(message: dict) -> None:
        answers.append(message)

    scope = {"type": "http", "method": "POST", "path": path, "root_path": "", "headers": [], "query_string": b""}
    with contextlib.suppress(ClientDisconnect):  # the handler sees the end of the connection
        event_loop.run(app(scope, receive, keep))
    if rate < middleware.LEAST_RATE:
        assert len(sent) < count and clock[0] <= 2 * middleware.STALL_SECONDS
        assert not any(message.get("status") == 200 for message in answers)
    else:
        assert len(sent) == count and answers[0]["status"] == 200
    assert app._in_flight == 0 and not app._of_client


def test_one_address_takes_no_more_than_its_share():
    app = BodyLimit(served(), max_upload=20 * MIB)
    app._of_client["a"], app._in_flight = middleware.JSON_OF_CLIENT - MIB, middleware.JSON_OF_CLIENT - MIB
    body = [{"type": "http.request", "body": bytes(2 * MIB)}]
    assert send(app, {"path": "/x", "client": ("a", 1)}, body) == (503, 1)
    assert send(app, {"path": "/x", "client": ("b", 1)}, body) == (200, 1)
    assert dict(app._of_client) == {"a": middleware.JSON_OF_CLIENT - MIB}


def test_a_login_is_asked_for_before_the_body_is_read():
    app = served(Middleware(LoginRequired), Middleware(BodyLimit, max_upload=MIB), auth={"u": "p:w"})
    for path in (
        "/gradio_api/mcp/",
        "/gradio_api/mcp",
        "/gradio_api/queue/join",
        "/gradio_api/upload",
        "//x",
        "/assetsx",
    ):
        status, taken = send(app, {"path": path}, CHUNKS)
        assert status == 401 and taken == 0
    client = TestClient(app)
    routes = ("heartbeat/x", "mcp/schema", "mcp/sse", "cancel", "reset", "info", "queue/data", "file=/x", "stream/x")
    for path in ("config", "monitoring", "docs", "openapi.json", *(f"gradio_api/{route}" for route in routes)):
        for cookies in ({}, {"access-token-id": "made up"}, {"access-token-unsecure-id": ""}):
            assert client.get(f"/{path}", cookies=cookies).status_code == 401
    for path in ("", "login", "assets/index.js", "static/x", "theme.css", "gradio_api/startup-events"):
        assert client.get(f"/{path}").status_code == 200
    assert client.post("/gradio_api/startup-events").status_code == 401


def test_a_cookie_of_the_login_and_basic_authentication_open_all():
    app = served(Middleware(LoginRequired), auth={"u": "p:w"})
    app.tokens["token"] = "u"
    for name in ("access-token-id", "access-token-unsecure-id"):
        assert TestClient(app, cookies={name: "token", "other": "x"}).get("/config").status_code == 200
    client = TestClient(app)
    assert client.get("/config", auth=("u", "p:w")).status_code == 200
    assert client.get("/config", auth=("u", "p:w")).status_code == 200 and len(app.tokens) == 2
    for wrong in (("u", "p"), ("", ""), ("x", "p:w"), ("u", "p:wé")):
        assert client.get("/config", auth=wrong).status_code == 401
    for header in ("Basic", "Basic !", "Basic " + "x" * 9, "Bearer token", "Basic dTpwOnc=x"):
        assert client.get("/config", headers={"authorization": header}).status_code == 401
    assert TestClient(served(Middleware(LoginRequired))).get("/config").status_code == 200


def test_only_programs_are_asked_for_basic_authentication():
    client = TestClient(served(Middleware(LoginRequired), auth={"u": "p:w"}))
    for path in ("/gradio_api/mcp", "/gradio_api/mcp/", "/gradio_api/mcp/sse"):
        assert client.get(path).headers["www-authenticate"].startswith("Basic")
        for browser in ({"sec-fetch-mode": "navigate"}, {"sec-fetch-site": "cross-site"}, {"origin": "http://host"}):
            found = client.get(path, headers=browser)
            assert found.status_code == 401 and "www-authenticate" not in found.headers
    for path in ("/config", "/gradio_api/heartbeat/x", "/gradio_api/queue/join", "/gradio_api/mcpx"):
        found = client.get(path)  # browsers tell no Sec-Fetch-Mode to a plain HTTP address
        assert found.status_code == 401 and "www-authenticate" not in found.headers


@pytest.mark.parametrize("path", ["/config", "/gradio_api/run/ask", "/gradio_api/mcp/"])
def test_basic_authentication_of_another_site_is_refused(path):
    client = TestClient(served(Middleware(LoginRequired), auth={"u": "p:w"}))  # is http://testserver
    foreign = [{"sec-fetch-site": site} for site in ("cross-site", "same-site", "made-up")]
    foreign += [{"origin": origin} for origin in ("http://evil", "null", "http://testserver:81", "http://testserver.x")]
    for headers in [*foreign, {"origin": "http://testserver", "sec-fetch-site": "cross-site"}]:
        assert client.post(path, auth=("u", "p:w"), headers=headers).status_code == 401
    own = [{}, {"origin": "http://testserver"}, {"origin": "http://TestServer"}, {"sec-fetch-site": "none"}]
    for headers in [*own, {"sec-fetch-site": "same-origin", "origin": "https://behind.a.proxy"}]:
        assert client.post(path, auth=("u", "p:w"), headers=headers).status_code == 200


def test_everything_carries_the_policy_and_closed_routes_are_closed():
    app = TestClient(served(Middleware(SecurityHeaders)))
    for path in ("/", "/gradio_api/file=/x/y.png", "/gradio_api/file=http:no"):
        policy = app.get(path).headers["content-security-policy"]
        assert "img-src 'self' data: blob:" in policy and "object-src 'none'" in policy and "http" not in policy
    for path in ("deep_link?session_hash=x", "proxy=https://a.hf.space/x", "process_recording", "component_server"):
        assert app.get(f"/gradio_api/{path}").status_code == 404
    for path in ("file=http://127.0.0.1/x.png", "file=HTTPS://host/x.png", "file/https://host/x.png"):
        assert app.get(f"/gradio_api/{path}").status_code == 403
    assert app.get("/gradio_api/file=/x/http.png").status_code == 200


def test_paths_are_those_below_the_root():
    scope = SimpleNamespace
    for path, root, expected in (
        ("/gradio_api/upload/", "", "/gradio_api/upload"),
        ("/app/gradio_api/upload", "/app", "/gradio_api/upload"),
        ("/app", "/app", "/"),
        ("/gradio_api/upload", "/gradio", "/gradio_api/upload"),
        ("/gradio_api/upload", "/app/", "/gradio_api/upload"),
        ("", "", "/"),
    ):
        assert middleware.path_of(vars(scope(path=path, root_path=root))) == expected
