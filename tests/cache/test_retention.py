"""Rate-distortion retention: the plan, and caches that live inside a budget."""

import copy
import json

import numpy as np
import pytest
import torch

from kvmm import KVMMCache, KVMMError
from kvmm.cache.retention import Choices, plan, resident_nbytes
from kvmm.cache.tiers import TieredStore
from kvmm.modality import AUDIO, IMAGE, TEXT
from kvmm.policy import KVPolicy, KVSpec, RetentionSettings, get_policy, spec
from tests.cache.harness import Harness, layout, uniform
from tests.cache.test_memory import storages
from tests.tiny_models import build, generate, inputs

SIZES = np.array([100, 80, 40, 0])
SPOILED = np.array([0.2, 0.3, 0.7, 1.0])


def choices(mass, layer=0, modality=IMAGE, **fields):
    """Entries with attention mass ``[P, H]`` and three tiers."""
    mass = np.asarray(mass, dtype=np.float64)
    shape = (4, *mass.shape)
    values = {
        "distortion": mass * SPOILED[:, None, None],
        "nbytes": np.broadcast_to(SIZES[:, None, None], shape),
        "tier": np.zeros(mass.shape, dtype=np.int64),
        "fixed": np.zeros(mass.shape, dtype=bool),
        "resting": np.zeros(mass.shape, dtype=bool),
        "gated": np.zeros(shape, dtype=bool),
    }
    return Choices(layer, modality, **(values | fields))


def outcome(members, budget, **settings):
    """Bytes, distortion, targets and steps of a plan that starts from everything in its tier."""
    resident = sum(int(np.take_along_axis(c.nbytes, c.tier[None], 0).sum()) for c in members)
    targets, steps = plan(members, resident, budget, RetentionSettings(**settings))
    pairs = list(zip(members, targets, strict=True))
    nbytes = sum(int(np.take_along_axis(c.nbytes, t[None], 0).sum()) for c, t in pairs)
    distortion = sum(float(np.take_along_axis(c.distortion, t[None], 0).sum()) for c, t in pairs)
    return nbytes, distortion, targets, steps


def random_members(seed=0):
    """Long-tailed masses in two layers, heads of unequal taste."""
    g = np.random.default_rng(seed)
    members = []
    for layer in range(2):
        for modality in (TEXT, IMAGE):
            mass = g.exponential(size=(9, 3)) ** 2
            members.append(choices(mass / mass.sum(0), layer, modality))
    return members


# -- the plan -----------------------------------------------------------------------------------------------------


def test_budget_holds_and_distortion_falls_with_it():
    members = random_members()
    total = 4 * 27 * 100
    before = 0.0
    for budget in range(total, 0, -600):
        nbytes, distortion, _, steps = outcome(members, budget)
        assert nbytes <= budget
        assert budget - nbytes < 80, "no step more than needed"
        assert distortion >= before
        before = distortion
        assert (len(steps) == 0) == (budget == total)


def test_an_entry_goes_down_before_it_goes_away():
    *_, steps = outcome(random_members(), 4000)
    assert any(step[4] == 3 for step in steps)
    where = {}
    for member, page, unit, start, end in steps:
        assert where.get((member, page, unit), 0) == start == end - 1
        where[member, page, unit] = end


def test_cheapest_step_a_byte_comes_first():
    """20 bytes for 0.1 of the mass, then 40 for 0.4, then 40 for 0.3: the light entry goes all the way first."""
    member = choices([[0.01], [0.5]])
    *_, steps = outcome([member], 100)
    assert [(page, end) for _, page, _, _, end in steps] == [(0, 1), (0, 2), (0, 3)]
    *_, steps = outcome([choices([[0.3], [0.5]])], 165)
    assert [(page, end) for _, page, _, _, end in steps] == [(0, 1), (1, 1)]


def test_ties_are_broken_by_layer_head_page():
    members = [choices(np.ones((2, 2)), layer) for layer in (0, 1)]
    *_, steps = outcome(members, 8 * 100 - 5 * 20, mode="quantize")
    first = [(members[m].layer, unit, page) for m, page, unit, _, end in steps if end == 1]
    assert first == sorted(first) and len(first) == 5


def test_protected_entries_and_an_impossible_budget():
    fixed = np.array([[True, False], [False, False]])
    member = choices(np.array([[0.0, 0.1], [0.2, 0.3]]), fixed=fixed)
    nbytes, _, (target,), _ = outcome([member], 100)
    assert nbytes == 100 and target[0, 0] == 0 and (target.ravel()[1:] == 3).all()
    with pytest.raises(KVMMError, match=r"budget of 99 bytes cannot be met.* 100 bytes") as error:
        outcome([member], 99)
    assert "\n" not in str(error.value)
    with pytest.raises(KVMMError, match="may not be dropped here takes 220 bytes"):
        outcome([member], 200, mode="quantize")


@pytest.mark.parametrize("budget", [9000, 7000, 5000, 3000])
def test_joint_is_best_at_equal_bytes(budget):
    """Ablation A2. ``quantize`` cannot go below the last tier, so it only takes part where it can."""
    for seed in range(5):
        members = random_members(seed)
        _, joint, _, _ = outcome(members, budget)
        for mode in ("decoupled", "retain", "quantize"):
            if mode == "quantize" and budget < 108 * 40:
                continue
            nbytes, other, _, _ = outcome(members, budget, mode=mode)
            assert nbytes <= budget
            assert joint <= other * 1.001, (mode, seed)


def test_modes_do_what_they_say():
    members = random_members()
    *_, targets, _ = outcome(members, 6000, mode="retain")
    assert set(np.concatenate([t.ravel() for t in targets])) == {0, 3}
    *_, targets, _ = outcome(members, 6000, mode="quantize")
    assert 3 not in np.concatenate([t.ravel() for t in targets])
    *_, targets, _ = outcome(members, 4000, mode="decoupled")
    assert set(np.concatenate([t.ravel() for t in targets])) == {2, 3}


def test_own_tiers_for_heads_are_better_than_one_for_all():
    """Ablation A3."""
    for seed in range(5):
        members = random_members(seed)
        merged = [
            choices(
                c.distortion[3].sum(1, keepdims=True),
                c.layer,
                nbytes=c.nbytes.sum(2, keepdims=True),
            )
            for c in members
        ]
        assert outcome(members, 5000)[1] < outcome(merged, 5000)[1]


def test_hysteresis_keeps_what_was_lowered():
    """Two entries, room for one in the first tier: which one changes only when it clearly pays."""
    tier = np.array([[0], [1]])

    def after(masses, **settings):
        return outcome([choices(masses, tier=tier)], 180, backing="host", **settings)[2][0].ravel().tolist()

    assert after([[0.5], [0.6]], hysteresis=1.0) == [1, 0]
    assert after([[0.5], [0.6]], hysteresis=1.5) == [0, 1]
    assert after([[0.5], [0.9]], hysteresis=1.5) == [1, 0]
    assert outcome([choices([[0.5], [0.9]], tier=tier)], 180)[2][0].ravel().tolist() == [0, 1], "no backing, no rise"


def test_cooldown_keeps_what_has_just_changed():
    tier, resting = np.array([[0], [1]]), np.array([[False], [True]])
    member = choices([[0.1], [0.9]], tier=tier, resting=resting)
    assert outcome([member], 180, backing="host")[2][0].ravel().tolist() == [0, 1]
    resting = np.array([[True], [False]])
    member = choices([[0.1], [0.9]], resting=resting)
    assert outcome([member], 180)[2][0].ravel().tolist() == [0, 1]
    assert outcome([member], 90)[2][0].sum() >= 4, "but the budget comes first"


@pytest.mark.parametrize("settings", [{"hysteresis": 3.0, "cooldown": 0}, {"hysteresis": 1.0, "cooldown": 8}])
def test_no_flapping(settings):
    """Attention that swings between two entries, room for one: each of the two brakes lets them be."""

    def changes(hysteresis, cooldown):
        tier, changed, count = np.zeros((2, 1), dtype=np.int64), np.full((2, 1), -1), 0
        for run in range(1, 41):
            mass = np.array([[0.5], [0.5]]) + 0.15 * np.array([[1], [-1]]) * (1 if run // 3 % 2 else -1)
            resting = (changed >= 0) & (run - changed <= cooldown)
            member = choices(mass, tier=tier, resting=resting)
            _, _, (target,), _ = outcome([member], 180, backing="host", hysteresis=hysteresis)
            changed = np.where(target != tier, run, changed)
            count += int((target != tier).sum())
            tier = target
        return count

    assert changes(**settings) <= changes(1.0, 0) / 3 and changes(1.0, 0) > 20


def test_margin_gate():
    """Ablation A5: gated steps come last, and undo what was done where codes can rise."""
    gated = np.zeros((4, 2, 1), dtype=bool)
    gated[1:, 0] = True
    assert outcome([choices([[0.1], [0.9]], gated=gated)], 180)[2][0].ravel().tolist() == [0, 1]
    tier = np.array([[1], [0]])
    member = choices([[0.1], [0.9]], gated=gated, tier=tier)
    assert outcome([member], 180, backing="host")[2][0].ravel().tolist() == [0, 1]


# -- caches -------------------------------------------------------------------------------------------------------

KEYS = KVSpec(spec("spherical", 0.875), spec("bf16"))


def policy(budget=10**9, kv=KEYS, **settings):
    fields = {name: settings.pop(name) for name in ("num_sink_tokens", "residual_length") if name in settings}
    settings = {"interval": 4, **settings}
    return KVPolicy("t", "", kv, kv, kv, kv, budget=budget, retention=RetentionSettings(**settings), **fields)


PROMPT = layout((TEXT, 20), (IMAGE, 500), (TEXT, 170), (AUDIO, 80))


def filled(chosen, prompt=PROMPT, hot=None, steps=1, seed=0):
    """A layer after a prompt and some decode steps; ``hot`` positions have keys that the queries look for."""
    h = Harness(chosen, seed=seed)
    key = h.random(1, 2, len(prompt), 64)
    h.aim = h.random(64)
    if hot is not None:
        key[:, :, hot] = h.aim + 0.2 * key[:, :, hot]
    h.feed([prompt], key)
    h.layer.observe(query(h, len(prompt)))
    for _ in range(steps):
        step(h)
    return h


def query(h, count=1):
    return h.aim + 0.3 * h.random(1, 6, count, 64)


def step(h):
    h.feed([[TEXT]])
    return h.layer.attend(query(h), None, 0.125)


def full_nbytes(**fields):
    return filled(policy(**fields)).cache.memory().nbytes


def test_without_pressure_nothing_changes():
    h = filled(policy())
    plain = filled(uniform(spec("spherical", 0.875)), steps=1)
    assert isinstance(h.layer.parts[IMAGE].key, TieredStore)
    torch.testing.assert_close(h.layer.dense()[0], plain.layer.dense()[0])
    assert h.compare(1) < 1e-4
    h.feed([[TEXT] * 5])
    assert h.compare(5) < 1e-4
    assert h.cache.retention_report()["flips"] == 0


@pytest.mark.parametrize("share", [0.99, 0.8, 0.5, 0.25])
@pytest.mark.parametrize("heads", ["adaptive", "uniform"])
def test_the_budget_holds_at_every_step(share, heads):
    budget = int(full_nbytes() * share)
    h = filled(policy(budget, heads=heads))
    for _ in range(70):
        assert h.cache.memory().nbytes <= budget
        assert resident_nbytes(h.cache) == h.cache.memory().nbytes
        assert torch.isfinite(step(h)).all()
    report = h.cache.retention_report()
    assert report["dropped"] > 0 and report["num_held"] < report["num_entries"]
    assert report["resident_nbytes"] <= budget
    h.cache.table.clear_bias()
    assert sum(storages(h.cache).values()) == h.cache.memory().nbytes
    json.dumps(report)


def test_memory_counts_what_exists():
    h = filled(policy(int(full_nbytes() * 0.5)))
    memory = h.cache.memory()
    store = h.layer.parts[IMAGE].value
    kept = sum(len(store.tier(0)[0]) for _ in range(1))
    assert memory.by_component["values"] == sum(
        len(part.value.tier(0)[0]) * part.value.page_size * 64 * 2 for part in h.layer.parts.values()
    )
    assert 0 < kept < store.num_pages * store.num_heads


def test_less_budget_more_distortion():
    full = full_nbytes()
    found = []
    for share in (2.0, 0.9, 0.7, 0.5, 0.3):
        h = filled(policy(int(full * share)))
        exact = filled(policy())
        error = float((step(h) - step(exact)).square().mean())
        found.append((h.cache.retention_report()["distortion"], error))
    assert [d for d, _ in found] == sorted(d for d, _ in found)
    assert found[0][1] == 0 < found[2][1] < found[4][1]


def test_decisions_are_deterministic():
    budget = int(full_nbytes() * 0.4)
    reports = []
    for _ in range(2):
        h = filled(policy(budget, backing="host"), steps=40)
        reports.append(h.cache.retention_report())
    assert reports[0] == reports[1]


def test_dropped_pages_are_masked_and_lowered_pages_are_read():
    """Attention equals SDPA over what is left, head by head."""
    h = filled(policy())
    key, value = h.layer.parts[IMAGE].key, h.layer.parts[IMAGE].value
    target = np.arange(key.num_pages * 2).reshape(-1, 2) % 4
    key.move(target)
    value.move(np.where(target == 3, 1, 0))
    assert np.array_equal(key.tier_map(), target)
    keys, values = h.layer.dense()
    probe = query(h)
    output = h.layer.attend(probe, None, 0.125)
    positions = h.cache.table.stores[IMAGE][0].view(key.num_pages, -1)
    visible = torch.ones(2, keys.shape[2], dtype=torch.bool)
    for page, head in zip(*np.nonzero(target == 3), strict=True):
        gone = positions[page]
        visible[head, gone[gone >= 0].long()] = False
    expected = torch.nn.functional.scaled_dot_product_attention(
        probe,
        keys.repeat_interleave(3, 1),
        values.repeat_interleave(3, 1),
        attn_mask=visible.repeat_interleave(3, 0)[:, None],
    )
    torch.testing.assert_close(output, expected, atol=1e-4, rtol=1e-4)


def test_lower_tiers_are_coarser_and_smaller():
    h = filled(policy())
    store = h.layer.parts[IMAGE].key
    sizes = store.entry_nbytes()
    assert sizes == sorted(sizes, reverse=True) and sizes[3] == 0
    assert (np.diff(store.error.numpy(), axis=0) > 0).mean() > 0.9
    assert store.error.shape == (3, store.num_pages, 2)


def test_lowering_is_a_chain():
    """Straight down or one tier at a time: the same codes."""
    at_once, by_step = filled(policy()), filled(policy())
    shape = at_once.layer.parts[IMAGE].key.tier_map().shape
    at_once.layer.parts[IMAGE].key.move(np.full(shape, 2))
    for tier in (1, 2):
        by_step.layer.parts[IMAGE].key.move(np.full(shape, tier))
    torch.testing.assert_close(at_once.layer.parts[IMAGE].key.decode(), by_step.layer.parts[IMAGE].key.decode())
    with pytest.raises(KVMMError, match="gone"):
        at_once.layer.parts[IMAGE].key.move(np.full(shape, 1))


def test_attended_pages_stay():
    """The prompt's last queries say what matters before the first step, the decode steps afterwards."""
    hot = slice(100, 130)
    h = filled(policy(int(full_nbytes() * 0.4)), hot=hot)
    for _ in range(2):
        store = h.layer.parts[IMAGE].key
        positions = h.cache.table.stores[IMAGE][0].view(store.num_pages, -1)
        page = ((positions >= 100) & (positions < 130)).any(1).numpy()
        assert (store.tier_map()[page] < 3).all()
        assert (store.tier_map()[~page] == 3).mean() > 0.5
        for _ in range(30):
            step(h)
    importance = store.importance.sum(1).numpy()
    assert importance[page].min() > importance[~page].max()


def test_pinned_spans_are_never_touched():
    h = filled(policy(int(full_nbytes() * 0.4)), steps=0)
    h.cache.pin(300, 340)
    h.cache.pack()
    exact = filled(policy(), steps=0)
    exact.cache.pack()
    for _ in range(40):
        step(h)
    store = h.layer.parts[IMAGE].key
    positions = h.cache.table.stores[IMAGE][0].view(store.num_pages, -1)
    pinned = ((positions >= 300) & (positions < 340)).any(1).numpy()
    assert (
        pinned.any() and not pinned.all() and (store.tier_map()[pinned] == 0).all() and (store.flips[pinned] == 0).all()
    )
    for now, before in zip(h.layer.dense(), exact.layer.dense(), strict=True):
        torch.testing.assert_close(now[:, :, 300:340], before[:, :, 300:340])
    with pytest.raises(KVMMError, match="start < end"):
        h.cache.pin(5, 5)


def test_protected_tokens_alone_exceed_the_budget():
    with pytest.raises(KVMMError, match="cannot be met") as error:
        filled(policy(20_000))
    assert "raise budget" in str(error.value)
    h = filled(policy(int(full_nbytes() * 0.5)), steps=0)
    h.cache.pin(0, 700)
    with pytest.raises(KVMMError, match="pinned spans"):
        h.cache.pack()


def test_segments_and_modalities_weigh():
    """Ablation A4."""
    budget = int(full_nbytes() * 0.5)

    def held(**settings):
        h = filled(policy(budget, recent_length=100, **settings))
        return {
            m: float((part.key.tier_map() < part.key.num_tiers).mean()) for m, part in h.layer.parts.items()
        }, h.layer.parts[IMAGE].key.tier_map()

    plain, _ = held()
    audio, _ = held(modality_weights=(1.0, 1.0, 1.0, 50.0))
    assert audio[AUDIO] == 1.0 > plain[AUDIO] or plain[AUDIO] == 1.0
    image, _ = held(modality_weights=(1.0, 50.0, 1.0, 1.0))
    assert image[IMAGE] > plain[IMAGE]
    _, tiers = held(segment_weights=(1000.0, 1.0, 1.0))
    assert (tiers[0] < 3).all()


def test_margins_are_seen():
    h = filled(policy(margin_gate=True), hot=slice(100, 101), steps=2)
    store = h.layer.parts[IMAGE].key
    best = store.margin.min(0)
    positions = h.cache.table.stores[IMAGE][0].view(store.num_pages, -1)
    assert (positions[best.indices] == 100).any(1).all() and torch.isfinite(best.values).all()
    assert not torch.isfinite(store.margin).all()
    budget = int(full_nbytes() * 0.5)
    assert filled(policy(budget, margin_gate=True), steps=20).cache.memory().nbytes <= budget


def test_dropped_entries_keep_their_importance():
    """Nobody can attend to what is gone, which says nothing about it."""
    h = filled(policy(int(full_nbytes() * 0.5)))
    store = h.layer.parts[IMAGE].key
    gone = torch.as_tensor(store.tier_map() == 3)
    before = store.importance.clone()
    step(h)
    assert gone.any() and not gone.all()
    assert torch.equal(store.importance[gone], before[gone])
    assert not torch.equal(store.importance[~gone], before[~gone])


def test_backing_lets_pages_rise_again():
    budget = int(full_nbytes() * 0.5)
    hot = slice(100, 130)
    h = filled(policy(budget, backing="host", decay=0.3, cooldown=0), hot=hot, steps=0)
    exact = filled(policy(), hot=hot, steps=0)
    exact.cache.pack()
    h.cache.pack()
    first = h.layer.parts[IMAGE].key.tier_map()
    other = h.random(64)
    h.aim = other  # nobody looks at the hot page any more, but at what is now gone or coarse
    for _ in range(60):
        step(h)
        memory = h.cache.memory()
        assert memory.nbytes - memory.by_component.get("backing", 0) <= budget
    report = h.cache.retention_report()
    assert report["raised"] > 0
    store = h.layer.parts[IMAGE].key
    risen = (first > 0) & (store.tier_map() == 0)
    assert risen.any() or report["raised"] > 0
    reference = exact.layer.parts[IMAGE].key.decode().unflatten(2, (store.num_pages, -1))
    now = store.decode().unflatten(2, (store.num_pages, -1))
    for page, head in zip(*np.nonzero(store.tier_map() == 0), strict=True):
        torch.testing.assert_close(now[:, head, page], reference[:, head, page])
    back = h.layer.parts[IMAGE].value.backing["entries"].numel()
    assert back == (store.tier_map() == 3).sum()
    assert "backing" not in filled(policy(budget)).cache.memory().by_component


@pytest.mark.parametrize("mode", ["decoupled", "retain"])
def test_joint_has_the_smallest_real_error(mode):
    """Ablation A2 on attention itself: output error against full codes, over many queries, at equal bytes."""
    errors = {}
    for name in ("joint", mode):
        error = 0.0
        for seed in range(3):
            exact = filled(policy(10**9), hot=slice(100, 420, 40), seed=seed)
            budget = int(exact.cache.memory().nbytes * 0.5)
            h = filled(policy(budget, mode=name), hot=slice(100, 420, 40), seed=seed)
            probe = query(exact, 40)
            target = exact.layer.attend(probe, None, 0.125)
            error += float((h.layer.attend(probe, None, 0.125) - target).square().mean())
        errors[name] = error
    assert errors["joint"] <= errors[mode] * 1.02, errors


@pytest.mark.parametrize(
    "kv",
    [
        KVSpec(spec("kivi", 2, 32), spec("kivi", 2, 32)),
        KVSpec(spec("oscar", 2, 32), spec("oscar", 2, 32)),
        KVSpec(spec("calibquant", 2), spec("calibquant", 2)),
        KVSpec(spec("spherical", 2), spec("spherical", 1)),
        KVSpec(spec("bf16"), spec("bf16")),
    ],
    ids=lambda kv: kv.key.codec,
)
def test_other_codecs_are_dropped_page_by_page(kv):
    h = filled(policy(kv=kv))
    plain = filled(KVPolicy("t", "", kv, kv, kv, kv))
    for one, other in zip(h.layer.dense(), plain.layer.dense(), strict=True):
        torch.testing.assert_close(one, other)
    assert h.compare(1) < 1e-4
    budget = int(h.cache.memory().nbytes * 0.8)
    h = filled(policy(budget, kv=kv), steps=50)
    assert h.cache.memory().nbytes <= budget
    assert h.cache.retention_report()["dropped"] > 0


def test_calibrated_logits_are_those_of_what_is_left():
    """CalibQuant's logit calibration takes its range from the slots that exist."""
    kv = KVSpec(spec("calibquant", 2, calibration=(0.0, 1.0)), spec("bf16"))
    h, plain = filled(policy(kv=kv)), filled(KVPolicy("t", "", kv, kv, kv, kv))
    probe = query(h)
    torch.testing.assert_close(h.layer.attend(probe, None, 0.125), plain.layer.attend(probe, None, 0.125))
    part = h.layer.parts[IMAGE]
    target = np.zeros_like(part.key.tier_map())
    target[1:] = 1
    part.key.move(target)
    part.value.move(target)
    first = h.cache.table.stores[IMAGE][0, : part.key.page_size].tolist()
    kept = [m != IMAGE or position in first for position, m in enumerate([*PROMPT, TEXT])]
    visible = torch.tensor([kept])
    output = h.layer.attend(probe, None, 0.125)
    torch.testing.assert_close(output, plain.layer.attend(probe, visible, 0.125), atol=1e-4, rtol=1e-4)


def test_codecs_that_share_data_between_pages():
    with pytest.raises(KVMMError, match="norm_scope=head"):
        filled(policy(kv=KVSpec(spec("oscar", 2, 32, norm_scope="token"), spec("bf16"))))
    with pytest.raises(KVMMError, match="cannot lower pages of codec rotatekv"):
        get_policy("rotatekv2", budget=10**6)


def test_one_sequence_only():
    h = Harness(policy())
    with pytest.raises(KVMMError, match="one sequence"):
        h.feed([[TEXT] * 5] * 2)
    h = filled(policy(int(full_nbytes() * 0.5)))
    h.cache.reorder_cache(torch.tensor([0]))
    with pytest.raises(KVMMError, match="holds one sequence"):
        h.cache.batch_repeat_interleave(2)
    assert h.cache.batch_size == 1
    plain = filled(uniform(spec("kivi", 2, 32)))
    for call in (lambda: plain.cache.pin(0, 5), plain.cache.retention_report):
        with pytest.raises(KVMMError, match="without a budget"):
            call()


def test_copies_go_their_own_way():
    budget = int(full_nbytes() * 0.5)
    for copied in (copy.deepcopy, KVMMCache.fork):
        h = filled(policy(budget))
        before = h.cache.retention_report()
        twin = Harness(policy(budget))
        twin.aim, twin.cache, twin.generator = h.aim, copied(h.cache), h.generator
        twin.layer = twin.cache.layers[0]
        for _ in range(70):
            step(twin)
        assert twin.cache.retention_report()["runs"] > before["runs"]
        assert h.cache.retention_report() == before
        assert twin.cache.memory().nbytes <= budget


def test_crop_and_reset():
    h = filled(policy(int(full_nbytes() * 0.5)), steps=20)
    h.cache.crop(-30)
    assert h.cache.get_seq_length() == len(PROMPT) - 10
    assert torch.isfinite(step(h)).all()
    h.cache.reset()
    assert h.cache.memory().nbytes == 0
    h.feed([PROMPT])
    h.feed([[TEXT]])
    assert h.cache.retention_report()["runs"] == 1


@pytest.mark.parametrize("family", ["qwen2_5_omni", "llava", "gemma3"])
def test_generate_inside_a_budget(family, tmp_path):
    """A whole model: the budget holds, decisions repeat, a saved cache goes on inside it."""
    model = build(family)
    arguments = inputs(family, 1)
    free = KVMMCache.for_model(model, "spherical-high", budget=10**9, residual_length=0)
    expected = generate(model, arguments, past_key_values=free)
    plain = KVMMCache.for_model(model, "spherical-high", residual_length=0)
    assert torch.equal(generate(model, arguments, past_key_values=plain), expected)
    budget = int(free.memory().nbytes * 0.8)
    caches = []
    for _ in range(2):
        cache = KVMMCache.for_model(model, "spherical-high", budget=budget, residual_length=0)
        caches.append((cache, generate(model, arguments, past_key_values=cache)))
        assert cache.memory().nbytes <= budget
    (cache, tokens), (other, again) = caches
    assert torch.equal(tokens, again)
    assert cache.retention_report() == other.retention_report()
    assert cache.retention_report()["dropped"] > 0
    cache.save(tmp_path / "cache")
    loaded = KVMMCache.load(tmp_path / "cache", model)
    assert loaded.retention_report()["entries"] == cache.retention_report()["entries"]
    longer = torch.cat((tokens, tokens[:, :1]), 1)
    more = {"input_ids": longer, "attention_mask": torch.ones_like(longer)}
    generate(model, more, past_key_values=loaded)  # buffers differ in slack, so bytes and decisions may too
    assert loaded.memory().nbytes <= budget and loaded.retention_report()["runs"] >= cache.retention_report()["runs"]


def test_decoded_reads_and_weights_need_what_is_gone():
    model = copy.deepcopy(build("llama"))
    model.set_attn_implementation("eager")
    arguments = inputs("llama", 1)
    cache = KVMMCache.for_model(model, "spherical-high", budget=10**9, residual_length=0)
    generate(model, arguments, past_key_values=cache)
    small = KVMMCache.for_model(model, "spherical-high", budget=int(cache.memory().nbytes * 0.8), residual_length=0)
    tokens = generate(model, arguments, past_key_values=small)
    longer = torch.cat((tokens, tokens[:, :1]), 1)
    more = {"input_ids": longer, "attention_mask": torch.ones_like(longer)}
    twin = copy.deepcopy(small)
    with pytest.raises(KVMMError, match="dropped to meet the budget"), twin.reading_decoded():
        generate(model, more, past_key_values=twin)
    twin = copy.deepcopy(small)
    with pytest.raises(KVMMError, match="dropped to meet the budget"):
        model(**_last(more), past_key_values=twin, output_attentions=True)
    generate(model, more, past_key_values=small)  # without weights eager attention reads it


def _last(arguments):
    return {**arguments, "input_ids": arguments["input_ids"][:, -1:]}
