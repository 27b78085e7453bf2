"""Attention over packed segments in C, compiled on the machine it runs on."""
