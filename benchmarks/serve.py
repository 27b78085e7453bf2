"""What answers that are generated together gain over one after the other, by ``kvmm serve``.

    python -m benchmarks.serve [--model FOLDER] [--clients 1 4 16] [--policy balanced] [--rounds 3]
    python -m benchmarks.serve --random qwen3-8b --dtype bfloat16 --max-tokens 256 --output FILE

``answers``: a server in this process and clients in threads, over HTTP. Each of ``--requests`` requests asks about one
of the sample pages, which have been read before; the answers end where the model ends them, or after ``--max-tokens``.
Requests per second with 1, 4, 16 clients, and the share of answers that are those of one client. On a GPU the layers of
steps of several answers are replayed as CUDA graphs (``kvmm serve --graph``); ``answers_plain`` is the same without,
which is the server's default. On a CPU there is no difference.

``--random SHAPE`` is a text model with random weights of one of the shapes of :mod:`benchmarks.synthetic`, but for the
vocabulary, which is tiny-omni's, as its tokenizer is. It is asked about texts of ``--prompt-tokens`` tokens,
its answers never end by themselves, and in bfloat16 they need not be those of one client: its choices are close calls,
which a product of several rows may round the other way.

``starts``: as many clients as there are ask at the same moment, each of them once, for one token. Seconds to the median
and to the last of their answers.

``steps``: the engine alone, with answers of exactly ``--new-tokens`` tokens after the same prompts: tokens per second
of 1, 4, 16 answers at once. This is what batching gains where answers are long. ``graphs`` is the same with CUDA graphs
from the fifth step of several answers on, so that their capture is part of it; on a CPU there is no difference.

Medians over ``--rounds``; the rounds of different numbers of clients take turns.
"""

from __future__ import annotations

import argparse
import base64
import operator
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
import torch
import uvicorn
from transformers import AutoTokenizer

from benchmarks.ask_policies import ROOT
from benchmarks.report import Report, add_common_options
from benchmarks.synthetic import SHAPES, build_model, weight_nbytes
from kvmm.models import assets_folder, load_model
from kvmm.models.loading import TINY_MODEL
from kvmm.models.sampling import GREEDY
from kvmm.samples import SAMPLES
from kvmm.serve.generation import Delta, Finish, Generation
from kvmm.serve.http import Service, Settings, build_app
from kvmm.serve.protocol import parse_request
from kvmm.serve.server import Options, build_service

PAGES = ("invoice.png", "receipt.png", "table.png", "letter.png", "form.png")
QUESTIONS = ("What is the total?", "What is the date?", "Who is it from?", "What is the first line?")
TEXT = ROOT / "benchmarks" / "texts" / "persuasion.txt"
MEASURES = ("answers", "answers_plain", "starts", "steps", "graphs")
SECONDS = ("median_seconds", "last_seconds")  # of ``starts``
NAME = "model"


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line; writes JSON after every row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="folder; default: tiny-omni")
    parser.add_argument("--random", choices=list(SHAPES), help="a text model of this shape with random weights")
    parser.add_argument("--prompt-tokens", type=int, default=2048, help="of a text, with --random")
    parser.add_argument("--max-tokens", type=int, default=64, help="of an answer over HTTP")
    parser.add_argument("--measure", nargs="+", default=["answers", "starts", "steps"], choices=MEASURES)
    parser.add_argument("--policy", default="balanced")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--clients", nargs="+", type=int, default=[1, 4, 16])
    parser.add_argument("--requests", type=int, default=32)
    parser.add_argument("--alone", type=int, help="requests that a single client asks; default: all")
    parser.add_argument("--new-tokens", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=3)
    add_common_options(parser, "serve")
    given = sys.argv[1:] if arguments is None else list(arguments)
    options = parser.parse_args(given)
    if options.smoke:
        options.clients, options.requests, options.new_tokens, options.rounds = [1, 2], 4, 32, 1
        options.prompt_tokens, options.max_tokens = min(options.prompt_tokens, 192), min(options.max_tokens, 16)
    report = Report("serve", given, options)
    if options.random:
        model, processor = _random_model(options)
        report.run["model"] = {"shape": options.random, "weights_nbytes": weight_nbytes(model)}
    else:
        model, processor = load_model(options.model or TINY_MODEL, device=options.device, dtype=options.dtype)
    settings = Settings(NAME, max_places=1000)
    service = build_service(model, processor, options.policy, settings, Options(max(options.clients)))
    shown = _texts(processor, options.prompt_tokens) if options.random else _images()
    bodies = [_body(i, shown, options.max_tokens) for i in range(options.requests)]
    with _running(service) as client:
        # reads every page, and warms up
        asked = bodies[: options.alone] if {"answers", "answers_plain"} & set(options.measure) else bodies[: len(shown)]
        texts = [_ask(client, body) for body in asked]
        if model.device.type == "cuda" and max(options.clients) > 1 and {"answers", "graphs"} & set(options.measure):
            _steps(service, bodies, 2, options.new_tokens, captures=True)  # compiles the kernels of buffers in place
        measures = {
            "answers": lambda clients: _captured_answers(service, client, bodies, clients, texts),
            "answers_plain": lambda clients: _answers(client, bodies, clients, texts),
            "starts": lambda clients: _starts(client, bodies, clients),
            "steps": lambda clients: _steps(service, bodies, clients, options.new_tokens),
            "graphs": lambda clients: _steps(service, bodies, clients, options.new_tokens, captures=True),
        }
        for name in options.measure:
            measure = measures[name]
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
        **{name: min(row[name] for row in rows) for name in ("equal", "equal_share") if name in rows[0]},
        **{name: statistics.median(row[name] for row in rows) for name in SECONDS if name in rows[0]},
    }


def _random_model(options: argparse.Namespace) -> tuple[Any, Any]:
    """A text model of a shape, and tiny-omni's tokenizer."""
    tokenizer = AutoTokenizer.from_pretrained(assets_folder() / "tiny-omni")
    torch.manual_seed(options.seed)
    dtype = getattr(torch, options.dtype)
    model = build_model(options.random, options.device, dtype, toy=options.smoke, vocab_size=len(tokenizer))
    return model, tokenizer


def _images() -> list[dict[str, Any]]:
    """The sample pages as parts of a message."""
    pages = [base64.b64encode((SAMPLES / page).read_bytes()).decode() for page in PAGES]
    return [{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{page}"}} for page in pages]


def _texts(tokenizer: Any, tokens: int) -> list[dict[str, Any]]:
    """As many different passages of so many tokens as there are pages, as parts of a message."""
    ids = tokenizer(TEXT.read_text(encoding="utf-8"), add_special_tokens=False)["input_ids"]
    apart = (len(ids) - tokens) // len(PAGES)
    if apart < 1:
        raise SystemExit(f"--prompt-tokens may be {len(ids) - len(PAGES)}: the text is no longer.")
    passages = [tokenizer.decode(ids[i * apart : i * apart + tokens]) for i in range(len(PAGES))]
    return [{"type": "text", "text": passage} for passage in passages]


def _body(number: int, shown: Sequence[dict[str, Any]], max_tokens: int) -> dict[str, Any]:
    question = QUESTIONS[number // len(shown) % len(QUESTIONS)]
    content = [shown[number % len(shown)], {"type": "text", "text": question}]
    return {"model": NAME, "messages": [{"role": "user", "content": content}], "max_tokens": max_tokens}


@contextmanager
def _running(service: Service) -> Iterator[httpx.Client]:
    """A client of a server of its own; threads share it, since to make one takes as long as a short answer."""
    server = uvicorn.Server(uvicorn.Config(build_app(service), port=0, log_level="error"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
        with httpx.Client(base_url=url, timeout=600, limits=httpx.Limits(max_connections=None)) as client:
            yield client
    finally:
        server.should_exit = True
        thread.join()


def _ask(client: httpx.Client, body: dict[str, Any]) -> str:
    answer = client.post("/v1/chat/completions", json=body)
    answer.raise_for_status()
    return answer.json()["choices"][0]["message"]["content"]


def _answers(
    client: httpx.Client, bodies: Sequence[dict[str, Any]], clients: int, expected: Sequence[str]
) -> dict[str, Any]:
    """Requests per second, and whether all answers are the expected ones, of those that are known."""
    bodies = bodies[: len(expected)] if clients == 1 else bodies
    with ThreadPoolExecutor(clients) as threads:
        begin = time.perf_counter()
        texts = list(threads.map(lambda body: _ask(client, body), bodies))
        seconds = time.perf_counter() - begin
    share = sum(map(operator.eq, texts, expected)) / len(expected)
    return {"per_second": len(bodies) / seconds, "equal": share == 1, "equal_share": share}


def _starts(client: httpx.Client, bodies: Sequence[dict[str, Any]], clients: int) -> dict[str, Any]:
    """Seconds to the median and the last of so many answers of one token that are asked for at once."""
    begin = time.perf_counter()

    def ask(body: dict[str, Any]) -> float:
        _ask(client, {**body, "max_tokens": 1})
        return time.perf_counter() - begin

    with ThreadPoolExecutor(clients) as threads:
        seconds = list(threads.map(ask, bodies[:clients]))
    found = dict(zip(SECONDS, (statistics.median(seconds), max(seconds)), strict=True))
    return {"per_second": clients / max(seconds), **found}


def _captured_answers(service: Service, *asked: Any) -> dict[str, Any]:
    """:func:`_answers` of a server that captures the steps of several answers."""
    service.engine.captures = True
    try:
        return _answers(*asked)
    finally:
        service.engine.captures = False


def _steps(
    service: Service, bodies: Sequence[dict[str, Any]], count: int, new_tokens: int, captures: bool = False
) -> dict[str, Any]:
    """Tokens per second of ``count`` answers at once, after the first token of the last of them."""
    engine, ends, before = service.engine, service.engine.ends, service.engine.captures
    events: queue.Queue[Any] = queue.Queue()
    engine.ends, engine.captures = frozenset(), captures  # an answer has as many tokens as were asked for
    try:
        prompts = [service.maker.make(parse_request(body), "", threading.Event()) for body in bodies[:count]]
        for prompt in prompts:
            scope = service.scope_of("")
            engine.submit(Generation(prompt, GREEDY, new_tokens, scope, service.tokenizer, events.put))
        while (status := engine.status()).decoding < count:
            if not (status.waiting or status.reading):
                raise SystemExit("The first answer ended before the last one began: ask for more --new-tokens.")
            time.sleep(0.001)
        begin, generated = time.perf_counter(), service.metrics.generated_tokens.value()
        ended = 0
        while not ended:  # until the first one has ended, all of them run
            event = events.get()
            if not isinstance(event, (Delta, Finish)):
                raise event
            ended += isinstance(event, Finish)
        seconds, tokens = time.perf_counter() - begin, service.metrics.generated_tokens.value() - generated
        while ended < count:
            ended += isinstance(events.get(), Finish)
    finally:
        engine.ends, engine.captures = ends, before
    return {"per_second": tokens / seconds}


if __name__ == "__main__":
    main()
