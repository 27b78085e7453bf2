"""The sidebar: presets in three tiers with their cost, and the tokens that stay exact."""

from __future__ import annotations

import re

import pytest

from kvmm.errors import KVMMError
from kvmm.models import Sampling
from kvmm.models.sampling import MAX_STOP, MAX_STOP_CHARACTERS
from kvmm.policy import get_policy, policies
from kvmm.policy.costs import plain_cost, short_cost
from kvmm.policy.presets import policy_groups
from kvmm.ui.parts.sidebar import (
    AS_POLICY,
    followed,
    policy_choices,
    policy_headings_css,
    policy_html,
    settings_of,
    stop_lines,
    stop_texts,
)
from kvmm.ui.settings import ALTERNATIVES

sync_api = pytest.importorskip("playwright.sync_api")
expect = sync_api.expect

LAYOUTS = [
    ("1280", {}),
    ("phone-390", {"viewport": {"width": 390, "height": 844}, "is_mobile": True, "has_touch": True}),
]


def settings(sinks, residual, policy="balanced"):
    return settings_of(None, policy, AS_POLICY, AS_POLICY, AS_POLICY, sinks, residual, False)


def test_numbers_of_the_policy_are_left_to_the_policy():
    preset = get_policy("balanced")
    assert settings(preset.num_sink_tokens, preset.residual_length).label == "balanced"
    assert settings(None, None).label == "balanced"
    assert settings(8, preset.residual_length).label == "balanced · 8 sinks"
    assert settings(0, 0).kv_policy().num_sink_tokens == 0  # a typed zero is a zero


def test_the_numbers_follow_the_policy_and_keep_what_was_typed():
    kitty, balanced = get_policy("kitty"), get_policy("balanced")
    assert followed("kitty", "balanced", balanced.num_sink_tokens, balanced.residual_length) == (
        kitty.num_sink_tokens,
        kitty.residual_length,
    )
    assert followed("kitty", "balanced", 8, balanced.residual_length) == (8, kitty.residual_length)
    assert followed("kitty", "balanced", 0, None) == (0, kitty.residual_length)
    # opened with a conversation: the numbers are already those of the policy that is named
    assert followed("kitty", "kitty", balanced.num_sink_tokens, 1) == (balanced.num_sink_tokens, 1)


def test_sampling_is_greedy_until_a_temperature_is_set():
    assert settings(None, None).sampling() == Sampling()
    values = (None, "balanced", AS_POLICY, AS_POLICY, AS_POLICY, None, None, False)
    for seed in (5.0, "5", " 5 "):
        assert settings_of(*values, 0.7, 0.9, seed, None).sampling() == Sampling(0.7, 0.9, 5)
    drawn = settings_of(*values, 0.7, None, " ", "")
    # both sides of a comparison draw with one seed, another answer with another one
    seeds = {drawn.sampling().seed for _ in range(3)}
    assert len(seeds) == 3 and None not in seeds
    for wrong in ((2.5, 1.0, None, ""), (1.0, 0.0, None, ""), ("hot", 1.0, None, ""), (1.0, 1.0, "x", "")):
        with pytest.raises(KVMMError):
            settings_of(*values, *wrong).sampling()


def test_stop_texts_are_lines():
    values = (None, "balanced", AS_POLICY, AS_POLICY, AS_POLICY, None, None, False, 0, 1, None)
    chosen = settings_of(*values, " END \n\n\\n\\nQuestion: \r\na, b\n")
    assert chosen.sampling() == Sampling(stop=("END", "\n\nQuestion:", "a, b"))
    assert stop_texts(stop_lines(chosen.stop)) == chosen.stop
    assert settings_of(*values, None).sampling() == settings_of(*values, " \n").sampling() == Sampling()
    for wrong in ("\n".join("x" * (i + 1) for i in range(MAX_STOP + 1)), "x" * (MAX_STOP_CHARACTERS + 1)):
        with pytest.raises(KVMMError, match=rf"^stop must be up to {MAX_STOP} texts of 1 to \d+ characters.$"):
            settings_of(*values, wrong).sampling()


def test_tokens_are_bounded_and_told():
    values = (None, "balanced", AS_POLICY, AS_POLICY, AS_POLICY, None, None, False, 0, 1, None, "")
    plain = settings_of(*values)
    assert plain.sampling() == Sampling() and plain.answer_tokens(64) == 64
    chosen = settings_of(*values, 5.0, True)
    assert chosen.sampling() == Sampling(logprobs=ALTERNATIVES) and chosen.answer_tokens(64) == 5
    for wrong in (0, -1, 65):
        with pytest.raises(KVMMError, match=r"^Max. tokens must be a whole number from 1 to 64.$"):
            settings_of(*values, wrong, False).answer_tokens(64)


def test_the_list_is_in_tiers_and_every_preset_says_its_cost():
    choices = policy_choices()
    assert [name for _, name in choices] == [name for group in policy_groups() for name in group.names]
    assert all(label == f"{name} · {short_cost(name)}" for label, name in choices)
    css = policy_headings_css()
    for group in policy_groups():
        assert f'[aria-label^="{group.names[0]} · "]' in css and group.tier in css and group.source in css
    for name in policies():
        assert plain_cost(name) in policy_html(name)


@pytest.mark.parametrize("name, options", LAYOUTS)
def test_the_exact_tokens_are_the_policys(visit, screenshot, name, options):
    page = visit(**options)
    if options:
        expect(page.locator("#chat-kvmm")).to_be_visible()
        page.wait_for_timeout(1500)  # the page closes it once, after it has opened itself
        expect(page.locator("#sidebar.open")).to_have_count(0)
        page.locator("#sidebar .toggle-button").click()
    page.get_by_role("button", name="Kept in full precision").click()
    sinks, residual = page.locator("#sinks input"), page.locator("#residual input")
    balanced, kitty = get_policy("balanced"), get_policy("kitty")
    expect(sinks).to_have_value(str(balanced.num_sink_tokens))
    expect(residual).to_have_value(str(balanced.residual_length))
    screenshot(page, f"sidebar-{name}")

    page.locator("#policy input").click()
    listed = page.get_by_role("option")
    expect(listed).to_have_count(len(policies()))
    first = listed.nth(0)
    heading = first.evaluate("e => getComputedStyle(e, '::before').content")
    assert heading == '"Recommended"'
    page.wait_for_timeout(300)
    page.screenshot(path=f"tests/artifacts/policies-{name}.png")
    # a click on a heading chooses nothing
    box = page.get_by_role("option", name=re.compile("^rd1 · ")).bounding_box()
    page.mouse.click(box["x"] + 60, box["y"] - 10)
    expect(page.locator("#policy-line")).to_contain_text(plain_cost("balanced"))

    page.locator("#policy input").click()
    page.get_by_role("option", name=re.compile("^kitty · ")).click()
    expect(page.locator("#policy-line")).to_contain_text(plain_cost("kitty"))
    expect(sinks).to_have_value(str(kitty.num_sink_tokens))
    expect(residual).to_have_value(str(kitty.residual_length))
    expect(page.locator("#chat-kvmm")).to_contain_text("kvmm · kitty")
    expect(page.locator("#chat-kvmm")).not_to_contain_text("sinks")

    sinks.fill("8")
    sinks.press("Tab")
    expect(page.locator("#chat-kvmm")).to_contain_text("kvmm · kitty · 8 sinks")
    page.locator("#policy input").click()
    page.get_by_role("option", name=re.compile("^kivi2 · ")).click()
    expect(residual).to_have_value(str(get_policy("kivi2").residual_length))
    expect(sinks).to_have_value("8")
    expect(page.locator("#chat-kvmm")).to_contain_text("kvmm · kivi2 · 8 sinks")
