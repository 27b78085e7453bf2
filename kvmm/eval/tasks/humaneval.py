"""HumanEval: functions to complete, scored by their tests (Chen et al. 2021, arXiv 2107.03374).

Scoring runs what the model wrote, in a process that may only compute (:mod:`kvmm.eval.execution`), and only if the
option ``execute=yes`` asks for it. The tests run in another one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Any, ClassVar

from kvmm.errors import KVMMError
from kvmm.eval import execution
from kvmm.eval.tasks.base import Sample, SampleSet, Scored, Task, mean
from kvmm.eval.tasks.collect import collect
from kvmm.eval.tasks.docvqa import row_id
from kvmm.eval.tasks.options import switch
from kvmm.eval.tasks.rows import BadItem, Row
from kvmm.eval.tasks.sources import open_rows

ASK = "Complete this Python function. Reply with the whole function in one code block.\n\n```python\n{prompt}\n```"
ENDS = ("\nclass ", "\ndef ", "\n#", "\nif ", "\nprint(")  # of a bare completion, those of the paper, section 3.1
_BLOCK = re.compile(r"```(?:[Pp]ython[0-9]*|py)?[ \t]*\n(.*?)(?:```|\Z)", re.DOTALL)
_NAME = re.compile(r"[A-Za-z_]\w*")


class HumanEval(Task):
    """The official ``HumanEval.jsonl``, or ``openai/openai_humaneval``.

    Args:
        execute: run the answers to score them, on Linux. Without it they are answered but not scored.
    """

    name = "humaneval"
    metric: ClassVar[str] = "pass@1"
    max_new_tokens: ClassVar[int] = 768
    options: ClassVar[Any] = {"execute": switch}
    recorded: ClassVar[tuple[str, ...]] = ("pass@1",)

    def __init__(self, execute: bool = False):
        if execute and not execution.available():
            raise KVMMError("Programs cannot be confined on this machine: leave execute=yes out, or use Linux.")
        self.execute = execute

    def load(self, source: str | os.PathLike[str], *, split: str | None = None, limit: int | None = None) -> SampleSet:
        """See :meth:`Task.load`."""
        required = (("prompt",), ("test",), ("entry_point",))
        name, rows = open_rows(source, mini=self.mini, split=split, required=required)
        return collect(self.name, name, rows, lambda row: row_id(row, "task_id"), self._sample, limit)

    def _sample(self, row: Row, doc_id: str) -> Sample:
        prompt, test, entry = row.text("prompt"), row.text("test"), row.text("entry_point")
        if not _NAME.fullmatch(entry):
            raise BadItem(f"wrong entry_point: {entry[:40]}")
        answer = str(row.get("canonical_solution", default=entry))
        metadata = {"question": prompt, "test": test, "entry_point": entry}
        return Sample(doc_id, ASK.format(prompt=prompt.rstrip()), (answer,), metadata=metadata)

    def score(self, sample: Sample, prediction: str) -> dict[str, float]:
        """``pass@1``: 1 when the tests pass; nothing unless answers are executed."""
        if not self.execute:
            return {}
        outcome = execution.run_program(program(sample, prediction), check(sample), sample.metadata["entry_point"])
        return {"pass@1": float(outcome.passed)}

    def aggregate(self, scored: Sequence[Scored]) -> dict[str, float]:
        """The share of one answer each that passes, which for greedy answers is pass@1; and how many were not run.

        Where none was run there is no ``pass@1``: an answer that nobody tried is not wrong.
        """
        ran = [scores["pass@1"] for _, scores, _ in scored if "pass@1" in scores]
        share = {"pass@1": mean(ran)} if ran or not scored else {}
        return {**share, "not_scored": float(len(scored) - len(ran))}


def program(sample: Sample, prediction: str) -> str:
    """The function, as the benchmark's ``check_correctness`` puts it together with its test (:func:`check`).

    An answer that defines the function stands for it, after the lines that come before it in the prompt; any other one
    completes the prompt, up to the first line that ends a function.
    """
    prompt, entry = sample.metadata["question"], sample.metadata["entry_point"]
    blocks = _BLOCK.findall(prediction)
    defines = _definition(entry)
    whole = [code for code in (*blocks, prediction) if defines.search(code)]
    if whole:
        before = defines.split(prompt, maxsplit=1)[0]
        return f"{before}\n{whole[0]}\n"
    rest = blocks[0] if blocks else prediction
    for end in ENDS:
        rest = rest.split(end, 1)[0]
    return prompt + _indented(rest) + "\n"


def check(sample: Sample) -> str:
    """The test and its call, after what the prompt has before the function: some tests use the functions there."""
    prompt, entry = sample.metadata["question"], sample.metadata["entry_point"]
    before, *function = _definition(entry).split(prompt, maxsplit=1)
    return f"{before if function else ''}\n{sample.metadata['test']}\ncheck({entry})\n"


def _definition(entry: str) -> re.Pattern[str]:
    return re.compile(rf"^def {entry}\b", re.MULTILINE)


def _indented(code: str) -> str:
    """A function's body; answers are stripped at both ends, which takes the first line's indentation away."""
    first, _, rest = code.lstrip("\n").partition("\n")
    return code if not first or first[0].isspace() else f"    {first}\n{rest}"


__all__ = ["HumanEval", "check", "program"]
