"""The worked sample that the analysis tabs show before a visitor has asked something: reports that were measured once.

``python -m benchmarks.worked_sample`` measures them on the bundled invoice with tiny-omni and writes
``worked_sample.safetensors``: arrays as tensors, everything else as JSON in the file's metadata.
"""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file

from kvmm.analysis.errors import ErrorReport
from kvmm.analysis.methods.measure import MethodsReport
from kvmm.analysis.norms.measure import NormReport
from kvmm.analysis.scores.measure import ScoreReport
from kvmm.media import load_media
from kvmm.samples import SAMPLES

PATH = Path(__file__).with_name("worked_sample.safetensors")
FORMAT_VERSION = 1
_TENSOR = "tensor"


@dataclasses.dataclass(frozen=True)
class WorkedSample:
    """Measurements of one question about one bundled page.

    Attributes:
        command, model: how it was made, and with which model.
        file, question, answer: of ``assets/samples``, and what full precision answers.
        norms, errors, scores, methods: the reports; errors and scores of the default policy.
        grids: height and width of the page in patches of the processor, ``[[1, H, W]]``; ``merge``: patches a token.
    """

    command: str
    model: str
    file: str
    question: str
    answer: str
    norms: NormReport
    errors: ErrorReport
    scores: ScoreReport
    methods: MethodsReport
    grids: tuple[tuple[int, ...], ...]
    merge: int

    @property
    def reports(self) -> tuple[ErrorReport, ScoreReport]:
        """The two reports of tab Errors."""
        return self.errors, self.scores

    @property
    def session(self) -> Any:
        """A stand-in for the session that :func:`kvmm.ui.parts.token_view.token_html` reads locations from."""
        path = SAMPLES / self.file
        reports = {"grids": ([list(grid) for grid in self.grids], self.merge)}
        media = load_media(path) if path.is_file() else []
        return SimpleNamespace(talk=SimpleNamespace(media=media), report=lambda name, make: reports.get(name))


@cache
def worked_sample() -> WorkedSample:
    """The committed sample."""
    return read(PATH)


def write(sample: WorkedSample, path: Path) -> None:
    """Write a sample to a file; arrays of float64 and int64 take half of their bytes."""
    tensors: dict[str, np.ndarray] = {}
    tree = _take_apart(sample, tensors, "sample")
    metadata = {"format_version": str(FORMAT_VERSION), "sample": json.dumps(tree, ensure_ascii=False)}
    save_file(tensors, path, metadata=metadata)


def read(path: Path) -> WorkedSample:
    """The sample that :func:`write` wrote."""
    with safe_open(path, framework="numpy") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        tree = json.loads(file.metadata()["sample"])
    return _put_together(WorkedSample, tree, tensors)


def _take_apart(value: Any, tensors: dict[str, np.ndarray], name: str) -> Any:
    """Plain values for JSON; arrays go to ``tensors`` under the name of their place."""
    if isinstance(value, np.ndarray):
        small = {"float64": np.float32, "int64": np.int32}.get(value.dtype.name)
        tensors[name] = np.ascontiguousarray(value if small is None else value.astype(small))
        return {_TENSOR: name}
    if dataclasses.is_dataclass(value):
        fields = dataclasses.fields(value)
        return {f.name: _take_apart(getattr(value, f.name), tensors, f"{name}.{f.name}") for f in fields}
    if isinstance(value, dict):
        return {key: _take_apart(one, tensors, f"{name}.{key}") for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_take_apart(one, tensors, f"{name}.{i}") for i, one in enumerate(value)]
    return value


def _put_together(hint: Any, tree: Any, tensors: dict[str, np.ndarray]) -> Any:
    """A value of type ``hint`` from what :func:`_take_apart` made of it."""
    if tree is None:
        return None
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return _put_together(next(arg for arg in args if arg is not type(None)), tree, tensors)
    if hint is np.ndarray:
        return tensors[tree[_TENSOR]]
    if dataclasses.is_dataclass(hint):
        hints = typing.get_type_hints(hint)
        return hint(**{f.name: _put_together(hints[f.name], tree[f.name], tensors) for f in dataclasses.fields(hint)})
    if origin is dict:
        return {key: _put_together(args[1], one, tensors) for key, one in tree.items()}
    if origin is tuple:
        return tuple(_put_together(args[0], one, tensors) for one in tree)
    return tree


__all__ = ["PATH", "WorkedSample", "read", "worked_sample", "write"]
