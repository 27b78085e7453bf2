"""Compiled CUDA programs in a folder, so that benchmarks in several processes compile each of them once."""

from __future__ import annotations

import hashlib
import os
import pickle
from collections.abc import Mapping
from pathlib import Path

from kvmm.kernels.attention.backends.cuda import nvrtc


def keep_programs(folder: Path) -> None:
    """Have this process keep what NVRTC makes in ``folder`` and take from it what is there already.

    A program is known by its source, what it includes, and the GPU that it is for; processes may share the folder while
    they run. It holds pickles, so it must be one that nobody else writes to.
    """
    compile_source = nvrtc.compile_source
    folder.mkdir(parents=True, exist_ok=True)

    def kept(source: bytes, name: str, headers: Mapping[str, bytes], capability: tuple[int, int]) -> tuple[bytes, str]:
        asked = repr((source, name, sorted(headers.items()), capability)).encode()
        path = folder / hashlib.sha256(asked).hexdigest()
        if path.is_file():
            return pickle.loads(path.read_bytes())
        made = compile_source(source, name, headers, capability)
        partial = path.with_suffix(f".{os.getpid()}")
        partial.write_bytes(pickle.dumps(made))
        partial.replace(path)
        return made

    nvrtc.compile_source = kept


__all__ = ["keep_programs"]
