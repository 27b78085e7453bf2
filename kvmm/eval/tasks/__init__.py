"""Benchmarks: where their questions come from and how answers are scored."""

from collections.abc import Callable
from typing import Any

from kvmm.errors import KVMMError
from kvmm.eval.tasks.audio_qa import AudioQA
from kvmm.eval.tasks.base import Sample, SampleSet, Scored, Task
from kvmm.eval.tasks.coco_caption import COCOCaption
from kvmm.eval.tasks.docvqa import DocVQA, MultiPageDocVQA
from kvmm.eval.tasks.longbench_e import LongBenchE
from kvmm.eval.tasks.mmau_pro import MMAU, MMAUPro
from kvmm.eval.tasks.niah import NeedleInPages, NeedleInText
from kvmm.eval.tasks.ocrbench import OCRBench

_TASKS: dict[str, Callable[..., Task]] = {
    task.name: task
    for task in (
        DocVQA,
        MultiPageDocVQA,
        AudioQA,
        OCRBench,
        COCOCaption,
        MMAUPro,
        MMAU,
        NeedleInText,
        NeedleInPages,
        LongBenchE,
    )
}


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
