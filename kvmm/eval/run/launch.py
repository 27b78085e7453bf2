"""``kvmm eval`` without its terminal: options, processes, and the progress as events."""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch

from kvmm.errors import KVMMError
from kvmm.eval.run import ray_engine
from kvmm.eval.run.evaluate import run
from kvmm.eval.run.records import Row, Run, RunFiles, read_run
from kvmm.eval.tasks import SampleSet, Task, get_task
from kvmm.models import load_model
from kvmm.models.caches import resolve_policies
from kvmm.models.loading import default_model
from kvmm.models.peers import check_peer


@dataclass(frozen=True)
class EvalOptions:
    """The arguments of ``kvmm eval``."""

    tasks: tuple[str, ...]
    data: tuple[str, ...]
    policies: tuple[str, ...]
    peers: tuple[str, ...]
    out: Path
    split: str | None
    limit: int | None
    batch_size: int | None
    max_new_tokens: int | None
    pack_before_question: bool
    fresh: bool
    retry_failed: bool
    model: str | None
    device: str | None
    dtype: str | None
    engine: str = "local"
    address: str | None = None
    workers: int | None = None
    fuse_values: bool = False

    @property
    def model_name(self) -> str:
        """The name of the model in the results."""
        if self.model is None:
            return default_model().name
        return Path(self.model).resolve().name if Path(self.model).is_dir() else self.model


@dataclass(frozen=True)
class Loaded:
    """The samples of a task are loaded; ``line`` says how many, and how many were left out."""

    task: str
    line: str


@dataclass(frozen=True)
class RowWritten:
    """One more row; ``rate`` is the speed so far as text, ``seconds_left`` the time of the rest at that speed."""

    done: int
    total: int
    rate: str
    seconds_left: float
    row: Row


@dataclass(frozen=True)
class Done:
    """A task is complete; ``run`` holds its results and those of earlier tasks."""

    task: str
    run: Run


class Processes:
    """The processes of ``accelerate launch`` or ``torchrun``; one alone without them.

    They only wait for each other, so gloo on the host does for GPUs too, and nobody is hurried by a time-out.
    """

    def __init__(self) -> None:
        self.world = int(os.environ.get("WORLD_SIZE", "1"))
        self.rank = int(os.environ.get("RANK", "0"))
        self.local_rank = int(os.environ.get("LOCAL_RANK", "0"))

    @property
    def is_main(self) -> bool:
        """Whether this is the process that writes results and talks to the terminal."""
        return self.rank == 0

    def __enter__(self) -> Processes:
        if self.world > 1:
            torch.distributed.init_process_group("gloo", timeout=timedelta(days=30))
        return self

    def __exit__(self, kind: type | None, *_: object) -> None:
        if self.world > 1 and kind is None:
            torch.distributed.destroy_process_group()

    def wait(self) -> None:
        """Return when all processes are here."""
        if self.world > 1:
            torch.distributed.barrier()

    def agree(self, value: Any) -> Any:
        """The main process's value."""
        if self.world == 1:
            return value
        box = [value]
        torch.distributed.broadcast_object_list(box, src=0)
        return box[0]

    def device(self, device: str | None) -> str | None:
        """The device of this process; every process gets its own GPU."""
        if self.world > 1 and device in (None, "cuda") and torch.cuda.is_available():
            return f"cuda:{self.local_rank % torch.cuda.device_count()}"
        return device


def execute(options: EvalOptions, processes: Processes) -> Iterator[Loaded | RowWritten | Done]:
    """Evaluate: for each task a :class:`Loaded`, a :class:`RowWritten` a row, and a :class:`Done`.

    Raises:
        KVMMError: whatever the user can put right, before the model is loaded if possible.
    """
    tasks = [get_task(name) for name in options.tasks]
    if len({task.name for task in tasks}) < len(tasks):
        raise KVMMError("A task is named twice: name every task once.")
    for name in options.peers:
        check_peer(name)
    policies = resolve_policies(options.policies)
    sets = [(task, *_load(task, source, options)) for task, source in zip(tasks, _sources(options, tasks), strict=True)]
    if options.engine == "ray" and processes.world > 1:
        raise KVMMError("Ray starts the processes itself: call `kvmm eval --engine ray` without a launcher.")
    cluster = ray_engine.Cluster.join(options.address, options.workers) if options.engine == "ray" else None
    run_lock = contextlib.ExitStack()  # the run, by its main process, from here to the end of the last task
    try:
        device, dtype, batch_size = processes.device(options.device), options.dtype, options.batch_size
        arguments: dict[str, Any] = {}
        if cluster is not None:
            # this process only describes the model; every actor loads its own
            device, dtype = "cpu", dtype or ("bfloat16" if cluster.gpus else None)
            batch_size = batch_size or cluster.batch_size
            arguments = {
                "answer": cluster.runner(options.model, options.device, dtype, options.fuse_values),
                "machine": cluster.describe(),
            }
        model, processor = load_model(options.model, device=device, dtype=dtype, fuse_values=options.fuse_values)
        files = RunFiles.open(options.out, options.model_name, fresh=options.fresh) if processes.is_main else None
        if files is not None:
            run_lock.enter_context(files.locked())
            arguments["locked"] = True
        files = processes.agree(files)
        arguments |= {
            "batch_size": batch_size,
            "max_new_tokens": options.max_new_tokens,
            "retry_failed": options.retry_failed,
            "pack_before_question": options.pack_before_question,
            "model_name": options.model_name,
            "share": (processes.rank, processes.world),
            "wait": processes.wait,
        }
        for task, source, samples in sets:
            yield Loaded(task.name, samples.summary())
            settings = {"dataset_path": source, "split": options.split, "limit": options.limit}
            work = partial(run, model, processor, task, samples, policies, files, settings=settings, **arguments)
            yield from _rows_written(work)
            yield Done(task.name, read_run(files.results_path))
    finally:
        run_lock.close()
        if cluster is not None:
            cluster.close()


def _sources(options: EvalOptions, tasks: Sequence[Task]) -> list[str]:
    """The source of each task."""
    if options.data:
        if len(options.data) not in (1, len(tasks)):
            raise KVMMError(
                f"There are {len(tasks)} tasks and {len(options.data)} sources: name one, or one for each task."
            )
        return list(options.data) * (1 if len(options.data) == len(tasks) else len(tasks))
    for task in tasks:
        if task.default_source is None and task.mini is None:
            raise KVMMError(f"{task.name} needs its data: name a file, a folder or a data set's id with --data.")
    return [task.default_source or "mini" for task in tasks]


def _load(task: Task, source: str, options: EvalOptions) -> tuple[str, SampleSet]:
    path = Path(source).expanduser()
    samples = task.load(source, split=options.split, limit=options.limit)
    return str(path.resolve()) if path.exists() else source, samples


def _rows_written(work: Any) -> Iterator[RowWritten]:
    """Run in a thread and yield an event for every row; closing the generator stops the run."""
    events: queue.Queue[RowWritten | None] = queue.Queue()
    stop = threading.Event()
    problem: list[BaseException] = []
    begin = time.perf_counter()
    counts = {"rows": 0, "tokens": 0}

    def progress(done: int, total: int, row: Row) -> None:
        counts["rows"] += 1
        counts["tokens"] += row["output_tokens"]
        seconds = max(time.perf_counter() - begin, 1e-9)
        rate = f"{counts['rows'] / seconds:.2f} answers/s  {counts['tokens'] / seconds:.1f} tokens/s"
        events.put(RowWritten(done, total, rate, (total - done) * seconds / counts["rows"], row))

    def body() -> None:
        try:
            work(progress=progress, stop=stop)
        except BaseException as error:  # raised where the events are read
            problem.append(error)
        finally:
            events.put(None)

    thread = threading.Thread(target=body, name="kvmm-eval", daemon=True)
    thread.start()
    try:
        while (event := events.get()) is not None:
            yield event
    finally:
        stop.set()
        thread.join()
    if problem:
        raise problem[0]


__all__ = ["Done", "EvalOptions", "Loaded", "Processes", "RowWritten", "execute"]
