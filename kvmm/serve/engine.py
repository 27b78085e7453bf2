"""The engine: one thread that reads prompts piece by piece and decodes all running answers together.

In each round it reads one piece of the oldest prompt that is not read yet, then generates one token in every other
answer, in one call of the model (:class:`kvmm.cache.batch.CacheBatch`). So a long document does not hold up the answers
that run, and an answer joins or leaves between two steps.

Questions about documents that have been read are a few tokens each, and a call of the model costs about as much for one
of them as for many. So those that wait are read in one call, as many of them as a piece has tokens.

A prompt is packed at its boundaries, and what follows is read over packed pages whether or not the beginning was found
among the kept prefixes: an answer does not depend on what was asked before it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from transformers import PreTrainedModel, RepetitionPenaltyLogitsProcessor

from kvmm.cache import KVMMCache
from kvmm.cache.batch import CacheBatch, able_to_graph, able_to_read_together, keep_in_place
from kvmm.cuda_graphs.batch import BatchGraphs
from kvmm.errors import KVMMError
from kvmm.modality import placeholder_ids
from kvmm.models.confidence import LogprobRecorder, best_logprobs, confidence_map_of
from kvmm.models.generation import OUT_OF_MEMORY, Stopped, eos_token_ids, model_lock, stoppable
from kvmm.models.pieces import MIN_PIECE, Piece
from kvmm.models.positions import extended_position_ids, kept_rope_deltas, prompt_position_ids
from kvmm.models.reading import read_piece, read_pieces
from kvmm.models.sampling import Choice
from kvmm.models.speculative import DraftedSteps, Drafter
from kvmm.policy import KVPolicy
from kvmm.serve.errors import APIError
from kvmm.serve.generation import Generation
from kvmm.serve.metrics import Metrics
from kvmm.serve.prefixes import PrefixStore
from kvmm.serve.prompts import MIN_PREFIX

logger = logging.getLogger(__name__)
MEASURE_SECONDS = 10.0  # between two looks at the bytes of running answers, which take milliseconds each
STOPPING = "The server is stopping: send the request again."
STEADY_STEPS = 4  # of the same answers, before their layers are captured
MIN_LEFT = 16  # tokens that every one of them may still get


@dataclass(frozen=True)
class EngineStatus:
    """Numbers of answers by what happens to them, and bytes of the running answers' caches."""

    waiting: int
    reading: int
    decoding: int
    nbytes: int


class Engine:
    """Answers for one model.

    Args:
        model: as ``load_model`` returns it.
        policy: of all caches.
        prefixes: what is kept for other requests.
        metrics: what is counted.
        max_running: answers that are read or decoded at once; others wait, and those of the key with the fewest running
            ones come first.
        make_drafter: of a greedy answer that is generated alone, several tokens are then checked in a step
            (:mod:`kvmm.models.speculative`).
        captures: whether steps on a GPU replay the layers as CUDA graphs, once several answers have run together for
            :data:`STEADY_STEPS` steps and each may still get :data:`MIN_LEFT` tokens; never with ``make_drafter``.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        policy: KVPolicy,
        prefixes: PrefixStore,
        metrics: Metrics,
        max_running: int = 16,
        make_drafter: Callable[[], Drafter] | None = None,
        captures: bool = False,
    ) -> None:
        self._model, self._policy, self._prefixes, self._metrics = model, policy, prefixes, metrics
        self._max_running = max_running
        self.ends = eos_token_ids(model)
        self._placeholders = torch.tensor([token for token, _ in placeholder_ids(model.config)], dtype=torch.long)
        penalty = model.generation_config.repetition_penalty
        self._penalty = None if penalty in (None, 1.0) else RepetitionPenaltyLogitsProcessor(penalty)
        self._confidence = confidence_map_of(model)
        self._changed = threading.Condition()
        self._waiting: deque[Generation] = deque()
        self._reading: list[Generation] = []
        self._decoding: list[Generation] = []
        self.captures, self._make_drafter = captures, make_drafter
        self._stepped: list[KVMMCache] = []  # the caches of the last step, ...
        self._steady = 0  # ... in how many steps they were the same, ...
        self._graphs: BatchGraphs | None = None  # ... and its layers as graphs
        self._nbytes, self._measured = 0, 0.0
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="kvmm-engine", daemon=True)

    def start(self) -> None:
        """Begin to work."""
        self._thread.start()

    def submit(self, generation: Generation) -> None:
        """Have a request answered. Raises ``APIError`` once the engine is closed."""
        with self._changed:
            if self._closing:
                raise APIError(503, STOPPING, "server_stopping")
            self._waiting.append(generation)
            self._changed.notify()

    def cancel(self, generation: Generation) -> None:
        """Forget a request at the next step, in the midst of a prompt at the next block of the model."""
        generation.cancelled.set()
        with self._changed:
            if generation in self._waiting:
                self._waiting.remove(generation)
            self._changed.notify()

    def status(self) -> EngineStatus:
        """How much there is to do."""
        with self._changed:
            return EngineStatus(len(self._waiting), len(self._reading), len(self._decoding), self._nbytes)

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    def stop(self) -> None:
        """Take no more requests and end all answers, without waiting for it."""
        with self._changed:
            self._closing = True
            self._changed.notify()

    def close(self) -> None:
        """End all answers and the thread, and write prefixes to disk where there is a folder."""
        self.stop()
        if self._thread.is_alive():
            self._thread.join()
        self._prefixes.close()

    # -- the loop -----------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while self._next():
                self._round()
        finally:  # nobody waits for an engine that has ended, whatever ended it
            with self._changed:
                self._closing = True
                left = [*self._waiting, *self._reading, *self._decoding]
                self._waiting.clear()
            self._fail(left, APIError(503, STOPPING, "server_stopping"))

    def _next(self) -> bool:
        """Wait until there is something to do; False once the engine is to end."""
        with self._changed:
            while not (self._closing or self._waiting or self._reading or self._decoding):
                self._nbytes = 0
                self._changed.wait()
            if not self._closing:
                self._admit()
            return not self._closing

    def _admit(self) -> None:
        """Let requests in while there is room, first those whose key has the fewest that run."""
        while self._waiting and len(self._reading) + len(self._decoding) < self._max_running:
            running = Counter(one.scope for one in (*self._reading, *self._decoding))
            chosen = min(self._waiting, key=lambda one: running[one.scope])
            self._waiting.remove(chosen)
            self._reading.append(chosen)

    def _round(self) -> None:
        """Read one piece of one prompt, or some questions, then generate one token in every answer."""
        self._leave([one for one in (*self._reading, *self._decoding) if one.cancelled.is_set()])
        with model_lock(self._model), torch.no_grad():
            if self._reading:
                with kept_rope_deltas(self._model):
                    self._guarded(self._read, self._next_to_read())
            if self._decoding:
                alone = len(self._decoding) == 1 and self._decoding[0].sampling.is_plain
                drafts = alone and self._make_drafter is not None
                self._guarded(self._drafted_step if drafts else self._step, list(self._decoding))
        now = time.monotonic()
        if now - self._measured > MEASURE_SECONDS:
            self._measured = now
            self._nbytes = sum(one.cache.memory().nbytes for one in self._decoding)

    def _guarded(self, work: Callable[[list[Generation]], None], generations: list[Generation]) -> None:
        """Do ``work``; if it fails, those that it was for fail, and nobody else."""
        try:
            work(generations)
        except Stopped:
            self._leave(generations)
        except torch.OutOfMemoryError:
            self._fail(generations, APIError(503, OUT_OF_MEMORY, "out_of_memory"))
        except KVMMError as error:
            self._fail(generations, APIError(400, str(error)))
        except Exception:
            logger.exception("an answer failed")
            self._fail(generations, APIError(500, "The answer failed: the server's log says why.", "internal_error"))

    def _fail(self, generations: list[Generation], error: APIError) -> None:
        self._leave(generations)
        for one in generations:
            one.tell(error)

    def _leave(self, generations: list[Generation]) -> None:
        with self._changed:
            for one in generations:
                for group in (self._reading, self._decoding):
                    if one in group:
                        group.remove(one)
        for one in generations:
            one.cache = None
        if not self._decoding:
            self._stepped, self._graphs = [], None  # which hold what the last step read

    # -- reading ------------------------------------------------------------------------------------------------------

    def _next_to_read(self) -> list[Generation]:
        """The oldest prompt and, if its next piece is text alone, the questions of others that fit into a piece."""
        first, *others = list(self._reading)
        if first.cache is None:
            self._guarded(self._begin, [first])
        if first.cache is None:  # which has failed
            return []
        if not self._joins(first):
            return [first]
        group, left = [first], first.prompt.piece_tokens - first.pieces[0].count
        for one in others:
            if one.cache is None and not one.alone and self._is_question(one, left):
                self._guarded(self._begin, [one])
            if self._joins(one) and one.pieces[0].count <= left:
                group.append(one)
                left -= one.pieces[0].count
        return group

    def _joins(self, generation: Generation) -> bool:
        """Whether the next piece of a prompt that has been begun can be read together with those of others."""
        if generation.cache is None or generation.alone or generation.pieces[0].inputs:
            return False
        # token types are for models in which some tokens of a prompt see those behind them
        return "token_type_ids" not in generation.prompt.prompt.inputs and able_to_read_together(generation.cache)

    def _is_question(self, generation: Generation, most: int) -> bool:
        """Whether at most ``most`` tokens of a prompt have to be read, of which nothing is kept for other requests.

        Else the oldest prompt may be about to leave what it would read itself, and it waits for its turn.
        """
        served, past = generation.prompt, 0
        if served.keys is not None:
            least = served.length - most
            past = self._prefixes.longest(generation.scope, served.keys, served.length - MIN_PIECE, least)
        return served.length - past <= most and served.is_question_behind(past)

    def _begin(self, generations: list[Generation]) -> None:
        """Find what has been read of one prompt before, and divide the rest."""
        (generation,) = generations
        served, past, cache = generation.prompt, 0, None
        if served.keys is not None:
            most, counted = served.length - MIN_PIECE, not generation.alone  # which has been looked for before
            found = self._prefixes.find(generation.scope, served.keys, most, counted=counted)
            if found is not None:
                cache, past = found
        generation.cached_tokens = past
        if self._confidence is not None and generation.sampling.is_greedy:
            generation.recorder = LogprobRecorder()
        places = prompt_position_ids(self._model, served.prompt).get("position_ids")
        if places is None:
            places = torch.arange(served.length, device=self._model.device)[None]
        generation.positions = extended_position_ids(places, generation.max_tokens)
        generation.pieces = deque(served.pieces_from(past))
        if cache is None:
            cache = KVMMCache.for_model(self._model, self._policy, graph=False)
        generation.cache = cache
        if not generation.alone:
            self._metrics.prompt_tokens.add(served.length)
            self._metrics.cached_tokens.add(past)

    def _read(self, generations: list[Generation]) -> None:
        """Read the next piece of each prompt; behind the last one comes the first token."""
        if not generations:
            return
        pieces = [one.pieces.popleft() for one in generations]
        try:
            with stoppable(self._model, lambda: all(one.cancelled.is_set() for one in generations)):
                logits = self._logits_behind(generations, pieces)
        except Exception as error:
            if len(generations) == 1 or isinstance(error, Stopped):
                raise
            logger.warning("Questions that were read together failed and are read one by one: %s", error)
            for one in generations:  # the one whose fault it was fails by itself
                one.cache, one.alone = None, True
            return
        read = []
        for row, (one, piece) in enumerate(zip(generations, pieces, strict=True)):
            if not one.pieces:
                read.append(row)
            elif piece.end in one.prompt.boundaries:
                self._guarded(partial(self._pack, length=piece.end), [one])
        if not read:
            return
        done = [generations[row] for row in read]
        with self._changed:
            for one in done:
                self._reading.remove(one)
            self._decoding += done
        for one in done:
            one.prompt.media.clear()  # pixels have served
            self._metrics.first_token.observe(time.perf_counter() - one.arrived)
        self._take(done, logits[read])

    def _logits_behind(self, generations: list[Generation], pieces: list[Piece]) -> torch.Tensor:
        """Forward a piece of each prompt; logits ``[B, V]`` behind each of them."""
        if len(generations) == 1:
            (one,), (piece,) = generations, pieces
            return read_piece(self._model, one.cache, one.prompt.prompt, piece, {"position_ids": one.positions})[:, -1]
        caches, prompts = [one.cache for one in generations], [one.prompt.prompt for one in generations]
        logits = read_pieces(self._model, caches, prompts, pieces, [one.positions for one in generations])
        self._metrics.joint_reads.add(len(generations))
        return logits

    def _pack(self, generations: list[Generation], length: int) -> None:
        """Pack a prompt whose first ``length`` tokens have been read, and keep that for other requests."""
        (one,) = generations
        one.cache.pack()
        self._keep(one, one.cache.fork(), length, write=True)

    def _keep(self, generation: Generation, cache: KVMMCache, length: int, *, write: bool = False) -> None:
        keys = generation.prompt.keys
        if keys is None or length < MIN_PREFIX:
            return
        if length > generation.prompt.length:
            keys = keys.extended(generation.tokens)
        self._prefixes.add(generation.scope, keys.at([length])[length], length, cache, write=write)

    # -- decoding -----------------------------------------------------------------------------------------------------

    def _step(self, generations: list[Generation]) -> None:
        """One token in every answer."""
        tokens = torch.tensor([[one.tokens[-1]] for one in generations], device=self._model.device)
        at = [one.prompt.length + len(one.tokens) - 1 for one in generations]
        places = [one.positions[..., i : i + 1] for one, i in zip(generations, at, strict=True)]
        output = self._model(
            input_ids=tokens,
            position_ids=torch.cat(places, dim=-2),
            past_key_values=self._batch(generations),
            use_cache=True,
            return_dict=True,
        )
        self._metrics.steps.add()
        self._take(generations, output.logits[:, -1])

    def _drafted_step(self, generations: list[Generation]) -> None:
        """All tokens of a draft that are right, and one more, in the only answer."""
        (one,) = generations
        if one.steps is None:
            drafter = self._make_drafter()
            one.steps = DraftedSteps(self._model, one.cache, one.positions, drafter, one.recorder)
        found = one.steps.found
        drafted, accepted = found.drafted, found.accepted
        new = one.steps.step(one.text_ids(), one.max_tokens - len(one.tokens))
        self._metrics.steps.add()
        self._metrics.drafted_tokens.add(found.drafted - drafted)
        self._metrics.accepted_tokens.add(found.accepted - accepted)
        for token in new:
            self._metrics.generated_tokens.add()
            reason = one.take(Choice(token), self.ends)
            if reason is not None:
                one.steps.hold(one.prompt.length + len(one.tokens) - 1)
                return self._end(one, reason)

    def _batch(self, generations: list[Generation]) -> CacheBatch:
        """The caches as one, with the graphs of the last step while these are the same caches."""
        caches = [one.cache for one in generations]
        same = len(caches) == len(self._stepped) and all(a is b for a, b in zip(caches, self._stepped, strict=True))
        if not same:
            self._stepped, self._steady, self._graphs = caches, 0, None
        if self._graphs is None and self._may_capture(generations):
            for one in generations:
                keep_in_place(one.cache, one.prompt.length + one.max_tokens)
            self._graphs = BatchGraphs(caches[0].layers[0].device)
        self._steady += 1
        return CacheBatch(caches, self._graphs)

    def _may_capture(self, generations: list[Generation]) -> bool:
        """Whether the layers of these answers are to be captured from now on."""
        if not self.captures or self._make_drafter is not None or len(generations) < 2 or self._steady < STEADY_STEPS:
            return False
        left = min(one.max_tokens - len(one.tokens) for one in generations)
        return left >= MIN_LEFT and all(able_to_graph(one.cache) for one in generations)

    def _take(self, generations: list[Generation], logits: torch.Tensor) -> None:
        """Choose the next token of every answer by logits ``[B, V]``, and end those for which it is the last one."""
        scores = logits.float()
        if self._penalty is not None:
            rows = zip(generations, scores, strict=True)
            scores = torch.stack([self._penalty(one.ids(row.device), row[None])[0] for one, row in rows])
        if self._placeholders.numel():
            scores = scores.index_fill(1, self._placeholders.to(scores.device), -torch.inf)
        likely = scores.argmax(-1).tolist()  # one wait for the device for all
        if any(one.recorder is not None for one in generations):
            for one, logprob in zip(generations, best_logprobs(scores).split(1), strict=True):
                if one.recorder is not None:
                    one.recorder.keep(logprob)
        self._metrics.generated_tokens.add(len(generations))
        for one, row, token in zip(generations, scores, likely, strict=True):
            self._guarded(partial(self._choose, row=row, likely=token), [one])

    def _choose(self, generations: list[Generation], row: torch.Tensor, likely: int) -> None:
        """Choose one answer's next token by its scores ``[V]``, the greatest of which is ``likely``'s."""
        (one,) = generations
        choice = Choice(likely) if one.sampling.is_plain else one.sampler.choose(row)
        reason = one.take(choice, self.ends)
        if reason is not None:
            self._end(one, reason)

    def _end(self, generation: Generation, reason: str) -> None:
        """Tell the end of an answer, free its place, and keep its cache for who goes on from there."""
        cache = generation.cache.pack()
        self._metrics.duration.observe(time.perf_counter() - generation.arrived)
        if generation.recorder is not None:
            logprobs = generation.recorder.logprobs(len(generation.tokens))
            generation.confidence = self._confidence.confidence(logprobs)
        generation.finish(reason)
        self._leave([generation])
        self._keep(generation, cache, cache.get_seq_length())


__all__ = ["Engine", "EngineStatus"]
