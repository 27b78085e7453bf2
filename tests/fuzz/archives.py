"""Benchmarks that visitors send as a .zip."""

from __future__ import annotations

import io
import random
import shutil
import zipfile
from pathlib import Path

from kvmm.ui.server.archive import unpack_benchmark
from tests.fuzz.mutate import ODD_TEXTS, mutated_bytes
from tests.fuzz.samples import image_files

_NAMES = (
    *("", ".", "..", "../a.png", "/a.png", "a//b.png", "a/", ".png", "x" * 300 + ".png", "a\\..\\b.json", "c:a.json"),
    *("a\0.json", "a.json/b.json", "CON.json", "é.json", "data.json", "data.json/", "\udcff.json", ".json"),
)


class Fuzzer:
    """Archives with odd names, methods and sizes, and with changed bytes."""

    def __init__(self, folder: Path):
        self.path, self.out = folder / "in.zip", folder / "out"
        self.picture = image_files()[0]
        plain = {"set/qas/val.json": b'{"data": []}', "set/documents/a.png": self.picture, "run.sh": b"x"}
        self.files = [self._zip(plain, method) for method in (0, 8, 12, 14)]

    @staticmethod
    def _zip(files: dict[str, bytes], method: int) -> bytes:
        stream = io.BytesIO()
        with zipfile.ZipFile(stream, "w", method) as archive:
            for name, data in files.items():
                archive.writestr(name, data)
        return stream.getvalue()

    def originals(self) -> list[bytes]:
        """What is broken, whole."""
        return self.files

    def make(self, rng: random.Random, number: int) -> bytes:
        """The bytes of a file."""
        if rng.random() < 0.6:
            return mutated_bytes(rng, rng.choice(self.files), tuple(self.files))
        names = ["a.json", *(rng.choice((*_NAMES, *ODD_TEXTS)) for _ in range(rng.randrange(5)))]
        stream = io.BytesIO()
        with zipfile.ZipFile(stream, "w", rng.choice((0, 8))) as archive:
            for name in names:
                entry = zipfile.ZipInfo("x")
                entry.filename = name.encode("utf-8", "replace").decode()
                entry.external_attr = rng.choice((0, 0o120777 << 16, 0o040755 << 16, 0o600 << 16))
                archive.writestr(entry, rng.choice((b"", b"[]", self.picture, b"../../etc/passwd")))
        data = stream.getvalue()
        return mutated_bytes(rng, data) if rng.random() < 0.3 else data

    def run(self, data: bytes) -> None:
        """Unpack the file; what it writes has to be below its folder."""
        shutil.rmtree(self.out, ignore_errors=True)
        self.out.mkdir()
        self.path.write_bytes(data)
        before = sorted(self.path.parent.iterdir())
        try:
            unpack_benchmark(self.path, self.out, "in.zip")
        finally:
            assert sorted(self.path.parent.iterdir()) == before
            assert not any(file.is_symlink() for file in self.out.rglob("*"))
