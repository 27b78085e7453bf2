"""The bundled mini sets: small benchmarks in the official formats that the embedded model can answer, from fixed seeds.

    python -m training.mini --out assets/mini

writes ``docvqa/``, ``ocrbench/``, ``audio/`` and ``multipage/`` with a README.md. Pages and recordings come from the
held-out set (``python -m training.heldout``), crops and signs are drawn here. Two runs write the same bytes.
"""
