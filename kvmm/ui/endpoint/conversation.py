"""A conversation whose model is behind an OpenAI server: what the app asks of :class:`kvmm.models.Conversation`.

Every question sends all that was said and shown before; a server that keeps prefixes, as ``kvmm serve`` does, goes on
from there. Nothing of a cache is in this process.
"""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from kvmm.errors import KVMMError
from kvmm.media import Media
from kvmm.models.confidence import Confidence
from kvmm.models.conversation import BUSY
from kvmm.models.progress import Progress, step_times
from kvmm.models.sampling import GREEDY, Sampling
from kvmm.ui.endpoint.client import Endpoint, EndpointUsage
from kvmm.ui.endpoint.parts import message_of

NO_FILE = "The cache of this conversation is on the server, so there is nothing here to save."


class EndpointConversation:
    """Questions and answers with one model of a server.

    Args:
        endpoint: the server.
        model: one of its models.

    ``messages`` is the history: texts, question and answer in turns.
    """

    model = processor = cache = None  # they are the server's
    reads_again = False  # what was read before is looked for on the server

    def __init__(self, endpoint: Endpoint, model: str) -> None:
        self.endpoint, self.name = endpoint, model
        self.messages: list[dict[str, Any]] = []
        self._media: list[tuple[Media, ...]] = []  # of each question
        self._asking = threading.Lock()

    def ask(
        self,
        question: str = "",
        media: Sequence[Media] = (),
        *,
        max_new_tokens: int = 256,
        stop: threading.Event | None = None,
        sampling: Sampling = GREEDY,
    ) -> Iterator[Progress]:
        """Ask, and stream the answer; the last ``Progress`` has ``done`` set and the server's ``usage``.

        When an error is raised, or ``stop`` is set, or the iterator is closed early, the connection is closed and the
        conversation is as if this question had not been asked.

        Raises:
            KVMMError: another answer is being written, a file is gone or a video, or what
                :meth:`Endpoint.answer` raises.
        """
        if not self._asking.acquire(blocking=False):
            raise KVMMError(BUSY)
        stop = stop or threading.Event()
        begin = time.perf_counter()
        text, times, usage, logprobs = "", [], None, []
        try:
            pieces = self.endpoint.answer(
                self.name, self._sent(question, media), max_tokens=max_new_tokens, sampling=sampling, stop=stop
            )
            for piece in pieces:
                usage = piece.usage or usage
                logprobs += piece.logprobs[: max(max_new_tokens - len(logprobs), 0)]
                if piece.text:
                    text += piece.text
                    times.append(time.perf_counter())
                    yield _progress(text, times, begin, usage)
            stopped = stop.is_set()
            if not stopped:
                self.messages += [{"role": "user", "content": question}, {"role": "assistant", "content": text.strip()}]
                self._media.append(tuple(media))
            told = _progress(text, times, begin, usage, done=True, stopped=stopped)
            yield told if sampling.logprobs is None else replace(told, logprobs=tuple(logprobs))
        finally:
            self._asking.release()

    def _sent(self, question: str, media: Sequence[Media]) -> list[dict[str, Any]]:
        """All messages in OpenAI's form, with the files."""
        asked = zip(self.messages[::2], self._media, strict=True)
        users = [message_of(message["content"], shown) for message, shown in asked]
        turns = [one for pair in zip(users, self.messages[1::2], strict=True) for one in pair]
        return [*turns, message_of(question, media)]

    def adopt(self, other: EndpointConversation, stop: threading.Event | None = None) -> None:
        """Take over the questions and answers of ``other``, which may be with another model."""
        self.messages, self._media = list(other.messages), list(other._media)

    def truncate(self, count: int) -> None:
        """Remove all questions but the first ``count``."""
        self.messages, self._media = self.messages[: 2 * count], self._media[:count]

    def fork(self, cache: str = "copy") -> EndpointConversation:
        """A branch of this conversation."""
        twin = copy.copy(self)
        twin._asking = threading.Lock()
        twin.messages, twin._media = list(self.messages), list(self._media)
        return twin

    def save(self, *args: Any) -> None:
        """Raises ``KVMMError``: the cache is on the server."""
        raise KVMMError(NO_FILE)

    def memory(self) -> None:
        """None: what the server tells is in the progress of an answer."""

    def cache_nbytes(self) -> int:
        """0: nothing of the cache is here."""
        return 0

    def free_cache(self) -> bool:
        """False: there is none to drop."""
        return False

    def forget_stopped(self) -> None:
        """Nothing: a stopped question leaves nothing here."""

    def prompt_inputs(self) -> dict[str, Any]:
        """Raises ``KVMMError``: the prompt's tensors are on the server."""
        raise KVMMError("The prompt is on the server: this needs a model in the app, without --endpoint.")


def _progress(
    text: str,
    times: Sequence[float],
    begin: float,
    usage: EndpointUsage | None,
    *,
    done: bool = False,
    stopped: bool = False,
) -> Progress:
    """How far an answer has come; tokens are counted by pieces until the server says how many they were."""
    told = None if usage is None else usage.completion_tokens
    confidence = None
    if done and not stopped and usage is not None and usage.confidence is not None:
        confidence = Confidence(usage.confidence, usage.unsure, usage.supported)
    first_step, rate = step_times(times, told)
    return Progress(
        text=text.strip(),
        tokens=len(times) if told is None else told,
        seconds=time.perf_counter() - begin,
        ttft=times[0] - begin if times else None,
        tokens_per_second=rate,
        memory=None,
        done=done,
        stopped=stopped,
        usage=usage,
        confidence=confidence,
        nearest_text=usage.nearest_text if done and not stopped and usage is not None else None,
        first_step=first_step,
    )


__all__ = ["NO_FILE", "EndpointConversation"]
