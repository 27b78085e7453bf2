"""What is fitted to one model offline: the file, and how it is made (:mod:`kvmm.calibration.collect`)."""

from kvmm.calibration.file import (
    FILE_NAME,
    Calibration,
    SiteSamples,
    forget_fingerprint,
    load_calibration,
    model_fingerprint,
    site_name,
    without_fit,
)

__all__ = [
    "FILE_NAME",
    "Calibration",
    "SiteSamples",
    "forget_fingerprint",
    "load_calibration",
    "model_fingerprint",
    "site_name",
    "without_fit",
]
