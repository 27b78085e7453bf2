"""What tokens of unlike norms cost at least where they share a scale: OScaR's error analysis (arXiv 2605.19660).

Keys of a group are coded per channel with ``b`` bits; ``R_c`` is the range of channel ``c`` over the group's tokens. If
the rounding errors of a channel are spread evenly over a step, as the paper assumes, then a token's squared error is

- ``sum_c R_c^2 / (12 (2^b - 1)^2)`` on average (Eq. 9: a step squared over 12, in each channel);
- no less than ``||k_m - k_n||^2 / (12 (2^b - 1)^2)`` for any two tokens of the group, since a range is at least the
  difference of two of its elements (Eq. 10); the paper takes the longest and the shortest;
- no less than ``(||k_m|| - ||k_n||)^2 / (12 (2^b - 1)^2)``, by the triangle inequality (Eq. 11).

So the gap between the largest and the smallest norm of a group sets a floor under the error of all its tokens, which a
rotation does not lower and which is zero once norms are divided out. It is a floor of even errors: where most elements
of a channel fall on one level, real ones can be smaller.

The three steps are cited after public notes on the paper; that they are its equations 9 to 11 is by their order.
:mod:`kvmm.analysis.errors.bounds` has the other side, how large errors can get.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kvmm.errors import KVMMError


@dataclass(frozen=True)
class NormGapBound:
    """Squared errors of a token, in the squared unit of the keys, by group; each float32 ``[B, H, G]``.

    Attributes:
        expected: the mean over the group's tokens if errors are even (Eq. 9).
        pair: what the longest and the shortest token leave of it at least (Eq. 10).
        gap: what their norms alone leave of it at least (Eq. 11).
    """

    expected: torch.Tensor
    pair: torch.Tensor
    gap: torch.Tensor


def norm_gap_bound(keys: torch.Tensor, bits: int, group_size: int) -> NormGapBound:
    """The floor under the errors of keys that are coded per channel, by group of tokens.

    Args:
        keys: float ``[B, H, T, D]``, as they are coded: rotated or not, divided by their norms or not.
        bits: bits of a code, 1 to 8.
        group_size: tokens that share a scale; the last group may be shorter.

    Raises:
        KVMMError: if keys have another shape, or a number is out of range.
    """
    if keys.dim() != 4 or not keys.shape[2]:
        raise KVMMError(f"keys must be [B, H, T, D] with a token at least, not {list(keys.shape)}.")
    if not 1 <= bits <= 8 or group_size < 1:
        raise KVMMError(f"bits must be 1 to 8 and group_size at least 1, not {bits!r} and {group_size!r}.")
    x = keys.float()
    missing = -x.shape[2] % group_size
    groups = torch.cat((x, x[:, :, -1:].expand(-1, -1, missing, -1)), 2).unflatten(2, (-1, group_size))
    norms = groups.norm(dim=-1)  # [B, H, G, group_size]
    longest, shortest = (
        groups.gather(3, at[..., None, None].expand(*at.shape, 1, x.shape[-1])).squeeze(3)
        for at in (norms.argmax(-1), norms.argmin(-1))
    )
    scale = 12 * (2**bits - 1) ** 2
    return NormGapBound(
        expected=(groups.amax(3) - groups.amin(3)).square().sum(-1) / scale,
        pair=(longest - shortest).square().sum(-1) / scale,
        gap=(norms.amax(-1) - norms.amin(-1)).square() / scale,
    )


__all__ = ["NormGapBound", "norm_gap_bound"]
