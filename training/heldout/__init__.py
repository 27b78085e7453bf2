"""The held-out set: fonts, values, wordings, layouts and voices that training never shows, from fixed seeds.

    python -m training.heldout --out runs/heldout

writes pictures, recordings and ``heldout.jsonl``, one conversation a line:

    {"id", "set", "kind", "images": [...], "audio": path or null, "turns": [{"question", "answers": [...], "key", "metric"?}]}

Paths are relative to the folder. ``metric`` is "cer" for transcriptions, otherwise answers are scored by exact match and
ANLS. The sets ``layouts`` and ``scans`` are rendered by Chromium through playwright.
"""
