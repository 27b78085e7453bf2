"""Everything that is measured on one GPU, in one go: benchmarks one after the other, the most important ones first.

    python -m benchmarks.gpu_session --out FOLDER --seconds 560 [--only presets profiles ...] [--list]
    python -m benchmarks.gpu_session --unpack FOLDER/session.json [--into benchmarks/results] [--hash H] [--note TEXT]

Each step is one benchmark in a process of its own with a time limit; a step begins if there is time for it, and its
result file is complete after every row, so one that is stopped has what it measured. Kernels are compiled before:
several processes share what they make in ``--work`` and in Triton's cache, where a later session finds it. All result
files go into one, ``session.json``, after every step, for machines from which few files can be taken;
``--unpack`` merges its rows into the committed files, which ``python -m benchmarks.gpu_tables`` then puts
into docs/gpu.md. What the benchmarks print is in ``session.log``.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from benchmarks.ask_policies import ROOT
from kvmm import policies

MISSED = ("rd2", "oscar2", "calibquant1", "kivi4", "oscar2-g32")  # presets that miss what is asked of them
FORMATS = ("rd2", "oscar2", "calibquant1", "kivi2")  # one of each kind of format, for shapes beside the usual ones
_COMPILERS = 8  # processes that compile
_COMPILE_SHARE = 0.3  # of the session's time, at most
_BELONGS = {  # steps whose rows go to the file of another one
    "decode_attention_32x8k": "decode_attention_presets",
    "calibquant_throughput_3328": "calibquant_throughput",
    "calibquant_throughput_8b": "calibquant_throughput",
    "serve_steps": "serve_gpu",
    "decode_attention_code_books": "decode_attention_shapes",
}


@dataclass(frozen=True)
class Step:
    """One benchmark.

    Attributes:
        name: of its result file, and for ``--only``.
        command: the module and its arguments, without device, output and seed.
        seconds: what it takes, about; it does not begin with less than half of that left.
        programs: whether it takes ``--programs``.
        smoke: whether it takes ``--smoke`` and ``--device``.
    """

    name: str
    command: str
    seconds: int
    programs: bool = False
    smoke: bool = True


STEPS = (
    Step(
        "decode_attention_presets",
        "decode_attention --shapes 1x128k 64x4k --baselines cudnn --runs 12 --policies all",
        150,
        programs=True,
    ),
    Step("layer_calls", "layer_calls --policies all --rounds 9 --profile", 100, programs=True),
    Step(
        "prompt_packing",
        "prompt_packing --rounds 3 --kernels --behind 0.02 --policies all",
        150,
        programs=True,
    ),
    Step(
        "serve_gpu",
        "serve --random qwen3-8b --dtype bfloat16 --clients 1 16 --requests 48 --alone 5 --max-tokens 96 "
        "--new-tokens 96 --rounds 1 --measure answers answers_plain steps graphs",
        150,
    ),
    Step(
        "decode_streaming",
        "decode_step --shapes 1x32k 32x4k --modes graph --baselines dynamic --baseline-steps 12 --steps 136 "
        "--no-generate --policies rd2 benchmarks/policies/rd2-stream16.yaml balanced "
        "benchmarks/policies/balanced-stream16.yaml",
        100,
    ),
    Step(
        "decode_profile",
        f"decode_profile --kernels --shapes 1x128k 64x4k --policies {' '.join(MISSED)}",
        240,
        programs=True,
        smoke=False,
    ),
    Step(
        "decode_attention_shapes",
        "decode_attention --shapes 128x4k 1x128k-r1 1x128k-r7 1x128k-r16 1x128k-d64 1x128k-d80 1x128k-d96 1x128k-d256 "
        f"64x4k-r1 64x4k-r16 64x4k-d64 64x4k-d80 64x4k-d96 64x4k-d256 --baselines flash cudnn --runs 8 "
        f"--policies {' '.join(FORMATS)}",
        120,
        programs=True,
    ),
    Step(
        "decode_attention_code_books",
        "decode_attention --shapes 1x128k-d80 1x128k-d96 1x128k-d256 64x4k-d256 --baselines flash cudnn --runs 8 "
        "--policies turboquant2 turboquant2.5",
        60,
        programs=True,
    ),
    Step("kitty_throughput", "kitty_throughput --length 8192 --baselines static dynamic", 180),
    Step(
        "calibquant_throughput",
        "memory_budget --part calibquant --models internvl-26b --visual 256 --budgets 5 20 30",
        130,
    ),
    Step(
        "calibquant_throughput_3328",
        "memory_budget --part calibquant --models internvl-8b internvl-26b --visual 3328 --budgets 10 30",
        150,
    ),
    Step(
        "decode_attention_32x8k",
        "decode_attention --shapes 32x8k --baselines cudnn --runs 12 --policies all",
        80,
        programs=True,
    ),
    Step(
        "retention_gpu",
        "retention --data tests/data/heldout/sample.jsonl --limit 16 --shares 0.6 0.45 0.3 0.15 --steps 24 "
        "--processes 6",
        240,
        smoke=False,
    ),
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line; prints what was measured last."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="folder of session.json and session.log")
    work = Path(tempfile.gettempdir()) / "kvmm-session"
    parser.add_argument("--work", type=Path, default=work, help="folder of result files and of compiled kernels")
    parser.add_argument("--seconds", type=float, default=560, help="for all steps together")
    parser.add_argument("--only", nargs="+", choices=[step.name for step in STEPS], help="steps, in this order")
    parser.add_argument("--no-compile", action="store_true", help="do not compile in several processes before")
    parser.add_argument("--smoke", action="store_true", help="toy sizes on the CPU: shows that the steps run")
    parser.add_argument("--list", action="store_true", help="print the steps")
    parser.add_argument("--unpack", type=Path, metavar="FILE", help="a session.json, whose result files are wanted")
    parser.add_argument("--into", type=Path, default=ROOT / "benchmarks" / "results", help="where they go")
    parser.add_argument("--hash", help="with --unpack: the commit of runs that do not say theirs")
    parser.add_argument("--note", help="with --unpack: what else is to be said of these runs, after earlier notes")
    options = parser.parse_args(arguments)
    if options.unpack:
        unpack(options.unpack, options.into, options.hash, options.note)
        return
    by_name = {step.name: step for step in STEPS}
    steps = [by_name[name] for name in options.only or by_name]
    if options.list:
        for step in steps:
            print(f"{step.name:28} {step.seconds:4} s  python -m benchmarks.{step.command}")
        return
    if options.out is None:
        parser.error("--out is missing")
    run(steps, options)


def run(steps: Sequence[Step], options: argparse.Namespace) -> None:
    """Run what there is time for."""
    results = options.work / "results"
    for folder in (options.out, results):
        folder.mkdir(parents=True, exist_ok=True)
    until = time.monotonic() + options.seconds
    with (options.out / "session.log").open("a", encoding="utf-8") as log:
        if not (options.smoke or options.no_compile) and any(step.programs for step in steps):
            say(log, f"compiled in {compile_first(steps, options, log):.0f} s")
        for step in steps:
            left = until - time.monotonic()
            if left < step.seconds / 2:
                say(log, f"{step.name}: left out, {left:.0f} s are left")
                continue
            begin, code = time.monotonic(), ended(start(command_of(step, options), log), left)
            took = time.monotonic() - begin
            say(log, f"{step.name}: {took:.0f} s, {'stopped' if code is None else f'exit code {code}'}")
            gather(results, options.out / "session.json")
    summary(results)


def command_of(step: Step, options: argparse.Namespace) -> list[str]:
    """The process of a step."""
    module, *rest = shlex.split(step.command)
    command = [sys.executable, "-m", f"benchmarks.{module}", *rest]
    command += ["--output", str(options.work / "results" / f"{step.name}.json")]
    if step.programs:
        command += ["--programs", str(options.work / "programs")]
    if options.smoke and step.smoke:
        command += ["--smoke", "--device", "cpu"]
    return command


def start(command: Sequence[str], log: TextIO) -> subprocess.Popen:
    """A process with a group of its own, so that it can be ended with what it has started."""
    return subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log, start_new_session=True)


def ended(process: subprocess.Popen, seconds: float) -> int | None:
    """The exit code of a process, or None if it had to be ended after so many seconds."""
    try:
        return process.wait(max(1.0, seconds))
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return None


def compile_first(steps: Sequence[Step], options: argparse.Namespace, log: TextIO) -> float:
    """Have several processes compile what the attention benchmarks of the steps launch; seconds that it took."""
    begin, running = time.monotonic(), []
    attention = [step for step in steps if step.name.startswith("decode_attention")]
    for index in range(_COMPILERS):
        jobs = []
        for step in attention:
            words = shlex.split(step.command)
            shapes = words[words.index("--shapes") + 1 : words.index("--baselines")]
            named = _policies_of(words)
            parts = max(1, _COMPILERS // len(named))  # of the shapes, where there are fewer policies than processes
            names = named[index::_COMPILERS] if parts == 1 else [named[index % len(named)]]
            shapes = shapes[index // len(named) % parts :: parts] if parts > 1 else shapes
            if names and shapes:
                jobs.append(shlex.join(_compiling(shapes, names, options, index)))
        if any(step.name == "layer_calls" for step in steps):
            jobs.append(shlex.join(_compiling_calls(list(policies())[index::_COMPILERS], options, index)))
        if jobs:
            running.append(start(["bash", "-c", "; ".join(jobs)], log))
    for process in running:
        ended(process, begin + _COMPILE_SHARE * options.seconds - time.monotonic())
    return time.monotonic() - begin


def _policies_of(words: list[str]) -> list[str]:
    named = words[words.index("--policies") + 1 :]
    return list(policies()) if named == ["all"] else named


def _compiling(shapes: list[str], names: list[str], options: argparse.Namespace, index: int) -> list[str]:
    return [
        *(sys.executable, "-m", "benchmarks.decode_attention", "--runs", "1", "--no-error", "--baselines", "cudnn"),
        *("--shapes", *shapes, "--policies", *names, "--programs", str(options.work / "programs")),
        *("--output", str(options.work / f"compile-{index}.json")),
    ]


def _compiling_calls(names: list[str], options: argparse.Namespace, index: int) -> list[str]:
    return [
        *(sys.executable, "-m", "benchmarks.layer_calls", "--rounds", "1", "--policies", *names),
        *("--programs", str(options.work / "programs"), "--output", str(options.work / f"calls-{index}.json")),
    ]


def gather(results: Path, path: Path) -> None:
    """All result files as one."""
    found = {one.name: json.loads(one.read_text(encoding="utf-8")) for one in sorted(results.glob("*.json"))}
    path.write_text(json.dumps(found) + "\n", encoding="utf-8")


def unpack(path: Path, into: Path, git_hash: str | None = None, note: str | None = None) -> None:
    """Put what a ``session.json`` has where it belongs among the result files.

    A row replaces one of the same name and of the same GPU. Rows of a GPU that a file has no rows of, and those whose
    name it has of another GPU, go to a file beside it that ends in this GPU's name.
    """
    into.mkdir(parents=True, exist_ok=True)
    for name, new in json.loads(path.read_text(encoding="utf-8")).items():
        stem = _BELONGS.get(Path(name).stem, Path(name).stem)
        for run in new.get("runs", []):
            run["git_hash"] = run.get("git_hash") or git_hash
            _add_note(run, note)
        target, gpu = into / f"{stem}.json", _gpu_of(new)
        beside = into / f"{stem}_{gpu.removeprefix('NVIDIA ').split()[0].lower()}.json"
        if not target.is_file():
            _put(target, new)
        elif "runs" not in new or gpu not in (held := _gpus_of_rows(_read(target))).values():
            _put(target if gpu == _gpu_of(_read(target)) else beside, new)
        else:
            other = [row for row in new["results"] if held.get(row["name"], gpu) != gpu]
            rows = [row for row in new["results"] if row not in other]
            for file, part in ((target, rows), (beside, other)):
                if part:
                    _put(file, {**new, "results": part})


def _put(target: Path, new: dict[str, Any]) -> None:
    """Write a result file, with the rows that it has already."""
    if "runs" in new and target.is_file():
        new = merged(_read(target), new)
    target.write_text(json.dumps(new, indent=1) + "\n", encoding="utf-8")
    print(f"{target.name}: {len(new['results'])} rows")


def merged(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """Two files of :class:`benchmarks.report.Report` as one, with the runs that still have rows."""
    for run in new["runs"]:  # of a session that was unpacked before, what was said then stays
        for before in (one for one in old["runs"] if _without_note(one) == _without_note(run)):
            later = run.pop("note", None)
            _add_note(run, before.get("note"))
            _add_note(run, later)
    first, names = len(old["runs"]), {row["name"] for row in new["results"]}
    rows = [row for row in old["results"] if row["name"] not in names]
    rows += [{**row, "run": row["run"] + first} for row in new["results"]]
    used = sorted({row["run"] for row in rows})
    runs = [*old["runs"], *new["runs"]]
    return {"runs": [runs[i] for i in used], "results": [{**row, "run": used.index(row["run"])} for row in rows]}


def _add_note(run: dict[str, Any], note: str | None) -> None:
    """Say one more thing of a run, after what is said of it already; nothing is said twice."""
    parts = [part for text in (run.get("note"), note) if text for part in text.split("; ")]
    if parts:
        run["note"] = "; ".join(dict.fromkeys(parts))


def _without_note(run: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in run.items() if key not in ("note", "git_hash")}


def _read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8"))


def _gpu_of(report: dict[str, Any]) -> str:
    """The GPU of a result file, of its last run; "GPU" where the file does not say."""
    runs = report.get("runs") or [report]
    return runs[-1].get("machine", {}).get("gpu") or "GPU"


def _gpus_of_rows(report: dict[str, Any]) -> dict[str, str]:
    """The GPU of every row, by the row's name."""
    gpus = [run.get("machine", {}).get("gpu") or "GPU" for run in report.get("runs", [])]
    return {row["name"]: gpus[row["run"]] for row in report["results"]} if gpus else {}


_SHOWN = {
    "decode_attention": ("us", "baseline_us", "ratio", "floor_us", "floor_share"),
    "layer_calls": ("host_us", "host_ratio", "ratios"),
    "decode_profile": ("us", "dram_share", "issue_share"),
    "prompt_packing": ("pack_ms", "share", "host_ms", "kernel_ms", "launches", "behind_share"),
    "serve_gpu": ("per_second", "ratio", "equal_share"),
    "decode_streaming": ("ms", "median_ms", "baseline_ms"),
    "kitty_throughput": ("batch", "batch_ratio", "tokens_per_second", "throughput_ratio", "baseline"),
    "calibquant_throughput": ("batch", "dense_batch", "tokens_per_second", "ratio"),
    "retention": ("share", "variant", "questions", "kl", "accuracy"),
}


def summary(results: Path) -> None:
    """Print the main figures of every row, a line each."""
    for path in sorted(results.glob("*.json")):
        keys = next((keys for name, keys in _SHOWN.items() if path.stem.startswith(name)), ())
        for row in json.loads(path.read_text(encoding="utf-8"))["results"]:
            shown = " ".join(f"{key}={_short(row[key])}" for key in keys if row.get(key) is not None)
            print(f"{path.stem}: {row.get('name', '')} {row.get('failed', shown)}")


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def say(log: TextIO, text: str) -> None:
    """To the log and to the terminal."""
    for file in (log, sys.stdout):
        print(text, file=file, flush=True)


if __name__ == "__main__":
    main()
