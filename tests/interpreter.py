"""Triton's interpreter without work that changes no result: most of the time of a small kernel under it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from types import FunctionType

import numpy as np
import triton.language as tl
from triton.runtime import interpreter

Convert = Callable[[np.ndarray, tl.dtype, tl.dtype, object], np.ndarray]


class _PatchOnce:
    """Patches the language for a kernel, and not again for every call of a device function.

    Triton's own ``_patch_lang`` looks at every name of its language at each such call, and leaves the patches there.
    """

    def __init__(self, patch: Callable) -> None:
        self._patch = patch
        self._scopes = {}

    def __call__(self, fn: FunctionType) -> interpreter._LangPatchScope:
        languages = _languages(fn)
        if languages in self._scopes:
            return interpreter._LangPatchScope()
        scope = self._patch(fn)
        if not self._scopes:  # that of the kernel, which is restored when its grid ends
            restore = scope.restore
            scope.restore = lambda: self._restore(restore)
        self._scopes[languages] = scope
        return scope

    def _restore(self, restore: Callable[[], None]) -> None:
        _, *inner = self._scopes.values()
        for scope in reversed(inner):
            scope.restore()
        restore()
        self._scopes.clear()


@cache
def _languages(fn: FunctionType) -> frozenset[str]:
    """Which modules of the language a function sees, which is what ``_patch_lang`` patches for it."""
    return frozenset(module.__name__ for module in (tl, tl.core) if any(x is module for x in fn.__globals__.values()))


def _shapes_once() -> None:
    """Check, name and wrap every shape once, and not for every tensor that has it."""
    check, constexpr = tl.block_type.__init__, tl.constexpr

    @cache
    def of(shape: tuple[int, ...]) -> tuple[tl.block_type, tl.constexpr, tl.core.tuple]:
        block = object.__new__(tl.block_type)
        check(block, tl.int8, list(shape))
        return block, constexpr(block.numel), tl.core.tuple([constexpr(n) for n in shape])

    def block_type(self: tl.block_type, element_ty: tl.dtype, shape: list | tuple | tl.core.tuple) -> None:
        sizes = shape.value if isinstance(shape, constexpr) else shape
        block, *_ = of(tuple(n.value if isinstance(n, constexpr) else n for n in sizes))
        self.element_ty, self.shape, self.numel = element_ty, block.shape, block.numel
        self.name = f"<{block.name}, {element_ty}>"

    def tensor(self: tl.tensor, handle: object, type: tl.dtype) -> None:
        self.handle, self.type, self.dtype = handle, type, type.scalar
        if type.is_block():
            _, self.numel, self.shape = of(tuple(type.shape.values))
        else:
            self.numel, self.shape = scalar

    scalar = constexpr(1), tl.core.tuple([])
    tl.block_type.__init__, tl.tensor.__init__ = block_type, tensor


def _convert_bfloat16(convert: Convert) -> Convert:
    """To float32, and back without rounding, are shifts of the bits."""

    def shifted(x: np.ndarray, source: tl.dtype, target: tl.dtype, rounding: object) -> np.ndarray:
        if source == tl.bfloat16 and target == tl.float32:
            return x.astype(np.uint32) << 16
        if source == tl.float32 and target == tl.bfloat16 and rounding is None:
            return (np.ascontiguousarray(x).view(np.uint32) >> 16).astype(np.uint16)
        return convert(x, source, target, rounding)

    return shifted


def shorten() -> None:
    """Leave out what is done again and again, and the overflow checks, which nothing reads without ``debug``."""
    interpreter._patch_lang = _PatchOnce(interpreter._patch_lang)
    builder = interpreter.interpreter_builder
    assert not builder.options.debug
    builder.options = replace(builder.options, sanitize_overflow=False)
    of_scalar, of_pointer = cache(interpreter._get_np_dtype), interpreter._get_np_dtype(tl.pointer_type(tl.int8))
    interpreter._get_np_dtype = lambda dtype: of_pointer if dtype.scalar.is_ptr() else of_scalar(dtype.scalar)
    interpreter._convert_float = _convert_bfloat16(interpreter._convert_float)
    _shapes_once()
