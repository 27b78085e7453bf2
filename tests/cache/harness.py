"""A cache without a model: keys and values go in, attention comes out, compared with SDPA on the decoded cache."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from transformers import LlamaConfig

from kvmm import KVMMCache
from kvmm.codecs import codec_class, codec_names
from kvmm.kernels.hadamard import hadamard_matrix
from kvmm.modality import PADDING
from kvmm.policy import CodecSpec, KVPolicy, KVSpec, spec

__all__ = ["Harness", "hadamard_matrix", "layout", "matrix_specs", "uniform", "with_scores_as_decoded"]


def matrix_specs() -> list[CodecSpec]:
    """Every registered codec at every width, with groups inside a page, of a page, and over the whole span."""
    specs = []
    for name in codec_names():
        own = getattr(codec_class(name), "matrix_specs", None)
        if own is not None:
            specs += own()
            continue
        bits = codec_class(name).bits
        groups = (32, 128, None) if name != "bf16" else (None,)
        specs += [spec(name, b, g) for b in bits for g in groups]
    return specs


def uniform(kv: CodecSpec, **fields: Any) -> KVPolicy:
    """A policy with one spec for everything, and pages of text that short prompts fill."""
    fields.setdefault("flush_length", 32)
    both = KVSpec(kv, kv)
    return KVPolicy("test", text=both, image=both, video=both, audio=both, **fields)


def with_scores_as_decoded(policy: KVPolicy) -> KVPolicy:
    """The policy without CalibQuant's logit calibration, which SDPA over decoded keys does not know."""

    def plain(one: CodecSpec) -> CodecSpec:
        return replace(one, options=tuple(pair for pair in one.options if pair[0] != "calibration"))

    return policy.map_specs(lambda kv: KVSpec(plain(kv.key), plain(kv.value)))


def layout(*runs: tuple[int, int]) -> list[int]:
    """``(modality, count)`` runs to a list of codes."""
    return [modality for modality, count in runs for _ in range(count)]


class Harness:
    """One layer's life: ``feed`` new tokens, compare what their queries read."""

    def __init__(self, policy: KVPolicy, heads: int = 2, ratio: int = 3, dim: int = 64, seed: int = 0):
        config = LlamaConfig(
            hidden_size=heads * ratio * dim,
            num_attention_heads=heads * ratio,
            num_key_value_heads=heads,
            head_dim=dim,
            num_hidden_layers=1,
        )
        self.config = config
        self.cache = KVMMCache(config, policy)
        self.layer = self.cache.layers[0]
        self.heads, self.ratio, self.dim = heads, ratio, dim
        self.generator = torch.Generator().manual_seed(seed)
        self.keys: torch.Tensor | None = None  # exact
        self.values: torch.Tensor | None = None
        self.valid: torch.Tensor | None = None

    def random(self, *shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=self.generator)

    def feed(self, codes: list[list[int]], key: torch.Tensor | None = None, value: torch.Tensor | None = None) -> Any:
        """Append tokens of the given modalities (``PADDING``: none) in one call; returns what ``update`` returned."""
        modality = torch.tensor(codes, dtype=torch.int8)
        batch, count = modality.shape
        shape = (batch, self.heads, count, self.dim)
        key = self.random(*shape) if key is None else key
        value = self.random(*shape) if value is None else value
        # padding must never matter, so make it harmful
        hole = (modality == PADDING)[:, None, :, None]
        key, value = key.masked_fill(hole, 1e4), value.masked_fill(hole, -1e4)
        self.cache.set_modality(modality)
        self.cache.announce(torch.zeros(batch, count, dtype=torch.long), None, None)
        result = self.cache.update(key, value, 0)
        self.keys = key if self.keys is None else torch.cat((self.keys, key), 2)
        self.values = value if self.values is None else torch.cat((self.values, value), 2)
        valid = modality != PADDING
        self.valid = valid if self.valid is None else torch.cat((self.valid, valid), 1)
        return result

    def visible(self, count: int) -> torch.Tensor:
        """bool ``[B, 1, count, T]``: causal among the last ``count`` tokens, without padding."""
        length = self.valid.shape[1]
        causal = torch.arange(length) <= torch.arange(length - count, length)[:, None]
        return (causal & self.valid[:, None, :]).unsqueeze(1)

    def compare(self, count: int, mask: str = "none") -> float:
        """Largest difference between packed attention and SDPA over the decoded cache, for the last tokens' queries.

        ``mask``: how the padding is told: ``none`` (only the cache knows), ``short`` (bool ``[B, T]``), ``full``.
        """
        batch = self.valid.shape[0]
        query = self.random(batch, self.heads * self.ratio, count, self.dim)
        visible = self.visible(count)
        given = {"none": None, "short": self.valid, "full": visible}[mask]
        output = self.layer.attend(query, given, self.dim**-0.5)
        key, value = self.layer.dense()
        assert key.shape == self.keys.shape
        key, value = (x.repeat_interleave(self.ratio, 1) for x in (key, value))
        expected = torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=visible)
        real = self.valid[:, None, -count:, None].expand_as(output)
        assert torch.isfinite(output).all()
        scale = max(1.0, float(value.abs().max()) / 10)
        return float((output - expected)[real].abs().max()) / scale
