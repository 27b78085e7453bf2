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

    @classmethod
    def of(cls, convolution: nn.Conv3d) -> PatchProjection:
        """The same with the parameters of ``convolution``, not copies of them."""
        made = cls(
            convolution.in_channels,
            convolution.out_channels,
            convolution.kernel_size,
            convolution.stride,
            bias=convolution.bias is not None,
            device="meta",
        )
        made.weight, made.bias = convolution.weight, convolution.bias
        return made.train(convolution.training)

    def forward(self, patches: torch.Tensor) -> torch.Tensor:
        """``[N, C, t, p, p]`` -> ``[N, out_channels, 1, 1, 1]``; whatever is larger than the kernel is convolved."""
        if patches.shape[2:] != self.kernel_size:
            return super().forward(patches)
        return F.linear(patches.flatten(1), self.weight.flatten(1), self.bias)[..., None, None, None]


def multiply_patches(model: nn.Module) -> int:
    """Replace the convolutions of a model that see one patch each by :class:`PatchProjection`; returns how many."""
    replaced = 0
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Conv3d and _sees_one_patch(child):
                setattr(parent, name, PatchProjection.of(child))
                replaced += 1
    return replaced


def _sees_one_patch(convolution: nn.Conv3d) -> bool:
    whole = convolution.kernel_size == convolution.stride and convolution.padding == (0, 0, 0)
    return whole and convolution.dilation == (1, 1, 1) and convolution.groups == 1


__all__ = ["PatchProjection", "multiply_patches"]
