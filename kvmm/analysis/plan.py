"""A plan: what a cache takes under several policies, and the longest context of a budget, for one model shape."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvmm.analysis.cost import LONGEST, CacheCost, CostModel
from kvmm.analysis.operations import decode_operations, pack_operations
from kvmm.analysis.shapes import ModelShape
from kvmm.calibration import Calibration
from kvmm.errors import KVMMError
from kvmm.policy import KVPolicy

PLAN_POLICIES = ("bf16", "kivi4", "kivi2", "oscar4-2", "oscar2", "calibquant1", "kitty", "rd2", "rd1")


@dataclass(frozen=True)
class PlanRow:
    """One policy of a plan: its model of costs, the bytes, and the longest context (None: no budget, or too small)."""

    model: CostModel
    cost: CacheCost
    longest_context: int | None

    @property
    def label(self) -> str:
        """The policy's name, with what is stored instead where it needs a calibration file and there is none."""
        cost = self.cost
        return cost.policy if cost.policy == cost.stored_as else f"{cost.policy} ({cost.stored_as}, not calibrated)"


@dataclass(frozen=True)
class PlanReport:
    """What :func:`make_plan` found.

    Attributes:
        shape: of the model.
        tokens: tokens of one sequence by modality.
        batch: sequences.
        budget: bytes of the whole cache, or None.
        rows: one a policy, in the order asked for.
    """

    shape: ModelShape
    tokens: dict[str, int]
    batch: int
    budget: int | None
    rows: tuple[PlanRow, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON, with the operations of attention."""
        return {
            "model": self.shape.to_dict(),
            "tokens": self.tokens,
            "batch": self.batch,
            "budget": self.budget,
            "policies": [self._row(row) for row in self.rows],
        }

    def _row(self, row: PlanRow) -> dict[str, Any]:
        longest = {} if self.budget is None else {"longest_context": row.longest_context}
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
    calibration: Calibration | None = None,
) -> PlanReport:
    """Plan a cache; needs no weights.

    Args:
        shape: of the model, from :func:`kvmm.analysis.shapes.find_shape`.
        policies: presets, YAML files or :class:`KVPolicy` objects.
        tokens: tokens of one sequence by modality.
        batch: sequences, all alike.
        budget: bytes of the whole cache, of which the longest context is sought.
        calibration: what was fitted to the model.

    Raises:
        KVMMError: as :class:`CostModel` and its methods do.
    """
    media = {name: count for name, count in tokens.items() if name != "text"}
    rows = []
    for policy in policies:
        model = CostModel(shape, policy, calibration)
        longest = None if budget is None else model.longest_context(budget, media, batch)
        rows.append(PlanRow(model, model.cost(tokens, batch), longest))
    return PlanReport(shape, dict(tokens), batch, budget, tuple(rows))


__all__ = ["PLAN_POLICIES", "PlanReport", "PlanRow", "count_tokens", "make_plan"]
