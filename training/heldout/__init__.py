"""The held-out set: fonts, values, wordings, layouts and voices that training never shows, from fixed seeds.

    python -m training.heldout --out runs/heldout

writes pictures, recordings and ``heldout.jsonl``, one conversation a line, a JSON object with the keys ``id``, ``set``,
``kind``, ``images`` (paths), ``audio`` (a path or null) and ``turns``.

A turn is ``{"question", "answers": [...], "key"}``. Paths are relative to the folder. Turns with ``"metric": "cer"``
are transcriptions; other answers are scored by exact match and ANLS. The sets ``layouts`` and ``scans`` are rendered by
Chromium through playwright.
"""
