"""What the numbers in a KV cache look like, what a policy changes, and figures of both."""

from kvmm.analysis.drift import measure_drift, summarise
from kvmm.analysis.drift_report import DriftReport
from kvmm.analysis.drift_run import DriftPrompt, run_drift
from kvmm.analysis.norms import NormReport, record_norms

__all__ = ["DriftPrompt", "DriftReport", "NormReport", "measure_drift", "record_norms", "run_drift", "summarise"]
