"""Every figure of kvmm once, as plotly functions that the app, the command line and reports share.

Figures have a transparent background and mid-grey text, readable on light and dark pages alike. Modalities keep one
colour everywhere, from the Okabe-Ito palette, which readers with colour-vision deficiencies can tell apart.
"""

from kvmm.analysis.plots.channels import STAGE_NAMES, channel_heatmap, channel_stages, stage_boxes, stage_summary
from kvmm.analysis.plots.cost import cost_components, decode_counts, pack_counts
from kvmm.analysis.plots.errors import (
    channel_errors,
    layer_errors,
    mixed_errors,
    outlier_channels,
    outlier_layers,
    token_error_map,
    token_errors,
)
from kvmm.analysis.plots.evaluation import score_by_bits, score_differences
from kvmm.analysis.plots.memory import memory_by_modality, memory_over_tokens
from kvmm.analysis.plots.methods import method_seconds, pareto
from kvmm.analysis.plots.norms import NORM_NAMES, head_boxes, norm_boxes, norm_heatmap, norm_imbalance
from kvmm.analysis.plots.scores import attention_kl, attention_kl_parts, score_histogram
from kvmm.analysis.plots.style import (
    DENSE_COLOR,
    FONT,
    GRID_COLOR,
    MAX_COLUMNS,
    MODALITY_COLORS,
    TEXT_COLOR,
    bins,
    format_bytes,
    log_ticks,
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
    "attention_kl",
    "attention_kl_parts",
    "bins",
    "channel_errors",
    "channel_heatmap",
    "channel_stages",
    "cost_components",
    "decode_counts",
    "format_bytes",
    "head_boxes",
    "layer_errors",
    "log_ticks",
    "memory_by_modality",
    "memory_over_tokens",
    "method_seconds",
    "mixed_errors",
    "norm_boxes",
    "norm_heatmap",
    "norm_imbalance",
    "outlier_channels",
    "outlier_layers",
    "pack_counts",
    "pareto",
    "score_by_bits",
    "score_differences",
    "score_histogram",
    "stage_boxes",
    "stage_summary",
    "style",
    "token_error_map",
    "token_errors",
]
