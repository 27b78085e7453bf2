"""How far cache policies move a model's next-token distributions, the text being the same (teacher forcing).

    python -m benchmarks.drift --text FILE ... --model NAME [--prefill 1536] [--continue 512] [--policies ...]
    python -m benchmarks.drift --text FILE ... --model NAME --free-running 1024 [--policies ...]
    python -m benchmarks.drift --data questions.jsonl [--limit 24] [--transcribe 96] [--policies all mine.yaml ...]

With ``--text`` the first ``--prefill`` tokens of each file are read exactly and packed, and the next ``--continue`` are
read over the packed cache; with ``--starts`` there are prompts that begin further on in the file, too. With
``--free-running N`` every policy goes on with N greedy tokens of its own instead (:mod:`benchmarks.free_running`). Both
write their file after every policy, or group of them. ``--resume`` keeps the policies that an earlier run of the same
model, prompts and settings has.

With ``--data`` (lines ``{"images", "audio", "question", "answers"}``, or the ``turns`` of the held-out set) pages and
recordings are packed before the question; then the question and the greedy answer of full precision are read.
``--transcribe N`` adds the first N tokens of a transcription of every single page and recording.

KL(full || policy), agreement and perplexity are over positions that predict the forced text; bits are measured, from
the tensors held after packing. ``--answers`` also lets every policy answer, for length drift, early stop and refusal
flips, ``--seeds N`` adds sampled answers, ``--hide N`` asks about single pages at every place of N-page documents.
``--verdicts FILE`` writes what the witnesses W1 to W8 say, ``--tools FILE.json`` has the tools of W8.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import transformers

from benchmarks import free_running
from benchmarks.ask_policies import git_hash, machine
from kvmm import KVMMError, policies
from kvmm.analysis.drift import prompts as make
from kvmm.analysis.drift import witnesses
from kvmm.analysis.drift.report import DriftReport, PolicyReport, tables
from kvmm.analysis.drift.run import DriftPrompt, make_report, report_of, run_forced
from kvmm.analysis.drift.tool_run import read_tools, run_tools
from kvmm.models import load_model
from kvmm.models.caches import resolve_policies
from kvmm.models.forced_text import TOP_K
from kvmm.models.loading import TINY_MODEL


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line; prints a table and writes JSON. What the user can put right is one line and exit code 2."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="folder, hub id or packaged model; default: tiny-omni")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--text", type=Path, nargs="+", help="text files")
    source.add_argument("--data", type=Path, help="questions about pages and recordings, JSON lines")
    parser.add_argument("--policies", nargs="+", default=["all"], help="presets, YAML files, or all for the presets")
    parser.add_argument("--prefill", type=int, nargs="+", default=[1536], help="tokens of the text that are packed")
    parser.add_argument("--starts", type=int, nargs="+", default=[0], help="tokens of a text left out before a prompt")
    parser.add_argument("--continue", dest="count", type=int, default=512, help="tokens of the text after them")
    parser.add_argument("--free-running", type=int, metavar="N", help="tokens of its own that each policy writes")
    parser.add_argument("--group", type=int, default=6, help="policies that write at the same time")
    parser.add_argument("--resume", action="store_true", help="keep the policies that --output has, measure the others")
    parser.add_argument("--limit", type=int, help="questions, spread evenly over the data")
    parser.add_argument("--transcribe", type=int, default=0, metavar="N", help="also N tokens of transcriptions")
    parser.add_argument("--hide", type=int, default=0, metavar="N", help="ask about pages hidden among N instead")
    parser.add_argument("--answers", action="store_true", help="let every policy answer, too")
    parser.add_argument("--seeds", type=int, default=0, help="sampled answers a prompt and policy, 2 or more")
    parser.add_argument("--tools", type=Path, help="also ask for tool calls: JSON Schemas of tools, and requests")
    parser.add_argument("--verdicts", type=Path, help="write the verdicts of the witnesses here")
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
    check(options)
    if options.threads:
        torch.set_num_threads(options.threads)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    model, processor = load_model(options.model or TINY_MODEL, device=options.device, dtype=options.dtype)
    prompts = text_prompts(model, processor, options) if options.text else data_prompts(model, processor, options)
    if options.free_running:
        names = [f"{path.stem}+{start}" if start else path.stem for path in options.text for start in options.starts]
        free_running.run(options, arguments, model, processor, dict(zip(names, prompts, strict=True)), chosen)
        return
    origin = {
        "name": Path(options.model).name
        if options.model and Path(options.model).is_dir()
        else options.model or TINY_MODEL,
        "command": shlex.join(["python", "-m", "benchmarks.drift", *arguments]),
        "settings": settings_of(options, model.device),
    }
    if options.text and not (options.answers or options.seeds or options.verdicts):
        report = forced(options, model, prompts, chosen, origin)
    else:
        positions: dict[str, Any] = {}
        before = earlier(options, model, prompts, origin)
        left = {name: policy for name, policy in chosen.items() if name not in {one.policy for one in before}}
        report = make_report(
            model,
            processor,
            prompts,
            left,
            **origin,
            answers=options.answers,
            seeds=options.seeds,
            temperature=options.temperature,
            max_new_tokens=options.max_new_tokens,
            top_k=options.top_k,
            progress=count if sys.stderr.isatty() else None,
            collected=positions,
        )
        report = replace(report, policies=(*before, *report.policies))
        if options.output:
            report.save(options.output)
        if options.verdicts:
            calls = run_tools(model, processor, read_tools(options.tools), chosen) if options.tools else None
            witnesses.save_verdicts(witnesses.verdicts(report, positions, calls), options.verdicts)
    show(report)
    if options.output:
        print(f"written: {options.output}", file=sys.stderr)


def check(options: argparse.Namespace) -> None:
    """Raise ``KVMMError`` for options that do not go together, before a model is loaded."""
    if options.free_running is not None and not (options.text and options.output and len(options.prefill) == 1):
        raise KVMMError("--free-running needs --text, --output and one --prefill.")
    if options.free_running is not None and (options.free_running < 1 or options.group < 1):
        raise KVMMError("--free-running and --group are numbers of 1 or more.")
    if len(set(options.starts)) < len(options.starts) or min(options.starts) < 0:
        raise KVMMError("--starts are different numbers of tokens, 0 or more.")
    if options.text and len({path.stem for path in options.text}) < len(options.text):
        raise KVMMError("Two texts have the same name: give each once, under its own name.")
    if options.resume and not options.output:
        raise KVMMError("--resume goes on with the --output of an earlier run: name it.")
    if options.tools and not options.verdicts:
        raise KVMMError("--tools adds to the --verdicts: name a file for them, too.")
    if options.verdicts and (options.free_running or options.resume):
        raise KVMMError("--verdicts are of one whole run: leave --free-running and --resume.")
    if options.verdicts and options.output and options.verdicts.resolve() == options.output.resolve():
        raise KVMMError("--verdicts and --output name the same file: name two.")
    if options.tools:
        read_tools(options.tools)


def forced(
    options: argparse.Namespace,
    model: Any,
    prompts: Sequence[DriftPrompt],
    chosen: Mapping[str, Any],
    origin: dict[str, Any],
) -> DriftReport:
    """The report of forced texts, written after every policy."""
    measured = {one.policy: one for one in earlier(options, model, prompts, origin)}
    left = {name: policy for name, policy in chosen.items() if name not in measured}

    def report() -> DriftReport:
        listed = [measured[name] for name in chosen if name in measured]
        others = [one for name, one in measured.items() if name not in chosen]
        return report_of(model, prompts, [*listed, *others], **origin)

    for one in run_forced(model, prompts, left, top_k=options.top_k) if left else ():
        measured[one.policy] = one
        if options.output:
            report().save(options.output)
        print(f"{one.policy}: KL {one.logits.kl_mean:.4f}", file=sys.stderr, flush=True)
    return report()


def earlier(
    options: argparse.Namespace, model: Any, prompts: Sequence[DriftPrompt], origin: dict[str, Any]
) -> tuple[PolicyReport, ...]:
    """The policies that the report at ``--output`` holds; ``origin`` takes their commit beside that of this run.

    Raises ``KVMMError`` if the report is of another run.
    """
    if not options.resume or not options.output.is_file():
        return ()
    now = report_of(model, prompts, [], **origin)
    try:
        before = DriftReport.from_dict(json.loads(options.output.read_text(encoding="utf-8")))
    except ValueError as error:  # a KVMMError, too
        raise KVMMError(f"{options.output} is no report to go on with ({error}); name another file.") from None
    for name in ("model", "device", "dtype", "settings", "prompts", "versions"):
        # the policies that a file has may be of an earlier commit
        values = [getattr(one, name) for one in (before, now)]
        values = [{**value, "git_hash": None} for value in values] if name == "settings" else values
        if values[0] != values[1]:
            raise KVMMError(f"{options.output} has another {name} than this run; name another file or leave --resume.")
    commits = [before.settings.get("git_hash") or "not recorded", now.settings["git_hash"]]
    if before.policies and commits[0] != commits[1]:
        origin["settings"]["git_hash"] = f"{commits[1]}; earlier policies: {commits[0]}"
    return before.policies


def count(done: int, steps: int) -> None:
    """One line on a terminal that counts up."""
    end = "\n" if done == steps else ""
    print(f"\r{done} of {steps} policies on prompts", end=end, file=sys.stderr, flush=True)


def text_prompts(model: Any, processor: Any, options: argparse.Namespace) -> list[DriftPrompt]:
    """The prompts of ``--text``."""
    prompts = []
    for path in options.text:
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise KVMMError(f"{path} cannot be read as text ({error}): name a text file.") from None
        count = 3 if options.free_running else options.count
        for start in options.starts:
            prompts += make.text_prompts(model, processor, text, options.prefill, count, path.name, start)
    return prompts


def data_prompts(model: Any, processor: Any, options: argparse.Namespace) -> list[DriftPrompt]:
    """The prompts of ``--data``: questions, or hidden pages, and transcriptions of what they are about."""
    lines = make.read_lines(options.data)
    if options.hide:
        return make.line_prompts(model, processor, make.hidden_pages(lines, options.hide)[: options.limit])
    lines = make.shortened(lines, options.limit)
    return make.line_prompts(model, processor, make.with_transcriptions(lines, options.transcribe))


def settings_of(options: argparse.Namespace, device: torch.device) -> dict[str, Any]:
    """What decides the figures, for the report."""
    common = {"top_k": options.top_k, "seeds": options.seeds, "temperature": options.temperature}
    common["git_hash"] = git_hash()
    if options.text:
        texts = ", ".join(path.name for path in options.text)
        where = {"machine": machine(torch.get_num_threads(), device)}
        starts = {} if options.starts == [0] else {"starts": options.starts}
        return {"text": texts, "prefill": options.prefill, **starts, "continue": options.count, **common, **where}
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
