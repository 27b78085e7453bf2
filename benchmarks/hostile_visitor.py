"""A visitor of ``benchmarks.app_soak --hostile``: pages, questions and files as a browser sends them, most of them bad.

Every turn is one of :data:`TURNS`, by its number. A turn ends well when the app answers, or refuses with a line for the
visitor; anything else is an error. Each prints one JSON line.
"""

from __future__ import annotations

import contextlib
import io
import json
import random
import socket
import time
import uuid
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
from PIL import Image

SAMPLES = Path(__file__).resolve().parents[1] / "assets" / "samples"
ASKED = (("invoice.png", "How much do I have to pay?"), ("memo.wav", "What is the phone number?"))
REFUSED = "refused"
PATIENCE = 300.0  # seconds


class Page:
    """One open page: its heartbeat, its events."""

    def __init__(self, client: httpx.Client) -> None:
        self.client, self.session = client, uuid.uuid4().hex
        self.config = client.get("/config").json()
        self._by_id = {one["id"]: one for one in self.config["components"]}

    def __enter__(self) -> Page:
        cookies = "; ".join(f"{name}={value}" for name, value in self.client.cookies.items())
        url = self.client.base_url
        self._heart = socket.create_connection((url.host, url.port))  # nobody reads it: what counts is its end
        path = f"/gradio_api/heartbeat/{self.session}"
        self._heart.sendall(f"GET {path} HTTP/1.1\r\nHost: {url.host}\r\nCookie: {cookies}\r\n\r\n".encode())
        return self

    def __exit__(self, *_: object) -> None:
        self._heart.close()

    def event(self, elem_id: str, kind: str) -> dict[str, Any]:
        """An event of a component."""
        (target,) = [one["id"] for one in self._by_id.values() if one["props"].get("elem_id") == elem_id]
        return next(one for one in self.config["dependencies"] if [target, kind] in map(list, one["targets"]))

    def after(self, event: dict[str, Any]) -> dict[str, Any]:
        """What the browser runs when ``event`` went well."""
        return next(one for one in self.config["dependencies"] if one.get("trigger_after") == event["id"])

    def inputs(self, event: dict[str, Any], first: Any) -> list[Any]:
        """Values as the page has them, after ``first``."""
        return [first, *(self._by_id[one]["props"].get("value") for one in event["inputs"][1:])]

    def run(self, event: dict[str, Any], data: list[Any]) -> Iterator[dict[str, Any]]:
        """Put an event into the queue; yields its messages until it ends."""
        body = {"fn_index": event["id"], "data": data, "session_hash": self.session}
        self.client.post("/gradio_api/queue/join", json=body).raise_for_status()
        query = {"session_hash": self.session}
        with self.client.stream("GET", "/gradio_api/queue/data", params=query, timeout=PATIENCE) as events:
            for line in events.iter_lines():
                if line.startswith("data: "):
                    message = json.loads(line[6:])
                    if message["msg"] == "close_stream":
                        return  # who hangs up before ends the next event of the page, too
                    yield message

    def stop(self) -> None:
        """The stop button."""
        event = self.event("ask-box", "stop")
        body = {"fn_index": event["id"], "data": [{"text": "", "files": []}], "session_hash": self.session}
        self.client.post("/gradio_api/run/predict", json=body).raise_for_status()


def upload(client: httpx.Client, name: str, data: bytes) -> str:
    """Send a file; returns its path."""
    found = client.post("/gradio_api/upload", files={"files": (name, data)})
    found.raise_for_status()
    return found.json()[0]


def begin(page: Page, question: str, name: str, data: bytes) -> dict[str, Any]:
    """Ask with a file, which is read; returns the event that streams the answer."""
    path = upload(page.client, name, data)
    file = {"path": path, "orig_name": name, "meta": {"_type": "gradio.FileData"}}
    asked = page.event("ask-box", "submit")
    for message in page.run(asked, page.inputs(asked, {"text": question, "files": [file]})):
        if message["msg"] == "process_completed" and not message["success"]:
            raise RuntimeError(str(message["output"])[:200])
    read = page.after(asked)
    for _ in page.run(read, []):
        pass
    return page.after(read)


def answer(page: Page, streams: dict[str, Any]) -> str:
    """Follow an answer to its end; returns what the page shows last."""
    shown = ""
    for message in page.run(streams, []):
        if message["msg"] in ("process_generating", "process_completed"):
            shown += json.dumps(message.get("output"), ensure_ascii=False)
            if message["msg"] == "process_completed" and not message["success"]:
                raise RuntimeError(shown[-200:])
    if '"kvmm' not in shown and "KV " not in shown:
        raise RuntimeError(f"no answer: {shown[-200:]}")
    return shown


def ask(client: httpx.Client, generator: random.Random, name: str, data: bytes, question: str) -> tuple[str, str]:
    """The outcome, and the reason of a refusal."""
    with Page(client) as page:
        shown = answer(page, begin(page, question, name, data))
    _, warning, reason = shown.replace("\\u26a0", "\N{WARNING SIGN}").rpartition("\N{WARNING SIGN}")
    if not warning:
        return "answered", ""
    if "The server could not answer" in shown:
        raise RuntimeError("the server could not answer")
    return REFUSED, reason[:200]


def good(client: httpx.Client, generator: random.Random) -> str:
    name, question = generator.choice(ASKED)
    outcome, reason = ask(client, generator, name, (SAMPLES / name).read_bytes(), question)
    if outcome != "answered":
        raise RuntimeError(f"{name} was {outcome}: {reason}")
    return outcome


def broken(client: httpx.Client, generator: random.Random) -> str:
    name = generator.choice(("invoice.png", "memo.wav", "report.pdf"))
    data = bytearray((SAMPLES / name).read_bytes())
    for _ in range(generator.randrange(1, 200)):
        data[generator.randrange(len(data))] = generator.randrange(256)
    return ask(client, generator, name, bytes(data[: generator.randrange(1, len(data) + 1)]), "What is this?")[0]


def huge(client: httpx.Client, generator: random.Random) -> str:
    name, data = generator.choice((_huge_png, _many_pages, _long_wav))()
    return ask(client, generator, name, data, "What is this?")[0]


def too_large(client: httpx.Client, generator: random.Random) -> str:
    def chunks() -> Iterator[bytes]:
        yield b'--b\r\nContent-Disposition: form-data; name="files"; filename="x.png"\r\n\r\n'
        for _ in range(64):
            yield bytes(2**20)

    kind = {"content-type": "multipart/form-data; boundary=b"}
    try:
        status = client.post("/gradio_api/upload", content=chunks(), headers=kind).status_code
    except (httpx.WriteError, httpx.ReadError, httpx.RemoteProtocolError):
        return REFUSED  # closed while this sent
    if status != 413:
        raise RuntimeError(f"status {status}")
    return REFUSED


def cut_off(client: httpx.Client, generator: random.Random) -> str:
    def chunks() -> Iterator[bytes]:
        yield b'--b\r\nContent-Disposition: form-data; name="files"; filename="x.png"\r\n\r\n'
        yield bytes(2**19)
        raise ConnectionError

    kind = {"content-type": "multipart/form-data; boundary=b", "content-length": str(2**20)}
    with contextlib.suppress(ConnectionError):
        client.post("/gradio_api/upload", content=chunks(), headers=kind)
    return "left"


def stopped(client: httpx.Client, generator: random.Random) -> str:
    with Page(client) as page:
        streams = begin(page, "Write all that you see.", "report.pdf", (SAMPLES / "report.pdf").read_bytes())
        seen, when = 0, generator.randrange(1, 8)
        for message in page.run(streams, []):
            seen += message["msg"] == "process_generating"
            if seen == when:
                page.stop()
                seen += 1
    return "stopped"


def left(client: httpx.Client, generator: random.Random) -> str:
    with Page(client) as page:
        streams = begin(page, "Write all that you see.", "report.pdf", (SAMPLES / "report.pdf").read_bytes())
        for _, message in zip(range(generator.randrange(1, 6)), page.run(streams, []), strict=False):
            del message
    return "left"


def _huge_png() -> tuple[str, bytes]:
    """11 KiB that unpack to 10000 x 9000 pixels."""
    stream = io.BytesIO()
    Image.new("1", (10_000, 9_000), 1).save(stream, "PNG")
    return "huge.png", stream.getvalue()


def _many_pages() -> tuple[str, bytes]:
    """A PDF of 300 empty pages, more than one may have."""
    kids = " ".join(f"{n} 0 R" for n in range(3, 303))
    objects = ["<< /Type /Catalog /Pages 2 0 R >>", f"<< /Type /Pages /Kids [{kids}] /Count 300 >>"]
    objects += ["<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] >>"] * 300
    body, places = b"%PDF-1.4\n", []
    for number, text in enumerate(objects, 1):
        places.append(len(body))
        body += f"{number} 0 obj\n{text}\nendobj\n".encode()
    table = "".join(f"{place:010d} 00000 n \n" for place in places)
    end = (
        f"xref\n0 {len(objects) + 1}\n0000000000 65535 f \n{table}trailer\n<< /Root 1 0 R /Size {len(objects) + 1} >>\n"
    )
    return "many.pdf", body + f"{end}startxref\n{len(body)}\n%%EOF\n".encode()


def _long_wav() -> tuple[str, bytes]:
    """A header that promises hours; a few seconds follow."""
    data = zlib.compress(b"x")[:2] * 16_000
    header = b"RIFF\xff\xff\xff\x7fWAVEfmt \x10\x00\x00\x00\x01\x00\x01\x00@\x1f\x00\x00@\x1f\x00\x00\x01\x00\x08\x00"
    return "long.wav", header + b"data\xff\xff\xff\x7e" + data


TURNS = (good, broken, good, stopped, good, huge, cut_off, good, left, too_large)


def visit(url: str, number: int, questions: int, seconds: float) -> None:
    """Take turns until there are enough; each prints one JSON line."""
    generator, end = random.Random(number), time.monotonic() + seconds
    for i in range(questions):
        if time.monotonic() > end:
            return
        turn = TURNS[(number + i) % len(TURNS)]
        begun, error, outcome = time.perf_counter(), None, ""
        try:
            with httpx.Client(base_url=url, timeout=PATIENCE) as client:
                client.get("/")  # for the cookie: the page is another visitor's every time
                outcome = turn(client, generator)
        except Exception as failure:  # whatever a visitor may see counts
            error = repr(failure)[:300]
        taken = round(time.perf_counter() - begun, 3)
        print(json.dumps({"turn": turn.__name__, "outcome": outcome, "seconds": taken, "error": error}), flush=True)
