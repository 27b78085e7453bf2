"""Files of the set: pictures, recordings and the lines that name them."""

from __future__ import annotations

import json
import wave
from pathlib import Path

import numpy as np
from PIL import Image

from training.speech import SAMPLE_RATE


def turn(question: str, answers: str | list[str], key: str, **extra: str) -> dict:
    """One question of a conversation."""
    return {"question": question, "answers": [answers] if isinstance(answers, str) else answers, "key": key, **extra}


class Writer:
    """Collects lines; media are written at once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lines: list[dict] = []
        for name in ("images", "audio"):
            (folder / name).mkdir(parents=True, exist_ok=True)

    def image(self, name: str, picture: np.ndarray | Image.Image, quality: int | None = None) -> str:
        """Save RGB uint8 ``[H, W, 3]`` as PNG (grey where it is grey), or as JPEG of a quality. Returns the path."""
        picture = Image.fromarray(picture) if isinstance(picture, np.ndarray) else picture.convert("RGB")
        red, green, blue = picture.split()
        if red.tobytes() == green.tobytes() == blue.tobytes():
            picture = red
        path = f"images/{name}.{'jpg' if quality else 'png'}"
        if quality:
            picture.save(self.folder / path, quality=quality)
        else:
            picture.save(self.folder / path, optimize=True)
        return path

    def recording(self, name: str, clip: np.ndarray) -> str:
        """Save float32 ``[n]`` at 16 kHz as 16-bit WAV. Returns the path."""
        path = f"audio/{name}.wav"
        with wave.open(str(self.folder / path), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(SAMPLE_RATE)
            file.writeframes(np.round(np.clip(clip, -1, 1) * 32767).astype("<i2").tobytes())
        return path

    def add(self, set_name: str, kind: str, images: list[str], audio: str | None, turns: list[dict]) -> None:
        """One conversation."""
        number = sum(line["set"] == set_name for line in self.lines)
        line = {"id": f"{set_name}-{number:04d}", "set": set_name, "kind": kind, "images": images, "audio": audio}
        self.lines.append({**line, "turns": turns})

    def save(self, name: str = "heldout.jsonl") -> Path:
        """Write the lines."""
        path = self.folder / name
        path.write_text("".join(json.dumps(line) + "\n" for line in self.lines), encoding="utf-8")
        return path
