"""A server whose folder of prefixes is on a full disk, then on one with room: no file may exceed a few KiB at first."""

from __future__ import annotations

import contextlib
import json
import resource
import signal
import sys
from pathlib import Path

import torch

from kvmm.errors import KVMMError
from kvmm.models import load_model
from kvmm.serve.disk import SECRET_BYTES, DiskPrefixes
from tests.serve.running import serving, text_of

FILE_BYTES = 4096
DOCUMENT = "The invoice is paid in March. " * 160  # longer than the blocks that texts are kept in


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    omni = load_model(device="cpu", dtype=torch.float32)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # a write beyond the limit is an error, as on a full disk
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    told: list[dict[str, object]] = []
    resource.setrlimit(resource.RLIMIT_FSIZE, (SECRET_BYTES // 2, hard))
    try:
        DiskPrefixes(folder, b"a model", 2**20)
    except KVMMError as error:
        told.append({"refused": str(error), "files": [path.name for path in folder.rglob("*") if path.is_file()]})
    for limit in (FILE_BYTES, soft):
        with contextlib.ExitStack() as stack:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
            stack.callback(resource.setrlimit, resource.RLIMIT_FSIZE, (soft, hard))
            running = stack.enter_context(serving(omni, cache_dir=folder))
            answers = [running.ask(f"{DOCUMENT} When is it paid?") for _ in range(2)]
            disk = running.service.engine._prefixes.disk
            running.wait_for(lambda disk=disk: disk.failures + len(disk) > 0)
            failures = disk.failures
        files = sorted(path.name for path in folder.rglob("*") if path.is_file())
        cached = [one["usage"]["prompt_tokens_details"]["cached_tokens"] for one in answers]
        told.append(
            {"texts": [text_of(one) for one in answers], "cached": cached, "failures": failures, "files": files}
        )
    print(json.dumps(told))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
