"""Keys and values of all layers for a run of tokens, as bytes: rd's codes, entropy-coded.

What a store outside the model keeps of a prompt: no pages, no modalities, no positions. A chunk is read by itself, with
the calibration file it was written with. Its bytes are, little-endian:

- a header (:data:`_HEADER`): version, dtype, shape, bits, checksums of what follows and of the calibration;
- the sizes of the streams, uint32;
- the exact tokens, uint32, and their keys and values in the dtype that came;
- how far back the two tokens lie that each token is like, uint16 ``[2, T]``;
- per layer, keys then values: scale and zero point of the chunk's own levels, and norms, where the codec has them;
- the streams: the codes of all layers' channels of as many bits, keys and values apart, channel by channel.

A chunk has a few hundred tokens, too few for a stream per channel to learn from (:mod:`kvmm.cache.file_codes`);
channels of one number of bits have codes of the same distribution, since a level is a fixed share of a deviation.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from kvmm.calibration.data import Calibration
from kvmm.codecs.base import PAGE_SIZE, EncodeContext, Packed
from kvmm.codecs.rd.codec import RD
from kvmm.codecs.spec import Side, Site, spec
from kvmm.errors import KVMMError
from kvmm.kernels.entropy import decode_streams, encode_streams, find_like
from kvmm.modality_codes import MODALITY_NAMES

_HEADER = struct.Struct("<4sBBBxQIIIIIIfII")
_MAGIC, _VERSION = b"KVCH", 1
_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
_FAR = 16  # times the median distance from the mean, from which a token is kept exact
_SHARE = 32  # at most one token of so many is
_FEATURES = 1024  # channels that tokens are compared by
MAX_TOKENS = 1 << 16
SIDES: tuple[Side, Side] = ("key", "value")


@dataclass
class _Site:
    """The codec of one layer's keys or values, and ``bits`` uint8 ``[C]`` of its channels with codes."""

    codec: RD
    bits: torch.Tensor
    norm: bool


class ChunkCodec:
    """Encodes keys and values of all layers of a model and decodes them.

    Args:
        calibration: of the model.
        bits: the average a channel over the whole model, as of :class:`RD`.
        modality: whose fit is taken: a chunk does not say what its tokens are.
        levels: ``span`` (fitted to the chunk) or ``fixed`` (those of the calibration file).

    Attributes:
        layers, heads, dim: ``L``, ``H`` and ``D`` of the model.

    Raises:
        KVMMError: the calibration has no fit of ``rd`` for this modality in every layer, bits are not above 0 and at
            most 8, or levels are none.
    """

    def __init__(self, calibration: Calibration, bits: float = 2, modality: str = "text", levels: str = "span"):
        if modality not in MODALITY_NAMES:
            raise KVMMError(f"modality: must be one of {', '.join(MODALITY_NAMES)}, not {modality!r}.")
        one = spec("rd", bits, fit="offline", levels=levels)
        RD.check(one)
        code = MODALITY_NAMES.index(modality)
        layers = sorted({layer for layer, _ in calibration.sites("rd", code)})
        if not layers or layers != list(range(len(layers))):
            raise KVMMError(f"The calibration has no fit of rd to {modality} in every layer; make one on {modality}.")
        self.bits, self.span = float(bits), levels == "span"
        shape = calibration.site("rd", 0, "key", code)["transform"].shape
        self.layers, self.heads, self.dim = len(layers), int(shape[0]), int(shape[-1])
        self._sites: list[tuple[_Site, _Site]] = []
        for layer in layers:
            pair = []
            for side in SIDES:
                codec = RD(one, side, Site(layer, code, calibration, sibling=one))
                transform = codec.transform(self.dim, torch.device("cpu"))
                if transform.forward.shape != (self.heads, self.dim, self.dim):
                    raise KVMMError("The calibration's layers differ in heads or channels; chunks need equal ones.")
                pair.append(_Site(codec, codec.stream_bits(self.dim), codec.uses_norm(transform)))
            self._sites.append((pair[0], pair[1]))
        self._digest = zlib.crc32(f"{modality} {levels}".encode())
        for name in sorted(calibration.tensors):
            if name.startswith("rd."):
                tensor = calibration.tensors[name].contiguous()
                self._digest = zlib.crc32(tensor.view(-1).view(torch.uint8).numpy(), self._digest)

    # -- sizes ----------------------------------------------------------------------------------------------------

    def check_shape(self, shape: torch.Size | tuple[int, ...]) -> int:
        """The tokens of ``[2, L, T, H * D]``.

        Raises:
            KVMMError: for another shape.
        """
        wanted = (2, self.layers, self.heads * self.dim)
        if len(shape) != 4 or (shape[0], shape[1], shape[3]) != wanted or not 0 < shape[2] <= MAX_TOKENS:
            raise KVMMError(
                f"A chunk has shape {list(shape)} and the calibration is of [2, {wanted[1]}, tokens, {wanted[2]}], all "
                "layers and heads of the model."
            )
        return int(shape[2])

    def nbytes(self, shape: torch.Size | tuple[int, ...], itemsize: int) -> int:
        """An upper bound of the bytes of a chunk of a shape."""
        tokens = self.check_shape(shape)
        width = self.heads * self.dim
        fixed = _HEADER.size + 4 * len(list(self._groups())) + 4 * tokens
        exact = (tokens // _SHARE) * (4 + 2 * self.layers * width * itemsize)
        # a bit that is predicted as badly as can be takes 11
        codes = sum(count * tokens * bits * 11 // 8 + 16 for _, bits, count in self._groups())
        return fixed + exact + codes + self._parameter_nbytes(tokens)

    def _groups(self) -> Iterator[tuple[int, int, int]]:
        """``(side, bits, channels)`` of every stream, in order."""
        for side in range(2):
            widths = torch.cat([pair[side].bits for pair in self._sites])
            for bits in sorted(set(widths.tolist())):
                yield side, bits, self.heads * int((widths == bits).sum())

    def _parameter_nbytes(self, tokens: int) -> int:
        sites = [site for pair in self._sites for site in pair]
        levels = sum(2 * self.heads * (len(site.bits) + self.dim) for site in sites if self._fits_levels(tokens))
        return levels + sum(2 * self.heads * tokens for site in sites if site.norm)

    def _fits_levels(self, tokens: int) -> bool:
        """Whether a chunk has levels of its own; a page or less takes those of the calibration."""
        return self.span and tokens > PAGE_SIZE

    # -- encode ---------------------------------------------------------------------------------------------------

    def encode(self, kv: torch.Tensor) -> np.ndarray:
        """uint8 ``[n]`` of keys and values ``[2, L, T, H * D]``, bfloat16, float16 or float32, on the CPU.

        Raises:
            KVMMError: for another shape or dtype, or values that are not finite.
        """
        tokens = self.check_shape(kv.shape)
        if kv.dtype not in _DTYPES:
            raise KVMMError(f"A chunk is of {', '.join(str(d)[6:] for d in _DTYPES)}, not of {str(kv.dtype)[6:]}.")
        x = kv.view(2, self.layers, tokens, self.heads, self.dim).transpose(2, 3).float()  # [2, L, H, T, D]
        if not bool(x.isfinite().all()):
            raise KVMMError("A chunk holds values that are not finite; it is not stored.")
        exact = self._far(x)
        valid = torch.ones(1, tokens, dtype=torch.bool)
        valid[0, exact] = False
        if exact.numel():
            x[:, :, :, exact] = x[:, :, :, int(valid[0].nonzero()[0, 0]), None]  # seen by no statistics
        codes, parameters = self._codes(x, valid)
        like = self._like(codes)
        distances = (torch.arange(tokens) - like).to(torch.int32).numpy().astype("<u2")
        own = kv[:, :, exact].contiguous().view(torch.uint8).flatten().numpy()
        streams = []
        for side, bits, count in self._groups():
            found = [c[:, pair[side].bits == bits] for c, pair in zip(codes[side], self._sites, strict=True)]
            stream = torch.cat([c.flatten(0, 1) for c in found]).flatten().numpy()
            streams.append(encode_streams(stream[None], np.array([bits]), _along(like.numpy(), count))[0])
        sizes = np.array([len(one) for one in streams], "<u4")
        chosen = exact.numpy().astype("<u4")
        parts = [sizes, chosen, own, distances.flatten(), *parameters, *streams]
        body = b"".join(part.tobytes() for part in parts)
        kind = (_MAGIC, _VERSION, _DTYPES.index(kv.dtype), int(self._fits_levels(tokens)))
        shape = (self.layers, tokens, self.heads, self.dim, self.bits)
        header = _HEADER.pack(*kind, len(body), zlib.crc32(body), self._digest, *shape, len(chosen), len(sizes))
        return np.frombuffer(header + body, np.uint8)

    def _far(self, x: torch.Tensor) -> torch.Tensor:
        """Tokens far from all others, such as attention sinks: int64, ascending."""
        score = torch.zeros(x.shape[3])
        for side, layers in enumerate(x):
            for pair, own in zip(self._sites, layers, strict=True):
                transform = pair[side].codec.transform(self.dim, x.device)
                channels = own @ transform.forward.transpose(-1, -2) - transform.offset[:, None]
                distance = channels.square().sum((0, 2))
                score = torch.maximum(score, distance / distance.median().clamp_min(1e-30))
        most = x.shape[3] // _SHARE
        far, order = int((score > _FAR).sum()), score.argsort(descending=True)
        return order[: min(far, most)].sort().values

    def _codes(self, x: torch.Tensor, valid: torch.Tensor) -> tuple[list[list[torch.Tensor]], list[np.ndarray]]:
        """By side and layer the codes uint8 ``[H, C, T]``, and the other tensors in the order of the file."""
        tokens = x.shape[3]
        codes: list[list[torch.Tensor]] = [[], []]
        parameters = []
        for layer, pair in enumerate(self._sites):
            for side, site in enumerate(pair):
                packed = site.codec.encode(x[side, layer][None], EncodeContext(PAGE_SIZE, valid))
                if self._fits_levels(tokens):
                    parameters += [packed[name].numpy() for name in ("scale", "zero_point")]
                if site.norm:
                    parameters.append(packed["norm"].flatten(2)[:, :, :tokens].numpy())
                codes[side].append(site.codec.streams(packed)[0, :, :tokens].transpose(1, 2))
        return codes, [part.astype("<f2") for part in parameters]

    def _like(self, codes: list[list[torch.Tensor]]) -> torch.Tensor:
        """int64 ``[2, T]``: the tokens that tokens are like."""
        share = -(-_FEATURES // (2 * self.layers))
        features = []
        for side, found in enumerate(codes):
            for own, pair in zip(found, self._sites, strict=True):
                chosen, bits = own[:, :share], pair[side].bits[:share]  # the first ones have most bits
                features.append((chosen * (2.0 ** -bits.float())[:, None]).flatten(0, 1))
        return find_like(torch.cat(features).T.contiguous())

    # -- decode ---------------------------------------------------------------------------------------------------

    def decode(self, data: np.ndarray, shape: torch.Size | tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Keys and values of a shape and dtype from the bytes of :meth:`encode`; what follows them is passed over.

        Args:
            data: uint8 ``[n]``.
            shape: ``[2, L, T, H * D]``.
            dtype: that the chunk was written in.

        Raises:
            KVMMError: the bytes are damaged, incomplete, no chunk, of another shape, dtype, calibration or other bits.
        """
        tokens = self.check_shape(shape)
        body, exact_count, own_levels = self._checked(data, tokens, dtype)
        reader = _Reader(body)
        groups = list(self._groups())
        sizes = reader.take("<u4", len(groups)).astype(np.int64)
        exact = torch.from_numpy(reader.take("<u4", exact_count).astype(np.int64))
        if exact_count and (int(exact.max()) >= tokens or len(exact.unique()) != exact_count):
            raise KVMMError("The chunk's exact tokens are none of its tokens.")
        width = self.heads * self.dim
        raw = reader.take(np.uint8, exact_count * 2 * self.layers * width * dtype.itemsize)
        like = np.arange(tokens) - reader.take("<u2", 2 * tokens).reshape(2, tokens).astype(np.int64)
        parameters = self._read_parameters(reader, tokens, own_levels)
        if int(sizes.sum()) != reader.left:
            raise KVMMError("The chunk's streams are not of the sizes it says.")
        found: list[dict[int, torch.Tensor]] = [{}, {}]
        for (side, bits, count), size in zip(groups, sizes.tolist(), strict=True):
            stream = reader.take(np.uint8, size)
            codes = decode_streams(stream, np.array([size]), np.array([bits]), _along(like, count))
            found[side][bits] = torch.from_numpy(codes[0]).view(count, tokens)
        kv = torch.empty(2, self.layers, tokens, width, dtype=dtype)
        for side in range(2):
            at = dict.fromkeys(found[side], 0)
            for layer, pair in enumerate(self._sites):
                bits = pair[side].bits
                codes = torch.empty(self.heads, len(bits), tokens, dtype=torch.uint8)
                for width_bits in sorted(set(bits.tolist())):
                    mine = bits == width_bits
                    count = self.heads * int(mine.sum())
                    part = found[side][width_bits][at[width_bits] : at[width_bits] + count]
                    codes[:, mine] = part.view(self.heads, -1, tokens)
                    at[width_bits] += count
                x = self._restored(pair[side], codes, parameters[layer][side])
                kv[side, layer] = x.transpose(0, 1).reshape(tokens, width).to(dtype)
        if exact_count:
            kv[:, :, exact] = torch.from_numpy(raw.copy()).view(dtype).view(2, self.layers, exact_count, width)
        return kv

    @staticmethod
    def bits_of(data: np.ndarray) -> float | None:
        """The bits that a chunk says it has; None if it is none."""
        fields = _HEADER.unpack(data[: _HEADER.size].tobytes()) if len(data) >= _HEADER.size else (b"",)
        return float(fields[-3]) if fields[0] == _MAGIC else None

    def _checked(self, data: np.ndarray, tokens: int, dtype: torch.dtype) -> tuple[memoryview, int, bool]:
        """The bytes behind the header, the number of exact tokens, and whether levels are the chunk's own."""
        if len(data) < _HEADER.size:
            raise KVMMError("The bytes are no chunk that kvmm wrote.")
        fields = _HEADER.unpack(data[: _HEADER.size].tobytes())
        magic, version, code, own_levels, size, checksum, digest, *shape, bits, exact, streams = fields
        if magic != _MAGIC:
            raise KVMMError("The bytes are no chunk that kvmm wrote.")
        if version != _VERSION:
            raise KVMMError(f"The chunk has format {version} and this kvmm reads {_VERSION}.")
        if digest != self._digest or bits != np.float32(self.bits):
            raise KVMMError("The chunk was written with another calibration file, modality, levels or bits.")
        wanted = [self.layers, tokens, self.heads, self.dim]
        if shape != wanted:
            raise KVMMError(f"The chunk has layers, tokens, heads and channels {shape}, not {wanted}.")
        if code >= len(_DTYPES) or _DTYPES[code] != dtype:
            raise KVMMError(f"The chunk is of another dtype than {str(dtype)[6:]}.")
        if exact > tokens // _SHARE or streams != len(list(self._groups())):
            raise KVMMError("The chunk's counts are not what its shape allows.")
        if own_levels != int(self._fits_levels(tokens)) or size > len(data) - _HEADER.size:
            raise KVMMError("The chunk is not complete.")
        body = memoryview(np.ascontiguousarray(data[_HEADER.size : _HEADER.size + size]))
        if zlib.crc32(body) != checksum:
            raise KVMMError("The chunk is damaged (its checksum differs).")
        return body, exact, bool(own_levels)

    def _read_parameters(self, reader: _Reader, tokens: int, own_levels: bool) -> list[list[dict[str, torch.Tensor]]]:
        """By layer and side ``scale`` ``[1, H, G, C]``, ``zero_point`` ``[1, H, G, D]`` and ``norm``."""
        groups, pages = int(own_levels), -(-tokens // PAGE_SIZE)
        found = []
        for pair in self._sites:
            sides = []
            for site in pair:
                own = {}
                for name, width in (("scale", len(site.bits)), ("zero_point", self.dim)):
                    own[name] = reader.floats(1, self.heads, groups, width)
                if site.norm:
                    norm = reader.floats(1, self.heads, tokens)
                    norm = torch.nn.functional.pad(norm, (0, pages * PAGE_SIZE - tokens))
                    own["norm"] = norm.unflatten(2, (pages, PAGE_SIZE))
                sides.append(own)
            found.append(sides)
        return found

    def _restored(self, site: _Site, codes: torch.Tensor, parameters: dict[str, torch.Tensor]) -> torch.Tensor:
        """float32 ``[H, T, D]``."""
        tokens = codes.shape[2]
        pages, group = -(-tokens // PAGE_SIZE), parameters["scale"].shape[2] - 1
        padded = torch.nn.functional.pad(codes, (0, pages * PAGE_SIZE - tokens)).transpose(1, 2)[None]
        device = torch.device("cpu")
        tensors = parameters | site.codec.from_streams(padded.contiguous(), PAGE_SIZE, device)
        page_group = torch.full((pages,), group, dtype=torch.int32)
        return site.codec.decode(Packed(tensors, PAGE_SIZE, page_group, shared_group=group))[0, :, :tokens]


class _Reader:
    """The parts of a chunk, one after the other."""

    def __init__(self, data: memoryview):
        self._data, self._at = data, 0

    @property
    def left(self) -> int:
        return len(self._data) - self._at

    def take(self, dtype: str | type, count: int) -> np.ndarray:
        size = np.dtype(dtype).itemsize * count
        if size > self.left:
            raise KVMMError("The chunk is not complete.")
        self._at += size
        return np.frombuffer(self._data[self._at - size : self._at], dtype)

    def floats(self, *shape: int) -> torch.Tensor:
        """float16, finite."""
        values = torch.from_numpy(self.take("<f2", int(np.prod(shape))).astype(np.float16)).view(shape)
        if not bool(values.isfinite().all()):
            raise KVMMError("The chunk holds values that are not finite.")
        return values


def _along(like: np.ndarray, channels: int) -> np.ndarray:
    """int32 ``[2, channels * T]``: ``like`` ``[2, T]`` for channels one after the other in one stream."""
    tokens = like.shape[1]
    if (like < 0).any() or (like[:, 1:] >= np.arange(1, tokens)).any():
        raise KVMMError("The chunk's tokens are like none before them.")
    found = like[:, None] + tokens * np.arange(channels)[:, None]
    found[:, :, 0] = np.maximum(tokens * np.arange(channels) - 1, 0)
    return found.reshape(2, -1).astype(np.int32)


__all__ = ["MAX_TOKENS", "ChunkCodec"]
