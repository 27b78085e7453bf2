"""Spherical KV: keys as angles of a sphere and a length."""

from kvmm.codecs.spherical.codec import Spherical

__all__ = ["Spherical"]
