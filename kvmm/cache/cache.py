"""``KVMMCache``: the cache object given to ``generate(past_key_values=...)``."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import DynamicCache
from transformers.cache_utils import CacheLayerMixin, DynamicLayer

from kvmm.attention import install_attention
from kvmm.cache.capacity import StaticCapacity
from kvmm.cache.contract import ContractMixin
from kvmm.cache.file import load_cache, save_cache
from kvmm.cache.fuse import fit_value_rotation
from kvmm.cache.labels import label_call, label_unannounced
from kvmm.cache.layer import KVMMLayer
from kvmm.cache.memory import MemoryReport, measure
from kvmm.cache.retention import RetentionController, resident_nbytes
from kvmm.cache.step_state import StepState
from kvmm.cache.streams import apply_plan
from kvmm.cache.support import check_attention, check_options, checked_config, default_graph, takes_static_buffers
from kvmm.cache.token_table import TokenTable
from kvmm.calibration import Calibration
from kvmm.calibration.heads import configured_heads
from kvmm.cuda_graphs.decode import StepGraph, install_dispatcher, remove_dispatcher
from kvmm.errors import KVMMError
from kvmm.generating_model import generating_model
from kvmm.modality import TEXT, install_hook, placeholder_ids, remove_hook
from kvmm.policy import KVPolicy, check_head_dim, check_layers, get_policy
from kvmm.policy.calibrated import load_calibration, without_fit


class KVMMCache(ContractMixin):
    """A KV cache of one to two bits a value, by modality.

    ```python
    cache = KVMMCache.for_model(model, policy="balanced")
    out = model.generate(**inputs, past_key_values=cache)
    cache.memory()
    ```

    The prompt is read with exact attention. It is packed at the first decode step, or when :meth:`pack` is called.
    A cache belongs to one conversation; a model serves any number of caches.
    """

    def __init__(
        self,
        config: Any,
        policy: str | KVPolicy = "balanced",
        *,
        calibration: Calibration | None = None,
        offloading: bool = False,
        max_length: int | None = None,
        graph: bool | str | None = None,
        static: bool = False,
        **overrides: Any,
    ):
        """Make a cache for a configuration; :meth:`for_model` also prepares the model and is what you want.

        Args:
            config: the model's configuration.
            policy: a preset's name, a YAML file, or a :class:`KVPolicy`.
            calibration: what ``kvmm calibrate`` fitted to the model, for the codecs that use it.
            offloading: keep the layers on the CPU and bring each to the GPU for its own turn; slower, and without
                effect on a model on the CPU.
            max_length, graph: see :meth:`for_model`; here None is False.
            static: keep buffers in place, with space for tokens to come, also without ``max_length`` and ``graph``.
            **overrides: see :func:`kvmm.get_policy`.

        Raises:
            KVMMError: for an unknown policy or a model without a full-attention KV cache.
        """
        install_attention()
        self.policy = fit_value_rotation(without_fit(get_policy(policy, **overrides), calibration), config)
        check_options(self.policy, max_length, None if graph == "auto" else graph, offloading)
        captures = graph not in (None, False, "never")
        static = static or captures or max_length is not None
        self.table = TokenTable(self.policy, StaticCapacity(max_length) if static else None)
        self.step = StepState()
        self.graph = StepGraph(graph) if captures else None
        self.retention = None if self.policy.budget is None else RetentionController(self.policy)
        self.placeholders = placeholder_ids(config)
        config = getattr(config, "thinker_config", None) or config
        text_config = config.get_text_config(decoder=True)
        num_layers = text_config.num_hidden_layers
        # DynamicCache knows which layer is what (sliding, linear, full) in every version of transformers; the last ones
        # of a model, where they read the keys and values of others, are in newer versions only
        layers = [
            KVMMLayer(self.policy, self.table, self.step, index, num_layers, calibration)
            if type(layer) is DynamicLayer
            else layer
            for index, layer in enumerate(DynamicCache(config=text_config).layers)
        ]
        check_layers(self.policy, num_layers)
        if graph == "never":
            for layer in layers:
                if isinstance(layer, KVMMLayer):
                    layer.never_capture()
        # sliding-window layers hold a short window already and stay as they are
        self.packed_layers = [i for i, layer in enumerate(layers) if isinstance(layer, KVMMLayer)]
        self.table.opens_pages = all(codec.opens_pages for i in self.packed_layers for codec in layers[i].codecs[TEXT])
        with_keys = [i for i, layer in enumerate(layers) if isinstance(layer, CacheLayerMixin)]
        check_attention(self.policy, config, layers, with_keys, self.packed_layers)
        shapes = configured_heads(text_config)
        for head_dim in sorted({shapes[i].key_dim for i in self.packed_layers} - {None}):
            check_head_dim(self.policy, head_dim)
        # without CUDA there is nothing to offload from, and transformers would make a stream all the same
        super().__init__(layers=layers, offloading=offloading and torch.cuda.is_available())
        self.calibration = calibration
        modalities = {TEXT, *(modality for _, modality in self.placeholders)}
        self.layout = 0  # another number after every change of where static buffers lie
        self._same_codecs = calibration is None and all(
            len({self.policy.specs(modality, index, num_layers) for modality in modalities}) == 1
            for index in self.packed_layers
        )
        self.metadata: dict[str, Any] = {}
        self._model: weakref.ref[nn.Module] | None = None
        self._first_layer = self.packed_layers[0] if self.packed_layers else with_keys[0]

    @classmethod
    def for_model(
        cls,
        model: nn.Module,
        policy: str | KVPolicy = "balanced",
        *,
        modality: Any = None,
        offloading: bool = False,
        max_length: int | None = None,
        graph: bool | str | None = None,
        **overrides: Any,
    ) -> KVMMCache:
        """A cache for ``model``, which is prepared on the first call.

        Preparing installs one forward pre-hook (how the cache learns modalities and padding) and, for caches with
        graphs, a callable in place of ``model.forward``. Both act only in calls that carry such a cache; neither the
        configuration nor a parameter changes, and :meth:`release` takes both away. A prompt is read with the model's
        own attention (eager, SDPA, FlashAttention, flex); ``output_attentions=True`` gives weights where that does
        (eager), for packed tokens over their decoded keys.

        Args:
            model: a decoder-only transformers model, text-only, vision-language or omni, also inside a wrapper
                (``torch.compile``, PEFT).
            policy: a preset's name (:func:`kvmm.policies`), a YAML file, or a :class:`KVPolicy`.
            offloading: keep the layers on the CPU between their turns; see :class:`KVMMCache`.
            modality: integer ``[B, T]`` of modality codes for the first call; needed only with ``inputs_embeds`` that
                hold media already, where modalities are stored differently and neither ``mm_token_type_ids`` nor
                positions on three axes tell them apart.
            max_length: a hint, tokens the cache will hold, padding included: its buffers then have space for them from
                the start (:meth:`memory` counts it as ``reserved_nbytes``) and need not move as the cache grows.
            graph: whether steps of one token replay as a CUDA graph, with the same tokens. None does so where it can be
                done: on an NVIDIA GPU, unless a budget or offloading moves pages, or the model is tensor parallel; a
                step that cannot be captured runs as usual, and ``cache.graph.report()`` says why. True asks for it,
                and a failed capture is a warning; ``"compile"`` also compiles the decoder layers
                (``torch.compile``: slower to start, fewer launches, equal up to the rounding of the model's dtype).
                False captures no steps, but on a GPU still the calls of single layers, which cost the host less time
                than SDPA's; with ``"never"`` nothing is captured.
            **overrides: ``key_bits``, ``value_bits``, ``group_size``, ``residual_length``, ``num_sink_tokens``.

        Raises:
            KVMMError: for an unknown policy or an unsupported model.
        """
        model = generating_model(model)
        policy = get_policy(policy, **overrides)
        checked_config(model)
        options = {"offloading": offloading, "max_length": max_length, "graph": graph}
        cache = cls._prepared(model, policy, load_calibration(model, policy), **options)
        if modality is not None:
            cache.set_modality(modality)
        return cache

    @classmethod
    def _prepared(
        cls, model: nn.Module, policy: KVPolicy, calibration: Calibration | None, **options: Any
    ) -> KVMMCache:
        check_options(policy, options.get("max_length"), options.get("graph"), options.get("offloading", False))
        placed = model, policy, options.get("offloading", False)
        if options.get("graph") is None:
            options["graph"] = default_graph(*placed)
        options["static"] = takes_static_buffers(*placed)
        cache = cls(checked_config(model), policy, calibration=calibration, **options)
        return cache.attach(model)

    def attach(self, model: nn.Module) -> KVMMCache:
        """Prepare ``model`` for this cache, as :meth:`for_model` does; returns the cache.

        For a cache that was unpickled or made from a configuration. The model must be the one that its tokens are of.
        """
        model = generating_model(model)
        self._model = weakref.ref(model)
        install_hook(model)
        if self.graph is not None:
            install_dispatcher(model)
        return self

    @staticmethod
    def release(model: nn.Module) -> None:
        """Take away what :meth:`for_model` put on a model, which is then as it was found.

        Caches of the model that still hold tokens take all new ones for text without padding from then on, unless told
        by :meth:`set_modality` and :meth:`announce`; the next :meth:`for_model` prepares the model again.
        """
        model = generating_model(model)
        remove_hook(model)
        remove_dispatcher(model)

    # -- what the tokens are ----------------------------------------------------------------------------------------

    def set_modality(self, modality: Any) -> None:
        """Give the modality map of the next call yourself: integer ``[B, T]``, one code a new token, -1 for padding."""
        self.step.given_modality = torch.as_tensor(modality)

    def announce(
        self,
        input_ids: torch.Tensor | None,
        inputs_embeds: torch.Tensor | None,
        attention_mask: Any,
        **described: Any,
    ) -> None:
        """Learn what the tokens of the call that starts now are; the model's pre-hook calls it.

        Args:
            input_ids: integer ``[B, q]`` or None.
            inputs_embeds: ``[B, q, hidden]`` or None.
            attention_mask: ``[B, T]`` over all tokens so far (0 is padding); other shapes say nothing of padding.
            **described: what else may tell modalities; see :func:`kvmm.cache.labels.label_call`.

        Raises:
            KVMMError: for ``inputs_embeds`` of a multimodal model, where modalities are stored differently and nothing
                tells them apart.
        """
        call = {"input_ids": input_ids, "inputs_embeds": inputs_embeds, "attention_mask": attention_mask} | described
        given = inputs_embeds if input_ids is None else input_ids
        if given is None:
            return
        step = self.step
        if self.graph is not None and step.given_modality is None and given.shape[1] == 1 and input_ids is not None:
            step.defer(call)  # most likely a step to replay, which needs no map: looked at only if it is not
            return
        step.modality = self._codes(call)

    def _codes(self, call: dict[str, Any]) -> torch.Tensor:
        """The modality map int8 ``[B, q]`` of a call."""
        options = {"model": self.model, "same_codecs": self._same_codecs}
        return label_call(call, self.placeholders, explicit=self.step.take_given_modality(), **options)

    # -- update and packing -----------------------------------------------------------------------------------------

    @torch.compiler.disable
    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Any, Any]:
        """Append one layer's keys and values ``[B, H_kv, q, D]``; see :meth:`KVMMLayer.update` for what returns.

        To ``torch.compile`` a call like any other: it is not traced.
        """
        if layer_idx == self._first_layer and not self.step.replaying:
            self.offloading = self.offloading and key_states.device.type != "cpu"
            self._begin(key_states)
        updated = super().update(key_states, value_states, layer_idx, *args, **kwargs)
        if self.retention is not None and layer_idx == self.packed_layers[-1]:
            self.retention.after_step(self, 1 if self.step.decoding else key_states.shape[2])
        return updated

    def _begin(self, key_states: torch.Tensor) -> None:
        """Once a forward pass, before the first full-attention layer: pack what is due, note the new tokens."""
        batch, _, count, _ = key_states.shape
        codes = self.step.take_modality(self._codes)
        if codes is None:
            given, told_apart = self.step.take_given_modality(), self.placeholders and not self._same_codecs
            device = self.table.device(key_states)
            codes = label_unannounced(batch, count, given, self.model, bool(told_apart), device)
        if tuple(codes.shape) != (batch, count):
            raise KVMMError(
                f"The modality map has shape {list(codes.shape)} but the model wrote keys of {batch} sequences of "
                f"{count} tokens; call cache.set_modality with one code a token."
            )
        if self.retention is not None and batch > 1:
            raise KVMMError("budget= works with one sequence at a time; use a cache a sequence, or leave budget out.")
        if count == 1:
            self._grow_static()
        self.step.decoding = bool(self.table.length) and (count == 1 or self.step.cropped)
        if self.step.decoding:
            self._pack()
        self.step.cropped = False
        self.table.append(codes.to(self.table.device(key_states)))
        static = self.table.static
        if static is None or not self.table.packed:
            return
        if count == 1 and self._fits(0) and bool((self.table.dense[:, -1] >= 0).all()):
            static.advance()
        else:
            self._changed(turn=count > 1)

    def _fits(self, count: int) -> bool:
        """Whether ``count`` further residual tokens fit into the static buffers."""
        return self.table.dense.shape[1] + count <= self.table.static.residual_tokens

    def begin_replay(self) -> None:
        """The host's part of a step of one token of text in every sequence, whose captured part follows."""
        self._grow_static()
        self.step.forget_inputs()
        self.step.decoding = True
        self._pack()
        self.step.cropped = False
        if not self._fits(1):
            self._changed()
        self.table.append(torch.full((self.batch_size, 1), TEXT, dtype=torch.int8))

    def replaying(self) -> AbstractContextManager[None]:
        """Inside, a forward pass does the device's part of a step only."""
        return self.step.replay()

    def reading_decoded(self) -> AbstractContextManager[None]:
        """Inside, packed layers give decoded keys and values to the model's own attention: the same up to rounding.

        Slower, and what packed kernels are compared with. Pages that a budget has dropped cannot be read so.
        """
        return self.step.read_decoded()

    def _pack(self) -> None:
        plan = self.table.plan() if self.packed_layers else None
        if plan is None:
            return
        if self.graph is not None and self.graph.packing.run(self, plan):
            self.table.commit(plan)
            self.table.static.sync(self.table)
            self.graph.look_again()
            return
        layers = [self.layers[index] for index in self.packed_layers]
        if self.offloading and layers[0].device.type == "cuda":  # the layer fetched last comes on a stream of its own
            torch.cuda.current_stream(layers[0].device).wait_stream(self.prefetch_stream)
        apply_plan(layers, plan)
        self.table.commit(plan)
        self._changed()

    def _changed(self, turn: bool = False) -> None:
        """After anything but a step to replay: static buffers get their capacity, the device the host's numbers.

        ``turn``: the newest tokens are a turn, which does not stay among the residual tokens.
        """
        static = self.table.static
        if static is None or not self.table.packed:
            return
        self.layout += 1
        static.allocate(self.table, turn)
        layers = [self.layers[index] for index in self.packed_layers if self.layers[index].is_initialized]
        for layer in layers:
            layer.allocate()
        if self._fits(0):  # else a turn waits for packing, and no step reads the counters until then
            for layer in layers:
                static.lengths_on(layer.device, self.table)
            static.sync(self.table)
        if self.graph is not None:
            self.graph.check()

    def _grow_static(self) -> None:
        """Before a step of one token: buffers in place that are full get space for it, and for more to come."""
        static = self.table.static
        if static is not None and static.ready and self.table.length >= static.capacity:
            self._changed()

    def extend(self, max_length: int) -> None:
        """Have space for ``max_length`` tokens in all, so that buffers need not grow on the way there; a hint.

        A cache whose buffers are not kept in place (on a CPU, without ``max_length``) grows by itself anyway.
        """
        if self.table.static is not None and self.table.static.ask(max_length):
            self._changed()

    def pack(self) -> KVMMCache:
        """Pack now all that may be packed; otherwise it happens at the next decode step. Returns the cache.

        Raises:
            KVMMError: if the policy has a budget that cannot be met.
        """
        self._pack()
        if self.retention is not None and self.is_packed and resident_nbytes(self) > self.policy.budget:
            self.retention.run(self)
        return self

    def pin(self, start: int, end: int) -> None:
        """Keep the pages with positions ``start`` to ``end`` (not included) as they are, whatever the budget.

        Raises:
            KVMMError: for a policy without a budget, or an empty span.
        """
        if self.retention is None:
            raise KVMMError("Nothing is lowered or dropped without a budget; make the cache with budget=.")
        self.retention.pin(start, end)

    def retention_report(self) -> dict[str, Any]:
        """What the retention controller did and where every page stands, as values for JSON.

        ``budget``, ``resident_nbytes``, ``steps`` (decode steps), ``runs`` (of the controller), ``mode``,
        ``selection``, ``heads``, ``prices`` (distortion per byte of the budget, and of caps that bind), ``num_entries``
        (pages times heads), ``num_held`` (not dropped), ``flips`` (changes of tier), ``flip_rate`` (flips an entry and
        run), ``repeated_flips`` (changes after an entry's first), ``lowered``, ``dropped``, ``raised`` (counts),
        ``distortion`` (the objective), ``last_run`` (its changes: layer, modality, head or None for all, page, from,
        to), ``layers`` (``share_by_head``: the part of the layer's packed bytes that each head has) and ``entries``:
        for each layer, modality and head ``tier_names``, and by page ``tiers``, ``flips`` and ``importance``.

        Raises:
            KVMMError: for a policy without a budget.
        """
        if self.retention is None:
            raise KVMMError("There is no retention without a budget; make the cache with budget=.")
        return self.retention.report(self)

    @property
    def is_packed(self) -> bool:
        """Whether the prompt has been packed."""
        return self.table.packed

    # -- files --------------------------------------------------------------------------------------------------------

    def save(self, path: str | Path, metadata: Mapping[str, Any] | None = None, *, compress: bool = True) -> None:
        """Write the cache to a file, packed as it is; see :func:`kvmm.cache.file.save_cache`."""
        save_cache(self, path, metadata, compress=compress)

    @classmethod
    def load(
        cls,
        path: str | Path,
        model: nn.Module,
        *,
        calibration: str | Path | None = None,
        graph: bool | str | None = None,
    ) -> KVMMCache:
        """Read a cache that :meth:`save` wrote for the same model; see :func:`kvmm.cache.file.load_cache`.

        ``graph`` is that of :meth:`for_model`.
        """
        return load_cache(path, model, partial(cls._prepared, graph=graph), calibration=calibration)

    @property
    def model(self) -> nn.Module | None:
        """The model the cache was made for, if it still exists and the cache was made with :meth:`for_model`."""
        return None if self._model is None else self._model()

    def memory(self) -> MemoryReport:
        """Measured memory; see :class:`MemoryReport`."""
        return measure(self)
