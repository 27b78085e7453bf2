"""What answers that are generated together gain over one after the other, by ``kvmm serve``.

    python -m benchmarks.serve [--model FOLDER] [--clients 1 4 16] [--policy balanced] [--rounds 3]

``answers``: a server in this process and clients in threads, over HTTP. Each of ``--requests`` requests asks about one
of the sample pages, which have been read before; the answers end where the model ends them. Requests per second with
1, 4, 16 clients, and whether the answers are those of one client.

``steps``: the engine alone, with answers of exactly ``--new-tokens`` tokens after the same prompts: tokens per second
of 1, 4, 16 answers at once. This is what batching gains where answers are long.

Medians over ``--rounds``; the rounds of different numbers of clients take turns.
"""

from __future__ import annotations

import argparse
import base64
import queue
import statistics
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import httpx
import uvicorn

from benchmarks.report import Report, add_common_options
from kvmm.models import load_model
from kvmm.models.sampling import GREEDY
from kvmm.samples import SAMPLES
from kvmm.serve.generation import Delta, Finish, Generation
from kvmm.serve.http import Service, Settings, build_app
from kvmm.serve.protocol import parse_request
from kvmm.serve.server import Options, build_service

PAGES = ("invoice.png", "receipt.png", "table.png", "letter.png", "form.png")
QUESTIONS = ("What is the total?", "What is the date?", "Who is it from?", "What is the first line?")
NAME = "model"


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line; writes JSON after every row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="folder; default is the embedded model")
    parser.add_argument("--policy", default="balanced")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--clients", nargs="+", type=int, default=[1, 4, 16])
    parser.add_argument("--requests", type=int, default=32)
    parser.add_argument("--new-tokens", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=3)
    add_common_options(parser, "serve")
    given = sys.argv[1:] if arguments is None else list(arguments)
    options = parser.parse_args(given)
    if options.smoke:
        options.clients, options.requests, options.new_tokens, options.rounds = [1, 2], 4, 32, 1
    report = Report("serve", given, options)
    model, processor = load_model(options.model, device=options.device, dtype=options.dtype)
    settings = Settings(NAME, max_places=1000)
    service = build_service(model, processor, options.policy, settings, Options(max(options.clients)))
    bodies = [_body(i) for i in range(options.requests)]
    with _running(service) as url:
        texts = [_ask(url, body) for body in bodies]  # reads every page, and warms up
        for name, measure in (
            ("answers", lambda clients: _answers(url, bodies, clients, texts)),
            ("steps", lambda clients: _steps(service, bodies, clients, options.new_tokens)),
        ):
            rounds: dict[int, list[dict[str, Any]]] = {clients: [] for clients in options.clients}
            for _ in range(options.rounds):
                for clients in options.clients:
                    rounds[clients].append(measure(clients))
            alone = _median(rounds[options.clients[0]])
            for clients, rows in rounds.items():
                middle = _median(rows)
                row = {"name": f"{name} {clients}", "policy": options.policy, "clients": clients, **middle}
                report.add({**row, "ratio": middle["per_second"] / alone["per_second"]})
    report.finish()


def _median(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    found = statistics.median(row["per_second"] for row in rows)
    return {
        "per_second": found,
        "rounds": [row["per_second"] for row in rows],
        **{name: all(row[name] for row in rows) for name in ("equal",) if name in rows[0]},
    }


def _body(number: int) -> dict[str, Any]:
    page, question = PAGES[number % len(PAGES)], QUESTIONS[number // len(PAGES) % len(QUESTIONS)]
    data = base64.b64encode((SAMPLES / page).read_bytes()).decode()
    image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}
    content = [image, {"type": "text", "text": question}]
    return {"model": NAME, "messages": [{"role": "user", "content": content}], "max_tokens": 64}


@contextmanager
def _running(service: Service) -> Iterator[str]:
    server = uvicorn.Server(uvicorn.Config(build_app(service), port=0, log_level="error"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


def _ask(url: str, body: dict[str, Any]) -> str:
    answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=600)
    answer.raise_for_status()
    return answer.json()["choices"][0]["message"]["content"]


def _answers(url: str, bodies: Sequence[dict[str, Any]], clients: int, expected: Sequence[str]) -> dict[str, Any]:
    """Requests per second, and whether all answers are the expected ones."""
    with ThreadPoolExecutor(clients) as threads:
        begin = time.perf_counter()
        texts = list(threads.map(lambda body: _ask(url, body), bodies))
        seconds = time.perf_counter() - begin
    return {"per_second": len(bodies) / seconds, "equal": texts == list(expected)}


def _steps(service: Service, bodies: Sequence[dict[str, Any]], count: int, new_tokens: int) -> dict[str, Any]:
    """Tokens per second of ``count`` answers at once, after the first token of the last of them."""
    engine, ends = service.engine, service.engine.ends
    events: queue.Queue[Any] = queue.Queue()
    engine.ends = frozenset()  # an answer has as many tokens as were asked for
    try:
        prompts = [service.maker.make(parse_request(body), "", threading.Event()) for body in bodies[:count]]
        for prompt in prompts:
            scope = service.scope_of("")
            engine.submit(Generation(prompt, GREEDY, new_tokens, scope, service.tokenizer, events.put))
        while (status := engine.status()).decoding < count:
            if not (status.waiting or status.reading):
                raise SystemExit("The first answer ended before the last one began: ask for more --new-tokens.")
            time.sleep(0.001)
        begin, before = time.perf_counter(), service.metrics.generated_tokens.value()
        ended = 0
        while not ended:  # until the first one has ended, all of them run
            event = events.get()
            if not isinstance(event, (Delta, Finish)):
                raise event
            ended += isinstance(event, Finish)
        seconds, tokens = time.perf_counter() - begin, service.metrics.generated_tokens.value() - before
        while ended < count:
            ended += isinstance(events.get(), Finish)
    finally:
        engine.ends = ends
    return {"per_second": tokens / seconds}


if __name__ == "__main__":
    main()
