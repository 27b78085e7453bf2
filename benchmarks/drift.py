"""How far cache policies move a model's next-token distributions, the text being the same (teacher forcing).

    python -m benchmarks.drift --text FILE --model FOLDER_OR_ID [--prefill 1536] [--continue 512] [--policies ...]
    python -m benchmarks.drift --data questions.jsonl [--limit 24] [--transcribe 96] [--policies all mine.yaml ...]

With ``--text`` the first ``--prefill`` tokens are read exactly and packed, and the next ``--continue`` are read over
the packed cache. With ``--data`` (lines ``{"images", "audio", "question", "answers"}``, or the ``turns`` of the
held-out set) pages and recordings are packed before the question; then the question and the greedy answer of full
precision are read. ``--transcribe N`` adds the first N tokens of a transcription of every single page and recording.

KL(full || policy), agreement and perplexity are over positions that predict the forced text; bits are measured, from
the tensors held after packing. ``--answers`` also lets every policy answer, for length drift, early stop and refusal
flips, ``--seeds N`` adds sampled answers, ``--hide N`` asks about single pages at every place of N-page documents.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers

from kvmm import KVMMError, policies
from kvmm.analysis.drift import prompts as make
from kvmm.analysis.drift.measure import TOP_K
from kvmm.analysis.drift.report import DriftReport, tables
from kvmm.analysis.drift.run import DriftPrompt, make_report
from kvmm.models import load_model
from kvmm.models.caches import resolve_policies


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line; prints a table and writes JSON. What the user can put right is one line and exit code 2."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="folder or hub id; default: the embedded model")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--text", type=Path, help="a text file")
    source.add_argument("--data", type=Path, help="questions about pages and recordings, JSON lines")
    parser.add_argument("--policies", nargs="+", default=["all"], help="presets, YAML files, or all for the presets")
    parser.add_argument("--prefill", type=int, nargs="+", default=[1536], help="tokens of the text that are packed")
    parser.add_argument("--continue", dest="count", type=int, default=512, help="tokens of the text after them")
    parser.add_argument("--limit", type=int, help="questions, spread evenly over the data")
    parser.add_argument("--transcribe", type=int, default=0, metavar="N", help="also N tokens of transcriptions")
    parser.add_argument("--hide", type=int, default=0, metavar="N", help="ask about pages hidden among N instead")
    parser.add_argument("--answers", action="store_true", help="let every policy answer, too")
    parser.add_argument("--seeds", type=int, default=0, help="sampled answers a prompt and policy, 2 or more")
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--top-k", type=int, default=TOP_K)
    parser.add_argument("--device")
    parser.add_argument("--dtype")
    parser.add_argument("--threads", type=int, help="CPU threads")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args(arguments)
    try:
        run(options, sys.argv[1:] if arguments is None else list(arguments))
    except KVMMError as error:
        print(f"drift: {error}", file=sys.stderr)
        sys.exit(2)


def run(options: argparse.Namespace, arguments: Sequence[str]) -> None:
    """Measure, print and write."""
    named = [name for given in options.policies for name in (policies() if given == "all" else [given])]
    chosen = resolve_policies(named, transformers_caches=False)
    if options.threads:
        torch.set_num_threads(options.threads)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    model, processor = load_model(options.model, device=options.device, dtype=options.dtype)
    prompts = text_prompts(model, processor, options) if options.text else data_prompts(model, processor, options)
    report = make_report(
        model,
        processor,
        prompts,
        chosen,
        name=Path(options.model).name if options.model and Path(options.model).is_dir() else options.model,
        command=shlex.join(["python", "-m", "benchmarks.drift", *arguments]),
        settings=settings_of(options),
        answers=options.answers,
        seeds=options.seeds,
        temperature=options.temperature,
        max_new_tokens=options.max_new_tokens,
        top_k=options.top_k,
        progress=count if sys.stderr.isatty() else None,
    )
    show(report)
    if options.output:
        report.save(options.output)
        print(f"written: {options.output}", file=sys.stderr)


def count(done: int, steps: int) -> None:
    """One line on a terminal that counts up."""
    end = "\n" if done == steps else ""
    print(f"\r{done} of {steps} policies on prompts", end=end, file=sys.stderr, flush=True)


def text_prompts(model: Any, processor: Any, options: argparse.Namespace) -> list[DriftPrompt]:
    """The prompts of ``--text``."""
    try:
        text = options.text.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise KVMMError(f"{options.text} cannot be read as text ({error}): name a text file.") from None
    return make.text_prompts(model, processor, text, options.prefill, options.count, options.text.name)


def data_prompts(model: Any, processor: Any, options: argparse.Namespace) -> list[DriftPrompt]:
    """The prompts of ``--data``: questions, or hidden pages, and transcriptions of what they are about."""
    lines = make.read_lines(options.data)
    if options.hide:
        return make.line_prompts(model, processor, make.hidden_pages(lines, options.hide)[: options.limit])
    lines = make.shortened(lines, options.limit)
    return make.line_prompts(model, processor, make.with_transcriptions(lines, options.transcribe))


def settings_of(options: argparse.Namespace) -> dict[str, Any]:
    """What decides the figures, for the report."""
    common = {"top_k": options.top_k, "seeds": options.seeds, "temperature": options.temperature}
    if options.text:
        return {"text": options.text.name, "prefill": options.prefill, "continue": options.count, **common}
    data = {"data": options.data.name, "limit": options.limit, "transcribe": options.transcribe, "hide": options.hide}
    return {**data, "answers": options.answers, "max_new_tokens": options.max_new_tokens, **common}


def show(report: DriftReport) -> None:
    """Plain tables, for a terminal or a log."""
    for table in tables(report):
        print(table.title)
        lines = (table.columns, *table.rows)
        widths = [max(len(line[i]) for line in lines) for i in range(len(table.columns))]
        for first, *rest in lines:
            cells = (cell.rjust(width) for cell, width in zip(rest, widths[1:], strict=True))
            print(first.ljust(widths[0]), *cells, sep="  ")


if __name__ == "__main__":
    main()
