"""Training with the weights that a packed checkpoint will hold."""

from __future__ import annotations

import torch
from torch import nn

from kvmm.models.packed_weights import pack_weights, unpack_weights
from training.rounding import GROUP, Rounding, rounded
from training.smollm2.folder import EMBEDDINGS


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(10, GROUP)
        self.wide, self.narrow = nn.Linear(2 * GROUP, 3), nn.Linear(GROUP // 2, 3)
        self.aux_head = nn.Linear(GROUP, 2)


def test_a_step_sees_the_weights_that_export_stores():
    torch.manual_seed(0)
    model = Small()
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    stored = unpack_weights(pack_weights(before, 4, GROUP, EMBEDDINGS))
    with Rounding(model, 4).applied():
        for name in ("embed_tokens.weight", "wide.weight"):
            assert torch.equal(model.get_parameter(name), stored[name])
            assert not torch.equal(model.get_parameter(name), before[name])
        for name in ("narrow.weight", "wide.bias", "aux_head.weight"):
            assert torch.equal(model.get_parameter(name), before[name])
        x = torch.randn(5, 2 * GROUP)
        model.wide(x).square().sum().backward()
        at_stored = 2 * (x @ stored["wide.weight"].T + before["wide.bias"]).T @ x
    assert all(torch.equal(p, before[n]) for n, p in model.named_parameters())
    torch.testing.assert_close(model.wide.weight.grad, at_stored)


def test_training_with_rounded_weights_ends_closer_in_four_bits():
    """A regression whose answer lies between levels: adapted to rounding, the stored weights fit better."""
    torch.manual_seed(0)
    x, goal = torch.randn(512, 4) @ torch.randn(4, GROUP), torch.randn(4, GROUP)  # one error can make up for another
    y = x @ goal.T
    losses = []
    for bits in (None, 4):
        layer = nn.Linear(GROUP, 4, bias=False)
        layer.weight.data.copy_(goal)
        rounding = Rounding(layer, 4)
        optimizer = torch.optim.Adam(layer.parameters(), lr=1e-3)
        for _ in range(200 if bits else 0):
            optimizer.zero_grad()
            with rounding.applied():
                (layer(x) - y).square().mean().backward()
            optimizer.step()
        losses.append(float((x @ rounded([layer.weight.detach()], 4)[0].T - y).square().mean()))
    assert losses[1] < 0.5 * losses[0]
