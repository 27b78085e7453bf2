"""Names of cache dtypes."""

from __future__ import annotations

BLOCK_SIZE = 128  # tokens; of the first of each block the slots keep an exact copy

_CODECS = {
    **{f"kvmm_rd{bits}": ("rd", float(bits)) for bits in ("1", "1.5", "2", "2.5", "3", "4", "6", "8")},
    "kvmm_oscar2": ("oscar", 2.0),
}
DTYPES = tuple(_CODECS)


def dtype_codec(name: str) -> tuple[str, float] | None:
    """The codec of a cache dtype, ``rd`` or ``oscar``, and its bits a channel; None for one that is not kvmm's."""
    return _CODECS.get(name)


__all__ = ["BLOCK_SIZE", "DTYPES", "dtype_codec"]
