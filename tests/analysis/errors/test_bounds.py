"""Measured errors of OScaR's keys stay below their bound."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from kvmm.analysis import key_error_bound
from kvmm.codecs import EncodeContext, build_codec
from kvmm.errors import KVMMError
from kvmm.kernels.hadamard import rotate
from kvmm.policy import spec
from tests.cache.baselines import key_like

VECTORS = Path(__file__).parents[2] / "data" / "vectors" / "codecs_d64.safetensors"


def error(keys: torch.Tensor, bits: int, group: int, **options) -> torch.Tensor:
    """``||k' - k||`` ``[B, H, T]`` of stored keys."""
    codec = build_codec(spec("oscar", bits, group, parameters="float32", **options), "key")
    decoded = codec.decode(codec.encode(keys, EncodeContext(128)))[:, :, : keys.shape[2]]
    return (decoded - keys).norm(dim=-1)


def uneven(tokens: int = 200) -> torch.Tensor:
    """Keys whose norms differ a hundredfold, with a token of zeros."""
    keys = key_like(2, 2, tokens, 64)
    keys[:, :, ::17] *= 0.01
    keys[:, :, 5] = 0
    return keys


@pytest.mark.parametrize("scope", ["head", "token"])
@pytest.mark.parametrize("norm", ["l2", "rsqrt", "max", "mean", "none"])
@pytest.mark.parametrize(("bits", "group"), [(1, 32), (2, 32), (2, 128), (4, 128)])
def test_errors_respect_the_bound(bits, group, norm, scope):
    for keys in (uneven(), load_file(VECTORS)["k"].float()):
        for rotation in (True, False):
            options = {"norm": norm, "norm_scope": scope, "rotation": rotation}
            measured, bound = error(keys, bits, group, **options), key_error_bound(keys, bits, group, **options)
            slack = 1e-4 * keys.norm(dim=-1).amax()
            assert bool((measured <= bound.token + slack).all())
            assert float((measured / bound.token.clamp_min(1e-9)).amax()) > 0.4  # and it is no loose one


def test_elements_respect_the_step():
    keys = key_like(1, 2, 128, 64)
    codec = build_codec(spec("oscar", 2, 32, parameters="float32", rotation=False, norm="none"), "key")
    off = (codec.decode(codec.encode(keys, EncodeContext(128))) - keys).abs()
    step = key_error_bound(keys, 2, 32, rotation=False, norm="none").step.repeat_interleave(32, 2)
    assert bool((off <= step / 2 + 1e-5).all())


def test_scaling_frees_short_tokens_from_long_ones():
    keys = key_like(2, 2, 200, 64)
    keys[:, :, ::17] *= 0.01
    scaled = key_error_bound(keys, 2, 128).relative
    plain = key_error_bound(keys, 2, 128, norm="none").relative
    assert float(scaled.amax()) <= 64**0.5 / 3  # sqrt(D) / (2^b - 1)
    assert float((plain / scaled)[:, :, ::17].amin()) > 20


def test_logits_respect_the_bound():
    keys, query = uneven(), torch.randn(2, 2, 3, 64, generator=torch.Generator().manual_seed(1))
    codec = build_codec(spec("oscar", 2, 32, parameters="float32"), "key")
    decoded = codec.decode(codec.encode(keys, EncodeContext(128)))[:, :, :200]
    off = (query @ (decoded - keys).transpose(-1, -2)).abs()
    assert bool((off <= key_error_bound(keys, 2, 32).logit(query) + 1e-3).all())


@pytest.mark.parametrize(
    ("change", "words"),
    [({"keys": torch.zeros(2, 3)}, r"\[B, H, T, D\]"), ({"norm": "l1"}, "l1"), ({"norm_scope": "layer"}, "layer"),
     ({"bits": 9}, "bits"), ({"group_size": 0}, "group_size")],
)  # fmt: skip
def test_wrong_arguments_are_refused(change, words):
    with pytest.raises(KVMMError, match=words):
        key_error_bound(**{"keys": key_like(1, 1, 32, 64), "bits": 2, "group_size": 32} | change)


def test_constants_of_the_bound():
    """By hand: tokens (3, 4) and (0, 0.5) of norms 5 and 0.5 in a group of 2 bits, so steps are ranges over 3."""
    keys = torch.tensor([[[[3.0, 4.0], [0.0, 0.5]]]])
    bound = key_error_bound(keys, 2, 2, rotation=False)
    torch.testing.assert_close(bound.norm, torch.tensor([[[5.0, 0.5]]]))
    torch.testing.assert_close(bound.step, torch.tensor([[[[0.6 / 3, 0.2 / 3]]]]))  # of (.6, .8) and (0, 1)
    half = (0.2**2 + (0.2 / 3) ** 2) ** 0.5 / 2  # half a step in every channel
    torch.testing.assert_close(bound.token, torch.tensor([[[5 * half, 0.5 * half]]]))
    torch.testing.assert_close(bound.relative, torch.full((1, 1, 2), half))
    torch.testing.assert_close(bound.logit(torch.tensor([[[[0.0, 2.0]]]])), bound.token.unsqueeze(2) * 2)
    plain = key_error_bound(keys, 2, 2, rotation=False, norm="none")  # ranges 3 and 3.5, the long token's
    torch.testing.assert_close(plain.token, torch.full((1, 1, 2), (1 + (3.5 / 3) ** 2) ** 0.5 / 2))
    assert float(plain.relative[0, 0, 1] / bound.relative[0, 0, 1]) == pytest.approx(14.577, abs=1e-3)


def test_norms_over_all_heads_are_those_of_the_whole_token():
    """As in the authors' code: (3, 4) and (0, 12) in two heads have one norm of 13."""
    keys = torch.tensor([[[[3.0, 4.0]], [[0.0, 12.0]]]])
    bound = key_error_bound(keys, 2, 32, rotation=False, norm_scope="token")
    torch.testing.assert_close(bound.norm, torch.full((1, 2, 1), 13.0))
    for norm, value in (("max", 12.0), ("mean", 19 / 4)):
        scaled = key_error_bound(keys, 2, 32, rotation=False, norm=norm, norm_scope="token")
        torch.testing.assert_close(scaled.norm, torch.full((1, 2, 1), value))


def test_the_codec_scales_as_the_authors_do():
    """Every scaling of their code, over all heads and channels: what is stored is that number."""
    keys = key_like(1, 4, 128, 64)
    rotated = rotate(keys)
    scales = {
        "l2": rotated.norm(dim=(1, 3)),
        "rsqrt": rotated.square().sum((1, 3)).rsqrt().reciprocal(),
        "max": rotated.abs().amax((1, 3)),
        "mean": rotated.abs().mean((1, 3)),
    }
    for norm, expected in scales.items():
        codec = build_codec(spec("oscar", 2, 128, norm=norm, norm_scope="token", parameters="float32"), "key")
        stored = codec.encode(keys, EncodeContext(128))["norm"]
        torch.testing.assert_close(stored.flatten(1), expected, rtol=1e-4, atol=0)
