"""Tokens in full precision beside the pages: keys and values keep the same ones."""

import pytest
import torch

from kvmm.modality import IMAGE, TEXT
from kvmm.policy import spec
from tests.cache.harness import Harness, layout, uniform

SPECS = [spec("ott", 2, 128), spec("ott", 2, 128, window=128), spec("rotatekv", 2, 128, pivots=4)]


@pytest.mark.parametrize("kv", SPECS, ids=str)
def test_values_keep_the_tokens_of_keys(kv):
    harness = Harness(uniform(kv))
    harness.feed([layout((TEXT, 200), (IMAGE, 200))])
    harness.cache.pack()
    for part in harness.layer.parts.values():
        slots = [store.packed["outlier_slot"] for store in part.stores]
        assert slots[0].numel() and torch.equal(*slots)
