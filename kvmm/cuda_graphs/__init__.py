"""Decode steps and packing as CUDA graphs."""
