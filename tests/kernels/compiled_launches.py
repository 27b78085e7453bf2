"""Triton kernels compiled for a GPU that is not there: launches are recorded and not run.

Only in a process whose Triton was imported without its interpreter.
"""

from __future__ import annotations

import contextlib
import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia import __file__ as nvidia
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

_TYPES = {torch.uint8: "u8", torch.int16: "i16", torch.int32: "i32", torch.int64: "i64"}
_TYPES |= {torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32"}
_OPTIONS = ("num_warps", "num_stages", "maxnreg")


def _compiled(function: JITFunction, args: tuple[Any, ...], kwargs: dict[str, Any], capability: int) -> Any:
    """A launch as Triton would specialise it."""
    options = {name: kwargs.pop(name) for name in _OPTIONS if name in kwargs}
    for name in ("grid", "warmup"):
        kwargs.pop(name, None)
    names = [parameter.name for parameter in function.params]
    given = dict(zip(names, args, strict=False)) | kwargs
    signature, constants, attributes = {}, {}, {}

    def described(value: Any, path: tuple[int, ...], parameter: Any) -> Any:
        """The type of an argument, or of every entry of a named tuple, whose constants and attributes are noted."""
        fixed = parameter.do_not_specialize
        if isinstance(value, tuple):
            return type(value)(*(described(entry, (*path, i), parameter) for i, entry in enumerate(value)))
        if parameter.is_constexpr or value is None or (isinstance(value, int) and value == 1 and not fixed):
            constants[path] = value
            return "constexpr"
        if isinstance(value, torch.Tensor):
            kind = f"*{_TYPES[value.dtype]}"
        else:
            kind = "fp32" if isinstance(value, float) else "i32" if abs(value) < 2**31 else "i64"
        address = value.data_ptr() if isinstance(value, torch.Tensor) else value
        if kind != "fp32" and not fixed and not parameter.do_not_specialize_on_alignment and address % 16 == 0:
            attributes[path] = [["tt.divisibility", 16]]
        return kind

    for number, parameter in enumerate(function.params):
        signature[parameter.name] = described(given[parameter.name], (number,), parameter)
    source = ASTSource(function, signature, constexprs=constants, attrs=attributes)
    return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)


@contextlib.contextmanager
def recorded(capability: int = 90) -> Iterator[list[tuple[str, Any]]]:
    """Names and compiled kernels of all launches inside."""
    found: list[tuple[str, Any]] = []

    def run(self: JITFunction, *args: Any, **kwargs: Any) -> None:
        found.append((self.__name__, _compiled(self, args, kwargs, capability)))

    before = JITFunction.run
    JITFunction.run = run
    try:
        yield found
    finally:
        JITFunction.run = before


def _read(path: Path, program: str, *options: str) -> str:
    command = [str(Path(nvidia).parent / "bin" / program), *options, str(path)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def resources(kernel: Any) -> dict[str, int]:
    """Registers and bytes of stack and shared memory of a compiled kernel, and how many instructions of each kind."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "kernel.cubin")
        path.write_bytes(kernel.asm["cubin"])
        usage, text = (_read(path, *command) for command in (("cuobjdump", "-res-usage"), ("nvdisasm",)))
    found = {name.lower(): int(number) for name, number in re.findall(r"(REG|STACK|SHARED):(\d+)", usage)}
    for name in re.findall(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+ )?([A-Z][A-Z0-9]*)", text, re.MULTILINE):
        found[name] = found.get(name, 0) + 1
    return found
