"""Ways to meet a budget, by name: Spherical KV's whole system, and eviction methods to compare it with."""

from __future__ import annotations

from collections.abc import Mapping

from kvmm.codecs.spec import spec
from kvmm.errors import unknown_name
from kvmm.policy.settings import KVSpec, RetentionSettings

_VALUES = {4: spec("kivi", 4, 32), 2: spec("kivi", 2, 32)}

# below `spherical-high`, whose values are exact: while they are, a lower tier of keys saves 2 of 270 bytes
SPHERICAL_TIERS = (
    KVSpec(spec("spherical", 0.875), _VALUES[4]),
    KVSpec(spec("spherical", 0.75), _VALUES[2]),
    KVSpec(spec("spherical", 0.34375), _VALUES[2]),
)
# below any policy of exact pages or of `spherical-angles`
ANGLE_TIERS = tuple(KVSpec(spec("spherical-angles", key), _VALUES[value]) for key, value in ((4, 4), (3, 4), (2, 2)))

RETENTION_PRESETS: Mapping[str, RetentionSettings] = {
    "spherical": RetentionSettings(
        tiers=SPHERICAL_TIERS,
        entries="token",
        entry_tokens=16,
        layer_cap=2.0,
        head_cap=3.0,
        window=4,
        stickiness=0.05,
        segment_weights=(1.5, 1.0, 1.5),
        margin_gate=True,
    ),
    "streamingllm": RetentionSettings(selection="streaming", entry_tokens=8),
    "h2o": RetentionSettings(selection="h2o", entries="token", entry_tokens=8),
    "vlcache": RetentionSettings(selection="vlcache", entries="token", entry_tokens=8),
}


def retention_preset(name: str) -> RetentionSettings:
    """The settings of a name. Raises :class:`KVMMError` for an unknown one."""
    if name not in RETENTION_PRESETS:
        raise unknown_name("retention", name, RETENTION_PRESETS)
    return RETENTION_PRESETS[name]


__all__ = ["ANGLE_TIERS", "RETENTION_PRESETS", "SPHERICAL_TIERS", "retention_preset"]
