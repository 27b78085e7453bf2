"""Errors by channel, token, head, layer and modality, as they were measured; see :mod:`kvmm.analysis.errors`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from kvmm.analysis.by_policy import ByPolicy
from kvmm.modality import MODALITY_NAMES

SIDES = ("key", "value")
SCOPES = {
    "all": "all tokens",
    "rest": "outliers left out of the sum",
    "refit": "outliers left out of the codes too",
}
ARRANGEMENTS = {
    "separate": "one modality per group",
    "sequence": "consecutive tokens",
    "interleaved": "all modalities in every group",
}
MIXED_SINKS = 4  # the first tokens, which every policy keeps in full precision
MAX_COLUMNS = 512


def ratio(error: np.ndarray, energy: np.ndarray) -> np.ndarray:
    """``error / energy``; 0 where both are 0."""
    return np.divide(error, energy, out=np.where(error > 0, np.inf, 0.0), where=energy > 0)


@dataclass(frozen=True)
class SideErrors:
    """Errors of the keys or of the values under one policy. Arrays have one row a layer measured.

    Attributes:
        channel_error, channel_energy: scope -> float64 ``[L, H, D]``, sums over tokens of squared errors and squares.
        channel_tokens: scope -> int64 ``[L]``, how many tokens are in those sums.
        group_error, group_energy: float64 ``[L, H, M]``, sums by modality over tokens and channels.
        group_tokens: int64 ``[M]``, packed tokens by modality.
        token_error, token_energy: float32 ``[L, T]``, means over heads and channels; NaN for tokens that stay in full
            precision.
    """

    channel_error: dict[str, np.ndarray]
    channel_energy: dict[str, np.ndarray]
    channel_tokens: dict[str, np.ndarray]
    group_error: np.ndarray
    group_energy: np.ndarray
    group_tokens: np.ndarray
    token_error: np.ndarray
    token_energy: np.ndarray

    def by_layer(self, scope: str = "all", relative: bool = True) -> np.ndarray:
        """``[L]``, over all heads and channels."""
        error, energy = self.channel_error[scope].sum((1, 2)), self.channel_energy[scope].sum((1, 2))
        heads, dim = self.channel_error[scope].shape[1:]
        return ratio(error, energy) if relative else error / np.maximum(self.channel_tokens[scope] * heads * dim, 1)

    def by_head(self, scope: str = "all", relative: bool = True) -> np.ndarray:
        """``[L, H]``, over all channels."""
        error, energy = self.channel_error[scope].sum(2), self.channel_energy[scope].sum(2)
        elements = self.channel_tokens[scope][:, None] * self.channel_error[scope].shape[2]
        return ratio(error, energy) if relative else error / np.maximum(elements, 1)

    def by_channel(self, scope: str = "all", relative: bool = True) -> np.ndarray:
        """``[L, H, D]``; the relative error is over the channel's own energy."""
        if relative:
            return ratio(self.channel_error[scope], self.channel_energy[scope])
        return self.channel_error[scope] / np.maximum(self.channel_tokens[scope], 1)[:, None, None]

    def by_token(self, relative: bool = True) -> np.ndarray:
        """``[L, T]``, over heads and channels; the relative error is over the token's own energy. NaN where a token
        stays in full precision."""
        if not relative:
            return self.token_error
        found = ratio(np.nan_to_num(self.token_error), np.nan_to_num(self.token_energy))
        return np.where(np.isnan(self.token_error), np.nan, found).astype(np.float32)

    def by_modality(self, relative: bool = True) -> dict[str, np.ndarray]:
        """Modality -> ``[L]``, of those with packed tokens."""
        error, energy = self.group_error.sum(1), self.group_energy.sum(1)  # [L, M]
        heads, dim = self.channel_error["all"].shape[1:]
        found = ratio(error, energy) if relative else error / np.maximum(self.group_tokens * heads * dim, 1)
        return {name: found[:, m] for m, name in enumerate(MODALITY_NAMES) if self.group_tokens[m]}

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON; errors of tokens as means of at most 512 spans, None where nothing is packed."""
        return {
            "packed_tokens": {n: int(c) for n, c in zip(MODALITY_NAMES, self.group_tokens, strict=True) if c},
            "relative": {scope: self.by_layer(scope).tolist() for scope in SCOPES},
            "absolute": {scope: self.by_layer(scope, False).tolist() for scope in SCOPES},
            "by_head": self.by_head().tolist(),
            "by_modality": {name: values.tolist() for name, values in self.by_modality().items()},
            "by_channel": {scope: self.by_channel(scope).astype(np.float32).tolist() for scope in SCOPES},
            "by_channel_absolute": {
                scope: self.by_channel(scope, False).astype(np.float32).tolist() for scope in SCOPES
            },
            "by_token": spans(self.by_token()),
        }


@dataclass(frozen=True)
class PolicyErrors:
    """Errors of one policy: its name, the name of what a model without a calibration file stores instead, or the same
    name, and both sides."""

    policy: str
    stored_as: str
    key: SideErrors
    value: SideErrors

    def side(self, side: str) -> SideErrors:
        """``key`` or ``value``."""
        return self.key if side == "key" else self.value

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        sides = {side: self.side(side).to_dict() for side in SIDES}
        return {"policy": self.policy, "stored_as": self.stored_as, **sides}


@dataclass(frozen=True)
class MixedErrors:
    """One per-channel code of the keys, with groups of one modality or of several.

    Attributes:
        codec, bits, group_size: the code; ``group_size`` tokens share a scale a channel.
        error: arrangement (:data:`ARRANGEMENTS`) -> float64 ``[L, M]``, sums of squared errors by modality.
        energy: float64 ``[L, M]``, sums of squares.
        tokens: int64 ``[M]``, tokens by modality; the first :data:`MIXED_SINKS` of the prompt are left out.
    """

    codec: str
    bits: float
    group_size: int
    error: dict[str, np.ndarray]
    energy: np.ndarray
    tokens: np.ndarray

    def by_layer(self, arrangement: str) -> np.ndarray:
        """``[L]``, relative errors."""
        return ratio(self.error[arrangement].sum(1), self.energy.sum(1))

    def by_modality(self, arrangement: str, layer: int | None = None) -> dict[str, float]:
        """Modality -> relative error, over all layers or in row ``layer``."""
        rows = slice(None) if layer is None else slice(layer, layer + 1)
        found = ratio(self.error[arrangement][rows].sum(0), self.energy[rows].sum(0))
        return {name: float(found[m]) for m, name in enumerate(MODALITY_NAMES) if self.tokens[m]}

    def total(self, arrangement: str, layer: int | None = None) -> float:
        """Relative error of all modalities together, over all layers or in row ``layer``."""
        rows = slice(None) if layer is None else slice(layer, layer + 1)
        return float(ratio(self.error[arrangement][rows].sum(), self.energy[rows].sum()))

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "codec": self.codec,
            "bits": self.bits,
            "group_size": self.group_size,
            "tokens": {n: int(c) for n, c in zip(MODALITY_NAMES, self.tokens, strict=True) if c},
            "arrangements": {
                one: {
                    "relative": self.total(one),
                    "by_layer": self.by_layer(one).tolist(),
                    "by_modality": self.by_modality(one),
                }
                for one in ARRANGEMENTS
            },
        }


@dataclass(frozen=True)
class ErrorReport(ByPolicy[PolicyErrors]):
    """Errors of several policies on one prompt.

    Attributes:
        layers: index in the decoder of each row.
        modality: int8 ``[T]``.
        outliers: side -> for each row the positions of its outlier tokens, furthest first.
        policies: in the order asked for.
        mixed: for each code compared; empty for a prompt of one modality.
    """

    layers: tuple[int, ...]
    modality: np.ndarray
    outliers: dict[str, tuple[tuple[int, ...], ...]]
    policies: tuple[PolicyErrors, ...]
    mixed: tuple[MixedErrors, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "layers": list(self.layers),
            "tokens": self.tokens(),
            "outliers": {side: [list(found) for found in rows] for side, rows in self.outliers.items()},
            "policies": [one.to_dict() for one in self.policies],
            "mixed": [one.to_dict() for one in self.mixed],
        }


def spans(values: np.ndarray, columns: int = MAX_COLUMNS) -> dict[str, list]:
    """Means of ``[L, T]`` over at most ``columns`` spans, without NaN: ``start`` of each, and ``values`` by layer."""
    tokens = values.shape[1]
    starts = np.unique(np.linspace(0, tokens, min(tokens, columns), endpoint=False).astype(int))
    known = ~np.isnan(values)
    count = np.add.reduceat(known.astype(int), starts, axis=1)
    total = np.add.reduceat(np.where(known, values, 0).astype(float), starts, axis=1)
    means = [
        [t / c if c else None for t, c in zip(*row, strict=True)]
        for row in zip(total.tolist(), count.tolist(), strict=True)
    ]
    return {"start": starts.tolist(), "values": means}
