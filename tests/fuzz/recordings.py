"""Recordings in all formats that libsndfile writes, and WAV files of every coding that has a number."""

import random
from pathlib import Path

from kvmm.media import load_audio
from tests.fuzz.media import MediaFuzzer
from tests.fuzz.samples import SAMPLES, recordings, wav_of


class Fuzzer(MediaFuzzer):
    """Sound, as a question."""

    suffix = ".wav"

    def seeds(self) -> list[bytes]:
        return [(SAMPLES / "question.wav").read_bytes(), *recordings()]

    def whole(self) -> list[bytes]:
        return self.files[:1]

    def make(self, rng: random.Random, number: int) -> bytes:
        """The bytes of a file."""
        if rng.random() < 0.15:
            tag = rng.choice((*range(0x120), 0x161, 0x1FC4, 0x674F, 0xF1AC, 0xFFFE, rng.randrange(65536)))
            shape = (
                rng.choice((8000, 16000)),
                rng.choice((0, 1, 2, 4, 8, 16, 24, 64)),
                rng.choice((1, 2, 4, 33, 65, 256)),
            )
            return wav_of(tag, rng.randbytes(8192), *shape, rng.randbytes(rng.choice((0, 2, 4, 22, 32))))
        return super().make(rng, number)

    def load(self, path: Path) -> None:
        load_audio(path)
