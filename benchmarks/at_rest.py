"""Bytes of a saved document and the time to write and read it, against reading its pages again, and what is lost.

    python -m benchmarks.at_rest [--policies rd2 rd1 ...] [--rounds 5] [--output benchmarks/results/at_rest.json]

The sample's pages are read with every policy and packed, and the cache is saved and loaded again, once as it is and
once entropy-coded. ``ratio`` is against keys and values of the same tokens in bf16; files hold everything: exact
tokens, the token table, the policy. Seconds are of one thread of a CPU (its time, not the clock's), of one reading and
medians over the rounds. ``kl`` is KL(full || policy) in nats a token, of the answers and transcriptions of the held-out
sample, as ``benchmarks.drift`` has measured it (``--drift``): ratio and quality of a policy stand in one row.

    python -m benchmarks.drift --data tests/data/heldout/sample.jsonl --transcribe 64 --threads 1 \\
        --policies bf16 rd2 balanced rd1.5 benchmarks/policies/rd{1,1.5,1.75,2}-stream8-outliers.yaml \\
        --output benchmarks/results/drift_at_rest.json

That of the other presets is in ``drift_at_rest_presets.json``, of the same prompts: ``drift.json`` has fewer of them.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.ask_policies import ROOT
from benchmarks.report import Report, add_common_options, table
from kvmm import KVMMCache, KVPolicy
from kvmm.media import load_media
from kvmm.models import load_model
from kvmm.models.caches import resolve_policies
from kvmm.models.loading import TINY_MODEL
from kvmm.models.prompting import encode_question
from kvmm.samples import load_samples

STREAMED = tuple(f"benchmarks/policies/rd{bits}-stream8-outliers.yaml" for bits in ("1", "1.5", "1.75", "2"))
POLICIES = ("rd1", "rd1.5", "rd2", "rd2.5", "rd3", *STREAMED, "oscar2", "kivi2")
KIND = "pdf"
DRIFT = tuple(ROOT / "benchmarks" / "results" / f"{name}.json" for name in ("drift_at_rest", "drift_at_rest_presets"))


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line; prints a table and writes JSON after every row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="folder or hub id; default: tiny-omni")
    parser.add_argument("--policies", nargs="+", default=list(POLICIES))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--drift", type=Path, nargs="+", default=list(DRIFT), help="reports that KL is taken from")
    add_common_options(parser, "at_rest")
    given = sys.argv[1:] if arguments is None else list(arguments)
    options = parser.parse_args(given)
    options.rounds = 1 if options.smoke else options.rounds
    torch.set_num_threads(1)
    report = Report("at_rest", given, options)
    model, processor = load_model(options.model or TINY_MODEL, device=options.device)
    (sample,) = [one for one in load_samples() if one.kind == KIND]
    pages = [medium.data for file in sample.files for medium in load_media(file)][: 1 if options.smoke else None]
    inputs = encode_question(model, processor, sample.question, pages, None)
    report.run["document"] = {"file": sample.files[0].name, "pages": len(pages), "tokens": inputs["input_ids"].shape[1]}
    chosen = resolve_policies(options.policies, transformers_caches=False)
    kl = divergence(options.drift)
    with tempfile.TemporaryDirectory() as folder:
        for name, policy in chosen.items():
            row: dict[str, Any] = {"name": name, **kl.get(name, {})}
            with report.guarded(row):
                row |= measure(model, inputs, policy, options.rounds, Path(folder) / "cache")
    columns = ("kl", "whole_bits", "ratio_in_memory", "coded_ratio", "coded_save_seconds", "coded_load_seconds")
    table(("policy", *columns), [[row["name"], *(row.get(name) for name in columns)] for row in report.rows])
    report.finish()


def divergence(paths: Sequence[Path]) -> dict[str, dict[str, float]]:
    """``kl`` of every policy of reports of ``benchmarks.drift``, and ``kl_error``, its standard error over prompts.

    Raises:
        ValueError: the reports are not of the same model, prompts and settings.
    """
    reports = [json.loads(path.read_text(encoding="utf-8")) for path in paths]
    if any(one[name] != reports[0][name] for one in reports for name in ("model", "dtype", "prompts", "settings")):
        raise ValueError("--drift: the reports are of different runs")
    return {
        one["policy"]: {"kl": one["logits"]["kl_mean"], "kl_error": one["kl_error"]}
        for report in reversed(reports)
        for one in report["policies"]
    }


def measure(model: Any, inputs: Any, policy: KVPolicy, rounds: int, path: Path) -> dict[str, Any]:
    """Bytes and seconds of one policy."""

    def read() -> KVMMCache:
        cache = KVMMCache.for_model(model, policy, graph=False)
        with torch.no_grad():
            model(**inputs, past_key_values=cache, logits_to_keep=1)
        return cache.pack()

    reading, cache = _timed(read, 1)
    memory = cache.memory()
    dense = memory.nbytes_dense
    row: dict[str, Any] = {"whole_bits": memory.bits_per_value, "read_pages_seconds": reading, "dense_bytes": dense}
    row["ratio_in_memory"] = memory.ratio
    for kind, compress in (("plain", False), ("coded", True)):
        saving, _ = _timed(lambda compress=compress: cache.save(path, compress=compress), rounds)
        loading, _ = _timed(lambda: KVMMCache.load(path, model), rounds)
        size = path.stat().st_size
        row |= {f"{kind}_bytes": size, f"{kind}_ratio": dense / size}
        row |= {f"{kind}_save_seconds": saving, f"{kind}_load_seconds": loading}
    return row


def _timed(work: Callable[[], Any], rounds: int) -> tuple[float, Any]:
    seconds, found = [], None
    for _ in range(rounds):
        begin = time.process_time()
        found = work()
        seconds.append(time.process_time() - begin)
    return statistics.median(seconds), found


if __name__ == "__main__":
    main()
