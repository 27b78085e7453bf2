"""Bytes, operations and longest contexts by policy, computed from a model's shape without its weights."""
