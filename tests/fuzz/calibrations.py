"""Calibration files: read for a model, then used by a cache that packs."""

from __future__ import annotations

import json
import random
from pathlib import Path

import torch
from safetensors.torch import save

from kvmm import KVMMCache
from kvmm.calibration import Calibration, SiteSamples, model_fingerprint, read_calibration, site_name
from kvmm.calibration.heads import head_shapes
from kvmm.codecs import codec_class
from kvmm.modality import MODALITY_NAMES
from kvmm.policy import KVPolicy, KVSpec, spec
from tests.fuzz.mutate import mutated_bytes, mutated_header, mutated_json
from tests.fuzz.tensors import broken_value, mutated_tensors, read_whole
from tests.tiny_models import build, inputs

_CODECS = ("rd", "spherical")


def fitted(model: torch.nn.Module) -> Calibration:
    """Codecs fitted to random vectors, for every layer, side and modality of a model."""
    tensors = {}
    for layer, shape in head_shapes(model).items():
        x = torch.randn(shape.heads, 1200, shape.key_dim, generator=torch.Generator().manual_seed(layer))
        x = x * 0.9 ** torch.arange(shape.key_dim)
        mean, identity = x.mean(1), torch.eye(shape.key_dim).expand(shape.heads, -1, -1)
        covariance = x.transpose(1, 2) @ x / x.shape[1] - mean[:, :, None] * mean[:, None, :]
        for side in ("key", "value"):
            found = {c: codec_class(c).fit(SiteSamples(side, x, mean, covariance, identity, identity)) for c in _CODECS}
            for modality in range(len(MODALITY_NAMES)):
                for codec, made in found.items():
                    tensors |= {site_name(codec, layer, side, modality) + name: t for name, t in made.items()}
    tensors = {name: tensor.clone() for name, tensor in tensors.items()}
    metadata = {"importance": "gradient", "model": "x", "calibquant_tau": {"paper-1": [0, 1], "mean-1": [1, 2]}}
    return Calibration(model_fingerprint(model), tensors, metadata)


class Fuzzer:
    """One file with fits for three codecs, and a policy that reads all of them."""

    def __init__(self, folder: Path):
        torch.set_num_threads(1)
        self.path, self.model = folder / "fit.safetensors", build("qwen2_5_vl")
        fitted(self.model).save(self.path)
        self.data = self.path.read_bytes()
        calibquant = spec("calibquant", 1, calibration="file")
        pairs = [(spec("rd", 2), spec("rd", 1.5)), (spec("spherical", 0.875), spec("spherical", 2)), (calibquant,) * 2]
        kinds = [KVSpec(*pair) for pair in pairs]
        self.policies = [
            KVPolicy(
                "fitted",
                text=one,
                image=other,
                audio=other,
                residual_length=0,
                flush_length=32,
                calibration=str(self.path),
            )
            for one, other in zip(kinds, [*kinds[1:], kinds[0]], strict=True)
        ]

    def originals(self) -> list[tuple[bytes, int]]:
        """What is broken, whole."""
        return [(self.data, 0), (self.data, 1), (self.data, 2)]

    def make(self, rng: random.Random, number: int) -> tuple[bytes, int]:
        """A file, and the policy to use it with."""
        kind, chosen = rng.random(), rng.randrange(3)
        if kind < 0.1:
            return mutated_bytes(rng, self.data), chosen
        if kind < 0.3:
            return mutated_header(rng, self.data), chosen
        self.path.write_bytes(self.data)
        tensors, header = read_whole(self.path)
        if kind < 0.75:
            tensors = mutated_tensors(rng, tensors)
        if kind > 0.65:
            header["metadata"] = json.dumps(mutated_json(rng, json.loads(header["metadata"])))
        if rng.random() < 0.05:
            broken_value(rng, header)
        if rng.random() < 0.05:
            del header[rng.choice(sorted(header))]
        return save(tensors, header), chosen

    def run(self, given: tuple[bytes, int]) -> None:
        """Read the file, and pack a prompt with it."""
        data, chosen = given
        self.path.write_bytes(data)
        read_calibration(self.path)
        cache = KVMMCache.for_model(self.model, self.policies[chosen])
        with torch.inference_mode():
            self.model(**inputs("qwen2_5_vl"), past_key_values=cache, use_cache=True)
            for _ in range(2):
                self.model(input_ids=torch.full((1, 1), 7), past_key_values=cache, use_cache=True)
        cache.memory()
        for layer in cache.layers:
            layer.keys.sum(), layer.values.sum()
