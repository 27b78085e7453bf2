"""A pretrained text tower to train onto: its weights, its vocabulary, and itself as the teacher."""

from __future__ import annotations

import shutil
from pathlib import Path

import torch
from torch import Tensor

from kvmm.models.packed_weights import PACKED_FILE
from training.checkpoints import load_weights
from training.model import OmniModel
from training.smollm2.donor import read_towers
from training.smollm2.folder import CONFIG, TOKENIZER, read_base, read_config
from training.tokenizer import use_tokenizer


def text_tower(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of `OmniModel.model` among a model's, by their names there."""
    return {name.removeprefix("model."): t for name, t in weights.items() if name.startswith("model.")}


class Base:
    """A folder of `training.smollm2`, or an --out folder of a run onto one, which has its sizes and vocabulary but no
    weights under their old names: such a run needs --init, and its own text tower or another as --teacher.

    Create it before data workers are started: it chooses the tokenizer.

    Attributes:
        config: sizes of the model that is trained onto it. has_weights: whether the pretrained ones are there.
        loaded: names of the weights that :meth:`start` put into a model.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.config = folder, read_config(folder)
        self.has_weights = (folder / PACKED_FILE).is_file()
        self.loaded: frozenset[str] = frozenset()
        use_tokenizer(folder / TOKENIZER)

    @torch.no_grad()
    def start(self, model: OmniModel, teach: bool, teacher_folder: Path | None = None) -> OmniModel | None:
        """Puts the pretrained weights into `model`; returns a frozen copy of the text tower, or None.

        Args:
            teach: whether a teacher is wanted. teacher_folder: an --out folder whose text tower teaches instead, such
                as that of a run with `--only text`.
        """
        weights = read_base(self.folder) | read_towers(self.folder) if self.has_weights else {}
        missing = model.load_state_dict(weights, strict=False)
        if missing.unexpected_keys:
            raise ValueError(f"{self.folder} does not fit the model: {missing.unexpected_keys[:3]}")
        self.loaded = frozenset(weights)
        if not teach:
            return None
        device = model.inv_freq.device
        teacher = OmniModel(self.config)
        for name in ("visual", "audio_tower", "aux_head", "ctc_head"):
            delattr(teacher, name)
        taught = model.model.state_dict() if teacher_folder is None else text_tower(load_weights(teacher_folder))
        teacher.model.load_state_dict(taught)
        if device.type == "cuda":
            teacher.model.bfloat16()  # not the frequencies of its positions, which need float32
        return teacher.to(device).eval().requires_grad_(False)

    def copy_to(self, folder: Path) -> None:
        """Sizes and vocabulary, which the weights in an --out folder need to be exported."""
        for name in (CONFIG, TOKENIZER):
            shutil.copy(self.folder / name, folder / name)
