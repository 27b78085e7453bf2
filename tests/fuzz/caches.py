"""Saved caches: loaded, then used: a decode step through the C library, decoded, cropped and saved again."""

from __future__ import annotations

import contextlib
import random
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load as load_bytes
from safetensors.torch import save

from kvmm import KVMMCache, KVMMError, policies
from kvmm.cache import file as cache_file
from kvmm.policy import KVPolicy, KVSpec, spec
from tests.fuzz.mutate import mutated_bytes, mutated_header, mutated_json
from tests.fuzz.tensors import broken_value, mutated_tensors, read_whole
from tests.tiny_models import build, generate, inputs

FIELDS = {"residual_length": 0, "flush_length": 32, "num_sink_tokens": 2}


def more_policies() -> list[KVPolicy]:
    """What no preset stores: outlier tokens, prompt transforms, several groups per page."""
    specs = [
        spec("ott", 2, None, pool=3),
        spec("rotatekv", 2, 16, pivots=2),
        spec("rd", 2.25, None, fit="prompt"),
        spec("kitty", 2, None, boost=0.25),
        spec("kitty", 2, None, boost=0),
        spec("kivi", 4, 16),
        spec("spherical", 2),
    ]
    pairs = [KVSpec(one, one) for one in specs]
    return [KVPolicy(f"own-{i}", text=kv, image=kv, video=kv, audio=kv) for i, kv in enumerate(pairs)]


def saved(
    path: Path, family: str, policy: str | KVPolicy, batch: int = 1, tokens: int = 20, **options: object
) -> bytes:
    """The file of a cache after a prompt and an answer."""
    model = build(family)
    cache = KVMMCache.for_model(model, policy, **FIELDS)
    generate(model, inputs(family, batch), past_key_values=cache, max_new_tokens=tokens)
    cache.save(path, {"note": "x"})
    return path.read_bytes()


class Fuzzer:
    """Caches of three models under every preset."""

    def __init__(self, folder: Path):
        torch.set_num_threads(1)
        self.path, self.again = folder / "cache", folder / "again"
        self.seeds: list[tuple[str, bytes]] = []
        for number, policy in enumerate([*policies(), *more_policies()]):
            family, batch = ("qwen2_5_vl", 2) if number % 3 == 0 else ("qwen3", 1)
            self.seeds.append((family, saved(self.path, family, policy, batch)))
        self.seeds.append(("gemma3", saved(self.path, "gemma3", "kivi2")))
        self.seeds.append(("qwen3", self._coded()))
        for policy in ("balanced", "spherical"):
            if policy in policies():
                self.seeds.append(("qwen3", self._with_budget(policy)))

    def _coded(self) -> bytes:
        """A file with entropy-coded pages, where there is a compiler."""
        kv = KVSpec(spec("rd", 2, None), spec("rd", 1.5, None))
        policy = KVPolicy("coded", text=kv, image=kv, num_sink_tokens=2, residual_length=0)
        model = build("qwen3")
        ids = torch.randint(3, 110, (1, 30), generator=torch.Generator().manual_seed(0)).repeat(1, 20)
        cache = KVMMCache.for_model(model, policy)
        with torch.no_grad():
            model(input_ids=ids, past_key_values=cache, use_cache=True)
        cache.pack().save(self.path)
        return self.path.read_bytes()

    def _with_budget(self, policy: str) -> bytes:
        model = build("qwen3")
        ids = torch.randint(3, 110, (1, 400), generator=torch.Generator().manual_seed(0))
        sizes = {}
        for budget in (None, 0.8):
            limit = {} if budget is None else {"budget": int(budget * sizes[None])}
            cache = KVMMCache.for_model(model, policy, **FIELDS, **limit)
            with torch.no_grad():
                model(input_ids=ids, past_key_values=cache, use_cache=True)
            sizes[budget] = cache.pack().memory().nbytes
        cache.save(self.path)
        return self.path.read_bytes()

    def originals(self) -> list[tuple[str, bytes]]:
        """What is broken, whole."""
        return self.seeds

    def make(self, rng: random.Random, number: int) -> tuple[str, bytes]:
        """The family of a model and a file for it."""
        family, data = rng.choice(self.seeds)
        kind = rng.random()
        if kind < 0.08:
            return family, mutated_bytes(rng, data, tuple(other for _, other in self.seeds[:4]))
        if kind < 0.3:
            return family, _refreshed(mutated_header(rng, data), self.path)
        self.path.write_bytes(data)
        tensors, header = read_whole(self.path)
        if kind < 0.7:
            tensors = mutated_tensors(rng, tensors)
        if kind > 0.6:
            header["state"] = cache_file.json.dumps(mutated_json(rng, cache_file.json.loads(header["state"])))
        if rng.random() < 0.97:
            header["checksum"] = cache_file._checksum(header["state"], tensors)
        if rng.random() < 0.02:
            broken_value(rng, header)
        return family, save(tensors, header)

    def run(self, given: tuple[str, bytes]) -> None:
        """Load the file and use what it holds."""
        family, data = given
        self.path.write_bytes(data)
        model = build(family)
        with torch.inference_mode():
            use(KVMMCache.load(self.path, model), model, self.again)


def use(cache: KVMMCache, model: torch.nn.Module, again: Path) -> None:
    """Whatever a session does with a loaded cache."""
    cache.memory()
    if cache.table.modality is None:
        return
    twin = cache.fork()
    for count in (1, 1, 3):
        batch = cache.table.modality.shape[0]
        model(input_ids=torch.full((batch, count), 7), past_key_values=cache, use_cache=True)
    for layer in cache.layers:
        layer.keys.sum(), layer.values.sum()
    if cache.retention is not None:
        cache.retention_report()
    else:
        cache.pack()
    with contextlib.suppress(KVMMError, RuntimeError):  # transformers' own layers refuse with RuntimeError
        cache.crop(-2)
    twin.save(again)
    KVMMCache.load(again, model)


def _refreshed(data: bytes, path: Path) -> bytes:
    """The file with a checksum that fits, if it can be read at all."""
    path.write_bytes(data)
    try:
        tensors = load_bytes(data)
        with safe_open(path, "pt") as file:
            header = file.metadata()
        header["checksum"] = cache_file._checksum(header["state"], tensors)
        return save(tensors, header)
    except (SafetensorError, ValueError, KeyError, TypeError, RuntimeError, AttributeError):
        return data
