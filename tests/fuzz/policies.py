"""Policy files: read, then used by a cache that packs."""

from __future__ import annotations

import random
from pathlib import Path

import torch
import yaml

from kvmm import KVMMCache, get_policy, policies
from tests.fuzz.mutate import ODD_TEXTS, mutated_bytes, mutated_json
from tests.tiny_models import build, inputs

_WRITTEN = """
base: balanced
image: {codec: oscar, bits: 2, group_size: 128, norm: none}
text:
  key: {codec: kivi, bits: 4, group_size: 32}
  value: bf16
audio: small
skip_layers: [0, -1]
overrides:
  - layers: [1]
    image: {bits: 4}
residual_length: 64
exact_dtype: float16
budget: 512 MiB
retention: {mode: joint, heads: uniform}
"""
_LINES = (
    "a: &a [x, x, x]\nb: &b [*a, *a, *a]\nc: &c [*b, *b, *b]\nname: [*c, *c]",
    "skip_layers: 0x" + "f" * 3000,
    "residual_length: " + "9" * 4000,
    "residual_length: 1e999",
    "budget: .inf",
    "budget: " + "9" * 400 + " TiB",
    "name: 2001-99-99",
    "name: !!python/object/apply:os.system [id]",
    "name: !!binary 'x'",
    "name: !!set {a, b}",
    "? [a, b]\n: 1",
    'name: "\\x00\\uD800"',
    "<<: {base: small}",
    "image: {codec: kivi, bits: 2.0, group_size: 1073741824}",
    "image: {codec: turboquant, bits: 2, seed: 99999999999999999999999}",
    "image: {codec: kitty, bits: 2, boost: .nan}",
    "text: {codec: calibquant, bits: 1, calibration: [.nan, .inf]}",
    "image: {codec: rd, bits: .nan}",
    "image: {codec: ott, bits: 2, pool: 99999999}",
)


class Fuzzer:
    """Presets as files, with bytes, values and lines changed."""

    def __init__(self, folder: Path):
        torch.set_num_threads(1)
        self.path, self.model = folder / "policy.yaml", build("qwen3")
        self.values = [get_policy(name).to_dict() for name in policies()]
        self.texts = [_WRITTEN.encode(), *(yaml.safe_dump(values).encode() for values in self.values)]

    def originals(self) -> list[bytes]:
        """What is broken, whole."""
        return self.texts

    def make(self, rng: random.Random, number: int) -> bytes:
        """The bytes of a file."""
        kind = rng.random()
        if kind < 0.3:
            return mutated_bytes(rng, rng.choice(self.texts), tuple(self.texts))
        if kind < 0.8:
            changed = mutated_json(rng, rng.choice(self.values))
            try:
                return yaml.safe_dump(changed).encode("utf-8", "surrogatepass")
            except (yaml.YAMLError, RecursionError):
                return b"[" * 5000
        text = rng.choice(self.texts).decode() if rng.random() < 0.5 else ""
        line = rng.choice((*_LINES, *(f"name: {odd}" for odd in ODD_TEXTS)))
        if rng.random() < 0.3:
            count = rng.choice((10, 1000, 100_000))
            line = rng.choice(("[" * count, "{a: " * count, "- " * count, "a: 1\n" * count)) + line
            line = "\n".join(f"key{i}: {i}" for i in range(count)) if rng.random() < 0.3 else line
        return f"{text}\n{line}\n".encode("utf-8", "surrogatepass")

    def run(self, data: bytes) -> None:
        """Read the file, and pack a prompt with it."""
        self.path.write_bytes(data)
        cache = KVMMCache.for_model(self.model, self.path)
        with torch.inference_mode():
            self.model(**inputs("qwen3"), past_key_values=cache, use_cache=True)
            self.model(input_ids=torch.full((1, 1), 7), past_key_values=cache, use_cache=True)
        cache.memory()
