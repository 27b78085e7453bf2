"""What a trained model needs beside its weights, all at once: answers about held-out pages, calibration, confidence.

    python -m training.finish --model runs/chain/model --heldout runs/heldout --calibration runs/calibration \\
        --gpus 2 --minutes 4 --out runs/finish

Processes share the GPUs, ``--together`` at a time, until all have ended or the minutes are over; what has ended well by
then stays: ``kvmm_calibration.safetensors`` of `kvmm calibrate`, a report of `training.evaluate` for each set in
``sets/``, and ``evaluation.json`` once there is one for every set; also all answers of `training.confidence` in
``rows/``. Where the time was too short, the same command goes on with what is missing; in a folder with results of
another model, of other questions or options it ends with a message. The confidence is fitted to the answers in a minute
of a CPU:

    python -m training.confidence --model runs/chain/model --data runs/heldout --dtype bfloat16 --sets unseen \\
        --policies --rows runs/finish/rows --out runs/finish/kvmm_confidence.json --report runs/finish/confidence.json
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from training.processes import Processes, end_tidily

CALIBRATION = "kvmm_calibration.safetensors"
EVALUATION, SETS = "evaluation.json", "sets"  # the whole report, and the folder of the sets' own
SOURCES = "sources.json"  # what the results of a folder rest on
UNFINISHED = "unfinished"  # folder of results until their process has ended well
SET = "unseen"  # whose answers say how sure the model may be
WEIGHTS = ("model.packed.safetensors", "model.safetensors")
SAME = ("model_sha256", "data_sha256", "decoding", "device", "versions")  # of reports that can be joined


def sources(args: argparse.Namespace) -> dict[str, object]:
    """What the results depend on: hashes of weights and questions, and how many of these are asked.

    Raises:
        ValueError: a file is missing.
    """
    found = {"examples": args.examples, "limit": args.limit, "choose": args.choose}
    weights = next((args.model / name for name in WEIGHTS if (args.model / name).is_file()), args.model / WEIGHTS[0])
    for path in (weights, args.heldout / "heldout.jsonl", args.calibration / "questions.jsonl"):
        if not path.is_file():
            raise ValueError(f"{path} is missing: see --model, --heldout and --calibration")
        found[path.name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def begin_or_go_on(args: argparse.Namespace) -> None:
    """Make the folders of ``--out``, or see that they are those of an earlier call with the same sources.

    Raises:
        ValueError: a file is missing, or the folder's results rest on other sources.
    """
    now, path = sources(args), args.out / SOURCES
    if path.is_file() and json.loads(path.read_text(encoding="utf-8")) != now:
        raise ValueError(f"{args.out} has results of another model, questions or options: choose another --out")
    for name in ("logs", SETS, f"{UNFINISHED}/{SETS}"):
        (args.out / name).mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(now, indent=1) + "\n", encoding="utf-8")


def results(args: argparse.Namespace) -> dict[str, str]:
    """Files below ``--out`` by the name of their task: the calibration, and one report for each held-out set."""
    with (args.heldout / "heldout.jsonl").open(encoding="utf-8") as lines:
        names = dict.fromkeys(json.loads(line)["set"] for line in lines)
    return {"calibration": CALIBRATION} | {f"evaluation {name}": f"{SETS}/{name}.json" for name in names}


def tasks(args: argparse.Namespace) -> dict[str, list[str]]:
    """The modules to run with their arguments, by name, without what is done already."""
    common = ["--model", str(args.model), "--dtype", "bfloat16"]
    common += ["--device", args.device] if args.device else []
    found = {}
    for name, file in results(args).items():
        if name == "calibration":
            command = ["kvmm", "calibrate", "--data", str(args.calibration / "questions.jsonl")]
            command += ["--limit", str(args.examples), *([] if args.choose else ["--gradients"])]
        else:
            command = ["training.evaluate", "--data", str(args.heldout), "--limit", str(args.limit)]
            command += ["--sets", name.removeprefix("evaluation ")]
        if not (args.out / file).is_file():
            found[name] = [*command, *common, "--out", str(args.out / UNFINISHED / file)]
    for index in range(args.parts):
        part = ["--part", str(index), str(args.parts), "--sets", SET, "--rows", str(args.out / "rows")]
        found[f"confidence {index}"] = ["training.confidence", "--data", str(args.heldout), *part, *common]
    return found


def finish(args: argparse.Namespace) -> dict[str, int | None]:
    """Runs tasks beside each other, ``together`` at a time in their order; the exit code of each, None if the time was
    too short for it.

    Raises:
        ValueError: as :func:`begin_or_go_on`.
    """
    begin, processes, running = time.monotonic(), Processes(), {}
    codes: dict[str, int | None] = {}
    begin_or_go_on(args)
    files, waiting = results(args), list(enumerate(tasks(args).items()))

    def collect() -> None:
        for name in [name for name, process in running.items() if process.poll() is not None]:
            codes[name] = running.pop(name).returncode
            if name in files and codes[name] == 0:
                os.replace(args.out / UNFINISHED / files[name], args.out / files[name])
            print(f"{time.monotonic() - begin:6.1f} s  {name}: exit code {codes[name]}", flush=True)

    def start() -> None:
        while waiting and len(running) < args.together:
            number, (name, command) = waiting.pop(0)
            gpu = {"CUDA_VISIBLE_DEVICES": str(number % args.gpus) if args.gpus else ""}
            log = args.out / "logs" / f"{name.replace(' ', '-')}.log"
            running[name] = processes.start(command, log, OMP_NUM_THREADS="1", **gpu)

    try:
        start()
        while running and time.monotonic() - begin < args.minutes * 60:
            collect()
            start()
            time.sleep(0.2)
        collect()
    finally:
        processes.end()
        join_sets(args.out, [file for name, file in files.items() if name != "calibration"])
    return codes | dict.fromkeys((*running, *(name for _, (name, _) in waiting)))


def join_sets(out: Path, files: Sequence[str]) -> None:
    """Writes the whole report, if there is one of every set."""
    if not files or not all((out / file).is_file() for file in files):
        return
    reports = [json.loads((out / file).read_text(encoding="utf-8")) for file in files]
    fresh = out / UNFINISHED / EVALUATION
    fresh.write_text(json.dumps(join_reports(reports), indent=1) + "\n", encoding="utf-8")
    os.replace(fresh, out / EVALUATION)


def join_reports(reports: Sequence[dict]) -> dict:
    """The reports of several sets as one; ``commands`` has each one's, ``seconds`` is that of the slowest.

    Raises:
        ValueError: they differ in what should be the same (``SAME``), or two are of one set.
    """
    different = [key for key in SAME if any(report[key] != reports[0][key] for report in reports)]
    if different:
        raise ValueError(f"reports that differ in {', '.join(different)} are not joined")
    sets: dict[str, dict] = {}
    for report in reports:
        if twice := sets.keys() & report["sets"].keys():
            raise ValueError(f"two reports are of the same set: {', '.join(sorted(twice))}")
        sets |= report["sets"]
    whole = {key: value for key, value in reports[0].items() if key != "command"}
    whole |= {"sets": sets, "commands": [report["command"] for report in reports]}
    return whole | {"seconds": max(report["seconds"] for report in reports)}


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m training.finish", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--model", type=Path, required=True, help="folder of training.export")
    add("--heldout", type=Path, default=Path("runs/heldout"), help="folder of training.heldout")
    add("--calibration", type=Path, default=Path("runs/calibration"), help="folder of training.calibration")
    add("--out", type=Path, required=True)
    add("--minutes", type=float, required=True, help="after which everything is ended")
    add("--gpus", type=int, default=1, help="of this host; 0 for a CPU (default 1)")
    add("--together", type=int, default=16, help="processes at a time, the calibration first (default 16)")
    add("--parts", type=int, default=12, help="processes that answer for the confidence, last of all (default 12)")
    add("--examples", type=int, default=480, help="of calibration (default 480)")
    add("--choose", action="store_true", help="calibrate by gradients only if they are measured to be better")
    add("--limit", type=int, default=240, help="conversations of each held-out set (default 240)")
    add("--device", help="such as cpu")
    end_tidily()
    try:
        codes = finish(parser.parse_args())
    except ValueError as error:
        sys.exit(str(error))
    for name, code in codes.items():
        if code is None:
            print(f"{name}: not done in time")
    sys.exit(1 if any(codes.values()) else 3 if None in codes.values() else 0)


if __name__ == "__main__":
    main()
