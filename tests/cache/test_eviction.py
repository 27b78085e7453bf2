"""The orders in which eviction methods drop."""

import numpy as np

from kvmm.cache.eviction import drop_order


def kept(order, count):
    """The entries of one head that are left when ``count`` are."""
    return set(np.argsort(order[:, 0])[len(order) - count :].tolist())


MASS = np.array([[5.0], [1.0], [4.0], [0.0], [3.0], [2.0], [0.5], [0.1]])
NEWEST = np.arange(8)[:, None]


def test_streaming_keeps_the_newest():
    (order,) = drop_order("streaming", [0], [MASS], [NEWEST], [0.0])
    assert kept(order, 3) == {5, 6, 7}


def test_h2o_keeps_half_newest_and_half_heavy():
    (order,) = drop_order("h2o", [0], [MASS], [NEWEST], [0.0])
    assert kept(order, 4) == {7, 6, 0, 2}
    for count in range(1, 8):
        assert kept(order, count) < kept(order, count + 1), "what a smaller budget keeps, a larger one keeps"


def test_h2o_gives_every_head_of_every_layer_the_same():
    g = np.random.default_rng(0)
    mass = [g.random((8, 2)) * factor for factor in (1, 100)]
    orders = drop_order("h2o", [0, 1], mass, [np.repeat(NEWEST, 2, 1)] * 2, [0.0, 0.0])
    every = np.concatenate([order.ravel() for order in orders])
    least = np.sort(every)[:16]
    for order in orders:
        assert [(np.isin(order[:, head], least)).sum() for head in (0, 1)] == [4, 4]


def test_vlcache_gives_more_to_layers_whose_attention_is_dense():
    orders = drop_order("vlcache", [0, 1], [MASS, MASS], [NEWEST, NEWEST], [0.9, 0.6])
    every = np.sort(np.concatenate([order.ravel() for order in orders]))
    left = [int((order[:, 0] > every[5]).sum()) for order in orders]
    assert left == [2, 8], "a layer with four times the dense attention keeps four times as much"
    assert kept(orders[0], 2) == {7, 0}


def test_modalities_of_a_layer_compete():
    (first, second) = drop_order("h2o", [3, 3], [MASS[:4], MASS[4:]], [NEWEST[:4], NEWEST[4:]], [0.0, 0.0])
    (joint,) = drop_order("h2o", [3], [MASS], [NEWEST], [0.0])
    np.testing.assert_array_equal(np.concatenate((first, second)), joint)
