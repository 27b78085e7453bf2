"""QuaRot and RotateKV with the whole zero points of their authors' code, and OScaR's token norms by the formula."""

from __future__ import annotations

import pytest
import torch

from kvmm.codecs import EncodeContext, build_codec
from kvmm.policy import spec
from tests.cache import test_matrix
from tests.cache.baselines import key_like
from tests.cache.test_baselines import EXACT, SIDES, almost_equal, decoded, sylvester


def integer_codes(x: torch.Tensor, group: int, clip: float, holds_zero: bool) -> torch.Tensor:
    """``scale * (q - zero)`` with ``zero = round(-min / scale)``, 2 bits, runs of ``group`` channels a token."""
    runs = x.unflatten(-1, (-1, group))
    low, high = runs.amin(-1, keepdim=True), runs.amax(-1, keepdim=True)
    if holds_zero:
        low, high = low.clamp_max(0), high.clamp_min(0)
    low, high = low * clip, high * clip
    scale = (high - low) / 3
    zero = torch.round(-low / scale)
    return (scale * ((runs / scale).round().add(zero).clamp(0, 3) - zero)).flatten(-2)


@SIDES
@pytest.mark.parametrize("clip", [1.0, 0.95])
def test_quarot(side, clip):
    """The authors' quantiser: ranges hold zero, are clipped towards it, and their zero point is a whole step."""
    x, rotation = key_like(1, 2, 192, 64), sylvester(64)
    expected = integer_codes(x @ rotation, 64, clip, holds_zero=True) @ rotation.T
    options = {"zero_point": "integer", "offset": "none", "clip": clip, **EXACT}
    almost_equal(decoded(spec("quarot", 2, 128, **options), side, x), expected, 60)


def test_rotatekv_keys():
    """The authors' fake quantiser behind a grouped-head rotation and an order by the channels' sums."""
    x, rotation = key_like(1, 2, 192, 64), sylvester(128)
    wide = torch.cat(list(x[0]), -1) @ rotation
    places = wide.sum(0).argsort()
    coded = torch.empty_like(wide)
    coded[:, places] = integer_codes(wide[:, places], 64, 1.0, holds_zero=False)
    expected = torch.stack((coded @ rotation.T).split(64, -1)).unsqueeze(0)
    options = {"zero_point": "integer", "order": "mean", "offset": "none", **EXACT}
    almost_equal(decoded(spec("rotatekv", 2, 64, **options), "key", x), expected, 60)


@pytest.mark.parametrize("scope", ["head", "token"])
@pytest.mark.parametrize("norm", ["l2", "rsqrt", "max", "mean"])
def test_oscar_norms(norm, scope):
    """One norm of a token over all heads is the authors' code; l2, largest and mean magnitude are its methods."""
    x = key_like(2, 3, 128, 64)
    turned = x @ sylvester(64)
    together = turned.transpose(1, 2).flatten(2).unsqueeze(1) if scope == "token" else turned
    expected = {
        "max": together.abs().amax(-1),
        "mean": together.abs().mean(-1),
    }.get(norm, together.square().sum(-1).sqrt())
    codec = build_codec(spec("oscar", 2, 32, norm=norm, norm_scope=scope, **EXACT), "key")
    packed = codec.encode(x, EncodeContext(128))
    torch.testing.assert_close(packed["norm"].flatten(2), expected)


VARIANTS = [
    spec("quarot", 2, 32, zero_point="integer"),
    spec("rotatekv", 2, 128, zero_point="integer", order="mean", offset="none"),
]


@pytest.mark.parametrize("variant", VARIANTS, ids=["quarot", "rotatekv"])
def test_options_in_the_matrix(variant):
    test_matrix.test_one_sequence(variant)
    test_matrix.test_ragged_padded_batch_and_later_turns(variant)
    test_matrix.test_degenerate_statistics(variant)
