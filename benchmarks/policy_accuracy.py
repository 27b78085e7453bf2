"""How many questions each cache policy answers, how well it transcribes, and what its cache then holds.

    python -m training.heldout --out runs/heldout
    python -m benchmarks.policy_accuracy --data runs/heldout/heldout.jsonl --limit 640 --transcriptions 12 --jobs 14
        [--model FOLDER_OR_ID] [--policies small mine.yaml] [--ask-before-packing] [--output FILE.json]

Every line of the data is ``{"images": [path, ...], "audio": path or null, "question": str, "answers": [str, ...]}``, or
has ``turns`` of which the first is asked; paths are relative to the file. ``dynamic`` (transformers' DynamicCache) is
always measured too: ``kept`` is the share of the questions it answers exactly that a policy answers exactly too.

The media are read and packed once, and each question is then asked of the packed cache: the harder order, in which the
prompt that contains the question cannot look at exact keys. With ``--ask-before-packing`` prompts are read exactly and
packed at the first decode step.

Bits are measured: bytes of all tensors over the keys and values held, for all tokens, and for media tokens with and
without their share of sinks, residual and tables; means over the questions. Lines whose turn has the metric ``cer`` are
transcriptions, scored by the character error rate.
"""

from __future__ import annotations

import argparse
import json
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers.utils import logging

from kvmm import get_policy, policies
from kvmm.analysis.drift_prompts import read_lines, shortened
from kvmm.eval.asking import DYNAMIC, Asker, measured_bits
from kvmm.eval.metrics import anls, cer, exact_match
from kvmm.models import load_model

TRANSCRIPTION_TOKENS = 900
MEDIA_INPUTS = ("pixel_values", "input_features")
BITS = ("bits", "media_bits", "media_packed_bits")


def whole_documents(lines: Sequence[dict[str, Any]], limit: int | None) -> list[dict[str, Any]]:
    """About ``limit`` questions: all those about documents spread evenly over the data, which are read once each."""
    documents: dict[tuple, list[dict[str, Any]]] = {}
    for line in lines:
        documents.setdefault((*line["images"], line["audio"]), []).append(line)
    count = None if limit is None else -(-limit * len(documents) // max(len(lines), 1))
    return [line for asked in shortened(list(documents.values()), count) for line in asked]


_encoder: Asker | None = None  # of a worker process


def _start_encoder(model: str | None) -> None:
    global _encoder
    torch.set_num_threads(1)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    _encoder = Asker(*load_model(model, device="cpu", dtype="float32"), 1)


def _encode(line: dict[str, Any], path: Path, with_media: bool) -> None:
    inputs = _encoder.encode(line, Path())
    save_file({n: t.contiguous() for n, t in inputs.items() if with_media or n not in MEDIA_INPUTS}, path)


def encode_all(lines: Sequence[dict[str, Any]], folder: Path, options: argparse.Namespace) -> None:
    """Write the model's inputs of every line, ``<number>.safetensors``, once for all policies.

    Media that were packed with the first question about them are left out of the others.
    """
    seen = set()
    with ProcessPoolExecutor(min(options.jobs, 16), get_context("spawn"), _start_encoder, (options.model,)) as pool:
        waiting = []
        for number, line in enumerate(lines):
            document = (*line["images"], line["audio"])
            with_media = options.ask_before_packing or document not in seen
            seen.add(document)
            waiting.append(pool.submit(_encode, line, folder / f"{number}.safetensors", with_media))
        for done in waiting:
            done.result()


@torch.no_grad()
def measure(
    asker: Asker, lines: Sequence[dict[str, Any]], policy: str, before: bool, encoded: Path | None
) -> dict[str, Any]:
    """Ask every question under one policy; returns scores of each, mean bits, seconds and answers."""
    answers, bits = [], []
    begin = time.perf_counter()
    device, dtype = asker.model.device, asker.model.dtype
    for number, line in enumerate(lines):
        document = (*line["images"], line["audio"])
        asker.max_new_tokens = TRANSCRIPTION_TOKENS if line["metric"] == "cer" else line["max_new_tokens"]
        if encoded is None:
            inputs = asker.encode(line, Path())
        else:
            read = load_file(encoded / f"{number}.safetensors")
            inputs = {n: t.to(device, dtype if t.is_floating_point() else None) for n, t in read.items()}
        text, cache = asker.answer(inputs, policy, document, before)
        answers.append(text)
        bits.append(measured_bits(cache))
    asked = [(text, line["answers"]) for text, line in zip(answers, lines, strict=True) if line["metric"] != "cer"]
    read = [(text, line["answers"][0]) for text, line in zip(answers, lines, strict=True) if line["metric"] == "cer"]
    result: dict[str, Any] = {"policy": policy, "questions": len(asked), "transcriptions": len(read)}
    result["anls"] = statistics.fmean(anls(*pair) for pair in asked) if asked else None
    result["exact"] = [exact_match(*pair) for pair in asked]
    errors = [cer(*pair) for pair in read]
    if errors:
        result |= {"cer_mean": statistics.fmean(errors), "cer_median": statistics.median(errors)}
    for name in BITS:
        if found := [b[name] for b in bits if name in b]:
            result[name] = statistics.fmean(found)
    return result | {"seconds": time.perf_counter() - begin, "answers": answers}


def measure_all(options: argparse.Namespace, arguments: list[str]) -> list[dict[str, Any]]:
    """Results of ``dynamic`` and of every policy, in this process or in ``--jobs`` others. A policy that fails is
    reported and left out.
    """
    names = [DYNAMIC, *options.policies]
    lines = read_lines(options.data)
    asked = whole_documents([line for line in lines if line["metric"] != "cer"], options.limit)
    lines = asked + shortened([line for line in lines if line["metric"] == "cer"], options.transcriptions)
    lines = [{**line, "max_new_tokens": options.max_new_tokens} for line in lines]
    if options.jobs > 1:
        with tempfile.TemporaryDirectory() as temporary, ThreadPoolExecutor(options.jobs) as pool:
            folder = Path(temporary)
            encode_all(lines, folder, options)

            def run(name: str) -> dict[str, Any] | None:
                output = (options.partial or folder) / f"{names.index(name)}.json"
                command = [sys.executable, "-m", "benchmarks.policy_accuracy", *arguments, "--jobs", "1"]
                command += ["--only", name, "--encoded", str(folder), "--output", str(output)]
                if subprocess.run(command, stdout=sys.stderr).returncode:
                    print(f"{name} failed", file=sys.stderr)
                    return None
                return json.loads(output.read_text())

            return [result for result in pool.map(run, names) if result is not None]
    logging.set_verbosity_error()
    model, processor = load_model(options.model, dtype=options.dtype)
    asker = Asker(model, processor, options.max_new_tokens)
    chosen = [options.only] if options.only else names
    return [measure(asker, lines, name, not options.ask_before_packing, options.encoded) for name in chosen]


def line_of(result: dict[str, Any]) -> str:
    """One policy as a line of the table."""
    bits = [result.get(name, 16.0) for name in BITS]
    text = f"{result['policy']:18} bits {bits[0]:5.2f}  media {bits[1]:5.2f}  packed {bits[2]:5.2f}"
    if result["anls"] is not None:
        text += f"  ANLS {result['anls']:.3f}  EM {result['exact_match']:.3f}  kept {result['kept']:.3f}"
    if "cer_mean" in result:
        text += f"  CER mean {result['cer_mean']:.3f} median {result['cer_median']:.3f}"
    return text + f"  {result['seconds']:.0f} s"


def main(arguments: list[str] | None = None) -> None:
    """Command line; prints one line a policy and writes JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=None, help="folder or hub id; default: the embedded model")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--policies", nargs="+", default=list(policies()), help="presets or YAML files; default: all")
    parser.add_argument("--ask-before-packing", action="store_true")
    parser.add_argument("--limit", type=int, default=None, help="about so many questions, those of whole documents")
    parser.add_argument("--transcriptions", type=int, default=0, help="so many pages to transcribe as well")
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--dtype", default=None)
    parser.add_argument("--jobs", type=int, default=1, help="processes side by side, a policy each")
    parser.add_argument("--answers", type=Path, default=None, help="write every answer to this JSON file")
    parser.add_argument("--output", type=Path, default=None)
    parser.add_argument("--partial", type=Path, help="folder for the result of each policy as it comes, with --jobs")
    # what the processes of --jobs are started with
    parser.add_argument("--only", help=argparse.SUPPRESS)
    parser.add_argument("--encoded", type=Path, help=argparse.SUPPRESS)
    given = sys.argv[1:] if arguments is None else arguments
    options = parser.parse_args(given)

    for policy in options.policies:
        get_policy(policy)
    results = measure_all(options, given)
    if options.only:
        options.output.write_text(json.dumps(results[0]))
        return
    answers = {result["policy"]: result.pop("answers") for result in results}
    exact = [result.pop("exact") for result in results]
    for result, mine in zip(results, exact, strict=True):
        if mine:
            kept = [same for same, right in zip(mine, exact[0], strict=True) if right]
            result["exact_match"], result["kept"] = statistics.fmean(mine), statistics.fmean(kept) if kept else 0.0
        print(line_of(result), flush=True)
    if options.answers:
        options.answers.write_text(json.dumps(answers, indent=1) + "\n")
    if options.output:
        cuda = torch.cuda.is_available()
        report = {
            "command": f"python -m benchmarks.policy_accuracy {shlex.join(given)}",
            "device": torch.cuda.get_device_name() if cuda else "cpu",
            "versions": {name: version(name) for name in ("torch", "transformers")},
            "packed": "before the first decode step" if options.ask_before_packing else "before the question",
            "results": results,
        }
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(json.dumps(report, indent=1) + "\n")
        print(f"written: {options.output}", file=sys.stderr)


if __name__ == "__main__":
    main()
