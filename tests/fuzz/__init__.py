"""Hostile inputs with fixed seeds: ``python -m tests.fuzz --inputs 30000``.

Each module named in :data:`KINDS` makes inputs of one kind and uses each the way a visitor's file is used.
"""

KINDS = (
    "images",
    "documents",
    "recordings",
    "archives",
    "policies",
    "calibrations",
    "caches",
    "conversations",
    "evaluations",
)
