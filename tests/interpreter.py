"""Triton's interpreter without work that changes no result: most of the time of a small kernel under it."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from types import FunctionType

import triton.language as tl
from triton.runtime import interpreter


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


def shorten() -> None:
    """Leave out repeated patches, the overflow checks (only read with ``debug``) and repeated tables of dtypes."""
    interpreter._patch_lang = _PatchOnce(interpreter._patch_lang)
    builder = interpreter.interpreter_builder
    assert not builder.options.debug
    builder.options = replace(builder.options, sanitize_overflow=False)
    of_scalar, of_pointer = cache(interpreter._get_np_dtype), interpreter._get_np_dtype(tl.pointer_type(tl.int8))
    interpreter._get_np_dtype = lambda dtype: of_pointer if dtype.scalar.is_ptr() else of_scalar(dtype.scalar)
