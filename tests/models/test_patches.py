"""Patch embeddings as matrix products: the values of the convolution, under its names, wherever a family has them."""

from __future__ import annotations

import pytest
import torch
import transformers
from torch import nn

from kvmm.models import load_model
from kvmm.models.families import family_of
from kvmm.models.patches import PatchProjection, multiply_patches
from tests.models import checkpoints

WITH_PATCHES = ["qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen2_5_omni"]


@pytest.mark.parametrize("bias", [False, True])
def test_the_product_is_the_convolution(bias):
    convolution = nn.Conv3d(3, 32, (2, 14, 14), (2, 14, 14), bias=bias)
    patches = torch.randn(5, 3, 2, 14, 14, requires_grad=True)
    large = torch.randn(2, 3, 4, 28, 42)
    names, expected, expected_large = convolution.state_dict().keys(), convolution(patches), convolution(large)
    model = nn.Sequential(convolution)
    seen = []
    convolution.register_forward_hook(lambda *_: seen.append("hook"))
    assert multiply_patches(model) == 1 and multiply_patches(model) == 0
    (product,) = model
    assert type(product) is PatchProjection and product.state_dict().keys() == names
    found = product(patches)
    assert torch.allclose(found, expected, atol=1e-5) and seen == ["hook"]
    found.sum().backward()
    assert product.weight.grad is not None and patches.grad is not None
    assert torch.equal(product(large), expected_large)


@pytest.mark.parametrize(
    "options", [{"stride": 1}, {"padding": 1}, {"dilation": 2}, {"groups": 3, "in_channels": 3, "out_channels": 6}]
)
def test_other_convolutions_stay(options):
    settings = {"in_channels": 3, "out_channels": 4, "kernel_size": 2, "stride": 2} | options
    model = nn.Sequential(nn.Conv3d(**settings))
    assert multiply_patches(model) == 0 and type(model[0]) is nn.Conv3d


@pytest.mark.parametrize("family", WITH_PATCHES)
def test_loaded_models_have_them_and_answer_as_before(family, tmp_path):
    folder = checkpoints.save(family, tmp_path)
    model, _ = load_model(folder, device="cpu", dtype=torch.float32)
    (product,) = (module for module in model.modules() if isinstance(module, PatchProjection))
    assert not product.training and product.weight.device.type == "cpu"
    kind = getattr(transformers, family_of(model.config).model_class)
    plain = kind.from_pretrained(folder, dtype=torch.float32)
    assert model.state_dict().keys() == plain.state_dict().keys()
    (convolution,) = (module for module in plain.modules() if type(module) is nn.Conv3d)
    for dtype, error in ((torch.float32, 1e-5), (torch.bfloat16, 0.02)):
        patches = torch.randn(7, product.in_channels, *product.kernel_size).to(dtype)
        with torch.no_grad():
            found, exact = product.to(dtype)(patches), convolution.to(dtype)(patches)
        assert found.dtype == dtype and torch.allclose(found, exact, atol=error, rtol=0.01)
    product.float(), convolution.float()
    side = 2 * product.kernel_size[-1] * model.config.vision_config.spatial_merge_size
    grid = torch.tensor([[1, side // product.kernel_size[-1], side // product.kernel_size[-1]]])
    pixels = torch.randn(int(grid.prod()), product.weight[0].numel())
    with torch.no_grad():
        found, exact = (one.get_image_features(pixels, image_grid_thw=grid) for one in (model, plain))
    features = [torch.cat(list(one.pooler_output if hasattr(one, "pooler_output") else one)) for one in (found, exact)]
    assert torch.allclose(*features, atol=1e-4)
