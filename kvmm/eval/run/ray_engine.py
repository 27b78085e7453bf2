"""Evaluation on a Ray cluster: Ray Data hands documents to actors, each with a model of its own.

Ray starts actors that die anew and gives their documents to others; rows come back to this process, which writes them.
Files that samples name must be readable from every machine, under the same paths.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import pickle
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from kvmm.errors import KVMMError
from kvmm.eval.run.records import Row
from kvmm.eval.run.runner import GPU_BATCH, SampleRunner, make_settings, units
from kvmm.eval.tasks.base import Sample, Task
from kvmm.models import load_model

_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # workers without a GPU keep the user's CUDA_VISIBLE_DEVICES
    "RAY_BACKEND_LOG_LEVEL": "fatal",  # hides Ray Data's warnings on the arguments of its actors
}
_OBJECT_STORE = 200 * 2**20  # of a cluster on this machine: samples go through it, and they hold paths


def check() -> None:
    """Raise :class:`KVMMError` if Ray Data is not installed."""
    if importlib.util.find_spec("ray") is None:
        raise KVMMError('--engine ray needs Ray, which is not installed: pip install "kvmm[ray]".')


@dataclass
class Cluster:
    """A Ray cluster that was joined, or started on this machine; leave it with :meth:`close`.

    Attributes:
        workers: actors, each with a model.
        gpus: GPUs of the cluster.
    """

    workers: int
    gpus: int

    @classmethod
    def join(cls, address: str | None = None, workers: int | None = None) -> Cluster:
        """Join the cluster at an address ("auto" finds one), or start one of this machine's cores and GPUs.

        Args:
            workers: actors; default one per GPU, or one.

        Raises:
            KVMMError: Ray is missing, there is no such cluster, or it has fewer GPUs than ``workers``.
        """
        check()
        if address is not None:
            _check_listening(address)
        for name, value in _ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        import ray

        options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR, "ignore_reinit_error": True}
        if address is None:
            cores = max(workers or 1, os.cpu_count() or 1)
            options |= {"num_cpus": cores, "include_dashboard": False, "object_store_memory": _OBJECT_STORE}
        try:
            ray.init(address=address, **options)
        except (ConnectionError, ValueError, RuntimeError, OSError) as error:
            if address is None:
                raise KVMMError(f"Ray does not start here: {' '.join(str(error).split())[:200]}") from None
            raise KVMMError(f"There is no Ray cluster at {address}: start one with `ray start --head`.") from None
        gpus = int(ray.cluster_resources().get("GPU", 0))
        if gpus and workers is not None and workers > gpus:
            raise KVMMError(f"The cluster has {gpus} GPUs and {workers} workers need one each: give --workers {gpus}.")
        return cls(workers or gpus or 1, gpus)

    def close(self) -> None:
        """Leave the cluster; one that :meth:`join` started ends."""
        import ray

        ray.shutdown()

    @property
    def batch_size(self) -> int:
        """The default number of samples per batch."""
        return GPU_BATCH if self.gpus else 1

    def describe(self) -> dict[str, Any]:
        """The description of the machines for the results file."""
        return {"device": "cuda" if self.gpus else "cpu", "engine": "ray", "processes": self.workers}

    def runner(
        self, model: str | None, device: str | None, dtype: str | None, fuse_values: bool = False
    ) -> Callable[..., Iterator[Row]]:
        """A function with the arguments of :func:`kvmm.eval.run.runner.answer_samples` that answers on the cluster.

        ``model``, ``device``, ``dtype`` and ``fuse_values`` are what each actor loads.
        """

        def answer(
            network: Any,
            processor: Any,
            task: Task,
            samples: Sequence[Sample],
            policies: Mapping[str, Any],
            *,
            batch_size: int | None = None,
            max_new_tokens: int | None = None,
            pack_before_question: bool = True,
            done: Mapping[str, Any] | None = None,
            stop: threading.Event | None = None,
        ) -> Iterator[Row]:
            settings = make_settings(network, task, batch_size, max_new_tokens, pack_before_question)
            SampleRunner(network, processor, task, policies, settings)  # a policy that does not fit is an error now
            done = {name: frozenset(doc_ids) for name, doc_ids in (done or {}).items()}
            work = [
                unit
                for unit in units(samples, settings.batch_size)
                if any(s.doc_id not in done.get(name, ()) for name in policies for document in unit for s in document)
            ]
            arguments = {"model": model, "device": device, "dtype": dtype, "fuse_values": fuse_values}
            arguments |= {"task": task, "policies": dict(policies), "settings": settings, "done": done}
            yield from self._rows(work, arguments, stop or threading.Event())

        return answer

    def _rows(self, work: Sequence[Any], arguments: dict[str, Any], stop: threading.Event) -> Iterator[Row]:
        import ray

        if not work:
            return
        context = ray.data.DataContext.get_current()
        context.enable_progress_bars = False
        context.print_on_execution_start = False
        logging.getLogger("ray.data").setLevel(logging.ERROR)
        # one block per unit: Ray repeats a block when its actor dies, and returns it as soon as it is done
        data = ray.data.from_items(
            [{"unit": ray.cloudpickle.dumps(unit)} for unit in work], override_num_blocks=len(work)
        )
        data = data.map_batches(
            Worker,
            fn_constructor_args=(ray.cloudpickle.dumps(arguments),),
            batch_size=1,
            compute=ray.data.ActorPoolStrategy(size=min(self.workers, len(work)), max_tasks_in_flight_per_actor=1),
            num_cpus=1,
            num_gpus=1 if self.gpus else None,
        )
        for batch in data.iter_batches(batch_size=None, prefetch_batches=0):
            for text in batch["row"]:
                yield json.loads(text)
            if stop.is_set():
                return


def _check_listening(address: str) -> None:
    """Raise :class:`KVMMError` if nobody answers at ``host:port``: Ray itself would try for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not port.isdigit():
        return  # "auto" and the like
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except (OSError, OverflowError):
        raise KVMMError(f"There is no Ray cluster at {address}: start one with `ray start --head`.") from None


class Worker:
    """An actor with a model, which answers one unit a call."""

    def __init__(self, arguments: bytes):
        given = pickle.loads(arguments)  # from the process that started this one
        if not torch.cuda.is_available():
            torch.set_num_threads(1)  # an actor has one core
        model, processor = load_model(
            given["model"], device=given["device"], dtype=given["dtype"], fuse_values=given["fuse_values"]
        )
        self.done = given["done"]
        self.runner = SampleRunner(model, processor, given["task"], given["policies"], given["settings"])

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, list[str]]:
        rows = [row for unit in batch["unit"] for row in self.runner.unit(pickle.loads(unit), self.done)]
        return {"row": [json.dumps(row, default=str) for row in rows]}


__all__ = ["Cluster", "Worker", "check"]
