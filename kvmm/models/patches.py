"""Patch embeddings of vision encoders as the matrix products that they are."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn


class PatchProjection(nn.Conv3d):
    """A convolution whose kernel covers a whole patch, for patches that are cut already, as Qwen's encoders get them.

    Convolution kernels are made for large images and take many times as long, above all in bfloat16 on a CPU.
    Parameters and their names stay as they are.
    """

    def forward(self, patches: torch.Tensor) -> torch.Tensor:
        """``[N, C, t, p, p]`` -> ``[N, out_channels, 1, 1, 1]``; whatever is larger than the kernel is convolved."""
        if patches.shape[2:] != self.kernel_size:
            return super().forward(patches)
        return F.linear(patches.flatten(1), self.weight.flatten(1), self.bias)[..., None, None, None]


def multiply_patches(model: nn.Module) -> int:
    """Make the convolutions of a model that see one patch each :class:`PatchProjection`; returns how many.

    The modules stay the same objects, with their hooks. Where a hook has put a function of its own in place of
    ``forward``, as those do that bring offloaded weights, it goes on convolving.
    """
    found = [module for module in model.modules() if type(module) is nn.Conv3d and _sees_one_patch(module)]
    for module in found:
        module.__class__ = PatchProjection
    return len(found)


def _sees_one_patch(convolution: nn.Conv3d) -> bool:
    whole = convolution.kernel_size == convolution.stride and convolution.padding == (0, 0, 0)
    return whole and convolution.dilation == (1, 1, 1) and convolution.groups == 1


__all__ = ["PatchProjection", "multiply_patches"]
