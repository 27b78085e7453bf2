"""How large the errors of OScaR's keys can get; :mod:`kvmm.analysis.errors.norm_gap` has the paper's own bound.

Keys are rotated, divided by their token's norm ``n_t``, and coded per channel over groups of tokens with ``b`` bits:

- the step of group ``g`` in channel ``c`` is its range over ``2^b - 1``:
  ``s_gc = (max_t u_tc - min_t u_tc) / (2^b - 1)``;
- rounding moves an element by half a step at most: ``|u'_tc - u_tc| <= s_gc / 2``;
- so a token is off by its own norm times what its group's steps allow:
  ``||k'_t - k_t|| <= n_t / 2 * sqrt(sum_c s_gc^2)``.

With unit vectors, ``s_gc <= 2 / (2^b - 1)`` whatever the tokens' norms are: the relative error of every token is below
``sqrt(D) / (2^b - 1)``. Without the division the longest token of a group sets the steps of all, and the relative error
of a short one grows with the ratio of the two norms, which is the imbalance that OScaR is about.

The paper (arXiv 2605.19660) bounds errors from below; this bound is kvmm's own, of min/max rounding as
:mod:`kvmm.codecs.oscar` does it. Rounding of stored scales and zero points to float16 is not in it; neither is
``zero_point="integer"``, which may shift a code by half a step.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kvmm.errors import KVMMError
from kvmm.kernels.hadamard import rotate, vector_norm


@dataclass(frozen=True)
class KeyErrorBound:
    """What errors of keys ``[B, H, T, D]`` stay below, in the unit of the keys.

    Attributes:
        step: float32 ``[B, H, G, D]``, the distance of two neighbouring levels of each group and channel, in units of
            the tokens' norms.
        norm: float32 ``[B, H, T]``, what every token was divided by; ones without scaling.
        token: float32 ``[B, H, T]``, the largest possible ``||k' - k||`` of every token.
        relative: float32 ``[B, H, T]``, ``token`` over the token's own length; infinite for zero keys with an error.
    """

    step: torch.Tensor
    norm: torch.Tensor
    token: torch.Tensor
    relative: torch.Tensor

    def logit(self, query: torch.Tensor) -> torch.Tensor:
        """The largest possible ``|q . k' - q . k|``: queries float ``[B, H, Q, D]`` to float32 ``[B, H, Q, T]``."""
        return query.float().norm(dim=-1, keepdim=True) * self.token.unsqueeze(2)


def key_error_bound(
    keys: torch.Tensor,
    bits: int,
    group_size: int,
    *,
    rotation: bool = True,
    norm: str = "l2",
    norm_scope: str = "head",
) -> KeyErrorBound:
    """The bound for keys stored by OScaR.

    Args:
        keys: float ``[B, H, T, D]``, after RoPE.
        bits: bits of a code, 1 to 8.
        group_size: tokens that share a scale; the last group may be shorter.
        rotation, norm, norm_scope: as in :class:`kvmm.codecs.oscar.OScaR`; ``norm="none"`` is the bound without
            scaling.

    Raises:
        KVMMError: if keys have another shape, or an option is unknown.
    """
    if keys.dim() != 4 or not keys.shape[2]:
        raise KVMMError(f"keys must be [B, H, T, D] with a token at least, not {list(keys.shape)}.")
    if norm not in ("l2", "rsqrt", "max", "mean", "none") or norm_scope not in ("head", "token"):
        raise KVMMError(f"norm={norm!r}, norm_scope={norm_scope!r}: there is no such scaling in OScaR.")
    if not 1 <= bits <= 8 or group_size < 1:
        raise KVMMError(f"bits must be 1 to 8 and group_size at least 1, not {bits!r} and {group_size!r}.")
    x = rotate(keys) if rotation else keys.float()
    if norm == "none":
        scale = torch.ones_like(x[..., 0])
    else:
        dims = (1, -1) if norm_scope == "token" else -1
        scale = vector_norm(x, "l2" if norm == "rsqrt" else norm, dims, keepdim=True).squeeze(-1)
        scale = torch.where(scale == 0, 1.0, scale).expand(x.shape[:3])
    unit = x / scale.unsqueeze(-1)
    missing = -unit.shape[2] % group_size
    groups = torch.cat((unit, unit[:, :, -1:].expand(-1, -1, missing, -1)), 2).unflatten(2, (-1, group_size))
    step = (groups.amax(3) - groups.amin(3)) / (2**bits - 1)
    half = step.norm(dim=-1) / 2  # [B, H, G]
    token = half.repeat_interleave(group_size, -1)[..., : keys.shape[2]] * scale
    return KeyErrorBound(step, scale, token, token / keys.float().norm(dim=-1))


__all__ = ["KeyErrorBound", "key_error_bound"]
