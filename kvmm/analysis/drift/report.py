"""The drift report: logit drift and answer metrics of several policies on the same prompts, as JSON.

A report states its format version and the fields of each of its parts; :func:`validate` checks a file against both, so
that a reader never takes a missing or misnamed figure for a measured one (the schema-integrity witness).
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvmm.analysis.common.schema import build, fields_of, problems_of
from kvmm.analysis.drift import answer_metrics
from kvmm.analysis.drift.measure import LogitDrift, LongContextTail
from kvmm.errors import KVMMError

FORMAT = "kvmm drift report"
FORMAT_VERSION = 1
_SHARES = (
    "top1_agreement", "topk_overlap", "median_top1", "same_length", "earlier", "truncated", "runs_on", "identical",
    "similarity", "policy_full", "full_full", "policy_policy", "same_seed", "rate", "accuracy", "accuracy_full",
    "spread", "spread_full",
)  # fmt: skip
_NOT_NEGATIVE = (
    "kl_mean", "kl_median", "kl_p90", "kl_p99", "kl_max", "median_kl", "kl_error", "tail_kl", "head_kl",
    "positions", "prompts", "bits", "packed_bits", "media_bits", "media_packed_bits", "answers", "questions",
    "perplexity", "perplexity_full",
)  # fmt: skip
_LIMITS = dict.fromkeys(_SHARES, (0.0, 1.0)) | dict.fromkeys(_NOT_NEGATIVE, (0.0, math.inf))


@dataclass(frozen=True)
class Bits:
    """Measured bits per value after packing, means over the prompts; see :func:`kvmm.models.caches.measured_bits`.

    ``bits`` is everything held, ``packed_bits`` the packed pages, ``media_*`` the same of images, video and audio.
    """

    bits: float | None
    packed_bits: float | None
    media_bits: float | None
    media_packed_bits: float | None


@dataclass(frozen=True)
class PolicyReport:
    """The results of one policy. Metrics that were not asked for, or have nothing to compare, are None.

    ``kl_error`` is the standard error of ``logits.kl_mean`` (None for one prompt); ``median_kl`` and ``median_top1``
    are medians over the prompts of each prompt's own mean.
    """

    policy: str
    bits: Bits
    logits: LogitDrift
    kl_error: float | None
    median_kl: float
    median_top1: float
    tail: LongContextTail
    length: answer_metrics.LengthDrift | None
    early_stop: answer_metrics.EarlyStop | None
    agreement: answer_metrics.AnswerAgreement | None
    refusals: answer_metrics.RefusalFlips | None
    seeds: answer_metrics.SeedSensitivity | None
    retrieval: answer_metrics.RetrievalRaggedness | None
    tier_flips: answer_metrics.TierFlips | None


@dataclass(frozen=True)
class DriftReport:
    """Policies compared on the same prompts; ``device`` is the GPU's name or "cpu", ``command`` what was run."""

    model: str
    device: str
    dtype: str
    command: str
    versions: dict[str, str]
    settings: dict[str, Any]
    prompts: int
    policies: tuple[PolicyReport, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain dicts, lists and numbers, for JSON, with the format and the fields of every part."""
        head = {"format": FORMAT, "format_version": FORMAT_VERSION}
        body = json.loads(json.dumps(dataclasses.asdict(self)))  # tuples become lists, as in the file
        return {**head, **body, "fields": fields_of(DriftReport)}

    @classmethod
    def from_dict(cls, report: Mapping[str, Any]) -> DriftReport:
        """The report that :meth:`to_dict` wrote. Raises :class:`KVMMError` with the first thing that is wrong."""
        if problems := validate(report):
            raise KVMMError(f"This is not a valid drift report: {problems[0]}.")
        return build(cls, report)

    def save(self, path: Path) -> None:
        """Write JSON. Raises :class:`KVMMError` if the report is not sound or the file cannot be written."""
        report = self.to_dict()
        if problems := validate(report):
            raise KVMMError(f"The drift report is not sound: {problems[0]}.")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(report, indent=1, allow_nan=False) + "\n", encoding="utf-8")
        except OSError as error:
            raise KVMMError(f"{path} cannot be written ({error.strerror}): name another file.") from None


@dataclass(frozen=True)
class Table:
    """A table for people; the first column is left-aligned, the others are numbers. Fits 80 characters."""

    title: str
    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def tables(report: DriftReport) -> list[Table]:
    """The report's main figures: logit drift, and the answers if they were compared."""
    prompts = f"{report.prompts} prompt{'s' * (report.prompts != 1)}"
    drift = _table(
        f"Logit drift, {prompts}",
        "whole, packed: bits per value of the cache and its packed pages; KL in nats per token, ± its standard error",
        ("policy", "whole", "packed", "KL", "±", "KL max", "top-1", "ppl", "tail KL"),
        [_drift_row(one) for one in report.policies],
    )
    rows = [_answer_row(one) for one in report.policies if one.length is not None]
    answers = _table(
        "Answers beside those of full precision",
        "length in tokens; early, runs on, same: shares; refusals: in full precision, +new, -lost",
        ("policy", "length", "early", "runs on", "same", "similar", "refusals", "seed gap", "pages", "tier flips"),
        rows,
    )
    return [drift, answers] if rows else [drift]


def _table(title: str, caption: str, columns: tuple[str, ...], rows: list[tuple[str, ...]]) -> Table:
    """Without the columns that are empty everywhere."""
    keep = [i for i in range(len(columns)) if any(row[i] for row in rows)]
    return Table(title, caption, tuple(columns[i] for i in keep), tuple(tuple(row[i] for i in keep) for row in rows))


def _number(value: float | None, form: str = ".2f") -> str:
    return "" if value is None else format(value, form)


def _drift_row(one: PolicyReport) -> tuple[str, ...]:
    return (
        one.policy,
        _number(one.bits.bits),
        _number(one.bits.packed_bits),
        _number(one.logits.kl_mean, ".4f"),
        _number(one.kl_error, ".4f"),
        _number(one.logits.kl_max),
        _number(one.logits.top1_agreement, ".3f"),
        _number(one.logits.perplexity, ".4g"),
        _number(one.tail.tail_kl, ".4f"),
    )


def _answer_row(one: PolicyReport) -> tuple[str, ...]:
    return (
        one.policy,
        _number(one.length.mean_difference, "+.1f"),
        _number(one.early_stop.earlier),
        _number(one.early_stop.runs_on),
        _number(one.agreement.identical),
        _number(one.agreement.similarity, ".3f"),
        f"{one.refusals.refused_full}+{one.refusals.to_refusal}-{one.refusals.from_refusal}",
        _number(one.seeds.gap, ".3f") if one.seeds else "",
        _number(one.retrieval.spread) if one.retrieval else "",
        _number(one.tier_flips.rate, ".3f") if one.tier_flips else "",
    )


def validate(report: Any) -> list[str]:
    """Faults of a report read from JSON, one line each; empty for a valid one.

    Checked are the format and its version, the fields that the report states against those of this version, presence
    and type of every field, that numbers are finite, and that shares lie in [0, 1] and divergences are not negative.
    """
    if not isinstance(report, Mapping) or report.get("format") != FORMAT:
        return [f"its format is not {FORMAT!r}"]
    if report.get("format_version") != FORMAT_VERSION:
        return [f"it has format version {report.get('format_version')!r}, this kvmm reads {FORMAT_VERSION}"]
    same = report.get("fields") == fields_of(DriftReport)
    problems = [] if same else ["the fields that it states are not those of its format"]
    body = {name: value for name, value in report.items() if name not in ("format", "format_version", "fields")}
    return problems + problems_of(DriftReport, body, "report", _LIMITS)


__all__ = [
    "FORMAT",
    "FORMAT_VERSION",
    "Bits",
    "DriftReport",
    "PolicyReport",
    "Table",
    "tables",
    "validate",
]
