"""A small language model in a folder, with a calibration of it, and what vLLM answers with it: run as a program."""

from __future__ import annotations

import json
import os
import sys
from importlib.util import find_spec
from pathlib import Path

import torch

HEADS, DIM, LAYERS = 2, 64, 4
CACHE_BYTES = 2**26  # on a GPU: several times what one sequence of 2048 tokens needs in float32
PROMPT = [(i * i * 7) % 2000 + 5 for i in range(500)]


def fitted(sides: list[tuple[torch.Tensor, torch.Tensor]]):
    """A calibration of keys and values float32 ``[H, n, D]`` by layer."""
    from kvmm.calibration import Calibration, SiteSamples, site_name
    from kvmm.codecs.rd import RD
    from kvmm.modality import TEXT

    tensors = {}
    for layer, pair in enumerate(sides):
        for side, x in zip(("key", "value"), pair, strict=True):
            mean, identity = x.mean(1), torch.eye(x.shape[-1]).expand(len(x), -1, -1)
            centred = x - mean.unsqueeze(1)
            covariance = centred.transpose(1, 2) @ centred / x.shape[1]
            for name, tensor in RD.fit(SiteSamples(side, x, mean, covariance, identity, identity)).items():
                tensors[site_name("rd", layer, side, TEXT) + name] = tensor.contiguous()
    return Calibration("0" * 64, tensors, {})


def make_model(folder: Path) -> None:
    """Random weights of a Qwen3, and ``kvmm_calibration.safetensors`` beside them."""
    from transformers import DynamicCache, Qwen3Config, Qwen3ForCausalLM

    from kvmm.calibration.file import FILE_NAME

    torch.manual_seed(0)
    config = Qwen3Config(
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=HEADS,
        head_dim=DIM,
        vocab_size=2048,
        max_position_embeddings=4096,
        tie_word_embeddings=False,
    )
    model = Qwen3ForCausalLM(config).float()
    model.model.embed_tokens.weight.data.mul_(8)  # beside what attention adds: the next token is seldom nearly another
    cache = DynamicCache()
    with torch.no_grad():
        model(torch.randint(5, 2000, (1, 1500)), past_key_values=cache)
    model.save_pretrained(folder)
    fitted([(layer.keys[0], layer.values[0]) for layer in cache.layers]).save(folder / FILE_NAME)


def answers(folder: str, dtype: str, options: dict, prompts: list[list[int]], tokens: int, rounds: int) -> dict:
    """What vLLM makes of prompts, ``rounds`` times: tokens, how many were cached, and the capacity."""
    os.environ |= {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "HF_HUB_OFFLINE": "1"}
    if find_spec("flashinfer") is None:
        os.environ["VLLM_USE_FLASHINFER_SAMPLER"] = "0"
    if torch.cuda.is_available():  # whatever else has memory of the GPU
        options = {"gpu_memory_utilization": 0.05, "kv_cache_memory_bytes": CACHE_BYTES} | options
    from kvmm.vllm import register

    register()  # as vLLM does where kvmm is installed; "auto" is as ever then
    if dtype != "auto":
        options |= {"attention_backend": "CUSTOM", "kv_cache_dtype": dtype}
    from vllm import LLM, SamplingParams
    from vllm.inputs import TokensPrompt

    options = {"enforce_eager": True, "max_model_len": 2048, "dtype": "float32"} | options
    llm = LLM(model=folder, skip_tokenizer_init=True, disable_log_stats=False, **options)
    asked = SamplingParams(max_tokens=tokens, temperature=0, detokenize=False, ignore_eos=True)
    found = []
    for _ in range(rounds):
        made = llm.generate([TokensPrompt(prompt_token_ids=ids) for ids in prompts], asked, use_tqdm=False)
        found.append([{"tokens": list(one.outputs[0].token_ids), "cached": one.num_cached_tokens} for one in made])
    cache = llm.llm_engine.vllm_config.cache_config
    metrics = {m.name: getattr(m, "value", None) for m in llm.get_metrics()}
    preempted = metrics.get("vllm:num_preemptions", 0)
    return {"rounds": found, "capacity": cache.num_gpu_blocks * cache.block_size, "preempted": preempted}


if __name__ == "__main__":
    print("FOUND " + json.dumps(answers(**json.loads(sys.argv[1]))))
