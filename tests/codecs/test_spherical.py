"""Spherical KV: what it stores, and that tables read it."""

import dataclasses

import pytest
import torch

from kvmm import KVMMError, get_policy
from kvmm.cache.pages import PageStore
from kvmm.calibration import Calibration, SiteSamples, site_name
from kvmm.codecs import EncodeContext, Packed, Site, build_codec, codec_class
from kvmm.codecs.spherical.rates import pack_indices, unpack_indices
from kvmm.modality import AUDIO, IMAGE, TEXT, VIDEO
from kvmm.policy import KVPolicy, KVSpec, check_head_dim, spec
from tests.cache.harness import Harness, layout, uniform

HIGH, MID, LOW = 0.875, 0.75, 0.34375
CONTEXT = EncodeContext(page_size=128)


def encode(x, bits, side="key", site=None, **options):
    codec = build_codec(spec("spherical", bits, **options), side, site)
    return codec, codec.encode(x, CONTEXT)


def relative_error(x, bits, side="key", site=None, **options):
    codec, packed = encode(x, bits, side, site, **options)
    return float((codec.decode(packed) - x).square().sum() / (x - x.mean(2, keepdim=True)).square().sum())


@pytest.mark.parametrize(("bits", "nbytes"), [(HIGH, 14), (MID, 12), (LOW, 5.5), (2, 32), (1, 16)])
def test_bytes_of_a_key(bits, nbytes):
    """Lengths and indices a key; the paper's low tier has 6 bytes because it rounds 12 bits of indices up to 16."""
    x = torch.randn(1, 8, 1024, 128)
    _, packed = encode(x, bits)
    keys = 8 * 1024
    codes = sum(packed[name].nbytes for name in ("codes", "radius") if name in packed.tensors)
    assert codes / keys == nbytes
    rest = sum(t.nbytes for t in packed.tensors.values()) - codes
    spans = 256 if bits < 1 else 512  # a mean, and for product codes a deviation, of every channel
    assert rest == 8 * (spans + (2 * 8 if bits < 1 else 0))


@pytest.mark.parametrize("dim", [64, 80, 96, 256])
def test_other_head_dimensions(dim):
    x = torch.randn(1, 2, 128, dim)
    for bits in (HIGH, LOW, 2):
        codec, packed = encode(x, bits)
        size = dim // packed["codes"].shape[-1]
        assert dim % size == 0 and abs(size - codec.rate.group) <= 8
        assert codec.decode(packed).shape == x.shape
    assert dim % 32 or encode(x, LOW)[1]["radius"].shape[-1] == dim // 32


@pytest.mark.parametrize("bits", range(1, 9))
def test_index_planes(bits):
    index = torch.randint(0, 2**bits, (2, 3, 64, 5), dtype=torch.uint8)
    packed = pack_indices(index, bits)
    assert packed.nbytes * 8 == index.numel() * bits
    assert torch.equal(unpack_indices(packed, bits), index)


@pytest.mark.parametrize("bits", [HIGH, MID, LOW, 2, 1])
def test_tables_equal_rebuilt_keys(bits):
    """Ablation A1: the same codes, read by table and by reconstruct-then-dot."""
    x = 3 * torch.randn(2, 2, 300, 64) + 20 * torch.randn(2, 2, 1, 64)
    query = torch.randn(2, 2, 6, 64)
    table, packed = encode(x, bits)
    rebuilt = build_codec(spec("spherical", bits, reconstruct=True), "key")
    scores = table.scores(query, packed)
    expected = rebuilt.scores(query, packed)
    assert float((scores - expected).abs().max()) < 1e-4 * float(expected.abs().max())


def test_the_length_of_the_query_matters():
    """The paper's appendix leaves ||q_j|| out of the sum; that ranks keys differently once groups of q differ."""
    g = torch.Generator().manual_seed(0)
    x = torch.randn(1, 1, 256, 64, generator=g)
    x -= x.mean(2, keepdim=True)
    query = torch.randn(1, 1, 1, 64, generator=g)
    query[..., :16] *= 8
    codec, packed = encode(x, HIGH)
    kept = codec.scores(query, packed)
    split = query.unflatten(-1, (-1, 16))
    dropped = codec.scores((split / split.norm(dim=-1, keepdim=True)).flatten(-2), packed)
    exact = query @ x.transpose(-1, -2)

    def correlation(scores):
        return float(torch.corrcoef(torch.stack((scores.flatten(), exact.flatten())))[0, 1])

    torch.testing.assert_close(kept, query @ codec.decode(packed).transpose(-1, -2), atol=1e-3, rtol=1e-3)
    assert correlation(kept) > correlation(dropped) + 0.1


@pytest.mark.parametrize("bits", [HIGH, 2, 1])
def test_values_are_mixed_by_codeword(bits):
    x = torch.randn(2, 2, 260, 64) + 2
    codec = build_codec(spec("spherical", bits), "value")
    packed = codec.encode(x, EncodeContext(page_size=64))
    p = torch.rand(2, 2, 5, packed["codes"].shape[2] * 64).softmax(-1)
    torch.testing.assert_close(codec.weighted_values(p, packed), p @ codec.decode(packed), atol=1e-4, rtol=1e-4)


def test_lengths_use_eight_bits():
    x = torch.randn(1, 2, 512, 64)
    radius = encode(x, HIGH)[1]["radius"]
    assert int(radius.max()) == 255 and int((radius > 127).sum()) > radius.numel() // 3
    assert relative_error(x, LOW, radius="projection") < 1 < relative_error(x, LOW)


# -- codebooks ----------------------------------------------------------------------------------------------------


def correlated(tokens, seed):
    """Keys of a few directions a group, as neighbouring channels of a real model have them, with a bias."""
    g = torch.Generator().manual_seed(7)
    centres = torch.randn(2, 4, 24, 16, generator=g)
    bias = 10 * torch.randn(2, 1, 64, generator=g)
    g = torch.Generator().manual_seed(seed)
    which = torch.randint(0, 24, (2, 4, tokens, 1), generator=g).expand(-1, -1, -1, 16)
    length = 0.5 + torch.rand(2, 4, tokens, 1, generator=g)
    x = centres.gather(2, which) * length + 0.2 * torch.randn(2, 4, tokens, 16, generator=g)
    return x.transpose(1, 2).flatten(2) + bias


def samples(side, x):
    mean = x.mean(1)
    centred = x - mean.unsqueeze(1)
    covariance = centred.transpose(1, 2) @ centred / x.shape[1]
    return SiteSamples(side, x, mean, covariance, torch.eye(64).expand(2, -1, -1), torch.eye(64).expand(2, -1, -1))


@pytest.fixture(scope="module")
def calibration():
    tensors = {}
    for side in ("key", "value"):
        for name, tensor in codec_class("spherical").fit(samples(side, correlated(4000, 1))).items():
            tensors[site_name("spherical", 0, side, IMAGE) + name] = tensor
    return Calibration("none", tensors)


@pytest.mark.parametrize("bits", [HIGH, MID, 2, 1])
def test_fitted_codebooks_are_better(calibration, bits):
    x = correlated(512, 2).unsqueeze(0)
    fitted = relative_error(x, bits, site=Site(0, IMAGE, calibration))
    assert fitted < 0.7 * relative_error(x, bits), (fitted, relative_error(x, bits))
    assert relative_error(x, bits, site=Site(0, VIDEO, calibration)) == fitted
    assert relative_error(x, bits, site=Site(0, AUDIO, calibration)) == relative_error(x, bits)


def test_few_vectors_fit_no_large_codebook():
    found = codec_class("spherical").fit(samples("key", correlated(300, 1)))
    assert {name.rpartition(".")[0] for name in found} == {"angle-16-6", "angle-16-4", "angle-32-3"}
    assert not codec_class("spherical").fit(samples("value", correlated(300, 1)))


def test_fitted_codebooks_of_a_batch(calibration):
    """Heads keep their own codebooks in a batch, and several spans their own statistics."""
    for side, bits in (("key", HIGH), ("key", 2), ("value", 1)):
        codec = build_codec(spec("spherical", bits), side, Site(0, IMAGE, calibration))
        store = PageStore(codec, 64)
        pieces = [torch.stack((correlated(128, s), correlated(128, s + 1))) for s in (3, 5)]
        for piece, offset in zip(pieces, (0.0, 30.0), strict=True):
            store.append(piece + offset)
        packed = store.packed
        assert packed["mean"].shape[2] == 2 and packed.page_group.tolist() == [0, 0, 1, 1]
        decoded = store.decode()
        alone = PageStore(codec, 64)
        alone.append(pieces[0][1:])
        torch.testing.assert_close(decoded[1:, :, :128], alone.decode())
        query = torch.randn(2, 2, 3, 64)
        torch.testing.assert_close(codec.scores(query, packed), query @ decoded.transpose(-1, -2), atol=1e-3, rtol=1e-3)
        p = torch.rand(2, 2, 3, 256).softmax(-1)
        torch.testing.assert_close(codec.weighted_values(p, packed), p @ decoded, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("heads", [[0], [1], [1, 0, 0]])
@pytest.mark.parametrize("bits", [HIGH, 2])
@pytest.mark.parametrize("models_heads", [1, 2])
def test_single_pages_keep_the_codebooks_of_their_heads(calibration, heads, bits, models_heads):
    """Pages taken out of their heads read, and are coded a tier lower, as in place."""
    tensors = {name: t[:models_heads] for name, t in calibration.tensors.items()}
    codec = build_codec(spec("spherical", bits), "key", Site(0, IMAGE, Calibration("none", tensors)))
    heads = torch.tensor([head % models_heads for head in heads])
    x = correlated(128, 4).unsqueeze(0)[:, :models_heads]
    packed = codec.encode(x, CONTEXT)
    pages = Packed({name: t[:, heads] for name, t in packed.tensors.items()}, 128, packed.page_group)
    query, p = torch.randn(1, models_heads, 3, 64), torch.rand(1, len(heads), 3, 128)
    decoded = codec.decode(packed)[:, heads]
    torch.testing.assert_close(codec.page_decode(pages, heads), decoded)
    torch.testing.assert_close(codec.page_scores(query, pages, heads), codec.scores(query, packed)[:, heads])
    mixed = torch.zeros(1, models_heads, 3, 64).index_add(1, heads, p @ decoded)
    torch.testing.assert_close(codec.page_weighted_values(p, pages, heads, models_heads), mixed, atol=1e-3, rtol=1e-3)
    lower = codec.lower_tier()
    tensors = lower.page_recode(decoded, pages, heads)
    whole = lower.page_recode(codec.decode(packed), packed, torch.arange(models_heads))
    assert all(torch.equal(tensors[name], whole[name][:, heads]) for name in whole)


def test_codebooks_are_not_bytes_of_the_cache(calibration):
    x = correlated(256, 2).unsqueeze(0)
    sizes = []
    for site in (Site(0, IMAGE, calibration), Site(0, AUDIO, calibration)):
        store = PageStore(build_codec(spec("spherical", HIGH), "key", site), 128)
        store.append(x)
        sizes.append(sum(store.nbytes().values()))
    assert sizes[0] == sizes[1]


# -- spans --------------------------------------------------------------------------------------------------------


def test_later_tokens_share_the_mean_while_it_fits():
    codec = build_codec(spec("spherical", HIGH), "key")
    store = PageStore(codec, 32)
    bias = 50 * torch.randn(1, 2, 1, 64)
    store.append(torch.randn(1, 2, 320, 64) + bias)
    store.append(torch.randn(1, 2, 32, 64) + bias)
    assert store.packed["mean"].shape[2] == 1 and set(store.packed.page_group.tolist()) == {0}
    store.append(torch.randn(1, 2, 32, 64) - bias)
    assert store.packed.page_group.tolist() == [0] * 11 + [1]
    decoded = store.decode()[:, :, -32:]
    assert float((decoded + bias).square().mean()) < 3
    store.truncate(2)
    assert store.packed["mean"].shape[2] == 1


def test_decoding_flushes_into_the_first_span():
    h = Harness(uniform(spec("spherical", HIGH), residual_length=32, flush_length=32))
    h.feed([layout((IMAGE, 40), (TEXT, 80))])
    for _ in range(80):
        h.feed([[TEXT]])
    assert h.compare(1) < 1e-4
    assert h.layer.parts[TEXT].key.packed["codes"].shape[2] > 2


# -- specs --------------------------------------------------------------------------------------------------------


def test_presets_keep_values():
    for name, bits in (("spherical-high", HIGH), ("spherical-mid", MID), ("spherical-low", LOW)):
        policy = get_policy(name)
        for kv in (policy.text, policy.image, policy.video, policy.audio):
            assert (kv.key.codec, kv.key.bits, kv.value.codec) == ("spherical", bits, "bf16")
    assert get_policy("spherical-high", key_bits=2).image.key.bits == 2


def test_own_product_codes():
    x = torch.randn(1, 2, 256, 64)
    _, packed = encode(x, 1.5, group=4, index_bits=6)
    assert packed["codes"].nbytes * 8 == x.numel() * 1.5
    assert relative_error(x, 3, group=2, index_bits=6) < relative_error(x, 1.5, group=4, index_bits=6) < 0.5


@pytest.mark.parametrize(
    ("kv", "says"),
    [
        (spec("spherical", 4), "0.875, 0.75, 0.34375, 2 or 1 bits, not 4"),
        (spec("spherical", 2, group=4, index_bits=6), "take 1.5 bits"),
        (spec("spherical", 2, group=4), "come together"),
        (spec("spherical", 2, group=4, index_bits=9), "index_bits must be"),
        (spec("spherical", 2, radius="max"), "radius must be norm or projection"),
    ],
)
def test_errors(kv, says):
    with pytest.raises(KVMMError, match=says):
        get_policy(KVPolicy(image=KVSpec(kv, spec("bf16"))))


def test_spec_is_a_plain_value():
    kv = spec("spherical", HIGH, radius="projection")
    assert dataclasses.replace(kv, bits=MID).option("radius") == "projection"


# -- what a policy file may say of a code --------------------------------------------------------------------------


def test_a_gain_undoes_the_shrinking_of_logits():
    """A codeword is shorter than what it stands for along any direction; the slope of the logits says by how much."""
    g = torch.Generator().manual_seed(0)
    x, query = torch.randn(1, 2, 512, 64, generator=g), torch.randn(1, 2, 64, 64, generator=g)
    exact = query @ (x - x.mean(2, keepdim=True)).transpose(-1, -2)

    def slope(**options):
        codec, packed = encode(x, HIGH, **options)
        scores = codec.scores(query, packed)
        scores = scores - query @ packed["mean"].float().transpose(-1, -2)
        return float((scores * exact).sum() / exact.square().sum())

    short = slope()
    assert 0.4 < short < 0.7
    assert slope(gain=1.25) == pytest.approx(1.25 * short, rel=1e-3)
    assert slope(gain=round(1 / short, 3)) == pytest.approx(1, rel=1e-2)
    weights = (2.0, 1.0, 1.0, 0.5)
    split = (encode(x, HIGH)[0], encode(x, HIGH, weights=weights)[0])
    packed = encode(x, HIGH)[1]
    mean = packed["mean"].float()
    plain, weighted = (codec.decode(packed) - mean for codec in split)
    expected = plain.unflatten(-1, (4, 16)) * torch.tensor(weights).unsqueeze(-1)
    torch.testing.assert_close(weighted, expected.flatten(-2), atol=1e-4, rtol=1e-4)


def test_groups_of_each_tier_are_open():
    """``m(b)``: 8 groups of 8 channels, each with a length."""
    x = torch.randn(1, 2, 128, 64)
    bits = (5 + 8) / 8
    codec, packed = encode(x, bits, group=8, index_bits=5, code="angle")
    assert packed["codes"].shape[-1] == packed["radius"].shape[-1] == 8
    assert codec.decode(packed).shape == x.shape
    with pytest.raises(KVMMError, match=r"take 1\.625 bits"):
        get_policy(KVPolicy("t", text=KVSpec(spec("spherical", 2, group=8, index_bits=5, code="angle"))))
    weighted = KVPolicy("t", text=KVSpec(spec("spherical", HIGH, weights=(1.0,))))
    with pytest.raises(KVMMError, match="has 1 factors, keys have 4 groups"):
        check_head_dim(weighted, 64)
    for options in ({"gain": 0.0}, {"gain": "1"}, {"weights": (1.0, -1.0)}):
        with pytest.raises(KVMMError, match="above 0"):
            get_policy(KVPolicy("t", text=KVSpec(spec("spherical", HIGH, **options))))
