"""Training with the weights that will be stored: forward and backward use rounded matrices, updates the exact ones.

The straight-through estimator (Bengio et al., 2013, "Estimating or Propagating Gradients Through Stochastic Neurons",
section 4): the gradient at the rounded weight is applied to the exact one. Levels are those of
`kvmm.models.packed_weights`, so the weights that a step sees are the ones that `training.export --bits` would store.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from kvmm.models.packed_weights import dequantize, quantize
from training.model_config import AUXILIARY
from training.smollm2.folder import EMBEDDINGS

GROUP = 64  # values of a row that share a step and a minimum in few bits; rows that it does not divide stay as they are


def rounded(weights: Sequence[Tensor], bits: int) -> list[Tensor]:
    """Weights as they read after packing, float32, in their shapes.

    All groups go through one call: a hundred small matrices one after another take longer than the step itself.

    Args:
        weights: tensors of two dimensions or more, rows divisible by GROUP once flattened.
    """
    grouped = torch.cat([weight.reshape(-1, GROUP) for weight in weights])
    parts = dequantize(*quantize(grouped, bits, GROUP)).split([weight.numel() // GROUP for weight in weights])
    return [part.view_as(weight) for part, weight in zip(parts, weights, strict=True)]


class Rounding:
    """Weights of a model that are stored in few bits, embeddings in 8."""

    def __init__(self, model: nn.Module, bits: int) -> None:
        self.widths: dict[int, list[nn.Parameter]] = {}
        for name, p in model.named_parameters():
            if p.ndim >= 2 and p[0].numel() % GROUP == 0 and not name.startswith(AUXILIARY):
                width = 8 if any(part in name for part in EMBEDDINGS) else bits
                self.widths.setdefault(width, []).append(p)

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """Within it the model has rounded weights; gradients gathered there stay with the exact ones."""
        parameters = [p for group in self.widths.values() for p in group]
        with torch.no_grad():
            exact = [p.clone() for p in parameters]
            for bits, group in self.widths.items():
                torch._foreach_copy_(group, rounded(group, bits))
        try:
            yield
        finally:
            with torch.no_grad():
                torch._foreach_copy_(parameters, exact)
