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
        mode: ``joint``: lower or drop next what costs least for the bytes it frees; ``decoupled``: lower all entries
            first, whatever their importance, then drop the least important; ``retain``: only drop; ``quantize``: only
            lower.
        selection: ``rate-distortion``, or what an eviction method would drop next under the same budget: ``streaming``
            (StreamingLLM: the oldest), ``h2o`` (the least accumulated attention, half of what stays being the newest),
            ``vlcache`` (the least attention after the last image, more from layers whose attention is sparse); see
            :mod:`kvmm.cache.eviction`. Eviction methods only drop, whatever the mode.
        tiers: the specs of keys and values below the policy's own, highest first; None for the tiers that the codec of
            keys brings, which leave values as they are.
        entries: ``page``: the tokens of an entry are neighbours; ``token``: each head's tokens are sorted by importance
            before they are cut into entries, so that an entry is all important or all not.
        entry_tokens: tokens per entry: 8, 16, 32, 64 or 128, or 1 for policies that keep exact values; None for pages
            as without a budget.
        heads: ``adaptive``: every KV head of a layer on its own; ``uniform``: all heads of a layer alike.
        layer_cap, head_cap: most that the entries of a layer, or of a KV head of a layer, may hold, as a multiple of an
            equal share of what the budget leaves to entries; at least 1, None for no cap.
        interval: decode steps between two runs; a cache over its budget is run at once.
        decay: share of the old value in the moving average of attention mass, one update.
        window: decode steps per update (``R``): the largest attention mass among them enters the average.
        stickiness: what a change of tier must gain besides its bytes, as a multiple of the mean importance of an entry.
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
    selection: str = "rate-distortion"
    tiers: tuple[KVSpec, ...] | None = None
    entries: str = "page"
    entry_tokens: int | None = None
    heads: str = "adaptive"
    layer_cap: float | None = None
    head_cap: float | None = None
    interval: int = 16
    decay: float = 0.9
    window: int = 1
    stickiness: float = 0.0
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
        least_of = {"interval": 1, "window": 1, "prefix_length": 0, "recent_length": 0, "cooldown": 0}
        for name, least in least_of.items():
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
        if not _is_factor(self.stickiness):
            raise KVMMError(f"retention stickiness must be a factor of at least 0, not {self.stickiness!r}.")
        for name in ("layer_cap", "head_cap"):
            value = getattr(self, name)
            if value is not None and not (_is_factor(value) and value >= 1):
                raise KVMMError(f"retention {name} must be a multiple of at least 1 of an equal share, not {value!r}.")
        tokens = self.entry_tokens
        if tokens is not None and (isinstance(tokens, bool) or tokens not in ENTRY_TOKENS):
            raise KVMMError(f"retention entry_tokens must be {', '.join(map(str, ENTRY_TOKENS))}, not {tokens!r}.")
        if isinstance(self.tiers, list):
            object.__setattr__(self, "tiers", tuple(self.tiers))
        if self.tiers is not None and not (
            isinstance(self.tiers, tuple) and all(isinstance(tier, KVSpec) for tier in self.tiers)
        ):
            raise KVMMError("retention tiers must be a list of specs, each with a key and a value.")
        if self.tiers is not None and len(self.tiers) > MAX_TIERS:
            raise KVMMError(f"retention tiers: there are {len(self.tiers)}, at most {MAX_TIERS} are served.")

    @property
    def evicts(self) -> bool:
        """Whether entries are only dropped, in the order of an eviction method."""
        return self.selection != "rate-distortion"

    @property
    def rises(self) -> bool:
        """Whether entries can go up again: their first codes are kept, and the method knows of tiers."""
        return self.backing == "host" and not self.evicts


def _is_factor(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 1e12


ENTRY_TOKENS = (1, 8, 16, 32, 64, 128)
MAX_TIERS = 8
_RETENTION_CHOICES = {
    "mode": ("joint", "decoupled", "retain", "quantize"),
    "selection": ("rate-distortion", "streaming", "h2o", "vlcache"),
    "entries": ("page", "token"),
    "heads": ("adaptive", "uniform"),
    "backing": ("none", "host"),
}


__all__ = ["ENTRY_TOKENS", "KVSpec", "LayerOverride", "RetentionSettings"]
