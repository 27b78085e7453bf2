"""The embedded model for tests that ask about the same pages again and again: its vision encoder sees each once."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from hashlib import sha256
from types import MethodType
from typing import Any

import pytest
import torch
from torch import nn
from transformers.modeling_outputs import BaseModelOutputWithPooling
from transformers.models.qwen2_5_omni.modeling_qwen2_5_omni import Qwen2_5OmniVisionEncoder

from kvmm.models import load_model

_KEPT = 256  # inputs of the encoder, about a megabyte each
_ENCODED: OrderedDict[bytes, torch.Tensor] = OrderedDict()


def load_embedded(dtype: torch.dtype | str | None = torch.float32) -> tuple[Any, Any]:
    """Model and processor on the CPU. Not for tests of how long it takes to read a page."""
    model, processor = load_model(device="cpu", dtype=dtype)
    encoder = next(module for module in model.modules() if isinstance(module, Qwen2_5OmniVisionEncoder))
    encoder.forward = MethodType(_remembering(type(encoder).forward), encoder)
    return model, processor


def encode_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same for every model that is loaded while ``monkeypatch`` holds."""
    monkeypatch.setattr(Qwen2_5OmniVisionEncoder, "forward", _remembering(Qwen2_5OmniVisionEncoder.forward))


def _remembering(encode: Callable) -> Callable:
    def remembered(
        encoder: nn.Module, pixels: torch.Tensor, grid_thw: torch.Tensor, **options: Any
    ) -> BaseModelOutputWithPooling:
        digest = sha256(f"{pixels.dtype} {options}".encode())
        for tensor in (encoder.patch_embed.proj.weight, pixels, grid_thw):
            digest.update(tensor.detach().contiguous().view(torch.uint8).numpy().data)
        key = digest.digest()
        if key not in _ENCODED:
            _ENCODED[key] = encode(encoder, pixels, grid_thw=grid_thw, **options).pooler_output
            if len(_ENCODED) > _KEPT:
                _ENCODED.popitem(last=False)
        return BaseModelOutputWithPooling(pooler_output=_ENCODED[key].clone())

    return remembered
