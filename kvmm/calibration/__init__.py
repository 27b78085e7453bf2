"""What is fitted to one model offline: the file, and how it is made (:mod:`kvmm.calibration.collect`)."""

from typing import TYPE_CHECKING

from kvmm.lazy import lazy_names

if TYPE_CHECKING:
    from kvmm.calibration.data import Calibration, SiteSamples, site_name
    from kvmm.calibration.file import (
        FILE_NAME,
        calibration_of,
        forget_fingerprint,
        model_fingerprint,
        read_calibration,
    )

__all__ = [
    "FILE_NAME",
    "Calibration",
    "SiteSamples",
    "calibration_of",
    "forget_fingerprint",
    "model_fingerprint",
    "read_calibration",
    "site_name",
]

# codecs read the data, and the file is checked by the codecs: neither may load the other
__getattr__, __dir__ = lazy_names(
    __name__,
    {
        **dict.fromkeys(("Calibration", "SiteSamples", "site_name"), "kvmm.calibration.data"),
        **dict.fromkeys(
            ("FILE_NAME", "calibration_of", "forget_fingerprint", "model_fingerprint", "read_calibration"),
            "kvmm.calibration.file",
        ),
    },
)
