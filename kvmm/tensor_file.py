"""Safetensors files that anybody may have written, read into memory of their own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from kvmm.errors import KVMMError, one_line


def read_tensor_file(
    path: Path, remedy: str, check: Callable[[dict[str, str]], None]
) -> tuple[dict[str, str], dict[str, torch.Tensor]]:
    """The header and the tensors of a file, on the CPU.

    Tensors are copies: views of the mapped file would lie at any address that the file says, and would be gone with the
    file.

    Args:
        path: the file.
        remedy: what messages end with.
        check: called with the header before tensors are read, to refuse files of another kind.

    Raises:
        KVMMError: the file is no complete safetensors file, or has a tensor of a dtype or shape that torch has not.
    """
    try:
        with safe_open(path, "pt") as file:
            header = file.metadata() or {}
            check(header)
            names = file.keys()
            tensors = {name: file.get_tensor(name).clone(memory_format=torch.contiguous_format) for name in names}
    except KVMMError:
        raise
    except (SafetensorError, OSError, ValueError, RuntimeError, KeyError, TypeError, AttributeError) as error:
        raise KVMMError(f"{path} is not a complete safetensors file ({one_line(error)}); {remedy}") from None
    return header, tensors


__all__ = ["read_tensor_file"]
