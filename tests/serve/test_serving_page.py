"""docs/serving.md says the limits that hold, and figures of the result file."""

from __future__ import annotations

import json
import re
from pathlib import Path

from kvmm.models import sampling
from kvmm.paced import LEAST_RATE, STALL_SECONDS
from kvmm.serve import bodies, files, http, prompts, protocol

ROOT = Path(__file__).resolve().parents[2]
PAGE = " ".join((ROOT / "docs" / "serving.md").read_text(encoding="utf-8").split())


def test_limits() -> None:
    for text in (
        f"up to {protocol.MAX_CHARACTERS:,} characters in all",
        f"(0 to {sampling.MAX_TEMPERATURE:g})",
        f"up to {sampling.MAX_STOP} texts",
        f"up to {sampling.MAX_TOP_LOGPROBS} alternatives",
        f"{bodies.MAX_VALUES:,} JSON values",
        f"{bodies.BODIES_HELD} times `--max-upload`",
        f"{STALL_SECONDS:.0f} seconds; at least {LEAST_RATE >> 10} KiB a second",
        f"| files of a request | {protocol.MAX_MEDIA};",
        f"decoded at once | {http.PREPARING} |",
        f"wait to be read | {http.MAX_PREPARED >> 30} GiB |",
        f"{files.MAX_KEPT >> 20} MiB of those used last",
        f"every {prompts.TEXT_BLOCK} tokens of a text",
    ):
        assert text in PAGE, text


def test_figures() -> None:
    rows = {row["name"]: row for row in json.loads((ROOT / "benchmarks/results/serve.json").read_text())["results"]}
    assert all(row["equal"] for name, row in rows.items() if name.startswith("answers"))
    answers = re.search(r"16 clients got (\S+) times .* and 4 clients (\S+) times", PAGE)
    steps = re.search(r"4 at once are (\S+) and 16 at once (\S+) times", PAGE)
    shown = [*answers.groups(), *steps.groups()]
    names = ("answers 16", "answers 4", "steps 4", "steps 16")
    assert shown == [f"{rows[name]['ratio']:.1f}" for name in names]
