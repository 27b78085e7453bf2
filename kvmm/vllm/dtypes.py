"""Names of cache dtypes."""

from __future__ import annotations

DTYPES = tuple(f"kvmm_rd{bits}" for bits in ("1", "1.5", "2", "2.5", "3", "4", "6", "8"))


def dtype_bits(name: str) -> float | None:
    """Average bits a channel of a cache dtype, or None for one that is not kvmm's."""
    return float(name.removeprefix("kvmm_rd")) if name in DTYPES else None


__all__ = ["DTYPES", "dtype_bits"]
