"""Slots in torch: what they are, and the path of devices without a kernel."""

from __future__ import annotations

import torch

from kvmm.kernels.slots.format import EPSILON, SlotFormat, SlotSide


def encode(side: SlotSide, x: torch.Tensor) -> torch.Tensor:
    """uint8 ``[T, H, nbytes]`` of keys or values ``[T, H, D]``."""
    x = x.float().transpose(0, 1)  # [H, T, D]
    norm = None
    if side.norm:
        norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True).clamp_min(EPSILON).half()
        x = x / norm.float()
    channels = x @ side.forward.transpose(-1, -2)
    codes, error = _rounded(side, channels - side.offset.unsqueeze(-2))
    short, short_error = _rounded(side, channels)
    is_short = (short_error < error).unsqueeze(-1)
    codes = torch.where(is_short, short, codes)
    bits = torch.cat((codes[..., side.channel] >> side.place & 1, is_short.int()), -1)
    bits = torch.nn.functional.pad(bits, (0, 8 * side.code_bytes - bits.shape[-1]))
    weights = 1 << torch.arange(8, dtype=torch.int32, device=x.device)
    slots = (bits.unflatten(-1, (-1, 8)) * weights).sum(-1).to(torch.uint8)
    if norm is not None:
        slots = torch.cat((slots, norm.contiguous().view(torch.uint8)), -1)
    return slots.transpose(0, 1).contiguous()


def _rounded(side: SlotSide, channels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes int32 ``[H, T, C]`` of channels ``[H, T, D]`` about zero, and what their squared errors add up to."""
    above = channels - side.zero_point.unsqueeze(-2)
    coded = above[..., : side.coded] / side.steps.unsqueeze(-2)
    codes = coded.round().clamp_(min=0).minimum((2**side.widths - 1).float())
    error = ((coded - codes) * side.steps.unsqueeze(-2)).square().sum(-1)
    return codes.int(), error + above[..., side.coded :].square().sum(-1)


def channels(side: SlotSide, slots: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
    """What slots hold, in the basis of the codes.

    Args:
        side: of the slots.
        slots: uint8 ``[H, T, nbytes]``.

    Returns:
        float32 ``[H, T, D]``, and norms float32 ``[H, T]`` that these are to be multiplied by, or None.
    """
    bits = side.byte_bits[slots[..., : side.code_bytes].int()].flatten(-2)
    found = bits @ side.values + (side.zero_point + side.offset).unsqueeze(-2)
    if not side.norm:
        return found, None
    norm = slots[..., side.code_bytes :].clone(memory_format=torch.contiguous_format)  # at an even address
    return found, norm.view(torch.float16)[..., 0].float()


def decode(side: SlotSide, slots: torch.Tensor) -> torch.Tensor:
    """float32 ``[T, H, D]`` of slots uint8 ``[T, H, nbytes]``."""
    found, norm = channels(side, slots.transpose(0, 1))
    x = found @ side.inverse.transpose(-1, -2)
    return (x if norm is None else x * norm.unsqueeze(-1)).transpose(0, 1)


def write(form: SlotFormat, cache: torch.Tensor, slots: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
    """Put tokens into their slots.

    Args:
        form: of the cache.
        cache: uint8 ``[blocks, H, block_size, nbytes]``.
        slots: int64 ``[T]``, ``block * block_size + place``; negative ones are not written.
        key, value: ``[T, H, D]``.
    """
    kept = slots >= 0
    if not bool(kept.all()):
        slots, key, value = slots[kept], key[kept], value[kept]
    block, place = slots // form.block_size, slots % form.block_size
    for side, start, x in zip((form.key, form.value), form.starts, (key, value), strict=True):
        form.slots(cache)[block, :, place, start : start + side.nbytes] = encode(side, x)
    first = (place == 0).nonzero()[:, 0]
    if first.numel():
        exact = torch.cat((key[first], value[first]), -1).to(form.dtype)
        form.exact(cache)[block[first]] = exact.view(torch.uint8)


def attend(
    form: SlotFormat,
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
        form: of the cache.
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
        return _by_token(own.softmax(-1) @ values, groups)
    held = cache[blocks[: -(-past // form.block_size)]]  # [m, H, block_size, nbytes]
    slots = form.slots(held).transpose(0, 1).flatten(1, 2)[:, :past]
    keys, key_norm = channels(form.key, slots[..., : form.key.nbytes])
    scores = (query @ form.key.inverse) @ keys.transpose(-1, -2)
    if key_norm is not None:
        scores = scores * key_norm.unsqueeze(1)
    exact = form.exact(held).contiguous().view(form.dtype).float()
    exact_key, exact_value = exact.transpose(0, 1).chunk(2, -1)  # [H, m, D]
    scores[..., :: form.block_size] = query @ exact_key.transpose(-1, -2)
    probabilities = torch.cat((scores, own), -1).softmax(-1)
    packed, own = probabilities.split((past, count), -1)
    firsts = packed[..., :: form.block_size].clone()
    packed[..., :: form.block_size] = 0
    start = form.starts[1]
    found, norm = channels(form.value, slots[..., start : start + form.value.nbytes])
    if norm is not None:
        packed = packed * norm.unsqueeze(1)
    restored = (packed @ found) @ form.value.inverse.transpose(-1, -2)
    return _by_token(restored + firsts @ exact_value + own @ values, groups)


def _by_token(output: torch.Tensor, groups: int) -> torch.Tensor:
    """``[n, H_q, D]`` of ``[H, groups * n, D]``."""
    return output.unflatten(1, (groups, -1)).flatten(0, 1).transpose(0, 1)


__all__ = ["attend", "channels", "decode", "encode", "write"]
