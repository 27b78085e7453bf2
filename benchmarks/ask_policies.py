"""Seconds a question about a four-page document takes under every cache policy, and what the cache then holds.

    python -m benchmarks.ask_policies [--pdf FILE] [--question TEXT] [--output benchmarks/results/ask_policies.json]

Every policy, and transformers' DynamicCache ("dynamic") as the reference, answers in the same process; rounds go
through all policies in turn, so that drift of the machine meets all of them. Two quantities are timed apart: prefill,
from the question to the first token (page processing, vision tower and prompt), and decode, seconds a token over a
fixed number of tokens after the first (this includes packing, which happens once, at the first decode step). Medians
over the rounds.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from PIL import Image, ImageDraw, ImageFont

from kvmm import policies
from kvmm.media import Media, load_media
from kvmm.models import Conversation, assets_folder, load_model
from kvmm.models.caches import DYNAMIC
from kvmm.models.loading import TINY_MODEL

PAGES = 4
ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--pdf", type=Path, help="a document; default: a sample of four pages or more, else drawn pages"
    )
    parser.add_argument("--question", default="What is the total?")
    parser.add_argument("--model", help="folder or hub id; default: tiny-omni")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype")
    parser.add_argument("--threads", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--rounds", type=int, default=5, help="timed rounds after one warm-up (default: 5)")
    parser.add_argument("--decode-tokens", type=int, default=32, help="tokens of the timed decode (default: 32)")
    parser.add_argument("--policies", nargs="+", default=list(policies()))
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks" / "results" / "ask_policies.json")
    args = parser.parse_args()

    torch.set_num_threads(args.threads)
    model, processor = load_model(args.model or TINY_MODEL, device=args.device, dtype=args.dtype)
    media, document = find_document(args.pdf)
    names = [DYNAMIC, *args.policies]
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    for round_index in range(args.rounds + 1):
        for name in names:
            run = measure(model, processor, name, media, args.question, args.decode_tokens)
            if round_index:  # the first round warms up
                runs[name].append(run)
        print(f"round {round_index} of {args.rounds}", file=sys.stderr)

    reference = summarise(runs[DYNAMIC])
    results = {}
    for name in names:
        summary = summarise(runs[name])
        for key in ("seconds", "prefill_seconds", "decode_seconds_per_token"):
            summary[f"{key}_ratio"] = summary[key] / reference[key]
        results[name] = summary
    report = {
        "command": shlex.join(["python", "-m", "benchmarks.ask_policies", *sys.argv[1:]]),
        "document": document,
        "pages": len(media),
        "question": args.question,
        "rounds": args.rounds,
        "decode_tokens": args.decode_tokens,
        "model": args.model or "embedded",
        "dtype": str(model.dtype).removeprefix("torch."),
        "machine": machine(args.threads, model.device),
        "versions": {name: version(name) for name in ("torch", "transformers", "numpy")},
        "git_hash": git_hash(),
        "date": time.strftime("%Y-%m-%d"),
        "results": results,
    }
    args.output.parent.mkdir(parents=True, exist_ok=True)
    args.output.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    show(results)


def measure(
    model: Any, processor: Any, policy: str, media: list[Media], question: str, decode_tokens: int
) -> dict[str, Any]:
    """One answer as a user gets it, and one of a fixed length for the decode rate."""
    *_, answer = Conversation(model, processor, policy).ask(question, media)
    with fixed_length(model, decode_tokens):
        *_, long = Conversation(model, processor, policy).ask(question, media, max_new_tokens=decode_tokens)
    assert long.tokens == decode_tokens
    return {
        "seconds": answer.seconds,
        "prefill_seconds": answer.ttft,
        "decode_seconds_per_token": 1 / long.tokens_per_second,
        "answer": answer.text,
        "memory": answer.memory.to_dict() if answer.memory is not None else None,
    }


@contextlib.contextmanager
def fixed_length(model: Any, tokens: int) -> Iterator[None]:
    """No answer ends before ``tokens`` tokens."""
    kept = model.generation_config.min_new_tokens
    model.generation_config.min_new_tokens = tokens
    try:
        yield
    finally:
        model.generation_config.min_new_tokens = kept


def summarise(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians and extremes of the timings; the answer and the memory of the last run (they do not vary)."""
    out: dict[str, Any] = {}
    for key in ("seconds", "prefill_seconds", "decode_seconds_per_token"):
        values = [run[key] for run in runs]
        out[key] = statistics.median(values)
        out[f"{key}_range"] = [min(values), max(values)]
    return out | {"answer": runs[-1]["answer"], "memory": runs[-1]["memory"]}


def find_document(pdf: Path | None) -> tuple[list[Media], str]:
    """The pages to ask about, and what they are."""
    if pdf is not None:
        return load_media(pdf), pdf.name
    for path in sorted((assets_folder() / "samples").glob("*.pdf")):
        pages = load_media(path)
        if len(pages) >= PAGES:
            return pages[:PAGES], path.name
    return [Media("image", draw_page(page), "drawn", page) for page in range(1, PAGES + 1)], "drawn"


def draw_page(page: int) -> Image.Image:
    """A page of an invoice; the total stands on the last one."""
    image = Image.new("RGB", (840, 1188), "white")
    draw, font = ImageDraw.Draw(image), ImageFont.load_default(26)
    lines = [f"Item {20 * page + row}    {row + 1} pieces    {7 * row + page}.50" for row in range(20)]
    if page == PAGES:
        lines[-1] = "Total: $4,812.30"
    for row, line in enumerate(["Northwind Trading", f"Invoice 48213, page {page}", *lines]):
        draw.text((60, 50 + 48 * row), line, font=font, fill="black")
    return image


def machine(threads: int, device: torch.device) -> dict[str, Any]:
    cpu = platform.processor() or platform.machine()
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                cpu = line.partition(":")[2].strip()
                break
    gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else None
    return {"cpu": cpu, "cores": os.cpu_count(), "threads": threads, "gpu": gpu, "python": platform.python_version()}


def git_hash() -> str | None:
    try:
        return subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def show(results: dict[str, dict[str, Any]]) -> None:
    print(f"{'policy':<18}{'seconds':>9}{'prefill':>9}{'ms/token':>10}{'ratio':>7}{'KiB':>9}{'bits':>7}  answer")
    for name, row in results.items():
        memory = row["memory"]
        size = f"{memory['held_nbytes'] / 1024:9.0f}{memory['bits_per_value']:7.2f}" if memory else " " * 16
        milliseconds = 1000 * row["decode_seconds_per_token"]
        times = f"{row['seconds']:9.2f}{row['prefill_seconds']:9.2f}{milliseconds:10.1f}"
        print(f"{name:<18}{times}{row['decode_seconds_per_token_ratio']:7.2f}{size}  {row['answer']}")


if __name__ == "__main__":
    main()
