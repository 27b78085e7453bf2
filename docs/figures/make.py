"""Make the pictures of this folder: ``python docs/figures/make.py``, with Chrome or Chromium installed.

Each is one that ``kvmm analyze`` writes for tiny-omni (or, for the bytes, for a model's shape), on the sample
documents, or for the packaged language model on a text; large ones are reduced to a palette to keep the repository
small. ``python docs/figures/make.py norms cost`` makes those whose commands have one of these words.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

HERE = Path(__file__).parent
# options of `kvmm analyze`: the scale, and the figures by their names on its page and here
RUNS: dict[str, tuple[str, tuple[str, ...]]] = {
    "norms --model tiny-omni --layer 7": ("1.5", ("norms_key", "boxes_key", "stages_key", "ranges")),
    "drift --model tiny-omni --seeds 0 --max-new-tokens 24 --policy kivi4 --policy kivi2 --policy oscar4-2 "
    "--policy oscar2 --policy kitty --policy calibquant1-mean --policy rd3 --policy rd2 --policy rd1.5 --policy rd1": (
        "1.5",
        ("drift_bits",),
    ),
    "cost --model Qwen2.5-VL-7B-Instruct --context 131072 --images 96": ("1.5", ("bytes",)),
    "errors --model tiny-omni --image assets/samples/invoice.png --policy calibquant1 --policy paper-calibquant1 "
    "--policy calibquant1-mean --policy paper-calibquant2 --policy rd1": ("1.5", ("softmax_errors",)),
    "norms --model SmolLM2-135M-Instruct --text benchmarks/texts/alice.txt --layer 10 --dtype float32": (
        "1.5",
        ("tokens_key language_tokens_key", "attention language_attention"),
    ),
}
LARGEST = 110_000  # bytes


def main() -> None:
    words = sys.argv[1:]
    for command, (scale, names) in RUNS.items():
        if words and not set(words) & set(command.split()):
            continue
        with tempfile.TemporaryDirectory() as folder:
            arguments = [*command.split(), "--scale", scale, "--out", folder]
            subprocess.run([sys.executable, "-m", "kvmm", "analyze", *arguments], check=True, cwd=HERE.parents[1])
            for name in names:
                on_page, _, here = name.partition(" ")
                path, drawn = HERE / f"{here or on_page}.png", Path(folder) / f"{on_page}.png"
                picture = Image.open(drawn).convert("RGBA")
                if drawn.stat().st_size > LARGEST:
                    picture = picture.quantize(128, method=Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)
                picture.save(path, optimize=True)
                size = path.stat().st_size
                print(f"{path.name}: {size:,} bytes")
                if size > LARGEST:
                    raise SystemExit(f"{path.name} has {size:,} bytes, more than {LARGEST:,}: lower its scale.")


if __name__ == "__main__":
    main()
