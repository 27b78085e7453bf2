"""One call of ``generate`` in a thread of its own: tokens and memory reports come out while it runs.

Generations on one model take turns, because modalities are noted while the model runs and because Qwen's models keep
``rope_deltas`` of whichever prompt ran last.
"""

from __future__ import annotations

import collections
import contextlib
import math
import queue
import threading
import time
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from transformers import GenerationMixin, PreTrainedModel, StoppingCriteria, StoppingCriteriaList
from transformers.generation.streamers import BaseStreamer

from kvmm.cache import MemoryReport
from kvmm.errors import KVMMError

if TYPE_CHECKING:
    from transformers import Cache

_POLL_SECONDS = 0.1  # how often a thread that waits for the model looks whether it still should
MEMORY_SECONDS = 0.1  # while streaming, the memory report is renewed this often ...
MEMORY_SHARE = 0.05  # ... unless making it would take a larger share of the time


class FairLock:
    """A lock that is handed on in the order in which it was asked for.

    An evaluation takes the model again right after it gave it back; with a plain lock somebody's question could wait
    until all of it is over.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._held = False
        self._waiting: collections.deque[threading.Event] = collections.deque()

    def acquire(self, timeout: float | None = None, unless: threading.Event | None = None) -> bool:
        """Take the lock.

        Returns False, the place in the queue given up, when it could not be had within ``timeout`` seconds or
        ``unless`` was set meanwhile.
        """
        with self._guard:
            if not self._held:
                self._held = True
                return True
            turn = threading.Event()
            self._waiting.append(turn)
        until = math.inf if timeout is None else time.monotonic() + timeout
        try:
            while not (unless is not None and unless.is_set()) and (left := until - time.monotonic()) > 0:
                if turn.wait(min(left, _POLL_SECONDS)):
                    return True
        except BaseException:
            if not self._give_up(turn):  # an interrupt must not keep what nobody will release
                self.release()
            raise
        return not self._give_up(turn)

    def _give_up(self, turn: threading.Event) -> bool:
        """Leave the queue; False if the lock has been handed over already."""
        with self._guard:
            if turn in self._waiting:
                self._waiting.remove(turn)
                return True
        return False

    def release(self) -> None:
        """Hand the lock to whoever has waited longest."""
        with self._guard:
            if not self._held:
                raise RuntimeError("release of a lock that is not held")
            if self._waiting:
                self._waiting.popleft().set()
            else:
                self._held = False

    def __enter__(self) -> FairLock:
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


_locks: weakref.WeakKeyDictionary[PreTrainedModel, FairLock] = weakref.WeakKeyDictionary()
_locks_guard = threading.Lock()


def model_lock(model: PreTrainedModel) -> FairLock:
    """The lock that serialises generations on one model object. Hold it around any other forward pass too."""
    with _locks_guard:
        return _locks.setdefault(model, FairLock())


@dataclass
class Prompt:
    """What one call of ``generate`` needs, on the model's device, and what is remembered of it."""

    inputs: dict[str, torch.Tensor]
    history: dict[str, torch.Tensor]  # the position inputs of all turns
    ids: torch.Tensor  # [1, T] all token ids, on the CPU
    per_token: dict[str, torch.Tensor]  # other [1, T] inputs, on the CPU


def positions(model: PreTrainedModel, prompt: Prompt) -> dict[str, torch.Tensor]:
    """Explicit ``position_ids`` of all tokens, for families whose positions depend on the media; else nothing.

    transformers reads ``rope_deltas`` from the model only when it has to guess positions, so giving them keeps
    conversations apart.
    """
    if type(model)._prepare_position_ids_for_generation is GenerationMixin._prepare_position_ids_for_generation:
        return {}
    names = ("input_ids", "attention_mask", *prompt.per_token)
    arguments = {name: prompt.inputs[name] for name in names} | prompt.history
    return {"position_ids": model._prepare_position_ids_for_generation(prompt.inputs["input_ids"], arguments)}


@contextlib.contextmanager
def kept_rope_deltas(model: PreTrainedModel) -> Iterator[None]:
    """Leave the model's ``rope_deltas`` as they were, for code outside kvmm that relies on them."""
    kept = [
        (module, module.rope_deltas)
        for module in (model, getattr(model, "model", None))
        if hasattr(module, "rope_deltas")
    ]
    try:
        yield
    finally:
        for module, value in kept:
            module.rope_deltas = value


class Worker(threading.Thread):
    """One ``generate`` call in a thread of its own, so that its tokens can be consumed while it runs."""

    def __init__(
        self, model: PreTrainedModel, cache: Cache, prompt: Prompt, max_new_tokens: int, stop: threading.Event
    ) -> None:
        super().__init__(name="kvmm-generate", daemon=True)
        self.model, self.cache, self.prompt, self.max_new_tokens, self.stop = model, cache, prompt, max_new_tokens, stop
        self.error: BaseException | None = None
        self.memory: MemoryReport | None = None
        self.tokens: list[int] = []  # consumed by the caller, see wait()
        self.times: list[float] = []
        self.eos_token_ids = eos_token_ids(model)
        self._queue: queue.Queue[tuple[list[int], float, MemoryReport | None] | None] = queue.Queue()
        self._emitted, self._next_measure = 0, 0.0

    def wait(self) -> bool:
        """Take what has been generated since the last call, waiting for at least one token; False at the end."""
        item = self._queue.get()
        while item is not None:
            tokens, when, memory = item
            self.tokens += tokens
            self.times += [when] * len(tokens)
            self.memory = memory or self.memory
            try:
                item = self._queue.get_nowait()
            except queue.Empty:
                return True
        return False

    @property
    def finished(self) -> bool:
        """Whether the answer ended by itself or by its length, not by Stop."""
        return bool(self.tokens) and (self.tokens[-1] in self.eos_token_ids or len(self.tokens) >= self.max_new_tokens)

    def run(self) -> None:
        try:
            lock = model_lock(self.model)
            if not lock.acquire(unless=self.stop):
                return
            try:
                self._generate()
            finally:
                lock.release()
        except torch.OutOfMemoryError:
            self.error = KVMMError("Memory ran out: send fewer or smaller pages, or choose a policy with fewer bits.")
        except BaseException as error:  # handed to the thread that asked
            self.error = error
        finally:
            self._queue.put(None)

    def _generate(self) -> None:
        config = self.model.generation_config
        pad = config.pad_token_id if config.pad_token_id is not None else next(iter(self.eos_token_ids), None)
        with kept_rope_deltas(self.model):
            self.model.generate(
                **self.prompt.inputs,
                **positions(self.model, self.prompt),
                past_key_values=self.cache,
                max_new_tokens=self.max_new_tokens,
                do_sample=False,
                num_beams=1,
                temperature=None,
                top_p=None,
                top_k=None,
                pad_token_id=pad,
                streamer=_Tokens(self),
                stopping_criteria=StoppingCriteriaList([_StopOnEvent(self.stop)]),
            )
        self._queue.put(([], time.perf_counter(), self._measure()))

    def emit(self, tokens: list[int]) -> None:
        now = time.perf_counter()
        memory = None
        self._emitted += len(tokens)
        # the first token comes before the prompt is packed: what the cache holds then is not what it will
        if self._emitted > 1 and now >= self._next_measure:
            memory, after = self._measure(), time.perf_counter()
            self._next_measure = after + max(MEMORY_SECONDS, (after - now) / MEMORY_SHARE)
        self._queue.put((tokens, now, memory))

    def _measure(self) -> MemoryReport | None:
        return self.cache.memory() if hasattr(self.cache, "memory") else None


class _Tokens(BaseStreamer):
    """Passes generated tokens on; what ``generate`` puts first is the prompt."""

    def __init__(self, worker: Worker) -> None:
        self._worker, self._is_prompt = worker, True

    def put(self, value: torch.Tensor) -> None:
        if self._is_prompt:
            self._is_prompt = False
            return
        self._worker.emit(value.reshape(-1).tolist())

    def end(self) -> None:
        pass


class _StopOnEvent(StoppingCriteria):
    def __init__(self, event: threading.Event) -> None:
        self._event = event

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        return torch.full((input_ids.shape[0],), self._event.is_set(), dtype=torch.bool, device=input_ids.device)


def eos_token_ids(model: PreTrainedModel) -> frozenset[int]:
    eos = model.generation_config.eos_token_id
    return frozenset() if eos is None else frozenset([eos] if isinstance(eos, int) else eos)
