"""A pretrained text tower to train onto: its weights, its vocabulary, and itself as the teacher."""

from __future__ import annotations

import shutil
from pathlib import Path

import torch

from training.model import OmniModel
from training.smollm2.folder import CONFIG, TOKENIZER, read_base, read_config
from training.tokenizer import use_tokenizer


class Base:
    """A folder of `training.smollm2`. Create it before data workers are started: it chooses the tokenizer.

    Attributes:
        config: sizes of the model that is trained onto it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.config = folder, read_config(folder)
        use_tokenizer(folder / TOKENIZER)

    @torch.no_grad()
    def start(self, model: OmniModel, teach: bool) -> OmniModel | None:
        """Puts the pretrained weights into `model`; returns a frozen copy of the text tower, or None."""
        missing = model.load_state_dict(read_base(self.folder), strict=False)
        if missing.unexpected_keys:
            raise ValueError(f"{self.folder} does not fit the model: {missing.unexpected_keys[:3]}")
        if not teach:
            return None
        device = model.inv_freq.device
        teacher = OmniModel(self.config)
        for name in ("visual", "audio_tower", "aux_head", "ctc_head"):
            delattr(teacher, name)
        teacher.model.load_state_dict(model.model.state_dict())
        if device.type == "cuda":
            teacher.model.bfloat16()  # not the frequencies of its positions, which need float32
        return teacher.to(device).eval().requires_grad_(False)

    def copy_to(self, folder: Path) -> None:
        """Sizes and vocabulary, which the weights in an --out folder need to be exported."""
        for name in (CONFIG, TOKENIZER):
            shutil.copy(self.folder / name, folder / name)
