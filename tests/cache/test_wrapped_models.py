"""Modules around a model (``torch.compile``, PEFT, data parallel): what is prepared is the model that generates."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from kvmm import KVMMCache
from kvmm.generating_model import generating_model
from tests.tiny_models import build, generate, inputs


class Around(nn.Module):
    """As PEFT's wrappers: what it does not have itself, ``generate`` included, is that of a module further inside."""

    def __init__(self, model):
        super().__init__()
        self.module = nn.ModuleDict({"base": model})

    def __getattr__(self, name):
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.module["base"], name)

    def forward(self, *args, **kwargs):
        return self.module["base"](*args, **kwargs)


WRAPPERS = {"compile": lambda model: torch.compile(model, backend="eager"), "around": Around}


@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_modalities_and_padding_are_known(wrapper, graph, tmp_path):
    model, arguments = copy.deepcopy(build("qwen2_5_vl")), inputs("qwen2_5_vl", 2)
    wrapped = WRAPPERS[wrapper](model)
    assert generating_model(wrapped) is generating_model(model) is model
    cache = KVMMCache.for_model(wrapped, "oscar2", graph=graph)
    tokens = generate(wrapped, arguments, past_key_values=cache, max_new_tokens=6)
    own = copy.deepcopy(model)
    KVMMCache.release(own)
    expected = KVMMCache.for_model(own, "oscar2", graph=graph)
    assert torch.equal(generate(own, arguments, past_key_values=expected, max_new_tokens=6), tokens)
    assert torch.equal(cache.table.modality[:, : cache.table.length], expected.table.modality[:, : cache.table.length])
    assert cache.memory().by_modality["image"]["tokens"] == 72
    assert not graph or cache.graph.report()["eager"] == 5
    cache.save(tmp_path / "cache")
    assert KVMMCache.load(tmp_path / "cache", wrapped).memory().tokens == cache.memory().tokens
    KVMMCache.release(wrapped)
    assert not model._forward_pre_hooks and "forward" not in vars(model)
