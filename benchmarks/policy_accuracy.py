"""How many questions each cache policy answers, how well it transcribes, and what its cache then holds.

    python -m training.heldout --out runs/heldout
    python -m benchmarks.policy_accuracy --data runs/heldout/heldout.jsonl --limit 640 --transcriptions 6 --jobs 2
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
from importlib.metadata import version
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from transformers.utils import logging

from kvmm import get_policy, policies
from kvmm.analysis.drift.prompts import read_lines, shortened
from kvmm.eval.metrics import anls, cer, exact_match
from kvmm.models import load_model
from kvmm.models.caches import DYNAMIC, measured_bits
from kvmm.models.documents import Document, DocumentQA, answer_tokens
from kvmm.models.loading import TINY_MODEL

TRANSCRIPTION_TOKENS = 900
BITS = ("bits", "media_bits", "media_packed_bits")


def whole_documents(lines: Sequence[dict[str, Any]], limit: int | None) -> list[dict[str, Any]]:
    """About ``limit`` questions: all those about documents spread evenly over the data, which are read once each."""
    documents: dict[tuple, list[dict[str, Any]]] = {}
    for line in lines:
        documents.setdefault((*line["images"], line["audio"]), []).append(line)
    count = None if limit is None else -(-limit * len(documents) // max(len(lines), 1))
    return [line for asked in shortened(list(documents.values()), count) for line in asked]


@torch.no_grad()
def measure(
    model: Any, processor: Any, documents: Sequence[list[dict[str, Any]]], names: Sequence[str], before: bool
) -> dict[str, list[dict[str, Any]]]:
    """Ask every question of every document under every policy: ``{policy: [{answer, bits ...}, ...]}``."""
    document_qa = DocumentQA(model, processor, 0)
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    for number, lines in enumerate(documents, start=1):
        document = None
        for line in lines:
            inputs = document_qa.encode(line, Path())
            if before and document is None:
                document = Document(model, inputs)
            for name in names:
                document_qa.max_new_tokens = TRANSCRIPTION_TOKENS if line["metric"] == "cer" else line["max_new_tokens"]
                begin = time.perf_counter()
                if document is not None:
                    cache = document.cache(name)
                    tokens = answer_tokens(model, inputs, cache, document_qa.max_new_tokens)
                    text = processor.decode(tokens, skip_special_tokens=True).strip()
                else:
                    text, cache = document_qa.answer(inputs, name, (), False)
                seconds = time.perf_counter() - begin
                found[name].append({"answer": text, "seconds": seconds, **measured_bits(cache)})
        print(f"{number} of {len(documents)} documents", file=sys.stderr, flush=True)
    return found


def score(name: str, answers: Sequence[dict[str, Any]], lines: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Scores and means of one policy; ``exact`` lists every question."""
    pairs = list(zip(answers, lines, strict=True))
    asked = [(given["answer"], line["answers"]) for given, line in pairs if line["metric"] != "cer"]
    read = [(given["answer"], line["answers"][0]) for given, line in pairs if line["metric"] == "cer"]
    result: dict[str, Any] = {"policy": name, "questions": len(asked), "transcriptions": len(read)}
    if asked:
        result["anls"] = statistics.fmean(anls(*pair) for pair in asked)
        result["exact"] = [exact_match(*pair) for pair in asked]
    if errors := [cer(*pair) for pair in read]:
        result |= {"cer_mean": statistics.fmean(errors), "cer_median": statistics.median(errors)}
    for key in BITS:
        if known := [given[key] for given in answers if key in given]:
            result[key] = statistics.fmean(known)
    return result | {"seconds": sum(given["seconds"] for given in answers)}


def run_jobs(arguments: list[str], jobs: int) -> list[dict[str, list[dict[str, Any]]]]:
    """What :func:`measure` returns in each of ``jobs`` processes, which take turns with the documents."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "benchmarks.policy_accuracy", *arguments]
        parts = [Path(folder) / f"{job}.json" for job in range(jobs)]
        running = [subprocess.Popen([*command, "--job", str(n), "--output", str(p)]) for n, p in enumerate(parts)]
        if any([process.wait() for process in running]):
            raise SystemExit("a process failed; its error is above")
        return [json.loads(part.read_text()) for part in parts]


def line_of(result: dict[str, Any]) -> str:
    """One policy as a line of the table."""
    bits = [result.get(name, 16.0) for name in BITS]
    text = f"{result['policy']:18} bits {bits[0]:5.2f}  media {bits[1]:5.2f}  packed {bits[2]:5.2f}"
    if "anls" in result:
        text += f"  ANLS {result['anls']:.3f}  EM {result['exact_match']:.3f}  kept {result['kept']:.3f}"
    if "cer_mean" in result:
        text += f"  CER mean {result['cer_mean']:.3f} median {result['cer_median']:.3f}"
    return text + f"  {result['seconds']:.0f} s"


def main(arguments: list[str] | None = None) -> None:
    """Command line; prints one line a policy and writes JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=None, help="folder or hub id; default: tiny-omni")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--policies", nargs="+", default=list(policies()), help="presets or YAML files; default: all")
    parser.add_argument("--ask-before-packing", action="store_true")
    parser.add_argument("--limit", type=int, default=None, help="about so many questions, those of whole documents")
    parser.add_argument("--transcriptions", type=int, default=0, help="so many pages to transcribe as well")
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--dtype", default=None)
    parser.add_argument("--jobs", type=int, default=1, help="processes side by side")
    parser.add_argument("--answers", type=Path, default=None, help="write every answer to this JSON file")
    parser.add_argument("--output", type=Path, default=None)
    parser.add_argument("--job", type=int, help=argparse.SUPPRESS)  # which of the processes of --jobs this is
    given = sys.argv[1:] if arguments is None else arguments
    options = parser.parse_args(given)

    for policy in options.policies:
        get_policy(policy)
    names = [DYNAMIC, *options.policies]
    lines = read_lines(options.data)
    asked = whole_documents([line for line in lines if line["metric"] != "cer"], options.limit)
    lines = asked + shortened([line for line in lines if line["metric"] == "cer"], options.transcriptions)
    lines = [{**line, "max_new_tokens": options.max_new_tokens} for line in lines]
    documents = [list(group) for _, group in groupby(lines, lambda line: (line["images"], line["audio"]))]
    if options.job is None and options.jobs > 1:
        shares = run_jobs(given, options.jobs)
        found = {name: [] for name in names}
        for number, group in enumerate(documents):
            for name in names:
                mine = shares[number % options.jobs][name]
                found[name] += mine[: len(group)]
                del mine[: len(group)]
    else:
        logging.set_verbosity_error()
        logging.disable_progress_bar()
        model, processor = load_model(options.model or TINY_MODEL, dtype=options.dtype)
        share = documents if options.job is None else documents[options.job :: options.jobs]
        found = measure(model, processor, share, names, not options.ask_before_packing)
    if options.job is not None:
        options.output.write_text(json.dumps(found))
        return

    results = [score(name, found[name], lines) for name in names]
    exact = [result.pop("exact", []) for result in results]
    for result, mine in zip(results, exact, strict=True):
        if mine:
            kept = [same for same, right in zip(mine, exact[0], strict=True) if right]
            result["exact_match"], result["kept"] = statistics.fmean(mine), statistics.fmean(kept) if kept else 0.0
        print(line_of(result), flush=True)
    if options.answers:
        answers = {name: [given["answer"] for given in found[name]] for name in names}
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
