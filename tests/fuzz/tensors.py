"""Mutators of the tensors of safetensors files; what is written is a complete file."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

_DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8,
           torch.bool, torch.float64)  # fmt: skip
_NUMBERS = (-1, 0, 1, 2, 7, 63, 127, 128, 255, 1000, 2**15, 2**31 - 1, -(2**31), 2**40)


def mutated_tensors(rng: random.Random, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """``tensors`` with one to three changes of dtypes, shapes, values or names."""
    out = dict(tensors)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        if not out:
            return out
        name = rng.choice(sorted(out))
        kind = rng.randrange(12)
        if kind == 0:
            del out[name]
        elif kind == 1:
            other = rng.choice(sorted(out))
            out[name], out[other] = out[other], out[name]
        elif kind == 2:
            out[_renamed(rng, name)] = out.pop(name)
        elif kind == 3:
            out[name] = out[name].to(rng.choice(_DTYPES))
        elif kind == 4:
            out[name] = _viewed(rng, out[name])
        elif kind < 8:
            out[name] = _reshaped(rng, out[name])
        else:
            out[name] = _revalued(rng, out[name])
    return {name: t.clone(memory_format=torch.contiguous_format) for name, t in out.items()}


def read_whole(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """The tensors and the header of a safetensors file that nobody has broken."""
    with safe_open(path, "pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, file.metadata()  # noqa: SIM118


def broken_value(rng: random.Random, header: dict[str, str]) -> None:
    """Replace a value of a header by one that no writer makes."""
    header[rng.choice(sorted(header))] = rng.choice(("", "0", "é" * 3000, "[" * 5000, "9" * 5000))


def _renamed(rng: random.Random, name: str) -> str:
    parts = name.split(".")
    at = rng.randrange(len(parts))
    parts[at] = rng.choice(("", "0", "1", "7", "99", "key", "value", "codes", "scale", "x", "-1", "image", "audio"))
    return ".".join(parts) if rng.random() < 0.8 else name + rng.choice((".x", "\0", "0" * 300))


def _viewed(rng: random.Random, x: torch.Tensor) -> torch.Tensor:
    """The same bytes as another dtype, if that fits: what torch throws, a sanitizer takes for the end."""
    dtype = rng.choice(_DTYPES)
    fits = dtype.itemsize == x.itemsize or (x.dim() and x.shape[-1] * x.itemsize % dtype.itemsize == 0)
    return x.contiguous().view(dtype) if fits else x.flatten()


def _reshaped(rng: random.Random, x: torch.Tensor) -> torch.Tensor:
    if not x.dim():
        return x.view(1)
    kind, dim = rng.randrange(7), rng.randrange(x.dim())
    size = x.shape[dim]
    if kind == 0:
        return x.narrow(dim, 0, max(0, size - rng.choice((1, 2, size))))
    if kind == 1:
        return torch.cat((x, x.narrow(dim, 0, min(size, rng.choice((1, 3))))), dim)
    if kind == 2:
        return x.transpose(dim, rng.randrange(x.dim()))
    if kind == 3:
        return x.unsqueeze(dim)
    if kind == 4:
        return x.flatten()
    if kind == 5:
        return x.narrow(dim, 0, min(size, 1)).squeeze(dim)
    return x.repeat_interleave(2, dim) if x.numel() < 10**6 else x


def _revalued(rng: random.Random, x: torch.Tensor) -> torch.Tensor:
    x, flat = x.clone(), None
    if not x.numel():
        return x
    flat = x.view(-1)
    count = rng.choice((1, 1, 8, flat.numel()))
    at = torch.tensor([rng.randrange(flat.numel()) for _ in range(min(count, 4096))])
    if x.is_floating_point():
        value: Any = rng.choice((float("nan"), float("inf"), -float("inf"), 0.0, 1e38, -65504.0, 1e-40))
    else:
        value = rng.choice(_NUMBERS)
    flat[at] = torch.tensor(value).to(x.dtype)
    return x
