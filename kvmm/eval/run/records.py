"""The files of a run: one line per sample. A crash loses the current sample at most.

``{out}/{model}/{date}_samples_{task}_{policy}.jsonl`` holds the answers, ``{date}_results.json`` the settings and the
scores; both follow lmms-eval's schemas and add what a KV cache is measured by. Lines are only ever appended, each with
one write and an fsync. One process holds a run (:meth:`RunFiles.locked`); those that share its work append to files
of their own (``....rank1.jsonl``), which are merged at the end.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from itertools import permutations
from pathlib import Path
from typing import Any

from kvmm.errors import KVMMError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

NGRAM = 4  # of tokens, for the repetition rate
_RESULTS = "_results.json"
_PACKAGES = ("kvmm", "torch", "transformers", "accelerate")
# what must be the same when a run goes on; everything else (limit, batch size, device) may change
_FIXED = (
    *("dataset_path", "split", "generation_kwargs", "pack_before_question"),
    *("policy_config", "calibration", "task_options"),
)

Row = dict[str, Any]


def safe_name(name: str) -> str:
    """A name as part of a file name: anything but letters, digits, ``.``, ``_`` and ``-`` becomes ``__``."""
    return re.sub(r"[^A-Za-z0-9._-]+", "__", name).strip("-.") or "model"


def repetition_rate(tokens: Sequence[int], n: int = NGRAM) -> float:
    """The share of an answer's n-grams that occurred in it before: ``1 - unique / all`` (seq-rep-n of Welleck et al.
    2020, section 6); 0.0 for an answer of fewer than ``n + 1`` tokens.
    """
    grams = [tuple(tokens[start : start + n]) for start in range(len(tokens) - n + 1)]
    return 1 - len(set(grams)) / len(grams) if grams else 0.0


def sample_hash(question: str, answers: Sequence[str]) -> str:
    """A hash that tells whether a recorded line belongs to the sample with that id in the present data."""
    return hashlib.sha256(json.dumps([question, list(answers)], ensure_ascii=False).encode()).hexdigest()[:16]


# --------------------------------------------------------------------------------------------------------------------
# Lines


class RowWriter:
    """Appends rows to one file. What a crash left of a last line is cut off when the file is opened.

    Use it as a context manager; one process at a time writes to a file.

    Raises:
        KVMMError: the file cannot be written to, or the disk is full; what was written stays.
    """

    def __init__(self, path: Path):
        self.path = path
        with _writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
            self._repair()

    def _repair(self) -> None:
        data = self.path.read_bytes()
        if data and not data.endswith(b"\n"):
            # also a line that would parse: without its newline nobody knows that it is whole
            os.ftruncate(self._descriptor, data.rfind(b"\n") + 1)

    def write(self, row: Mapping[str, Any]) -> None:
        """Append a row; when this returns, it is on the disk."""
        line = json.dumps(row, ensure_ascii=False, default=str) + "\n"
        data = line.encode("utf-8", errors="backslashreplace")
        with _writing(self.path):
            while data:
                data = data[os.write(self._descriptor, data) :]
            os.fsync(self._descriptor)

    def close(self) -> None:
        os.close(self._descriptor)

    def __enter__(self) -> RowWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read_rows(path: Path) -> Iterator[Row]:
    """The complete rows of a file, without an incomplete last line that a crash left."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return
    for line in data.split(b"\n")[:-1]:  # bytes after the last newline are an incomplete line
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict) and "doc_id" in row:
            yield row


# --------------------------------------------------------------------------------------------------------------------
# A run that is being made


@dataclass
class RunFiles:
    """The files of one run: ``folder`` is ``{out}/{model}``, ``date`` names the run."""

    folder: Path
    date: str

    @classmethod
    def open(cls, out: str | Path, model_name: str, *, fresh: bool = False) -> RunFiles:
        """The newest run of a model in ``out``, or a new one if there is none or ``fresh`` asks for it."""
        folder = Path(out).expanduser() / safe_name(model_name)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise KVMMError(f"{folder} cannot be made ({error.strerror}): name another folder with --out.") from None
        dates = _dates(folder)
        if dates and not fresh:
            return cls(folder, dates[-1])
        date = datetime.now().strftime("%Y%m%d_%H%M%S")
        while date in dates:  # two runs of one second
            date += "b"
        return cls(folder, date)

    @property
    def results_path(self) -> Path:
        return self.folder / f"{self.date}{_RESULTS}"

    def samples_path(self, task: str, policy: str, rank: int | None = None) -> Path:
        """The file of a task and policy; with ``rank`` the one that this process alone appends to."""
        ending = ".jsonl" if rank is None else f".rank{rank}.jsonl"
        return self.folder / f"{self.date}_samples_{safe_name(task)}_{safe_name(policy)}{ending}"

    def rank_paths(self, task: str, policy: str) -> list[Path]:
        """The files of processes that have not been merged."""
        main = self.samples_path(task, policy)
        return sorted(main.parent.glob(f"{_escaped(main.stem)}.rank*.jsonl"))

    def rows(self, task: str, policy: str) -> dict[str, Row]:
        """All recorded rows by doc_id, of all processes: the first answer of a doc_id counts, or the last failure."""
        by_id: dict[str, Row] = {}
        for path in (self.samples_path(task, policy), *self.rank_paths(task, policy)):
            for row in read_rows(path):
                old = by_id.get(row["doc_id"])
                if old is None or old.get("error") is not None:
                    by_id[row["doc_id"]] = row
        return by_id

    def merge(self, task: str, policy: str, order: Sequence[str]) -> dict[str, Row]:
        """Bring the rows of all processes into one file, in the data's order; returns them."""
        rows = self.rows(task, policy)
        place = {doc_id: number for number, doc_id in enumerate(order)}
        rows = dict(sorted(rows.items(), key=lambda item: place.get(item[0], len(place))))
        text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows.values())
        main, parts = self.samples_path(task, policy), self.rank_paths(task, policy)
        if parts or not main.exists() or main.read_text(encoding="utf-8") != text:
            _replace(main, text)
            for path in parts:  # a crash before this leaves them, and their rows are found twice but counted once
                path.unlink()
        return rows

    def results(self) -> dict[str, Any]:
        """The results file; empty before it is written."""
        try:
            return json.loads(self.results_path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise KVMMError(f"{self.results_path} cannot be read ({error}): start a new run with --fresh.") from None

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold this run: no other process writes its files until the end.

        The lock is the kernel's, so it goes with its process. Where the file system has none, runs are not locked.

        Raises:
            KVMMError: another process, or another thread of this one, is making the run.
        """
        if fcntl is None:
            yield
            return
        path = self.folder / f".{self.date}.lock"  # never deleted: two processes could then lock two files
        with _writing(path):
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise KVMMError(
                    f"Another process is making the run {self.date} in {self.folder}: wait for it, add --fresh to "
                    "start another run, or name another --out."
                ) from None
            except OSError as error:
                if error.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS):
                    raise
            yield
        finally:
            os.close(descriptor)

    def _check_names(self, configs: Iterable[Mapping[str, Any]]) -> None:
        """Raise :class:`KVMMError` if a policy's answers would be in the file of another one, or in its parts."""
        paths = [(config["policy"], self.samples_path(config["task"], config["policy"])) for config in configs]
        for (one, path), (other, taken) in permutations(paths, 2):
            if path == taken or re.fullmatch(rf"{re.escape(taken.stem)}\.rank.*", path.stem):
                raise KVMMError(
                    f"The policies {one!r} and {other!r} would share the file {path.name}: call one of them otherwise, "
                    "in letters from a to z and digits."
                )

    def write_results(self, results: Mapping[str, Any]) -> None:
        """Replace the results file, whole or not at all."""
        _replace(self.results_path, json.dumps(results, ensure_ascii=False, indent=2, default=str) + "\n")

    def begin(self, model: Mapping[str, Any], configs: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        """Write the settings of a run that starts or goes on; returns the results so far.

        Raises:
            KVMMError: the run in the folder was made with other settings.
        """
        results = self.results() or {"results": {}, "configs": {}, "versions": {}, "n-shot": {}, "n-samples": {}}
        old = results.get("config", {})
        for name in (name for name in ("model_fingerprint", "dtype", "image_processor") if name in old):
            _check_same(self.folder, name, old[name], model.get(name))
        for name, config in configs.items():
            old = results["configs"].get(name, {})
            for key in (key for key in _FIXED if key in old):
                _check_same(self.folder, f"{name}: {key}", old[key], json.loads(json.dumps(config.get(key))))
        self._check_names({**results["configs"], **configs}.values())
        results["config"] = {**results.get("config", {}), **model}
        results["configs"] = {**results["configs"], **configs}
        results["versions"] = {**results["versions"], **package_versions(), **dict.fromkeys(configs, 1)}
        results["n-shot"] = {**results["n-shot"], **dict.fromkeys(configs, 0)}
        results.setdefault("date", self.date)
        results.setdefault("git_hash", git_hash())
        results |= {"model_source": "kvmm", "model_name": model["model"], "complete": False}
        results["model_name_sanitized"] = self.folder.name
        results["parts"] = results.get("parts", 0) + 1  # how often it was begun or gone on with
        self.write_results(results)
        return results


def _check_same(folder: Path, name: str, old: Any, new: Any) -> None:
    if old == new:
        return
    if isinstance(old, dict) and isinstance(new, dict):
        key = next(key for key in {**old, **new} if old.get(key) != new.get(key))
        return _check_same(folder, f"{name}.{key}", old.get(key, "nothing"), new.get(key))
    change = f"{old}, not {new}" if len(f"{old}{new}") < 200 else "another value"
    raise KVMMError(
        f"The run in {folder} has other settings ({name} is {change}): add --fresh to start another run, or name "
        "another --out."
    )


def _replace(path: Path, text: str) -> None:
    part = path.with_name(f".{path.name}.{os.getpid()}")
    with _writing(path):
        with part.open("w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise KVMMError(
            f"{path} cannot be written ({error.strerror or error}): make room or name another folder with --out; what "
            "is written already is kept."
        ) from None


def _escaped(name: str) -> str:
    return re.sub(r"([\[\]*?])", r"[\1]", name)


def _dates(folder: Path) -> list[str]:
    return sorted(path.name.removesuffix(_RESULTS) for path in folder.glob(f"*{_RESULTS}") if path.name[0] != ".")


def package_versions() -> dict[str, str]:
    """The versions that answers depend on."""
    versions = {}
    for name in _PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:  # kvmm in a checkout that is not installed
            continue
    return versions


def git_hash() -> str | None:
    """The commit of the checkout that runs, None outside of one."""
    try:
        done = subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=Path(__file__).parent, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


# --------------------------------------------------------------------------------------------------------------------
# A run that is read


@dataclass(frozen=True)
class Run:
    """The result of :func:`read_run`.

    Attributes:
        folder: where the files are.
        date: the run's name.
        results: the results file as it is.
        samples: ``{task: {policy: rows}}``, rows in the data's order; those of failed samples have ``error`` set.
    """

    folder: Path
    date: str
    results: dict[str, Any]
    samples: dict[str, dict[str, list[Row]]] = field(default_factory=dict)

    @property
    def model(self) -> str:
        """The model's name."""
        return self.results.get("model_name", self.folder.name)

    @property
    def tasks(self) -> list[str]:
        """The tasks, in the order in which they were run."""
        return list(self.samples)

    def policies(self, task: str) -> list[str]:
        """The policies of a task, in the order in which they were named."""
        return list(self.samples[task])

    def config(self, task: str, policy: str) -> dict[str, Any]:
        """The settings of a task and policy."""
        return self.results["configs"].get(f"{task}_{policy}", {})

    def metric(self, task: str) -> str:
        """The headline metric of a task; higher is better."""
        return next(iter(config["metric"] for config in self.results["configs"].values() if config["task"] == task))

    def scores(self, task: str, policy: str) -> dict[str, float]:
        """All metrics of a task and policy, without lmms-eval's filter names; empty before the run is complete."""
        metrics = self.results["results"].get(f"{task}_{policy}", {})
        return {name.removesuffix(",none"): value for name, value in metrics.items() if name.endswith(",none")}

    def num_scored(self, task: str, policy: str) -> int | None:
        """How many answers :meth:`scores` are of; None before the run is complete."""
        return self.results["results"].get(f"{task}_{policy}", {}).get("samples")


def read_run(path: str | Path, date: str | None = None) -> Run:
    """Read the files of a run, finished or not.

    Args:
        path: the folder of a model's runs, a folder that holds one such folder, or a results file.
        date: which run, when the folder has several; default the newest.

    Raises:
        KVMMError: there is no run, or several models have one.
    """
    path = Path(path).expanduser()
    if path.name.endswith(_RESULTS):
        path, date = path.parent, path.name.removesuffix(_RESULTS)
    if not _dates(path):
        below = sorted({file.parent for file in path.glob(f"*/*{_RESULTS}") if file.name[0] != "."})
        if len(below) > 1:
            names = ", ".join(folder.name for folder in below)
            raise KVMMError(f"{path} holds the runs of several models: name the folder of one: {names}.")
        if not below:
            raise KVMMError(f"There are no results in {path}: make some with `kvmm eval ... --out {path}`.")
        path = below[0]
    dates = _dates(path)
    if date is not None and date not in dates:
        raise KVMMError(f"There is no run {date} in {path}: there are {', '.join(dates)}.")
    files = RunFiles(path, date or dates[-1])
    results = files.results()
    samples: dict[str, dict[str, list[Row]]] = {}
    for config in results.get("configs", {}).values():
        rows = files.rows(config["task"], config["policy"])
        samples.setdefault(config["task"], {})[config["policy"]] = list(rows.values())
    return Run(path, files.date, results, samples)


def count_failed(rows: Iterable[Mapping[str, Any]]) -> int:
    """The number of rows of samples that failed."""
    return sum(row.get("error") is not None for row in rows)


__all__ = [
    "Row",
    "RowWriter",
    "Run",
    "RunFiles",
    "count_failed",
    "read_rows",
    "read_run",
    "repetition_rate",
    "safe_name",
    "sample_hash",
]
