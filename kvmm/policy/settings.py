"""The parts of a policy: the specs of a modality, of some layers, and the settings of retention."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from kvmm.codecs.spec import CodecSpec
from kvmm.errors import KVMMError


@dataclass(frozen=True)
class KVSpec:
    """The key spec and the value spec of one modality."""

    key: CodecSpec = field(default_factory=CodecSpec)
    value: CodecSpec = field(default_factory=CodecSpec)


@dataclass(frozen=True)
class LayerOverride:
    """Other specs for some layers.

    Attributes:
        layers: indices of decoder layers; negative ones count from the last.
        text, image, video, audio: the specs there; None keeps the policy's.
    """

    layers: tuple[int, ...]
    text: KVSpec | None = None
    image: KVSpec | None = None
    video: KVSpec | None = None
    audio: KVSpec | None = None


@dataclass(frozen=True)
class RetentionSettings:
    """How a cache with a ``budget`` chooses what to lower and what to drop; see :mod:`kvmm.cache.retention`.

    Attributes:
        mode: ``joint``: lower or drop next what costs least for the bytes it frees; ``decoupled``: lower all pages
            first, whatever their importance, then drop the least important; ``retain``: only drop; ``quantize``: only
            lower.
        heads: ``adaptive``: every KV head of a layer on its own; ``uniform``: all heads of a layer alike.
        interval: decode steps between two runs; a cache over its budget is run at once.
        decay: share of the old value in the moving average of attention mass, one decode step.
        segment_weights: factors of importance for the prefix, what was retrieved into the middle, and the recent end.
        prefix_length, recent_length: tokens of the first and the last segment.
        modality_weights: factors of importance for text, image, video and audio.
        margin_gate: keep pages of the two largest logits in a tier whose largest logit error fits between the two, as
            long as the budget can be met otherwise.
        hysteresis: how many times better than a lowering done before an undoing must be (1 or more).
        cooldown: runs in which a page that changed its tier stays, unless the budget cannot be met otherwise.
        backing: ``none``, or ``host``: keep the first codes of lowered pages in the host's memory, outside the budget,
            so that they can rise again. Without it pages only ever go down.
    """

    mode: str = "joint"
    heads: str = "adaptive"
    interval: int = 16
    decay: float = 0.9
    segment_weights: tuple[float, float, float] = (1.0, 1.0, 1.0)
    prefix_length: int = 64
    recent_length: int = 256
    modality_weights: tuple[float, float, float, float] = (1.0, 1.0, 1.0, 1.0)
    margin_gate: bool = False
    hysteresis: float = 1.5
    cooldown: int = 2
    backing: str = "none"

    def __post_init__(self) -> None:
        for name, choices in _RETENTION_CHOICES.items():
            if getattr(self, name) not in choices:
                raise KVMMError(f"retention {name} must be {' or '.join(choices)}, not {getattr(self, name)!r}.")
        for name, least in (("interval", 1), ("prefix_length", 0), ("recent_length", 0), ("cooldown", 0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 2**31:
                raise KVMMError(f"retention {name} must be a whole number of at least {least} and below 2^31.")
        for name, count in (("segment_weights", 3), ("modality_weights", 4)):
            value = getattr(self, name)
            if isinstance(value, list):
                object.__setattr__(self, name, value := tuple(value))
            if not (isinstance(value, tuple) and len(value) == count and all(map(_is_factor, value))):
                raise KVMMError(f"retention {name} must be {count} factors of at least 0, not {value!r}.")
        if not isinstance(self.margin_gate, bool):
            raise KVMMError(f"retention margin_gate must be true or false, not {self.margin_gate!r}.")
        if not (_is_factor(self.decay) and _is_factor(self.hysteresis) and self.decay < 1 <= self.hysteresis):
            raise KVMMError("retention decay must be at least 0 and below 1, hysteresis at least 1.")


def _is_factor(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 1e12


_RETENTION_CHOICES = {
    "mode": ("joint", "decoupled", "retain", "quantize"),
    "heads": ("adaptive", "uniform"),
    "backing": ("none", "host"),
}


__all__ = ["KVSpec", "LayerOverride", "RetentionSettings"]
