"""Keys coded as codewords and lengths, read through tables of the query."""

from kvmm.kernels.angle.reference import kmeans, mix_histogram, nearest, reconstruct, scores_lut

__all__ = ["kmeans", "mix_histogram", "nearest", "reconstruct", "scores_lut"]
