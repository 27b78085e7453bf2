"""Lanes that are single bits of codes: how a code book is a sum over them."""

from __future__ import annotations

from functools import lru_cache

import torch

from kvmm.kernels.attention.format import aligned


@lru_cache(maxsize=256)
def bit_layout(
    widths: tuple[int, ...], weights: tuple[tuple[float, ...], ...], device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """The channels and the weights of lanes that are the bits of codes.

    Args:
        widths: codes of each plane.
        weights: :attr:`kvmm.kernels.attention.format.PackedFormat.bit_weights`.
        device: where to put them.

    Returns:
        int32 and float32 ``[J]``: the first plane's lowest bits, its next ones, the second plane's, and its codes'
        parities, each padded to ALIGNMENT. A bit of the first plane counts as much as it does in a code.
    """
    longer = 0 if len(widths) == 1 else widths[1]
    padding = [aligned(width) - width for width in (widths[0], longer)]
    bits = len(weights[-1]) if longer < widths[0] else len(weights[-1]) - 2
    channel, weight = [], []
    for bit in range(bits):
        channel += [*range(widths[0]), *[0] * padding[0]]
        weight += [weights[0 if c < longer else -1][bit] / 2**bit for c in range(widths[0])] + [0.0] * padding[0]
    for bit in range(bits, bits + 2 * (longer > 0)):
        channel += [*range(longer), *[0] * padding[1]]
        weight += [weights[0][bit]] * longer + [0.0] * padding[1]
    return torch.tensor(channel, dtype=torch.int32, device=device), torch.tensor(weight, device=device)
