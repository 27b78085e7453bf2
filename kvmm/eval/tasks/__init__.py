"""Benchmarks: where their questions come from and how answers are scored."""

from collections.abc import Callable
from typing import Any

from kvmm.errors import KVMMError
from kvmm.eval.tasks.base import Sample, SampleSet, Scored, Task
from kvmm.eval.tasks.docvqa import DocVQA, MultiPageDocVQA

_TASKS: dict[str, Callable[..., Task]] = {task.name: task for task in (DocVQA, MultiPageDocVQA)}


def task_names() -> list[str]:
    """The known tasks, in alphabetical order."""
    return sorted(_TASKS)


def get_task(name: str, **options: Any) -> Task:
    """A task by name; "_" and "-" are the same. ``options`` are the task's own (see its class).

    Raises:
        KVMMError: there is no such task.
    """
    key = name.lower().replace("_", "-")
    if key not in _TASKS:
        raise KVMMError(f"There is no task {name}: choose one of {', '.join(task_names())}.")
    return _TASKS[key](**options)


__all__ = ["Sample", "SampleSet", "Scored", "Task", "get_task", "task_names"]
