"""The HTTP side: who may ask, what is answered, and what happens when a client goes away."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import json
import logging
import threading
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from starlette.exceptions import HTTPException

from kvmm.errors import KVMMError
from kvmm.serve.bodies import Bodies, ClientGone
from kvmm.serve.engine import Engine
from kvmm.serve.errors import APIError, busy
from kvmm.serve.files import HeldMemory
from kvmm.serve.generation import Delta, Event, Finish, Generation
from kvmm.serve.metrics import CONTENT_TYPE, Metrics
from kvmm.serve.prompts import PromptMaker, ServedPrompt
from kvmm.serve.protocol import ChatRequest, Reply, TokenLogprob, parse_request

logger = logging.getLogger(__name__)
MAX_PREPARED = 4 * 2**30  # bytes of pixels and audio features that may wait to be read
PREPARING = 4  # requests whose files are decoded and whose prompts are made at once
CLIENT_CLOSED = 499  # nginx's status for a client that went away; nobody sees it but the metrics


@dataclass(frozen=True)
class Settings:
    """What the operator chose.

    Attributes:
        model_name: what requests call the model.
        api_keys: one of them has to come with every request; none leaves the server open.
        share_prefixes: whether requests of different keys find the same prefixes.
        max_places: requests that are prepared, wait or run at once.
        max_new_tokens: longest answer.
        max_body: bytes of one body.
        hosts: names that requests may call the server by; none allows all. A page that a browser loaded from elsewhere
            can have its own name lead to this machine, and would reach a server without keys under it.
    """

    model_name: str
    api_keys: tuple[str, ...] = ()
    share_prefixes: bool = False
    max_places: int = 80
    max_new_tokens: int = 1024
    max_body: int = 100 * 2**20
    hosts: tuple[str, ...] = ()


@dataclass
class Service:
    """What requests are answered with. ``scope_of`` gives the scope of an API key, of "" for all."""

    settings: Settings
    engine: Engine
    maker: PromptMaker
    metrics: Metrics
    tokenizer: Any
    window: int
    scope_of: Callable[[str], str]
    description: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.created = int(time.time())
        self.bodies = Bodies(self.settings.max_body)
        self.places = 0
        self.prepared = HeldMemory()  # pixels and audio features of all requests
        self.pool = ThreadPoolExecutor(PREPARING, "kvmm-prepare")
        self._keys = {hashlib.sha256(key.encode()).digest(): key for key in self.settings.api_keys}

    def authenticate(self, request: Request) -> str:
        """The scope of a request's sender. Raises ``APIError`` 401 without a right key, 403 under another name."""
        if self.settings.hosts and request.url.hostname not in self.settings.hosts:
            raise APIError(
                403, f"Call this server by one of these names: {', '.join(self.settings.hosts)}.", "wrong_host"
            )
        if not self._keys:
            return self.scope_of("")
        kind, _, given = request.headers.get("authorization", "").partition(" ")
        digest = hashlib.sha256(given.strip().encode("utf-8", "replace")).digest()
        found = [key for known, key in self._keys.items() if hmac.compare_digest(known, digest)]
        if kind.lower() != "bearer" or not found:
            raise APIError(
                401,
                "No right API key came with the request: send the header Authorization: Bearer KEY.",
                "invalid_api_key",
                headers={"www-authenticate": "Bearer"},
            )
        return self.scope_of("" if self.settings.share_prefixes else found[0])

    @contextlib.contextmanager
    def place(self) -> Any:
        """A place among the requests that are here at once. Raises ``APIError`` 503 if there is none."""
        if self.places >= self.settings.max_places:
            raise busy()
        self.places += 1
        try:
            yield
        finally:
            self.places -= 1

    def model_object(self) -> dict[str, Any]:
        """The model in OpenAI's form."""
        shared = {"id": self.settings.model_name, "object": "model", "created": self.created, "owned_by": "kvmm"}
        return {**shared, "max_model_len": self.window, "kvmm": self.description}


class Exchange:
    """One request from its body to the end of its answer; the client may go away at any time.

    Args:
        service: what answers.
        request: of the client.
        scope: of its sender.
    """

    def __init__(self, service: Service, request: Request, scope: str) -> None:
        self._service, self._request, self._scope = service, request, scope
        self._loop = asyncio.get_running_loop()
        self._events: asyncio.Queue[Event] = asyncio.Queue()
        self._stop = threading.Event()  # ends the decoding of files
        self._generation: Generation | None = None
        self._gone: asyncio.Task[None] | None = None
        self._prepared: list[int] = []  # addresses of its pixels and audio features
        self.arrived = time.perf_counter()

    async def begin(self) -> ChatRequest:
        """Read the body, make the prompt and hand it to the engine."""
        with self._service.bodies.holding() as held:
            asked = parse_request(await self._service.bodies.read_json(self._request, held))
            prompt = await self._prompt(asked)
        service = self._service
        limit = min(service.settings.max_new_tokens, service.window - prompt.length)
        self._generation = Generation(
            prompt,
            asked.sampling,
            min(asked.max_tokens or limit, limit),
            self._scope,
            service.tokenizer,
            self._tell,
            arrived=self.arrived,
        )
        service.engine.submit(self._generation)
        return replace(asked, messages=())  # the files have served

    async def _prompt(self, asked: ChatRequest) -> ServedPrompt:
        """The prompt of a request, made in another thread."""
        if asked.model != self._service.settings.model_name:
            raise APIError(
                404,
                f"There is no model {asked.model[:100]!r} here: this server has {self._service.settings.model_name!r}.",
                "model_not_found",
                "model",
            )
        self._gone = asyncio.create_task(self._until_gone())
        make = self._service.maker.make
        prompt = await self._or_gone(
            self._loop.run_in_executor(self._service.pool, make, asked, self._scope, self._stop)
        )
        before = self._service.prepared.nbytes
        self._prepared = self._service.prepared.hold(prompt.tensors)
        if before and self._service.prepared.nbytes > max(before, MAX_PREPARED):
            raise busy()
        return prompt

    def _tell(self, event: Event) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._events.put_nowait, event)

    async def event(self) -> Delta | Finish:
        """What happens next. Raises ``APIError`` if the answer failed and ``ClientGone``."""
        event = await self._or_gone(asyncio.ensure_future(self._events.get()))
        if isinstance(event, APIError):
            raise event
        self._forget_media()  # the prompt has been read
        return event

    def _forget_media(self) -> None:
        self._service.prepared.release(self._prepared)
        self._prepared = []

    async def _until_gone(self) -> None:
        while (await self._request.receive())["type"] != "http.disconnect":
            pass

    async def _or_gone(self, work: asyncio.Future[Any]) -> Any:
        await asyncio.wait({work, self._gone}, return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            return work.result()
        work.cancel()
        raise ClientGone

    def end(self) -> None:
        """Leave the engine, if the answer is not done; nothing is kept of this request."""
        self._stop.set()
        self._forget_media()
        if self._generation is not None:
            self._service.engine.cancel(self._generation)
        if self._gone is not None:
            self._gone.cancel()


class EventStream(Response):
    """Server-sent events; ``on_end`` is called once nobody listens any more."""

    def __init__(self, events: AsyncGenerator[str, None], on_end: Callable[[], None]) -> None:
        super().__init__(media_type="text/event-stream")
        self.raw_headers = [pair for pair in self.raw_headers if pair[0] != b"content-length"]
        self.headers["cache-control"] = "no-cache"
        self.headers["x-accel-buffering"] = "no"
        self._events, self._on_end = events, on_end

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            async for text in self._events:
                await send({"type": "http.response.body", "body": text.encode(), "more_body": True})
            await send({"type": "http.response.body", "body": b""})
        except (ClientGone, OSError):
            pass
        finally:
            await self._events.aclose()
            self._on_end()


async def complete(service: Service, request: Request) -> Response:
    """``POST /v1/chat/completions``."""
    scope = service.authenticate(request)
    with contextlib.ExitStack() as stack:
        stack.enter_context(service.place())
        exchange = Exchange(service, request, scope)
        stack.callback(exchange.end)
        asked = await exchange.begin()
        reply = Reply(f"chatcmpl-{uuid.uuid4().hex}", service.settings.model_name)
        first = await exchange.event()  # until then an error has a status of its own
        if asked.stream:
            rest = stack.pop_all()
            return EventStream(_stream(service, exchange, asked, reply, first), rest.close)
        texts: list[str] = []
        logprobs: list[TokenLogprob] = []
        event = first
        while isinstance(event, Delta):
            texts.append(event.text)
            logprobs += event.logprobs
            event = await exchange.event()
        shown = None if asked.sampling.logprobs is None else logprobs
        service.metrics.requests.add(1, "200")
        return JSONResponse(reply.completion("".join(texts), event.reason, shown, event.usage))


async def _stream(
    service: Service, exchange: Exchange, asked: ChatRequest, reply: Reply, event: Delta | Finish
) -> AsyncGenerator[str, None]:
    """The events of an answer as text."""
    status = str(CLIENT_CLOSED)  # until all of it has been sent
    try:
        yield _data(reply.chunk({"role": "assistant", "content": ""}))
        while isinstance(event, Delta):
            shown = None if asked.sampling.logprobs is None else event.logprobs
            yield _data(reply.chunk({"content": event.text}, logprobs=shown))
            event = await exchange.event()
        yield _data(reply.chunk({}, event.reason))
        if asked.include_usage:
            yield _data(reply.usage_chunk(event.usage))
        yield "data: [DONE]\n\n"
        status = "200"
    except APIError as error:
        status = str(error.status)
        yield _data(error.body())
    finally:
        service.metrics.requests.add(1, status)


def _data(value: dict[str, Any]) -> str:
    return f"data: {json.dumps(value, ensure_ascii=False, separators=(',', ':'))}\n\n"


def build_app(service: Service) -> FastAPI:
    """The application; the engine starts and ends with it."""

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        service.engine.start()
        yield
        await asyncio.to_thread(service.engine.close)
        service.pool.shutdown(wait=False, cancel_futures=True)

    app = FastAPI(title="kvmm", openapi_url=None, lifespan=lifespan, redirect_slashes=False)

    @app.post("/v1/chat/completions")
    async def chat_completions(request: Request) -> Response:
        try:
            return await complete(service, request)
        except APIError as error:
            service.metrics.requests.add(1, str(error.status))
            raise
        except ClientGone:
            service.metrics.requests.add(1, str(CLIENT_CLOSED))
            return Response(status_code=CLIENT_CLOSED)

    @app.get("/v1/models")
    async def models(request: Request) -> dict[str, Any]:
        service.authenticate(request)
        return {"object": "list", "data": [service.model_object()]}

    @app.get("/v1/models/{name:path}")
    async def model(request: Request, name: str) -> dict[str, Any]:
        service.authenticate(request)
        if name != service.settings.model_name:
            raise APIError(404, f"There is no model {name[:100]!r} here.", "model_not_found", "model")
        return service.model_object()

    @app.get("/metrics")
    async def metrics(request: Request) -> Response:
        service.authenticate(request)
        return PlainTextResponse(service.metrics.text(), media_type=CONTENT_TYPE)

    @app.api_route("/health", methods=["GET", "HEAD"])  # load balancers ask with either
    async def health() -> Response:
        if not service.engine.alive:
            raise APIError(503, "The engine has ended: restart the server.", "engine_dead")
        return JSONResponse({"status": "ok"})

    _add_errors(app)
    return app


def _paths(app: FastAPI) -> list[str]:
    """What can be asked for, without the names of models."""
    return [route.path for route in app.routes if "{" not in route.path]


def _add_errors(app: FastAPI) -> None:
    """Every error in OpenAI's form."""

    @app.exception_handler(APIError)
    async def known(request: Request, error: APIError) -> Response:
        # what is left of a body that was not read would be taken for the next request
        headers = (
            {**error.headers, "connection": "close"}
            if error.status in (401, 403, 408, 413, 415, 503)
            else error.headers
        )
        return JSONResponse(error.body(), error.status, headers)

    @app.exception_handler(KVMMError)
    async def refused(request: Request, error: KVMMError) -> Response:
        return JSONResponse(APIError(400, str(error)).body(), 400)

    @app.exception_handler(HTTPException)
    async def routed(request: Request, error: HTTPException) -> Response:
        path, code = request.url.path[:100], "not_found"
        if error.status_code == 404:
            line = f"There is no {request.method} {path} here: this server has {', '.join(_paths(app))}."
        elif error.status_code == 405:
            line = f"{path} takes {(error.headers or {}).get('Allow', 'another method')}, not {request.method}."
            code = "method_not_allowed"
        else:
            line, code = str(error.detail), None
        found = APIError(error.status_code, line, code)
        return JSONResponse(found.body(), error.status_code, dict(error.headers or {}))

    @app.exception_handler(Exception)
    async def unknown(request: Request, error: Exception) -> Response:
        logger.exception("a request failed", exc_info=error)
        return JSONResponse(
            APIError(500, "The request failed: the server's log says why.", "internal_error").body(), 500
        )


__all__ = ["EventStream", "Exchange", "Service", "Settings", "build_app"]
