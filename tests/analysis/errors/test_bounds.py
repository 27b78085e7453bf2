"""Measured errors of OScaR's keys stay below the bound of its error analysis."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from kvmm.analysis import key_error_bound
from kvmm.codecs import EncodeContext, build_codec
from kvmm.errors import KVMMError
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
