"""One call of ``generate`` in a thread of its own, which yields tokens and memory reports while it runs.

The prompt is read in pieces before, so that its progress can be shown and it can be stopped.

Generations on one model take turns, because hooks note modalities while the model runs and because the Qwen families
keep the ``rope_deltas`` of the last prompt on the model.
"""

from __future__ import annotations

import collections
import contextlib
import math
import queue
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import nn
from transformers import LogitsProcessorList, PreTrainedModel, StoppingCriteria, StoppingCriteriaList
from transformers.generation.streamers import BaseStreamer

from kvmm.cache import KVMMCache, MemoryReport
from kvmm.cache.key_norms import KeyNormRecorder
from kvmm.errors import KVMMError
from kvmm.models.confidence import Confidence, ConfidenceMap, LogprobRecorder
from kvmm.models.pieces import Piece
from kvmm.models.positions import extended_position_ids, kept_rope_deltas, prompt_position_ids
from kvmm.models.prompting import Prompt, eos_token_ids
from kvmm.models.reading import logits_of, on_device, read_piece
from kvmm.models.sampling import GREEDY, Sampler, SamplerProcessor, Sampling
from kvmm.models.speculative import DraftedSteps, Drafter, Speculation
from kvmm.models.text import TextStream

if TYPE_CHECKING:
    from transformers import Cache

_POLL_SECONDS = 0.1  # how often a thread that waits for the model looks whether it still should
MEMORY_SECONDS = 0.1  # while streaming, the memory report is renewed this often ...
MEMORY_SHARE = 0.05  # ... unless making it would take a larger share of the time
NORM_SECONDS, NORM_TOKENS = 0.25, 24  # norms of new keys are read this often; before the residual's 32 are packed
_STOP_SECONDS = 0.05  # how often work that can be left alone is looked after
OUT_OF_MEMORY = "Memory ran out: send fewer or smaller pages, or choose a policy with fewer bits."

T = TypeVar("T")


class FairLock:
    """A lock that threads get in the order in which they asked for it.

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
        """Hand the lock to the thread that has waited longest."""
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


class Stopped(Exception):
    """The user stopped the preparation or the prefill of a prompt."""


@dataclass(frozen=True)
class Reading:
    """Progress of a prefill: page ``page`` of ``pages`` is being read, and the share ``share`` of the tokens is done.

    ``pages`` is 0 for a prompt without pictures.
    """

    page: int
    pages: int
    share: float


def unless_stopped(work: Callable[[], T], stop: threading.Event) -> T:
    """The result of ``work()``, run in a thread that is abandoned at Stop; ``work`` must have no side effects.

    Raises:
        Stopped: ``stop`` was set before it was done.
    """
    done = threading.Event()
    result: list[Any] = [None, None]

    def run() -> None:
        try:
            result[0] = work()
        except BaseException as error:  # handed to the thread that waits
            result[1] = error
        finally:
            done.set()

    threading.Thread(target=run, name="kvmm-prepare", daemon=True).start()
    while not done.wait(_STOP_SECONDS):
        if stop.is_set():
            raise Stopped
    if result[1] is not None:
        raise result[1]
    return result[0]


@contextlib.contextmanager
def stoppable(model: PreTrainedModel, stop: Callable[[], bool]) -> Iterator[Callable[[], None]]:
    """Inside, a forward pass of ``model`` raises :class:`Stopped` at its next block once ``stop()`` is true.

    Encoders and decoder are lists of blocks, so this takes effect within the time of one. What a pass has written to a
    cache by then is a part of it only. Yields a function that ends it early.
    """

    def check(module: nn.Module, args: Any) -> None:
        if stop():
            raise Stopped

    blocks = [block for blocks in model.modules() if isinstance(blocks, nn.ModuleList) for block in blocks]
    handles = [block.register_forward_pre_hook(check) for block in dict.fromkeys(blocks)]

    def end() -> None:
        while handles:
            handles.pop().remove()

    try:
        yield end
    finally:
        end()


class Worker(threading.Thread):
    """One ``generate`` call in a thread of its own, so that its tokens can be consumed while it runs."""

    def __init__(
        self,
        model: PreTrainedModel,
        cache: Cache,
        prompt: Prompt,
        max_new_tokens: int,
        stop: threading.Event,
        key_norms: KeyNormRecorder | None = None,
        sampling: Sampling = GREEDY,
        tokenizer: Any = None,
        drafter: Drafter | None = None,
        confidence: ConfidenceMap | None = None,
    ) -> None:
        super().__init__(name="kvmm-generate", daemon=True)
        self.text = TextStream(tokenizer, sampling.stop) if sampling.stop else None  # looks for stop texts
        self.stop_texts = sampling.stop
        self.sampler = None if sampling.is_plain else SamplerProcessor(Sampler(sampling))
        # the map holds for greedy answers alone
        self._confidence = confidence if sampling.is_greedy else None
        self._recorder = None if self._confidence is None else LogprobRecorder()
        self.key_norms = key_norms if isinstance(cache, KVMMCache) else None
        self.model, self.cache, self.prompt, self.max_new_tokens, self.stop = model, cache, prompt, max_new_tokens, stop
        self.drafter, self.speculation = drafter, None if drafter is None else Speculation([])
        self.error: BaseException | None = None
        self.memory: MemoryReport | None = None
        self.tokens: list[int] = []  # consumed by the caller, see wait()
        self.times: list[float] = []
        self.reading: Reading | None = None  # None once there is a token
        self.eos_token_ids = eos_token_ids(model)
        self._queue: queue.Queue[tuple[list[int], float, MemoryReport | None] | Reading | None] = queue.Queue()
        self._emitted, self._next_measure = 0, 0.0
        self._next_norms, self._norms_at = 0.0, 0
        self._begin_decoding: Callable[[], None] = lambda: None

    def wait(self) -> bool:
        """Take what has happened since the last call: tokens, or a piece of the prompt begun; False at the end."""
        item = self._queue.get()
        while item is not None:
            if isinstance(item, Reading):
                self.reading = item
            else:
                tokens, when, memory = item
                self.reading = None
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
        """Whether the answer ended by itself, by a stop text or by its length, not by Stop."""
        if self.text is not None and self.text.stopped:
            return True
        return bool(self.tokens) and (self.tokens[-1] in self.eos_token_ids or len(self.tokens) >= self.max_new_tokens)

    def confidence(self) -> Confidence | None:
        """How sure the model is of the whole answer; None without a map, and for one that is drawn."""
        if self._recorder is None:
            return None
        return self._confidence.confidence(self._recorder.logprobs(len(self.tokens)))

    def run(self) -> None:
        try:
            lock = model_lock(self.model)
            if not lock.acquire(unless=self.stop):
                return
            try:
                self._generate()
            finally:
                lock.release()
        except Stopped:
            pass
        except torch.OutOfMemoryError:
            self.error = KVMMError(OUT_OF_MEMORY)
        except BaseException as error:  # handed to the thread that asked
            self.error = error
        finally:
            self._queue.put(None)

    def _generate(self) -> None:
        prompt, drafts = self.prompt, self.drafter is not None
        if self.key_norms is not None:
            self.key_norms.crop(self.cache.get_seq_length())
        with kept_rope_deltas(self.model), stoppable(self.model, self.stop.is_set) as self._begin_decoding:
            places = prompt_position_ids(self.model, prompt)
            logits = None
            with torch.no_grad():
                for i, piece in enumerate(prompt.pieces):
                    self._tell(i)
                    if drafts or i + 1 < len(prompt.pieces):
                        logits = self._read(piece, places)
            if drafts:
                self._speculate(logits[0, -1:], places)
            else:
                self._decode(places)
        self._collect_norms(answering=True)
        if hasattr(self.cache, "pack") and not self.stop.is_set():
            self.cache.pack()  # an answer of one token has no step in which it would happen
        self._queue.put(([], time.perf_counter(), self._measure()))

    def _decode(self, places: dict[str, torch.Tensor]) -> None:
        """Read the prompt's last piece and generate one token a step."""
        prompt, config = self.prompt, self.model.generation_config
        pad = config.pad_token_id if config.pad_token_id is not None else next(iter(self.eos_token_ids), None)
        stopping = [_StopOnEvent(self.stop), *([] if self.text is None else [_StopOnText(self.text)])]
        processors = [one for one in (self._recorder, self.sampler) if one is not None]  # records, then changes
        with logits_of(self.model, 1):  # generate passes logits_to_keep itself where there is one
            self.model.generate(
                **prompt.inputs,
                **on_device(self.model, prompt.pieces[-1].inputs if prompt.pieces else {}),
                **places,
                past_key_values=self.cache,
                max_new_tokens=self.max_new_tokens,
                do_sample=False,
                num_beams=1,
                temperature=None,
                top_p=None,
                top_k=None,
                pad_token_id=pad,
                streamer=_Tokens(self),
                stopping_criteria=StoppingCriteriaList(stopping),
                logits_processor=LogitsProcessorList(processors),
            )

    def _speculate(self, logits: torch.Tensor, places: dict[str, torch.Tensor]) -> None:
        """Generate by drafts, after a prompt that has been read; ``logits`` ``[1, V]`` are of its last token."""
        ids = self.prompt.ids
        positions = places.get("position_ids")
        if positions is None:
            positions = torch.arange(ids.shape[1], device=ids.device)[None]
        positions = extended_position_ids(positions, self.max_new_tokens)
        steps = DraftedSteps(self.model, self.cache, positions, self.drafter, self._recorder)
        steps.found = self.speculation
        text, tokens = ids[0].tolist(), self.speculation.tokens
        new, done = steps.first(text, logits), False
        while not done:
            for token in new:
                tokens.append(token)
                self.emit([token])
                done = token in self.eos_token_ids or (self.text is not None and self.text.stopped)
                if done:
                    break
            done = done or len(tokens) >= self.max_new_tokens or self.stop.is_set()
            if not done:
                new = steps.step(text + tokens, self.max_new_tokens - len(tokens))
        steps.hold(len(text) + len(tokens) - 1)
        if self.key_norms is not None:
            self.key_norms.crop(self.cache.get_seq_length())

    def _read(self, piece: Piece, places: dict[str, torch.Tensor]) -> torch.Tensor:
        """Forward a piece; the logits of its last token. Without drafts ``generate`` reads the prompt's last one."""
        if self.stop.is_set():
            raise Stopped
        return read_piece(self.model, self.cache, self.prompt, piece, places)

    def _tell(self, index: int) -> None:
        """Report that a piece is about to be read."""
        self._collect_norms()
        pieces = self.prompt.pieces
        pages = sum(piece.pages for piece in pieces)
        before = sum(piece.pages for piece in pieces[:index])
        new = pieces[-1].end - pieces[0].start
        self._queue.put(Reading(min(before + 1, pages), pages, (pieces[index].start - pieces[0].start) / max(new, 1)))

    def emit(self, tokens: list[int]) -> None:
        self._begin_decoding()
        now = time.perf_counter()
        memory = None
        if self.text is not None:
            for token in tokens:
                self.text.add(token)
        self._emitted += len(tokens)
        if now >= self._next_norms or self._emitted >= self._norms_at:
            self._collect_norms(answering=self._emitted > len(tokens))
            self._next_norms, self._norms_at = now + NORM_SECONDS, self._emitted + NORM_TOKENS
        # the first token comes before the prompt is packed, so the cache's size is not final yet
        if self._emitted > 1 and now >= self._next_measure:
            memory, after = self._measure(), time.perf_counter()
            self._next_measure = after + max(MEMORY_SECONDS, (after - now) / MEMORY_SHARE)
        self._queue.put((tokens, now, memory))

    def _collect_norms(self, answering: bool = False) -> None:
        if self.key_norms is not None:
            self.key_norms.collect(self.cache, answering)

    def _measure(self) -> MemoryReport | None:
        return self.cache.memory() if hasattr(self.cache, "memory") else None


class _Tokens(BaseStreamer):
    """Streams generated tokens to the worker; the first call of ``put`` brings the prompt and is ignored."""

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


class _StopOnText(StoppingCriteria):
    """Ends an answer once a stop text came."""

    def __init__(self, text: TextStream) -> None:
        self._text = text

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        return torch.full((input_ids.shape[0],), self._text.stopped, dtype=torch.bool, device=input_ids.device)
