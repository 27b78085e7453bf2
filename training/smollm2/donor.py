"""Eyes and ears of a model that reads and hears already, put in front of another text tower.

The vision and the audio tower of the donor are taken over with their sizes. Only their last projections speak the
donor's language: it is carried into a wider text tower by an orthonormal map, which loses nothing of it, and what the
words mean there is left to training. A donor of the same width, such as a model of fewer layers of the same base,
speaks it already.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from kvmm.models.packed_weights import PACKED_FILE, load_packed
from training.checkpoints import load_weights

TOWERS_FILE = "towers.safetensors"
PARTS = ("visual.", "audio_tower.")
PROJECTIONS = ("visual.merger.mlp.2.", "audio_tower.proj.", "audio_tower.audio_bos_eos_token.")
# The donor gives a page's tokens a root mean square of 3.0, 17 times its words'; SmolLM2's words have 0.13. At a
# quarter they are larger than words still, and large enough for the first updates not to overwrite the projection.
SCALE = 0.25


def donor_sizes(folder: Path) -> dict[str, int]:
    """Sizes of both towers of a checkpoint folder, as fields of `ModelConfig`."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    vision, audio = config["vision_config"], config["audio_config"]
    return dict(
        vision_size=vision["hidden_size"], vision_layers=vision["depth"],
        vision_intermediate_size=vision["intermediate_size"], audio_size=audio["d_model"],
        audio_layers=audio["encoder_layers"], audio_intermediate_size=audio["encoder_ffn_dim"],
    )  # fmt: skip


def lift(size: int, wider: int) -> Tensor:
    """A fixed map `[wider, size]` with orthonormal columns.

    Raises:
        ValueError: the target is narrower.
    """
    if wider < size:
        raise ValueError(f"a donor of {size} channels does not fit a text tower of {wider}")
    return torch.linalg.qr(torch.randn(wider, size, generator=torch.Generator().manual_seed(0)))[0]


def donor_towers(folder: Path, hidden_size: int) -> dict[str, Tensor]:
    """Weights of both towers of a checkpoint folder, packed or not, projections lifted into `hidden_size` channels."""
    out = {}
    packed = (folder / PACKED_FILE).is_file()
    for name, tensor in (load_packed(folder) if packed else load_weights(folder)).items():
        if not name.startswith(PARTS):
            continue
        axis = 1 if "bos_eos" in name else 0  # the channels of an embedding are its columns
        if name.startswith(PROJECTIONS) and tensor.shape[axis] != hidden_size:
            map_ = SCALE * lift(tensor.shape[axis], hidden_size)
            tensor = tensor @ map_.T if axis else map_ @ tensor
        out[name] = tensor
    return out


def write_towers(base: Path, towers: dict[str, Tensor]) -> None:
    """Puts them into a base folder, bf16."""
    save_file({n: t.bfloat16().contiguous() for n, t in towers.items()}, base / TOWERS_FILE)


def read_towers(base: Path) -> dict[str, Tensor]:
    """Float32 tensors of a base folder's towers; none if it has no donor."""
    file = base / TOWERS_FILE
    return {n: t.float() for n, t in load_file(file).items()} if file.is_file() else {}
