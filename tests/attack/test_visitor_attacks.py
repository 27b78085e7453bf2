"""Hostile visitors: bodies, uploads, other people's files, sessions by the thousand, tools without a login."""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import httpx
import pytest

from benchmarks.hostile_visitor import Page
from kvmm.models.loading import TINY_MODEL
from kvmm.ui.server.states import NEW_AT_ONCE, NEW_PER_SECOND
from tests.attack.attacked import MAX_UPLOAD_MIB, PAGE, USER

pytestmark = pytest.mark.alone

MIB = 2**20
SAMPLE = PAGE.with_name("invoice.png")
JSON_ROUTES = ("/gradio_api/queue/join", "/gradio_api/run/ask", "/gradio_api/call/ask", "/gradio_api/mcp/")


def raw(url: str, head: str, body: bytes = b"", *, cut: bool = False, wait: float = 10) -> bytes:
    """Send bytes as they are; returns the first of the answer."""
    host = urlsplit(url)
    with socket.create_connection((host.hostname, host.port), timeout=wait) as connection:
        connection.sendall(head.replace("\n", "\r\n").encode() + body)
        return b"" if cut else connection.recv(200)


def cookies(client: httpx.Client) -> str:
    return "; ".join(f"{name}={value}" for name, value in client.cookies.items())


def test_nobody_is_served_without_a_login_nor_read(victim):
    for route in (*JSON_ROUTES, "/gradio_api/upload", "/gradio_api/cancel", "/gradio_api/mcp/messages/"):
        head = f"POST {route} HTTP/1.1\nHost: x\nContent-Type: application/json\nContent-Length: {400 * MIB}\n\n"
        begin = time.perf_counter()
        assert b" 401 " in raw(victim.url, head)  # none of its 400 MiB is on the way
        assert time.perf_counter() - begin < 5
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
    accept = {"accept": "application/json, text/event-stream"}
    for route in ("/gradio_api/mcp/", "/gradio_api/mcp/http/"):
        assert httpx.post(victim.url + route, json=call, headers=accept).status_code == 401
    assert httpx.get(f"{victim.url}/gradio_api/mcp/schema").status_code == 401
    shown = httpx.post(f"{victim.url}/gradio_api/mcp/", json=call, headers=accept, auth=USER)
    assert shown.status_code == 200 and "question" in shown.text


def test_the_tools_answer_who_has_logged_in(victim):
    page = base64.b64encode(PAGE.read_bytes()).decode()
    arguments = {"files": [f"data:image/png;base64,{page}"], "question": "What is the total?", "policy": "kivi4"}
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "ask", "arguments": arguments}}
    accept = {"accept": "application/json, text/event-stream", "host": "host.invalid"}
    before = victim.files()
    found = httpx.post(f"{victim.url}/gradio_api/mcp/", json=call, headers=accept, auth=USER, timeout=120)
    assert found.status_code == 200 and '"isError":false' in found.text and "answer" in found.text
    assert victim.files() == before


def test_large_bodies_are_refused_as_they_arrive(victim, retry):
    def stream():
        yield b'{"data": ["'
        for _ in range(400):
            yield b"x" * MIB

    def attack() -> None:
        with victim.watched(), victim.client() as client:
            for route in JSON_ROUTES:
                for body in (stream(), b"[" * 20 * MIB, b'{"data":[' + b"0," * 10 * MIB + b"0]}"):
                    try:
                        found = client.post(route, content=body, headers={"content-type": "application/json"})
                        assert found.status_code == 413
                    except (httpx.WriteError, httpx.ReadError, httpx.RemoteProtocolError):
                        pass  # the connection was closed while this sent

    retry(attack)


def test_bodies_of_many_items_never_freeze_the_others(victim, retry):
    small = [
        b'{"data":[' + b"0," * 3 * MIB + b'0],"session_hash":"x","fn_index":1}',
        b'{"data":[' + b"[" * 100_000 + b"]" * 100_000 + b'],"session_hash":"x","fn_index":1}',
        b'{"data":[' + b'{"a":0},' * 500_000 + b'0],"session_hash":"x","fn_index":1}',
        b'{"data":[' + b"[" * 900 + b"]" * 900 + b'],"session_hash":"x","fn_index":1}',
        json.dumps({"data": ["\N{SNOWMAN}" * MIB], "session_hash": "x", "fn_index": 1}).encode(),
    ]

    def attack() -> None:
        with victim.watched(), victim.client() as client:
            for route, body in itertools.product(JSON_ROUTES, small):
                found = client.post(route, content=body, headers={"content-type": "application/json"})
                assert found.status_code in (200, 400, 404, 406, 413, 415, 422, 500), (
                    route,
                    body[:30],
                    found.status_code,
                )

    retry(attack)


def test_bodies_that_trickle_hold_nobody(victim, retry):
    def attack() -> None:
        with victim.watched(), victim.client() as client:
            held = []
            host = urlsplit(victim.url)
            for n in range(60):
                one = socket.create_connection((host.hostname, host.port), timeout=10)
                path = "queue/join" if n % 2 else "upload"
                head = f"POST /gradio_api/{path} HTTP/1.1\nHost: x\nCookie: {cookies(client)}\nContent-Length: 100000\n"
                head += "Content-Type: multipart/form-data; boundary=b\n\n--b\n"
                one.sendall(head.replace("\n", "\r\n").encode())
                held.append(one)
            assert client.get("/").status_code == 200
            for one in held:
                one.close()

    retry(attack)
    until = time.monotonic() + 10
    while (left := list(victim.folder.glob("kvmm-app-*/kvmm-*/tmp*"))) and time.monotonic() < until:
        time.sleep(0.1)
    assert not left


def test_a_file_inside_json_is_bounded_as_an_upload_is(victim):
    large = base64.b64encode(bytes(MAX_UPLOAD_MIB * MIB + 1)).decode()
    with pytest.raises(Exception, match=r"4\.0 MiB"):
        victim.visitor.predict([f"data:image/png;base64,{large}"], "x", "kivi4", api_name="/ask")
    with pytest.raises(Exception, match="64 files"):
        victim.visitor.predict(["data:,"] * 65, "x", "kivi4", api_name="/ask")
    with pytest.raises(Exception, match="100,000 characters"):
        victim.visitor.predict([], "x" * 100_001, "kivi4", api_name="/ask")


def test_uploads_that_fail_leave_nothing(victim, retry):
    part = b'--b\r\nContent-Disposition: form-data; name="files"; filename="x.png"\r\n\r\n'

    def attack() -> None:
        before = victim.files()
        with victim.watched(), victim.client() as client:
            head = (
                f"POST /gradio_api/upload?upload_id=u HTTP/1.1\nHost: x\nCookie: {cookies(client)}\n"
                f"Content-Type: multipart/form-data; boundary=b\nContent-Length: {3 * MIB}\n\n"
            )
            for _ in range(20):
                raw(victim.url, head, part + bytes(2 * MIB), cut=True)  # half of it, then nobody is there
            kind = {"content-type": "multipart/form-data; boundary=b"}
            for body in (
                part + b"no end",
                part.replace(b"files", b"other") + b"x\r\n--b--\r\n",
                part.replace(b'; filename="x.png"', b"") + bytes(MIB) + b"\r\n--b--\r\n",
                part.replace(b"x.png", b"..") + b"x\r\n--b--\r\n",
                b"nothing",
                b"",
            ):
                assert client.post("/gradio_api/upload", content=body, headers=kind).status_code == 400
            assert client.post("/gradio_api/upload", content=b"x").status_code == 400
            try:
                chunks = itertools.chain([part], itertools.repeat(bytes(MIB), 40))
                assert client.post("/gradio_api/upload", content=chunks, headers=kind).status_code == 413
            except (httpx.WriteError, httpx.ReadError, httpx.RemoteProtocolError):
                pass
            until = time.monotonic() + 20
            while (left := victim.files() - before) and time.monotonic() < until:
                time.sleep(0.2)
            # the other visitor's page is uploaded meanwhile
            assert not {path for path in left if path.name != PAGE.name}

    retry(attack)


def test_a_copy_of_a_sample_is_its_senders_own(victim):
    with victim.client() as client:
        page = client.get("/config").text
        shown = next(path for path in page.replace("\\/", "/").split('"') if path.endswith(f"/{SAMPLE.name}"))
        address = f"/gradio_api/file={shown.partition('/file=')[2] or shown}"
        assert client.get(address).status_code == 200
        files = {"files": (SAMPLE.name, SAMPLE.read_bytes())}
        (path,) = client.post("/gradio_api/upload", files=files).json()
        assert path not in page
        shared = shown.partition("/file=")[2] or shown
        with Page(client) as opened:  # without a cookie: all of it goes when the page closes
            event = opened.event("ask-box", "submit")
            files = [{"path": one, "meta": {"_type": "gradio.FileData"}} for one in (path, shared)]
            values = opened.inputs(event, {"text": "What is this?", "files": files})
            assert any(message["msg"] == "process_completed" for message in opened.run(event, values))
        status, until = 200, time.monotonic() + 60
        while status == 200 and time.monotonic() < until:
            time.sleep(0.5)
            with contextlib.suppress(httpx.TransportError):  # it went while it was being sent
                status = client.get(f"/gradio_api/file={path}").status_code
        assert status == 403
        assert client.get(address).status_code == 200


def test_sessions_by_the_thousand_hold_no_memory(victim, retry):
    def attack() -> None:
        with victim.watched(), victim.client() as client:
            policy = victim.event(client, "policy", "change")
            fresh = victim.event(client, "new-conversation", "click")

            def call(n: int) -> int:
                fn, data = (policy, ["kivi4", TINY_MODEL, "balanced", 4, 128]) if n % 4 else (fresh, [False])
                return victim.call(client, fn, data).status_code

            begin = time.monotonic()
            with ThreadPoolExecutor(4) as pool:
                found = list(pool.map(call, range(300)))
            most = NEW_AT_ONCE + NEW_PER_SECOND * (time.monotonic() - begin) + 2  # the others cost nobody anything
            assert set(found) <= {200, 429} and 0 < found.count(200) <= most

    retry(attack)
