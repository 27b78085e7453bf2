"""Files of model weights in few bits, dequantised when the model is loaded.

Trained weights are entropy-coded (:mod:`kvmm.models.coded_weights`). Weights that lie on a grid already, as those of a
GGUF file do, keep 4, 5, 6 or 8 bits a value: a matrix is cut into groups of neighbouring columns, a group has a float16
step and minimum, and its values are levels `round((w - minimum) / step)`. The four low bits of two levels share a byte,
the remaining bits follow in a plane of their own, so that decoding is two shifts and a mask. Vectors (norms, biases)
are kept in bfloat16.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from kvmm.errors import KVMMError
from kvmm.models.coded_weights import CODED, CODED_SIDE, COLUMNS, STEPS, code_matrix, decode_matrix
from kvmm.tensor_file import read_tensor_file

PACKED_FILE = "model.packed.safetensors"
FORMAT = "kvmm-packed-weights-1"
WIDTHS = (4, 5, 6, 8)  # bits a value
LOW, _HIGH, _STEP, _MINIMUM, _SHAPE = ".low", ".high", ".step", ".minimum", ".shape"
SIDE_TENSORS = (_HIGH, _STEP, _MINIMUM, _SHAPE, *CODED_SIDE)  # beside the low bits or the codes of a matrix
ELEMENTS = "elements"  # of a file's metadata: how many weights it holds
_READERS = 4  # matrices that are decoded at a time
_FINER = 0.5  # of the step: for matrices that take finer ones
_LEAST_COLUMNS = 16  # of a matrix that is coded: fewer do not pay for a step
_SHRINK = (1.0, 0.95, 0.9, 0.85, 0.8)  # of a group's range; outliers are clipped where that lowers the squared error
_REMEDY = "copy or download it again."


def quantize(weight: Tensor, bits: int, group: int) -> tuple[Tensor, Tensor, Tensor]:
    """Levels of a matrix with the range per group that has the least squared error.

    Args:
        weight: `[rows, columns]`, any float dtype. bits: one of `WIDTHS`. group: divides `columns`.

    Returns:
        levels uint8 `[rows, columns]`, step and minimum float16 `[rows, columns / group]`.

    Raises:
        ValueError: `bits` or `group` do not fit.
    """
    if bits not in WIDTHS or weight.ndim != 2 or weight.shape[1] % group:
        raise ValueError(f"{tuple(weight.shape)} cannot be packed in {bits} bits with groups of {group}")
    w = weight.float().unflatten(1, (-1, group))
    low, high, top = w.amin(-1, keepdim=True), w.amax(-1, keepdim=True), 2**bits - 1
    best = torch.full_like(low, torch.inf)
    kept = [torch.zeros_like(low, dtype=torch.float16) for _ in range(2)]
    levels = torch.zeros(w.shape, dtype=torch.uint8, device=w.device)
    for shrink in _SHRINK:
        middle, half = (low + high) / 2, (high - low) / 2 * shrink
        minimum = (middle - half).half()
        step = (2 * half / top).half().clamp(min=2**-24)
        q = ((w - minimum.float()) / step.float()).round().clamp(0, top)
        error = (q * step.float() + minimum.float() - w).square().sum(-1, keepdim=True)
        better = error < best
        best = torch.where(better, error, best)
        levels = torch.where(better, q.to(torch.uint8), levels)
        kept = [torch.where(better, new, old) for new, old in zip((step, minimum), kept, strict=True)]
    return levels.flatten(1), kept[0].squeeze(-1), kept[1].squeeze(-1)


def dequantize(levels: Tensor, step: Tensor, minimum: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """`[rows, columns]` of :func:`quantize`'s result."""
    group = levels.shape[1] // step.shape[1]
    grouped = levels.unflatten(1, (-1, group)).float()
    return torch.addcmul(minimum.float()[..., None], grouped, step.float()[..., None]).flatten(1).to(dtype)


def pack_levels(levels: Tensor, bits: int) -> tuple[Tensor, Tensor | None]:
    """Bytes of levels uint8 `[rows, columns]`: low nibbles `[rows, columns / 2]`, the other bits or None."""
    nibbles = (levels & 15).unflatten(1, (-1, 2))
    low = nibbles[..., 0] | nibbles[..., 1] << 4
    if bits == 4:
        return low, None
    width = bits - 4
    rest = (levels >> 4).unflatten(1, (-1, 8 // width))
    shifts = torch.arange(0, 8, width, dtype=torch.uint8)
    return low, (rest << shifts).sum(-1, dtype=torch.uint8)


def unpack_levels(low: Tensor, high: Tensor | None, bits: int) -> Tensor:
    """Inverse of :func:`pack_levels`: uint8 `[rows, columns]`."""
    levels = torch.stack((low & 15, low >> 4), -1).flatten(1)
    if high is not None:
        width = bits - 4
        shifts = torch.arange(0, 8, width, dtype=torch.uint8)
        levels |= (high[..., None] >> shifts & (2**width - 1)).flatten(1) << 4
    return levels


def pack_weights(weights: dict[str, Tensor], bits: int = 5, group: int = 32, wide: Iterable[str] = ()) -> dict:
    """Tensors of a packed file.

    Args:
        weights: tensors by checkpoint name; those of two dimensions or more whose flattened rows divide into groups
            are packed, the others stay in bfloat16.
        bits, group: of the packed matrices. wide: parts of names of matrices that get 8 bits, such as embeddings.
    """
    out: dict[str, Tensor] = {}
    for name, tensor in weights.items():
        flat = tensor.flatten(1) if tensor.ndim >= 2 else tensor
        if flat.ndim < 2 or flat.shape[1] % group:
            out[name] = tensor.to(torch.bfloat16).contiguous()
            continue
        width = 8 if any(part in name for part in wide) else bits
        levels, step, minimum = quantize(flat, width, group)
        low, high = pack_levels(levels, width)
        out |= {name + LOW: low, name + _STEP: step, name + _MINIMUM: minimum}
        if high is not None:
            out[name + _HIGH] = high.contiguous()
        if tensor.ndim > 2:
            out[name + _SHAPE] = torch.tensor(tensor.shape)
    return {name: tensor.contiguous() for name, tensor in out.items()}


def code_weights(weights: dict[str, Tensor], share: float, finer: Iterable[str] = ()) -> dict[str, Tensor]:
    """Tensors of a packed file whose matrices are entropy-coded.

    Args:
        weights: tensors by checkpoint name; those of two dimensions or more are coded, the others stay in bfloat16.
        share: steps of a row's root mean square (:func:`kvmm.models.coded_weights.quantize_rows`).
        finer: parts of names of matrices whose steps are shorter (:func:`share_of`), such as embeddings.
    """
    out: dict[str, Tensor] = {}
    for name, tensor in weights.items():
        if not is_coded(tensor):
            out[name] = tensor.to(torch.bfloat16).contiguous()
            continue
        parts = code_matrix(tensor.flatten(1), share_of(name, share, finer))
        out |= {name + suffix: part for suffix, part in parts.items()}
        if tensor.ndim > 2:
            out[name + _SHAPE] = torch.tensor(tensor.shape)
    return out


def is_coded(tensor: Tensor) -> bool:
    """Whether :func:`code_weights` codes a tensor: a matrix, or what flattens to one, of long enough rows."""
    return tensor.ndim >= 2 and tensor.shape[1:].numel() >= _LEAST_COLUMNS


def share_of(name: str, share: float, finer: Iterable[str]) -> float:
    """The step of a matrix: `share`, or half of it where its name contains one of `finer`."""
    return share * _FINER if any(part in name for part in finer) else share


def unpack_weights(packed: dict[str, Tensor], dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    """Weights by checkpoint name from the tensors of :func:`pack_weights` or :func:`code_weights`.

    Raises:
        KVMMError: a part of a matrix is missing or has another size, or its codes are damaged.
    """
    stems = {name: name.removesuffix(LOW).removesuffix(CODED) for name in packed}

    def matrix(name: str) -> Tensor:
        stem, tensor = stems[name], packed[name]
        try:
            if name.endswith(CODED):
                own = (CODED, *CODED_SIDE)
                found = decode_matrix({part: packed[stem + part] for part in own if stem + part in packed}, dtype)
            else:
                step, minimum, high = packed[stem + _STEP], packed[stem + _MINIMUM], packed.get(stem + _HIGH)
                bits = 4 if high is None else 4 + 4 * high.shape[1] // tensor.shape[1]
                found = dequantize(unpack_levels(tensor, high, bits), step, minimum, dtype)
            shape = packed.get(stem + _SHAPE)
            return found if shape is None else found.view(shape.tolist())
        except (KeyError, RuntimeError, ValueError, ZeroDivisionError) as error:
            raise KVMMError(f"The packed weights of {stem} are not complete; {_REMEDY}") from error

    names = [name for name in packed if stems[name] != name]
    orphans = {name.removesuffix(STEPS) for name in packed if name.endswith(STEPS)} - {stems[name] for name in names}
    if orphans:
        raise KVMMError(f"The packed weights of {min(orphans)} are not complete; {_REMEDY}")
    with ThreadPoolExecutor(_READERS) as pool:
        matrices = dict(zip(names, pool.map(matrix, names), strict=True))
    return {
        stems[name]: matrices[name] if name in matrices else tensor.to(dtype)
        for name, tensor in packed.items()
        if not name.endswith(SIDE_TENSORS)
    }


def save_packed(packed: dict[str, Tensor], folder: Path) -> Path:
    """Writes the packed file of a checkpoint folder and returns its path."""
    path = folder / PACKED_FILE
    save_file(packed, path, metadata={"format": FORMAT, ELEMENTS: str(elements(packed))})
    return path


def elements(packed: dict[str, Tensor]) -> int:
    """How many weights the tensors of a packed file hold."""
    total = 0
    for name, tensor in packed.items():
        if name.endswith(CODED):
            stem = name.removesuffix(CODED)
            total += len(packed[stem + STEPS]) * int(packed[stem + COLUMNS])
        elif not name.endswith(SIDE_TENSORS):
            total += tensor.numel() * (2 if name.endswith(LOW) else 1)  # two levels a byte
    return total


def load_packed(folder: Path, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    """Weights by checkpoint name from a checkpoint folder's packed file.

    Raises:
        KVMMError: the file is damaged or of another format.
    """

    def check(header: dict[str, str]) -> None:
        if header.get("format") != FORMAT:
            raise KVMMError(f"{folder / PACKED_FILE} is not a file of packed weights; {_REMEDY}")

    return unpack_weights(read_tensor_file(folder / PACKED_FILE, _REMEDY, check)[1], dtype)


__all__ = [
    "ELEMENTS", "LOW", "PACKED_FILE", "SIDE_TENSORS", "WIDTHS", "code_weights", "dequantize", "is_coded", "load_packed",
    "pack_weights", "quantize", "save_packed", "share_of", "unpack_weights",
]  # fmt: skip
