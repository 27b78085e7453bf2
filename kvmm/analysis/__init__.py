"""What the numbers in a KV cache look like, what a policy changes, and figures of both."""

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
