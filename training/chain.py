"""Trains the embedded model in calls of minutes, on a machine with GPUs and a time limit.

    python -m training.chain run --minutes 9 --gpus 2 --out carried       # repeat while the machine is there
    python -m training.chain send --batch 1 --out carried                 # the parts that did not fit the first time
    python -m training.chain run --minutes 20 --gpus 2 --detach           # goes on when the call ends
    python -m training.chain watch --minutes 9      # what it prints; exit code 3 while it goes on, 1 if it failed

`run` goes on where `--folder` stands: the base is joined from `--parts` if it is not there, the teacher is trained on
texts, then pieces on pages until the minutes or the schedule are used up. At the end it writes a checkpoint in the
steps that ship as parts (`training.parts`) and the exported model, answers held-out pages with that if `--evaluate`,
and prints a table. `send` copies the parts that one transfer takes. Where the machine is another one the next time,
carry the parts there: with `--parts FOLDER` a checkpoint `omni` among them is joined and trained on, its own text tower
being the teacher, after `--teacher-minutes` on texts if there are new ones; `--total-minutes` is then the length of a
new schedule.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from training.arguments import step_share
from training.checkpoints import coded_weights, compact, load_weights
from training.parts import PART_BYTES, join_parts, split_folder
from training.processes import Processes, detach, end_tidily, follower, record_exit_code, watch
from training.smollm2.folder import CONFIG, TOKENIZER, read_config

BATCH = 4  # parts sent at a time: 60 MiB
CHECKPOINT = "omni"  # name of its parts
DETACHED = "--detached"
HELD_SETS = ("office", "fonts", "tables", "transcription")
LEAST_PIECE = 1.0  # minutes: compiling takes half of that
TEACHER_MINUTES = 1.8
PACKING = 0.8  # minutes for the checkpoint, its parts and the exported model
GRACE = 45.0  # seconds after which a training process that overstays is ended


class Session:
    """One call of `run`: what is there, what is left of the time, and the processes that it started."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.started = args, time.perf_counter()
        self.folder: Path = args.folder
        self.folder.mkdir(parents=True, exist_ok=True)
        self.log_file = self.folder / "chain.json"
        self.log: list[dict] = json.loads(self.log_file.read_text()) if self.log_file.is_file() else []
        self.processes = Processes()
        self.text, self.omni, self.joined = (self.folder / name for name in ("text", "omni", "joined"))

    @property
    def left(self) -> float:
        """Minutes of this call."""
        return self.args.minutes - (time.perf_counter() - self.started) / 60

    def say(self, text: str) -> None:
        print(f"== {self.args.minutes - self.left:5.2f} min: {text}", flush=True)

    def note(self, phase: str, started: float, **more: object) -> None:
        self.log.append({"phase": phase, "seconds": round(time.perf_counter() - started, 1), **more})
        self.log_file.write_text(json.dumps(self.log, indent=1) + "\n", encoding="utf-8")

    def train(self, name: str, arguments: Sequence[str], minutes: float) -> bool:
        """One run of `training.train`, a process a GPU; returns whether it ended well."""
        args, begin = self.args, time.perf_counter()
        command = ["training.train", "--dataset", args.dataset, "--workers", str(args.workers), *arguments]
        command += ["--minutes", f"{minutes:.3f}", "--slots", str(args.slots), "--log-every", str(args.log_every)]
        for option in ("steps", "sequences", "device"):
            if getattr(args, option) is not None:
                command += [f"--{option}", str(getattr(args, option))]
        if not args.graphs:
            command += ["--no-graphs"]
        if args.profile:
            command += ["--profile", *map(str, args.profile)]
        logs = [self.folder / f"{name}-{rank}.log" for rank in range(args.gpus)]
        ranks = []
        for rank, log in enumerate(logs):
            several = {"RANK": str(rank), "WORLD_SIZE": str(args.gpus)} if args.gpus > 1 else {}
            ranks.append(
                self.processes.start(command, log, MASTER_ADDR="127.0.0.1", MASTER_PORT=str(args.port), **several)
            )
        follow, overdue = follower(logs[0]), begin + minutes * 60 + GRACE
        while True:
            codes = [process.poll() for process in ranks]
            follow()
            # one that failed leaves the others waiting for it; the first writes the files and ends last
            if codes[0] is not None or any(codes) or time.perf_counter() > overdue:
                break
            time.sleep(0.5)
        self.processes.end(ranks)
        self.note(name, begin, minutes=round(minutes, 2), exit=codes)
        failed = next((rank for rank, code in enumerate(codes) if code), None)
        if failed:  # that of the first is on the screen already
            print(logs[failed].read_text(errors="replace")[-3000:], flush=True)
        return codes[0] == 0

    # ---- the chain ----

    def origin(self) -> Path:
        """The folder to train onto: an earlier session's checkpoint, else the base; joined from parts if need be."""
        for name, place in ((CHECKPOINT, self.joined), ("base", self.args.base)):
            if (place / CONFIG).is_file():
                return place
            if self.args.parts and any((part / f"{name}.json").is_file() for part in self.args.parts):
                begin = time.perf_counter()
                join_parts(name, self.args.parts, place)
                self.note(f"join {name}", begin)
                return place
        sys.exit(
            f"no base in {self.args.base}: make it with training.smollm2, or name the folder of its parts (--parts)"
        )

    def teacher(self, base: Path) -> None:
        """The text tower trained on texts, once, unless it is to stay as it is: by default an earlier checkpoint's."""
        again, done = base == self.joined, self.folder / "text.done"
        minutes = (
            (0.0 if again else TEACHER_MINUTES) if self.args.teacher_minutes is None else self.args.teacher_minutes
        )
        if done.is_file() or not minutes:
            return
        options = ["--base", str(base), "--only", "text", "--out", str(self.text), "--distill-weight", "0"]
        options += ["--lr", "1.2e-3", "--text-lr", "0.3", "--accumulate", "1", "--fresh"]
        options += ["--total-minutes", str(minutes)]
        options += ["--init", str(base), "--elapsed-minutes", "0"] if again else []
        self.say(f"teacher, {minutes:g} minutes")
        if not self.train("teacher", options, minutes):
            sys.exit("the teacher was not trained; its log is above")
        shutil.rmtree(self.text.with_name("text-state"), ignore_errors=True)
        done.touch()

    def schedule_used(self) -> float:
        file = self.omni / "progress.json"
        return json.loads(file.read_text())["minutes"] if file.is_file() else 0.0

    def pieces(self, base: Path) -> None:
        """Pages until this call's minutes, or the schedule's, are used up."""
        args = self.args
        after = PACKING + (args.evaluation_minutes if args.evaluate else 0.0)
        start = self.text if (self.folder / "text.done").is_file() else base
        options = ["--base", str(base), "--out", str(self.omni)]
        if start in (self.text, self.joined):  # else the base's own weights, whose text tower is the teacher, too
            options += ["--init", str(start), "--teacher", str(start)]
        if start == self.text:
            options += ["--elapsed-minutes", "0"]
        options += ["--total-minutes", str(args.total_minutes), "--freeze-minutes", "0.7", "--lr", "1.2e-3"]
        options += ["--text-lr", "0.15", "--round-step", str(args.step), *args.more]
        if args.only:
            options += ["--only", *args.only]
        for number in range(1, args.pieces + 1):
            minutes = min(args.piece_minutes, self.left - after, args.total_minutes - self.schedule_used())
            if minutes < min(LEAST_PIECE, args.piece_minutes):
                break
            self.say(f"piece {number} of this call, {minutes:.2f} minutes")
            if not self.train("pages", options, minutes):
                if not (self.omni / CONFIG).is_file():
                    sys.exit("the piece did not end well, and there is no checkpoint to go on with; its log is above")
                self.say("the piece did not end well; going on with its last checkpoint")
                break

    def save(self) -> None:
        """The checkpoint in the steps that ship, as parts."""
        begin = time.perf_counter()
        state = self.omni.with_name("omni-state")
        place = self.folder / "checkpoint"
        compact(self.omni, place, self.args.step, state if state.is_dir() else None)
        manifest = split_folder(place, self.folder / "parts", CHECKPOINT, PART_BYTES)
        parts = json.loads(manifest.read_text())["parts"]
        self.note("checkpoint", begin, parts=len(parts), bytes=sum(part["bytes"] for part in parts))
        self.say(f"checkpoint of {len(parts)} parts, {sum(part['bytes'] for part in parts) / 1e6:.1f} MB")

    def export(self) -> None:
        """The checkpoint as the model that ships, in the folder ``model``."""
        from training.export import export  # transformers, whose import takes seconds that a new run need not wait for

        begin, place = time.perf_counter(), self.folder / "checkpoint"
        coded = coded_weights(place, self.args.step)
        export(load_weights(place), place / TOKENIZER, self.folder / "model", read_config(place), coded)
        self.note("export", begin)

    def evaluate(self, held_out: subprocess.Popen | None) -> dict:
        """Greedy answers of the exported model about held-out pages."""
        begin, model, report = time.perf_counter(), self.folder / "model", self.folder / "evaluation.json"
        seconds = max(self.left - PACKING / 2, 0.2) * 60
        with contextlib.suppress(subprocess.TimeoutExpired):
            if held_out is not None:
                held_out.wait(seconds)
            command = ["training.evaluate", "--model", str(model), "--data", str(self.folder / "heldout"), "--dtype"]
            command += ["bfloat16", "--limit", str(self.args.limit), "--out", str(report), "--sets", *self.args.sets]
            command += ["--device", self.args.device] if self.args.device else []
            log = self.folder / "evaluate.log"
            process = self.processes.start(command, log)
            code = process.wait(max(seconds - (time.perf_counter() - begin), 10))
            if code:
                print(log.read_text()[-1500:], flush=True)
            self.note("evaluation", begin, exit=code)
            return json.loads(report.read_text())["sets"] if code == 0 else {}
        self.say("no time left for the evaluation")
        return {}

    def run(self) -> None:
        args = self.args
        held_out = None
        try:
            base = self.origin()
            if args.evaluate and not (self.folder / "heldout" / "heldout.jsonl").is_file():
                command = ["training.heldout", "--out", str(self.folder / "heldout"), "--sets", *args.sets]
                # beside the training, by one core
                held_out = self.processes.start(command, self.folder / "heldout.log")
            self.teacher(base)
            self.pieces(base)
            if not (self.omni / CONFIG).is_file():
                sys.exit("no piece on pages was trained: give this call more --minutes")
            self.save()
            if args.out:
                send(self.folder, args.out, 0)
            self.export()
            scores = self.evaluate(held_out) if args.evaluate else {}
            if args.out and scores:
                shutil.copy(self.folder / "evaluation.json", args.out)
            print(table(json.loads((self.omni / "progress.json").read_text())["history"], scores, self.log), flush=True)
        finally:
            self.processes.end()


def table(history: Sequence[dict], scores: dict, log: Sequence[dict]) -> str:
    """Held-out measurements of the pieces, scores of answers, and seconds a phase."""
    lines = ["", f"{'minutes':>8} {'update':>7}  share of exact branches (token accuracy) by group"]
    for record in history[-8:]:
        groups = {name: g for name, g in record.items() if isinstance(g, dict)}
        shown = "  ".join(f"{name} {g['exact']:.3f} ({g['accuracy']:.3f})" for name, g in groups.items())
        lines.append(f"{record['minutes']:8.2f} {record['step']:7d}  {shown}")
    for name, row in scores.items():
        figures = {k: v for k, v in row.items() if not k.startswith("by_")}
        lines.append(f"{name:>16}  " + "  ".join(f"{k} {v}" for k, v in figures.items()))
    return "\n".join([*lines, "seconds: " + ", ".join(f"{row['phase']} {row['seconds']:g}" for row in log)])


def send(folder: Path, out: Path, batch: int) -> list[str]:
    """Copies one transfer's parts with the manifest and the log; returns the names of the parts.

    Raises:
        ValueError: nothing was packed yet, or there are fewer parts.
    """
    manifest = folder / "parts" / f"{CHECKPOINT}.json"
    if not manifest.is_file():
        raise ValueError(f"{folder} has no parts yet: `run` writes them")
    names = [part["file"] for part in json.loads(manifest.read_text())["parts"]]
    chosen = names[batch * BATCH : (batch + 1) * BATCH]
    if not chosen:
        raise ValueError(f"there is no batch {batch}: {len(names)} parts, {BATCH} at a time")
    out.mkdir(parents=True, exist_ok=True)
    for name in (*chosen, manifest.name):
        shutil.copy(folder / "parts" / name, out / name)
    shutil.copy(folder / "chain.json", out / "chain.json")
    more = len(names) - (batch + 1) * BATCH
    print(f"parts {', '.join(chosen)} in {out}" + (f"; {more} more: send --batch {batch + 1}" if more > 0 else ""))
    return chosen


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m training.chain", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    sending = commands.add_parser("send", help="copy a transfer's parts of the last checkpoint")
    # no abbreviations: a detached run is started with the words of this call but for --detach
    running = commands.add_parser("run", help="train until this call's minutes are used up", allow_abbrev=False)
    watching = commands.add_parser("watch", help="show what a detached run prints")
    for command in (sending, running, watching):
        command.add_argument("--folder", type=Path, default=Path("runs/chain"), help="where the chain stands")
    sending.add_argument("--out", type=Path, required=True)
    sending.add_argument("--batch", type=int, default=1, help=f"of {BATCH} parts, from 0 (default 1)")
    watching.add_argument(
        "--minutes", type=float, default=0.0, help="at most, until it ends (default 0: what there is)"
    )
    add = running.add_argument
    add("--minutes", type=float, required=True, help="wall-clock minutes of this call, everything included")
    add("--out", type=Path, help="folder for the first parts of the checkpoint, the log and the evaluation")
    add("--parts", type=Path, nargs="+", help="folders with parts of `base` or of an earlier checkpoint `omni`")
    add("--base", type=Path, default=Path(".base"), help="folder of training.smollm2 (default .base)")
    add("--gpus", type=int, default=1, help="of this host, a training process each (default 1)")
    add("--port", type=int, default=29511, help="where these processes meet (default 29511)")
    add(
        "--teacher-minutes",
        type=float,
        help=f"of the teacher on texts; 0: none (default {TEACHER_MINUTES}, 0 from `omni`)",
    )
    add("--total-minutes", type=float, default=24.0, help="of the schedule on pages, all calls together (default 24)")
    add("--piece-minutes", type=float, default=8.0, help="at most so many a piece (default 8)")
    add("--pieces", type=int, default=99, help="at most so many in this call")
    add(
        "--step",
        type=step_share,
        default=0.08,
        help="of stored weights, and of rounding in the last minutes (default 0.08)",
    )
    add("--evaluate", action="store_true", help="answer held-out pages with the checkpoint at the end")
    add("--evaluation-minutes", type=float, default=1.2, help="kept for that (default 1.2)")
    add("--sets", nargs="+", default=list(HELD_SETS), help="of training.heldout (default: %(default)s)")
    add("--limit", type=int, default=120, help="conversations a set (default 120)")
    add("--dataset", default="training.office_dataset")
    add("--only", nargs="+", help="only specs of these names on pages")
    add("--workers", type=int, default=14, help="data processes a GPU (default 14)")
    add("--slots", type=int, default=32)
    add("--log-every", type=int, default=50)
    add("--steps", type=int, help="at most so many updates a run, to try the chain on a CPU")
    add("--sequences", type=int, help="at most so many a micro-batch, likewise")
    add("--profile", type=int, nargs=2, metavar=("FIRST", "COUNT"), help="of training.train: where updates spend time")
    add("--device", help="of training.train, such as cpu")
    add("--no-graphs", dest="graphs", action="store_false", help="of training.train: no CUDA graphs")
    add("--detach", action="store_true", help="return at once; the run outlives this call (`watch` shows it)")
    add(DETACHED, action="store_true", help=argparse.SUPPRESS)  # what --detach has started
    add("more", nargs="*", help="after --: options of training.train for the pieces, such as -- --text-lr 0.3")
    args = parser.parse_args()
    end_tidily()
    try:
        if args.command == "send":
            send(args.folder, args.out, args.batch)
        elif args.command == "watch":
            sys.exit(watch(args.folder, args.minutes * 60))
        elif args.detach:
            own = [DETACHED if word == "--detach" else word for word in sys.argv[1:]]
            print(f"process {detach(['training.chain', *own], args.folder)} goes on in {args.folder}")
        else:
            with record_exit_code(args.folder) if args.detached else contextlib.nullcontext():
                Session(args).run()
    except ValueError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
