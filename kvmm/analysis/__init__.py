"""Statistics of the tensors in a KV cache, the effect of a policy on them, and figures of both."""

from typing import TYPE_CHECKING

from kvmm.lazy import lazy_names

if TYPE_CHECKING:
    from kvmm.analysis.drift.measure import measure_drift, summarise
    from kvmm.analysis.drift.report import DriftReport
    from kvmm.analysis.drift.run import DriftPrompt, run_drift
    from kvmm.analysis.errors import (
        ErrorReport,
        KeyErrorBound,
        NormGapBound,
        key_error_bound,
        measure_errors,
        norm_gap_bound,
    )
    from kvmm.analysis.methods.measure import MethodsReport, compare_methods, iter_methods
    from kvmm.analysis.norms.attention_map import AttentionMap, record_attention
    from kvmm.analysis.norms.channels import ChannelReport, record_channels
    from kvmm.analysis.norms.measure import NormReport, record_norms
    from kvmm.analysis.scores.measure import ScoreReport, measure_scores, squared_softmax_error

__all__ = [
    "AttentionMap",
    "ChannelReport",
    "DriftPrompt",
    "DriftReport",
    "ErrorReport",
    "KeyErrorBound",
    "MethodsReport",
    "NormGapBound",
    "NormReport",
    "ScoreReport",
    "compare_methods",
    "iter_methods",
    "key_error_bound",
    "measure_drift",
    "measure_errors",
    "measure_scores",
    "norm_gap_bound",
    "record_attention",
    "record_channels",
    "record_norms",
    "run_drift",
    "squared_softmax_error",
    "summarise",
]

# the planner and its table of models are read without torch
__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "AttentionMap": "kvmm.analysis.norms.attention_map",
        "ChannelReport": "kvmm.analysis.norms.channels",
        "DriftPrompt": "kvmm.analysis.drift.run",
        "DriftReport": "kvmm.analysis.drift.report",
        "ErrorReport": "kvmm.analysis.errors",
        "KeyErrorBound": "kvmm.analysis.errors",
        "MethodsReport": "kvmm.analysis.methods.measure",
        "NormGapBound": "kvmm.analysis.errors",
        "NormReport": "kvmm.analysis.norms.measure",
        "ScoreReport": "kvmm.analysis.scores.measure",
        "compare_methods": "kvmm.analysis.methods.measure",
        "iter_methods": "kvmm.analysis.methods.measure",
        "key_error_bound": "kvmm.analysis.errors",
        "measure_drift": "kvmm.analysis.drift.measure",
        "measure_errors": "kvmm.analysis.errors",
        "measure_scores": "kvmm.analysis.scores.measure",
        "norm_gap_bound": "kvmm.analysis.errors",
        "record_attention": "kvmm.analysis.norms.attention_map",
        "record_channels": "kvmm.analysis.norms.channels",
        "record_norms": "kvmm.analysis.norms.measure",
        "run_drift": "kvmm.analysis.drift.run",
        "squared_softmax_error": "kvmm.analysis.scores.measure",
        "summarise": "kvmm.analysis.drift.measure",
    },
)
