"""Benchmarks: where their questions come from and how answers are scored."""

from collections.abc import Mapping
from typing import Any

from kvmm.errors import KVMMError
from kvmm.eval.tasks.audio_qa import AudioQA
from kvmm.eval.tasks.base import Sample, SampleSet, Scored, Task
from kvmm.eval.tasks.blind import Blind
from kvmm.eval.tasks.coco_caption import COCOCaption
from kvmm.eval.tasks.docvqa import DocVQA, MultiPageDocVQA
from kvmm.eval.tasks.gsm8k import GSM8K
from kvmm.eval.tasks.hotpotqa import HotpotQA, TwoWikiMultihopQA
from kvmm.eval.tasks.humaneval import HumanEval
from kvmm.eval.tasks.longbench_e import LongBenchE
from kvmm.eval.tasks.math_problems import AIME, MATH
from kvmm.eval.tasks.mmau_pro import MMAU, MMAUPro
from kvmm.eval.tasks.mmbench_video import MMBenchVideo
from kvmm.eval.tasks.niah import NeedleInPages, NeedleInText
from kvmm.eval.tasks.ocrbench import OCRBench
from kvmm.eval.tasks.options import parse_options
from kvmm.eval.tasks.pg19 import PG19
from kvmm.eval.tasks.worldsense import WorldSense

_TASKS: dict[str, type[Task]] = {
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
        Blind,
        PG19,
        HotpotQA,
        TwoWikiMultihopQA,
        GSM8K,
        MATH,
        AIME,
        HumanEval,
        WorldSense,
        MMBenchVideo,
    )
}


def task_names() -> list[str]:
    """The known tasks, in alphabetical order."""
    return sorted(_TASKS)


def get_task(name: str, **options: Any) -> Task:
    """A task by name; "_" and "-" are the same.

    Options of a task can stand in the name, as on the command line: ``niah@lengths=500+1000,depths=0+0.5`` or
    ``mmau-pro@judge=package.module.function``. Such a name is then the task's ``name``, and means the same task again.

    Args:
        options: the task's own options as Python values (see its class).

    Raises:
        KVMMError: there is no such task, or it has no such option.
    """
    base, _, text = name.partition("@")
    key = base.lower().replace("_", "-")
    if key not in _TASKS:
        raise KVMMError(f"There is no task {base}: choose one of {', '.join(task_names())}.")
    kind = _TASKS[key]
    if not text:
        return kind(**options)
    task = kind(**parse_options(kind, text), **options)
    task.name = f"{key}@{text}"
    return task


def recorded_task(name: str, options: Mapping[str, Any] | None) -> Task:
    """The task that a results file names, with what :meth:`Task.option_values` returned; None of an older file.

    Options that are functions have their defaults: a file says nothing that is imported.

    Raises:
        KVMMError: there is no such task, or its options are wrong.
        TypeError: the options are not those of the task.
    """
    if options is None:
        return get_task(name)
    values = {key: value for key, value in options.items() if not isinstance(value, str)}
    return get_task(name.partition("@")[0], **values)


__all__ = ["Sample", "SampleSet", "Scored", "Task", "get_task", "recorded_task", "task_names"]
