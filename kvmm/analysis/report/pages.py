"""Which figures and tables make the report of an analysis, in the order of a reader's questions."""

from __future__ import annotations

from collections.abc import Sequence

from kvmm.analysis.cost.context_plot import plan_contexts
from kvmm.analysis.cost.plan import PlanReport
from kvmm.analysis.cost.plots import cost_components, decode_counts, pack_counts
from kvmm.analysis.drift.plots import drift_agreement, drift_by_bits, drift_by_position
from kvmm.analysis.drift.report import DriftReport
from kvmm.analysis.drift.report import tables as drift_tables
from kvmm.analysis.errors import ErrorReport
from kvmm.analysis.errors.plots import layer_errors, mixed_errors, outlier_channels, outlier_layers, token_error_map
from kvmm.analysis.norms.attention_map import AttentionMap
from kvmm.analysis.norms.channel_plots import channel_stages, stage_boxes, stage_summary
from kvmm.analysis.norms.channels import ChannelReport
from kvmm.analysis.norms.measure import NormReport
from kvmm.analysis.norms.plots import (
    NORM_NAMES,
    attention_heatmap,
    head_boxes,
    norm_boxes,
    norm_heatmap,
    norm_imbalance,
    token_boxes,
)
from kvmm.analysis.report.files import Figure, Table
from kvmm.analysis.scores.measure import ScoreReport
from kvmm.analysis.scores.plots import attention_kl, attention_kl_parts, score_histogram, softmax_errors

_BOXES = "Boxes hold half of the tokens, whiskers 5 to 95 %."


# -- norms ----------------------------------------------------------------------------------------------------------


def norm_tables(report: NormReport, channels: ChannelReport) -> list[Table]:
    """The imbalance in numbers, the unusual tokens of the layer, and what the stages of a codec make of its keys."""
    rows = []
    for kind in report.kinds:
        summary = report.summary(kind)
        rows.append(
            (
                NORM_NAMES[kind],
                f"{summary['variation']:.3f}",
                f"{summary['variation_worst']:.3f} ({summary['worst_layer']})",
                f"{summary['max_median_ratio']:.2f}",
                f"{summary['gap']:.2f} ({summary['gap_layer']})",
                f"{summary['outliers']:.1f}",
                str(len(summary["sinks"])),
            )
        )
    imbalance = Table(
        "Token-norm imbalance",
        "std/mean and max/median over a head's tokens; gap of the modalities' median norms; outlier tokens a layer",
        ("norms of", "std/mean", "worst (layer)", "max/median", "gap (layer)", "outliers", "sinks"),
        tuple(rows),
    )
    layer = report.layers.index(channels.layer)
    sinks = {row["position"] for row in report.sinks("key", layer, count=None)}
    unusual = [
        (
            str(row["position"]),
            row["modality"],
            row["token"].replace("\n", "⏎"),
            f"{row['norm']:.3g}",
            f"{row['ratio']:.2f}",
            "-" if row["attention"] is None else f"{row['attention']:.3f}",
            "yes" if row["position"] in sinks else "",
        )
        for row in report.outliers("key", layer)
    ]
    tokens = Table(
        f"Outlier tokens of layer {channels.layer}",
        "norm of the key and its ratio to the median; largest mean attention of a head",
        ("position", "modality", "token", "norm", "ratio", "attention", "sink"),
        tuple(unusual),
    )
    stages = Table(
        f"Keys of layer {channels.layer}, stages of codec oscar",
        f"range of a channel in a group of {channels.group_size} over the rms; error of {channels.bits}-bit codes",
        ("stage", "modality", "range", "kurtosis", "norm std/mean", "error", "a token"),
        tuple(
            (
                row.stage,
                row.modality,
                f"{row.range:.2f}",
                f"{row.kurtosis:.2f}",
                f"{row.norm_variation:.3f}",
                f"{row.relative_error:.4f}",
                f"{row.token_error:.4f}",
            )
            for row in channels.summary("key")
        ),
    )
    return [imbalance, *([tokens] if unusual else []), stages]


def norm_figures(
    report: NormReport, channels: ChannelReport, head: int = 0, attention: AttentionMap | None = None
) -> list[Figure]:
    """Norms over tokens, layers, modalities and heads, then one layer's channels at the stages of a codec.

    With ``attention`` of that layer its map lies beside the norms of its tokens.
    """
    layer, shown = report.layers.index(channels.layer), channels.layer
    figures = []
    for kind in report.kinds:
        name = NORM_NAMES[kind]
        figures.append(
            Figure(
                f"norms_{kind}",
                f"{name} norm of every token, by layer",
                "The ribbon shows each token's modality. Stripes are tokens of unusual norm in many layers.",
                norm_heatmap(report, kind),
            )
        )
    for kind in report.kinds:
        figures.append(
            Figure(
                f"boxes_{kind}",
                f"{NORM_NAMES[kind]} norms by layer and modality",
                f"{_BOXES} Where modalities lie apart, a group that mixes them wastes its range.",
                norm_boxes(report, kind, layer),
            )
        )
    figures += [
        Figure(
            "imbalance",
            "Token-norm imbalance of the keys, by layer",
            "Standard deviation over mean of the token norms: mean of the heads, and their range. 0 is even.",
            norm_imbalance(report, "key", layer),
        ),
        Figure(
            "heads",
            f"Key norms of layer {shown}, by head and modality",
            _BOXES,
            head_boxes(report, "key", layer),
        ),
        *_token_figures(report, attention, layer, shown),
        Figure(
            "stages_key",
            f"Keys of layer {shown} at the stages of codec oscar",
            "Magnitude by token and channel, each panel on its own scale. Rotation spreads strong channels over all; "
            "dividing by the token's norm then makes tokens alike.",
            channel_stages(channels, "key", head),
        ),
        Figure(
            "stages_value",
            f"Values of layer {shown}, as they come and rotated",
            "Magnitude by token and channel. Values get a scale a token, so no norm is divided out.",
            channel_stages(channels, "value", head),
        ),
        Figure(
            "ranges",
            f"Range of a channel in a group, keys of layer {shown}, by head and stage",
            f"In units of the stage's root mean square, over channels and groups of {channels.group_size} tokens of "
            "one modality. The step of a code is proportional to it, so equal boxes waste the fewest codes.",
            stage_boxes(channels, "range"),
        ),
        Figure(
            "stage_norms",
            f"Key norms of layer {shown}, by head and stage",
            f"{_BOXES} Rotation leaves norms as they are; scaling makes them 1.",
            stage_boxes(channels, "norm"),
        ),
        Figure(
            "stage_errors",
            f"What the stages do to the keys of layer {shown}",
            "Kurtosis is 3 for a normal distribution. The error is that of the codec's own codes in the model's basis, "
            "a mean over tokens; it falls where rotation and scaling fit the model.",
            stage_summary(channels, "key"),
        ),
    ]
    return figures


def _token_figures(report: NormReport, attention: AttentionMap | None, layer: int, shown: int) -> list[Figure]:
    """Norms over the heads, token by token, and where the queries of that layer look."""
    figures = [
        Figure(
            f"tokens_{kind}",
            f"{NORM_NAMES[kind]} norms of layer {shown} over the heads, by token",
            f"{_BOXES} The furthest outliers, and tokens spread over the prompt. Boxes apart from the others are of "
            "tokens that have unusual norms in all heads.",
            token_boxes(report, kind, layer),
        )
        for kind in report.kinds
    ]
    if attention is not None:
        caption = "Mean of the query heads. Columns that every query looks at are sinks."
        figures.append(Figure("attention", f"Attention of layer {shown}", caption, attention_heatmap(attention)))
    return figures


# -- errors ---------------------------------------------------------------------------------------------------------


def error_tables(report: ErrorReport, scores: ScoreReport) -> list[Table]:
    """Errors of keys and values, and the divergence of attention, by policy."""
    rows = []
    for one in report.policies:
        attention = scores.of(one.policy).kl
        sides = [one.side(side).by_layer(relative=True) for side in ("key", "value")]
        rows.append((one.policy, *(f"{v.mean():.4f}" for v in sides), f"{attention.mean():.4f}"))
    caption = "relative squared errors and KL(exact || policy) of the last queries' attention, means over the layers"
    return [Table("Errors by policy", caption, ("policy", "keys", "values", "attention KL"), tuple(rows))]


def error_figures(report: ErrorReport, scores: ScoreReport, layer: int) -> list[Figure]:
    """Errors by layer, channel and token, mixed groups, and what attention makes of them; details of ``layer``."""
    row = report.layers.index(layer)
    figures = [
        Figure(
            f"errors_{side}",
            f"Error of the {side}s, by layer and policy",
            "Squared error over the energy of what was stored; 1 is as bad as storing nothing.",
            layer_errors(report, side),
        )
        for side in ("key", "value")
    ]
    # In detail: the policy with the largest error, which has most to show.
    worst = max(report.policies, key=lambda one: float(one.side("key").by_layer(relative=True).mean())).policy
    figures += [
        Figure(
            "outlier_layers",
            f"Key error of {worst} with and without outlier tokens, by layer",
            "How much of the error is due to tokens of unusual norm, in their own vectors and in those of their group.",
            outlier_layers(report, worst, "key"),
        ),
        Figure(
            "outlier_channels",
            f"Key error of {worst} by channel, layer {layer}",
            "With and without outlier tokens, channels in order of their error.",
            outlier_channels(report, worst, row, "key"),
        ),
        Figure(
            "token_errors",
            f"Value error of {worst} by token and layer",
            "The ribbon shows each token's modality; tokens in full precision are empty.",
            token_error_map(report, worst, "value"),
        ),
        Figure(
            "mixed",
            "Groups of one modality against groups of several",
            "Key errors of per-channel codes. kvmm keeps modalities apart.",
            mixed_errors(report),
        ),
        Figure(
            "scores",
            f"Attention scores of {worst}, layer {layer}",
            "Before the softmax: with exact keys, quantised, and calibrated where the policy does so.",
            score_histogram(scores, worst, scores.layers.index(layer)),
        ),
        Figure(
            "attention",
            "Divergence of attention by layer",
            "KL(exact || policy) of the attention of the last queries.",
            attention_kl(scores),
        ),
        Figure(
            "softmax_errors",
            "Squared error of the attention's weights, by layer",
            "Mean over the last queries and their tokens; dotted without calibrated logits, where they are.",
            softmax_errors(scores),
        ),
        Figure(
            "attention_parts",
            f"Where attention diverges under {worst}",
            "Between modalities, and within each.",
            attention_kl_parts(scores, worst),
        ),
    ]
    return figures


# -- drift and cost -------------------------------------------------------------------------------------------------


def drift_page(report: DriftReport) -> tuple[Sequence[Figure], Sequence[Table]]:
    """Figures and tables of a drift report."""
    return [
        Figure(
            "drift_bits",
            "Drift over bits",
            "KL(full || policy) of the next token with its standard error, over the measured bits per value of the "
            "whole cache. Lower left is better.",
            drift_by_bits(report),
        ),
        Figure(
            "drift_position",
            "Drift along the continuation",
            "Mean KL by place in what is written: a rising line is drift that grows.",
            drift_by_position(report),
        ),
        Figure(
            "drift_agreement",
            "Agreement with full precision",
            "Shares of positions with the same most probable token, and of answers that are the same.",
            drift_agreement(report),
        ),
    ], drift_tables(report)


def cost_page(report: PlanReport) -> tuple[Sequence[Figure], Sequence[Table]]:
    """Figures and tables of a plan."""
    rows = tuple(report.cells(row) for row in report.rows)
    counts = ", ".join(f"{count:,} {name}" for name, count in report.tokens.items() if count)
    text = " ".join([f"{counts} tokens, batch {report.batch}.", *report.notes])
    table = Table(f"Cache of {report.shape.name}", text, report.columns, rows)
    figures = [
        Figure(
            "bytes",
            "Bytes of the cache",
            "Predicted to the byte, by what they hold: codes, their parameters, and tokens in full precision.",
            cost_components(report),
        ),
        Figure(
            "decode",
            "Operations of one decoded token",
            "Multiply-adds of attention: products with keys and values, and what codes add.",
            decode_counts(report),
        ),
    ]
    for modality, count in report.tokens.items():
        if count:
            text = "Rotation, norms and quantisation, all layers together; once a token."
            title = f"Operations of packing one {modality} token"
            figures.append(Figure(f"pack_{modality}", title, text, pack_counts(report, modality)))
    if report.budget is not None:
        text = "Media as given, and text as far as there is room."
        figures.append(Figure("longest", "Longest context of the budget", text, plan_contexts(report)))
    return figures, [table]


__all__ = ["cost_page", "drift_page", "error_figures", "error_tables", "norm_figures", "norm_tables"]
