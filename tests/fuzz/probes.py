"""What the runner has to tell apart, one input each: for its own test."""

from __future__ import annotations

import ctypes
import random
import time
from pathlib import Path

from kvmm import KVMMError


class Fuzzer:
    """Does what the number of an input says."""

    def __init__(self, folder: Path):
        self.kept = b""

    def originals(self) -> list[int]:
        """What is broken, whole."""
        return [0]

    def make(self, rng: random.Random, number: int) -> int:
        """The number itself."""
        return number

    def run(self, number: int) -> None:
        """Succeed, refuse, fail, crash, take long, take much."""
        if number == 1:
            raise KVMMError("no")
        if number == 2:
            raise IndexError("foreign")
        if number == 3:
            ctypes.string_at(0)
        if number == 4:
            time.sleep(60)
        if number == 5:
            self.kept = bytes(3 * 2**30)
