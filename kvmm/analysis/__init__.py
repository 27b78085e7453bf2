"""What the numbers in a KV cache look like, what a policy changes, and figures of both."""

from typing import TYPE_CHECKING

from kvmm.lazy import lazy_names

if TYPE_CHECKING:
    from kvmm.analysis.channels import ChannelReport, record_channels
    from kvmm.analysis.drift import measure_drift, summarise
    from kvmm.analysis.drift_report import DriftReport
    from kvmm.analysis.drift_run import DriftPrompt, run_drift
    from kvmm.analysis.errors import ErrorReport, measure_errors
    from kvmm.analysis.methods import MethodsReport, compare_methods, iter_methods
    from kvmm.analysis.norms import NormReport, record_norms
    from kvmm.analysis.scores import ScoreReport, measure_scores

__all__ = [
    "ChannelReport",
    "DriftPrompt",
    "DriftReport",
    "ErrorReport",
    "MethodsReport",
    "NormReport",
    "ScoreReport",
    "compare_methods",
    "iter_methods",
    "measure_drift",
    "measure_errors",
    "measure_scores",
    "record_channels",
    "record_norms",
    "run_drift",
    "summarise",
]

# the planner and its table of models are read without torch
__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "ChannelReport": "kvmm.analysis.channels",
        "DriftPrompt": "kvmm.analysis.drift_run",
        "DriftReport": "kvmm.analysis.drift_report",
        "ErrorReport": "kvmm.analysis.errors",
        "MethodsReport": "kvmm.analysis.methods",
        "NormReport": "kvmm.analysis.norms",
        "ScoreReport": "kvmm.analysis.scores",
        "compare_methods": "kvmm.analysis.methods",
        "iter_methods": "kvmm.analysis.methods",
        "measure_drift": "kvmm.analysis.drift",
        "measure_errors": "kvmm.analysis.errors",
        "measure_scores": "kvmm.analysis.scores",
        "record_channels": "kvmm.analysis.channels",
        "record_norms": "kvmm.analysis.norms",
        "run_drift": "kvmm.analysis.drift_run",
        "summarise": "kvmm.analysis.drift",
    },
)
