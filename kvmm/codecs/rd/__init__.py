"""kvmm's own transform code."""

from kvmm.codecs.rd.codec import RD

__all__ = ["RD"]
