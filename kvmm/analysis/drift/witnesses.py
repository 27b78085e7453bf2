"""Spherical KV's witnesses W1 to W8: what a reader would notice of a compressed cache, each with a pass or a fail.

The paper names them; the thresholds below are kvmm's own and can be replaced, because none of the paper's are known
here. A witness that nothing was measured for has no verdict: it neither passes nor fails.

W1 length drift, W2 logit drift under teacher forcing (means, 95th percentiles and tails of KL, Jensen-Shannon
divergence and differences of log-probabilities; overlap of the likeliest tokens), W3 seed sensitivity, W4 refusal
flips, W5 tier-flip rate, W6 long-context tail, W7 retrieval raggedness, W8 schema integrity.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kvmm.analysis.drift.report import DriftReport, PolicyReport
from kvmm.analysis.drift.tool_calls import SchemaIntegrity
from kvmm.errors import KVMMError
from kvmm.models.forced_text import PositionDrift


@dataclass(frozen=True)
class Thresholds:
    """What each witness may show at most, or at least where it says so.

    Attributes:
        length: mean absolute difference of lengths, as a share of the mean length in full precision.
        kl, kl_p95, js_p95, difference_p95: nats per token.
        overlap: least share of the likeliest tokens in common.
        seed_gap: similarity lost beside what sampling loses anyway.
        refusals: share of the answers that went from one to the other.
        tier_flips: share of the controller's decisions that change a tier once more.
        tail: KL of the last quarter of a continuation over that of the first.
        raggedness: accuracy that the worst place loses beside the best, more than in full precision.
        schema: least share of the valid tool calls that stay valid.
    """

    length: float = 0.05
    kl: float = 0.05
    kl_p95: float = 0.25
    js_p95: float = 0.06
    difference_p95: float = 0.5
    overlap: float = 0.75
    seed_gap: float = 0.05
    refusals: float = 0.02
    tier_flips: float = 0.05
    tail: float = 2.0
    raggedness: float = 0.1
    schema: float = 0.98


@dataclass(frozen=True)
class Measure:
    """One figure of a witness, and what it may be: at most ``limit``, or at least where ``least`` is true."""

    name: str
    value: float
    limit: float
    least: bool = False

    @property
    def passed(self) -> bool:
        """Whether the figure is within its limit."""
        return self.value >= self.limit if self.least else self.value <= self.limit


@dataclass(frozen=True)
class Witness:
    """A witness: its number from 1, what it is called, and its figures, none if nothing was measured."""

    number: int
    name: str
    measures: tuple[Measure, ...] = ()

    @property
    def passed(self) -> bool | None:
        """Whether all figures are within their limits; None without any."""
        return all(measure.passed for measure in self.measures) if self.measures else None


@dataclass(frozen=True)
class Tails:
    """Mean, 95th and 99th percentile and maximum over positions, in nats per token."""

    mean: float
    p95: float
    p99: float
    max: float


def tails(values: np.ndarray) -> Tails:
    """Of a float array ``[N]``. Raises :class:`KVMMError` without positions."""
    if not len(values):
        raise KVMMError("There are no positions to summarise.")
    values = values.astype(np.float64)
    p95, p99 = np.quantile(values, (0.95, 0.99))
    return Tails(float(values.mean()), float(p95), float(p99), float(values.max()))


def witnesses(
    report: PolicyReport,
    drift: PositionDrift,
    schema: SchemaIntegrity | None = None,
    thresholds: Thresholds | None = None,
) -> tuple[Witness, ...]:
    """The eight witnesses of a policy, in order.

    Args:
        report: of :func:`kvmm.analysis.drift.run.run_drift`.
        drift: the positions that it summarises.
        schema: tool calls, if any were asked for.
        thresholds: None for the defaults.
    """
    limit = thresholds or Thresholds()
    kl, js, difference = (tails(x) for x in (drift.kl, drift.js, drift.difference))
    one = report

    def found(number: int, name: str, *measures: Measure | None) -> Witness:
        return Witness(number, name, tuple(measure for measure in measures if measure is not None))

    length = one.length and one.length.mean_absolute_difference / max(one.length.mean_tokens_full, 1.0)
    spread = one.retrieval and one.retrieval.spread - one.retrieval.spread_full
    return (
        found(1, "length drift", _at_most("length", length, limit.length)),
        found(
            2,
            "logit drift",
            Measure("KL, mean", kl.mean, limit.kl),
            Measure("KL, 95th percentile", kl.p95, limit.kl_p95),
            Measure("Jensen-Shannon, 95th percentile", js.p95, limit.js_p95),
            Measure("log-probabilities, 95th percentile", difference.p95, limit.difference_p95),
            Measure("likeliest tokens in common", one.logits.topk_overlap, limit.overlap, least=True),
        ),
        found(3, "seed sensitivity", _at_most("similarity lost", one.seeds and one.seeds.gap, limit.seed_gap)),
        found(4, "refusal flips", _at_most("flips", one.refusals and one.refusals.rate, limit.refusals)),
        found(5, "tier flips", _at_most("flips", one.tier_flips and one.tier_flips.rate, limit.tier_flips)),
        found(6, "long-context tail", _at_most("last over first quarter", one.tail.ratio, limit.tail)),
        found(7, "retrieval raggedness", _at_most("more than full precision", spread, limit.raggedness)),
        found(
            8,
            "schema integrity",
            None if schema is None or schema.kept is None else Measure("kept", schema.kept, limit.schema, least=True),
        ),
    )


def _at_most(name: str, value: float | None, limit: float) -> Measure | None:
    return None if value is None else Measure(name, float(value), limit)


def lines(found: Sequence[Witness]) -> list[str]:
    """One line per witness, for people: its verdict and its figures."""
    verdicts = {True: "pass", False: "FAIL", None: "not measured"}
    return [
        f"W{one.number} {one.name}: {verdicts[one.passed]}"
        + "".join(
            f"; {m.name} {m.value:.4g} ({'at least' if m.least else 'at most'} {m.limit:g})" for m in one.measures
        )
        for one in found
    ]


def verdicts(
    report: DriftReport,
    drift: Mapping[str, PositionDrift],
    schemas: Mapping[str, SchemaIntegrity] | None = None,
    thresholds: Thresholds | None = None,
) -> dict[str, Any]:
    """The witnesses of every policy of a report, as plain values for JSON.

    Args:
        report: of :func:`kvmm.analysis.drift.run.make_report`.
        drift: the positions of every policy (``collected``).
        schemas: what :func:`kvmm.analysis.drift.tool_run.run_tools` found, by policy; None if no calls were asked for.
        thresholds: None for the defaults.

    Returns:
        where the report is from, the thresholds, and of each policy ``tool_calls`` (None without any) and
        ``witnesses``: a list of ``number, name, passed`` (None where nothing was measured) and ``measures``.
    """
    origin = ("model", "device", "dtype", "command", "versions", "settings", "prompts")
    policies = {}
    for one in report.policies:
        calls = (schemas or {}).get(one.policy)
        found = witnesses(one, drift[one.policy], calls, thresholds)
        policies[one.policy] = {
            "bits": one.bits.bits,
            "witnesses": [
                {
                    "number": witness.number,
                    "name": witness.name,
                    "passed": witness.passed,
                    "measures": [{**asdict(measure), "passed": measure.passed} for measure in witness.measures],
                }
                for witness in found
            ],
            "tool_calls": None if calls is None else asdict(calls),
        }
    head = {name: getattr(report, name) for name in origin}
    return {**head, "thresholds": asdict(thresholds or Thresholds()), "policies": policies}


def save_verdicts(found: Mapping[str, Any], path: Path) -> None:
    """Write :func:`verdicts` as JSON, a figure that is not finite as null.

    Raises:
        KVMMError: the file cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(_finite(found), indent=1, allow_nan=False) + "\n", encoding="utf-8")
    except OSError as error:
        raise KVMMError(f"{path} cannot be written ({error.strerror}): name another file.") from None


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


__all__ = [
    "Measure",
    "Tails",
    "Thresholds",
    "Witness",
    "lines",
    "save_verdicts",
    "tails",
    "verdicts",
    "witnesses",
]
