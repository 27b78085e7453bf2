"""Presets of other packages."""

from dataclasses import replace

import pytest

from kvmm import KVMMError, KVPolicy, get_policy, policies, register_codec, register_policy
from kvmm.analysis.plots.policies import POLICY_COLORS, family_color, family_of, family_symbol
from kvmm.codecs import registry
from kvmm.codecs.kivi import KIVI
from kvmm.policy import KVSpec, spec
from kvmm.policy.presets import ADDED, PAPERS, PRESETS, policy_groups, tier_of
from kvmm.ui.sidebar import policy_choices

KV = KVSpec(spec("mine", 2, 32), spec("mine", 2, 32))
POLICY = KVPolicy("mine2", "A method of mine, 2 bits.", text=KV, image=KV, video=KV, audio=KV)


@pytest.fixture(autouse=True)
def _registries():
    codecs, presets = dict(registry._CODECS), dict(PRESETS)
    register_codec(type("Mine", (KIVI,), {"name": "mine"}))
    yield
    for registered, before in ((registry._CODECS, codecs), (PRESETS, presets)):
        registered.clear()
        registered.update(before)


def test_a_registered_policy_is_a_preset():
    assert register_policy(POLICY) is POLICY
    assert policies()["mine2"] == "A method of mine, 2 bits."
    assert get_policy("mine2", key_bits=4).image.key == spec("mine", 4, 32)
    assert tier_of(POLICY) == (ADDED, "")
    last = policy_groups()[-1]
    assert (last.tier, last.names) == (ADDED, ("mine2",)) and policy_groups()[-2].tier == PAPERS
    assert ("mine2", "mine2") in policy_choices()
    register_policy(replace(POLICY))  # the same again, as when a notebook's cell runs twice
    assert list(policies()).count("mine2") == 1


def looks() -> dict[str, tuple[str, str, str]]:
    """How figures show the presets of kvmm."""
    families = {name: family_of(name) for name in PRESETS if name != "mine2"}
    return {name: (family, family_color(family), family_symbol(family)) for name, family in families.items()}


def test_its_codec_is_a_family_of_figures():
    before = looks()
    assert family_of("mine2") == "other" == before["bf16"][0] and before["balanced"][0] == "rd"
    register_policy(POLICY)
    assert family_of("mine2") == "mine" and family_color("mine") in POLICY_COLORS
    assert (family_color("mine"), family_symbol("mine")) not in {one[1:] for one in before.values()}
    assert looks() == before


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"name": "balanced"}, "There is a preset 'balanced' already"),
        ({"name": ""}, "cannot be a preset's name"),
        ({"name": "my policy"}, "cannot be a preset's name"),
        ({"name": "mine.yaml"}, "cannot be a preset's name"),
        ({"description": " "}, "needs a description of one line"),
        ({"description": "One.\nTwo."}, "needs a description of one line"),
    ],
)
def test_errors_are_one_line(changes, says):
    before = dict(PRESETS)
    with pytest.raises(KVMMError, match=says) as error:
        register_policy(replace(POLICY, **changes))
    assert "\n" not in str(error.value) and before == PRESETS
