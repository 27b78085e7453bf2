"""Attention over packed segments in Triton, on any GPU."""
