"""Quantisation errors of keys and values, by channel, token, head, layer and modality.

A prompt is read exactly, once. Every layer's keys (after RoPE) and values are stored by the policy's own codecs, in the
pages that a cache would make of the prompt, and decoded: the error is that of the stored tensors. Sinks and the newest
text stay in full precision and have no error; they are in no figure here.

Two measures, over the same elements: the *absolute* error is the mean of ``(decoded - exact)^2``; the *relative* error
is that sum over the sum of ``exact^2``, the square of a ratio of Frobenius norms. A relative error of 1 is what storing
zeros costs. Codes are compared by the relative one, since keys and values differ in scale by layer, head and channel.
Neither says what an answer loses: a code that spends its bits on the directions that queries look at has larger errors
here and smaller ones in :mod:`kvmm.analysis.scores.measure`.

*Outlier tokens* are those of :meth:`kvmm.analysis.NormReport.outliers` for the layer and side: their norm is far
from the others', so in a per-channel group they stretch the range of all. Each channel's error is given in three
:data:`SCOPES`: of all tokens; with the outliers left out of the sum but not of the codes; and with pages packed without
them, as if they were kept in full precision. The difference of the last two is what outliers cost other tokens.

:class:`MixedErrors` puts one per-channel code of the keys on three arrangements of the same tokens: groups of one
modality each (as kvmm packs), groups of consecutive tokens whatever their modality, and groups that hold all modalities
in the prompt's proportions. It is the question of OScaR's Table 2 (arXiv 2605.19660), whose figures are not claimed.
"""

from kvmm.analysis.errors.bounds import KeyErrorBound, key_error_bound
from kvmm.analysis.errors.measure import measure_errors
from kvmm.analysis.errors.norm_gap import NormGapBound, norm_gap_bound
from kvmm.analysis.errors.report import (
    ARRANGEMENTS,
    SCOPES,
    ErrorReport,
    MixedErrors,
    PolicyErrors,
    SideErrors,
)

__all__ = [
    "ARRANGEMENTS",
    "SCOPES",
    "ErrorReport",
    "KeyErrorBound",
    "MixedErrors",
    "NormGapBound",
    "PolicyErrors",
    "SideErrors",
    "key_error_bound",
    "measure_errors",
    "norm_gap_bound",
]
