"""Training with the weights that a packed checkpoint will hold."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from kvmm.models import packed_weights
from kvmm.models.packed_weights import code_weights, unpack_weights
from training.rounding import Rounding, rounded
from training.smollm2.folder import EMBEDDINGS

WIDTH, COARSE = 64, 0.6


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(10, WIDTH)
        self.wide, self.same, self.narrow = nn.Linear(2 * WIDTH, 3), nn.Linear(WIDTH, 5), nn.Linear(8, 3)
        self.patch = nn.Conv2d(4, 6, 4, bias=False)  # flattens to rows of WIDTH, in a group with `same`
        self.aux_head = nn.Linear(WIDTH, 2)


@pytest.mark.parametrize("finer", [0.5, 0.25])
def test_a_step_sees_the_weights_that_export_stores(monkeypatch, finer):
    monkeypatch.setattr(packed_weights, "_FINER", finer)
    torch.manual_seed(0)
    model = Small()
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    stored = unpack_weights(code_weights(before, COARSE, EMBEDDINGS))
    with Rounding(model, COARSE).applied():
        for name in ("embed_tokens.weight", "wide.weight", "same.weight", "patch.weight"):
            assert torch.equal(model.get_parameter(name), stored[name])
            assert not torch.equal(model.get_parameter(name), before[name])
        for name in ("narrow.weight", "wide.bias", "aux_head.weight"):
            assert torch.equal(model.get_parameter(name), before[name])
        x = torch.randn(5, 2 * WIDTH)
        model.wide(x).square().sum().backward()
        at_stored = 2 * (x @ stored["wide.weight"].T + before["wide.bias"]).T @ x
    assert all(torch.equal(p, before[n]) for n, p in model.named_parameters())
    torch.testing.assert_close(model.wide.weight.grad, at_stored)


def test_training_with_rounded_weights_ends_closer():
    """A regression whose answer lies between levels: adapted to rounding, the stored weights fit better."""
    torch.manual_seed(0)
    x, goal = torch.randn(512, 4) @ torch.randn(4, WIDTH), torch.randn(4, WIDTH)  # one error can make up for another
    y = x @ goal.T
    losses = []
    for adapted in (False, True):
        layer = nn.Linear(WIDTH, 4, bias=False)
        layer.weight.data.copy_(goal)
        rounding = Rounding(layer, COARSE)
        optimizer = torch.optim.Adam(layer.parameters(), lr=1e-3)
        for _ in range(200 if adapted else 0):
            optimizer.zero_grad()
            with rounding.applied():
                (layer(x) - y).square().mean().backward()
            optimizer.step()
        losses.append(float((x @ rounded([layer.weight.detach()], COARSE)[0].T - y).square().mean()))
    assert losses[1] < 0.5 * losses[0]
