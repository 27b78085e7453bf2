"""Codes of pages in files, entropy-coded.

In memory a code takes the bits that its channel has. In a file it takes what it adds to what is known already: patches
of a page are like their neighbours and like other patches. The codes of one channel of one head are a stream
(:mod:`kvmm.kernels.entropy`); which earlier tokens a token is like is found once for all layers and written with the
tokens' modality. Codecs whose codes are not streams are written as they are.
"""

from __future__ import annotations

import numpy as np
import torch

from kvmm.cache.layer import KVMMLayer
from kvmm.cache.pages import PageStore
from kvmm.cache.state import CacheState
from kvmm.codecs.base import Packed
from kvmm.errors import KVMMError
from kvmm.fields import Field, check_fields
from kvmm.kernels.entropy import MAX_DISTANCE, compiled, decode_streams, encode_streams, find_like

Tensors = dict[str, torch.Tensor]
STREAMS, SIZES = "streams", "stream_sizes"
_FEATURES = 1024  # streams that tokens are compared by
_MOST = 64  # codes that a byte of a file may stand for, beside
_FREE = 1 << 20  # codes of a store


def encode_codes(cache: CacheState, tensors: Tensors) -> Tensors:
    """A file's tensors with the codes of pages as bytes of an entropy coder, where there is a compiler to do it.

    Args:
        cache: what is written.
        tensors: of the file, by name; those of ``layer.{index}.{modality}.{side}.`` are the stores'.

    Returns:
        other tensors: in place of codes ``streams`` uint8 ``[n]`` and ``stream_sizes`` int32 ``[B * H * C]``, and
        ``like.{modality}`` int16 ``[B, 2, T]``, how far back the tokens lie that a token is like.
    """
    if not compiled():
        return tensors
    tensors, stores = dict(tensors), _stores(cache)
    for modality in sorted({modality for _, modality, _, _ in stores}):
        own = [(index, side, store) for index, m, side, store in stores if m == modality]
        like = _like([store for _, _, store in own])
        distances, coded, saved = _distances(like), {}, 0
        for index, side, store in own:
            prefix = f"layer.{index}.{modality}.{side}."
            data, sizes = _encoded(store, like)
            names = [prefix + name for name in store.codec.stream_tensors if prefix + name in tensors]
            less = sum(tensors[name].nbytes for name in names) - data.nbytes - sizes.nbytes
            # of few tokens the sizes alone take more, and what is all the same would look made up to a reader
            if less > 0 and _plausible(sizes.numel() * like.shape[-1], data.numel()):
                saved += less
                coded |= {prefix + STREAMS: data, prefix + SIZES: sizes} | dict.fromkeys(names)
        if saved > distances.nbytes:
            tensors |= coded | {f"like.{modality}": distances}
    return {name: tensor for name, tensor in tensors.items() if tensor is not None}


def decode_codes(store: PageStore, shape: tuple[int, int, int, int], tensors: Tensors, like: torch.Tensor) -> Tensors:
    """The tensors of a store as they were before :func:`encode_codes`.

    Args:
        store: empty, of the codec and page size.
        shape: ``[B, H, T, D]`` that it has.
        tensors: that a file has of it.
        like: what the file has for the modality.

    Raises:
        KVMMError: with the name of a tensor that is not as it must be.
    """
    batch, heads, tokens, dim = shape
    bits = store.codec.stream_bits(dim)
    if bits is None:
        raise KVMMError(f"{STREAMS}: codec {store.codec.name} has none")
    check_fields({"like": like}, {"like": Field(torch.int16, (batch, 2, tokens), 0, MAX_DISTANCE + 1)})
    count = batch * heads * len(bits)
    fields = {STREAMS: Field(torch.uint8, ("n",)), SIZES: Field(torch.int32, (count,), 0)}
    check_fields(tensors, fields, closed=False)
    if not _plausible(count * tokens, tensors[STREAMS].numel()):
        raise KVMMError(f"{STREAMS}: are too few for the tokens")
    if (tensors[SIZES].sum() if count else 0) != tensors[STREAMS].numel():
        raise KVMMError(f"{SIZES}: are not those of the streams")
    found, data, sizes = [], tensors[STREAMS].cpu().numpy(), tensors[SIZES].cpu().numpy().astype(np.int64)
    every = bits.repeat(heads).numpy()
    for own, row in zip(_tokens(like.cpu()).numpy(), sizes.reshape(batch, -1), strict=True):
        mine, data = np.split(data, [int(row.sum())])
        found.append(decode_streams(mine, row, every, own).reshape(heads, len(bits), tokens))
    codes = torch.from_numpy(np.stack(found)).transpose(2, 3).contiguous()  # as kernels want what is made of them
    others = {name: tensor for name, tensor in tensors.items() if name not in (STREAMS, SIZES)}
    device = tensors[STREAMS].device
    return others | {n: x.to(device) for n, x in store.codec.from_streams(codes, store.page_size, device).items()}


def _plausible(codes: int, nbytes: int) -> bool:
    """Whether so few bytes may stand for so many codes, which a reader needs memory for."""
    return codes <= _MOST * nbytes + _FREE


def _stores(cache: CacheState) -> list[tuple[int, int, str, PageStore]]:
    """``(layer, modality, side, store)`` of all stores with streams."""
    found = []
    for index, layer in enumerate(cache.layers):
        if isinstance(layer, KVMMLayer) and layer.is_initialized:
            for modality, part in layer.parts.items():
                for side, store in (("key", part.key), ("value", part.value)):
                    bits = store.codec.stream_bits(layer.dense_key.shape[-1]) if type(store) is PageStore else None
                    if bits is not None and len(bits):
                        found.append((index, modality, side, store))
    return found


def _streams(store: PageStore) -> torch.Tensor:
    """uint8 ``[B, H, C, T]``."""
    packed = store.packed
    tensors = {name: tensor.cpu() for name, tensor in packed.tensors.items()}
    return store.codec.streams(Packed(tensors, packed.page_size)).transpose(2, 3)


def _like(stores: list[PageStore]) -> torch.Tensor:
    """int64 ``[B, 2, T]``: the tokens that tokens of a modality are like."""
    share = -(-_FEATURES // len(stores))
    features = []
    for store in stores:
        streams, bits = _streams(store), store.codec.stream_bits(store.packed["zero_point"].shape[-1])
        scaled = streams.flatten(1, 2)[:, :: max(1, streams.shape[1] * streams.shape[2] // share)]
        worth = (2.0 ** -bits.float()).repeat(streams.shape[1])[:: max(1, streams.shape[1] * streams.shape[2] // share)]
        features.append(scaled * worth[None, :, None])
    return torch.stack([find_like(own.T.contiguous()) for own in torch.cat(features, 1)])


def _distances(like: torch.Tensor) -> torch.Tensor:
    return (torch.arange(like.shape[-1]) - like).to(torch.int16)


def _tokens(distances: torch.Tensor) -> torch.Tensor:
    return torch.arange(distances.shape[-1]) - distances


def _encoded(store: PageStore, like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    streams = _streams(store).contiguous()
    bits = store.codec.stream_bits(store.packed["zero_point"].shape[-1]).repeat(streams.shape[1]).numpy()
    done = [encode_streams(x.flatten(0, 1).numpy(), bits, own.numpy()) for x, own in zip(streams, like, strict=True)]
    data, sizes = (torch.from_numpy(np.concatenate(parts)) for parts in zip(*done, strict=True))
    return data, sizes.to(torch.int32)


__all__ = ["STREAMS", "decode_codes", "encode_codes"]
