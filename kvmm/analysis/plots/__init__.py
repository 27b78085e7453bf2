"""Every figure of kvmm once, as plotly functions that the app, the command line and reports share.

Figures have a transparent background and mid-grey text, readable on light and dark pages alike. Modalities keep one
colour everywhere, from the Okabe-Ito palette, which readers with colour-vision deficiencies can tell apart.
"""

from typing import TYPE_CHECKING

from kvmm.lazy import lazy_names

if TYPE_CHECKING:
    from kvmm.analysis.cost.plots import cost_components, decode_counts, pack_counts
    from kvmm.analysis.errors.plots import (
        channel_errors,
        layer_errors,
        mixed_errors,
        outlier_channels,
        outlier_layers,
        token_error_map,
        token_errors,
    )
    from kvmm.analysis.methods.plots import method_seconds, pareto
    from kvmm.analysis.norms.channel_plots import (
        STAGE_NAMES,
        channel_heatmap,
        channel_stages,
        stage_boxes,
        stage_summary,
    )
    from kvmm.analysis.norms.plots import (
        NORM_NAMES,
        attention_heatmap,
        head_boxes,
        norm_boxes,
        norm_heatmap,
        norm_imbalance,
        token_boxes,
    )
    from kvmm.analysis.plots.memory import memory_by_modality, memory_over_tokens
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
    from kvmm.analysis.scores.plots import attention_kl, attention_kl_parts, score_histogram, softmax_errors
    from kvmm.eval.report.plots import score_by_bits, score_differences

__all__ = [
    "DENSE_COLOR",
    "FONT",
    "GRID_COLOR",
    "MAX_COLUMNS",
    "MODALITY_COLORS",
    "NORM_NAMES",
    "STAGE_NAMES",
    "TEXT_COLOR",
    "attention_heatmap",
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
    "softmax_errors",
    "stage_boxes",
    "stage_summary",
    "style",
    "token_boxes",
    "token_error_map",
    "token_errors",
]

# the figures of a subject import the shared style from this package
__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "DENSE_COLOR": "kvmm.analysis.plots.style",
        "FONT": "kvmm.analysis.plots.style",
        "GRID_COLOR": "kvmm.analysis.plots.style",
        "MAX_COLUMNS": "kvmm.analysis.plots.style",
        "MODALITY_COLORS": "kvmm.analysis.plots.style",
        "NORM_NAMES": "kvmm.analysis.norms.plots",
        "STAGE_NAMES": "kvmm.analysis.norms.channel_plots",
        "TEXT_COLOR": "kvmm.analysis.plots.style",
        "attention_heatmap": "kvmm.analysis.norms.plots",
        "attention_kl": "kvmm.analysis.scores.plots",
        "attention_kl_parts": "kvmm.analysis.scores.plots",
        "softmax_errors": "kvmm.analysis.scores.plots",
        "bins": "kvmm.analysis.plots.style",
        "channel_errors": "kvmm.analysis.errors.plots",
        "channel_heatmap": "kvmm.analysis.norms.channel_plots",
        "channel_stages": "kvmm.analysis.norms.channel_plots",
        "cost_components": "kvmm.analysis.cost.plots",
        "decode_counts": "kvmm.analysis.cost.plots",
        "format_bytes": "kvmm.analysis.plots.style",
        "head_boxes": "kvmm.analysis.norms.plots",
        "layer_errors": "kvmm.analysis.errors.plots",
        "log_ticks": "kvmm.analysis.plots.style",
        "memory_by_modality": "kvmm.analysis.plots.memory",
        "memory_over_tokens": "kvmm.analysis.plots.memory",
        "method_seconds": "kvmm.analysis.methods.plots",
        "mixed_errors": "kvmm.analysis.errors.plots",
        "norm_boxes": "kvmm.analysis.norms.plots",
        "norm_heatmap": "kvmm.analysis.norms.plots",
        "norm_imbalance": "kvmm.analysis.norms.plots",
        "outlier_channels": "kvmm.analysis.errors.plots",
        "outlier_layers": "kvmm.analysis.errors.plots",
        "pack_counts": "kvmm.analysis.cost.plots",
        "pareto": "kvmm.analysis.methods.plots",
        "score_by_bits": "kvmm.eval.report.plots",
        "score_differences": "kvmm.eval.report.plots",
        "score_histogram": "kvmm.analysis.scores.plots",
        "stage_boxes": "kvmm.analysis.norms.channel_plots",
        "stage_summary": "kvmm.analysis.norms.channel_plots",
        "style": "kvmm.analysis.plots.style",
        "token_boxes": "kvmm.analysis.norms.plots",
        "token_error_map": "kvmm.analysis.errors.plots",
        "token_errors": "kvmm.analysis.errors.plots",
    },
)
