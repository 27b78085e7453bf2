"""The cost of a KV cache, computed without one: bytes by policy and context, and the longest context of a budget.

Bytes are those of a cache right after its prompt is packed, by the definition of :mod:`kvmm.cache.memory`; they do not
include reserved but empty slots of buffers. The token rules (sinks, residual, page sizes) are those of
:mod:`kvmm.cache.token_table`; what a codec stores is measured on its own
store: a tensor of a few pages is encoded, and a second one of a period more, and the rest follows since stores grow by
the same bytes every period. So a codec that is added needs nothing here.

Two things are not in these figures: on CUDA the planes of codec rd are padded to 16 digits; and codecs whose tensors
depend on the data are measured on noise.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from math import lcm, prod
from typing import Any

import torch

from kvmm.analysis.cost.shapes import ModelShape
from kvmm.cache.pages import PageStore
from kvmm.calibration import Calibration
from kvmm.codecs import Site, build_codec
from kvmm.codecs.base import Codec, page_size_for
from kvmm.errors import KVMMError
from kvmm.kernels.exact import exact_dtype
from kvmm.modality import MODALITY_NAMES, TEXT
from kvmm.policy import CodecSpec, KVPolicy, KVSpec, check_head_dim, check_layers, get_policy
from kvmm.policy.calibrated import wants_fit, without_fit

_PERIOD = 512  # tokens: a multiple of every page size
LONGEST = 1 << 30  # tokens; no search goes beyond


@dataclass(frozen=True)
class CacheCost:
    """Predicted memory, in the terms of :class:`kvmm.cache.memory.MemoryReport`.

    Attributes:
        policy: its name.
        stored_as: what a policy that needs a calibration file stores instead where there is none, else the same name.
        tokens: tokens of one sequence by modality.
        batch: sequences.
        nbytes: bytes that the whole cache holds.
        nbytes_dense: bytes of the same keys and values in two bytes each, sliding windows as they are.
        by_component: bytes by component, as in ``memory().by_component``.
        packed_tokens: tokens in packed pages, of all sequences.
        packed_bits_per_value: bits of the packed pages alone over the elements of their tokens; 0 without any.
    """

    policy: str
    stored_as: str
    tokens: dict[str, int]
    batch: int
    nbytes: int
    nbytes_dense: int
    by_component: dict[str, int] = field(default_factory=dict)
    packed_tokens: int = 0
    packed_bits_per_value: float = 0.0

    @property
    def context(self) -> int:
        """Tokens of one sequence."""
        return sum(self.tokens.values())

    @property
    def ratio(self) -> float:
        """How many times smaller than in full precision."""
        return self.nbytes_dense / max(self.nbytes, 1)

    @property
    def bits_per_value(self) -> float:
        """Bits of ``nbytes`` over the number of keys' and values' elements."""
        return 16 * self.nbytes / max(self.nbytes_dense, 1)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        derived = {"context": self.context, "ratio": self.ratio, "bits_per_value": self.bits_per_value}
        return asdict(self) | derived


@dataclass(frozen=True)
class Split:
    """How one sequence lies in a packed cache.

    Attributes:
        dense: full-precision columns, sinks among them.
        sinks: the sinks.
        packed: modality -> ``(tokens, page_size)``.
    """

    dense: int
    sinks: int
    packed: dict[int, tuple[int, int]]


def split_tokens(policy: KVPolicy, tokens: Mapping[str, int], opens_pages: bool = False) -> Split:
    """The split of :meth:`kvmm.cache.token_table.TokenTable.plan` for a prompt that begins with its text.

    Args:
        policy: gives ``num_sink_tokens``, ``residual_length``, ``flush_length`` and ``mixed_modalities``.
        tokens: tokens of one sequence by modality.
        opens_pages: whether all codecs of text can add tokens to a page that is not full.
    """
    left, missing, sinks = {m: tokens.get(name, 0) for m, name in enumerate(MODALITY_NAMES)}, policy.num_sink_tokens, 0
    if policy.mixed_modalities:
        left = {m: sum(left.values()) if m == TEXT else 0 for m in left}
    for modality in left:
        taken = min(missing, left[modality])
        left[modality] -= taken
        missing, sinks = missing - taken, sinks + taken
    surplus = max(0, left[TEXT] - policy.residual_length)
    page, unit = policy.text_page(opens_pages)
    packed = {TEXT: (surplus // unit * unit, page)}
    packed |= {m: (count, page_size_for(count)) for m, count in left.items() if m != TEXT}
    packed = {m: (count, size) for m, (count, size) in packed.items() if count}
    return Split(sinks + left[TEXT] - packed.get(TEXT, (0, 0))[0], sinks, packed)


class CostModel:
    """The memory of one model shape under one policy, at any context.

    Args:
        shape: the model's.
        policy: a preset's name, a YAML file, or a :class:`KVPolicy`.
        calibration: the model's calibration; without it, policies that need one use their uncalibrated specs.
        dtype: of the model, which sliding windows keep; of 2 bytes in all tables.

    Raises:
        KVMMError: for an unknown policy, one that the shape cannot have, or one with ``budget``, whose pages shrink
            with what attention they get.
    """

    def __init__(
        self,
        shape: ModelShape,
        policy: str | KVPolicy,
        calibration: Calibration | None = None,
        dtype: torch.dtype = torch.bfloat16,
    ):
        asked = get_policy(policy)
        if asked.budget is not None:
            raise KVMMError(f"Policy {asked.name!r} has a budget, which is its memory: plan it without.")
        self.name = asked.name
        self.policy = without_fit(asked, calibration)
        fallen_back = asked.uncalibrated is not None and self.policy != replace(asked, uncalibrated=None)
        self.stored_as = asked.uncalibrated if fallen_back else asked.name
        self.needs_calibration = wants_fit(asked, calibration)
        check_layers(self.policy, shape.total_layers)
        check_head_dim(self.policy, shape.head_dim)
        self.shape, self.calibration, self.dtype = shape, calibration, dtype
        self.exact_dtype = exact_dtype(self.policy.exact_dtype, dtype)
        kinds = self._layer_kinds(TEXT)
        self.opens_pages = all(codec.opens_pages for kv, layer in kinds for codec in self._codecs(kv, layer, TEXT))

    def split(self, tokens: Mapping[str, int]) -> Split:
        """How one sequence of so many tokens by modality lies in a packed cache."""
        return split_tokens(self.policy, tokens, self.opens_pages)

    def cost(self, tokens: Mapping[str, int], batch: int = 1) -> CacheCost:
        """Bytes of a packed cache.

        Args:
            tokens: tokens of one sequence by modality (``text``, ``image``, ``video``, ``audio``).
            batch: sequences, all alike.

        Raises:
            KVMMError: for counts below 0, an unknown modality or a batch below 1.
        """
        _check_counts(tokens, batch)
        shape, split, width = self.shape, self.split(tokens), self.dtype.itemsize
        exact = self.exact_dtype.itemsize
        length = sum(tokens.values())
        vector = 2 * shape.num_key_value_heads * shape.head_dim  # elements a token and layer
        column = batch * shape.num_layers * vector * exact
        component_nbytes: Counter[str] = Counter(
            sink=split.sinks * column, residual=(split.dense - split.sinks) * column
        )
        slots, packed = split.dense, 0
        for modality, (count, page_size) in split.packed.items():
            slots += -(-count // page_size) * page_size
            for (kv, layer), layers in self._layer_kinds(modality).items():
                for name, nbytes in self._part(kv, layer, modality, page_size, count, batch).items():
                    component_nbytes[name] += layers * nbytes
                    packed += layers * nbytes
        component_nbytes["page_table"] += batch * (length + 4 * slots)  # one modality per token, one position per slot
        if shape.num_sliding_layers:
            # what lies in memory once a token was decoded; a window's newest token makes the oldest leave
            window = (
                min(length, shape.sliding_window) * batch * shape.num_sliding_layers * 2 * prod(shape.sliding_heads)
            )
            component_nbytes["sliding"] = window * width
        nbytes_dense = 2 * batch * shape.num_layers * vector * length
        nbytes_dense += 2 * component_nbytes["sliding"] // width
        components = {name: nbytes for name, nbytes in component_nbytes.items() if nbytes}
        counts = {name: tokens[name] for name in MODALITY_NAMES if tokens.get(name)}
        in_pages = batch * sum(count for count, _ in split.packed.values())
        return CacheCost(
            *(self.name, self.stored_as, counts, batch, sum(components.values()), nbytes_dense, components),
            packed_tokens=in_pages,
            packed_bits_per_value=8 * packed / (in_pages * shape.num_layers * vector) if in_pages else 0.0,
        )

    def longest_context(self, budget: int, media: Mapping[str, int] | None = None, batch: int = 1) -> int | None:
        """The most tokens of one sequence that fit: all media, and as much text as fits beside them.

        Args:
            budget: bytes of the whole cache.
            media: tokens of one sequence by modality; text among them is not counted.
            batch: sequences, all alike.

        Returns:
            Tokens, media included; None if the media alone exceed the budget.
        """
        media = {name: count for name, count in (media or {}).items() if name != "text"}

        def fits(text: int) -> bool:
            return self.cost({**media, "text": text}, batch).nbytes <= budget

        if not fits(0):
            return None
        # Whole pages first: between two of them bytes go up and down with the residual.
        start, page = self.policy.num_sink_tokens + self.policy.residual_length, 128
        if fits(start):
            start += page * _last(lambda pages: fits(start + page * pages), LONGEST // page)
            text = start + _last(lambda more: fits(start + more), page - 1)
        else:
            text = _last(fits, start)
        return text + sum(media.values())

    def _layer_kinds(self, modality: int) -> Counter[tuple[KVSpec, int]]:
        """How many layers store what. With a calibration every layer is a kind of its own."""
        indices, total = self.shape.layer_indices, self.shape.total_layers
        return Counter(
            (self.policy.specs(modality, index, total), index if self.calibration is not None else 0)
            for index in indices
        )

    def _codecs(self, kv: KVSpec, layer: int, modality: int) -> tuple[Codec, Codec]:
        return (
            build_codec(kv.key, "key", Site(layer, modality, self.calibration, kv.value)),
            build_codec(kv.value, "value", Site(layer, modality, self.calibration, kv.key)),
        )

    def _part(self, kv: KVSpec, layer: int, modality: int, page_size: int, count: int, batch: int) -> dict[str, int]:
        component_nbytes: Counter[str] = Counter()
        for spec, side, sibling in ((kv.key, "key", kv.value), (kv.value, "value", kv.key)):
            site = Site(layer, modality, self.calibration, sibling)
            shape = (self.shape.num_key_value_heads, self.shape.head_dim)
            if spec.is_lossless:  # the end of the last page is empty
                component_nbytes["values"] += batch * count * shape[0] * shape[1] * self.exact_dtype.itemsize
                continue
            for name, nbytes in store_nbytes(spec, side, site, shape, self.exact_dtype, page_size, count).items():
                # the page table of a store is the same for all sequences
                component_nbytes[name] += nbytes if name == "page_table" else batch * nbytes
        return component_nbytes


def store_nbytes(
    spec: CodecSpec, side: Any, site: Site, shape: tuple[int, int], dtype: torch.dtype, page_size: int, tokens: int
) -> dict[str, int]:
    """Bytes of a codec's store of ``tokens`` tokens of one sequence, by tensor.

    Args:
        spec, side, site: as for :func:`kvmm.codecs.build_codec`.
        shape: KV heads and head_dim.
        dtype: of exact tokens.
        page_size: tokens per page.
        tokens: tokens that are appended at once.
    """
    period = lcm(_PERIOD, spec.group_size or 1, *(v for _, v in spec.options if type(v) is int and 32 <= v <= 4096))
    periods = max(0, tokens // period - 2)
    first = tokens - periods * period  # of the same remainder, and at most three periods
    sizes = dict(_measured(spec, side, site, shape, dtype, page_size, first))
    if periods:
        # the growth does not depend on the remainder
        two_periods, three_periods = (_measured(spec, side, site, shape, dtype, page_size, n * period) for n in (2, 3))
        before = dict(two_periods)
        for name, nbytes in three_periods:
            sizes[name] = sizes.get(name, 0) + periods * (nbytes - before.get(name, 0))
    return sizes


@lru_cache(maxsize=4096)
def _measured(
    spec: CodecSpec, side: Any, site: Site, shape: tuple[int, int], dtype: torch.dtype, page_size: int, tokens: int
) -> tuple[tuple[str, int], ...]:
    heads, dim = shape
    noise = torch.randn(1, heads, tokens, dim, generator=torch.Generator().manual_seed(0)).to(dtype)
    store = PageStore.for_codec(build_codec(spec, side, site), page_size)
    store.append(noise)
    return tuple(store.nbytes().items())


def _last(holds: Callable[[int], bool], most: int) -> int:
    """The largest number up to ``most`` at which ``holds`` is true, which it is at 0, and false beyond."""
    low, high = 0, 1
    while high <= most and holds(high):
        low, high = high, 2 * high
    high = min(high, most + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def _check_counts(tokens: Mapping[str, int], batch: int) -> None:
    if wrong := [name for name in tokens if name not in MODALITY_NAMES]:
        raise KVMMError(f"There is no modality {wrong[0]!r}: count tokens of {', '.join(MODALITY_NAMES)}.")
    if batch < 1 or any(count < 0 for count in tokens.values()) or not 0 <= sum(tokens.values()) <= 2 * LONGEST:
        raise KVMMError("Tokens must be 0 or more, 2^31 at most, and the batch 1 or more.")
