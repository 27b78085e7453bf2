"""Files of a set: clean pages as lossless WebP, photographs as JPEG, recordings as MP3."""

from __future__ import annotations

import json
import shutil
import wave
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

SAMPLE_RATE = 16_000
JPEG_QUALITY = 72
MP3_LEVEL = 0.9  # of libsndfile, 1 is the smallest: about 25 kbit/s of speech


class Folder:
    """One set: writes media below ``root`` and remembers nothing else."""

    def __init__(self, root: Path) -> None:
        shutil.rmtree(root, ignore_errors=True)
        root.mkdir(parents=True)
        self.root = root

    def _path(self, name: str) -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def picture(self, name: str, picture: Image.Image | np.ndarray) -> str:
        """Save RGB without loss. Returns the path, relative to the set."""
        picture = Image.fromarray(picture) if isinstance(picture, np.ndarray) else picture
        name += ".webp"
        picture.convert("RGB").save(self._path(name), lossless=True, quality=60, method=4)
        return name

    def photograph(self, name: str, picture: Image.Image) -> str:
        """Save as JPEG."""
        name += ".jpg"
        picture.convert("RGB").save(self._path(name), quality=JPEG_QUALITY, optimize=True)
        return name

    def page(self, name: str, source: Path) -> str:
        """Take a page of the held-out set: a JPEG as it is, anything else without loss."""
        if source.suffix != ".jpg":
            return self.picture(name, Image.open(source))
        name += ".jpg"
        shutil.copyfile(source, self._path(name))
        return name

    def recording(self, name: str, source: Path) -> str:
        """A 16-bit mono WAV file at 16 kHz as MP3."""
        import soundfile

        with wave.open(str(source)) as file:
            samples = np.frombuffer(file.readframes(file.getnframes()), "<i2")
        name += ".mp3"
        soundfile.write(
            self._path(name), samples, SAMPLE_RATE, "MPEG_LAYER_III", format="MP3", compression_level=MP3_LEVEL
        )
        return name

    def save(self, name: str, data: dict | Sequence[dict]) -> None:
        """Write JSON, one question a line."""
        head, rows = ("", data) if not isinstance(data, dict) else ("", data["data"])
        lines = ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
        if isinstance(data, dict):
            head = json.dumps({key: value for key, value in data.items() if key != "data"})[:-1] + ', "data": '
        text = f"{head}[\n{lines}\n]" + ("}\n" if head else "\n")
        self._path(name).write_text(text, encoding="utf-8")
