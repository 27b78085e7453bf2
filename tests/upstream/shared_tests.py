"""The tests that every model of transformers shares, of tiny models: what its source distribution can run by itself.

:mod:`run` copies this file among them.
"""

from __future__ import annotations

import copy
import unittest
from types import SimpleNamespace
from typing import Any

import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    LlamaModel,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3Model,
)

from .test_modeling_common import ModelTesterMixin

SIZES = {
    "vocab_size": 99,
    "hidden_size": 32,
    "intermediate_size": 37,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
BATCH, LENGTH = 2, 7


class Inputs(SimpleNamespace):
    """What the shared tests ask of a model's own tester."""

    def prepare_config_and_inputs_for_common(self) -> tuple[Any, dict[str, torch.Tensor]]:
        ids = torch.randint(3, self.vocab_size - 10, (BATCH, self.seq_length))
        return copy.deepcopy(self.config), {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def inputs_of(config: Any, **changes: Any) -> Inputs:
    facts = {"batch_size": BATCH, "seq_length": LENGTH, "is_training": False, "config": config, "parent": None}
    return Inputs(**(SIZES | facts | changes))


class _Text(ModelTesterMixin):
    config_class: Any = None
    test_resize_embeddings = True
    has_attentions = True

    def setUp(self) -> None:
        self.model_tester = inputs_of(self.config_class(**SIZES))


class LlamaTest(_Text, unittest.TestCase):
    config_class = LlamaConfig
    all_model_classes = (LlamaModel, LlamaForCausalLM)
    all_generative_model_classes = ()


class Qwen3Test(_Text, unittest.TestCase):
    config_class = Qwen3Config
    all_model_classes = (Qwen3Model, Qwen3ForCausalLM)
    all_generative_model_classes = ()
