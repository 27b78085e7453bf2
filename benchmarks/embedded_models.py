"""What a model of the embedded kind costs on a CPU: bytes stored, seconds to load, memory, first token, tokens a
second.

    python -m benchmarks.embedded_models --models assets/tiny-omni runs/omni-model

Every model is loaded in a process of its own with `--threads` threads and answers about one page and about four, drawn
alike for all. Memory is the process's resident set. Weights that are not trained yet cost what trained ones do: the
answers play no part, and the timed decode has a fixed length. Medians over the rounds after a warm-up.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.ask_policies import PAGES, draw_page, fixed_length
from benchmarks.report import Report, add_common_options
from kvmm.media import Media
from kvmm.models import Conversation, load_model

QUESTION = "What is the total?"


def resident_bytes(field: str) -> int:
    """`VmRSS` (now) or `VmHWM` (at most) of this process."""
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    raise ValueError(f"/proc/self/status has no {field}")


def measure(folder: str, options: argparse.Namespace) -> dict[str, Any]:
    """All figures of one model; call it in a fresh process."""
    torch.set_num_threads(options.threads)
    before, begin = resident_bytes("VmRSS"), time.perf_counter()
    model, processor = load_model(folder, device="cpu", dtype=options.dtype)
    row: dict[str, Any] = {
        "stored_bytes": sum(file.stat().st_size for file in Path(folder).iterdir() if file.is_file()),
        "parameters": sum(p.numel() for p in model.parameters()),
        "dtype": str(model.dtype).removeprefix("torch."),
        "load_seconds": round(time.perf_counter() - begin, 3),
        "loaded_bytes": resident_bytes("VmRSS") - before,
        "load_average": round(os.getloadavg()[0], 2),  # of the machine before, what ran beside included
    }
    for count in (1, PAGES):
        media = [Media("image", draw_page(page), "drawn", page) for page in range(1, count + 1)]
        first, rate = [], []
        for _ in range(options.rounds + 1):
            with fixed_length(model, options.decode_tokens):
                talk = Conversation(model, processor, options.policy)
                *_, answer = talk.ask(QUESTION, media, max_new_tokens=options.decode_tokens)
            first.append(answer.ttft)
            rate.append(answer.tokens_per_second)
        pages = f"{count}_page" + "s" * (count > 1)
        row[f"{pages}_prompt_tokens"] = answer.memory.tokens - answer.tokens if answer.memory else None
        row[f"{pages}_first_token_seconds"] = round(statistics.median(first[1:]), 3)
        row[f"{pages}_first_token_range"] = [round(min(first[1:]), 3), round(max(first[1:]), 3)]
        row[f"{pages}_tokens_per_second"] = round(statistics.median(rate[1:]), 1)
    return row | {"resident_peak_bytes": resident_bytes("VmHWM")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_common_options(parser, "embedded_models")
    parser.add_argument("--models", nargs="+", default=["assets/tiny-omni"], help="folders")
    parser.add_argument("--dtype", help="of the loaded weights; default as kvmm.load_model chooses")
    parser.add_argument("--policy", default="balanced")
    parser.add_argument("--threads", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--rounds", type=int, default=5, help="timed rounds after one warm-up (default 5)")
    parser.add_argument("--decode-tokens", type=int, default=48, help="tokens of an answer (default 48)")
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)  # in the process of one model
    options = parser.parse_args()
    if options.smoke:
        options.rounds, options.decode_tokens = 1, 4
    if options.measure:
        print(json.dumps(measure(options.models[0], options)))
        return
    torch.set_num_threads(options.threads)
    report = Report("embedded_models", sys.argv[1:], options)
    for folder in options.models:
        name = " ".join(filter(None, (Path(folder).name, options.dtype)))
        row: dict[str, Any] = {"name": name, "policy": options.policy}
        command = [sys.executable, "-m", "benchmarks.embedded_models", "--measure", "--models", folder]
        for option in ("policy", "threads", "rounds", "decode_tokens", "dtype"):
            if getattr(options, option) is not None:
                command += [f"--{option.replace('_', '-')}", str(getattr(options, option))]
        with report.guarded(row):
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                raise RuntimeError(done.stderr.strip().splitlines()[-1])
            row |= json.loads(done.stdout.splitlines()[-1])
    report.finish()


if __name__ == "__main__":
    main()
