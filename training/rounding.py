"""Training with the weights that will be stored: forward and backward use rounded matrices, updates the exact ones.

The straight-through estimator (Bengio et al., 2013, "Estimating or Propagating Gradients Through Stochastic Neurons",
section 4): the gradient at the rounded weight is applied to the exact one. Levels are those of
`kvmm.models.packed_weights`, so the weights that a step sees are the ones that `training.export --bits` would store.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from kvmm.models.packed_weights import dequantize, quantize
from training.model_config import AUXILIARY
from training.smollm2.folder import EMBEDDINGS

GROUP = 64  # values of a row that share a step and a minimum in few bits; rows that it does not divide stay as they are


def rounded(weight: Tensor, bits: int) -> Tensor:
    """`weight` (two dimensions or more, rows divisible by GROUP once flattened) as it reads after packing, float32."""
    return dequantize(*quantize(weight.flatten(1), bits, GROUP)).view_as(weight)


class Rounding:
    """Weights of a model that are stored in few bits, embeddings in 8."""

    def __init__(self, model: nn.Module, bits: int) -> None:
        self.widths = {
            p: 8 if any(part in name for part in EMBEDDINGS) else bits
            for name, p in model.named_parameters()
            if p.ndim >= 2 and p[0].numel() % GROUP == 0 and not name.startswith(AUXILIARY)
        }

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """Within it the model has rounded weights; gradients gathered there stay with the exact ones."""
        with torch.no_grad():
            exact = [p.clone() for p in self.widths]
            for p, bits in self.widths.items():
                p.copy_(rounded(p, bits))
        try:
            yield
        finally:
            with torch.no_grad():
                for p, kept in zip(self.widths, exact, strict=True):
                    p.copy_(kept)
