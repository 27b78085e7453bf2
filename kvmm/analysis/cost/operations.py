"""Operations of attention over a packed cache: of one decoded token, and of packing one.

They follow, for any shape and policy, from what codecs say of themselves (their basis) and from the tensors they store.
One operation is a multiply-add; an addition of a fast Hadamard transform and a division count as one too. With ``H_q``
query heads and ``H`` KV heads of ``D`` channels, ``R = H_q / H``, and ``T`` tokens seen, of one layer and sequence:

============  ==========================================  ==========================================================
decoding      ``qk``, ``pv``                              ``H_q D T`` each, in every policy
              ``rotation``, keys and values each          ``H_q D log2 D`` (Hadamard) or ``H_q D^2`` (a matrix), once
                                                          for all stores of one basis
              ``scale``                                   ``R`` times the scales and zero points that are stored
              ``norm``                                    ``R`` times the token norms (radii) that are stored
packing       ``rotation``                                ``H D log2 D`` or ``H D^2`` per token, keys and values each
              ``norm``                                    ``2 H D`` per token, of the sides that store one
              ``quantize``                                ``3 H D`` per token, of the sides that store a zero point
============  ==========================================  ==========================================================

Keys that are rotated across heads (RotateKV) have longer queries: ``D`` times that length in place of ``D^2``. The
model's own matrices are left out, and so are the softmax, unpacking bits, code book searches, fits of levels,
CalibQuant's logit calibration, and transforms that are fitted to the prompt (codec rd with ``fit="prompt"``).

How OScaR's paper counts, and its figures: :mod:`kvmm.analysis.cost.paper_operations`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from functools import lru_cache
from math import log2
from typing import Any

import torch

from kvmm.analysis.cost.model import CostModel, store_nbytes
from kvmm.analysis.cost.shapes import ModelShape
from kvmm.codecs import Codec, EncodeContext, Site, build_codec
from kvmm.modality import MODALITY_NAMES
from kvmm.policy import CodecSpec

_NORMS = ("norm", "radius")
_PARAMETERS = ("scale", "zero_point", *_NORMS)


@dataclass(frozen=True)
class _Counts:
    @property
    def total(self) -> int:
        """All of them."""
        return sum(getattr(self, one.name) for one in fields(self))

    def to_dict(self) -> dict[str, int]:
        """Plain numbers with their total, for JSON."""
        return asdict(self) | {"total": self.total}


@dataclass(frozen=True)
class DecodeOperations(_Counts):
    """Operations of one decoded token of one sequence, all layers together.

    Attributes:
        qk: query times keys, ``H_q * D`` a token that is seen.
        pv: probabilities times values, as many.
        rotation: the query into the bases of the keys, and the output back from those of the values.
        scale: scales and zero points, one operation a parameter that is stored and query head that reads it.
        norm: scores times the norm of their token, likewise.
    """

    qk: int
    pv: int
    rotation: int
    scale: int
    norm: int


@dataclass(frozen=True)
class PackOperations(_Counts):
    """Operations of packing one token of one sequence, all layers together.

    Attributes:
        rotation: of its keys and values.
        norm: ``2 D`` per vector whose norm is stored: squares, and the division.
        quantize: ``3 D`` a vector of an affine code: two comparisons for the range, one operation to the level.
            Searches in code books (codecs that store no zero point) are not counted.
    """

    rotation: int
    norm: int
    quantize: int


def decode_operations(model: CostModel, tokens: Mapping[str, int]) -> DecodeOperations:
    """Count one decode step.

    Args:
        model: shape and policy.
        tokens: tokens of one sequence by modality, those that the step reads.
    """
    shape, split = model.shape, model.split(tokens)
    length = sum(tokens.values())
    heads, dim = shape.num_attention_heads, shape.head_dim
    group = heads // shape.num_key_value_heads
    window = min(length, shape.sliding_window)
    product = heads * (dim * shape.num_layers * length + shape.sliding_heads[1] * shape.num_sliding_layers * window)
    rotation = scale = norm = 0
    for index in shape.layer_indices:
        bases: dict[Any, int] = {}  # stores of equal basis share one transform
        for modality, (count, page_size) in split.packed.items():
            for codec in _codecs(model, index, modality):
                bases[codec.side, codec.transform_id] = heads * _rotation(codec, shape)
                elements = _elements(model, codec, page_size, count)
                scale += group * (elements.get("scale", 0) + elements.get("zero_point", 0))
                norm += group * sum(elements.get(name, 0) for name in _NORMS)
        rotation += sum(bases.values())
    return DecodeOperations(product, product, rotation, scale, norm)


def pack_operations(model: CostModel, modality: str = "text") -> PackOperations:
    """Count the packing of one token of a modality."""
    shape, code = model.shape, MODALITY_NAMES.index(modality)
    vectors, dim = shape.num_key_value_heads, shape.head_dim
    rotation = norm = quantize = 0
    for index in shape.layer_indices:
        for codec in _codecs(model, index, code):
            elements = _elements(model, codec, 128, 128)
            rotation += vectors * _rotation(codec, shape)
            norm += 2 * dim * vectors * any(name in elements for name in _NORMS)
            quantize += 3 * dim * vectors * ("zero_point" in elements)
    return PackOperations(rotation, norm, quantize)


def _codecs(model: CostModel, index: int, modality: int) -> tuple[Codec, Codec]:
    kv = model.policy.specs(modality, index, model.shape.total_layers)
    return (
        build_codec(kv.key, "key", Site(index, modality, model.calibration, kv.value)),
        build_codec(kv.value, "value", Site(index, modality, model.calibration, kv.key)),
    )


def _rotation(codec: Codec, shape: ModelShape) -> int:
    """Operations of the change of basis of one head's vector: ``D log2 D`` for a Hadamard transform, else a matrix."""
    if codec.transform_id == "identity":
        return 0
    dim = shape.head_dim
    if codec.transform_id == "hadamard":
        return round(dim * log2(dim))
    if codec.side == "value":
        return dim * dim
    # keys rotated across heads have longer queries
    return dim * codec.transform_query(torch.zeros(1, shape.num_key_value_heads, 1, dim)).shape[-1]


def _elements(model: CostModel, codec: Codec, page_size: int, count: int) -> dict[str, int]:
    """How many scales, zero points and norms a store of ``count`` tokens of one sequence holds."""
    shape = (model.shape.num_key_value_heads, model.shape.head_dim)
    sizes = store_nbytes(codec.spec, codec.side, codec.site, shape, model.dtype, page_size, count)
    widths = _item_sizes(codec.spec, codec.side, codec.site, shape, model.dtype)
    return {name: nbytes // widths[name] for name, nbytes in sizes.items() if name in _PARAMETERS and nbytes}


@lru_cache(maxsize=1024)
def _item_sizes(spec: CodecSpec, side: Any, site: Site, shape: tuple[int, int], dtype: torch.dtype) -> dict[str, int]:
    noise = torch.randn(1, shape[0], 128, shape[1], generator=torch.Generator().manual_seed(0)).to(dtype)
    packed = build_codec(spec, side, site).encode(noise, EncodeContext(128))
    return {name: tensor.element_size() for name, tensor in packed.tensors.items()}
