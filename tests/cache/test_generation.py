"""Every policy in every way that ``generate`` uses a cache, on tiny models of every family.

``MODES`` is the table: which families prove that the lossless policy gives the tokens of transformers' own cache, and
on which every other policy runs. A new policy joins by being registered. For lossy policies "works" is what
:func:`check` says: finite, smaller, and reading packed pages is the same as reading the codec's own decode.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import lru_cache
from typing import Any, NamedTuple

import pytest
import torch
import transformers
from transformers import DynamicCache, GenerationMixin

from kvmm import KVMMCache, get_policy, policies
from kvmm.modality import PADDING
from kvmm.policy import KVPolicy
from tests.cache.harness import with_scores_as_decoded
from tests.tiny_models import (
    FAMILIES,
    VIDEO_FAMILIES,
    build,
    generate,
    inputs,
    token_types,
    turn_inputs,
    video_inputs,
)

# All that can be is in pages, early enough for pages of text to be added while decoding.
FIELDS = {"residual_length": 0, "flush_length": 32, "num_sink_tokens": 2, "exact_dtype": "model"}  # tokens are compared
TOKENS = 12
TOLERANCE = 1e-3
MakeCache = Callable[[], Any]


# -- modes: (model, family, make_cache) to tokens and the cache -------------------------------------------------------


def _generate(arguments: Callable[[str], dict[str, Any]], **settings: Any) -> Callable:
    def mode(model: Any, family: str, make_cache: MakeCache) -> tuple[torch.Tensor, Any]:
        cache = make_cache()
        torch.manual_seed(0)
        settings_ = {"max_new_tokens": TOKENS, **settings}
        return generate(model, arguments(family), past_key_values=cache, **settings_), cache

    return mode


def _ragged(family: str) -> dict[str, Any]:
    return inputs(family, 2)


def _repeating(family: str) -> dict[str, Any]:
    """A prompt whose end repeats its beginning, so that drafts are found."""
    arguments = inputs(family)
    ids = torch.cat((arguments["input_ids"], arguments["input_ids"][:, :6], arguments["input_ids"][:, 1:4]), 1)
    return {**arguments, "input_ids": ids, "attention_mask": torch.ones_like(ids), **token_types(family, ids)}


def _guesses_positions(model: Any) -> bool:
    """Whether positions depend on the media (Qwen VL and omni)."""
    own = type(model)._prepare_position_ids_for_generation
    return own is not GenerationMixin._prepare_position_ids_for_generation


def _joined(parts: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    names = dict.fromkeys(name for part in parts for name in part)
    return {name: torch.cat([part[name] for part in parts if name in part]) for name in names}


def _turns(model: Any, family: str, make_cache: MakeCache) -> tuple[torch.Tensor, Any]:
    """Three turns, a new medium in the second, another conversation on the model after each."""
    cache, ids, media = make_cache(), torch.empty(1, 0, dtype=torch.long), []
    for added, new_media in turn_inputs(family):
        ids = torch.cat((ids, torch.tensor([added])), 1)
        media.append(new_media)
        arguments = {"input_ids": ids, "attention_mask": torch.ones_like(ids), **token_types(family, ids)}
        if cache is None:  # the reference: everything from the beginning
            arguments |= _joined(media)
        else:
            if _guesses_positions(model):
                positions = model._prepare_position_ids_for_generation(ids, {**arguments, **_joined(media)})
                arguments["position_ids"] = positions
            arguments |= new_media
        ids = generate(model, arguments, past_key_values=cache, max_new_tokens=TOKENS)
        generate(model, inputs(family, seed=9), max_new_tokens=2)
    return ids, cache


@lru_cache(maxsize=1)
def _assistant(family: str) -> Any:
    """A model whose drafts are right about as often as wrong."""
    assistant = copy.deepcopy(build(family))
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in assistant.parameters():
            weight += 0.005 * torch.randn(weight.shape, generator=generator)
    return assistant


def _assisted(model: Any, family: str, make_cache: MakeCache) -> tuple[torch.Tensor, Any]:
    cache = make_cache()
    settings = {"assistant_model": _assistant(family), "max_new_tokens": TOKENS}
    return generate(model, inputs(family), past_key_values=cache, **settings), cache


def _pieces(model: Any, family: str, make_cache: MakeCache) -> tuple[torch.Tensor, Any]:
    """The prompt in three forward passes, the media in the first, then greedy decoding."""
    cache, arguments = make_cache(), inputs(family)
    ids = arguments["input_ids"]
    end = ids.shape[1] - 8
    for first, last in ((0, end), (end, end + 4), (end + 4, end + 6)):
        mask = torch.ones(1, last, dtype=torch.long)
        media = arguments if first == 0 else {}
        with torch.no_grad():
            piece = {**media, "input_ids": ids[:, first:last], "attention_mask": mask}
            model(**piece, past_key_values=cache, use_cache=True)
    rest = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    return generate(model, rest, past_key_values=cache, max_new_tokens=TOKENS), cache


def _chunked(model: Any, family: str, make_cache: MakeCache) -> tuple[torch.Tensor, Any]:
    """Chunked prefill, of a first turn without media and, where transformers allows it, of a second turn of text."""
    cache = make_cache()
    ids = inputs(family)["input_ids"] if family in _TEXT_ONLY else torch.arange(3, 40)[None]
    for _ in range(2 if _CHUNKED_TURNS else 1):
        arguments = {"input_ids": ids, "attention_mask": torch.ones_like(ids), **token_types(family, ids)}
        ids = generate(model, arguments, past_key_values=cache, prefill_chunk_size=8, max_new_tokens=TOKENS)
        ids = torch.cat((ids, torch.arange(50, 69)[None]), 1)
    return ids, cache


_TEXT_ONLY = ("llama", "qwen3", "mistral")
_QWEN_VL = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe")
# transformers rolls back a sliding window only if told before the first token, and not in every version
_FULL = tuple(f for f in FAMILIES if f not in ("mistral", "gemma3"))
# older versions forward the whole prompt again in a second turn, and slice the positions of Qwen VL along the batch
_CHUNKED_TURNS = tuple(map(int, transformers.__version__.split(".")[:2])) >= (5, 23)
_CHUNKED = (*_TEXT_ONLY, "llava", "gemma3", *(_QWEN_VL if _CHUNKED_TURNS else ()))
# a prompt in pieces: positions that do not depend on the media, no attention in both directions inside an image
_PLAIN = ("llama", "qwen3", "mistral", "llava", "llava_next", "llava_onevision", "internvl", "qwen2_audio")


class Mode(NamedTuple):
    """A way of generating, the families where the lossless policy is compared, and those where every policy runs."""

    run: Callable
    lossless: tuple[str, ...]
    every: tuple[str, ...]


MODES: dict[str, Mode] = {
    # two sequences, left-padded, several images and recordings between runs of text
    "greedy": Mode(_generate(_ragged), FAMILIES, FAMILIES),
    "one-sequence": Mode(_generate(inputs), FAMILIES, ("qwen3_omni_moe",)),
    # one sequence of the batch has one token, and no media
    "bare-row": Mode(_generate(lambda family: inputs(family, 2, bare_row=True)), FAMILIES, ("qwen2_5_omni", "llava")),
    "sampling": Mode(
        _generate(_ragged, do_sample=True, temperature=1.5, num_return_sequences=2), FAMILIES, ("qwen2_5_vl",)
    ),
    "beam": Mode(_generate(_ragged, num_beams=3, num_return_sequences=2), FAMILIES, ("qwen2_5_omni",)),
    "prompt-lookup": Mode(_generate(_repeating, prompt_lookup_num_tokens=3), _FULL, ("qwen2_5_vl", "llama")),
    "assisted": Mode(_assisted, ("llama", "qwen3"), ("qwen3",)),
    "video": Mode(_generate(video_inputs), VIDEO_FAMILIES, ("qwen3_vl", "llava_onevision")),
    "turns": Mode(_turns, FAMILIES, ("qwen2_5_vl", "qwen2_5_omni", "qwen2_audio")),
    "pieces": Mode(_pieces, _PLAIN, ("llava",)),
    "chunked-prefill": Mode(_chunked, _CHUNKED, ("qwen3",)),
}


# -- what must hold afterwards ----------------------------------------------------------------------------------------


def next_logits(model: Any, cache: KVMMCache, count: int, decoded: bool) -> torch.Tensor:
    """Logits ``[B, count, vocabulary]`` of ``count`` further tokens, without changing the cache; ``decoded``: with
    layers that give their own dense decode."""
    batch, length = cache.batch_size, cache.get_seq_length()
    ids = torch.randint(3, 110, (batch, count), generator=torch.Generator().manual_seed(count))
    seen = (cache.table.modality[:, :length] != PADDING).long()
    positions = torch.arange(length, length + count).expand(batch, -1)
    if _guesses_positions(model):
        positions = positions.expand(3, -1, -1)
    twin = copy.deepcopy(cache)
    with torch.no_grad(), twin.reading_decoded() if decoded else nullcontext():
        return model(
            input_ids=ids,
            attention_mask=torch.cat((seen, torch.ones_like(ids)), 1),
            position_ids=positions,
            past_key_values=twin,
            use_cache=True,
            **({"token_type_ids": torch.zeros_like(ids)} if "gemma3" in model.config.model_type else {}),
        ).logits


def check(model: Any, cache: KVMMCache) -> None:
    """Finite, smaller than lossless pages, and packed attention equals SDPA over the codec's decode."""
    if not cache.packed_layers:  # Mistral: sliding windows only
        return
    assert cache.is_packed
    for index in cache.packed_layers:
        layer = cache.layers[index]
        assert layer.parts, "nothing was packed: this proves nothing"
        for part in layer.parts.values():
            for store, dense in zip(part.stores, (layer.dense_key, layer.dense_value), strict=True):
                if not store.codec.spec.is_lossless:
                    batch, heads, tokens, dim = store.decode().shape
                    assert sum(store.nbytes().values()) < batch * heads * tokens * dim * dense.element_size()
    for count in (1, 4):
        packed, decoded = (next_logits(model, cache, count, decoded) for decoded in (False, True))
        assert torch.isfinite(packed).all()
        torch.testing.assert_close(packed, decoded, atol=TOLERANCE, rtol=TOLERANCE)


def stored_as(policy: str) -> KVPolicy:
    """The preset without what decoded pages do not show."""
    return with_scores_as_decoded(get_policy(policy))


def is_lossless(policy: str) -> bool:
    return all(spec.is_lossless for spec in get_policy(policy).all_specs())


def cells() -> list[Any]:
    """``(family, mode, policy)``, family by family, as only one model is kept."""
    found = []
    for family, (name, mode), policy in itertools.product(FAMILIES, MODES.items(), policies()):
        if family in (mode.lossless if is_lossless(policy) else mode.every):
            found.append(pytest.param(family, name, policy, id=f"{family}-{name}-{policy}"))
    return found


@pytest.mark.parametrize(("family", "mode", "policy"), cells())
def test_generation(family, mode, policy):
    model, run = build(family), MODES[mode].run
    tokens, cache = run(model, family, lambda: KVMMCache.for_model(model, stored_as(policy), **FIELDS))
    if is_lossless(policy) or not cache.packed_layers:
        scratch = mode == "turns"
        expected, _ = run(
            model, family, lambda: None if scratch else DynamicCache(config=model.config.get_text_config(decoder=True))
        )
        assert torch.equal(tokens, expected)
    check(model, cache)
    for name, numbers in cache.memory().by_modality.items() if cache.packed_layers else ():
        if name != "text" and not cache.policy.mixed_modalities:  # media are packed entirely
            assert numbers["packed_tokens"] == numbers["tokens"]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("policy", policies())
def test_half_precision(policy, dtype):
    """Models in half precision, whose padding and biases a codec may not let overflow."""
    model = _half(dtype)
    cache = KVMMCache.for_model(model, stored_as(policy), **FIELDS)
    generate(model, inputs("qwen3", 2), past_key_values=cache, max_new_tokens=TOKENS)
    assert cache.is_packed and cache.layers[0].dense_key.dtype == dtype
    for count in (1, 4):
        packed, decoded = (next_logits(model, cache, count, decoded).float() for decoded in (False, True))
        assert torch.isfinite(packed).all()
        # the dense decode is rounded to the model's dtype, packed attention is not
        assert (packed - decoded).abs().mean() < 0.02 * decoded.std()


@lru_cache(maxsize=2)
def _half(dtype: torch.dtype) -> Any:
    return copy.deepcopy(build("qwen3")).to(dtype)


# -- operations on a packed cache -------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def _filled(policy: str) -> KVMMCache:
    model = build("qwen2_5_omni")
    cache = KVMMCache.for_model(model, stored_as(policy), **FIELDS)
    generate(model, inputs("qwen2_5_omni", 2), past_key_values=cache, max_new_tokens=TOKENS)
    return cache


def filled(policy: str) -> tuple[Any, KVMMCache, list[torch.Tensor]]:
    """A model, a copy of its packed cache, and what the cache decodes to."""
    cache = copy.deepcopy(_filled(policy))
    return build("qwen2_5_omni"), cache, decoded(cache)


def decoded(cache: KVMMCache) -> list[torch.Tensor]:
    return [x.clone() for layer in cache.layers for x in layer.dense()]


def assert_same(found: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    for x, y in zip(found, expected, strict=True):
        torch.testing.assert_close(x, y, atol=1e-5, rtol=1e-5)


def _crop(cache: KVMMCache, length: int) -> Callable:
    cache.crop(length - cache.get_seq_length())
    return lambda x: x[:, :, :length]


def _index(cache: KVMMCache, name: str, argument: Any, index: list[int]) -> Callable:
    getattr(cache, name)(argument)
    return lambda x: x[index]


def _there_and_back(cache: KVMMCache) -> Callable:
    for layer in cache.layers:
        layer.offload()
        layer.prefetch()
    return lambda x: x


OPERATIONS: dict[str, Callable] = {
    "crop-residual": lambda cache: _crop(cache, cache.get_seq_length() - 3),
    "crop-pages": lambda cache: _crop(cache, 50),
    "crop-media": lambda cache: _crop(cache, 20),
    "reorder": lambda cache: _index(cache, "reorder_cache", torch.tensor([1, 1]), [1, 1]),
    "repeat": lambda cache: _index(cache, "batch_repeat_interleave", 2, [0, 0, 1, 1]),
    "select": lambda cache: _index(cache, "batch_select_indices", torch.tensor([1]), [1]),
    "select-mask": lambda cache: _index(cache, "batch_select_indices", torch.tensor([True, False]), [0]),
    "offload": _there_and_back,
}


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("policy", policies())
def test_operations(policy, operation):
    model, cache, before = filled(policy)
    change = OPERATIONS[operation](cache)
    assert_same(decoded(cache), [change(x) for x in before])
    check(model, cache)


@pytest.mark.parametrize("policy", policies())
def test_reset_gives_the_same_again(policy):
    model, cache, before = filled(policy)
    cache.reset()
    assert cache.get_seq_length() == 0 and cache.memory().nbytes == 0
    generate(model, inputs("qwen2_5_omni", 2), past_key_values=cache, max_new_tokens=TOKENS)
    assert_same(decoded(cache), before)


@pytest.mark.parametrize("policy", policies())
def test_a_deep_copy_is_independent(policy):
    model, cache, before = filled(policy)
    twin = copy.deepcopy(cache)
    ids = torch.cat((torch.full((2, cache.get_seq_length()), 5), torch.arange(3, 83).reshape(2, 40)), 1)
    mask = torch.cat((torch.ones(2, cache.get_seq_length()), torch.ones(2, 40)), 1).long()
    generate(model, {"input_ids": ids, "attention_mask": mask}, past_key_values=twin, max_new_tokens=4)
    assert twin.get_seq_length() > cache.get_seq_length()
    assert_same(decoded(cache), before)


def tensors_of(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for one in value.values():
            yield from tensors_of(one)
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from tensors_of(one)


@pytest.mark.parametrize("policy", policies())
def test_offloading_moves_every_tensor(policy):
    """Moving to another device leaves nothing behind; ``meta`` stands for one."""
    _, cache, _ = filled(policy)
    for layer in cache.layers:
        layer._move("meta")
        owners = [vars(store) for part in layer.parts.values() for store in part.stores]
        owned = [x for owner in (vars(layer), *owners) for x in tensors_of({**owner, "_view": None})]
        assert owned and all(x.device.type == "meta" for x in owned)
        assert all(
            x.device.type == "meta" for p in layer.parts.values() for s in p.stores for x in s.packed.tensors.values()
        )


@pytest.mark.parametrize("policy", ["bf16", "balanced"])
def test_offloading_while_the_queries_are_on_their_way(policy, monkeypatch):
    """transformers fetches the next layer before ``update``, the first one after the last, and offloads a layer right
    after it, before a packed layer has been read."""
    model = build("qwen2_5_omni")
    arguments = inputs("qwen2_5_omni", 2)
    expected = generate(model, arguments, past_key_values=KVMMCache.for_model(model, stored_as(policy), **FIELDS))
    cache = KVMMCache.for_model(model, stored_as(policy), **FIELDS, offloading=True)
    places = []

    class Layer(type(cache.layers[0])):
        """A layer that believes its device is another one than the CPU, and notes its moves."""

        def lazy_initialization(self, key, value):
            super().lazy_initialization(key, value)
            self.device = torch.device("cpu:0")
            self.where = self.device

        def offload(self):
            self.offloaded = self.is_initialized
            if self.offloaded and not self._awaits_query:
                self._move("cpu")

        def _move(self, device):
            places.append((self.index, str(device)))
            super()._move("cpu")
            self.where = torch.device(device)

    for layer in cache.layers:
        layer.__class__ = Layer
    attend = KVMMCache.update

    def update(self, key, value, index, *args, **kwargs):
        self.layers[(index + 1) % len(self.layers)].prefetch()
        out = attend(self, key, value, index, *args, **kwargs)
        self.layers[index].offload()
        if not isinstance(out[0], torch.Tensor):  # its queries come: it must still be here
            assert str(self.layers[index].where) == "cpu:0"
        return out

    monkeypatch.setattr(KVMMCache, "update", update)
    assert torch.equal(generate(model, arguments, past_key_values=cache), expected)
    assert [(str(layer.where), layer.offloaded) for layer in cache.layers] == [("cpu:0", False), ("cpu", True)]
    assert {(i, place) for i in range(2) for place in ("cpu", "cpu:0")} == set(places)
    assert cache.layers[0].keys.shape[2] == cache.get_seq_length()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("policy", policies())
def test_offloading_on_a_gpu(policy):
    model = copy.deepcopy(build("qwen2_5_omni")).cuda()
    arguments = {name: x.cuda() for name, x in inputs("qwen2_5_omni", 2).items()}
    stored = get_policy(stored_as(policy), **FIELDS)
    same_buffers = KVMMCache(model.config, stored).attach(model)  # those that grow; equal up to rounding to fixed ones
    expected = generate(model, arguments, past_key_values=same_buffers)
    cache = KVMMCache.for_model(model, stored, offloading=True)
    assert torch.equal(generate(model, arguments, past_key_values=cache), expected)
    for layer, place in zip(cache.layers, ("cuda", "cpu"), strict=True):  # the first one was fetched for the next step
        stores = [store for part in layer.parts.values() for store in part.stores]
        assert {buffer.device.type for store in stores for buffer in store.buffers.values()} == {place}
