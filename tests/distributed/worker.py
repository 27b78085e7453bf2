"""One process of a tensor-parallel model: ``python -m tests.distributed.worker MODEL EXPECTED`` under torchrun.

``EXPECTED`` holds what one process generated; every difference is an error.
"""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from kvmm import KVMMCache
from kvmm.calibration.heads import local_heads

POLICIES = ("bf16", "oscar2", "rd2", "kitty")
FIELDS = {"residual_length": 16, "flush_length": 32}
NEW_TOKENS = 50


def prompt() -> torch.Tensor:
    """int64 ``[1, T]``."""
    return torch.arange(3, 103)[None]


def generate(model: torch.nn.Module, policy: str, **options: object) -> torch.Tensor:
    """Greedy tokens of a model with a cache."""
    cache = KVMMCache.for_model(model, policy, **FIELDS, **options)
    tokens = model.generate(prompt(), past_key_values=cache, max_new_tokens=NEW_TOKENS, do_sample=False)
    if options.get("graph"):
        assert cache.graph.report()["reason"] is None
        assert cache.graph.report()["eager"] == NEW_TOKENS - 1
    return tokens


def main(folder: str, expected_file: str) -> None:
    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(folder, tp_plan="auto")
    rank, expected = dist.get_rank(), load_file(expected_file)
    assert local_heads(model) == (rank, rank + 1)
    for policy in POLICIES:
        for options in ({}, {"max_length": 200, "graph": True}):
            tokens = generate(model, policy, **options)
            assert torch.equal(tokens, expected[policy]), (rank, policy, options)
    dist.barrier()
    dist.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)  # threads that gloo leaves behind can abort a process that ends in order


if __name__ == "__main__":
    main(*sys.argv[1:])
