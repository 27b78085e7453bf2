"""KIVI (arXiv 2402.02750): keys per channel, values per token, asymmetric min/max codes in small groups."""

from __future__ import annotations

from kvmm.codecs.affine import AffineCodec


class KIVI(AffineCodec):
    """Keys share a scale over ``group_size`` tokens of a channel, values over ``group_size`` channels of a token.

    The zero point is the group's minimum in floating point, as in the authors' code (section 3.2 and algorithm 1).
    """

    name = "kivi"
    pages_stand_alone = True
    static_encode = True
