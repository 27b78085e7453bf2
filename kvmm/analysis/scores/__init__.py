"""Attention scores under a policy: histograms and divergence per layer."""
