"""Every figure of kvmm once, as plotly functions that the app, the command line and reports share.

Figures have a transparent background and mid-grey text, readable on light and dark pages alike. Modalities keep one
colour everywhere, from the Okabe-Ito palette, which readers with colour-vision deficiencies can tell apart.
"""

from kvmm.analysis.plots.channels import STAGE_NAMES, channel_heatmap, channel_stages, stage_boxes, stage_summary
from kvmm.analysis.plots.memory import memory_by_modality, memory_over_tokens
from kvmm.analysis.plots.norms import NORM_NAMES, head_boxes, norm_boxes, norm_heatmap, norm_imbalance
from kvmm.analysis.plots.style import (
    DENSE_COLOR,
    FONT,
    GRID_COLOR,
    MAX_COLUMNS,
    MODALITY_COLORS,
    TEXT_COLOR,
    bins,
    format_bytes,
    style,
)

__all__ = [
    "DENSE_COLOR",
    "FONT",
    "GRID_COLOR",
    "MAX_COLUMNS",
    "MODALITY_COLORS",
    "NORM_NAMES",
    "STAGE_NAMES",
    "TEXT_COLOR",
    "bins",
    "channel_heatmap",
    "channel_stages",
    "format_bytes",
    "head_boxes",
    "memory_by_modality",
    "memory_over_tokens",
    "norm_boxes",
    "norm_heatmap",
    "norm_imbalance",
    "stage_boxes",
    "stage_summary",
    "style",
]
