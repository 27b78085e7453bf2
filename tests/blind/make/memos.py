"""Speak the memos of ``memos.json``: espeak-ng's own voices, a room and noise by sox, Opus files.

python -m tests.blind.make.memos      # needs espeak-ng, sox, opus-tools
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
RATE = "16000"
NOISE = {"pink": ("pinknoise", "0.05"), "brown": ("brownnoise", "0.09"), "station": ("pinknoise", "0.03")}
ROOM = {
    "phone": ["sinc", "300-3400"],
    "station": ["reverb", "35", "50", "60"],
}


def speak(memo: dict[str, str | int], out: Path) -> None:
    """Write one memo as Opus, mono at 16 kHz."""
    with tempfile.TemporaryDirectory() as folder:
        dry, wet, noise, mixed = (f"{folder}/{name}.wav" for name in ("dry", "wet", "noise", "mixed"))
        options = ["-v", str(memo["voice"]), "-s", str(memo["speed"]), "-p", str(memo["pitch"])]
        _run("espeak-ng", *options, "-w", dry, str(memo["text"]))
        effect = str(memo["sound"])
        _run("sox", "-R", dry, "-r", RATE, "-c", "1", wet, *ROOM.get(effect, []), "pad", "0.3", "0.4", "norm", "-3")
        if effect in NOISE:
            seconds = _run("soxi", "-D", wet).strip()
            kind, volume = NOISE[effect]
            _run("sox", "-R", "-n", "-r", RATE, "-c", "1", noise, "synth", seconds, kind, "vol", volume)
            _run("sox", "-R", "-m", "-v", "1", wet, "-v", "1", noise, mixed, "norm", "-3")
        _run("opusenc", "--quiet", "--bitrate", "20", "--serial", "1", mixed if effect in NOISE else wet, str(out))


def _run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def main() -> None:
    """Speak all memos."""
    (ROOT / "memos").mkdir(exist_ok=True)
    for memo in json.loads((Path(__file__).parent / "memos.json").read_text(encoding="utf-8")):
        speak(memo, ROOT / "memos" / f"{memo['id']}.opus")
        print(memo["id"])


if __name__ == "__main__":
    main()
