"""The words for what a cache holds: every surface shows memory with these, so that figures carry the same names.

*Packed* are bits per value of the packed pages alone, *whole cache* those of everything that the cache holds, exact
tokens and the token table included (:mod:`kvmm.cache.memory`). Nothing here needs torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

PACKED, WHOLE = "packed bits", "whole-cache bits"  # heads of columns: bits per value
AXIS = "bits per value, whole cache"
LEGEND = "packed bits: bits per value of the packed pages; whole-cache bits: with exact tokens and the token table"


def bits_text(whole: float, packed: float | None) -> str:
    """ "packed: 2.1 bits per value, whole cache: 3.6 bits"; only the latter where the former is not known (None, 0)."""
    if not packed:
        return f"whole cache: {whole:.1f} bits per value"
    return f"packed: {packed:.1f} bits per value, whole cache: {whole:.1f} bits"


def ratio_text(ratio: float) -> str:
    """How many times smaller than in 16 bits: "4.5×"."""
    return f"{ratio:.1f}×"


def memory_text(report: Any) -> str:
    """What a cache holds, in a line.

    Args:
        report: a :class:`kvmm.cache.MemoryReport` or :class:`kvmm.analysis.cost.model.CacheCost`, or its ``to_dict()``.

    Returns:
        :func:`bits_text`; "nothing packed yet: 27 tokens stay exact" before there are pages; and where most tokens are
        exact both, as the whole cache's figure is then that of a few tokens.
    """
    value = _reader(report)
    tokens, packed = int(_count(value("tokens"))), int(value("packed_tokens"))
    exact = f"{tokens - packed:,} token{'s stay' if tokens - packed != 1 else ' stays'} exact"
    if not packed:
        return f"nothing packed yet: {exact}" if tokens else "empty"
    text = bits_text(value("bits_per_value"), value("packed_bits_per_value"))
    return text if 2 * packed >= tokens else f"{text} ({exact}, {packed:,} are packed)"


def _reader(report: Any) -> Any:
    return report.__getitem__ if isinstance(report, Mapping) else lambda name: getattr(report, name)


def _count(tokens: Any) -> float:
    return sum(tokens.values()) if isinstance(tokens, Mapping) else tokens


__all__ = ["AXIS", "LEGEND", "PACKED", "WHOLE", "bits_text", "memory_text", "ratio_text"]
