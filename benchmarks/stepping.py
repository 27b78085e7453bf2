"""Whole decode steps, greedy, over filled caches: transformers' own, eager or as CUDA graphs, and kvmm's."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from transformers import StaticCache
from transformers.cache_utils import Cache

from benchmarks.synthetic import dynamic_cache, fill, main_modality
from benchmarks.timing import Timing, step_times, synchronize
from kvmm import KVMMCache
from kvmm.modality import IMAGE, TEXT
from kvmm.policy import KVPolicy

TEXT_TOKENS = 64  # of a prompt with an image
_WARM_UP = 4
PAGE_WARM_UP = 288  # steps in which two pages fill: the kernels that pack them compile, then they are captured
_DIFFERENT = 16  # sequences


class GreedyStep:
    """One decode step: the model reads its last token and writes the next one in its place."""

    def __init__(self, forward: Callable[..., Any], cache: Cache, batch: int, device: torch.device):
        self.forward = forward
        self.cache = cache
        self.ids = torch.ones(batch, 1, dtype=torch.long, device=device)

    @torch.no_grad()
    def __call__(self) -> None:
        logits = self.forward(input_ids=self.ids, past_key_values=self.cache, use_cache=True).logits
        self.ids.copy_(logits[:, -1:].argmax(-1))


def timed_steps(step: Callable[[], None], steps: int, device: torch.device, warm_up: int = _WARM_UP) -> Timing:
    """Seconds of a step; the first ones are not counted."""
    for _ in range(warm_up):
        step()
    return Timing.of(step_times(step, steps, device))


@torch.no_grad()
def generate_seconds(model: nn.Module, cache: Cache, batch: int, steps: int) -> float:
    """Seconds a token of ``generate()`` on a filled cache, after a short run that captures or compiles what is due."""
    seconds = 0.0
    for count in (_WARM_UP, steps):
        ids = torch.ones(batch, int(cache.get_seq_length()) + 1, dtype=torch.long, device=model.device)
        synchronize(model.device)
        begin = time.perf_counter()
        out = model.generate(
            ids, past_key_values=cache, max_new_tokens=count, min_new_tokens=count, do_sample=False, use_cache=True
        )
        synchronize(model.device)
        seconds = (time.perf_counter() - begin) / count
        if out.shape[1] != ids.shape[1] + count:
            raise RuntimeError(f"generate() wrote {out.shape[1] - ids.shape[1]} tokens instead of {count}")
    return seconds


# -- transformers ---------------------------------------------------------------------------------------------------


def time_dynamic(model: nn.Module, batch: int, length: int, steps: int, **_: Any) -> Timing:
    """``DynamicCache``, eager."""
    step = GreedyStep(model, dynamic_cache(model, batch, length), batch, model.device)
    return timed_steps(step, steps, model.device)


def time_dynamic_generate(model: nn.Module, batch: int, length: int, steps: int, **_: Any) -> Timing:
    """``DynamicCache`` through ``generate()``."""
    return Timing.of([generate_seconds(model, dynamic_cache(model, batch, length), batch, steps)])


def time_static(model: nn.Module, batch: int, length: int, steps: int, max_length: int | None = None) -> Timing:
    """``StaticCache``, its step captured in a CUDA graph (called as it is on a CPU)."""
    step = _static_step(model, model, batch, length, max_length or length + steps + 3 * _WARM_UP)
    if model.device.type == "cuda":
        step = _captured(step)
    return timed_steps(step, steps, model.device)


def time_static_compile(model: nn.Module, batch: int, length: int, steps: int, max_length: int | None = None) -> Timing:
    """``StaticCache`` and ``torch.compile(mode="reduce-overhead")``, which captures graphs by itself."""
    compiled = torch.compile(model.forward, mode="reduce-overhead", dynamic=False)

    def forward(**inputs: Any) -> Any:
        torch.compiler.cudagraph_mark_step_begin()
        return compiled(**inputs)

    step = _static_step(forward, model, batch, length, max_length or length + steps + 3 * _WARM_UP)
    try:
        return timed_steps(step, steps, model.device)
    finally:
        torch._dynamo.reset()


BASELINES: dict[str, Callable[..., Timing]] = {
    "dynamic": time_dynamic,
    "dynamic_generate": time_dynamic_generate,
    "static": time_static,
    "static_compile": time_static_compile,
}


def _static_step(forward: Any, model: nn.Module, batch: int, length: int, max_length: int) -> GreedyStep:
    cache = fill(StaticCache(config=model.config, max_cache_len=max_length), model, batch, length)
    return GreedyStep(forward, cache, batch, model.device)


def _captured(step: Callable[[], None]) -> Callable[[], None]:
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()

    def replay() -> None:
        graph.replay()

    replay.keeps = step  # the graph reads its tensors
    return replay


# -- kvmm -----------------------------------------------------------------------------------------------------------


def prompt_modality(policy: KVPolicy, batch: int, length: int) -> torch.Tensor:
    """int8 ``[B, T]``: all text, or, for a policy that quantises only media, an image with a little text."""
    if main_modality(policy) == TEXT:
        return torch.full((batch, length), TEXT, dtype=torch.int8)
    return image_modality(batch, length - TEXT_TOKENS)


def image_modality(batch: int, visual_tokens: int) -> torch.Tensor:
    """int8 ``[B, T]``: an image with :data:`TEXT_TOKENS` tokens of text, most of them after it."""
    modality = torch.full((batch, visual_tokens + TEXT_TOKENS), IMAGE, dtype=torch.int8)
    modality[:, : TEXT_TOKENS // 4] = modality[:, visual_tokens + TEXT_TOKENS // 4 :] = TEXT
    return modality


def packed_cache(
    model: nn.Module, policy: KVPolicy, modality: torch.Tensor, calibration: Any, **options: Any
) -> KVMMCache:
    """A cache of random tokens, packed.

    Of more than :data:`_DIFFERENT` sequences the others repeat the first ones, so that packing needs little memory.

    Args:
        model: which it is for.
        policy: how it stores tokens.
        modality: int8 ``[B, T]``, what the prompt's tokens are.
        calibration: a file for codecs that want one.
        **options: for :meth:`KVMMCache.for_model`.
    """
    if "rd" in {spec.codec for spec in policy.all_specs()}:
        options["calibration"] = str(calibration)
    cache = KVMMCache.for_model(model, policy, **options)
    batch, length = modality.shape
    different = min(batch, _DIFFERENT)
    cache.set_modality(modality[:different])
    cache.announce(torch.zeros(different, length, dtype=torch.long, device=model.device), None, None)
    fill(cache, model, different, length).pack()
    if batch > different:
        cache.batch_select_indices(torch.arange(batch) % different)
    return cache


MODES: dict[str, bool | str] = {"eager": False, "graph": True, "compile": "compile"}  # graph= of a cache


def mode_options(mode: str, max_length: int) -> dict[str, Any]:
    """Arguments of :meth:`KVMMCache.for_model` for a mode; with graphs, buffers that need not grow."""
    return {"graph": MODES[mode], **({"max_length": max_length} if MODES[mode] else {})}


def check_replays(cache: KVMMCache, steps: int) -> dict[str, Any]:
    """What ``cache.graph`` says of the steps so far, for a row; empty without a graph.

    Raises:
        RuntimeError: on a GPU, if fewer than ``steps`` were replayed: a row must not call something else a graph.
    """
    if cache.graph is None:
        return {}
    report = cache.graph.report()
    if cache.layers[0].device.type == "cuda" and report["replays"] < steps:
        raise RuntimeError(f"only {report['replays']} of {steps} steps were replayed ({report['reason']})")
    return {"graph": report}


def replay_seconds(cache: KVMMCache, runs: int = 60) -> float | None:
    """Median seconds of the captured graph alone, without the host's part of a step; None if there is none.

    The graph counts tokens on the device, which the host then puts right: what it wrote lies in columns to come.
    """
    graph = None if cache.graph is None else cache.graph._graph
    if graph is None:
        return None
    static, table = cache.table.static, cache.table
    spare = static.residual_tokens - table.dense.shape[1] - 1
    seconds: list[float] = []
    while len(seconds) < runs and spare > 1:
        seconds += step_times(graph.replay, min(spare, runs - len(seconds) + 1), "cuda")[1:]
        static.sync(table)
    return Timing.of(seconds).median if seconds else None
