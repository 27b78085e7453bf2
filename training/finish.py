"""What a trained model needs beside its weights, all at once: answers about held-out pages, calibration, confidence.

    python -m training.finish --model runs/chain/model --heldout runs/heldout --calibration runs/calibration \\
        --gpus 2 --minutes 4 --out runs/finish

Processes share the GPUs until all have ended or the minutes are over; what they have written by then stays:
reports of `training.evaluate`, a set each in ``sets/`` and all of them in ``evaluation.json``,
``kvmm_calibration.safetensors`` of `kvmm calibrate`, answers of `training.confidence` in ``rows/``. Where the time was
too short, the same command goes on with what is missing. The confidence is fitted to the answers in a minute of a CPU:

    python -m training.confidence --model runs/chain/model --data runs/heldout --dtype bfloat16 --sets unseen \\
        --policies --rows runs/finish/rows --out runs/finish/kvmm_confidence.json --report runs/finish/confidence.json
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path

from training.evaluate import join_reports
from training.processes import Processes, end_tidily

CALIBRATION = "kvmm_calibration.safetensors"
EVALUATION, SETS = "evaluation.json", "sets"  # the whole report, and the folder of the sets' own
UNFINISHED = "unfinished"  # folder of results until their process has ended well
SET = "unseen"  # whose answers say how sure the model may be


def results(args: argparse.Namespace) -> dict[str, str]:
    """Files below ``--out`` by the name of the task that writes them: the calibration, a report of every set."""
    found = {"calibration": CALIBRATION}
    with (args.heldout / "heldout.jsonl").open(encoding="utf-8") as lines:
        names = dict.fromkeys(json.loads(line)["set"] for line in lines)
    return found | {f"evaluation {name}": f"{SETS}/{name}.json" for name in names}


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
            command += ["--sets", Path(file).stem]
        if not (args.out / file).is_file():
            found[name] = [*command, *common, "--out", str(args.out / UNFINISHED / file)]
    for index in range(args.parts):
        part = ["--part", str(index), str(args.parts), "--sets", SET, "--rows", str(args.out / "rows")]
        found[f"confidence {index}"] = ["training.confidence", "--data", str(args.heldout), *part, *common]
    return found


def finish(args: argparse.Namespace) -> dict[str, int | None]:
    """Runs all tasks beside each other; the exit code of each, None if the time was too short for it."""
    begin, processes, running, files = time.monotonic(), Processes(), {}, results(args)
    codes: dict[str, int | None] = {}
    for name in ("logs", SETS, f"{UNFINISHED}/{SETS}"):
        (args.out / name).mkdir(parents=True, exist_ok=True)
    try:
        for number, (name, command) in enumerate(tasks(args).items()):
            gpu = {"CUDA_VISIBLE_DEVICES": str(number % args.gpus) if args.gpus else ""}
            log = args.out / "logs" / f"{name.replace(' ', '-')}.log"
            running[name] = processes.start(command, log, OMP_NUM_THREADS="1", **gpu)
        while running and time.monotonic() - begin < args.minutes * 60:
            for name in [name for name, process in running.items() if process.poll() is not None]:
                codes[name] = running.pop(name).returncode
                if name in files and codes[name] == 0:
                    os.replace(args.out / UNFINISHED / files[name], args.out / files[name])
                print(f"{time.monotonic() - begin:6.1f} s  {name}: exit code {codes[name]}", flush=True)
            time.sleep(0.2)
    finally:
        processes.end()
    reports = [json.loads(path.read_text()) for path in sorted((args.out / SETS).glob("*.json"))]
    if reports:
        (args.out / EVALUATION).write_text(json.dumps(join_reports(reports), indent=1) + "\n", encoding="utf-8")
    return codes | dict.fromkeys(running)


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
    add("--parts", type=int, default=12, help="processes that answer for the confidence (default 12)")
    add("--examples", type=int, default=480, help="of calibration (default 480)")
    add("--choose", action="store_true", help="calibrate by gradients only if they are measured to be better")
    add("--limit", type=int, default=240, help="conversations of each held-out set (default 240)")
    add("--device", help="such as cpu")
    end_tidily()
    codes = finish(parser.parse_args())
    for name, code in codes.items():
        if code is None:
            print(f"{name}: not done in time")
    sys.exit(1 if any(codes.values()) else 3 if None in codes.values() else 0)


if __name__ == "__main__":
    main()
