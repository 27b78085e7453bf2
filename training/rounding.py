"""Training with the weights that will be stored: forward and backward use rounded matrices, updates the exact ones.

The straight-through estimator (Bengio et al., 2013, "Estimating or Propagating Gradients Through Stochastic Neurons",
section 4): the gradient at the rounded weight is applied to the exact one. Levels are those of
`kvmm.models.coded_weights`, so the weights that a step sees are the ones that `training.export --step` would store.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from kvmm.models.coded_weights import dequantize_rows, quantize_rows
from kvmm.models.packed_weights import is_coded, share_of
from training.model_config import AUXILIARY
from training.smollm2.folder import EMBEDDINGS


def rounded(weights: Sequence[Tensor], share: float) -> list[Tensor]:
    """Weights as they read after coding, float32, in their shapes.

    All go through one call: a hundred small matrices one after another take longer than the step itself.

    Args:
        weights: tensors of two dimensions or more whose flattened rows are of one length.
        share: steps of a row's root mean square.
    """
    rows = torch.cat([weight.flatten(1) for weight in weights])
    parts = dequantize_rows(*quantize_rows(rows, share)).split([len(weight) for weight in weights])
    return [part.view_as(weight) for part, weight in zip(parts, weights, strict=True)]


class Rounding:
    """Weights of a model that are stored in steps of `share`, embeddings in finer ones."""

    def __init__(self, model: nn.Module, share: float) -> None:
        self.groups: dict[tuple[float, int], list[nn.Parameter]] = {}  # steps and length of a row -> matrices
        for name, p in model.named_parameters():
            if is_coded(p) and not name.startswith(AUXILIARY):
                self.groups.setdefault((share_of(name, share, EMBEDDINGS), p[0].numel()), []).append(p)

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """Within it the model has rounded weights; gradients gathered there stay with the exact ones."""
        parameters = [p for group in self.groups.values() for p in group]
        with torch.no_grad():
            exact = [p.clone() for p in parameters]
            for (share, _), group in self.groups.items():
                torch._foreach_copy_(group, rounded(group, share))
        try:
            yield
        finally:
            with torch.no_grad():
                torch._foreach_copy_(parameters, exact)
