"""Record what qwen-vl-utils and transformers' own video processors make of frames, for machines without torchvision.

``python -m tests.models.make_video_vectors`` where torchvision and qwen-vl-utils are installed writes
``tests/data/vectors/video.json``: for each processor and clip the grid, the shape, and every :data:`STEP`-th value.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

STEP = 20_011  # a prime, so that the values are of all channels, rows and columns
PATH = Path(__file__).parents[1] / "data" / "vectors" / "video.json"
CLIPS = {"landscape": (6, 90, 160), "portrait": (4, 300, 120), "odd": (5, 64, 64)}
LARGE = {"large": (4, 900, 1100)}
SETTINGS: dict[str, dict[str, Any]] = {
    "Qwen2VLVideoProcessor": {"patch_size": 14, "merge_size": 2, "temporal_patch_size": 2},
    "Qwen2VLVideoProcessor, Qwen2.5-VL's files": {
        "patch_size": 14,
        "merge_size": 2,
        "temporal_patch_size": 2,
        "min_pixels": 3136,
        "max_pixels": 12845056,
    },
    "Qwen3VLVideoProcessor": {
        "patch_size": 16,
        "merge_size": 2,
        "temporal_patch_size": 2,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
        "size": {"shortest_edge": 4096, "longest_edge": 25165824},
    },
    "InternVLVideoProcessor": {"size": {"height": 448, "width": 448}},
    "LlavaOnevisionVideoProcessor": {"size": {"height": 384, "width": 384}},
}


def clip(frames: int, height: int, width: int) -> torch.Tensor:
    """uint8 ``[T, 3, H, W]``: waves and noise, the same for the same sizes."""
    r = np.random.default_rng(frames * height * width)
    y, x = np.mgrid[0:height, 0:width]
    t = np.arange(frames)[:, None, None]
    wave = 120 + 80 * np.sin(x / 7 + t) * np.cos(y / 11 - t / 3)
    noise = r.integers(-40, 40, (frames, 3, height, width))
    return torch.from_numpy(np.clip(wave[:, None] + noise, 0, 255).astype(np.uint8))


def clips(name: str) -> dict[str, tuple[int, int, int]]:
    """The clips for a processor; the large one only where frames keep their size."""
    return CLIPS | LARGE if name.startswith("Qwen") else CLIPS


def sampled(values: torch.Tensor) -> list[float]:
    """Every :data:`STEP`-th value."""
    return [round(float(value), 4) for value in values.reshape(-1)[::STEP]]


def main() -> None:
    """Write the vectors."""
    import transformers
    from qwen_vl_utils import vision_process

    out: dict[str, Any] = {}
    for name, settings in SETTINGS.items():
        kind = name.split(",")[0]
        module = __import__("transformers", fromlist=[kind])
        processor = getattr(module, kind)(**settings)
        for title, shape in clips(name).items():
            frames, options = clip(*shape), {"do_sample_frames": False, "return_tensors": "pt"}
            if kind.startswith("Qwen"):
                metadata = {"fps": 2.0, "frames_indices": list(range(shape[0])), "total_num_frames": shape[0]}
                reader = lambda ele, frames=frames, metadata=metadata: (frames, metadata, 2.0)  # noqa: E731
                vision_process.VIDEO_READER_BACKENDS["torchvision"] = reader
                vision_process.get_video_reader_backend = lambda: "torchvision"
                request = {"type": "video", "video": "clip"}
                frames = vision_process.fetch_video(request, image_patch_size=settings["patch_size"])
                options["cap_pixels_per_frame"] = True
            made = processor([frames], **options)
            pixels = made["pixel_values_videos"]
            grid = made["video_grid_thw"].tolist() if "video_grid_thw" in made else None
            out[f"{name}: {title}"] = {"shape": list(pixels.shape), "grid": grid, "values": sampled(pixels)}
    versions = {"transformers": transformers.__version__, "torch": torch.__version__}
    PATH.write_text(json.dumps({"versions": versions, "step": STEP, "vectors": out}) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
