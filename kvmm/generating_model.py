"""Which module of what a caller holds as his model runs in ``generate``."""

from __future__ import annotations

from torch import nn
from transformers import GenerationMixin


def generating_model(model: nn.Module) -> nn.Module:
    """The module whose ``forward`` is called by ``generate``, where hooks belong.

    A wrapper (``torch.compile``, PEFT, a data-parallel one) hands ``generate`` on to the transformers model inside it,
    so that a hook of its own would never run; an Omni model to its thinker.

    Args:
        model: a transformers model, or a module around one. Anything else is returned as it is.
    """
    if isinstance(model, nn.Module) and not isinstance(model, GenerationMixin):
        model = next((module for module in model.modules() if isinstance(module, GenerationMixin)), model)
    return getattr(model, "thinker", model)


__all__ = ["generating_model"]
