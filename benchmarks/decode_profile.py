"""Where the time of the CUDA split kernel goes, by Nsight Compute's hardware counters and samples.

    python -m benchmarks.decode_profile [--shapes 32x8k 1x128k] [--policies rd2 oscar2] [--exports FOLDER]

Needs ``ncu`` and a GPU whose counters may be read. Each case runs alone in a process of its own under ``ncu``, without
the kernels beside it and with a cold cache, so its microseconds are a little more than in a graph. ``phases`` are
shares of the samples that ``ncu`` takes of all warps, by where in the program they are: before the residual tokens
(first pages and the query's rows are asked for), the residual tokens (from the first to the last of their matrix
products), the query (those are joined, its transform is waited for, scales are folded in), the loop over pages, and
joining the block's warps. ``stalls`` are the cycles that a warp waits, by reason, for every instruction it issues,
``issue_share`` the share of issue slots that are used. ``--kernels`` adds the microseconds of every kernel of a call,
what expands the query and what reduces the splits among them, by torch's profiler, without ``ncu`` and in caches that
are not cold.
``--exports`` keeps what ``ncu`` exports, or reads it from there where it is already.
"""

from __future__ import annotations

import argparse
import csv
import io
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.decode_attention import SHAPES, Inputs, pack, packed_tokens, queries, random_vectors
from benchmarks.programs import keep_programs
from benchmarks.report import Report, add_common_options, table
from benchmarks.timing import free_memory, kernel_times
from kvmm import get_policy

_METRICS = {
    "us": "gpu__time_duration.sum",
    "bandwidth": "dram__bytes_read.sum.per_second",
    "bytes_read": "dram__bytes_read.sum",
    "dram_share": "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
    "registers": "launch__registers_per_thread",
    "blocks": "launch__grid_size",
    "instructions": "smsp__inst_executed.sum",
    "cycles": "sm__cycles_elapsed.max",
    "active_cycles": "sm__cycles_active.avg",
    "issue_share": "sm__inst_issued.avg.pct_of_peak_sustained_active",
    "warps_share": "sm__warps_active.avg.pct_of_peak_sustained_active",
}
_UNITS = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_STALL = re.compile(r"smsp__average_warps_issue_stalled_(\w+)_per_issue_active\.ratio")
PHASES = ("before", "dense", "query", "pages", "join")


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line; prints a table and writes JSON after every row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", default=["32x8k", "1x128k"], choices=list(SHAPES))
    parser.add_argument("--policies", nargs="+", default=["rd2", "oscar2"])
    parser.add_argument("--exports", type=Path, help="folder of what ncu exports")
    parser.add_argument("--kernels", action="store_true", help="also the time of every kernel of a call")
    parser.add_argument("--programs", type=Path, help="folder where compiled kernels are kept for other processes")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)  # the process that ncu watches
    add_common_options(parser, "decode_profile")
    given = sys.argv[1:] if arguments is None else list(arguments)
    options = parser.parse_args(given)
    if options.programs:
        keep_programs(options.programs)
    if options.child:
        child(options.shapes[0], options.policies[0], options.seed)
        return
    report = Report("decode_profile", given, options)
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.exports or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for shape in options.shapes:
            for policy in options.policies:
                row: dict[str, Any] = {"name": f"{shape} {policy}", "shape": shape, "policy": policy}
                with report.guarded(row):
                    raw, source = (folder / f"{shape}_{policy}.{kind}" for kind in ("raw.txt", "source.csv"))
                    if not (raw.is_file() and source.is_file()):
                        export(shape, policy, raw, source, options)
                    row |= counters(raw.read_text(encoding="utf-8"))
                    if options.kernels:
                        row["kernels"] = kernel_times(inputs_of(shape, policy, options.seed).attend)
                        free_memory()
                    row["phases"] = phases(source.read_text(encoding="utf-8"))
    show(report)
    report.finish()


def inputs_of(name: str, policy: str, seed: int) -> Inputs:
    """Inputs of a call, on the GPU."""
    torch.manual_seed(seed)
    shape, chosen = SHAPES[name], get_policy(policy)
    size = (shape.batch, shape.heads, shape.tokens, shape.dim)
    key, value = (random_vectors(size, "cuda", torch.bfloat16) for _ in range(2))
    query = queries(shape, key, "cuda")
    packed = packed_tokens(chosen, shape.tokens)
    parts = [pack(chosen, key[:, :, :packed], value[:, :, :packed])]
    return Inputs(query, parts, *(x[:, :, packed:].clone() for x in (key, value)))


def child(name: str, policy: str, seed: int) -> None:
    """Three calls of the attention; ``ncu`` looks at the last."""
    inputs = inputs_of(name, policy, seed)
    for _ in range(3):
        inputs.attend()
    torch.cuda.synchronize()


def export(shape: str, policy: str, raw: Path, source: Path, options: argparse.Namespace) -> None:
    """Run one case under ``ncu`` and export its counters and its samples.

    Raises:
        RuntimeError: there is no ``ncu``, or it failed.
    """
    if shutil.which("ncu") is None:
        raise RuntimeError("needs ncu, of NVIDIA Nsight Compute, on the PATH")
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "case.ncu-rep"
        watched = [sys.executable, "-m", "benchmarks.decode_profile", "--child", "--shapes", shape]
        watched += ["--policies", policy, "--seed", str(options.seed)]
        watched += ["--programs", str(options.programs)] if options.programs else []
        which = ["-k", "regex:split_kernel", "-s", "2", "-c", "1"]
        _run(["ncu", "--clock-control", "none", "--set", "full", *which, "-o", str(made), "-f", *watched])
        raw.write_text(_run(["ncu", "--import", str(made), "--page", "raw"]), encoding="utf-8")
        source.write_text(_run(["ncu", "--import", str(made), "--page", "source", "--csv"]), encoding="utf-8")


def _run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{command[0]} failed: {(done.stderr or done.stdout).strip().splitlines()[-1:]}")
    return done.stdout


def counters(text: str) -> dict[str, Any]:
    """What matters of ``ncu --page raw``: SI units, microseconds, percent as shares; ``stalls`` in cycles.

    Raises:
        ValueError: none of it is there.
    """
    values: dict[str, float] = {}
    for line in text.splitlines():
        cells = re.split(r"\s{2,}", line.strip())
        number = cells[-1].replace(",", "")
        if len(cells) < 2 or not re.fullmatch(r"-?[\d.]+", number):
            continue
        unit = cells[1] if len(cells) > 2 else ""
        scale = _UNITS[unit[0]] if unit.lower().endswith(("byte", "byte/s")) and unit[0] in _UNITS else 1.0
        values[cells[0]] = float(number) * (0.01 if unit == "%" else scale)
    found: dict[str, Any] = {name: values[metric] for name, metric in _METRICS.items() if metric in values}
    found["stalls"] = {m[1]: value for name, value in values.items() if (m := _STALL.fullmatch(name)) and value >= 0.05}
    if len(found) == 1:
        raise ValueError("these are no counters of ncu --page raw")
    return found


def phases(text: str) -> dict[str, float]:
    """Shares of the samples of ``ncu --page source --csv`` by :data:`PHASES`."""
    lines = text.splitlines(keepends=True)
    begin = next(i for i, line in enumerate(lines) if line.startswith('"Address"'))
    rows = [
        (row["Source"], int(row["# Samples"]), int(row["Instructions Executed"]))
        for row in csv.DictReader(io.StringIO("".join(lines[begin:])))
        if (row.get("# Samples") or "").isdigit()
    ]
    often = 0  # how many times warps multiply matrices in the loop over pages: of int8, or of bf16 with scales by group
    for kind in ("IMMA", "HMMA"):
        often = often or max((executed for source, _, executed in rows if kind in source), default=0)
    if not often:
        raise ValueError("no products of matrices in what ncu gave")
    loop = [i for i, (_, _, executed) in enumerate(rows) if executed >= 0.7 * often]
    dense = [i for i, (source, _, _) in enumerate(rows) if "HMMA" in source and i < loop[0]]
    first, last = (dense[0], dense[-1] + 1) if dense else (0, 0)
    ends = [first, last, loop[0], loop[-1] + 1, len(rows)]
    total = sum(samples for _, samples, _ in rows)
    starts = [0, *ends[:-1]]
    return {
        phase: sum(samples for _, samples, _ in rows[start:end]) / total
        for phase, start, end in zip(PHASES, starts, ends, strict=True)
    }


def show(report: Report) -> None:
    """A table of the rows of the file."""
    rows = []
    for row in report.rows:
        share = row.get("phases", {})
        keys = ("us", "dram_share", "issue_share", "warps_share")
        rows.append([row["name"], *(row.get(k) for k in keys), *(share.get(p) for p in PHASES)])
    table(("row", "us", "of DRAM's peak", "of issue slots", "of warps", *PHASES), rows)


if __name__ == "__main__":
    main()
