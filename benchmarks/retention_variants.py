"""What :mod:`benchmarks.retention` compares: policies and settings of retention, by the paper's ablations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from kvmm import KVPolicy, RetentionSettings, get_policy
from kvmm.policy import KVSpec, spec
from kvmm.policy.retention_presets import ANGLE_TIERS, RETENTION_PRESETS

FULL = RETENTION_PRESETS["spherical"]
_UNCAPPED = {"layer_cap": None, "head_cap": None}


@dataclass(frozen=True)
class Variant:
    """A policy under a budget: the name of a preset, or keys and values for everything, and how it is met."""

    policy: str | KVSpec
    settings: RetentionSettings

    def under(self, budget: int) -> KVPolicy:
        """The policy with the budget."""
        return get_policy(base_policy(self.policy), budget=budget, retention=self.settings)


def base_policy(policy: str | KVSpec) -> KVPolicy:
    """The policy without a budget."""
    if isinstance(policy, str):
        return get_policy(policy)
    name = f"{policy.key.codec} {policy.key.bits:g}"
    return KVPolicy(name, "", policy, policy, policy, policy)


def _full(**changes: object) -> Variant:
    return Variant("spherical-high", replace(FULL, **changes))


def _evicting(selection: str) -> Variant:
    """An eviction method token by token, over exact keys and values, as its authors run it."""
    return Variant("bf16", replace(RETENTION_PRESETS[selection], entries="page", entry_tokens=1))


VARIANTS: Mapping[str, Variant] = {
    "A0 full system": _full(),
    "A2 retention only": _full(mode="retain"),
    "A2 quantisation only": _full(mode="quantize", **_UNCAPPED),
    "A2 decoupled": _full(mode="decoupled"),
    "A2 exact values, tiers of keys": _full(tiers=None),
    "A3 heads alike": _full(heads="uniform", head_cap=None),
    "A3 no caps": _full(**_UNCAPPED),
    "A4 segments alike": _full(segment_weights=(1.0, 1.0, 1.0)),
    "A5 no margin gate": _full(margin_gate=False),
    "entries of neighbours": _full(entries="page"),
    "entries of pages": _full(entries="page", entry_tokens=None),
    "angles of 4 bits and down": Variant(
        KVSpec(spec("spherical-angles", 4), spec("bf16")),
        replace(FULL, tiers=ANGLE_TIERS),
    ),
    "exact, then angles": Variant(
        KVSpec(spec("bf16"), spec("bf16")),
        replace(FULL, tiers=ANGLE_TIERS),
    ),
    "StreamingLLM": _evicting("streamingllm"),
    "H2O": _evicting("h2o"),
    "VL-Cache": _evicting("vlcache"),
}

# how restless the controller is: long decoding, with first codes kept in the host's memory so that entries can rise
STABILITY: Mapping[str, RetentionSettings] = {
    "as in the full system": replace(FULL, backing="host"),
    "hysteresis 1": replace(FULL, backing="host", hysteresis=1.0),
    "hysteresis 3": replace(FULL, backing="host", hysteresis=3.0),
    "cooldown 0": replace(FULL, backing="host", cooldown=0),
    "stickiness 0": replace(FULL, backing="host", stickiness=0.0),
    "no brake": replace(FULL, backing="host", hysteresis=1.0, cooldown=0, stickiness=0.0),
    "every 4 steps": replace(FULL, backing="host", interval=4),
    "every 64 steps": replace(FULL, backing="host", interval=64),
    "EMA of every step": replace(FULL, backing="host", window=1),
    "EMA of the maximum of 16": replace(FULL, backing="host", window=16),
}

__all__ = ["FULL", "STABILITY", "VARIANTS", "Variant", "base_policy"]
