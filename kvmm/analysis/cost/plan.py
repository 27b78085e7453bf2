"""A plan: what a cache takes under several policies, and the longest context of a budget, for one model shape."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvmm.analysis.cost.model import LONGEST, CacheCost, CostModel
from kvmm.analysis.cost.operations import decode_operations, pack_operations
from kvmm.analysis.cost.shapes import ModelShape
from kvmm.calibration import Calibration
from kvmm.errors import KVMMError
from kvmm.memory_text import PACKED, WHOLE, ratio_text
from kvmm.policy import KVPolicy

PLAN_POLICIES = ("balanced", "small", "bf16", "kivi4", "kivi2", "oscar4-2", "oscar2", "calibquant1", "kitty", "rd2")


@dataclass(frozen=True)
class PlanRow:
    """One policy of a plan.

    Attributes:
        model: its model of costs.
        cost: the bytes.
        longest_context: tokens of one sequence; None without a budget, or where it is too small.
        at_window: whether it is the model's window that ends the longest context, not the budget.
    """

    model: CostModel
    cost: CacheCost
    longest_context: int | None
    at_window: bool = False

    @property
    def needs_calibration(self) -> bool:
        """Whether the policy is fitted to a model and there is no fit to this one."""
        return self.model.needs_calibration

    @property
    def label(self) -> str:
        """The policy's name, with a star where it needs a calibration that is missing."""
        return f"{self.cost.policy}*" if self.needs_calibration else self.cost.policy


@dataclass(frozen=True)
class PlanReport:
    """The result of :func:`make_plan`.

    Attributes:
        shape: of the model.
        tokens: tokens of one sequence by modality.
        batch: sequences.
        budget: bytes of memory, or None.
        weights: bytes of it that the model's weights take; 0 where the budget is the cache's alone.
        rows: one per policy, in the order asked for.
    """

    shape: ModelShape
    tokens: dict[str, int]
    batch: int
    budget: int | None
    rows: tuple[PlanRow, ...]
    weights: int = 0

    @property
    def cache_budget(self) -> int | None:
        """Bytes that are left for the cache; None without a budget."""
        return None if self.budget is None else max(0, self.budget - self.weights)

    @property
    def columns(self) -> tuple[str, ...]:
        """Heads of a table with :meth:`cells` as rows."""
        longest = () if self.budget is None else ("longest context",)
        return ("policy", "GiB", PACKED, WHOLE, "smaller by", *longest)

    def cells(self, row: PlanRow) -> tuple[str, ...]:
        """A row in words: sizes in GiB, bits per value."""
        cost = row.cost
        packed = f"{cost.packed_bits_per_value:.2f}" if cost.packed_tokens else "–"
        columns = (
            row.label,
            f"{cost.nbytes / 2**30:.3f}",
            packed,
            f"{cost.bits_per_value:.2f}",
            ratio_text(cost.ratio),
        )
        if self.budget is None:
            return columns
        longest = "does not fit" if row.longest_context is None else f"{row.longest_context:,}"
        return (*columns, f"{longest}†" if row.at_window else longest)

    @property
    def notes(self) -> list[str]:
        """Notes below the table, one sentence each."""
        shape, found = self.shape, []
        if self.budget is not None and self.weights:
            found.append(
                f"Of {_gib(self.budget)}, the weights take {_gib(self.weights)} ({shape.parameters / 1e9:.2f} billion "
                f"parameters in 16 bits) and {_gib(self.cache_budget)} are left for the cache."
            )
        elif self.budget is not None:
            found.append(f"{_gib(self.budget)} are for the cache alone.")
        if shape.window and sum(self.tokens.values()) > shape.window:
            found.append(f"The model's window is {shape.window:,} tokens: it does not read this context.")
        if any(row.at_window for row in self.rows):
            found.append(f"† The model's window: it reads {shape.window:,} tokens at most, the memory would hold more.")
        if missing := [row.cost for row in self.rows if row.needs_calibration]:
            stored = {
                cost.policy: cost.stored_as if cost.stored_as != cost.policy else "unfitted codes" for cost in missing
            }
            instead = ", ".join(f"{name} stores {what}" for name, what in stored.items())
            found.append(f"* Needs calibration for this model (kvmm calibrate). Until then {instead}.")
        return found

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON, with the operations of attention."""
        return {
            "model": self.shape.to_dict(),
            "tokens": self.tokens,
            "batch": self.batch,
            "budget": self.budget,
            "weights": self.weights,
            "cache_budget": self.cache_budget,
            "notes": self.notes,
            "policies": [self._row(row) for row in self.rows],
        }

    def _row(self, row: PlanRow) -> dict[str, Any]:
        longest = {"needs_calibration": row.needs_calibration}
        if self.budget is not None:
            longest |= {"longest_context": row.longest_context, "at_window": row.at_window}
        return {
            **row.cost.to_dict(),
            **longest,
            "decode_operations": decode_operations(row.model, self.tokens).to_dict(),
            "pack_operations": {m: pack_operations(row.model, m).to_dict() for m, n in self.tokens.items() if n},
        }


def count_tokens(context: int, media: Mapping[str, int]) -> dict[str, int]:
    """Tokens of one sequence by modality: the media, and text up to ``context``.

    Raises:
        KVMMError: the media have more tokens than the context, or the context is longer than can be planned.
    """
    if context > LONGEST:
        raise KVMMError(f"A context of {context} tokens is more than the {LONGEST} that can be planned.")
    if (held := sum(media.values())) > context:
        raise KVMMError(f"The media have {held} tokens and the context {context}: raise it, or plan fewer media.")
    return {"text": context - held, **media}


def make_plan(
    shape: ModelShape,
    policies: Sequence[str | KVPolicy],
    tokens: Mapping[str, int],
    *,
    batch: int = 1,
    budget: int | None = None,
    cache_only: bool = False,
    calibration: Calibration | None = None,
) -> PlanReport:
    """Plan a cache; needs no weights.

    Args:
        shape: of the model, from :func:`kvmm.analysis.cost.shapes.find_shape`.
        policies: presets, YAML files or :class:`KVPolicy` objects.
        tokens: tokens of one sequence by modality.
        batch: sequences, all alike.
        budget: bytes of memory, for which the longest context is sought; the weights are subtracted first.
        cache_only: the budget is for the cache alone: subtract nothing.
        calibration: what was fitted to the model.

    Raises:
        KVMMError: as :class:`CostModel` and its methods do.
    """
    media = {name: count for name, count in tokens.items() if name != "text"}
    weights = 0 if budget is None or cache_only else shape.weight_nbytes
    rows = []
    for policy in policies:
        model = CostModel(shape, policy, calibration)
        longest = None if budget is None else model.longest_context(max(0, budget - weights), media, batch) or None
        at_window = longest is not None and 0 < shape.window < longest
        rows.append(PlanRow(model, model.cost(tokens, batch), shape.window if at_window else longest, at_window))
    return PlanReport(shape, dict(tokens), batch, budget, tuple(rows), weights)


def _gib(nbytes: int) -> str:
    return f"{nbytes / 2**30:.4g} GiB"


__all__ = ["PLAN_POLICIES", "PlanReport", "PlanRow", "count_tokens", "make_plan"]
