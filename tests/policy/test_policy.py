"""Names, overrides and their errors."""

import dataclasses
import re
import sys

import pytest

from kvmm import KVMMError, KVPolicy, get_policy, policies
from kvmm.codecs import codec_class
from kvmm.policy import KVSpec, spec
from kvmm.policy.presets import OWN, PAPERS, PRESETS, RECOMMENDED, policy_groups, tier_of

NAMES = "bf16 kivi4 kivi2 oscar2 oscar2-g32 calibquant1 calibquant1-mean calibquant2 balanced small".split()


def test_presets():
    listed = policies()
    assert set(NAMES) <= set(listed)
    for name, line in listed.items():
        assert line.strip() and "\n" not in line
        assert get_policy(name).name == name
    assert "loses most answers" in listed["calibquant1"]


def test_tiers_hold_every_preset_once():
    groups = policy_groups()
    names = [name for group in groups for name in group.names]
    assert sorted(names) == sorted(PRESETS) and len(names) == len(set(names))
    assert list(dict.fromkeys(group.tier for group in groups)) == [RECOMMENDED, OWN, PAPERS]
    assert groups[0].names == ("balanced", "small", "bf16")
    assert all(name.startswith("rd") for name in groups[1].names)
    papers = [group for group in groups if group.tier == PAPERS]
    assert all(group.source for group in papers) and not any(group.source for group in groups[:2])
    assert len({group.source for group in papers}) == len(papers)


@pytest.mark.parametrize("name", list(PRESETS))
def test_a_tier_names_the_paper_that_the_codec_cites(name):
    tier, source = tier_of(PRESETS[name])
    codecs = {one.codec for one in PRESETS[name].all_specs() if not one.is_lossless}
    if tier == PAPERS:
        (codec,) = codecs
        text = sys.modules[codec_class(codec).__module__].__doc__
        cited = re.search(r"arXiv \d{4}\.\d{5}|ACL \d{4}", text)
        assert text.startswith(source.split(",")[0]) and (cited is None or source.endswith(cited[0]))


def test_policies_are_frozen_and_hashable():
    policy = get_policy("oscar2")
    assert hash(policy) == hash(get_policy("oscar2"))
    with pytest.raises(dataclasses.FrozenInstanceError):
        policy.residual_length = 1


def test_overrides():
    policy = get_policy("kivi2", key_bits=4, value_bits=1, group_size=64, residual_length=7, num_sink_tokens=0)
    assert (policy.image.key.bits, policy.text.value.bits, policy.audio.key.group_size) == (4, 1, 64)
    assert (policy.residual_length, policy.num_sink_tokens) == (7, 0)
    mixed = get_policy("calibquant1", key_bits=2)
    assert (mixed.image.key.bits, mixed.image.value.bits, mixed.text.key.codec) == (2, 1, "bf16")
    assert get_policy("kivi2", key_bits=None) == get_policy("kivi2")
    assert get_policy(KVPolicy("mine", image=KVSpec(spec("kivi", 2, 32), spec("kivi", 2, 32)))).name == "mine"


@pytest.mark.parametrize(
    ("name", "overrides", "says"),
    [
        ("nothing", {}, "choose one of: bf16, kivi4.* or name a .yaml file"),
        ("smal", {}, r"Unknown policy 'smal'; did you mean small\?$"),
        ("oscar", {}, r"did you mean oscar2 or oscar4-2 or oscar2-g32\?$"),
        (3, {}, "KVPolicy"),
        ("kivi2", {"keybits": 2}, "Unknown override keybits"),
        ("kivi2", {"key_bits": 3}, "1, 2, 4 or 8"),
        ("kivi2", {"group_size": 48}, "power of two"),
        ("kivi2", {"residual_length": -1}, "0 or more"),
        ("bf16", {"key_bits": 2}, "quantises nothing"),
        (KVPolicy(image=KVSpec(spec("oscar", 2, 32, norm="l3"), spec("oscar", 2, 32))), {}, "norm must be"),
        (KVPolicy(image=KVSpec(spec("kivi", 2, 32, colour=1), spec("kivi", 2, 32))), {}, "no option 'colour'"),
        (KVPolicy(image=KVSpec(spec("zip", 2), spec("zip", 2))), {}, "Unknown codec"),
        (KVPolicy(text=KVSpec(spec("calibquant", 1, calibration=(1,)), spec("bf16"))), {}, "tau1, tau2"),
    ],
)
def test_errors_are_one_clear_line(name, overrides, says):
    with pytest.raises(KVMMError, match=says) as error:
        get_policy(name, **overrides)
    assert "\n" not in str(error.value)


def test_unknown_codec_lists_the_names():
    with pytest.raises(KVMMError, match="bf16, kivi, oscar, calibquant"):
        codec_class("gzip")


def test_a_budget_takes_codecs_whose_pages_can_be_lowered():
    assert get_policy("balanced", budget=10**6).image == get_policy("oscar4-2").image
    assert get_policy("balanced").image.key.codec == "rd"
    with pytest.raises(KVMMError, match="cannot lower pages of codec rd"):
        get_policy("rd2", budget=10**6)
