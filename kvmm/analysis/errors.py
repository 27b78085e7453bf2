"""What quantisation does to keys and values: errors by channel, token, head, layer and modality.

A prompt is read exactly, once. Every layer's keys (after RoPE) and values are stored by the policy's own codecs, in the
pages that a cache would make of the prompt, and decoded: the error is that of what is stored. Sinks and the newest text
stay in full precision and have no error; they are in no figure here.

Two measures, over the same elements: the *absolute* error is the mean of ``(decoded - exact)^2``; the *relative* error
is that sum over the sum of ``exact^2``, the square of a ratio of Frobenius norms. A relative error of 1 is what storing
zeros costs. Codes are compared by the relative one, since keys and values differ in scale by layer, head and channel.
Neither says what an answer loses: a code that spends its bits on the directions that queries look at has larger errors
here and smaller ones in :mod:`kvmm.analysis.scores`.

*Outlier tokens* are those of :meth:`kvmm.analysis.norms.NormReport.outliers` for the layer and side: their norm is far
from the others', so in a per-channel group they stretch the range of all. Each channel's error is given in three
:data:`SCOPES`: of all tokens; with the outliers left out of the sum but not of the codes; and with pages packed without
them, as if they were kept in full precision. The difference of the last two is what outliers cost other tokens.

:class:`MixedErrors` puts one per-channel code of the keys on three arrangements of the same tokens: groups of one
modality each (as kvmm packs), groups of consecutive tokens whatever their modality, and groups that hold all modalities
in the prompt's proportions. It is the question of OScaR's Table 2 (arXiv 2605.19660), whose figures are not claimed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from kvmm.analysis.by_policy import ByPolicy
from kvmm.analysis.norms import NormReport
from kvmm.analysis.prefill import full_layers, one_prompt, prompt_modality, visit_layers
from kvmm.analysis.recording import Seen
from kvmm.analysis.stored import LayerStorage, Pages, layer_storages
from kvmm.cache.pages import PageStore
from kvmm.cache.table import Plan
from kvmm.codecs import Side, Site, build_codec
from kvmm.errors import KVMMError
from kvmm.modality import MODALITY_NAMES, PADDING
from kvmm.policy import CodecSpec, KVPolicy, spec

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


class _Sums:
    """What :class:`SideErrors` holds, row by row."""

    def __init__(self, tokens: int):
        self.tokens = tokens
        self.rows: list[dict[str, Any]] = []
        self.group_tokens = np.zeros(len(MODALITY_NAMES), dtype=np.int64)

    def begin(self, heads: int, dim: int) -> None:
        modalities = len(MODALITY_NAMES)
        self.rows.append(
            {
                "error": {scope: np.zeros((heads, dim)) for scope in SCOPES},
                "energy": {scope: np.zeros((heads, dim)) for scope in SCOPES},
                "count": dict.fromkeys(SCOPES, 0),
                "group_error": np.zeros((heads, modalities)),
                "group_energy": np.zeros((heads, modalities)),
                "token_error": np.full(self.tokens, np.nan, dtype=np.float32),
                "token_energy": np.full(self.tokens, np.nan, dtype=np.float32),
            }
        )
        self.group_tokens[:] = 0

    def channels(self, scope: str, error: torch.Tensor, energy: torch.Tensor) -> None:
        """Add squared errors and squares ``[H, n, D]``."""
        row = self.rows[-1]
        row["error"][scope] += _sum(error, 1)
        row["energy"][scope] += _sum(energy, 1)
        row["count"][scope] += error.shape[1]

    def tokens_of(self, modality: int, positions: torch.Tensor, error: torch.Tensor, energy: torch.Tensor) -> None:
        """Add squared errors and squares ``[H, n, D]`` of one modality's tokens."""
        row, places = self.rows[-1], positions.cpu().numpy()
        row["token_error"][places] = error.mean((0, 2)).cpu().numpy()
        row["token_energy"][places] = energy.mean((0, 2)).cpu().numpy()
        row["group_error"][:, modality] += _sum(error, (1, 2))
        row["group_energy"][:, modality] += _sum(energy, (1, 2))
        self.group_tokens[modality] += len(places)

    def done(self) -> SideErrors:
        def stack(name: str) -> np.ndarray:
            return np.stack([row[name] for row in self.rows])

        def scoped(name: str) -> dict[str, np.ndarray]:
            return {scope: np.stack([row[name][scope] for row in self.rows]) for scope in SCOPES}

        return SideErrors(
            scoped("error"),
            scoped("energy"),
            {scope: np.array([row["count"][scope] for row in self.rows]) for scope in SCOPES},
            stack("group_error"),
            stack("group_energy"),
            self.group_tokens.copy(),
            stack("token_error"),
            stack("token_energy"),
        )


def _sum(x: torch.Tensor, dims: int | tuple[int, ...]) -> np.ndarray:
    return x.sum(dims, dtype=torch.float64 if x.device.type != "mps" else None).cpu().numpy()


class _Meter:
    """Measures one layer after another as the prefill comes to it."""

    def __init__(
        self, storages: Sequence[LayerStorage], modality: torch.Tensor, mixed: Sequence[CodecSpec], max_outliers: int
    ):
        self.storages, self.modality, self.max_outliers = storages, modality, max_outliers
        self.plans = [storage.plan(modality) for storage in storages]
        self.sums = [{side: _Sums(len(modality)) for side in SIDES} for _ in storages]
        self.outliers: dict[str, list[tuple[int, ...]]] = {side: [] for side in SIDES}
        present = modality[MIXED_SINKS:].unique()
        self.mixed_specs = list(mixed) if len(present) > 1 else []
        self.mixed_error: list[dict[str, list[np.ndarray]]] = [{a: [] for a in ARRANGEMENTS} for _ in self.mixed_specs]
        self.mixed_energy: list[np.ndarray] = []

    def visit(self, seen: Seen) -> None:
        index, query, key, value = seen.layer, seen.query, seen.key, seen.value
        norms = {
            side: x[0].float().norm(dim=-1).cpu().numpy()[None] for side, x in zip(SIDES, (key, value), strict=True)
        }
        norm_report = NormReport((index,), norms["key"], norms["value"], None, self.modality.numpy())
        for side, x in zip(SIDES, (key, value), strict=True):
            found = norm_report.outliers(side, 0, count=self.max_outliers) if self.max_outliers else []
            outliers = tuple(int(one["position"]) for one in found)
            self.outliers[side].append(outliers)
            for storage, plan, sums in zip(self.storages, self.plans, self.sums, strict=True):
                self._measure(storage, plan, sums[side], index, side, x, query, outliers)
        if self.mixed_specs:
            self._mix(index, key)

    def _measure(
        self,
        storage: LayerStorage,
        plan: Plan,
        sums: _Sums,
        index: int,
        side: Side,
        x: torch.Tensor,
        query: torch.Tensor,
        outliers: Sequence[int],
    ) -> None:
        sums.begin(x.shape[1], x.shape[3])
        packed = _packed(plan, len(self.modality))
        left_out = torch.zeros_like(packed)
        left_out[list(outliers)] = True
        left_out &= packed  # the others are in full precision anyway
        refit, common = None, packed
        if bool(left_out.any()):
            refit = storage.plan(self.modality.masked_fill(left_out, PADDING))
            common = packed & _packed(refit, len(self.modality))  # outliers are not in the second
        for pages in storage.pages(index, side, x, plan, query):
            error, energy = _squares(x, pages)
            sums.tokens_of(pages.modality, pages.positions, error, energy)
            sums.channels("all", error, energy)
            for scope in ("rest", "refit") if refit is None else ("rest",):
                self._common(sums, scope, pages, error, energy, common)
        if refit is not None:
            for pages in storage.pages(index, side, x, refit, query):
                self._common(sums, "refit", pages, *_squares(x, pages), common)

    @staticmethod
    def _common(
        sums: _Sums, scope: str, pages: Pages, error: torch.Tensor, energy: torch.Tensor, common: torch.Tensor
    ) -> None:
        keep = common.to(pages.positions.device)[pages.positions]
        if not bool(keep.all()):
            error, energy = error[:, keep], energy[:, keep]
        sums.channels(scope, error, energy)

    def _mix(self, index: int, key: torch.Tensor) -> None:
        modality = self.modality[MIXED_SINKS:].to(key.device)
        key = key[:, :, MIXED_SINKS:]
        energy = key[0].float().square().sum((0, 2), dtype=torch.float64)
        self.mixed_energy.append(_by_modality(energy, modality))
        for one, found in zip(self.mixed_specs, self.mixed_error, strict=True):
            for arrangement in ARRANGEMENTS:
                error = torch.zeros(len(modality), dtype=torch.float64, device=key.device)
                for order in _orders(modality, arrangement):
                    x = key.index_select(2, order)
                    store = PageStore.for_codec(build_codec(one, "key", Site(index)), one.group_size)
                    store.append(x)
                    decoded = store.decode()[:, :, : len(order)]
                    error[order] = (decoded - x.float()).square().sum((0, 1, 3), dtype=torch.float64)
                found[arrangement].append(_by_modality(error, modality))

    def mixed(self) -> tuple[MixedErrors, ...]:
        counts = np.bincount(self.modality[MIXED_SINKS:].numpy(), minlength=len(MODALITY_NAMES))
        return tuple(
            MixedErrors(
                one.codec,
                one.bits,
                one.group_size,
                {arrangement: np.stack(rows) for arrangement, rows in found.items()},
                np.stack(self.mixed_energy),
                counts,
            )
            for one, found in zip(self.mixed_specs, self.mixed_error, strict=True)
        )


def _packed(plan: Plan, tokens: int) -> torch.Tensor:
    packed = torch.zeros(tokens, dtype=torch.bool)
    for move in plan.moves:
        packed[move.index[0].cpu()] = True
    return packed


def _squares(x: torch.Tensor, pages: Pages) -> tuple[torch.Tensor, torch.Tensor]:
    exact = x[0].index_select(1, pages.positions).float()
    return (pages.decoded - exact).square_(), exact.square_()


def _orders(modality: torch.Tensor, arrangement: str) -> list[torch.Tensor]:
    """Tokens in the order in which they are cut into groups, one list a store."""
    if arrangement == "sequence":
        return [torch.arange(len(modality), device=modality.device)]
    own = [(modality == code).nonzero()[:, 0] for code in modality.unique()]
    if arrangement == "separate":
        return own
    place = torch.empty(len(modality), dtype=torch.float64, device=modality.device)
    for positions in own:  # every modality is spread evenly over the whole
        steps = torch.arange(len(positions), dtype=torch.float64, device=modality.device)
        place[positions] = (steps + 0.5) / len(positions)
    return [place.argsort(stable=True)]


def _by_modality(per_token: torch.Tensor, modality: torch.Tensor) -> np.ndarray:
    return np.bincount(modality.cpu().numpy(), weights=per_token.cpu().numpy(), minlength=len(MODALITY_NAMES))


def measure_errors(
    model: Any,
    inputs: Mapping[str, torch.Tensor],
    policies: Sequence[str | KVPolicy],
    *,
    layers: Sequence[int] | None = None,
    max_outliers: int = 8,
    mixed_bits: int = 2,
    mixed_group_size: int = 128,
) -> ErrorReport:
    """Measure what policies do to the keys and values of one prompt.

    One exact prefill, a layer at a time: memory holds one layer's keys and values and what one policy makes of them.

    Args:
        model: as ``load_model`` returns it. Callers that share it hold its lock
            (:func:`kvmm.models.conversation.model_lock`).
        inputs: of one prompt: what the processor, ``encode_question`` or ``Conversation.prompt_inputs`` returned.
        policies: presets, YAML files or :class:`KVPolicy` objects, without a budget.
        layers: decoder layers to measure; None for all of full attention.
        max_outliers: at most so many outlier tokens a layer and side; 0 for none.
        mixed_bits, mixed_group_size: the per-channel codes (KIVI's and OScaR's) that mixed and separate groups are
            compared with; the group is a number of tokens, 32, 64 or 128.

    Raises:
        KVMMError: for no policy, one twice, one that the model cannot have, or a prompt that is not one sequence.
    """
    inputs = one_prompt(model, inputs)
    storages = layer_storages(model, policies)
    if mixed_group_size not in (32, 64, 128):
        raise KVMMError(f"mixed_group_size is 32, 64 or 128 tokens, not {mixed_group_size!r}.")
    codes = [spec(codec, mixed_bits, mixed_group_size) for codec in ("kivi", "oscar")]
    rows = full_layers(model, layers)
    meter = _Meter(storages, prompt_modality(model, inputs), codes, max_outliers)
    visit_layers(model, inputs, meter.visit, rows)
    return ErrorReport(
        rows,
        meter.modality.numpy(),
        {side: tuple(found) for side, found in meter.outliers.items()},
        tuple(
            PolicyErrors(storage.name, storage.stored_as, sums["key"].done(), sums["value"].done())
            for storage, sums in zip(storages, meter.sums, strict=True)
        ),
        meter.mixed(),
    )
