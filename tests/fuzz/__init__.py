"""Hostile inputs with fixed seeds: ``python -m tests.fuzz --inputs 30000``.

Each module named in :data:`KINDS` makes inputs of one kind and uses each the way a visitor's file is used.
"""

KINDS = {  # and their weights: inputs that take long are fewer
    "images": 16,
    "documents": 6,
    "recordings": 6,
    "archives": 14,
    "policies": 14,
    "calibrations": 12,
    "caches": 24,
    "conversations": 4,
    "evaluations": 4,
    "requests": 6,
}
