"""The floor that unlike norms set under the errors of a group, by hand and against what codecs store."""

from __future__ import annotations

import pytest
import torch

from kvmm.analysis import norm_gap_bound
from kvmm.codecs import EncodeContext, build_codec
from kvmm.errors import KVMMError
from kvmm.kernels.hadamard import rotate
from kvmm.policy import spec
from tests.cache.baselines import key_like


def sinks(tokens: int = 256) -> torch.Tensor:
    """Keys of which every 17th is a hundredth as long."""
    keys = key_like(2, 2, tokens, 64)
    keys[:, :, ::17] *= 0.01
    return keys


def squared_errors(keys: torch.Tensor, bits: int, group: int, **options) -> torch.Tensor:
    """Mean ``||k' - k||^2`` of the tokens of each group ``[B, H, G]``, as OScaR's codec stores keys."""
    codec = build_codec(spec("oscar", bits, group, parameters="float32", **options), "key")
    decoded = codec.decode(codec.encode(keys, EncodeContext(128)))
    return (decoded - keys).square().sum(-1).unflatten(2, (-1, group)).mean(-1)


def test_constants_of_equations_9_to_11():
    """By hand: (3, 4), (1, 4) and (0, 0.5) have norms 5, 4.12 and 0.5; 2 bits have steps of a third of a range."""
    bound = norm_gap_bound(torch.tensor([[[[3.0, 4.0], [1.0, 4.0], [0.0, 0.5]]]]), 2, 3)
    torch.testing.assert_close(bound.expected, torch.tensor([[[(3**2 + 3.5**2) / 108]]]))
    torch.testing.assert_close(bound.pair, torch.tensor([[[(3**2 + 3.5**2) / 108]]]))
    torch.testing.assert_close(bound.gap, torch.tensor([[[4.5**2 / 108]]]))
    wide = norm_gap_bound(torch.tensor([[[[3.0, 4.0], [-1.0, 4.0], [0.0, 0.5]]]]), 1, 3)
    torch.testing.assert_close(wide.expected, torch.tensor([[[(4**2 + 3.5**2) / 12]]]))
    torch.testing.assert_close(wide.pair, torch.tensor([[[(3**2 + 3.5**2) / 12]]]))


@pytest.mark.parametrize("bits", [1, 2, 4])
@pytest.mark.parametrize("group", [32, 100, 128])
def test_each_step_is_below_the_one_before(bits, group):
    for keys in (sinks(200), key_like(1, 3, 77, 64)):
        bound = norm_gap_bound(keys, bits, group)
        assert bound.gap.shape == (*keys.shape[:2], -(-keys.shape[2] // group))
        assert bool((bound.gap <= bound.pair * (1 + 1e-5)).all()) and bool((bound.gap > 0).all())
        assert bool((bound.pair <= bound.expected * (1 + 1e-5)).all())


@pytest.mark.parametrize(("bits", "group"), [(1, 128), (2, 32), (2, 128), (4, 128)])
def test_stored_keys_respect_the_floor(bits, group):
    keys = sinks()
    measured = squared_errors(keys, bits, group, norm="none", rotation=False)
    bound = norm_gap_bound(keys, bits, group)
    assert bool((measured > bound.gap).all())
    # errors are nearly as even as the paper assumes; at one bit most elements lie in the middle of the one step
    assert 0.85 < float((measured / bound.expected).median()) < (1.6 if bits == 1 else 1.05)


def test_a_rotation_keeps_the_floor_and_scaling_removes_it():
    keys = sinks()
    plain, rotated = norm_gap_bound(keys, 2, 128), norm_gap_bound(rotate(keys), 2, 128)
    torch.testing.assert_close(plain.gap, rotated.gap, rtol=1e-4, atol=0)
    torch.testing.assert_close(plain.pair, rotated.pair, rtol=1e-4, atol=0)
    scaled = norm_gap_bound(rotate(keys) / keys.norm(dim=-1, keepdim=True), 2, 128)
    assert float(scaled.gap.amax()) < 1e-10 < float(scaled.pair.amin())
    short = slice(None, None, 17)
    off = [
        (codec.decode(codec.encode(keys, EncodeContext(128))) - keys).norm(dim=-1)[:, :, short]
        for codec in (build_codec(spec("oscar", 2, 128, norm=norm), "key") for norm in ("none", "l2"))
    ]
    assert float((off[0] / off[1]).median()) > 20


@pytest.mark.parametrize(
    ("keys", "bits", "group", "words"),
    [(torch.zeros(2, 3), 2, 32, r"\[B, H, T, D\]"), (torch.zeros(1, 1, 2, 4), 9, 32, "bits"),
     (torch.zeros(1, 1, 2, 4), 2, 0, "group_size")],
)  # fmt: skip
def test_what_cannot_be_bounded_is_refused(keys, bits, group, words):
    with pytest.raises(KVMMError, match=words):
        norm_gap_bound(keys, bits, group)
