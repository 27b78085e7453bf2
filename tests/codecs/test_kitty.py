"""Kitty: which channels are boosted, what is stored, and what it buys."""

from __future__ import annotations

import pytest
import torch

from kvmm import KVMMCache
from kvmm.codecs import EncodeContext, Site, build_codec
from kvmm.codecs.base import StoreShape
from kvmm.errors import KVMMError
from kvmm.kernels.quantize import unpack_planes
from kvmm.modality import IMAGE, TEXT
from kvmm.policy import KVPolicy, KVSpec, get_policy, spec
from tests.cache.baselines import bits_at_3328_tokens, key_like, relative_error
from tests.cache.harness import Harness, layout, uniform
from tests.tiny_models import build

EXACT = {"parameters": "float32"}


def kitty_by_hand(key: torch.Tensor, group: int, share: float, score: str = "magnitude") -> torch.Tensor:
    """The method in loops: min/max codes a channel of every run of ``group`` tokens, 16 levels if its score is large:
    the mean of ``|k|``, or the range."""
    decoded = torch.empty_like(key)
    batch, heads, tokens, dim = key.shape
    for b in range(batch):
        for h in range(heads):
            for start in range(0, tokens, group):
                x = key[b, h, start : start + group]
                rank = x.abs().mean(0) if score == "magnitude" else x.amax(0) - x.amin(0)
                strong = set(rank.sort(descending=True).indices[: round(share * dim)].tolist())
                for d in range(dim):
                    low, high = x[:, d].min(), x[:, d].max()
                    step = (high - low) / (15 if d in strong else 3)
                    decoded[b, h, start : start + group, d] = ((x[:, d] - low) / step).round() * step + low
    return decoded


@pytest.mark.parametrize("page_size", [32, 64, 128])
@pytest.mark.parametrize("group", [32, 64, 128])
@pytest.mark.parametrize(("share", "dim"), [(0.125, 16), (0.25, 80), (0.5, 16)])
def test_reconstruction_is_the_method_s(page_size, group, share, dim):
    key = key_like(1, 2, 256, dim)
    codec = build_codec(spec("kitty", 2, group, boost=share, **EXACT), "key")
    packed = codec.encode(key, EncodeContext(page_size))
    torch.testing.assert_close(codec.decode(packed), kitty_by_hand(key, group, share), atol=1e-4, rtol=1e-5)
    query = torch.randn(1, 2, 3, dim, generator=torch.Generator().manual_seed(1))
    expected = query @ codec.decode(packed).transpose(-1, -2)
    torch.testing.assert_close(codec.scores(query, packed), expected, atol=1e-3, rtol=1e-4)


@pytest.mark.parametrize("page_size", [32, 128])
@pytest.mark.parametrize("group", [32, 64, 256, None])
@pytest.mark.parametrize("rows", [1, 3, 130, 300])
def test_no_boosted_channel_is_plain_two_bit_codes(page_size, group, rows):
    """Also a share that comes to less than half a channel; one query and several, fewer and more than a page holds."""
    key = key_like(1, 2, 256, 16)
    query = torch.randn(1, 2, rows, 16, generator=torch.Generator().manual_seed(1))
    kivi = build_codec(spec("kivi", 2, group, **EXACT), "key")
    expected = kivi.encode(key, EncodeContext(page_size))
    for boost in (0, 0.0, 0.03):
        codec = build_codec(spec("kitty", 2, group, boost=boost, **EXACT), "key")
        packed = codec.encode(key, EncodeContext(page_size))
        assert set(packed.tensors) == {"codes", "scale", "zero_point"}
        assert all(torch.equal(packed[name], expected[name]) for name in packed.tensors)
        assert set(codec.fields(StoreShape(1, 2, 256 // page_size, page_size, 16, torch.float32), {})) >= {"codes"}
        torch.testing.assert_close(codec.decode(packed), kitty_by_hand(key, group or 256, 0), atol=1e-4, rtol=1e-5)
        scores = query @ codec.decode(packed).transpose(-1, -2)
        torch.testing.assert_close(codec.scores(query, packed), scores, atol=1e-3, rtol=1e-4)
        assert len(codec.packed_format(packed).planes) == 1


@pytest.mark.parametrize("boost", [0, 0.125, 1])
@pytest.mark.parametrize("score", ["magnitude", "range", "random"])
def test_several_queries_read_the_pages(boost, score):
    """One query and several through the layer, with the backend that its device has, against SDPA of the decode."""
    kv = KVSpec(spec("kitty", 2, 128, boost=boost, score=score), spec("kitty", 2, 128))
    h = Harness(KVPolicy("test", text=kv, image=kv, residual_length=16, flush_length=32))
    h.feed([layout((TEXT, 5), (IMAGE, 200), (TEXT, 150))])
    h.feed([[TEXT]])
    assert h.compare(1) < 1e-4
    h.feed([[TEXT] * 9])
    assert h.compare(9) < 1e-4


def test_range_ranks_channels_as_by_hand():
    key = key_like(1, 2, 256, 64)
    codec = build_codec(spec("kitty", 2, 128, boost=0.125, score="range", **EXACT), "key")
    decoded = codec.decode(codec.encode(key, EncodeContext(128)))
    torch.testing.assert_close(decoded, kitty_by_hand(key, 128, 0.125, "range"), atol=1e-4, rtol=1e-5)


def test_random_channels_do_not_depend_on_keys():
    """Other channels a layer and head, the same for every page, whenever it is packed; farther than either score."""
    key = key_like(1, 2, 512, 64)

    def chosen(x: torch.Tensor, layer: int = 0) -> torch.Tensor:
        site = Site(layer=layer)
        packed = build_codec(spec("kitty", 2, 128, boost=0.25, score="random"), "key", site).encode(
            x, EncodeContext(128)
        )
        return packed["boosted"]

    first = chosen(key)
    assert first.shape == (1, 2, 4, 16)
    assert torch.equal(first, first[:, :, :1].expand_as(first))
    assert torch.equal(chosen(-3 * key[:, :, 128:256]), first[:, :, 1:2])
    assert not torch.equal(first[:, 0], first[:, 1]) and not torch.equal(first, chosen(key, 1))
    counts = torch.zeros(64)
    for layer in range(200):
        counts += torch.nn.functional.one_hot(chosen(key[:, :1], layer)[0, 0, 0].long(), 64).sum(0)
    assert counts.min() > 20 and counts.max() < 85  # 50 each on average
    error = {s: relative_error(spec("kitty", 2, 128, score=s), key) for s in ("magnitude", "range", "random")}
    assert error["random"] > max(error["magnitude"], error["range"])


def test_high_digits_are_stored_for_boosted_channels_only():
    key = key_like(1, 2, 256, 64)
    packed = build_codec(spec("kitty", 2, 128, boost=0.125), "key").encode(key, EncodeContext(128))
    assert {n: (tuple(t.shape), t.dtype) for n, t in packed.tensors.items()} == {
        "codes": ((1, 2, 2, 32, 64), torch.uint8),
        "high_codes": ((1, 2, 2, 32, 8), torch.uint8),
        "boosted": ((1, 2, 2, 8), torch.uint8),
        "scale": ((1, 2, 2, 64), torch.float16),
        "zero_point": ((1, 2, 2, 64), torch.float16),
    }
    high = unpack_planes(packed["high_codes"], 2, -2)
    assert set(high.unique().tolist()) == {0, 1, 2, 3}
    strongest = key.unflatten(2, (2, 128)).abs().mean(3).topk(8).indices.sort().values
    assert torch.equal(packed["boosted"].long(), strongest)


def test_scores_of_channels():
    """Each score finds what the others miss: a large constant channel, a wide one, a wide one that queries read."""
    generator = torch.Generator().manual_seed(0)
    key = 0.1 * torch.randn(1, 1, 128, 16, generator=generator)
    key[..., 3] += 50.0  # large, but constant
    key[..., 7] *= 40.0  # wide
    key[..., 11] *= 30.0  # nearly as wide, and read by queries
    moment = torch.eye(16).expand(1, 1, 16, 16).clone()
    moment[..., 11, 11] = 9.0

    def boosted(score: str, query_moment: torch.Tensor | None = None) -> list[int]:
        codec = build_codec(spec("kitty", 2, 128, boost=1 / 16, score=score), "key")
        assert codec.needs_queries == (score == "query_range")
        packed = codec.encode(key, EncodeContext(128, query_moment=query_moment))
        return packed["boosted"].flatten().tolist()

    assert boosted("magnitude") == [3]
    assert boosted("range") == [7]
    assert boosted("query_range", moment) == [11]
    assert boosted("query_range") == [7]  # no queries seen: the range


def test_fill_and_padding_do_not_rank_channels():
    """33 real tokens and a fill whose copies would make another channel the strongest."""
    key = torch.ones(2, 1, 33, 16)
    key[..., 5] = 2.0
    key[0, :, -1, 9] = 30.0  # copied 31 times by the fill: a mean of 15 over the page, of 1.9 over its tokens
    key[1, :, 20:, 9] = 30.0  # no tokens there
    valid = torch.ones(2, 33, dtype=torch.bool)
    valid[1, 20:] = False
    codec = build_codec(spec("kitty", 2, None, boost=1 / 16), "key")
    assert codec.encode(key, EncodeContext(64, valid))["boosted"].flatten().tolist() == [5, 5]


def test_queries_reach_the_score():
    """From the model's attention to the choice of channels, through the cache."""
    policy = uniform(spec("kitty", 2, 128, boost=1 / 64, score="query_range"), num_sink_tokens=0)
    h = Harness(policy, heads=1, ratio=2)
    keys, _ = h.feed([[IMAGE] * 128])
    assert keys.layer is h.layer  # the layer asks for the queries
    query = torch.zeros(1, 2, 128, 64)
    query[..., 42] = 1.0
    h.layer.observe(query)
    h.cache.pack()
    assert h.layer.parts[IMAGE].key.packed["boosted"].flatten().tolist() == [42]


def test_more_boosted_channels_are_closer_and_all_beat_kivi():
    key = key_like(1, 2, 512, 128)
    kivi = relative_error(spec("kivi", 2, 128), key)
    kitty = relative_error(spec("kitty", 2, 128, boost=0.125), key)
    pro = relative_error(spec("kitty", 2, 128, boost=0.25), key)
    assert pro < 0.8 * kitty
    assert kitty < 0.8 * kivi


def test_measured_bits():
    """The paper counts 2.41 and 2.53 with an index byte for every channel; here only boosted ones have one."""
    for name, share in (("kitty", 0.125), ("kitty-pro", 0.25), ("kitty-range", 0.125)):
        kv = get_policy(name).image
        key = 2 + 2 * share + 32 / 128 + 8 * share / 128
        value = 2 + 32 / 128
        measured = bits_at_3328_tokens(kv)
        assert measured == pytest.approx((key + value) / 2, abs=1e-3)
        assert measured < {0.125: 2.41, 0.25: 2.53}[share]


def test_presets_keep_sinks_and_a_residual():
    for name in ("kitty", "kitty-pro", "kitty-range"):
        h = Harness(get_policy(name))
        h.feed([layout((TEXT, 400), (IMAGE, 128))])
        h.cache.pack()
        assert h.cache.table.num_sinks == 32
        assert h.layer.num_dense >= 32 + 128
        assert h.layer.parts[IMAGE].key.packed["codes"].shape[2] == 1


@pytest.mark.parametrize("boost", [-0.1, 1.5, "half"])
def test_a_wrong_share_is_refused(boost):
    with pytest.raises(KVMMError, match="boost"):
        build_codec(spec("kitty", 2, 128, boost=boost), "key")


def test_wrong_bits_are_refused():
    with pytest.raises(KVMMError, match="2 bits, not 4"):
        get_policy("kitty", key_bits=4)


def test_queries_of_a_model_choose_channels():
    """The prompt's own queries weigh the channels, and what was collected of them is gone after packing."""
    model = build("llama")
    ids = torch.randint(3, 110, (1, 200), generator=torch.Generator().manual_seed(0))
    chosen = {}
    for score in ("range", "query_range"):
        kv = KVSpec(spec("kitty", 2, 128, boost=0.25, score=score), spec("kitty", 2, 128))
        cache = KVMMCache.for_model(model, KVPolicy("test", text=kv, residual_length=0, flush_length=32))
        with torch.no_grad():
            model(ids, past_key_values=cache)
        assert all((layer.queries.moment is not None) == (score == "query_range") for layer in cache.layers)
        cache.pack()
        assert all(layer.queries.moment is None for layer in cache.layers)
        chosen[score] = [layer.parts[TEXT].key.packed["boosted"] for layer in cache.layers]
    assert any(not torch.equal(*pair) for pair in zip(*chosen.values(), strict=True))
