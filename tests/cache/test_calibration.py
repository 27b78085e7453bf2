"""CalibQuant's logit calibration: the map of section 3.3, and its guard."""

import torch

from kvmm.cache.token_table import MASKED
from kvmm.codecs import build_codec
from kvmm.modality import IMAGE, TEXT
from kvmm.policy import KVPolicy, KVSpec, spec
from tests.cache.harness import Harness, layout


def codec(tau):
    return build_codec(spec("calibquant", 1, calibration=tau), "key")


def test_ends_of_the_range_move_by_tau():
    scores = torch.tensor([[[[-2.0, 0.0, 4.0, 99.0]]]])
    bias = torch.tensor([[[[0.0, 0.0, 0.0, MASKED]]]])  # the last slot holds no token
    mapped = codec((1.0, 3.0)).calibrate_logits(scores, bias)
    torch.testing.assert_close(mapped[..., :3], torch.tensor([[[[-3.0, -3.0 + 4 / 3, 1.0]]]]))


def test_ranking_is_never_turned_around():
    scores = torch.randn(2, 3, 4, 50) * torch.tensor([0.1, 0.5, 1.0, 10.0])[:, None]
    mapped = codec((0.0, 3.0)).calibrate_logits(scores, None)
    order = scores.argsort(-1)
    assert (mapped.gather(-1, order).diff(dim=-1) >= 0).all()
    narrow = scores.amax(-1) - scores.amin(-1) <= 3
    assert narrow.any() and not narrow.all()
    assert torch.equal(mapped[narrow], scores[narrow])


def test_only_the_calibrated_span_changes():
    """Attention with calibration equals softmax over the scores with the image's slots mapped by hand."""
    kv = KVSpec(spec("calibquant", 1, calibration=(0.0, 1.0)), spec("calibquant", 1))
    h = Harness(KVPolicy(image=kv, residual_length=64, flush_length=32), ratio=1)
    h.feed([layout((TEXT, 8), (IMAGE, 128), (TEXT, 9))])
    h.feed([[TEXT]])
    query = 3 * h.random(1, 2, 1, 64)
    key, value = h.layer.dense()
    scores = query @ key.transpose(-1, -2) / 8
    image = scores[..., 8:136]
    low, high = image.amin(-1, keepdim=True), image.amax(-1, keepdim=True)
    scores[..., 8:136] = (image - low) / (high - low) * (high - 1.0 - low) + low
    torch.testing.assert_close(h.layer.attend(query, None, 1 / 8), scores.softmax(-1) @ value, atol=1e-4, rtol=1e-4)
