"""A client of chat completions that ends an answer at once when it is stopped.

Whatever goes wrong is a ``KVMMError`` of one line for the visitor: the server is the operator's, but what it sends is
bounded and never believed to be of a type.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Awaitable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import httpx

from kvmm.errors import KVMMError, one_line
from kvmm.models.sampling import MAX_TOP_LOGPROBS, Sampling, is_number
from kvmm.serve.protocol import TokenLogprob

CONNECT_SECONDS, SILENT_SECONDS = 10.0, 600.0  # a server may read a long document before it says anything
MAX_ANSWER, MAX_LINE = 2**22, 2**20  # characters of an answer, and of one event
MAX_MODELS = 1000
MAX_TOKEN = 100  # characters of one token
MAX_PASSAGE = 400  # characters of a passage of a PDF
_POLL_SECONDS = 0.05  # how often an answer looks whether it was stopped

T = TypeVar("T")


@dataclass(frozen=True)
class EndpointUsage:
    """What an answer took, as the server tells; None for what it does not tell.

    Attributes:
        prompt_tokens, completion_tokens: of the question with all that was said before, and of the answer.
        cached_tokens: of the prompt, read for an earlier question.
        cache_nbytes, cache_nbytes_bf16: bytes of the answer's KV cache, and of the same tokens in bf16.
        bits_per_value: of the whole cache.
        confidence: the probability that the answer is right, calibrated.
        unsure: whether the server says that its model is unsure.
        supported: whether it found the answer's values in the text layer of the pages.
        nearest_text: the passage of that text that an answer without them is nearest to.
    """

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    cache_nbytes: int | None = None
    cache_nbytes_bf16: int | None = None
    bits_per_value: float | None = None
    confidence: float | None = None
    unsure: bool = False
    supported: bool | None = None
    nearest_text: str | None = None

    @property
    def ratio(self) -> float | None:
        """How many times smaller than in bf16 the cache is."""
        return self.cache_nbytes_bf16 / self.cache_nbytes if self.cache_nbytes and self.cache_nbytes_bf16 else None

    @classmethod
    def of(cls, usage: Any) -> EndpointUsage | None:
        """The ``usage`` of a completion; None where there is none."""
        if not isinstance(usage, dict):
            return None
        details, cache = usage.get("prompt_tokens_details"), usage.get("kvmm")
        bits, chance = _number(cache, "bits_per_value"), _number(cache, "confidence")
        chance = None if chance is None or not 0 <= chance <= 1 else chance
        return cls(
            _count(usage, "prompt_tokens"),
            _count(usage, "completion_tokens"),
            _count(details, "cached_tokens"),
            _count(cache, "cache_nbytes"),
            _count(cache, "cache_nbytes_bf16"),
            None if bits is None or not 0 <= bits <= 64 else bits,
            chance,
            chance is not None and cache.get("unsure") is True,
            cache["supported"] if chance is not None and isinstance(cache.get("supported"), bool) else None,
            _line(cache, "nearest_text"),
        )


def _line(values: Any, name: str) -> str | None:
    value = values.get(name) if isinstance(values, dict) else None
    return " ".join(value.split()) or None if isinstance(value, str) and len(value) <= MAX_PASSAGE else None


def _number(values: Any, name: str) -> float | None:
    value = values.get(name) if isinstance(values, dict) else None
    return value if is_number(value) else None


def _count(values: Any, name: str) -> int | None:
    value = _number(values, name)
    return int(value) if value is not None and 0 <= value < 2**62 else None


@dataclass(frozen=True)
class Piece:
    """A piece of an answer: its next ``text`` and tokens, or how it ended and what it took."""

    text: str = ""
    finish_reason: str | None = None
    usage: EndpointUsage | None = None
    logprobs: tuple[TokenLogprob, ...] = ()


class Endpoint:
    """An OpenAI server.

    Args:
        url: its address, mostly with ``/v1`` at the end.
        api_key: sent as a bearer token; None for a server without keys.

    Raises:
        KVMMError: the address is none, or the key cannot be sent.
    """

    def __init__(self, url: str, api_key: str | None = None) -> None:
        try:
            parsed = httpx.URL(url.strip())
        except (httpx.InvalidURL, TypeError):
            parsed = httpx.URL("")
        if parsed.scheme not in ("http", "https") or not parsed.host or parsed.query or parsed.fragment:
            raise KVMMError(f"--endpoint {url!r} is no address of a server: give one such as http://127.0.0.1:8000/v1")
        if parsed.userinfo:
            raise KVMMError("--endpoint takes no user name or password in the address: give the key with --api-key")
        if api_key is not None and not (api_key.strip() and api_key.isascii() and api_key.isprintable()):
            raise KVMMError("--api-key takes printable ASCII characters")
        self.url = str(parsed).rstrip("/")
        self._headers = {} if api_key is None else {"Authorization": f"Bearer {api_key.strip()}"}
        self._timeout = httpx.Timeout(SILENT_SECONDS, connect=CONNECT_SECONDS)

    def models(self) -> list[str]:
        """The names of the models that the server has, at least one.

        Raises:
            KVMMError: it cannot be reached, does not accept the key, or is no OpenAI server.
        """
        no_server = KVMMError(f"{self.url} is no OpenAI server: its address mostly ends in /v1")
        try:
            timeout = httpx.Timeout(CONNECT_SECONDS)
            with httpx.stream("GET", f"{self.url}/models", headers=self._headers, timeout=timeout) as answer:
                body = b""
                for part in answer.iter_bytes():
                    body += part
                    if len(body) > MAX_LINE:
                        raise no_server
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise self._unreachable(error) from None
        if answer.status_code in (401, 403):
            raise self._refused(answer.status_code, body)
        try:
            found = [one["id"] for one in json.loads(body)["data"][:MAX_MODELS]] if answer.is_success else []
        except (ValueError, KeyError, TypeError, RecursionError):
            raise no_server from None
        names = [name for name in found if isinstance(name, str) and 0 < len(name) <= 200 and name.isprintable()]
        if not names:
            raise no_server
        return list(dict.fromkeys(names))

    def answer(
        self,
        model: str,
        messages: Sequence[Mapping[str, Any]],
        *,
        max_tokens: int,
        sampling: Sampling,
        stop: threading.Event,
    ) -> Iterator[Piece]:
        """The pieces of an answer as they come; once ``stop`` is set, the connection is closed and they end.

        Args:
            model: one of :meth:`models`.
            messages: in OpenAI's form; the last one is the user's.
            max_tokens: most tokens of the answer.
            sampling: temperature, top_p, seed, stop texts, and whether log-probabilities are wanted.
            stop: ends the answer.

        Raises:
            KVMMError: the server cannot be reached, refuses the question or goes away.
        """
        body: dict[str, Any] = {"model": model, "messages": list(messages), "max_tokens": max_tokens, "stream": True}
        body |= {"temperature": sampling.temperature, "stream_options": {"include_usage": True}}
        if not sampling.is_greedy:
            body |= {"top_p": sampling.top_p} | ({} if sampling.seed is None else {"seed": sampling.seed})
        if sampling.stop:
            body["stop"] = list(sampling.stop)
        if sampling.logprobs is not None:
            body |= {"logprobs": True} | ({"top_logprobs": sampling.logprobs} if sampling.logprobs else {})
        # a thread of its own: the caller's may have a running loop, and may be another one for every piece
        with ThreadPoolExecutor(1) as thread:
            runner, pieces = asyncio.Runner(), self._pieces(json.dumps(body).encode())
            try:
                while (piece := thread.submit(runner.run, _unless(stop, anext(pieces, None))).result()) is not None:
                    yield piece
            finally:
                thread.submit(runner.run, pieces.aclose()).result()
                thread.submit(runner.close).result()

    async def _pieces(self, body: bytes) -> AsyncIterator[Piece]:
        headers = {**self._headers, "Content-Type": "application/json"}
        url = f"{self.url}/chat/completions"
        length, begun, ended = 0, False, False
        try:
            async with (
                httpx.AsyncClient(timeout=self._timeout) as client,
                client.stream("POST", url, content=body, headers=headers) as answer,
            ):
                if not answer.is_success:
                    raise self._refused(answer.status_code, await _first_bytes(answer))
                begun = True
                async for line in _lines(answer):
                    if not line.startswith("data:"):
                        continue
                    data = line.removeprefix("data:").strip()
                    if data == "[DONE]":
                        return
                    piece = _piece_of(data)
                    length, ended = length + len(piece.text), ended or piece.finish_reason is not None
                    if length > MAX_ANSWER:
                        raise KVMMError(f"The server's answer is longer than {MAX_ANSWER:,} characters: stopped.")
                    yield piece
        except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError) as error:
            if not begun:
                raise self._unreachable(error) from None
        if not ended:
            raise KVMMError(f"The server at {self.url} went away in the middle of the answer: ask again.")

    def _unreachable(self, error: Exception) -> KVMMError:
        why = "it does not answer" if isinstance(error, httpx.TimeoutException) else one_line(error) or "no answer"
        return KVMMError(f"The server at {self.url} cannot be reached ({why[:200]}): is it running there?")

    def _refused(self, status: int, body: bytes) -> KVMMError:
        if status in (401, 403):
            return KVMMError(f"The server at {self.url} does not accept the key: give the right one with --api-key.")
        try:
            error = json.loads(body)["error"]
        except (ValueError, KeyError, TypeError, RecursionError):
            error = None
        return KVMMError(_told(error) or f"The server at {self.url} answered with status {status}: try again later.")


async def _unless(stop: threading.Event, work: Awaitable[T]) -> T | None:
    """The result of ``work``, which is cancelled once ``stop`` is set; then None."""
    task = asyncio.ensure_future(work)
    while not task.done():
        if stop.is_set():
            task.cancel()
            await asyncio.wait({task})
            return None
        await asyncio.wait({task}, timeout=_POLL_SECONDS)
    return task.result()


async def _first_bytes(answer: httpx.Response) -> bytes:
    body = b""
    async for part in answer.aiter_bytes():
        body += part
        if len(body) > MAX_LINE:
            break
    return body[:MAX_LINE]


async def _lines(answer: httpx.Response) -> AsyncIterator[str]:
    """The lines of a response; ``httpx.Response.aiter_lines`` would hold a line of any length."""
    rest = b""
    async for part in answer.aiter_bytes():
        *lines, rest = (rest + part).split(b"\n")
        if len(rest) > MAX_LINE or any(len(line) > MAX_LINE for line in lines):
            raise KVMMError("The server sent an event that is too large: it is no OpenAI server.")
        for line in lines:
            yield line.rstrip(b"\r").decode(errors="replace")
    if rest:
        yield rest.decode(errors="replace")


def _piece_of(data: str) -> Piece:
    try:
        event = json.loads(data)
        if not isinstance(event, dict):
            raise TypeError
        if "error" in event:
            raise KVMMError(_told(event["error"]) or "The server could not answer this: try again.")
        choice = next(iter(event.get("choices") or []), None) or {}
        text, reason = (choice.get("delta") or {}).get("content"), choice.get("finish_reason")
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        if isinstance(error, KVMMError):
            raise
        raise KVMMError("The server sent an event that is not OpenAI's: it is no OpenAI server.") from None
    text, reason = (value if isinstance(value, str) else None for value in (text, reason))
    return Piece(text or "", reason, EndpointUsage.of(event.get("usage")), _logprobs_of(choice.get("logprobs")))


def _logprobs_of(told: Any) -> tuple[TokenLogprob, ...]:
    """The tokens of a piece; those that are not in OpenAI's form are left out."""
    found = ((entry, _logprob_of(entry)) for entry in _list(told, "content"))
    return tuple(TokenLogprob(*one, _top_of(entry)) for entry, one in found if one is not None)


def _top_of(entry: Any) -> tuple[tuple[str, bytes, float], ...]:
    found = map(_logprob_of, _list(entry, "top_logprobs")[:MAX_TOP_LOGPROBS])
    return tuple(one for one in found if one is not None)


def _list(values: Any, name: str) -> list[Any]:
    value = values.get(name) if isinstance(values, dict) else None
    return value if isinstance(value, list) else []


def _logprob_of(entry: Any) -> tuple[str, bytes, float] | None:
    token, logprob = entry.get("token") if isinstance(entry, dict) else None, _number(entry, "logprob")
    if not isinstance(token, str) or logprob is None:
        return None
    token = token[:MAX_TOKEN].encode(errors="replace").decode()
    return token, token.encode(), min(float(logprob), 0.0)


def _told(error: Any) -> str:
    """What an error of the server says, in one line; empty if it says nothing."""
    message = error.get("message") if isinstance(error, dict) else error
    return " ".join(message.split())[:500] if isinstance(message, str) else ""


__all__ = ["Endpoint", "EndpointUsage", "Piece"]
