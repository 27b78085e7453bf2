"""Gather what has been measured of the models in ``assets``, for the app: kvmm/ui/model_figures.json.

python -m benchmarks.model_figures     # reads committed results of the blind set and of latency
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from kvmm.ui.parts.model_notes import FIGURES_PATH

RESULTS = Path(__file__).resolve().parent / "results"
BLIND = ("blind/results.json", "blind_office/results.json")
PACKED = ("blind/results.json", "blind_office_packed/results.json")
POLICIES = ("balanced", "small")
LATENCY = ("embedded_models.json", "embedded_models_float32.json")  # with and without bfloat16 instructions


def gather() -> dict[str, Any]:
    """``models {folder name: figures}``: ANLS and exact match of the blind set in full precision, seconds, and ANLS and
    bits per value of the whole cache with packed pages.
    """
    times = [
        {row["name"]: row for row in json.loads((RESULTS / file).read_text(encoding="utf-8"))["results"]}
        for file in LATENCY
    ]
    models = {}
    for name, packed in zip(BLIND, PACKED, strict=True):
        run, other = (json.loads((RESULTS / file).read_text(encoding="utf-8")) for file in (name, packed))
        scores, rows = run["results"]["blind_bf16"], [one[run["model_name"]] for one in times]
        assert len({row["policy"] for row in rows}) == 1 and len({row["dtype"] for row in rows}) == len(rows)
        models[run["model_name"]] = {
            "questions": scores["samples"],
            "anls": round(scores["anls,none"], 4),
            "memo_exact_match": round(scores["memo_exact_match,none"], 4),
            "first_token_seconds": {
                row["dtype"]: {"1": row["1_page_first_token_seconds"], "4": row["4_pages_first_token_seconds"]}
                for row in rows
            },
            "policy": rows[0]["policy"],
            "packed": {
                policy: {
                    "anls": round(found["anls,none"], 4),
                    "bits_per_value": round(found["bits_per_value,none"], 2),
                }
                for policy, found in ((policy, other["results"][f"blind_{policy}"]) for policy in POLICIES)
            },
        }
    return {
        "command": "python -m benchmarks.model_figures",
        "source": [f"benchmarks/results/{name}" for name in dict.fromkeys((*BLIND, *PACKED, *LATENCY))],
        "models": models,
    }


def main() -> None:
    FIGURES_PATH.write_text(json.dumps(gather(), indent=1) + "\n", encoding="utf-8")
    print(FIGURES_PATH.read_text(encoding="utf-8"), end="")


if __name__ == "__main__":
    main()
