"""A token's keys or values of one layer as bytes of a slot: codes of rd with the calibration's levels.

An engine that pages its cache writes tokens one by one, in any order, and never the same slot twice. So a slot is coded
from its token alone: the transform, the bits and the levels of every channel are those of the calibration file. A slot
of one head has, after each other: the codes of its channels, a channel's bits lowest first and the channels one after
the other; a bit that says that the vector was coded about zero and not about the mean; in whole bytes; and the token's
norm in float16, where calibration found that norms pay. Language models have a few tokens whose keys and values are far
shorter than all others': about the mean they are beyond every level, which more bits do not undo.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kvmm.calibration.data import Calibration
from kvmm.codecs.rd.codec import RD
from kvmm.codecs.rd.levels import gaussian_levels
from kvmm.codecs.spec import Side, Site, spec
from kvmm.errors import KVMMError
from kvmm.modality import TEXT

_EPSILON = 1e-6  # of norms


class SlotCodec:
    """The slots of one layer's keys or values.

    Args:
        calibration: of the model.
        layer: number of the layer.
        side: ``key`` or ``value``.
        bits: the average a channel over the whole model, as of :class:`RD`.
        modality: whose fit is taken; an engine does not say what its tokens are.

    Attributes:
        heads, dim: ``H`` and ``D``.
        nbytes: of one head's slot.

    Raises:
        KVMMError: the calibration has no fit of ``rd`` for the layer, or bits are not above 0 and at most 8.
    """

    def __init__(self, calibration: Calibration, layer: int, side: Side, bits: float, modality: int = TEXT):
        one = spec("rd", bits, fit="offline", levels="fixed")
        RD.check(one)
        fitted = calibration.site("rd", layer, side, modality)
        if not fitted:
            raise KVMMError(f"The calibration has no fit of rd to the {side}s of layer {layer}; make one on text.")
        self.heads, self.dim = (int(n) for n in fitted["transform"].shape[:2])
        codec = RD(one, side, Site(layer, modality, calibration, sibling=one))
        transform = codec.transform(self.dim, torch.device("cpu"))
        layout = codec.layout(self.dim, transform)
        assert transform.deviation is not None  # of every fit that was read from a file
        scale, zero_point = gaussian_levels(layout, transform.deviation, torch.float16)
        self._norm = codec.uses_norm(transform)
        self._coded, widths = layout.coded, layout.bits[: layout.coded]
        self._code_bytes = -(-(int(widths.sum()) + 1) // 8)
        self.nbytes = self._code_bytes + 2 * self._norm
        channel = torch.repeat_interleave(torch.arange(layout.coded), widths)
        place = torch.arange(len(channel)) - (widths.cumsum(0) - widths)[channel]
        weights = torch.zeros(8 * self._code_bytes, layout.coded)
        weights[torch.arange(len(channel)), channel] = 2.0 ** place.float()
        steps = scale[0, :, 0].float()  # [H, C]
        values = torch.nn.functional.pad(weights * steps[:, None], (0, self.dim - layout.coded))
        values[:, len(channel)] = -transform.offset
        self._tables = _Tables(
            forward=transform.forward,
            offset=transform.offset,
            steps=steps,
            zero_point=zero_point[0, :, 0].float(),
            most=(2**widths - 1).float(),
            channel=channel,
            place=place,
            values=values,
            inverse=transform.inverse,
            bits=(torch.arange(256)[:, None] >> torch.arange(8) & 1).float(),
        )
        self._by_device: dict[torch.device, _Tables] = {torch.device("cpu"): self._tables}

    def _on(self, device: torch.device) -> _Tables:
        if device not in self._by_device:
            self._by_device[device] = self._tables.to(device)
        return self._by_device[device]

    def encode(self, x: torch.Tensor) -> torch.Tensor:
        """uint8 ``[T, H, nbytes]`` of keys or values ``[T, H, D]``."""
        on, x = self._on(x.device), x.float().transpose(0, 1)  # [H, T, D]
        norm = None
        if self._norm:
            norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True).clamp_min(_EPSILON).half()
            x = x / norm.float()
        channels = x @ on.forward.transpose(-1, -2)
        codes, error = self._rounded(channels - on.offset.unsqueeze(-2), on)
        short, short_error = self._rounded(channels, on)
        is_short = (short_error < error).unsqueeze(-1)
        codes = torch.where(is_short, short, codes)
        bits = torch.cat((codes[..., on.channel] >> on.place & 1, is_short.int()), -1)
        bits = torch.nn.functional.pad(bits, (0, 8 * self._code_bytes - bits.shape[-1]))
        weights = 1 << torch.arange(8, dtype=torch.int32, device=x.device)
        slots = (bits.unflatten(-1, (-1, 8)) * weights).sum(-1).to(torch.uint8)
        if norm is not None:
            slots = torch.cat((slots, norm.contiguous().view(torch.uint8)), -1)
        return slots.transpose(0, 1).contiguous()

    def _rounded(self, channels: torch.Tensor, on: _Tables) -> tuple[torch.Tensor, torch.Tensor]:
        """Codes int32 ``[H, T, C]`` of channels ``[H, T, D]`` about zero, and what their squared errors add up to."""
        above = channels - on.zero_point.unsqueeze(-2)
        coded = above[..., : self._coded] / on.steps.unsqueeze(-2)
        codes = coded.round().clamp_(min=0).minimum(on.most)
        error = ((coded - codes) * on.steps.unsqueeze(-2)).square().sum(-1)
        return codes.int(), error + above[..., self._coded :].square().sum(-1)

    def channels(self, slots: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """What slots hold, in the basis of the codes.

        Args:
            slots: uint8 ``[H, T, nbytes]``.

        Returns:
            float32 ``[H, T, D]``, for :meth:`transform_query` and :meth:`restore`, and norms float32 ``[H, T]`` that
            these are to be multiplied by, or None.
        """
        on = self._on(slots.device)
        bits = on.bits[slots[..., : self._code_bytes].int()].flatten(-2)
        found = bits @ on.values + (on.zero_point + on.offset).unsqueeze(-2)
        if not self._norm:
            return found, None
        return found, slots[..., self._code_bytes :].contiguous().view(torch.float16)[..., 0].float()

    def transform_query(self, query: torch.Tensor) -> torch.Tensor:
        """Queries float32 ``[H, Q, D]`` in the basis of the codes of keys."""
        return query @ self._on(query.device).inverse

    def restore(self, output: torch.Tensor) -> torch.Tensor:
        """Sums of values float32 ``[H, Q, D]`` in the basis of the codes, as values."""
        return output @ self._on(output.device).inverse.transpose(-1, -2)

    def decode(self, slots: torch.Tensor) -> torch.Tensor:
        """float32 ``[T, H, D]`` of slots uint8 ``[T, H, nbytes]``."""
        found, norm = self.channels(slots.transpose(0, 1))
        x = self.restore(found)
        return (x if norm is None else x * norm.unsqueeze(-1)).transpose(0, 1)


@dataclass
class _Tables:
    """What a device needs, such as ``bits`` float32 ``[256, 8]`` of a byte and ``values`` ``[H, 8 * bytes, D]``, what
    each bit of a slot adds to the channels."""

    forward: torch.Tensor
    offset: torch.Tensor
    steps: torch.Tensor
    zero_point: torch.Tensor
    most: torch.Tensor
    channel: torch.Tensor
    place: torch.Tensor
    values: torch.Tensor
    inverse: torch.Tensor
    bits: torch.Tensor

    def to(self, device: torch.device) -> _Tables:
        return _Tables(**{name: tensor.to(device) for name, tensor in vars(self).items()})


class LayerSlots:
    """Slots of one layer: keys, values, and the first token of every block in full precision.

    Language models attend to the first token of a text whatever comes after it, and its keys and values are unlike all
    others (attention sinks, arXiv 2309.17453). A slot does not know where in a sequence it lies, but the first token of
    a sequence is the first of a block: so that one is kept exact, in what the slots of the block have to spare.

    Args:
        calibration, layer, bits, modality: as of :class:`SlotCodec`.
        block_size: tokens of a block.
        dtype: of keys and values.

    Attributes:
        nbytes: of one head's slot, keys and values and its share of the exact token, a multiple of 4.
    """

    def __init__(
        self,
        calibration: Calibration,
        layer: int,
        bits: float,
        block_size: int,
        dtype: torch.dtype = torch.bfloat16,
        modality: int = TEXT,
    ):
        self.key = SlotCodec(calibration, layer, "key", bits, modality)
        self.value = SlotCodec(calibration, layer, "value", bits, modality)
        self.block_size, self.dtype = block_size, dtype
        self._codes = self.key.nbytes + self.value.nbytes
        self._exact = 2 * self.key.dim * dtype.itemsize
        self.nbytes = -(-(self._codes + -(-self._exact // block_size)) // 4) * 4

    def write(self, cache: torch.Tensor, slots: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
        """Put tokens into their slots.

        Args:
            cache: uint8 ``[blocks, H, block_size, nbytes]``.
            slots: int64 ``[T]``, ``block * block_size + place``; negative ones are not written.
            key, value: ``[T, H, D]``.
        """
        kept = slots >= 0
        if not bool(kept.all()):
            slots, key, value = slots[kept], key[kept], value[kept]
        block, place = slots // self.block_size, slots % self.block_size
        codes = torch.cat((self.key.encode(key), self.value.encode(value)), -1)
        cache[block, :, place, : self._codes] = codes
        first = (place == 0).nonzero()[:, 0]
        if first.numel():
            exact = torch.cat((key[first], value[first]), -1).to(self.dtype).view(torch.uint8)  # [n, H, bytes]
            spare = self.nbytes - self._codes
            exact = torch.nn.functional.pad(exact, (0, spare * self.block_size - exact.shape[-1]))
            cache[block[first], :, :, self._codes :] = exact.unflatten(-1, (self.block_size, spare))

    def attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        cache: torch.Tensor,
        blocks: torch.Tensor,
        past: int,
        scaling: float,
    ) -> torch.Tensor:
        """Causal attention of new tokens of one sequence over its slots and themselves.

        Args:
            query: ``[n, H_q, D]`` of the new tokens.
            key, value: ``[n, H, D]`` of the new tokens, which are read exactly.
            cache: uint8 ``[blocks, H, block_size, nbytes]``.
            blocks: int64 ``[m]`` of the sequence, in order.
            past: tokens that it has in slots.
            scaling: of scores.

        Returns:
            float32 ``[n, H_q, D]``.
        """
        count, heads = query.shape[0], key.shape[1]
        groups = query.shape[1] // heads
        # a head's queries one after the other: [H, groups * n, D]
        query = query.float().transpose(0, 1).unflatten(0, (heads, groups)).flatten(1, 2) * scaling
        own = query @ key.float().permute(1, 2, 0)
        later = torch.ones(count, count, dtype=torch.bool, device=query.device).triu(1)
        own = own.unflatten(1, (groups, count)).masked_fill_(later, -torch.inf).flatten(1, 2)
        values = value.float().transpose(0, 1)
        if not past:
            return self._by_token(own.softmax(-1) @ values, groups)
        held = cache[blocks[: -(-past // self.block_size)]]  # [m, H, block_size, nbytes]
        slots = held.transpose(0, 1).flatten(1, 2)[:, :past]
        keys, key_norm = self.key.channels(slots[..., : self.key.nbytes])
        scores = self.key.transform_query(query) @ keys.transpose(-1, -2)
        if key_norm is not None:
            scores = scores * key_norm.unsqueeze(1)
        exact = held[..., self._codes :].flatten(-2)[..., : self._exact].contiguous().view(self.dtype).float()
        exact_key, exact_value = exact.transpose(0, 1).chunk(2, -1)  # [H, m, D]
        scores[..., :: self.block_size] = query @ exact_key.transpose(-1, -2)
        probabilities = torch.cat((scores, own), -1).softmax(-1)
        packed, own = probabilities.split((past, count), -1)
        firsts = packed[..., :: self.block_size].clone()
        packed[..., :: self.block_size] = 0
        channels, norm = self.value.channels(slots[..., self.key.nbytes : self._codes])
        if norm is not None:
            packed = packed * norm.unsqueeze(1)
        return self._by_token(self.value.restore(packed @ channels) + firsts @ exact_value + own @ values, groups)

    @staticmethod
    def _by_token(output: torch.Tensor, groups: int) -> torch.Tensor:
        """``[n, H_q, D]`` of ``[H, groups * n, D]``."""
        return output.unflatten(1, (groups, -1)).flatten(0, 1).transpose(0, 1)


__all__ = ["LayerSlots", "SlotCodec"]
