"""Files of weights: what a chain of runs leaves for the next, and what is small enough to carry elsewhere."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Collection
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from kvmm.models.coded_weights import CODED
from kvmm.models.packed_weights import code_weights, pack_weights, unpack_weights
from training.model_config import AUXILIARY
from training.smollm2.folder import CONFIG, EMBEDDINGS, TOKENIZER

CHECKPOINT = "model.safetensors"  # of training.export; its tensors keep their names here
MAX_FILE_BYTES = 15 * 2**20 - 2**16  # of a weight file in --out, with room for the header


def split_weights(weights: dict[str, torch.Tensor]) -> list[dict[str, torch.Tensor]]:
    """Parts below MAX_FILE_BYTES, in order."""
    parts, size = [{}], 0
    for name, tensor in weights.items():
        if size + tensor.nbytes > MAX_FILE_BYTES:
            parts.append({})
            size = 0
        parts[-1][name] = tensor
        size += tensor.nbytes
    return parts


def stored_tensors(folder: Path) -> dict[str, torch.Tensor]:
    """All tensors of a --state or --out folder, or of an exported checkpoint, packed where they are.

    Raises:
        FileNotFoundError: no weights there.
    """
    files = sorted(folder.glob("weights-*.safetensors")) or sorted(folder.glob(CHECKPOINT))
    if not files:
        raise FileNotFoundError(f"{folder}: no weights-*.safetensors; name the --out folder of a training run")
    return {name: t for file in files for name, t in load_file(file).items()}


def load_weights(folder: Path) -> dict[str, torch.Tensor]:
    """:func:`stored_tensors` in float32; those of an exported checkpoint lack the auxiliary heads."""
    return unpack_weights(stored_tensors(folder))


def has_new_heads(names: Collection[str]) -> bool:
    """Whether a model that starts from weights of these names has trained towers, and a new auxiliary head."""
    heads = [any(name.startswith(head) for name in names) for head in AUXILIARY]
    return any(name.startswith("visual.") for name in names) and not all(heads)


def coded_weights(folder: Path, step: float) -> dict[str, torch.Tensor]:
    """A folder's tensors in entropy-coded steps of `step`, embeddings and auxiliary heads in finer ones; tensors that
    are coded already as they are, so that an export of carried weights stores what was measured.
    """
    tensors = stored_tensors(folder)
    if any(name.endswith(CODED) for name in tensors):
        return tensors
    return coded(unpack_weights(tensors), step)


def coded(weights: dict[str, torch.Tensor], step: float) -> dict[str, torch.Tensor]:
    """Weights in entropy-coded steps of `step`, those that are stored finer in half of it."""
    return code_weights(weights, step, (*EMBEDDINGS, *AUXILIARY))


def carried(weights: dict[str, torch.Tensor], packed: bool) -> dict[str, torch.Tensor]:
    """What --out holds of weights: bf16, or with a pretrained text tower 8 bits, which is half the files to carry."""
    if not packed:
        return {name: t.bfloat16() for name, t in weights.items()}
    text = {name: t for name, t in weights.items() if name.startswith("model.")}
    rest = {name: t.bfloat16() for name, t in weights.items() if name not in text}
    return rest | pack_weights(text, bits=8)


def compact(source: Path, out: Path, step: float, state: Path | None = None) -> None:
    """Writes an --out folder of a run onto a pretrained text tower with :func:`coded_weights`, which `training.export`
    stores, for --init, --base and --teacher.

    Args:
        state: the run's --state folder, whose weights are exact, where it is at hand.
    """
    weights = coded_weights(source if state is None else state, step)
    with replaced(out) as folder:
        for i, part in enumerate(split_weights(weights)):
            save_file(part, folder / f"weights-{i:02d}.safetensors")
        for name in (CONFIG, TOKENIZER, "progress.json"):
            shutil.copy(source / name, folder / name)


@contextlib.contextmanager
def replaced(folder: Path):
    """A fresh folder whose files replace those of `folder` once all are written: a run cut short leaves the old."""
    fresh = folder.with_name(folder.name + ".tmp")
    fresh.mkdir(parents=True, exist_ok=True)
    yield fresh
    folder.mkdir(parents=True, exist_ok=True)
    for file in fresh.iterdir():
        os.replace(file, folder / file.name)
    fresh.rmdir()
