"""What images, documents and recordings share: bytes with changes, given to a loader."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import torch

from tests.fuzz.mutate import mutated_bytes


class MediaFuzzer:
    """Files of one kind; subclasses name the files and the loader."""

    suffix = ""

    def __init__(self, folder: Path):
        torch.set_num_threads(1)
        self.folder = folder
        self.files = self.seeds()

    def seeds(self) -> list[bytes]:
        """Files to break."""
        raise NotImplementedError

    def load(self, path: Path) -> Any:
        """What the app does with such a file."""
        raise NotImplementedError

    def whole(self) -> list[bytes]:
        """Seeds that have to be accepted."""
        return self.files

    def originals(self) -> list[bytes]:
        """What is broken, whole."""
        return self.whole()

    def make(self, rng: random.Random, number: int) -> bytes:
        """The bytes of a file."""
        data = rng.choice(self.files)
        return data if rng.random() < 0.02 else mutated_bytes(rng, data, tuple(self.files))

    def run(self, data: bytes) -> None:
        """Load the file from a path."""
        path = self.folder / f"upload{self.suffix}"
        path.write_bytes(data)
        self.load(path)
