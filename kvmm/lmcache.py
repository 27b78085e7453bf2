"""kvmm as a serde of LMCache: ``{"type": "kvmm_rd", "calibration": "model/kvmm_calibration.safetensors", "ratio": 8}``.

LMCache hands keys and values of a few hundred tokens to a serde before they go to a slower store (disk, Redis, S3), and
takes them from it when a prompt comes again. Importing this module registers the serde; see docs/lmcache.md.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from kvmm.calibration import read_calibration
from kvmm.codecs.rd.chunks import ChunkCodec
from kvmm.codecs.rd.fixed_chunks import FixedChunkCodec
from kvmm.errors import KVMMError

try:
    from lmcache.v1.distributed.api import MemoryLayoutDesc, ObjectKey
    from lmcache.v1.distributed.serde import (
        AsyncSerdeProcessor,
        Deserializer,
        SerdeProcessor,
        Serializer,
        get_registered_serde_types,
        register_serde_factory,
    )
    from lmcache.v1.memory_management import MemoryObj
except ImportError as error:
    raise KVMMError(
        f'kvmm.lmcache needs LMCache ({error}): pip install "kvmm[lmcache]", into the environment of the engine.'
    ) from None

SERDE = "kvmm_rd"
_OPTIONS = ("calibration", "ratio", "bits", "modality", "levels", "max_workers")


class RDSerializer(Serializer):
    """Keys and values to the bytes of :mod:`kvmm.codecs.rd.chunks`."""

    def __init__(self, codec: ChunkCodec | FixedChunkCodec):
        self._codec = codec

    def serialize(self, src: MemoryObj, dst: MemoryObj, key: ObjectKey) -> int:
        """Write the bytes of ``src`` ``[2, L, T, H * D]`` to ``dst``, and return how many.

        Raises:
            KVMMError: the tensor is not of the calibration's model, holds values that are not finite, or ``dst`` is too
                small.
        """
        kv, out = _tensor(src), _bytes(dst)
        data = self._codec.encode(kv.cpu())
        if len(data) > out.numel():
            raise KVMMError(f"A chunk of {len(data)} bytes does not go into {out.numel()}.")
        out[: len(data)].copy_(torch.from_numpy(data.copy()))
        return len(data)

    def estimate_serialized_size(self, layout_desc: MemoryLayoutDesc) -> int:
        """The bytes of a chunk with ``ratio``; with ``bits`` an upper bound."""
        if len(layout_desc.shapes) != 1:
            raise KVMMError("kvmm_rd stores one group of layers of equal heads; this model's cache has several.")
        return self._codec.nbytes(layout_desc.shapes[0], layout_desc.dtypes[0].itemsize)


class RDDeserializer(Deserializer):
    """Bytes of :class:`RDSerializer` to keys and values."""

    def __init__(self, codec: ChunkCodec | FixedChunkCodec):
        self._codec = codec

    def deserialize(self, src: MemoryObj, dst: MemoryObj, key: ObjectKey) -> None:
        """Fill ``dst`` ``[2, L, T, H * D]`` from the bytes in ``src``.

        Raises:
            KVMMError: the bytes are damaged or of something else; ``dst`` is then as it was.
        """
        kv = _tensor(dst)
        kv.copy_(self._codec.decode(_bytes(src).cpu().numpy(), kv.shape, kv.dtype))


def make_serde(options: Mapping[str, object]) -> SerdeProcessor:
    """What LMCache calls with the options of ``"serde"`` beside ``"type"``.

    Args:
        options: ``calibration``, a file of ``kvmm calibrate``; ``ratio``, how many times smaller all chunks are (8), or
            in its place ``bits``, the average a channel, for stores that read as many bytes as were written;
            ``modality``, whose fit is taken (``text``); ``levels``, ``span`` or ``fixed`` (``span``); ``max_workers``,
            threads (1).

    Raises:
        KVMMError: for an option that there is not or that has a wrong value.
    """
    if unknown := sorted(set(options) - set(_OPTIONS)):
        raise KVMMError(f"kvmm_rd has no option {unknown[0]!r}; it has: {', '.join(_OPTIONS)}.")
    path, workers = options.get("calibration"), options.get("max_workers", 1)
    modality, levels = options.get("modality", "text"), options.get("levels", "span")
    if not isinstance(path, str):
        raise KVMMError('kvmm_rd needs "calibration", a file that `kvmm calibrate` wrote for the model.')
    if "bits" in options and "ratio" in options:
        raise KVMMError(
            'kvmm_rd takes "ratio" (all chunks of one size) or "bits" (each as small as it gets), not both.'
        )
    name = "bits" if "bits" in options else "ratio"
    number = options.get(name, 8)
    if isinstance(number, bool) or not isinstance(number, (int, float)):
        raise KVMMError(f'kvmm_rd: "{name}" must be a number, not {number!r}.')
    if isinstance(workers, bool) or not isinstance(workers, int) or not 1 <= workers <= 1024:
        raise KVMMError(f'kvmm_rd: "max_workers" must be a number from 1 to 1024, not {workers!r}.')
    kind = ChunkCodec if name == "bits" else FixedChunkCodec
    codec = kind(read_calibration(path), number, str(modality), str(levels))
    return AsyncSerdeProcessor(RDSerializer(codec), RDDeserializer(codec), max_workers=workers)


def _tensor(memory: MemoryObj) -> torch.Tensor:
    if memory.tensor is None:
        raise KVMMError("kvmm_rd stores one group of layers of equal heads; this model's cache has several.")
    return memory.tensor


def _bytes(memory: MemoryObj) -> torch.Tensor:
    """The buffer uint8 ``[n]`` that bytes lie in."""
    data = _tensor(memory)
    if data.dtype != torch.uint8:
        raise KVMMError(f"A chunk's bytes lie in a buffer of uint8, not of {str(data.dtype)[6:]}.")
    return data.flatten()


if SERDE not in get_registered_serde_types():
    register_serde_factory(SERDE, make_serde)

__all__ = ["SERDE", "RDDeserializer", "RDSerializer", "make_serde"]
