"""Free-running generation of ``benchmarks.drift --free-running``: rows by policy, written after every group.

Full precision (``dynamic``) writes its text first, which the others are compared with; see
:mod:`kvmm.analysis.drift.free_running` for what is measured. A row has, for every text it went on from, the figures of
what it wrote, the bits of the cache after the last token, and how the text ends.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from statistics import fmean
from typing import Any

from benchmarks.report import Report, table
from kvmm import KVMMError, policies
from kvmm.analysis.drift.free_running import FreeRun, run_free, summarise_run
from kvmm.analysis.drift.run import DriftPrompt
from kvmm.models.caches import DYNAMIC

SHOWN = 200  # characters of the end of a text


def run(
    options: argparse.Namespace,
    arguments: Sequence[str],
    model: Any,
    processor: Any,
    prompts: Mapping[str, DriftPrompt],
    chosen: Mapping[str, Any],
) -> None:
    """Let every policy write after each of the prompts; print a table.

    Args:
        options, arguments: of ``benchmarks.drift``.
        model, processor: as ``load_model`` returns them.
        prompts: by the name of their text.
        chosen: policies by name.

    Raises:
        KVMMError: if ``--resume`` names a file of other texts or lengths.
    """
    reported = argparse.Namespace(**vars(options) | {"append": options.resume, "smoke": False, "device": model.device})
    report = Report("drift", arguments, reported)
    report.run["dtype"] = str(model.dtype).removeprefix("torch.")
    settings = {"prefill": options.prefill[0], "tokens": options.free_running, "texts": list(prompts)}
    for row in report.rows:
        if row["settings"] != settings:
            raise KVMMError(f"{options.output} has rows of other settings; name another file or leave --resume.")
    done = {row["name"]: row for row in report.rows}
    left = [name for name in (DYNAMIC, *chosen) if name not in done]
    # the first group holds full precision: the others are compared with its text
    for at in range(0, len(left), options.group):
        group = {name: chosen.get(name, DYNAMIC) for name in left[at : at + options.group]}
        found: dict[str, dict[str, FreeRun]] = {name: {} for name in group}
        for text, prompt in prompts.items():
            for step in run_free(model, prompt.encode(), group, options.free_running, packed=prompt.packed):
                if isinstance(step, int):
                    print(f"{text}, {', '.join(group)}: {step} tokens", file=sys.stderr, flush=True)
                else:
                    for name, one in step.items():
                        found[name][text] = one
        for name, runs in found.items():
            row = {"name": name, "settings": settings, "texts": {}}
            for text, one in runs.items():
                full = one.tokens if name == DYNAMIC else done[DYNAMIC]["texts"][text]["ids"]
                row["texts"][text] = asdict(summarise_run(one, full)) | one.bits | {"end": ending(processor, one)}
                if name == DYNAMIC:
                    row["texts"][text]["ids"] = list(one.tokens)
            done[name] = row
            report.add(row)
    show([done[name] for name in (DYNAMIC, *chosen)])
    if missing := [name for name in policies() if name not in done]:
        print(f"not measured: {', '.join(missing)}", file=sys.stderr)


def ending(processor: Any, one: FreeRun) -> str:
    """The last words of a text."""
    return getattr(processor, "tokenizer", processor).decode(one.tokens)[-SHOWN:]


def means(row: Mapping[str, Any]) -> dict[str, Any]:
    """Means over a row's texts: ``diverged_at`` (the length where a text never did), ``kl``, ``first`` and ``last``
    (of the parts of the text), ``perplexity``, ``repetition``, ``bits``; ``loops``: how many texts end in a loop.
    """
    texts = list(row["texts"].values())
    parts = [text["kl_by_position"] for text in texts]
    return {
        "diverged_at": fmean(t["tokens"] if t["diverged_at"] is None else t["diverged_at"] for t in texts),
        "kl": fmean(t["kl_mean"] for t in texts),
        "first": fmean(part[0] for part in parts),
        "last": fmean(part[-1] for part in parts),
        "perplexity": fmean(t["perplexity"] for t in texts),
        "repetition": fmean(t["repetition"] for t in texts),
        "loops": sum(t["loop_at"] is not None for t in texts),
        "bits": fmean(t["bits"] for t in texts) if all("bits" in t for t in texts) else None,
    }


def show(rows: Sequence[Mapping[str, Any]]) -> None:
    """A plain table."""
    columns = ("policy", "bits", "diverged at", "KL", "KL first", "KL last", "perplexity", "repetition", "loops")
    found = [(row["name"], means(row)) for row in rows]
    names = ("bits", "diverged_at", "kl", "first", "last", "perplexity", "repetition", "loops")
    table(columns, [(name, *(one[key] for key in names)) for name, one in found])
