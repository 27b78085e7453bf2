"""Compiled CUDA programs in a folder, so that benchmarks in several processes compile each of them once."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path

from kvmm.kernels.attention.backends.cuda import nvrtc


def keep_programs(folder: Path) -> None:
    """Have this process keep what NVRTC makes in ``folder`` and take from it what is there already.

    A program is known by its source, what it includes, and the GPU that it is for; processes may share the folder while
    they run. A file has the compiler's log as JSON in its first line, and the program behind that.

    Raises:
        PermissionError: somebody else may write to the folder, or replace it.
    """
    compile_source = nvrtc.compile_source
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    _check_owner(folder.resolve())

    def kept(source: bytes, name: str, headers: Mapping[str, bytes], capability: tuple[int, int]) -> tuple[bytes, str]:
        asked = repr((source, name, sorted(headers.items()), capability)).encode()
        path = folder / f"{hashlib.sha256(asked).hexdigest()}.program"
        if path.is_file():
            log, program = path.read_bytes().split(b"\n", 1)
            return program, json.loads(log)
        program, log = compile_source(source, name, headers, capability)
        partial = path.with_suffix(f".{os.getpid()}")
        partial.write_bytes(json.dumps(log).encode() + b"\n" + program)
        partial.replace(path)
        return program, log

    nvrtc.compile_source = kept


def _check_owner(folder: Path) -> None:
    if not hasattr(os, "getuid"):
        return
    for each, sticky in ((folder, 0), (folder.parent, stat.S_ISVTX)):  # in a sticky folder nobody renames another's
        found = each.stat()
        shared = found.st_mode & stat.S_IWOTH and not found.st_mode & sticky
        if found.st_uid not in (os.getuid(), 0) or shared:
            raise PermissionError(
                f"{each} belongs to somebody else, or everybody may write to it: name another folder."
            )


__all__ = ["keep_programs"]
