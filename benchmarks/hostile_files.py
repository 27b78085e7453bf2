"""Small files that ask for much: memory and time until they are refused or answered, and what others notice.

python -m benchmarks.hostile_files                      # writes benchmarks/results/hostile_files.json
python -m benchmarks.hostile_files --beside CHECKOUT    # the same files in the package of another checkout

A visitor asks about each file while another one asks about a page, in this process as the app answers them.
``peak_mib`` is what this process and those that decode grew by, ``left_percent`` what stays of it, and ``others`` the
seconds of the other visitor's question alone and beside the file. With ``--beside``, ``load_media`` of that checkout
reads each file in a process of its own, which is ended after ``LIMIT`` seconds or ``LIMIT_MIB``. ``page_ms`` is what an
ordinary page takes, decoded in a process of its own and in this one.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from tests.decoding import hostile

RESULT = Path(__file__).parent / "results" / "hostile_files.json"
PAGE = Path(__file__).resolve().parents[1] / "assets" / "samples" / "invoice.png"
LIMIT, LIMIT_MIB = 120, 6000
_MIB = 2**20
_BESIDE = """
import sys
from kvmm.media import load_image, load_media
load_image(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
try:
    print(len(load_media(sys.argv[2])), "item(s)")
except Exception as error:
    print(type(error).__name__, str(error)[:200])
"""


def five_pictures(folder: Path) -> list[Path]:
    """Pictures of 100 million pixels in 300 kB each."""
    paths = [folder / f"wide{number}.png" for number in range(5)]
    for number, path in enumerate(paths):
        path.write_bytes(hostile.wide_png(10_000 - number))
    return paths


class Peak:
    """The most resident memory of a process and its children, in MiB beyond what it had."""

    def __init__(self, pid: int) -> None:
        self._process, self._done, self.most = psutil.Process(pid), threading.Event(), 0.0
        self.before = self.now()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def now(self) -> float:
        """MiB at this moment."""
        total = 0
        for process in (self._process, *self._process.children(recursive=True)):
            try:
                total += process.memory_info().rss
            except psutil.Error:  # it has just ended
                continue
        return total / _MIB

    def _watch(self) -> None:
        while not self._done.wait(0.02):
            try:
                self.most = max(self.most, self.now() - self.before)
            except psutil.Error:
                return

    def end(self) -> float:
        """Stop looking; the peak."""
        self._done.set()
        self._thread.join()
        return round(self.most)


def beside(checkout: Path, path: Path) -> dict[str, Any]:
    """What the package in ``checkout`` does with a file."""
    command = [sys.executable, "-c", _BESIDE, str(PAGE), str(path)]
    environment = {**os.environ, "PYTHONPATH": str(checkout)}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
    with subprocess.Popen(command, cwd=checkout, env=environment, **pipes) as process:
        process.stdout.readline()
        peak, begin = Peak(process.pid), time.monotonic()
        process.stdin.write("\n")
        process.stdin.flush()
        ended = ""
        while process.poll() is None:
            if time.monotonic() - begin > LIMIT or peak.most > LIMIT_MIB:
                ended = f"ended here after {LIMIT} s or {LIMIT_MIB} MiB"
                process.kill()
            time.sleep(0.05)
        seconds = time.monotonic() - begin
        said = process.stdout.read().strip()
        died = f"the process died by signal {-process.returncode}" if process.returncode < 0 else ""
        return {"seconds": round(seconds, 1), "peak_mib": peak.end(), "outcome": ended or said or died}


class House:
    """Two visitors of one model."""

    def __init__(self) -> None:
        from kvmm import load_model
        from kvmm.models.loading import TINY_MODEL
        from kvmm.ui import Models, share_arenas
        from kvmm.ui.chat.session import Session

        share_arenas()
        models = Models.of(*load_model(TINY_MODEL))
        self.heavy, self.other = (Session(models, max_new_tokens=24) for _ in range(2))

    def ask(self, session: Any, files: list[Path]) -> tuple[float, str]:
        """Seconds of a question about files in a new conversation, and what came of it."""
        from kvmm.ui.chat.session import UserMessage
        from kvmm.ui.settings import Settings

        session.delete()
        begin = time.monotonic()
        answer = session.begin(UserMessage("What is the total?", tuple(map(str, files))), Settings(policy="balanced"))
        answer.prepare()
        answer.start()
        for _ in answer.watch():
            pass
        return time.monotonic() - begin, answer.error or "answered"

    def measure(self, files: list[Path]) -> dict[str, Any]:
        """One case."""
        gc.collect()
        alone = statistics.median(self.ask(self.other, [PAGE])[0] for _ in range(3))
        peak, beside, found = Peak(os.getpid()), [], []
        thread = threading.Thread(target=lambda: found.append(self.ask(self.heavy, files)))
        thread.start()
        while thread.is_alive() or not beside:
            beside.append(self.ask(self.other, [PAGE])[0])
        thread.join()
        most = peak.end()
        gc.collect()
        left = 100 * (peak.now() / peak.before - 1)
        return {
            "seconds": round(found[0][0], 1),
            "peak_mib": most,
            "left_percent": round(left, 1),
            "outcome": found[0][1],
            "others": {"alone": round(alone, 2), "beside": round(statistics.median(beside), 2), "count": len(beside)},
        }


def main(arguments: list[str] | None = None) -> None:
    """Measure all cases, print them, and write the result file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--beside", type=Path, help="a checkout whose package reads the same files")
    parser.add_argument("--cases", nargs="*", help="names of cases; default all")
    parser.add_argument("--out", type=Path, default=RESULT)
    options = parser.parse_args(arguments)
    import torch

    cases: dict[str, Callable[[Path], list[Path]]] = {"five PNGs of 300 kB": five_pictures}
    for label, (name, make) in hostile.CASES.items():
        cases[label] = lambda folder, name=name, make=make: [_written(folder / name, make())]
    old = json.loads(options.out.read_text())["cases"] if options.out.exists() else {}
    house, results = House(), {}
    house.measure([PAGE])  # both have answered once
    with tempfile.TemporaryDirectory() as folder:
        for label, write in cases.items():
            if options.cases and label not in options.cases:
                results |= {label: old[label]} if label in old else {}
                continue
            paths = write(Path(folder))
            results[label] = {"bytes": sum(path.stat().st_size for path in paths), **house.measure(paths)}
            if options.beside is not None and len(paths) == 1:
                results[label]["beside"] = beside(options.beside.resolve(), paths[0])
            elif "beside" in old.get(label, {}):
                results[label]["beside"] = old[label]["beside"]
            print(label, json.dumps(results[label]), flush=True)
    found = {"command": "python -m benchmarks.hostile_files", "cores": os.cpu_count(), "load": os.getloadavg()[0]}
    found |= {"python": platform.python_version(), "torch": torch.__version__, "page_ms": page_ms(), "cases": results}
    options.out.write_text(json.dumps(found, indent=1) + "\n")


def page_ms(runs: int = 30) -> dict[str, float]:
    """Median milliseconds of one ordinary page, decoded in a process of its own and in this one."""
    from kvmm.decoding import in_process
    from kvmm.media import load_image

    times: dict[str, list[float]] = {"own process": [], "here": []}
    for _ in range(runs):
        for where, found in times.items():
            with in_process() if where == "here" else contextlib.nullcontext():
                begin = time.perf_counter()
                load_image(PAGE)
                found.append(1e3 * (time.perf_counter() - begin))
    return {where: round(statistics.median(found), 1) for where, found in times.items()}


def _written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


if __name__ == "__main__":
    main()
