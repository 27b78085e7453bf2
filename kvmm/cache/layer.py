"""One full-attention layer of the cache: residual tokens in full precision and packed pages."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from kvmm.attention import PackedHandle
from kvmm.cache.buffers import DynamicBuffer, ResidualBuffer
from kvmm.cache.capacity import PageCursor
from kvmm.cache.eviction import VLCACHE_THRESHOLD
from kvmm.cache.layer_contract import LayerContract
from kvmm.cache.pages import Growth
from kvmm.cache.part import Part
from kvmm.cache.plan import Cut, Plan
from kvmm.cache.queries import WATCHED, PromptQueries, watched_queries
from kvmm.cache.segments import Segments
from kvmm.cache.step_state import StepState
from kvmm.cache.token_table import TokenTable
from kvmm.cache.tokens import in_order, take_tokens
from kvmm.calibration import Calibration
from kvmm.codecs import Site, build_codec
from kvmm.codecs.tiers import lower_tiers
from kvmm.cuda_graphs.layer import LayerGraph
from kvmm.errors import KVMMError
from kvmm.kernels.append import append_tokens
from kvmm.kernels.attention import attend
from kvmm.kernels.attention.call import PackedReader
from kvmm.kernels.exact import exact_dtype, to_exact
from kvmm.modality import IMAGE, MODALITY_NAMES, PADDING, TEXT, VIDEO
from kvmm.policy import KVPolicy


class KVMMLayer(LayerContract):
    """Keys and values of one layer.

    Until it is packed, a layer is a dense cache: ``update`` returns the exact keys and values, so that a prompt is read
    with exact attention. Afterwards it holds sinks and residual (``residual``, in :attr:`exact_dtype`) and one
    :class:`Part` a modality, and ``update`` returns a :class:`PackedHandle` twice.

    With static buffers (:mod:`kvmm.cache.buffers`) text pages and residual then have capacity: a step of one token
    writes and reads whole buffers, at places that the device knows, and its Python may as well run only once, to be
    captured.
    """

    def __init__(
        self,
        policy: KVPolicy,
        table: TokenTable,
        step: StepState,
        index: int = 0,
        num_layers: int = 1,
        calibration: Calibration | None = None,
    ):
        super().__init__()
        self.policy = policy
        self.table = table
        self.step = step
        self.index = index
        self.codecs = {}  # modality -> (key codec, value codec)
        for modality in range(len(MODALITY_NAMES)):
            kv = policy.specs(modality, index, num_layers)
            self.codecs[modality] = (
                build_codec(kv.key, "key", Site(index, modality, calibration, kv.value)),
                build_codec(kv.value, "value", Site(index, modality, calibration, kv.key)),
            )
        skipped = policy.skips(index, num_layers)
        # what a policy keeps exact is dropped, if need be, and never lowered
        self._retention = replace(policy.retention, tiers=()) if skipped else policy.retention
        self.retains = policy.budget is not None  # pages are lowered and dropped by what attention they get
        for codec in (codec for pair in self.codecs.values() for codec in pair if self.retains):
            lower_tiers(codec, self._retention.tiers)  # what does not fit is said now, not when the prompt is packed
        self.needs_queries = self.retains or any(c.needs_queries for pair in self.codecs.values() for c in pair)
        self._clear()

    def _clear(self) -> None:
        self.residual: ResidualBuffer | None = None  # sinks, residual tokens and a turn that waits
        self.segments = Segments(self.codecs, self._retention if self.retains else None)
        self.queries = PromptQueries(keep_last=watched_queries(self.policy.retention) if self.retains else 0)
        self.packed = False
        self.offloaded = False
        self._awaits_query = False  # a handle was given out and has not been read yet
        self._graph = self._graph.fork() if hasattr(self, "_graph") else LayerGraph()
        self.is_initialized = False

    def never_capture(self) -> None:
        """Launch the kernels of every call one by one."""
        self._graph = LayerGraph('graph="never"')

    @property
    def exact_dtype(self) -> torch.dtype:
        """What a packed layer keeps exact tokens in; see ``KVPolicy.exact_dtype``."""
        return exact_dtype(self.policy.exact_dtype, self.dtype)

    # -- new tokens ------------------------------------------------------------------------------------------------

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        self.dtype, self.device = key_states.dtype, key_states.device
        self.residual, self.segments.exact_dtype = DynamicBuffer.empty(key_states, value_states), self.exact_dtype
        self.is_initialized = True

    def restore(self, key: torch.Tensor, value: torch.Tensor, dtype: torch.dtype, seen: int, packed: bool) -> None:
        """Take the exact tokens ``[B, H, n, D]`` of a file, into an empty layer of a model in ``dtype``."""
        self.lazy_initialization(key, value)
        self.dtype = dtype  # exact tokens may be in another
        self.residual, self.segments.exact_dtype = DynamicBuffer(key, value, seen), self.exact_dtype
        self.packed = packed

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Any, Any]:
        """Append keys and values ``[B, H, q, D]``.

        Returns:
            The exact keys and values ``[B, H, T, D]`` while nothing is packed and no codec wants the queries; otherwise
            a handle twice, or decoded keys and values inside :meth:`KVMMCache.reading_decoded`.
        """
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        self.prefetch()
        with self._current_device():
            self.residual.append(key_states, value_states)
        if not self.packed and not self.needs_queries:
            return self.dense()
        if self.step.reads_decoded:
            return self.decoded()
        self._awaits_query = True
        handle = PackedHandle(self, key_states.device)
        return handle, handle

    # -- storage --------------------------------------------------------------------------------------------------

    def _flush(self) -> None:
        """Append a new token whose query has not come."""
        with self._current_device():
            self.residual.flush()

    def allocate(self) -> None:
        """Give static buffers the capacities that the table says, where they have not; once packed."""
        static = self.table.static
        before = self.addresses()
        with self._on_device(), torch.inference_mode(False):
            self.residual = self.residual.allocate(self.table, static.residual_tokens)
            held = self.table.stores[TEXT].shape[1] // static.page_size if TEXT in self.parts else 0
            self.segments.allocate(static, held, self.dense_key)
        if before != self.addresses():
            self._graph.drop()  # which would keep the buffers that it read

    def addresses(self) -> tuple[int, ...]:
        """What a captured step would read of this layer."""
        found = self.dense_key.data_ptr(), self.dense_key.numel(), self.dense_value.data_ptr()
        return (*found, *self.segments.addresses())

    def apply(self, plan: Plan) -> None:
        """Carry out a packing plan of the token table."""
        if not self.is_initialized:
            return
        self._flush()
        plan = plan.to(self.device)
        with self._on_device():
            mass, sparsity, moment = None, None, self.queries.moment
            if self.queries.last is not None:
                mass, sparsity = self._attention_of_prompt()
            for move in plan.moves:
                part = self.segments.open(move.modality, move.page_size)
                known = None if mass is None else mass.index_select(2, move.index[0])
                key, value = (take_tokens(x, move.index, move.start) for x in (self.dense_key, self.dense_value))
                part.append(key, value, move.valid, moment, known, move.filled)
                if sparsity is not None:
                    part.key.sparsity = sparsity
            self._keep(plan.stay)
            self.packed = True
            self.queries.clear()  # have served: codecs keep what they need of them

    def apply_on(self, stream: torch.cuda.Stream, plan: Plan) -> None:
        """:meth:`apply` of the first plan on a stream that waits for the current one, which waits for it later."""
        self._flush()
        stream.wait_stream(torch.cuda.current_stream(self.device))
        for x in (*self.residual.pair, *self.queries.tensors):
            x.record_stream(stream)  # freed before the stream has read them
        with torch.cuda.stream(stream):
            self.apply(plan)

    def _attention_of_prompt(self) -> tuple[torch.Tensor, torch.Tensor | None]:
        """What attention the prompt's keys got ``[1, H, n]``, and how sparse it was ``[1]`` where that is asked."""
        selection, count, threshold = self.policy.retention.selection, None, None
        if selection == "vlcache":
            codes = self.table.modality[0, : self.table.length]
            media = ((codes == IMAGE) | (codes == VIDEO)).nonzero()
            behind = self.table.length - 1 - int(media[-1]) if len(media) else 0
            count, threshold = behind or WATCHED, VLCACHE_THRESHOLD
        padding = self.table.dense[:, : self.num_dense] < 0
        mass, sparsity = self.queries.attention_mass(self.residual.pair[0], padding, count, threshold)
        if selection == "h2o":  # which adds up
            mass = mass * self.queries.last.shape[2]
        return mass, None if threshold is None else mass.new_tensor([sparsity])

    def _keep(self, stay: torch.Tensor) -> None:
        """Move the tokens at ``stay`` int64 ``[B, n]`` to the front, in :attr:`exact_dtype` from now on."""
        kept = (take_tokens(x, stay) for x in (self.dense_key, self.dense_value))
        key, value = (to_exact(x, self.exact_dtype) for x in kept)
        self.residual.keep(key, value)

    def writes_pages(self, page_size: int, held: int) -> bool:
        """Whether :meth:`write_page` can add a page of text behind ``held`` pages."""
        if not self.residual.in_place or TEXT not in self.parts:
            return False
        return not self.queries and all(store.writes_pages(page_size, held) for store in self.parts[TEXT].stores)

    def write_page(self, plan: Plan, cursor: PageCursor) -> tuple[Growth, Growth]:
        """The device's part of :meth:`apply` of one page of text in static buffers, to be captured.

        Returns:
            what the key store and the value store grew by, for :meth:`PageStore.note`.
        """
        move, part = plan.moves[0], self.parts[TEXT]
        tokens = [take_tokens(x, move.index, move.start) for x in (self.dense_key, self.dense_value)]
        grown = tuple(store.write_page(x, cursor) for store, x in zip(part.stores, tokens, strict=True))
        self._keep(plan.stay)
        return grown

    def dense(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values ``[B, H, T, D]`` in the order of the sequence, decoded; zeros where there was padding."""
        self._flush()
        with self._on_device():
            key, value = self.residual.pair
            if not self.packed:
                return key, value
            slots = self.table.slots().to(self.device)[:, None, :, None]
            keys = [part.key.decode() for part in self.parts.values()]
            values = [part.value.decode() for part in self.parts.values()]
            key, value = key.to(self.dtype), value.to(self.dtype)
            return in_order([*keys, key], slots, self.seen), in_order([*values, value], slots, self.seen)

    def decoded(self) -> tuple[torch.Tensor, torch.Tensor]:
        """:meth:`dense` for attention that knows of no gaps.

        Raises:
            KVMMError: if pages were dropped.
        """
        if any(store.dropped for store in self.segments.stores):
            raise KVMMError(
                "Pages were dropped to meet the budget, which leaves no keys for attention weights or decoded reads: "
                "leave budget= out."
            )
        return self.dense()

    def observe(self, query: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Add the prompt's queries ``[B, H_q, q, D]`` to the query moments, without padding; returns :meth:`dense`."""
        first = self.table.length - query.shape[2]
        valid = (self.table.modality[:, first : self.table.length] != PADDING).to(query.device)
        self.queries.add(query, self.dense_key.shape[1], valid)
        dense = self.dense()
        self._was_read()
        return dense

    def _was_read(self) -> None:
        self._awaits_query = False
        if self.offloaded:
            self.offload()

    def attend(self, query: torch.Tensor, mask: torch.Tensor | None, scaling: float) -> torch.Tensor:
        """Attention of ``query`` ``[B, H_q, q, D]`` over everything stored; see :func:`kvmm.kernels.attention.attend`.

        ``mask``: see :meth:`TokenTable.bias`. A captured step has none: the device knows what is padding.
        """
        mask = None if self.step.replaying else self.table.beyond_padding(mask, query.shape[2])
        if mask is None and query.shape[2] == 1 and self.residual.in_place:
            with self._current_device():
                output = self._step(query, scaling)
            self._was_read()
            return output
        self._flush()
        with self._on_device():
            output = attend(
                query,
                list(self.parts.values()),
                *self.residual.pair,
                self.table.bias(mask, query.shape[2], self.device),
                scaling,
            )
        self._was_read()
        return output

    def _step(self, query: torch.Tensor, scaling: float) -> torch.Tensor:
        """:meth:`attend` of a step of one token, which is appended first; everything stays in place."""
        new, reads, work = self.take_step(scaling)
        inputs = (query, *(new or ()))
        output = None
        if query.is_cuda and new is not None:
            lengths = self.table.static.lengths_on(self.device, self.table)
            output = self._graph.run(inputs, reads, lengths.pool, work)
        return work(*inputs) if output is None else output

    @property
    def steps_in_place(self) -> bool:
        """Whether the token that was appended last may be appended and attended to by :meth:`take_step`."""
        return self.packed and not self.offloaded and self.residual.in_place and self.residual.is_pending

    def forget_step(self) -> None:
        """The token that was appended last is appended and attended to by a graph that is replayed now."""
        self.residual.take_pending()
        self._awaits_query = False

    def take_step(
        self, scaling: float
    ) -> tuple[tuple[torch.Tensor, torch.Tensor] | None, tuple[Any, ...], Callable[..., torch.Tensor]]:
        """A step of one token, to be done or captured by the caller; the cache's buffers are in place.

        Returns:
            the new key and value ``[B, H, 1, D]``, or None if they are appended already; what else the work depends on,
            as :meth:`LayerGraph.run` takes it; and the work, of the query ``[B, H_q, 1, D]`` and these two.
        """
        new = self.residual.take_pending()
        lengths = self.table.static.lengths_on(self.device, self.table)
        stores = self.segments.allocated_stores
        views = [store.at_capacity(lengths.num_pages) for store in stores]
        bias, key, value = lengths.bias, self.dense_key, self.dense_value

        def work(query: torch.Tensor, *new: torch.Tensor) -> torch.Tensor:
            if new:
                append_tokens(key, value, *new, lengths.position)
            sides = [PackedReader(store.codec, view) for store, view in zip(stores, views, strict=True)]
            parts = [Part(*pair) for pair in zip(sides[::2], sides[1::2], strict=True)]
            return attend(query, parts, key, value, bias, scaling, residual_length=lengths.dense_length)

        self._awaits_query = False
        return new, (lengths, bias, key, value, scaling, *views), work

    def index_batch(self, index: torch.Tensor) -> None:
        """Keep, repeat or reorder sequences: ``index`` is int64 ``[B_new]``."""
        if not self.is_initialized:
            return
        self._flush()
        with self._on_device():
            self.residual.index_batch(index)
            self.queries.index_batch(index)
            self.segments.index_batch(index)

    def truncate(self, cut: Cut) -> None:
        """Carry out what the table decided, once it has the new length."""
        if not self.is_initialized:
            return
        self.queries.crop(self.seen - self.table.length)
        self.residual.crop(cut.width, self.table.length)
        self.segments.crop(cut)

    def fork(self, table: TokenTable, step: StepState) -> KVMMLayer:
        """A layer of its own that shares the packed parts; ``table`` and ``step`` are the fork's."""
        twin = copy.copy(self)
        twin._graph = self._graph.fork()
        twin.table, twin.step = table, step
        twin.queries = copy.copy(self.queries)
        if self.is_initialized:
            self._flush()
            twin.residual = self.residual.fork(table)
        twin.segments = self.segments.fork()
        return twin
