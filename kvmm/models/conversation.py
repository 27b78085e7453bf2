"""A conversation with one model: questions about media, streamed answers, follow-ups on the packed cache.

A follow-up forwards only its own tokens: everything before stays in the cache. That needs three things which
``generate`` does not do by itself. The new tokens are rendered as the continuation of the chat template, so that what
the cache holds is never tokenised twice. The positions of the Qwen VL and omni families are computed from all tokens
and all media of the conversation, because the model keeps its ``rope_deltas`` of whichever conversation ran last. And
generations on one model take turns, because of that state and because modalities are noted while the model runs.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from transformers import (
    DynamicCache,
    GenerationMixin,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    ProcessorMixin,
    StoppingCriteria,
    StoppingCriteriaList,
)
from transformers.generation.streamers import BaseStreamer

from kvmm.cache import KVMMCache, MemoryReport
from kvmm.errors import KVMMError
from kvmm.media import SAMPLE_RATE, Media, load_video
from kvmm.models.families import family_of
from kvmm.policy import get_policy
from kvmm.policy_file import is_policy_file

if TYPE_CHECKING:
    from transformers import Cache

DYNAMIC = "dynamic"  # transformers' own cache: the reference that needs no kvmm code
MIN_ANSWER_TOKENS = 16  # a prompt that leaves less room than this is refused
MEMORY_SECONDS = 0.5  # while streaming, the memory report is renewed this often
_ANSWER = "\ue000kvmm answer\ue001"  # private-use characters: no template and no user writes them
# Outputs of a processor that the positions of later turns depend on.
_POSITION_INPUTS = (
    "image_grid_thw",
    "video_grid_thw",
    "second_per_grid_ts",
    "video_second_per_grid",
    "feature_attention_mask",
)

_locks: weakref.WeakKeyDictionary[PreTrainedModel, threading.Lock] = weakref.WeakKeyDictionary()
_locks_guard = threading.Lock()


def model_lock(model: PreTrainedModel) -> threading.Lock:
    """The lock that serialises generations on one model object. Hold it around any other forward pass too."""
    with _locks_guard:
        return _locks.setdefault(model, threading.Lock())


@dataclass(frozen=True)
class Progress:
    """How far an answer has come.

    ``text`` is the whole answer so far; ``tokens`` how many were generated; ``seconds`` the time since the question;
    ``ttft`` the time to the first token, in seconds, None before it; ``tokens_per_second`` the rate after the first
    token, 0.0 until there are two. ``memory`` is None until the cache holds something, or cannot tell its size.
    """

    text: str
    tokens: int
    seconds: float
    ttft: float | None
    tokens_per_second: float
    memory: MemoryReport | None
    done: bool
    stopped: bool


@dataclass
class _Turn:
    """What one question added to the prompt: enough to build the cache again."""

    text: str  # the rendered template, with one placeholder a medium
    media: tuple[Media, ...]
    positions: dict[str, torch.Tensor] = field(default_factory=dict)


@dataclass
class _Prompt:
    """What one call of ``generate`` needs, on the model's device, and what is remembered of it."""

    inputs: dict[str, torch.Tensor]
    history: dict[str, torch.Tensor]  # the position inputs of all turns
    ids: torch.Tensor  # [1, T] all token ids, on the CPU
    per_token: dict[str, torch.Tensor]  # other [1, T] inputs, on the CPU


class Conversation:
    """Questions and answers that share one KV cache.

    Args:
        model: a model of a supported family, as ``load_model`` returns it.
        processor: its processor; the tokenizer for a text-only model.
        policy: name of a preset, a YAML file, a ``KVPolicy``, or "dynamic" for transformers' full-precision cache.
            "bf16" is the full-precision control in kvmm's own pages.
        overrides: ``key_bits``, ``value_bits``, ``group_size``, ``residual_length``, ``num_sink_tokens``.

    ``messages`` is the history in chat-template form. Raises ``KVMMError`` for an unknown policy or family.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        processor: ProcessorMixin | PreTrainedTokenizerBase,
        policy: Any = "balanced",
        **overrides: Any,
    ) -> None:
        self.model = model
        self.processor = processor
        self.family = family_of(model.config)
        # a file is read once: editing it must not change a conversation that runs
        self.policy = get_policy(policy) if isinstance(policy, str) and is_policy_file(policy) else policy
        self.overrides = overrides
        self._asking = threading.Lock()
        self._new_cache()  # an unknown policy is an error now, not at the first question
        self.reset()

    def reset(self) -> None:
        """Forget everything: messages, media and cache."""
        self.cache: Cache | None = None
        self.messages: list[dict[str, Any]] = []
        self._turns: list[_Turn] = []
        self._ids = torch.empty(1, 0, dtype=torch.long)  # [1, T] prompt and answers of all turns
        self._per_token: dict[str, torch.Tensor] = {}  # other [1, T] inputs, such as mm_token_type_ids
        self._memory: MemoryReport | None = None
        self._stopped_media: tuple[Media, ...] = ()

    def memory(self) -> MemoryReport | None:
        """Bytes the cache held after the last answer; None before it, and for "dynamic", which is not measured."""
        return self._memory

    def prompt_inputs(self) -> dict[str, torch.Tensor]:
        """Everything said and shown so far, answers included, as the arguments of one forward pass.

        ``input_ids`` and ``attention_mask`` ``[1, T]``, the media of all turns, and ``position_ids`` where the family
        needs them. Raises ``KVMMError`` before the first answer.
        """
        if not self._turns:
            raise KVMMError("There is no prompt yet: ask a question first.")
        inputs = {"input_ids": self._ids, "attention_mask": torch.ones_like(self._ids), **self._per_token}
        inputs |= _merge([self._media_inputs(turn) for turn in self._turns])
        history = _merge([turn.positions for turn in self._turns])
        device, dtype = self.model.device, self.model.dtype
        prompt = _Prompt(
            {name: value.to(device, dtype if value.is_floating_point() else None) for name, value in inputs.items()},
            {name: value.to(device) for name, value in history.items()},
            self._ids,
            self._per_token,
        )
        with model_lock(self.model), _kept_rope_deltas(self.model):
            return prompt.inputs | _positions(self.model, prompt)

    def ask(
        self,
        question: str = "",
        media: Sequence[Media] = (),
        *,
        max_new_tokens: int = 256,
        stop: threading.Event | None = None,
    ) -> Iterator[Progress]:
        """Ask, and stream the answer; the last ``Progress`` has ``done`` set.

        Media come before the question, in the order given; several pages are labelled "Page 1", "Page 2" ... . A
        recording may be the question itself. Decoding is greedy. When an error is raised, or ``stop`` is set, or the
        iterator is closed early, the conversation is as if this question had not been asked, except that the media of
        a stopped question go with the next one.

        Raises ``KVMMError`` when there is nothing to ask, the model has no sense for a medium, the prompt exceeds the
        model's window, memory runs out, or another answer of this conversation is still being written.
        """
        if not self._asking.acquire(blocking=False):
            raise KVMMError("This conversation is still answering: wait for the answer or stop it first.")
        stop = stop or threading.Event()
        begin = time.perf_counter()
        worker: _Worker | None = None
        committed = False
        try:
            media = (*self._stopped_media, *(item for item in media if item not in self._stopped_media))
            message = self._message(question, media)
            turn = _Turn(self._render(message), media)
            prompt = self._prepare(turn)
            room = self._window() - prompt.ids.shape[1]
            if room < MIN_ANSWER_TOKENS:
                raise self._too_long(prompt.ids.shape[1], turn)
            cache = self.cache if self.cache is not None else self._new_cache()
            budget = max(1, min(max_new_tokens, room))
            worker = _Worker(self.model, cache, prompt, budget, stop)
            yield from self._stream(worker, begin)
            if worker.error is not None:
                raise worker.error
            stopped = stop.is_set() and not worker.finished
            final = self._progress(worker, begin, done=True, stopped=stopped)
            if not stopped:
                self._commit(turn, message, final.text, prompt, worker)
                committed = True
            else:
                self._stopped_media = media
            yield final
        finally:
            if worker is not None and not committed:
                # Closed early, stopped or failed. Part of this turn is in the cache and packed pages cannot be cut
                # exactly, so the next question fills a new one from the history.
                if not stop.is_set() and worker.error is None:
                    self._stopped_media = media
                stop.set()
                worker.join()
                self.cache = None
            self._asking.release()

    # ----------------------------------------------------------------------------------------------------------------
    # The prompt

    def _message(self, question: str, media: tuple[Media, ...]) -> dict[str, Any]:
        for kind in ("image", "audio", "video"):
            if any(item.kind == kind for item in media) and kind not in self.family.modalities:
                senses = ", ".join(("text", *self.family.modalities))
                raise KVMMError(f"This model reads {senses}, not {kind}: leave that file out or load another model.")
        if not question.strip() and not any(item.kind == "audio" for item in media):
            raise KVMMError("There is no question: write one, or record it.")
        if _ANSWER in question:
            raise KVMMError("The question holds characters that cannot be asked: remove them.")
        if isinstance(self.processor, PreTrainedTokenizerBase):
            return {"role": "user", "content": question}
        content: list[dict[str, str]] = []
        labels = _page_labels(media)
        for item in media:
            if item.kind == "image" and labels:
                content.append({"type": "text", "text": labels.pop(0)})
            content.append({"type": item.kind})
        if question.strip():
            content.append({"type": "text", "text": question})
        return {"role": "user", "content": content}

    def _render(self, message: dict[str, Any]) -> str:
        """The text that this message adds: the whole template at first, later what follows the last answer."""
        messages = [*self.messages, message]
        if self.messages:
            messages[-2] = {"role": "assistant", "content": self._answer_content(_ANSWER)}
        try:
            text = self.processor.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        except ValueError as error:
            raise KVMMError("This model has no chat template: load the instruction-tuned version.") from error
        if not self.messages:
            return text
        if text.count(_ANSWER) != 1:
            raise KVMMError("This model's chat template hides earlier answers: reset the conversation to ask again.")
        return text.partition(_ANSWER)[2]

    def _answer_content(self, text: str) -> Any:
        return text if isinstance(self.processor, PreTrainedTokenizerBase) else [{"type": "text", "text": text}]

    def _encode(self, turn: _Turn) -> dict[str, torch.Tensor]:
        """The processor's tensors for one turn: input_ids ``[1, T]``, pixels, audio features."""
        if isinstance(self.processor, PreTrainedTokenizerBase):
            return dict(self.processor([turn.text], return_tensors="pt", add_special_tokens=False))
        inputs: dict[str, Any] = {}
        for kind, name in (("image", "images"), ("audio", "audio"), ("video", "videos")):
            data = [item.data for item in turn.media if item.kind == kind]
            if data:
                inputs[name] = [load_video(path) for path in data] if kind == "video" else data
        if "audio" in inputs:
            self._check_audio_length(inputs["audio"])
            inputs["sampling_rate"] = SAMPLE_RATE
        return dict(self.processor(text=[turn.text], return_tensors="pt", add_special_tokens=False, **inputs))

    def _check_audio_length(self, recordings: Sequence[Any]) -> None:
        """Feature extractors cut what exceeds their chunk without a word; say so instead."""
        extractor = self.processor.feature_extractor
        limit = extractor.n_samples / extractor.sampling_rate
        longest = max(len(recording) for recording in recordings) / SAMPLE_RATE
        if longest > limit:
            raise KVMMError(
                f"The recording is {longest:.0f} seconds long and this model hears {limit:.0f}: cut it into parts."
            )

    def _prepare(self, turn: _Turn) -> _Prompt:
        """The next call of ``generate``: all ids, but pixels and sounds only of what the cache does not hold."""
        encoded = self._encode(turn)
        new_ids = encoded.pop("input_ids")
        encoded.pop("attention_mask", None)
        turn.positions = {name: encoded[name] for name in _POSITION_INPUTS if name in encoded}
        same_shape = [name for name, value in encoded.items() if value.shape == new_ids.shape]
        per_token = {}
        for name in same_shape:
            new = encoded.pop(name)
            past = self._per_token.get(name, torch.zeros_like(self._ids, dtype=new.dtype))
            per_token[name] = torch.cat([past, new], dim=1)
        ids = torch.cat([self._ids, new_ids], dim=1)
        if self.cache is None:
            encoded = _merge([*(self._media_inputs(earlier) for earlier in self._turns), encoded])
        inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), **per_token, **encoded}
        history = _merge([earlier.positions for earlier in (*self._turns, turn)])
        device, dtype = self.model.device, self.model.dtype
        return _Prompt(
            {name: value.to(device, dtype if value.is_floating_point() else None) for name, value in inputs.items()},
            {name: value.to(device) for name, value in history.items()},
            ids,
            per_token,
        )

    def _media_inputs(self, turn: _Turn) -> dict[str, torch.Tensor]:
        encoded = self._encode(turn)
        ids = encoded.pop("input_ids")
        return {name: value for name, value in encoded.items() if value.shape != ids.shape}

    # ----------------------------------------------------------------------------------------------------------------
    # The answer

    def _new_cache(self) -> Cache:
        if self.policy == DYNAMIC:
            if self.overrides:
                raise KVMMError("The policy 'dynamic' takes no overrides: use 'bf16' or leave them out.")
            return DynamicCache(config=self.model.config.get_text_config(decoder=True))
        return KVMMCache.for_model(self.model, policy=self.policy, **self.overrides)

    def _stream(self, worker: _Worker, begin: float) -> Iterator[Progress]:
        worker.start()
        while worker.wait():
            yield self._progress(worker, begin, done=False, stopped=False)

    def _progress(self, worker: _Worker, begin: float, *, done: bool, stopped: bool) -> Progress:
        times = worker.times
        spread = times[-1] - times[0] if len(times) > 1 else 0.0
        text = self._decode(worker.tokens)
        return Progress(
            text=text if done else text.rstrip("\ufffd"),  # a character still waiting for its last bytes
            tokens=len(worker.tokens),
            seconds=time.perf_counter() - begin,
            ttft=times[0] - begin if times else None,
            tokens_per_second=(len(times) - 1) / spread if spread > 0 else 0.0,
            memory=worker.memory,
            done=done,
            stopped=stopped,
        )

    def _decode(self, tokens: list[int]) -> str:
        tokenizer = getattr(self.processor, "tokenizer", self.processor)
        return tokenizer.decode(tokens, skip_special_tokens=True).strip()

    def _commit(self, turn: _Turn, message: dict[str, Any], answer: str, prompt: _Prompt, worker: _Worker) -> None:
        tokens = list(worker.tokens)
        # The end-of-turn token was generated but not forwarded; the next rendered turn begins with it.
        if tokens and tokens[-1] in worker.eos_token_ids:
            tokens.pop()
        self._ids = torch.cat([prompt.ids, torch.tensor([tokens], dtype=torch.long)], dim=1)
        padding = torch.zeros(1, len(tokens), dtype=torch.long)
        self._per_token = {
            name: torch.cat([value, padding.to(value.dtype)], dim=1) for name, value in prompt.per_token.items()
        }
        self._turns.append(turn)
        self.messages += [message, {"role": "assistant", "content": self._answer_content(answer)}]
        self.cache = worker.cache
        self._memory = worker.memory
        self._stopped_media = ()

    # ----------------------------------------------------------------------------------------------------------------
    # The window

    def _window(self) -> int:
        """Tokens the model was made for, prompt and answer together."""
        return getattr(self.model.config.get_text_config(decoder=True), "max_position_embeddings", None) or 1 << 30

    def _too_long(self, length: int, turn: _Turn) -> KVMMError:
        window = self._window()
        text = f"The prompt has {length} tokens and this model's window holds {window}: "
        pages = sum(item.kind == "image" for item in turn.media)
        if pages > 1:
            past = self._ids.shape[1]
            fit = int((window - MIN_ANSWER_TOKENS - past) / ((length - past) / pages))
            if fit >= 1:
                return KVMMError(f"{text}about {fit} of the {pages} pages fit, so ask about fewer at a time.")
        if self._turns:
            return KVMMError(f"{text}start a new conversation.")
        return KVMMError(f"{text}shorten the question or send less.")


def _page_labels(media: Sequence[Media]) -> list[str]:
    """ "Page k" lines for several images: their own page numbers if those tell them apart, else their order."""
    images = [item for item in media if item.kind == "image"]
    if len(images) < 2:
        return []
    pages = [item.page for item in images]
    if None in pages or len(set(pages)) < len(pages):
        pages = list(range(1, len(images) + 1))
    return [f"Page {page}\n" for page in pages]


def _merge(parts: Sequence[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """Concatenate the media tensors of several turns; audio features of unequal length are padded with zeros."""
    merged: dict[str, list[torch.Tensor]] = {}
    for part in parts:
        for name, value in part.items():
            merged.setdefault(name, []).append(value)
    out = {}
    for name, values in merged.items():
        width = (
            max(value.shape[-1] for value in values) if name in ("input_features", "feature_attention_mask") else None
        )
        if width is not None:
            values = [torch.nn.functional.pad(value, (0, width - value.shape[-1])) for value in values]
        out[name] = torch.cat([torch.as_tensor(value) for value in values], dim=0)
    return out


def _positions(model: PreTrainedModel, prompt: _Prompt) -> dict[str, torch.Tensor]:
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
def _kept_rope_deltas(model: PreTrainedModel) -> Iterator[None]:
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


class _Worker(threading.Thread):
    """One ``generate`` call in a thread of its own, so that its tokens can be consumed while it runs."""

    def __init__(
        self, model: PreTrainedModel, cache: Cache, prompt: _Prompt, max_new_tokens: int, stop: threading.Event
    ) -> None:
        super().__init__(name="kvmm-generate", daemon=True)
        self.model, self.cache, self.prompt, self.max_new_tokens, self.stop = model, cache, prompt, max_new_tokens, stop
        self.error: BaseException | None = None
        self.memory: MemoryReport | None = None
        self.tokens: list[int] = []  # consumed by the caller, see wait()
        self.times: list[float] = []
        self.eos_token_ids = _eos_token_ids(model)
        self._queue: queue.Queue[tuple[list[int], float, MemoryReport | None] | None] = queue.Queue()
        self._measured = 0.0

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
            while not (lock := model_lock(self.model)).acquire(timeout=0.1):
                if self.stop.is_set():
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
        with _kept_rope_deltas(self.model):
            self.model.generate(
                **self.prompt.inputs,
                **_positions(self.model, self.prompt),
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
        if now - self._measured >= MEMORY_SECONDS and self.tokens:
            memory, self._measured = self._measure(), now
        self._queue.put((tokens, now, memory))

    def _measure(self) -> MemoryReport | None:
        return self.cache.memory() if hasattr(self.cache, "memory") else None


class _Tokens(BaseStreamer):
    """Passes generated tokens on; what ``generate`` puts first is the prompt."""

    def __init__(self, worker: _Worker) -> None:
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


def _eos_token_ids(model: PreTrainedModel) -> frozenset[int]:
    eos = model.generation_config.eos_token_id
    return frozenset() if eos is None else frozenset([eos] if isinstance(eos, int) else eos)
