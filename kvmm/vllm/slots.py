"""Slots of a layer as its calibration has them: codes of rd or OScaR with fixed levels, and an exact token a block.

An engine that pages its cache writes tokens one by one, in any order, and never the same slot twice. So a slot is coded
from its token alone: the transform, the bits and the levels of every channel are those of the calibration file
(:mod:`kvmm.kernels.slots` says what the bytes are). A bit of each slot says that the vector was coded about zero and
not about the mean: language models have a few tokens whose keys and values are far shorter than all others', and about
the mean these are beyond every level, which more bits do not undo. rd has no use for it below ``ABOUT_ZERO_BITS``:
where levels are coarse, many an ordinary vector happens to lie nearer to those about zero, and what that saves in error
it costs in predictions (docs/vllm.md).
"""

from __future__ import annotations

import torch

from kvmm.calibration.data import Calibration
from kvmm.codecs.common.transform import offline_transform
from kvmm.codecs.rd.codec import RD
from kvmm.codecs.rd.levels import gaussian_levels
from kvmm.codecs.spec import Side, Site, spec
from kvmm.errors import KVMMError
from kvmm.kernels.hadamard import hadamard_matrix
from kvmm.kernels.quantize import GAUSSIAN_HALF_STEP
from kvmm.kernels.slots import NativeSlots, Rows, SlotFormat, SlotSide, reference
from kvmm.modality import TEXT

ABOUT_ZERO_BITS = 4  # of rd, from which on vectors may be coded about zero


def rd_side(calibration: Calibration, layer: int, side: Side, bits: float, modality: int = TEXT) -> SlotSide:
    """How rd codes one layer's keys or values.

    Args:
        calibration: of the model.
        layer: number of the layer.
        side: ``key`` or ``value``.
        bits: the average a channel over the whole model, as of :class:`RD`.
        modality: whose fit is taken; an engine does not say what its tokens are.

    Raises:
        KVMMError: the calibration has no fit of ``rd`` for the layer, or bits are not above 0 and at most 8.
    """
    one = spec("rd", bits, fit="offline", levels="fixed")
    RD.check(one)
    fitted = calibration.site("rd", layer, side, modality)
    if not fitted:
        raise KVMMError(f"The calibration has no fit of rd to the {side}s of layer {layer}; make one on text.")
    dim = int(fitted["transform"].shape[1])
    codec = RD(one, side, Site(layer, modality, calibration, sibling=one))
    transform = codec.transform(dim, torch.device("cpu"))
    layout = codec.layout(dim, transform)
    assert transform.deviation is not None  # of every fit that was read from a file
    scale, zero_point = gaussian_levels(layout, transform.deviation, torch.float16)
    offset, zero_point = transform.offset, zero_point[0, :, 0].float()
    if bits < ABOUT_ZERO_BITS:  # the mean in the levels: about zero is then about the mean, and never nearer
        offset, zero_point = torch.zeros_like(offset), zero_point + offset
    return SlotSide(
        forward=transform.forward,
        offset=offset,
        zero_point=zero_point,
        steps=scale[0, :, 0].float(),
        widths=layout.bits[: layout.coded],
        inverse=transform.inverse,
        norm=codec.uses_norm(transform),
    )


def oscar_side(calibration: Calibration, layer: int, side: Side, bits: float, modality: int = TEXT) -> SlotSide:
    """How a form of OScaR that needs no pages codes one layer's keys or values.

    As in OScaR vectors are rotated by a Hadamard matrix, their norm is divided out, and all channels get the same bits.
    Its ranges are those of a page, of every channel for keys and of every token for values. Here both have the levels
    that suit a Gaussian with the mean and deviation that each channel had in calibration, from rd's fit: a transform
    that makes channels uncorrelated, and their deviations, say what the covariance was.

    Args and errors as of :func:`rd_side`; bits are whole.
    """
    if not calibration.site("rd", layer, side, modality):
        raise KVMMError(f"The calibration has no fit of rd to the {side}s of layer {layer}; make one on text.")
    fitted = offline_transform(calibration, "rd", layer, side, modality, torch.device("cpu"))
    assert fitted is not None and fitted.deviation is not None
    heads, dim = fitted.deviation.shape
    rotation, width = hadamard_matrix(dim).float(), int(bits)
    root = rotation @ fitted.inverse * fitted.deviation.unsqueeze(-2)  # of the covariance, rotated
    variance = root.square().sum(-1)
    offset = (rotation @ fitted.inverse @ fitted.offset.unsqueeze(-1))[..., 0]
    if not fitted.norm:  # the fit is to vectors as they come
        length = (variance.sum(-1) + offset.square().sum(-1)).clamp_min(1e-12).sqrt().unsqueeze(-1)
        variance, offset = variance / length.square(), offset / length
    steps = (2 * GAUSSIAN_HALF_STEP[width] * variance.sqrt()).clamp_min(1e-6)
    return SlotSide(
        forward=rotation.expand(heads, -1, -1),
        offset=offset,
        zero_point=-steps * (2**width - 1) / 2,
        steps=steps,
        widths=torch.full((dim,), width),
        inverse=rotation.T.expand(heads, -1, -1),
        norm=True,
    )


_SIDES = {"rd": rd_side, "oscar": oscar_side}


class SlotCodec:
    """The slots of one layer's keys or values.

    Attributes:
        side: how they are coded.
        heads, dim: ``H`` and ``D``.
        nbytes: of one head's slot.
    """

    def __init__(self, side: SlotSide):
        self.side, self.heads, self.dim, self.nbytes = side, side.heads, side.dim, side.nbytes
        self._by_device: dict[torch.device, SlotSide] = {torch.device("cpu"): side}

    def on(self, device: torch.device) -> SlotSide:
        """The side with its tensors on a device."""
        if device not in self._by_device:
            self._by_device[device] = self.side.to(device)
        return self._by_device[device]

    def encode(self, x: torch.Tensor) -> torch.Tensor:
        """uint8 ``[T, H, nbytes]`` of keys or values ``[T, H, D]``."""
        return reference.encode(self.on(x.device), x)

    def decode(self, slots: torch.Tensor) -> torch.Tensor:
        """float32 ``[T, H, D]`` of slots uint8 ``[T, H, nbytes]``."""
        return reference.decode(self.on(slots.device), slots)


class LayerSlots:
    """Slots of one layer: keys, values, and the first token of every block in full precision.

    Language models attend to the first token of a text whatever comes after it, and its keys and values are unlike all
    others (attention sinks, arXiv 2309.17453). A slot does not know where in a sequence it lies, but the first token of
    a sequence is the first of a block: so that one is kept exact, in what the slots of the block have to spare.

    Args:
        calibration, layer, bits, modality: as of :func:`rd_side`.
        codec: ``rd`` or ``oscar``.
        block_size: tokens of a block.
        dtype: of keys and values.

    Attributes:
        nbytes: of one head's slot, keys and values and its share of the exact token, a multiple of 4.
    """

    def __init__(
        self,
        calibration: Calibration,
        layer: int,
        codec: str,
        bits: float,
        block_size: int,
        dtype: torch.dtype = torch.bfloat16,
        modality: int = TEXT,
    ):
        self.key = SlotCodec(_SIDES[codec](calibration, layer, "key", bits, modality))
        self.value = SlotCodec(_SIDES[codec](calibration, layer, "value", bits, modality))
        self.block_size, self.dtype = block_size, dtype
        self.form = SlotFormat(self.key.side, self.value.side, block_size, dtype)
        self.nbytes = self.form.nbytes
        self._native = NativeSlots(self.form)

    def on(self, device: torch.device) -> SlotFormat:
        """The format with its tensors on a device."""
        return SlotFormat(self.key.on(device), self.value.on(device), self.block_size, self.dtype)

    def write(self, cache: torch.Tensor, slots: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
        """Put tokens into their slots; arguments as of :func:`kvmm.kernels.slots.reference.write`."""
        if self._native.takes(cache, key, value):
            self._native.write(cache, slots, key, value)
        else:
            reference.write(self.on(cache.device), cache, slots, key, value)

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
        """Attention of new tokens of one sequence, as :func:`kvmm.kernels.slots.reference.attend`."""
        return reference.attend(self.on(cache.device), query, key, value, cache, blocks, past, scaling)

    def attend_rows(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        cache: torch.Tensor,
        blocks: torch.Tensor,
        rows: Rows,
        scaling: float,
    ) -> torch.Tensor | None:
        """Attention of some new tokens of many sequences in C, as :meth:`NativeSlots.attend`; None if it cannot."""
        if not self._native.takes(cache, query, key, value):
            return None
        return self._native.attend(query, key, value, cache, blocks, rows, scaling)


__all__ = ["ABOUT_ZERO_BITS", "LayerSlots", "SlotCodec", "oscar_side", "rd_side"]
