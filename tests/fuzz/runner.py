"""Runs inputs in child processes with limits, and counts what becomes of them.

A child makes its inputs itself, by kind, seed and number, so that one input can be run again alone:
``python -m tests.fuzz --kinds caches --start 1234 --inputs 1``.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import platform
import random
import resource
import selectors
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.fuzz import KINDS

SECONDS = 20.0
BYTES = 2**30
OUTCOMES = ("accepted", "refused", "foreign", "crashed", "slow", "large")
_ROOT = Path(__file__).parents[2]


# -- the child ---------------------------------------------------------------------------------------------------------


def serve(kind: str, seed: int, start: int, count: int) -> None:
    """Run inputs ``start`` and following; one line of JSON before and one after each, on standard output."""
    out = os.fdopen(os.dup(1), "w", buffering=1)
    quiet = os.open(os.devnull, os.O_WRONLY)  # what decoders print
    os.dup2(quiet, 1)
    target = importlib.import_module(f"tests.fuzz.{kind}")
    with tempfile.TemporaryDirectory(prefix="kvmm-fuzz-") as folder:
        os.environ["TMPDIR"] = tempfile.tempdir = folder  # what a killed child leaves goes with it
        fuzzer = target.Fuzzer(Path(folder))
        for original in fuzzer.originals():  # have to be accepted; and what is loaded once is nobody's memory
            fuzzer.run(original)
        _limit_memory()
        for number in range(start, start + count):
            data = fuzzer.make(random.Random(f"{kind}:{seed}:{number}"), number)
            print(json.dumps({"begin": number}), file=out)
            print(json.dumps({"end": number, **_tried(fuzzer, data)}), file=out)


def _tried(fuzzer: Any, data: Any) -> dict[str, Any]:
    from kvmm import KVMMError

    _reset_peak()
    began, before = time.perf_counter(), _resident("VmRSS")
    try:
        fuzzer.run(data)
        found: dict[str, Any] = {"outcome": "accepted"}
    except KVMMError as error:
        found = {"outcome": "refused"}
        if "\n" in str(error) or len(str(error)) > 2000:
            found = {"outcome": "foreign", "error": f"a message of several lines or {len(str(error))} characters"}
    except MemoryError:
        found = {"outcome": "large", "error": "MemoryError"}
    except BaseException as error:
        frames = traceback.extract_tb(error.__traceback__)
        own = [f for f in frames if "kvmm" in f.filename] or frames
        place = f"{Path(own[-1].filename).name}:{own[-1].lineno}"
        found = {
            "outcome": "foreign",
            "error": f"{type(error).__name__} at {place}: {' '.join(str(error).split())[:160]}",
        }
    seconds, grown = time.perf_counter() - began, _resident("VmHWM") - before
    if seconds > SECONDS:
        found["outcome"] = "slow"
    elif grown > BYTES:
        found["outcome"] = "large"
    return {**found, "seconds": round(seconds, 3), "bytes": grown}


def _limit_memory() -> None:
    if os.environ.get("LD_PRELOAD"):  # a sanitizer reserves terabytes of addresses
        return
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + BYTES + 2**29
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _resident(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) * 1024
    return 0


def _reset_peak() -> None:
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


# -- the parent --------------------------------------------------------------------------------------------------------


def run(
    kinds: Sequence[str], inputs: int, seed: int = 0, start: int = 0, sanitize: bool = False, out: Path | None = None
) -> dict[str, Any]:
    """Run ``inputs`` inputs, spread over kinds by their weights; the counts, also written to ``out`` as JSON."""
    weight, counts, began = sum(KINDS.get(kind, 1) for kind in kinds), {}, time.time()
    result: dict[str, Any] = {"command": f"python -m tests.fuzz {' '.join(sys.argv[1:])}", "seed": seed}
    result |= {"limits": {"seconds": SECONDS, "bytes": BYTES}, "sanitizers": sanitize, "versions": _versions()}
    for kind in kinds:
        count = -(-inputs * KINDS.get(kind, 1) // weight)
        for found in _run_kind(kind, seed, start, count, sanitize):
            counts[kind] = found
            result["kinds"] = counts
            result["inputs"] = sum(one["inputs"] for one in counts.values())
            result["clean"] = not any(one[name] for one in counts.values() for name in OUTCOMES[2:])
            result["seconds"] = round(time.time() - began)
            if out is not None:
                out.write_text(json.dumps(result, indent=1) + "\n")
        print(f"{kind}: {counts[kind]}", file=sys.stderr, flush=True)
    return result


def _run_kind(kind: str, seed: int, start: int, count: int, sanitize: bool) -> Iterator[dict[str, Any]]:
    """The counts, now and then and at the end."""
    found: dict[str, Any] = {"inputs": 0, **dict.fromkeys(OUTCOMES, 0), "slowest_seconds": 0.0, "largest_bytes": 0}
    number, end, problems = start, start + count, []
    while number < end:
        for one in _child(kind, seed, number, end - number, sanitize):
            number = one["number"] + 1
            found["inputs"] += 1
            found[one["outcome"]] += 1
            found["slowest_seconds"] = max(found["slowest_seconds"], round(one.get("seconds", 0.0), 2))
            found["largest_bytes"] = max(found["largest_bytes"], one.get("bytes", 0))
            if one["outcome"] not in OUTCOMES[:2] and len(problems) < 40:
                problems.append({"input": one["number"], "outcome": one["outcome"], "error": one.get("error", "")})
            if found["inputs"] % 100 == 0 or number == end:
                yield found | ({"problems": problems} if problems else {})


def _child(kind: str, seed: int, start: int, count: int, sanitize: bool) -> Iterator[dict[str, Any]]:
    """What becomes of the inputs from ``start`` on, until a child has run all of them or is gone."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(_ROOT)}
    if sanitize:
        from kvmm.kernels.build import sanitized_environment

        environment |= sanitized_environment()
    command = [sys.executable, "-m", "tests.fuzz", "--serve", kind, "--seed", str(seed)]
    command += ["--start", str(start), "--inputs", str(count)]
    with tempfile.TemporaryFile() as errors:
        child = subprocess.Popen(command, cwd=_ROOT, env=environment, stdout=subprocess.PIPE, stderr=errors)
        current = None
        try:
            for line in _lines(child):
                message = json.loads(line)
                if "begin" in message:
                    current = message["begin"]
                else:
                    current = None
                    yield {"number": message["end"], **message}
            child.wait(60)
        except TimeoutError:
            if current is None:
                raise RuntimeError(f"{kind}: the child does not start") from None
            yield {"number": current, "outcome": "slow", "seconds": SECONDS, "error": "killed"}
            return
        finally:
            child.kill()
            code = child.wait()
            child.stdout.close()
        if current is not None:
            errors.seek(0)
            words = errors.read().decode(errors="replace")
            at = max(words.find("SUMMARY:"), words.find("runtime error"), 0)
            yield {
                "number": current,
                "outcome": "crashed",
                "error": f"exit {code} {' '.join(words[at:].split())[:200]}",
            }
        elif code:
            errors.seek(0)
            raise RuntimeError(f"{kind}: the child ended with {code}: {errors.read()[-2000:].decode(errors='replace')}")


def _lines(child: subprocess.Popen[bytes]) -> Iterator[bytes]:
    """Lines of a child's output; ``TimeoutError`` where one takes longer than an input may, or a start."""
    os.set_blocking(child.stdout.fileno(), False)
    held, wait = b"", 1800.0  # the first line comes once everything is loaded
    with selectors.DefaultSelector() as selector:
        selector.register(child.stdout, selectors.EVENT_READ)
        while True:
            if not selector.select(wait):
                raise TimeoutError
            more = child.stdout.read()
            if not more:
                return
            *lines, held = (held + more).split(b"\n")
            yield from lines
            wait = SECONDS + 10


def _versions() -> dict[str, str]:
    import av
    import numpy
    import PIL
    import pypdfium2
    import soundfile
    import torch
    import transformers

    modules = {"torch": torch, "transformers": transformers, "numpy": numpy, "pillow": PIL, "soundfile": soundfile}
    versions = {name: module.__version__ for name, module in modules.items()}
    versions |= {"pypdfium2": str(pypdfium2.PYPDFIUM_INFO), "av": av.__version__}
    return {"python": platform.python_version(), **versions}


def table(result: dict[str, Any]) -> str:
    """The counts as text."""
    names = ("inputs", *OUTCOMES, "slowest_seconds", "largest_bytes")
    rows = [("kind", *names)]
    rows += [(kind, *(str(one[name]) for name in names)) for kind, one in result["kinds"].items()]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
