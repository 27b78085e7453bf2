"""Four visitors ask the app 200 questions through gradio_client; is its memory flat?

python -m benchmarks.app_soak                    # writes benchmarks/results/app_soak.json
python -m benchmarks.app_soak --hostile          # eight visitors, 1000 turns: benchmarks/results/soak.json

The app runs in this process, as app.py starts it, and every visitor in one of their own. Recorded are the app's
resident memory and the bytes of all caches, once a second, the errors, and the seconds a question took. ``growth_mib``
is the median of the last quarter of the run minus that of the second, so warming up does not count.

With ``--hostile`` the visitors are pages of a browser (:mod:`benchmarks.hostile_visitor`): of ten turns four are plain
questions, the others send files that are broken, huge or cut off, stop, or leave. Every turn is a new visitor, and who
left is kept for half an hour, so the app's clock runs six times as fast: after five minutes as many visitors are
forgotten as come. ``left`` is what the app still holds when all have gone and three hours have passed by its clock:
files of visitors, visitors, states of pages, and the resident memory.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any
from unittest import mock

from benchmarks import hostile_visitor

RESULTS = Path(__file__).parent / "results"
SAMPLES = Path(__file__).resolve().parents[1] / "assets" / "samples"
ASKED = (
    (["invoice.png"], "How much do I have to pay?"),
    (["receipt.png"], "How much is the Tomato Soup?"),
    (["memo.wav"], "What is the phone number?"),
    (["table.png"], "What is the platform for Hamburg?"),
    (["invoice.png", "question.wav"], ""),
    (["form.png"], "What is the policy number?"),
)
SPEED = 6.0  # of the app's clock beside the real one, with hostile visitors
POLICIES = ("balanced", "kivi2", "small", "bf16", "oscar2")


def visitor(url: str, number: int, questions: int, seconds: float) -> None:
    """Ask, and print one JSON line a question. Runs in a process of its own."""
    from gradio_client import Client, handle_file

    client, end = Client(url, verbose=False), time.monotonic() + seconds
    for i in range(questions):
        if time.monotonic() > end:
            break
        files, question = ASKED[(number + i) % len(ASKED)]
        policy, name = POLICIES[(number + i) % len(POLICIES)], "/compare" if i % 10 == 9 else "/ask"
        begin = time.perf_counter()
        try:
            answer = client.predict([handle_file(SAMPLES / file) for file in files], question, policy, api_name=name)
            error = None if answer else "no answer"
        except Exception as failure:  # whatever a visitor may see counts
            error = repr(failure)
        print(json.dumps({"seconds": time.perf_counter() - begin, "error": error}), flush=True)


class Clock:
    """The app's time: ``speed`` times the real one from now on, and what passes at the end."""

    def __init__(self, speed: float = 1.0) -> None:
        self.speed, self.passed, self._start = speed, 0.0, time.time()

    def __call__(self) -> float:
        return self._start + self.speed * (time.time() - self._start) + self.passed

    @property
    def ahead(self) -> float:
        """Seconds that it has gained on the times of files, without what passes at the end."""
        return (self.speed - 1) * (time.time() - self._start)


def clean_up(demo: Any, clock: Clock) -> None:
    """The app's clean-up by ``clock``. Files have real times: without a correction new ones would look hours old."""
    from kvmm.ui.demo import made_files
    from kvmm.ui.server import visitors

    limit = visitors.FILE_SECONDS / clock.speed + clock.ahead
    with mock.patch.object(visitors, "FILE_SECONDS", limit):
        demo.visitors.clean_up(made_files(demo))


def left_behind(demo: Any, clock: Clock, folder: Path) -> dict:
    """What the app holds three hours after its last visitor."""
    import psutil

    from kvmm.ui.server.arenas import return_memory

    until = time.monotonic() + 120  # answers go on without their pages
    while any(visit.is_working for visit in demo.visitors._visits) and time.monotonic() < until:
        time.sleep(0.5)
    clock.passed += 3 * 3600
    clean_up(demo, clock)
    gc.collect()
    return_memory()
    files = [path for path in folder.rglob("*") if path.is_file() and path.resolve() not in demo.visitors.kept]
    return {
        "files": sorted(str(path.relative_to(folder)) for path in files),
        "folders": len([path for path in folder.glob("kvmm-*")]),
        "visitors": len(demo.visitors._visits),
        "states": len(demo.state_holder.session_data),
        "cache_bytes": demo.visitors.cache_nbytes(),
        "rss_mib": round(psutil.Process().memory_info().rss / 2**20, 1),
    }


def by_turn(lines: list[dict]) -> dict:
    """Counts of outcomes, errors and median seconds, by kind of turn."""
    found = {}
    for name in dict.fromkeys(line["turn"] for line in lines):
        own = [line for line in lines if line["turn"] == name]
        outcomes = [line["outcome"] for line in own if not line["error"]]
        found[name] = {
            "turns": len(own),
            **{outcome: outcomes.count(outcome) for outcome in dict.fromkeys(outcomes)},
            "errors": sum(bool(line["error"]) for line in own),
            "seconds_median": round(statistics.median(line["seconds"] for line in own), 2),
            "seconds_max": round(max(line["seconds"] for line in own), 2),
        }
    return found


def soak(visitors: int, questions: int, seconds: float, *, hostile: bool = False) -> dict:
    """Run the app and its visitors; returns what is written to the result file."""
    import psutil
    import torch

    from kvmm.ui import Models, build_demo, launch_options, share_arenas
    from kvmm.ui.server.visitors import CLEAN_SECONDS

    folder = tempfile.TemporaryDirectory(prefix="kvmm-soak-")  # uploads of other apps on this machine are not ours
    os.environ["GRADIO_TEMP_DIR"] = folder.name
    torch.set_num_threads(1)
    share_arenas()
    clock = Clock(SPEED if hostile else 1.0)
    demo = build_demo(Models.named([None]), max_new_tokens=24, cache_budget=64 * 2**20, now=clock)
    options = launch_options(max_file_mib=16) if hostile else launch_options()
    _, url, _ = demo.launch(prevent_thread_lock=True, quiet=True, server_name="127.0.0.1", **options)
    process, samples, done = psutil.Process(), [], threading.Event()
    begin = time.perf_counter()

    def watch() -> None:
        cleaned = clock()
        while not done.wait(1.0):
            seconds, rss = time.perf_counter() - begin, process.memory_info().rss
            samples.append((round(seconds, 1), round(rss / 2**20, 1), demo.visitors.cache_nbytes()))
            if hostile and clock() - cleaned > CLEAN_SECONDS:  # the app's own timer does not hurry
                clean_up(demo, clock)
                cleaned = clock()

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    each = questions // visitors
    command = [sys.executable, "-m", "benchmarks.app_soak", "--visitor", url, "--questions", str(each)]
    command += [*(["--hostile"] if hostile else []), "--seconds", str(seconds), "--number"]
    children = [subprocess.Popen([*command, str(n)], stdout=subprocess.PIPE, text=True) for n in range(visitors)]
    lines = [json.loads(line) for child in children for line in child.communicate()[0].splitlines()]
    seconds = time.perf_counter() - begin
    done.set()
    watcher.join()
    left = demo.visitors.cache_nbytes()
    more = {"turns": by_turn(lines), "left": left_behind(demo, clock, Path(folder.name))} if hostile else {}
    demo.close()
    rss = [row[1] for row in samples]
    quarter = max(len(rss) // 4, 1)
    taken = sorted(line["seconds"] for line in lines)
    return {
        "command": f"python -m benchmarks.app_soak --visitors {visitors} --questions {questions}"
        + " --hostile" * hostile,
        "visitors": visitors,
        "questions": len(lines),
        "errors": [re.sub(r"/\S*/", "FOLDER/", line["error"]) for line in lines if line["error"]],
        "seconds": round(seconds, 1),
        "seconds_a_question": {"median": round(statistics.median(taken), 2), "max": round(taken[-1], 2)},
        "rss_mib": {
            "second_quarter": statistics.median(rss[quarter : 2 * quarter]),
            "last_quarter": statistics.median(rss[-quarter:]),
            "max": max(rss),
        },
        **more,
        "growth_mib": round(statistics.median(rss[-quarter:]) - statistics.median(rss[quarter : 2 * quarter]), 1),
        "cache_bytes": {"max": max(row[2] for row in samples), "left": left},
        "python": platform.python_version(),
        "torch": torch.__version__,
        "samples": {"columns": ["seconds", "rss_mib", "cache_bytes"], "rows": samples[:: max(len(samples) // 120, 1)]},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hostile", action="store_true", help="pages that send bad files, stop and leave")
    parser.add_argument("--visitors", type=int, help="default 4; 8 hostile ones")
    parser.add_argument("--questions", type=int, help="of all visitors together; default 200, 1000 of hostile ones")
    parser.add_argument("--seconds", type=float, default=3600, help="ask nothing new after this time")
    parser.add_argument("--out", type=Path, help="the JSON file to write; default in benchmarks/results")
    parser.add_argument("--visitor", metavar="URL", help=argparse.SUPPRESS)
    parser.add_argument("--number", type=int, default=0, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.visitor:
        (hostile_visitor.visit if args.hostile else visitor)(args.visitor, args.number, args.questions, args.seconds)
        return
    visitors, questions = args.visitors or (8 if args.hostile else 4), args.questions or (1000 if args.hostile else 200)
    result = soak(visitors, questions, args.seconds, hostile=args.hostile)
    print(json.dumps({name: value for name, value in result.items() if name != "samples"}, indent=1))
    out = args.out or RESULTS / ("soak.json" if args.hostile else "app_soak.json")
    out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
