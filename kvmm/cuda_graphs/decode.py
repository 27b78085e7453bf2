"""Decode steps as CUDA graphs, through plain ``model.generate(..., past_key_values=cache)``.

transformers launches some hundred small kernels a step, each from Python; a graph launches them all at once. Like
``model.forward = torch.compile(model.forward)``, :func:`install_dispatcher` puts a callable in place of a model's
``forward``, once. It looks at the cache of a call: one new token in a packed cache that has a :class:`StepGraph` copies
its inputs into static buffers and replays; everything else goes to the model's own ``forward``. Graphs and buffers
belong to the cache, so many caches serve one model and a graph goes with its cache.

What changes from step to step lies on the device (:mod:`kvmm.cache.capacity`), so the same captured kernels serve all
steps. A full residual page is packed between two replays, by a graph of its own (:mod:`kvmm.cuda_graphs.packing`).
Only what moves a buffer (another batch size, a turn that needs more space) makes the next steps capture anew. Without
CUDA the same step runs uncaptured.
"""

from __future__ import annotations

import copy
import functools
import inspect
import types
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from kvmm.cuda_graphs.capture import beside, capture, first_line
from kvmm.cuda_graphs.captured import CapturedCache
from kvmm.cuda_graphs.packing import PackingGraph

WARM_UP = 2  # steps that run uncaptured first: kernels are compiled and tuned in them
_IDLE = 3  # graphs in a row that did not pay, after which steps run without
BACKEND = "inductor"  # of torch.compile
# arguments of a step that do not matter once the prompt is read, whatever they are
_SPENT = frozenset(
    (
        "image_grid_thw",
        "video_grid_thw",
        "second_per_grid_ts",
        "video_second_per_grid",
        "feature_attention_mask",
        "audio_feature_lengths",
        "use_audio_in_video",
        "mm_token_type_ids",
        "token_type_ids",
        "image_sizes",
        "vision_feature_layer",
        "vision_feature_select_strategy",
        "batch_num_images",
        "cache_position",
        "logits_to_keep",
    )
)
_STEP = frozenset(("input_ids", "position_ids", "attention_mask", "past_key_values", "use_cache", "return_dict"))


class _Unchanged:
    """What identifies the addresses that a captured graph reads."""

    def __init__(self, model: nn.Module, cache: CapturedCache, inputs: tuple[torch.Tensor, ...]):
        lengths = list(cache.table.static.lengths.values())
        found: list[Any] = [one.addresses() for one in lengths]
        found += [None if one.bias is None else (one.bias.data_ptr(), one.bias.numel()) for one in lengths]
        found += [cache.layers[index].addresses() for index in cache.packed_layers]
        found += [t.data_ptr() for t in inputs]
        found.append(next(model.parameters()).data_ptr())
        self.found = found

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Unchanged) and self.found == other.found


class StepGraph:
    """The captured decode step of one cache: buffers, graph, and how often what happened.

    Attributes:
        mode: True, ``"auto"`` (the same, without a warning where a step cannot be captured) or ``"compile"``.
        reason: why the last step of one token was not replayed, or None.
        captures, replays, plain: graphs captured, steps replayed from one, steps of one token that ran as usual.
        packing: the same for pages of text that fill.
    """

    def __init__(self, mode: bool | str = True):
        self.mode = mode
        self.captures = self.replays = self.plain = self.eager = 0
        self.reason: str | None = None
        self._off: str | None = None  # set when capturing failed: this cache goes on without
        self._idle = self._replayed = 0  # graphs in a row that were replayed once at most, replays before the last one
        self.packing = PackingGraph()
        self.drop()

    def __reduce__(self) -> tuple[Any, ...]:
        return StepGraph, (self.mode,)  # another cache has other buffers

    def drop(self) -> None:
        """Free the graph and its buffers; the next steps capture anew."""
        self._graph: torch.cuda.CUDAGraph | None = None
        self._stream: torch.cuda.Stream | None = None
        self._warm = 0
        self._inputs: tuple[torch.Tensor, ...] = ()  # ids int64 [B, 1], positions [..., B, 1]
        self._output: Any = None
        self._logits: torch.Tensor | None = None
        self._addresses: _Unchanged | None = None
        self._frequencies: list[torch.Tensor] = []  # of longrope: the step's own, so that no other call changes them
        self._long: bool | None = None  # which of the two sets they hold
        self._ropes: list[nn.Module] | None = None  # the model's embeddings of type longrope
        self.packing.drop()
        self.check()

    def check(self) -> None:
        """Something other than a replayed step happened: before the next one, see whether the graphs still fit."""
        self.look_again()
        self.packing.stale = True
        self._masked = False  # the caller's mask says what the cache knows of padding
        self._last: int | None = None  # the largest position of the last step

    def look_again(self) -> None:
        """A page was packed: before the next step, see whether its graph still fits."""
        self._stale = True

    def report(self) -> dict[str, Any]:
        """Counts, and ``reason`` (why the last step of one token was not replayed, None if it was), for JSON;
        ``packing`` says the same of pages of text."""
        found = {name: getattr(self, name) for name in ("mode", "captures", "replays", "eager", "plain", "reason")}
        return found | {"packing": self.packing.report()}

    def stream(self, device: torch.device) -> torch.cuda.Stream:
        """The stream that captures."""
        self._stream = self._stream or torch.cuda.Stream(device)
        return self._stream

    # -- one step ---------------------------------------------------------------------------------------------------

    def step(self, model: nn.Module, forward: Callable, cache: CapturedCache, call: dict[str, Any]) -> Any:
        """One call of the model's ``forward``: a replay where it is one token, else ``forward`` itself."""
        ids = call.get("input_ids")
        if not cache.table.length or ids is None or ids.dim() != 2 or ids.shape[1] != 1:
            return forward(**call)
        self.reason = self._off or self._refusal(model, cache, call)
        if self.reason is not None:
            self.plain += 1
            return forward(**call)
        last = self._last  # before packing may forget it
        cache.begin_replay()
        self._fill(ids, call.get("position_ids"), cache)
        if self._ropes is None:
            self._ropes = _long_ropes(model)
        if self._ropes:
            self._choose_frequencies(call.get("position_ids"), cache, last if _grows(call) else None)
        if not ids.is_cuda:
            self.eager += 1
            return self._answer(self._run(model, forward, cache), cache)
        return self._answer(self._on_device(model, forward, cache), cache)

    def _fill(self, ids: torch.Tensor, positions: torch.Tensor | None, cache: CapturedCache) -> None:
        shape = ids.shape if positions is None else positions.shape
        if not self._inputs or self._inputs[0].shape != ids.shape or self._inputs[1].shape != shape:
            with torch.inference_mode(False):
                self._inputs = (ids.new_empty(ids.shape), ids.new_empty(shape))
            self._stale = True
        self._inputs[0].copy_(ids)
        if positions is None:
            self._inputs[1].fill_(cache.table.length - 1)
        else:
            self._inputs[1].copy_(positions)

    def _choose_frequencies(self, positions: torch.Tensor | None, cache: CapturedCache, last: int | None) -> None:
        """Put the frequencies that transformers would take into the step's own tensors."""
        if positions is None:
            self._last = cache.table.length - 1
        else:
            self._last = int(positions.max()) if last is None else last + 1
        ropes = self._ropes
        if not self._frequencies:
            with torch.inference_mode(False):
                self._frequencies = [rotary.inv_freq.clone() for rotary in ropes]
            self._long = None
        long = self._last + 1 > ropes[0].config.rope_parameters["original_max_position_embeddings"]
        if long != self._long:
            for own, rotary in zip(self._frequencies, ropes, strict=True):
                own.copy_(_long_frequencies(rotary) if long else rotary.original_inv_freq)
            self._long = long

    def _run(self, model: nn.Module, forward: Callable, cache: CapturedCache) -> Any:
        """The step itself: reads static buffers, and no number of the host's that changes."""
        ids, positions = self._inputs
        with ExitStack() as stack:
            stack.enter_context(cache.replaying())
            stack.enter_context(_own_frequencies(self._ropes, self._frequencies))
            if self.mode == "compile":
                stack.enter_context(_compiled_layers(model))
            cache.table.static.advance()
            return forward(
                input_ids=ids, position_ids=positions, past_key_values=cache, use_cache=True, return_dict=True
            )

    def _on_device(self, model: nn.Module, forward: Callable, cache: CapturedCache) -> Any:
        if self._stale and self._graph is not None and self._addresses != _Unchanged(model, cache, self._inputs):
            self._graph = self._output = self._logits = None
        self._stale = False
        if self._graph is None:
            if self._warm < WARM_UP:
                self._warm += 1
                self.eager += 1
                return self._beside(model, forward, cache, watch=self._warm == WARM_UP)
            if self._idle >= _IDLE:
                self._give_up("its buffers move in every step")
                return self._run(model, forward, cache)
            try:
                self._capture(model, forward, cache)
            except Exception as error:  # of any kind: what cannot be captured still runs
                self._give_up(f"capturing failed: {first_line(error)}")
                return self._run(model, forward, cache)
        self._graph.replay()
        self.replays += 1
        return self._output

    def _beside(self, model: nn.Module, forward: Callable, cache: CapturedCache, watch: bool) -> Any:
        """The step as a warm-up; ``watch`` finds out whether the model asks the device something on the way
        (frequencies that depend on positions, experts chosen by the host)."""
        stream = self.stream(self._inputs[0].device)
        output, waits = beside(stream, lambda: self._run(model, forward, cache), watch)
        if waits is not None:
            self._give_up(f"the model waits for the device in every step ({waits})")
        return output

    def _give_up(self, why: str) -> None:
        self._off = self.reason = why
        self._graph = None
        if self.mode != "auto":
            warnings.warn(f"Decode steps run without a CUDA graph: {why}", stacklevel=2)

    def _capture(self, model: nn.Module, forward: Callable, cache: CapturedCache) -> None:
        stream = self.stream(self._inputs[0].device)
        self._graph, self._output = capture(stream, lambda: self._run(model, forward, cache))
        self._output.past_key_values = None  # the graph must not keep its cache alive
        self._addresses = _Unchanged(model, cache, self._inputs)
        self.captures += 1
        self.note_capture()

    def note_capture(self) -> None:
        """Count graphs in a row that hardly served before the next one was captured."""
        self._idle = self._idle + 1 if self.captures > 1 and self.replays <= self._replayed + 1 else 0
        self._replayed = self.replays

    def _answer(self, output: Any, cache: CapturedCache) -> Any:
        """The model's own output class, with logits of the caller's own."""
        answer = copy.copy(output)
        answer.logits = output.logits.clone()
        answer.past_key_values = cache
        return answer

    # -- what cannot be replayed ------------------------------------------------------------------------------------

    def _refusal(self, model: nn.Module, cache: CapturedCache, call: dict[str, Any]) -> str | None:
        if cache.model is not model:
            return "the cache was made for another model"
        if call.get("use_cache") is False or call.get("return_dict") is False:
            return "use_cache=False or return_dict=False"
        for name, value in call.items():
            if name not in _STEP and name not in _SPENT and value is not None and value is not False:
                return f"the argument {name}="
        if len(cache.packed_layers) != len(cache.layers):
            return "layers with a sliding window or without keys and values"
        if cache.step.reads_decoded:
            return "pages are read decoded"
        text_config = model.config.get_text_config(decoder=True)
        if text_config.output_attentions:
            return "attention weights"
        if text_config._attn_implementation == "flex_attention":
            return "the mask of flex attention"  # made in every step, by work that a graph cannot hold
        if cache.table.packed and len({layer.device for layer in cache.layers}) > 1:
            return "layers on several devices"
        if call["input_ids"].shape[0] != cache.batch_size:
            return "another batch size"
        if call.get("position_ids") is None and any(
            hasattr(m, "rope_deltas") for m in (model, getattr(model, "model", None))
        ):
            return "no position_ids"
        return self._mask_refusal(cache, call.get("attention_mask"), _grows(call))

    def _mask_refusal(self, cache: CapturedCache, mask: Any, grows: bool) -> str | None:
        """A mask may repeat what the cache knows: padding of the prompt, nothing else.

        To look at it is to wait for the device, so in ``generate`` that happens once, at the first token.
        """
        if mask is None:
            return None
        table = cache.table
        if not isinstance(mask, torch.Tensor) or mask.dim() != 2 or mask.shape[1] != table.length + 1:
            return "an attention mask of another form"
        if self._masked and grows:
            return None
        known = table.modality[:, : table.length] >= 0
        given = mask.cpu() != 0
        if known.shape != given[:, :-1].shape or not torch.equal(known, given[:, :-1]) or not bool(given[:, -1].all()):
            return "an attention mask of one's own"
        self._masked = grows
        return None


def _grows(call: dict[str, Any]) -> bool:
    """Whether a call looks like one of ``generate``, which only ever adds ones to a mask and counts positions up."""
    return call.get("return_dict") is True and call.get("position_ids") is not None


# -- the model --------------------------------------------------------------------------------------------------------


class _Dispatcher:
    """What stands in place of a model's ``forward``."""

    def __init__(self, model: nn.Module, own: Callable | None):
        self._model = weakref.ref(model)
        self._own = own  # set on the instance before (hooks of accelerate, torch.compile); None: the class's
        functools.update_wrapper(self, own or type(model).forward.__get__(model))
        del self.__wrapped__  # would keep the model alive; the signature is what generate() asks for
        self.__signature__ = inspect.signature(own or type(model).forward.__get__(model))

    def __deepcopy__(self, memo: dict) -> _Dispatcher:
        model = self._model()
        twin = memo.get(id(model), model)
        return _Dispatcher(twin, copy.deepcopy(self._own, memo))

    def __reduce__(self) -> tuple[Any, ...]:
        """A pickled model comes back as if it had never been prepared."""
        return (getattr, (self._model(), "forward")) if self._own is None else (_itself, (self._own,))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        model = self._model()
        forward = self._own or functools.partial(type(model).forward, model)
        graph = getattr(kwargs.get("past_key_values"), "graph", None)
        if args or not isinstance(graph, StepGraph) or torch.is_grad_enabled():
            return forward(*args, **kwargs)
        return graph.step(model, forward, kwargs["past_key_values"], kwargs)


def _itself(forward: Callable) -> Callable:
    return forward


def install_dispatcher(model: nn.Module) -> None:
    """Let a model's calls reach the graphs of their caches; a second call does nothing.

    Args:
        model: the module that has ``generate``. Calls without such a cache behave as before.
    """
    own = model.__dict__.get("forward")
    if not isinstance(own, _Dispatcher):
        model.forward = _Dispatcher(model, own)


def remove_dispatcher(model: nn.Module) -> None:
    """Give a model its own ``forward`` back, unless something else has been put in place of it since."""
    placed = model.__dict__.get("forward")
    if isinstance(placed, _Dispatcher):
        del model.forward
        if placed._own is not None:
            model.forward = placed._own


def decoder_layers(model: nn.Module) -> list[nn.Module]:
    """The layers of a model's text decoder."""
    return list(getattr(_decoder(model), "layers", ()))


def _decoder(model: nn.Module) -> nn.Module:
    decoder = model.get_decoder()
    return getattr(decoder, "language_model", decoder)


def _long_ropes(model: nn.Module) -> list[nn.Module]:
    """Rotary embeddings of type longrope: short frequencies up to some position, long ones behind it."""
    return [m for m in _decoder(model).modules() if getattr(m, "rope_type", None) == "longrope"]


def _long_frequencies(rotary: nn.Module) -> torch.Tensor:
    before = rotary.config.rope_parameters["original_max_position_embeddings"]
    return ROPE_INIT_FUNCTIONS["longrope"](rotary.config, rotary.inv_freq.device, seq_len=before + 1)[0]


@contextmanager
def _own_frequencies(ropes: list[nn.Module], frequencies: list[torch.Tensor]) -> Iterator[None]:
    """Inside, longrope reads ``frequencies`` and does not choose: transformers would look at positions to do so."""
    before = [rotary.inv_freq for rotary in ropes]
    for rotary, own in zip(ropes, frequencies, strict=True):
        rotary.inv_freq, rotary.rope_type = own, "default"
    try:
        yield
    finally:
        for rotary, frequency in zip(ropes, before, strict=True):
            rotary.inv_freq, rotary.rope_type = frequency, "longrope"


# -- compiled layers --------------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=64)
def _compiled(layer_class: type[nn.Module]) -> Callable:
    # with tuning, inductor writes matrix-vector products itself, fused and nearer to the bandwidth than cuBLAS
    options = {"coordinate_descent_tuning": True} if BACKEND == "inductor" else None
    return torch.compile(layer_class.forward, backend=BACKEND, options=options)


@contextmanager
def _compiled_layers(model: nn.Module) -> Iterator[None]:
    """Inside, the decoder's layers run compiled: their norms, rotary embeddings and activations as one kernel each.

    Attention and the cache break the compiled graph and run as they are (``torch.compiler.disable`` where they are
    defined). Layers that something else has wrapped are
    left alone.
    """
    import torch._dynamo.config as config

    layers = [layer for layer in decoder_layers(model) if "forward" not in layer.__dict__]
    # one compiled form serves all layers although each knows its index
    with config.patch(allow_unspec_int_on_nn_module=True, recompile_limit=64):
        for layer in layers:
            layer.forward = types.MethodType(_compiled(type(layer)), layer)
        try:
            yield
        finally:
            for layer in layers:
                del layer.forward
