"""rd: bits where they count, transforms that pay, levels that are shared."""

import pytest
import torch

from kvmm import KVMMError
from kvmm.cache.pages import PageStore
from kvmm.calibration import Calibration, SiteSamples, site_name
from kvmm.codecs import EncodeContext, Packed, Site, build_codec
from kvmm.codecs.common.waterfill import DISTORTION, waterfill
from kvmm.codecs.rd import clipped
from kvmm.codecs.rd.codec import RD
from kvmm.kernels.quantize import dense, fit_levels, uniform_codes
from kvmm.kernels.quantize.layout import PlaneLayout
from kvmm.modality import IMAGE, TEXT, VIDEO
from kvmm.policy import get_policy, spec
from tests.cache.harness import Harness, layout, uniform

HEADS, DIM = 2, 64


def vectors(tokens: int, seed: int = 0, decay: float = 0.85) -> torch.Tensor:
    """Correlated vectors with a few strong directions and a mean, ``[1, H, T, D]``."""
    g = torch.Generator().manual_seed(seed)
    basis = torch.linalg.qr(torch.randn(HEADS, DIM, DIM, generator=torch.Generator().manual_seed(9))).Q
    strength = decay ** torch.arange(DIM)
    x = torch.randn(1, HEADS, tokens, DIM, generator=g) * strength
    return 3 * x @ basis.transpose(-1, -2) + 2


def samples(side: str = "key", importance: torch.Tensor | None = None) -> SiteSamples:
    x = vectors(4096, seed=5)[0]
    mean = x.mean(1)
    covariance = x.transpose(1, 2) @ x / x.shape[1] - mean[:, :, None] * mean[:, None, :]
    identity = torch.eye(DIM).expand(HEADS, DIM, DIM)
    return SiteSamples(side, x, mean, covariance, identity if importance is None else importance, identity)


def calibration(sites: dict, importance: str = "gradient") -> Calibration:
    tensors = {}
    for (layer, side, modality), found in sites.items():
        for name, tensor in RD.fit(found).items():
            tensors[site_name("rd", layer, side, modality) + name] = tensor
    return Calibration("made-up", tensors, {"importance": importance})


def error(codec, x: torch.Tensor, weight: torch.Tensor | None = None) -> float:
    difference = codec.decode(codec.encode(x, EncodeContext())) - x
    if weight is None:
        return float(difference.square().mean())
    return float(torch.einsum("bhti,hij,bhtj->", difference, weight, difference) / x.numel())


def test_waterfill_is_optimal_on_small_cases():
    """Against trying every assignment."""
    from itertools import product

    g = torch.Generator().manual_seed(1)
    for _ in range(20):
        variance = torch.rand(4, generator=g) ** 3
        bits = waterfill(variance, 1.5)
        assert int(bits.sum()) <= 6
        best = min(
            sum(v * DISTORTION[b] for v, b in zip(variance.tolist(), chosen, strict=True))
            for chosen in product((0, 1, 2, 4, 6), repeat=4)
            if sum(chosen) <= 6
        )
        mine = sum(v * DISTORTION[b] for v, b in zip(variance.tolist(), bits.tolist(), strict=True))
        assert mine <= 1.35 * best  # greedy steps of unequal width may miss by the last one
    assert waterfill(torch.tensor([1.0, 1e-9]), 1.0).tolist() == [2, 0]
    assert waterfill(torch.ones(8), 1.5).float().mean() == 1.5
    assert waterfill(torch.ones(3), 8).tolist() == [8, 8, 8]


def test_levels_are_least_squares():
    """No other scale and offset fits the same codes better; one bit gives the conditional means."""
    x = torch.randn(3, 500, 5, generator=torch.Generator().manual_seed(2)) * torch.tensor([1.0, 2, 3, 4, 0])
    bits = torch.tensor([4, 2, 1, 0, 2])
    scale, zero_point = fit_levels(x, None, bits, refits=60)
    codes = uniform_codes(x, scale, zero_point, (2**bits - 1).float())
    for channel in (0, 1, 2):
        c, y = codes[0, :, channel], x[0, :, channel]
        slope, intercept = torch.linalg.lstsq(torch.stack((c, torch.ones_like(c)), 1), y[:, None]).solution[:, 0]
        torch.testing.assert_close(scale[0, 0, channel], slope, rtol=0.02, atol=0)
        torch.testing.assert_close(zero_point[0, 0, channel], intercept, rtol=0.05, atol=0.01)
    low = codes[0, :, 2] == 0
    torch.testing.assert_close(zero_point[0, 0, 2], x[0, low, 2].mean(), rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(zero_point[..., 3], x[..., 3].mean(1, keepdim=True))
    assert torch.isfinite(scale).all() and (codes[..., 3:] == 0).all()
    weight = torch.ones(3, 500, 1)
    weight[:, 400:] = 0
    spoiled = x.clone()
    spoiled[:, 400:] = 1e4
    torch.testing.assert_close(fit_levels(spoiled, weight, bits), fit_levels(x[:, :400], None, bits))


@pytest.mark.parametrize("dim", [-2, -1])
def test_layout_round_trip(dim):
    bits = torch.tensor([8, 6, 6, 4, 2, 2, 2, 1, 1, 0, 0])
    plan = PlaneLayout(bits)
    assert plan.coded == 9
    codes = torch.stack([torch.randint(0, 2 ** int(b), (1, 2, 3, 32)) for b in bits[:9]], -1).to(torch.uint8)
    tensors = plan.pack(codes, dim)
    assert sum(t.numel() for t in tensors.values()) * 8 == 6 * 32 * int(bits.sum())  # no bit is wasted
    unpacked = plan.unpack(tensors, dim)
    assert torch.equal(unpacked if dim == -2 else unpacked.transpose(-1, -2), codes.float())


def test_transform_beats_rotation_and_offline_beats_none():
    x = vectors(512)
    fitted = calibration({(0, "key", IMAGE): samples()})
    site = Site(0, IMAGE, fitted)
    for bits in (1, 2):
        offline = error(build_codec(spec("rd", bits, pool="site"), "key", site), x)
        hadamard = error(build_codec(spec("rd", bits, fit="none"), "key"), x)
        identity = error(build_codec(spec("rd", bits, fit="none", rotation="identity"), "key"), x)
        prompt = error(build_codec(spec("rd", bits, fit="prompt"), "key"), x)
        assert offline < 0.35 * min(hadamard, identity)
        assert prompt < 0.35 * min(hadamard, identity)


def test_importance_moves_the_error_where_it_does_not_count():
    g = torch.Generator().manual_seed(3)
    direction = torch.randn(HEADS, DIM, 4, generator=g)
    importance = direction @ direction.transpose(-1, -2)
    x = vectors(512)
    plain = build_codec(spec("rd", 1, pool="site"), "key", Site(0, IMAGE, calibration({(0, "key", IMAGE): samples()})))
    aware = calibration({(0, "key", IMAGE): samples(importance=importance)})
    weighted = build_codec(spec("rd", 1, pool="site"), "key", Site(0, IMAGE, aware))
    assert error(weighted, x, importance) < 0.5 * error(plain, x, importance)
    assert error(weighted, x) > error(plain, x)


def test_bits_go_to_the_layer_that_counts():
    strong, weak = (samples(importance=torch.eye(DIM).expand(HEADS, DIM, DIM) * s) for s in (1.0, 1e-4))
    fitted = calibration({(0, "key", IMAGE): strong, (1, "key", IMAGE): weak, (0, "value", IMAGE): weak})
    same = spec("rd", 1.5)

    def bits(layer: int, side: str, **options) -> float:
        codec = build_codec(spec("rd", 1.5, **options), side, Site(layer, IMAGE, fitted, same))
        return float(codec.layout(DIM, codec.transform(DIM, torch.device("cpu"))).bits.float().mean())

    pooled = [bits(0, "key"), bits(1, "key"), bits(0, "value")]
    assert sum(pooled) / 3 == pytest.approx(1.5, abs=0.05)
    assert pooled[0] > 3 > 1 > pooled[1]
    assert bits(1, "key", pool="site") == pytest.approx(1.5, abs=0.05)
    # keys and values of different averages cannot share a budget
    assert bits(0, "value", pool="side") == pytest.approx(1.5, abs=0.05)
    # costs that are not in one unit are not compared
    other = Calibration("x", fitted.tensors, {"importance": "query"})
    codec = build_codec(same, "key", Site(1, IMAGE, other, same))
    assert float(codec.layout(DIM, codec.transform(DIM, torch.device("cpu"))).bits.float().mean()) == pytest.approx(1.5)


def test_video_takes_the_fit_of_images_and_other_modalities_a_rotation():
    fitted = calibration({(0, "key", IMAGE): samples()})
    cpu = torch.device("cpu")
    assert build_codec(spec("rd", 2), "key", Site(0, VIDEO, fitted)).transform(DIM, cpu).deviation is not None
    assert build_codec(spec("rd", 2), "key", Site(0, TEXT, fitted)).transform(DIM, cpu).deviation is None
    with pytest.raises(KVMMError, match="calibrate"):
        build_codec(spec("rd", 2, fit="offline"), "key", Site(0, TEXT, fitted)).transform(DIM, cpu)


def test_short_spans_share_levels():
    """What is flushed while decoding comes in small pages: levels of its own would outweigh its codes."""
    x = vectors(512)
    store = PageStore(build_codec(spec("rd", 2), "key"), 32)
    store.append(x[:, :, :256])
    once = store.nbytes()["scale"]
    store.append(x[:, :, 256:288])
    store.append(x[:, :, 288:320])
    assert store.packed["scale"].shape[2] == 1 and store.packed.page_group.tolist() == [0] * 10
    store.append(x[:, :, 320:512])
    assert store.packed["scale"].shape[2] == 2 and store.packed.page_group.tolist() == [0] * 10 + [1] * 6
    assert float((store.decode() - x).square().mean()) < 0.2 * float(x.var())
    assert store.nbytes()["scale"] > once
    fitted = calibration({(0, "key", IMAGE): samples()})
    store = PageStore(build_codec(spec("rd", 2), "key", Site(0, IMAGE, fitted)), 32)
    store.append(x[:, :, :64])
    assert store.packed["scale"].shape[2] == 0  # the calibrated levels, which cost the cache nothing
    assert float((store.decode() - x[:, :, :64]).square().mean()) < 0.1 * float(x.var())


@pytest.mark.parametrize(("bits", "norm"), [(1.5, "none"), (1.5, "l2"), (0.01, "none"), (0.02, "l2")])
def test_calibrated_attention_equals_its_decode(bits, norm):
    """With a hundredth of a bit some sites have no codes at all, only their mean."""
    kv = spec("rd", bits, norm=norm)
    h = Harness(uniform(kv), heads=HEADS, dim=DIM)
    fitted = calibration({(0, side, m): samples(side) for side in ("key", "value") for m in (TEXT, IMAGE)})
    for modality in h.layer.codecs:
        h.layer.codecs[modality] = tuple(
            build_codec(kv, side, Site(0, modality, fitted, kv)) for side in ("key", "value")
        )
    h.feed([layout((TEXT, 40), (IMAGE, 300), (TEXT, 90))], vectors(430), vectors(430, 1))
    for _ in range(40):
        h.feed([[TEXT]])
    assert h.compare(1) < 1e-4
    h.feed([layout((IMAGE, 40), (TEXT, 6))])
    assert h.compare(46) < 1e-4


def test_norms_are_used_where_they_pay():
    """Token norms that vary a hundredfold with one direction: dividing them out must win, and else must not."""
    plain = samples()
    assert not bool(RD.fit(plain)["norm"])
    g = torch.Generator().manual_seed(4)
    x = plain.vectors - plain.mean[:, None]
    x = x / x.norm(dim=-1, keepdim=True) * 10 ** (2 * torch.rand(*x.shape[:2], 1, generator=g))
    mean = x.mean(1)
    covariance = x.transpose(1, 2) @ x / x.shape[1] - mean[:, :, None] * mean[:, None, :]
    uneven = SiteSamples("key", x, mean, covariance, plain.importance, plain.query_moment)
    assert bool(RD.fit(uneven)["norm"])


def test_measured_bits_of_a_page_are_near_the_average():
    codec = build_codec(spec("rd", 2, fit="none"), "key")
    packed: Packed = codec.encode(torch.randn(1, 8, 3328, 128), EncodeContext())
    stored = sum(t.nbytes for t in packed.tensors.values()) * 8 / (8 * 3328 * 128)
    assert stored == pytest.approx(2.01, abs=0.01)


@pytest.mark.parametrize(
    ("bits", "options", "says"),
    [(0, {}, "more than 0"), (9, {}, "at most 8"), (2, {"fit": "magic"}, "fit must be"), (2, {"x": 1}, "no option")],
)
def test_errors(bits, options, says):
    with pytest.raises(KVMMError, match=says):
        build_codec(spec("rd", bits, **options), "key")
    with pytest.raises(KVMMError, match="no group_size"):
        build_codec(spec("rd", 2, 32), "key")


def test_presets_and_fractional_overrides():
    assert get_policy("rd2.25").image.key.bits == 2.25
    changed = get_policy("rd2", key_bits=1.75)
    assert (changed.image.key.bits, changed.image.value.bits) == (1.75, 2)


def test_outliers_stay_in_full_precision():
    """The tokens with the smallest keys come back as they were, keys and values, and cost the others nothing."""
    generator = torch.Generator().manual_seed(0)
    key, value = (torch.randn(2, 3, 256, 64, generator=generator) for _ in range(2))
    sinks = torch.tensor([7, 130, 131, 200])
    key[:, :, sinks] = 0.05 * torch.randn(64, generator=generator)  # small, and the same everywhere
    value[:, :, sinks] = 40.0  # far outside of the others' levels
    others = torch.ones(256, dtype=torch.bool).index_fill_(0, sinks, False)
    decoded = {}
    for outliers in (0, 2):
        for side, x in (("key", key), ("value", value)):
            codec = build_codec(spec("rd", 2, outliers=outliers), side)
            packed = codec.encode(x, EncodeContext(128, keys=key, exact_dtype=torch.float32))
            decoded[outliers, side] = codec.decode(packed)
            if outliers:
                assert packed["outlier_slot"].tolist() == [[sinks.tolist()] * 3] * 2
    for side, x in (("key", key), ("value", value)):
        torch.testing.assert_close(decoded[2, side][:, :, sinks], x[:, :, sinks])
        assert float((decoded[0, side] - x)[:, :, sinks].abs().mean()) > 0.01
        errors = [float((decoded[n, side] - x)[:, :, others].square().mean()) for n in (0, 2)]
        assert errors[1] <= 1.01 * errors[0]


def test_outliers_of_a_fit_are_what_its_levels_miss():
    """Not the smallest keys, but those beyond the levels of a channel; keys and values of the same tokens."""
    found = calibration({(0, side, TEXT): samples(side) for side in ("key", "value")})
    site = Site(0, TEXT, found)
    key, value = vectors(512), vectors(512, seed=1)
    strongest = torch.linalg.qr(torch.randn(HEADS, DIM, DIM, generator=torch.Generator().manual_seed(9))).Q[..., 0]
    far = torch.tensor([5, 300])
    key[0, :, far] += 24 * strongest[:, None]  # eight deviations
    key[:, :, 100] = 0.02
    valid = torch.ones(1, 512, dtype=torch.bool)
    key[:, :, 511], valid[:, 511] = 1e3, False  # fill counts for nothing
    for side, x in (("key", key), ("value", value)):
        codec = RD(spec("rd", 3, outliers=0.5), side, site)
        packed = codec.encode(x, EncodeContext(128, valid, keys=key, exact_dtype=torch.float32))
        assert packed["outlier_slot"].tolist() == [[far.tolist()] * HEADS]
        torch.testing.assert_close(codec.decode(packed)[:, :, far], x[:, :, far])
    codec = RD(spec("rd", 3), "key", site)
    missed = (codec.decode(codec.encode(key, EncodeContext(128, valid))) - key)[0, :, far]
    assert float((missed * strongest[:, None]).sum(-1).abs().min()) > 6


def test_outliers_of_a_site_that_gets_no_bits():
    """A calibration may leave a layer's keys their means alone: what is kept is all that tells its tokens apart."""
    found = calibration({(0, side, TEXT): samples(side) for side in ("key", "value")})
    key, query = vectors(512), vectors(512, seed=3)[:, :, :5]
    codec = RD(spec("rd", 0.001, outliers=1), "key", Site(0, TEXT, found))
    assert codec.layout(DIM, codec.transform(DIM, key.device)).coded == 0
    packed = codec.encode(key, EncodeContext(128, keys=key, exact_dtype=torch.float32))
    expected = query @ codec.decode(packed).transpose(-1, -2)
    torch.testing.assert_close(codec.scores(codec.transform_query(query), packed), expected, atol=1e-4, rtol=1e-4)


def test_outliers_are_looked_for_once(monkeypatch):
    """In keys; their values keep the same tokens, and values of other keys are looked at anew."""
    found = calibration({(0, side, TEXT): samples(side) for side in ("key", "value")})
    looked = []
    original = clipped.find_clipped
    monkeypatch.setattr(clipped, "find_clipped", lambda keys, *rest: looked.append(keys) or original(keys, *rest))
    keys = [vectors(512, seed=seed) for seed in (0, 1)]
    coders = {side: RD(spec("rd", 3, outliers=1), side, Site(0, TEXT, found)) for side in ("key", "value")}

    def slots(side, key):
        x = key if side == "key" else vectors(512, seed=2)
        return coders[side].encode(x, EncodeContext(128, keys=key, exact_dtype=torch.float32))["outlier_slot"]

    first = slots("key", keys[0])
    assert torch.equal(slots("value", keys[0]), first) and len(looked) == 1
    assert torch.equal(slots("value", keys[0]), first) and len(looked) == 2  # alone, as after a file was read
    slots("key", keys[0])
    assert not torch.equal(slots("value", keys[1]), first) and looked[-1] is keys[1]


@pytest.mark.parametrize("outliers", [0, 1])
def test_levels_of_a_long_span_are_those_of_a_sample(outliers, monkeypatch):
    """A quarter of 4096 tokens tells nearly the same levels."""
    site = Site(0, TEXT, calibration({(0, side, TEXT): samples(side) for side in ("key", "value")}))
    x = vectors(4096, seed=3)
    errors = []
    for sampled in (8192, 1024):
        monkeypatch.setattr(dense, "SAMPLED", sampled)
        errors.append(error(RD(spec("rd", 2, outliers=outliers), "key", site), x))
    assert errors[1] != errors[0] and errors[1] < 1.01 * errors[0]


@pytest.mark.parametrize("outliers", [-1, 64.5, float("nan"), True, "2"])
def test_outliers_are_a_small_number(outliers):
    with pytest.raises(KVMMError, match="outliers must be a number of tokens in every 128"):
        build_codec(spec("rd", 2, outliers=outliers), "key")
