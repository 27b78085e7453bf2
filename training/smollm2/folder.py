"""A base folder: a pretrained text tower, its tokenizer and the sizes of the whole model, as training reads them."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from torch import Tensor

from kvmm.models.packed_weights import load_packed, pack_weights, save_packed
from training.model_config import ModelConfig

CONFIG, TOKENIZER = "model_config.json", "tokenizer.json"
EMBEDDINGS = ("embed_tokens",)  # stored with less error: a row is one token, and an error there is seen at every use


def config_json(config: ModelConfig) -> str:
    return json.dumps(asdict(config), indent=1) + "\n"


def read_config(folder: Path) -> ModelConfig:
    """The sizes in a base folder, or in the --out folder of a run that started from one.

    Raises:
        FileNotFoundError: no sizes there.
    """
    values = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    return ModelConfig(**{name: tuple(v) if isinstance(v, list) else v for name, v in values.items()})


def write_base(folder: Path, config: ModelConfig, weights: dict[str, Tensor], bits: int, group: int) -> Path:
    """Writes weights and sizes; returns the file of the weights."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / CONFIG).write_text(config_json(config), encoding="utf-8")
    return save_packed(pack_weights(weights, bits, group, EMBEDDINGS), folder)


def read_base(folder: Path) -> dict[str, Tensor]:
    """Float32 tensors of the text tower in a base folder."""
    return load_packed(folder)
