"""Spherical KV's ablations of retention, A0 to A5, and eviction methods, at equal bytes.

    python -m benchmarks.retention --data tests/data/heldout/sample.jsonl [--limit 16] [--shares 0.4 0.2] [--steps 96]

Budgets are shares of the bytes that exact pages take. The prompt is packed (with ``--packed document``: the pages,
before the question), and its answer is read over the packed cache, teacher-forced; the distributions are compared with
those of full precision: KL(full || policy), Jensen-Shannon divergence, and how often the likeliest token is the same or
the right one. Without ``--model`` tiny-omni answers, with the codebooks of its calibration file.

A0 is the whole system of :data:`benchmarks.retention_variants.FULL`; every other line changes what its name says. A1:
tables against rebuilt keys on the same codes, without a budget. A2: joint, only dropping, only lowering, lowering
first. A3: heads alike. A4: segments. A5: margin gate. ``gain`` lines, without a budget: factors of the keys' logits.

From the lines follow the iso-quality front, the smallest budget of each method whose accuracy is within 0.8 points of
full precision, and the synergy gap, by how much the divergence of the joint plan is below the better of dropping alone
and lowering alone. With ``--steps`` the cache goes on for so many decode steps with entries that can rise, which shows
how restless hysteresis, cadence and moving averages leave the controller.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
import transformers
from transformers import PreTrainedModel

from benchmarks.retention_variants import STABILITY, VARIANTS, Variant, base_policy
from kvmm import KVMMError, KVPolicy
from kvmm.analysis.drift.prompts import read_lines, shortened
from kvmm.calibration import model_fingerprint
from kvmm.media import load_image
from kvmm.models import load_model
from kvmm.models.caches import DYNAMIC
from kvmm.models.documents import Document, read_on
from kvmm.models.forced_text import compare_logits
from kvmm.models.loading import TINY_MODEL
from kvmm.models.positions import all_position_ids, extended_position_ids
from kvmm.models.prompting import document_length, encode_question
from kvmm.policy import KVSpec, spec

ISO_POINTS = 0.8  # of accuracy that the front may lose
GAINS = (1.05, 1.1, 1.2)
Task = tuple[dict[str, Any], bool]  # a question, and whether its caches go on
Found = tuple[list[tuple[tuple[str, float], dict[str, Any]]], list[tuple[str, dict[str, float]]]]
_PREPARED: list[Any] = []  # model, processor and options of this process


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line; prints a table and writes JSON. What the user can put right is one line and exit code 2."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="folder or hub id; default: tiny-omni")
    parser.add_argument("--data", type=Path, required=True, help="questions about pages, JSON lines")
    parser.add_argument("--limit", type=int, default=16, help="questions, spread evenly over the data")
    parser.add_argument("--dtype", help="float32, bfloat16 or float16; default: chosen for the device")
    parser.add_argument("--shares", type=float, nargs="+", default=[0.4, 0.2], help="of the bytes of exact pages")
    parser.add_argument("--packed", choices=("prompt", "document"), default="prompt", help="what is packed")
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--steps", type=int, default=0, help="decode steps that show how restless tiers are")
    parser.add_argument("--threads", type=int, help="CPU threads")
    parser.add_argument("--processes", type=int, default=1, help="that ask questions at the same time (default 1)")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args(arguments)
    if options.processes < 1:
        parser.error("--processes must be at least 1")
    try:
        run(options)
    except KVMMError as error:
        print(f"retention: {error}", file=sys.stderr)
        sys.exit(2)


def run(options: argparse.Namespace) -> None:
    """Measure, print and write."""
    begun = time.perf_counter()
    lines = shortened(
        [line for line in read_lines(options.data) if line["images"] and not line["audio"]], options.limit
    )
    model = prepare(options)
    rows: dict[tuple[str, float], list[dict[str, Any]]] = {}
    restless: dict[str, list[dict[str, float]]] = {}
    steady = max(1, options.limit // 4)  # questions whose caches go on, if any do
    tasks = [(line, bool(options.steps) and number < steady) for number, line in enumerate(lines)]
    for number, (found, moved) in enumerate(answered(tasks, options), start=1):
        for key, row in found:
            rows.setdefault(key, []).append(row)
        for name, row in moved:
            restless.setdefault(name, []).append(row)
        print(f"{number} of {len(lines)} questions, {time.perf_counter() - begun:.0f} s", file=sys.stderr)
        report = make_report(model, options, rows, restless, time.perf_counter() - begun)
        if options.output:  # what there is so far: a run on a CPU takes its time
            options.output.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    for row in report["results"]:
        values = "  ".join(f"{name} {row[name]:>9.4f}" for name in ("kl", "js", "agreement", "accuracy"))
        print(f"{row['share']:5} {row['variant']:32} {row['nbytes']:>9} {values}  {row['held']} of {row['entries']}")
    for name in ("iso_quality", "synergy_gap", "stability"):
        print(name, json.dumps(report[name], indent=1))


def prepare(options: argparse.Namespace) -> PreTrainedModel:
    """The model, which this process then measures with."""
    if options.threads:
        torch.set_num_threads(options.threads)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    model, processor = load_model(options.model or TINY_MODEL, dtype=options.dtype)
    _PREPARED[:] = [model, processor, options]
    return model


def answered(tasks: Sequence[Task], options: argparse.Namespace) -> Iterator[Found]:
    """What is found for every question, in their order, by ``--processes`` processes with a model each."""
    if options.processes == 1:
        yield from map(ask, tasks)
        return
    with ProcessPoolExecutor(options.processes, get_context("spawn"), prepare, (options,)) as pool:
        yield from pool.map(ask, tasks)


@torch.no_grad()
def ask(task: Task) -> Found:
    """Read one question over every variant's cache, and let the caches go on if it is one of those."""
    (line, goes_on), (model, processor, options) = task, _PREPARED
    inputs = encode_question(model, processor, line["question"], [load_image(path) for path in line["images"]])
    before = options.packed == "document"
    length = document_length(inputs["input_ids"], model.config) if before else inputs["input_ids"].shape[1] - 1
    document = Document(model, inputs, length)
    answer = processor.tokenizer(line["answers"][0], return_tensors="pt", add_special_tokens=False)["input_ids"]
    found = list(measured(model, inputs, document, answer, options))
    moved = stability(model, inputs, document, options.steps, min(options.shares)) if goes_on else ()
    return found, list(moved)


def make_report(
    model: Any,
    options: argparse.Namespace,
    rows: Mapping[tuple[str, float], list[dict[str, Any]]],
    restless: Mapping[str, list[dict[str, float]]],
    seconds: float,
) -> dict[str, Any]:
    """The result file, of the questions so far."""
    results = [summary(*key, found) for key, found in rows.items()]
    settings = {name: str(value) if isinstance(value, Path) else value for name, value in vars(options).items()}
    return {
        "command": "python -m benchmarks.retention",
        "settings": {name: value for name, value in settings.items() if name != "output"},
        "model": {"name": options.model or TINY_MODEL, "fingerprint": model_fingerprint(model)},
        "device": str(model.device),
        "machine": {
            "system": platform.machine(),
            "threads": torch.get_num_threads(),
            "gpu": torch.cuda.get_device_name(model.device) if model.device.type == "cuda" else None,
        },
        "dtype": str(model.dtype).removeprefix("torch."),
        "versions": {name: version(name) for name in ("torch", "transformers")},
        "seconds": round(seconds, 1),
        "results": results,
        "iso_quality": iso_quality(results),
        "synergy_gap": synergy_gap(results),
        "stability": [
            {"settings": name, "documents": len(found)} | {k: round(fmean(o[k] for o in found), 5) for k in found[0]}
            for name, found in restless.items()
        ],
    }


def measured(
    model: Any,
    inputs: dict[str, torch.Tensor],
    document: Document,
    answer: torch.Tensor,
    options: argparse.Namespace,
) -> Iterator[tuple[tuple[str, float], dict[str, Any]]]:
    """``((variant, share), numbers)`` of one question; variants that cannot meet a budget are left out."""

    def read(policy: Any) -> tuple[torch.Tensor, dict[str, Any]]:
        cache = document.cache(policy)
        document._packed.clear()  # every policy comes once, and its cache is of no further use
        held = {} if policy == DYNAMIC else {"nbytes": cache.memory().nbytes}
        if held and policy.budget is not None:
            held |= cache.retention_report()
        return read_on(model, inputs, cache, answer)[-answer.shape[1] - 1 : -1], held

    full, _ = read(DYNAMIC)
    exact, held = read(base_policy("bf16"))
    nbytes = held["nbytes"]
    yield ("exact pages", 1.0), numbers(full, answer, exact, held)
    high = base_policy("spherical-high")
    free = {"spherical-high": high, "A1 spherical-high, rebuilt keys": with_keys(high, reconstruct=True)}
    free |= {f"spherical-high, gain {gain:g}": with_keys(high, gain=gain) for gain in GAINS}
    free |= {f"angles, {bits} bits": base_policy(KVSpec(spec("spherical-angles", bits))) for bits in (4, 3, 2)}
    for name, policy in free.items():
        yield (name, 1.0), numbers(full, answer, *read(policy))
    for share in options.shares:
        for name in options.variants:
            try:
                found = read(VARIANTS[name].under(int(share * nbytes)))
            except KVMMError:
                continue
            yield (name, share), numbers(full, answer, *found)


def with_keys(policy: KVPolicy, **options: Any) -> KVPolicy:
    """The policy with other options of its codec of keys."""

    def changed(kv: KVSpec) -> KVSpec:
        return replace(kv, key=replace(kv.key, options=tuple(sorted({**dict(kv.key.options), **options}.items()))))

    return policy.map_specs(changed)


def numbers(full: torch.Tensor, answer: torch.Tensor, logits: torch.Tensor, held: Mapping[str, Any]) -> dict[str, Any]:
    """Numbers of one question: by position ``kl``, ``js``, ``same`` and ``right``, and what the controller did."""
    found = compare_logits(full, logits)
    layers = held.get("layers", [])
    largest = [max(layer["share_by_head"]) for layer in layers]
    tiers = [tier for entry in held.get("entries", []) for tier in entry["tiers"]]
    dropped = max((len(entry["tier_names"]) - 1 for entry in held.get("entries", [])), default=0)
    right = logits.argmax(-1).cpu() == answer[0]
    return {
        "nbytes": held["nbytes"],
        "kl": found["kl"].tolist(),
        "js": found["js"].tolist(),
        "same": found["top1"].float().tolist(),
        "right": right.float().tolist(),
        "right_full": (full.argmax(-1).cpu() == answer[0]).float().tolist(),
        "entries": len(tiers),
        "held": sum(tier < dropped for tier in tiers),
        "lowered": sum(0 < tier < dropped for tier in tiers),
        "largest_head_share": fmean(largest) if largest else 0.0,
        "price": held.get("prices", {}).get("budget", 0.0),
    }


def summary(variant: str, share: float, found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Means over questions; accuracies in points over all tokens of the answers."""

    def tokens(name: str) -> list[float]:
        return [value for one in found for value in one[name]]

    return {
        "variant": variant,
        "share": share,
        "questions": len(found),
        "nbytes": round(fmean(one["nbytes"] for one in found)),
        "kl": round(fmean(fmean(one["kl"]) for one in found), 5),
        "kl_p95": round(float(np.quantile(tokens("kl"), 0.95)), 5),
        "js": round(fmean(fmean(one["js"]) for one in found), 5),
        "agreement": round(fmean(tokens("same")), 5),
        "accuracy": round(100 * fmean(tokens("right")), 2),
        "accuracy_full": round(100 * fmean(tokens("right_full")), 2),
        **{name: round(fmean(one[name] for one in found), 1) for name in ("entries", "held", "lowered")},
        "largest_head_share": round(fmean(one["largest_head_share"] for one in found), 4),
        "price": float(f"{fmean(one['price'] for one in found):.3g}"),
    }


def iso_quality(results: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The smallest share of each method whose accuracy is within 0.8 points of full precision; None if none is."""
    found: dict[str, float | None] = {}
    for row in results:
        if row["share"] == 1.0:
            continue
        best = found.setdefault(row["variant"], None)
        if row["accuracy"] >= row["accuracy_full"] - ISO_POINTS and (best is None or row["share"] < best):
            found[row["variant"]] = row["share"]
    return [{"variant": name, "share": share} for name, share in found.items()]


def synergy_gap(results: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """By share: the better divergence of dropping alone and lowering alone, minus that of the joint plan."""
    kl = {(row["variant"], row["share"]): row["kl"] for row in results}
    found = []
    for share in sorted({share for _, share in kl if share != 1.0}, reverse=True):
        alone = [kl[n, share] for n in ("A2 retention only", "A2 quantisation only") if (n, share) in kl]
        if alone and ("A0 full system", share) in kl:
            found.append({"share": share, "alone": min(alone), "joint": kl["A0 full system", share]})
            found[-1]["gap"] = round(found[-1]["alone"] - found[-1]["joint"], 5)
    return found


def stability(
    model: Any, inputs: dict[str, torch.Tensor], document: Document, steps: int, share: float
) -> Iterator[tuple[str, dict[str, float]]]:
    """``(settings, numbers)`` of decoding ``steps`` tokens of the prompt again, one at a time, entries free to rise."""
    text = inputs["input_ids"][:, -min(steps, 24) :]
    text = text.repeat(1, -(-steps // text.shape[1]))[:, :steps]
    text = torch.where(text >= 0, text, 0)
    positions = extended_position_ids(all_position_ids(model, inputs), steps)
    length = document.length

    def decoded(policy: Any) -> tuple[torch.Tensor, Any]:
        cache = document.cache(policy)
        document._packed.clear()
        logits = []
        for step in range(steps):
            out = model(
                input_ids=text[:, step : step + 1],
                attention_mask=torch.ones(1, length + step + 1, dtype=torch.long, device=text.device),
                position_ids=positions[..., length + step : length + step + 1],
                past_key_values=cache,
                use_cache=True,
            )
            logits.append(out.logits[0, -1])
        return torch.stack(logits), cache

    full, _ = decoded(DYNAMIC)
    exact = document.cache(base_policy("bf16")).memory().nbytes
    for name, settings in STABILITY.items():
        logits, cache = decoded(Variant("spherical-high", settings).under(int(share * exact)))
        report = cache.retention_report()
        yield (
            name,
            {
                "kl": float(compare_logits(full, logits)["kl"].mean()),
                "runs": report["runs"],
                "flip_rate": report["flip_rate"],
                **{kind: report[kind] for kind in ("lowered", "dropped", "raised")},
            },
        )


if __name__ == "__main__":
    main()
