"""What the numbers in a KV cache look like, and figures of it."""

from kvmm.analysis.norms import NormReport, record_norms

__all__ = ["NormReport", "record_norms"]
