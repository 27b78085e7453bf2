"""Measuring what a policy does to keys and values; see :mod:`kvmm.analysis.errors`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from kvmm.analysis.common.prefill import full_layers, one_prompt, prompt_modality, visit_layers
from kvmm.analysis.common.recording import Seen
from kvmm.analysis.common.stored import LayerStorage, Pages, layer_storages
from kvmm.analysis.errors.report import (
    ARRANGEMENTS,
    MIXED_SINKS,
    SCOPES,
    SIDES,
    ErrorReport,
    MixedErrors,
    PolicyErrors,
    SideErrors,
)
from kvmm.analysis.norms.measure import NormReport
from kvmm.cache.pages import PageStore
from kvmm.cache.plan import Plan
from kvmm.codecs import Side, Site, build_codec
from kvmm.errors import KVMMError
from kvmm.modality import MODALITY_NAMES, PADDING
from kvmm.policy import CodecSpec, KVPolicy, spec


class _Sums:
    """The rows of a :class:`SideErrors`, collected layer by layer."""

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
            outlier_rows = norm_report.outliers(side, 0, count=self.max_outliers) if self.max_outliers else []
            outliers = tuple(int(one["position"]) for one in outlier_rows)
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
        for one, errors in zip(self.mixed_specs, self.mixed_error, strict=True):
            for arrangement in ARRANGEMENTS:
                error = torch.zeros(len(modality), dtype=torch.float64, device=key.device)
                for order in _orders(modality, arrangement):
                    x = key.index_select(2, order)
                    store = PageStore.for_codec(build_codec(one, "key", Site(index)), one.group_size)
                    store.append(x)
                    decoded = store.decode()[:, :, : len(order)]
                    error[order] = (decoded - x.float()).square().sum((0, 1, 3), dtype=torch.float64)
                errors[arrangement].append(_by_modality(error, modality))

    def mixed(self) -> tuple[MixedErrors, ...]:
        counts = np.bincount(self.modality[MIXED_SINKS:].numpy(), minlength=len(MODALITY_NAMES))
        return tuple(
            MixedErrors(
                one.codec,
                one.bits,
                one.group_size,
                {arrangement: np.stack(rows) for arrangement, rows in errors.items()},
                np.stack(self.mixed_energy),
                counts,
            )
            for one, errors in zip(self.mixed_specs, self.mixed_error, strict=True)
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
    by_modality = [(modality == code).nonzero()[:, 0] for code in modality.unique()]
    if arrangement == "separate":
        return by_modality
    place = torch.empty(len(modality), dtype=torch.float64, device=modality.device)
    for positions in by_modality:  # every modality is spread evenly over the whole
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
        max_outliers: at most so many outlier tokens per layer and side; 0 for none.
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
        {side: tuple(outliers) for side, outliers in meter.outliers.items()},
        tuple(
            PolicyErrors(storage.name, storage.stored_as, sums["key"].done(), sums["value"].done())
            for storage, sums in zip(storages, meter.sums, strict=True)
        ),
        meter.mixed(),
    )
