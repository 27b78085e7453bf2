"""Which pages retention lowers, drops and raises again, and how they are read."""

import numpy as np
import pytest
import torch

from kvmm import KVMMError
from kvmm.modality import AUDIO, IMAGE
from tests.cache.retained import attention_of, filled, full_nbytes, policy, query, step


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
    expected = attention_of(probe, keys, values, visible)
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
