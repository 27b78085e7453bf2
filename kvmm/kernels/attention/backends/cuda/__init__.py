"""Attention over packed segments in CUDA C++, on NVIDIA GPUs from compute capability 8.0."""
