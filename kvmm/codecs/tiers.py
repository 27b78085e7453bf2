"""The codecs that an entry goes down through, from specs or from what its codec brings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from kvmm.codecs.base import Codec
from kvmm.codecs.registry import build_codec
from kvmm.errors import KVMMError


def lower_tiers(codec: Codec, tiers: Sequence[Any] | None) -> list[Codec]:
    """The codecs below ``codec``, highest first.

    Args:
        codec: the policy's own, of keys or of values.
        tiers: specs with a ``key`` and a ``value`` each; None for those that the codec of keys brings
            (:meth:`Codec.lower_tier`), which leave values as they are.

    Raises:
        KVMMError: if a tier cannot take over entries of the one above.
    """
    found = [codec]
    if tiers is None:
        while codec.side == "key" and (lower := found[-1].lower_tier()) is not None:
            found.append(lower)
        return found[1:]
    for kv in tiers:
        own, other = (kv.key, kv.value) if codec.side == "key" else (kv.value, kv.key)
        lower = build_codec(own, codec.side, replace(codec.site, sibling=other))
        above = found[-1]
        if lower.spec != above.spec and lower.spec.is_lossless:
            raise KVMMError(f"retention tiers: {lower.name} cannot come below {above.name}, whose codes it would keep.")
        if not lower.pages_stand_alone:
            raise KVMMError(f"retention tiers: pages of codec {lower.name} are not read one by one; choose another.")
        if lower.transform_id != codec.transform_id:
            raise KVMMError(
                f"retention tiers: codecs {codec.name} and {lower.name} transform {codec.side}s differently; "
                "all tiers of a modality need one transform."
            )
        found.append(lower)
        first = span_tier(found)
        if missing := [name for name in lower.inherits if name not in first.inherits]:
            raise KVMMError(
                f"retention tiers: codec {lower.name} takes {' and '.join(missing)} from the first tier that has a "
                f"span, and codec {first.name} does not store that."
            )
    return found[1:]


def span_tier(tiers: Sequence[Codec]) -> Codec:
    """The tier whose tensors by span all others share: the first one, or if that has none the first that needs some."""
    if tiers[0].spec.is_lossless:
        return next((tier for tier in tiers if tier.inherits), tiers[0])
    return tiers[0]


__all__ = ["lower_tiers", "span_tier"]
