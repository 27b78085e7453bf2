"""What keys and values look like, and what an error in each of them costs.

A prompt is split where its last medium ends. The document before is read exactly, as a cache would hold it when it is
packed; its keys and values, and those of the question and the answer as they come, are where the loss of the answer is
differentiated: the gradients say which layers, heads and directions the answer depends on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers.cache_utils import Cache, DynamicLayer

from kvmm.attention import PackedHandle, install_attention
from kvmm.calibration import SiteSamples
from kvmm.modality import modality_of_ids
from kvmm.models.caches import DYNAMIC
from kvmm.models.documents import Document, read_on
from kvmm.policy import KVPolicy

TEMPERATURE = 2.0  # flattens confident predictions, whose gradients say nothing
MAX_VECTORS = 4096  # kept of every site
_VECTORS_A_PROMPT = 128


class _Probe(DynamicLayer):
    """A dense layer whose keys and values are leaves of the graph, and which sees its queries."""

    packed = False

    def __init__(self, document: DynamicLayer):
        super().__init__()
        self.lazy_initialization(document.keys, document.values)
        self.leaves = [(document.keys.detach().requires_grad_(), document.values.detach().requires_grad_())]
        self.keys, self.values = self.leaves[0]
        self.query_moment: torch.Tensor | None = None
        self.queries = 0

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any) -> tuple:
        shift = torch.zeros_like(key_states, requires_grad=True), torch.zeros_like(value_states, requires_grad=True)
        self.leaves.append(shift)
        self.keys = torch.cat((self.keys, key_states + shift[0]), -2)
        self.values = torch.cat((self.values, value_states + shift[1]), -2)
        handle = PackedHandle(self, key_states.device)
        return handle, handle

    def observe(self, query: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        heads, dim = self.keys.shape[1], query.shape[-1]
        grouped = query.detach().float().reshape(heads, -1, dim)
        moment = grouped.transpose(-1, -2) @ grouped
        self.query_moment = moment if self.query_moment is None else self.query_moment + moment
        self.queries += grouped.shape[1]
        return self.keys, self.values


@dataclass
class _Sums:
    """Running sums of one site; tensors ``[H, ...]`` float32."""

    count: int = 0
    total: Any = 0.0
    products: Any = 0.0
    gradients: Any = 0.0
    vectors: list | None = None

    def add(self, x: torch.Tensor, gradient: torch.Tensor | None, generator: torch.Generator) -> None:
        """Add vectors and their gradients ``[H, n, D]``."""
        self.count += x.shape[1]
        self.total = self.total + x.sum(1)
        self.products = self.products + x.transpose(-1, -2) @ x
        if gradient is not None:
            self.gradients = self.gradients + gradient.transpose(-1, -2) @ gradient
        kept = torch.randperm(x.shape[1], generator=generator)[:_VECTORS_A_PROMPT].to(x.device)
        self.vectors = [*(self.vectors or []), x[:, kept].cpu()]


class Collector:
    """Collects :class:`SiteSamples` of every layer, side and modality from prompts.

    Args:
        model: as ``load_model`` returns it. Its weights are not changed.
        gradients: take the importance from gradients of the answers' loss; without, codecs fall back to queries and
            output weights, which is quicker and needs no memory for a backward pass.
        seed: of the labels drawn from the model's predictions and of the vectors kept.
    """

    def __init__(self, model: Any, *, gradients: bool = True, seed: int = 0):
        install_attention()
        self.model, self.gradients = model, gradients
        self.generator = torch.Generator().manual_seed(seed)
        self.sums: dict[tuple[int, str, int], _Sums] = {}
        self.queries: dict[int, tuple[Any, int]] = {}
        self.prompts = 0

    def add(self, inputs: Mapping[str, torch.Tensor], answer: torch.Tensor, document: Document | None = None) -> None:
        """Add one prompt and its answer.

        Args:
            inputs: the inputs of a prompt of one sequence.
            answer: int64 ``[n]``, the answer's tokens.
            document: the prompt's document, if it has been read already.

        Raises:
            KVMMError: for several sequences, padding, or a prompt without a document.
        """
        if document is None:
            with torch.no_grad():
                document = Document(self.model, inputs)
        cache = document.cache(DYNAMIC)
        probes = {i: _Probe(layer) for i, layer in enumerate(cache.layers) if type(layer) is DynamicLayer}
        cache = Cache(layers=[probes.get(i, layer) for i, layer in enumerate(cache.layers)])
        prompt = inputs["input_ids"].shape[1]
        with frozen(self.model):
            logits = read_on(self.model, inputs, cache, answer[None, :-1], gradients=self.gradients)
        leaves = [leaf for probe in probes.values() for pair in probe.leaves for leaf in pair]
        gradients = iter(self._differentiate(logits[prompt - document.length - 1 :], leaves))
        ids = torch.cat([inputs["input_ids"][0], answer[:-1].to(inputs["input_ids"])])
        modality = modality_of_ids(ids[None], self.model.config)[0]
        modality[: KVPolicy.num_sink_tokens] = -1  # kept exact, and in language models unlike all others
        for index, probe in probes.items():
            by_side = list(zip(*[(next(gradients), next(gradients)) for _ in probe.leaves], strict=True))
            for side, x, parts in zip(("key", "value"), (probe.keys, probe.values), by_side, strict=True):
                self._add_site(index, side, x[0], parts, modality)
            moment, count = self.queries.get(index, (0.0, 0))
            self.queries[index] = (moment + probe.query_moment, count + probe.queries)
        self.prompts += 1

    def _differentiate(self, logits: torch.Tensor, leaves: list[torch.Tensor]) -> list[torch.Tensor | None]:
        """Gradients of the loss of labels drawn from the flattened predictions ``[n, V]``.

        Labels drawn from the model itself make the mean outer product of gradients the Fisher matrix, which is the
        curvature of the predictions' divergence: exactly what a quantiser adds to.
        """
        if not self.gradients:
            return [None] * len(leaves)
        log_probabilities = (logits.float() / TEMPERATURE).log_softmax(-1)
        drawn = torch.multinomial(log_probabilities.detach().exp().cpu(), 1, generator=self.generator)
        # d loss / d logits is in the unit of the model's own logits whatever the temperature
        loss = -log_probabilities.gather(-1, drawn.to(logits.device)).sum() * TEMPERATURE
        return list(torch.autograd.grad(loss, leaves, allow_unused=True))

    def _add_site(
        self, index: int, side: str, x: torch.Tensor, parts: tuple[torch.Tensor | None, ...], modality: torch.Tensor
    ) -> None:
        x = x.detach().float()
        gradient = None
        if self.gradients:
            widths = [parts[0].shape[2], x.shape[1] - parts[0].shape[2]]
            known = [
                x.new_zeros(x.shape[0], w, x.shape[2]) if g is None else g[0]
                for g, w in zip(parts, widths, strict=True)
            ]
            gradient = torch.cat(known, 1).float()
        for code in modality.unique().tolist():
            if code < 0:
                continue
            chosen = (modality == code).nonzero()[:, 0].to(x.device)
            sums = self.sums.setdefault((index, side, code), _Sums())
            sums.add(
                x.index_select(1, chosen),
                None if gradient is None else gradient.index_select(1, chosen),
                self.generator,
            )

    def samples(self) -> dict[tuple[int, str, int], SiteSamples]:
        """What was seen: ``{(layer, side, modality): SiteSamples}``, on the CPU."""
        found = {}
        for (index, side, code), sums in sorted(self.sums.items()):
            mean = sums.total / sums.count
            covariance = sums.products / sums.count - mean[:, :, None] * mean[:, None, :]
            if side == "key":
                moment, count = self.queries[index]
                moment = moment / max(count, 1)
            else:
                moment = output_moment(self.model, index, *mean.shape)
            vectors = torch.cat(sums.vectors, 1)
            if vectors.shape[1] > MAX_VECTORS:
                vectors = vectors[:, torch.randperm(vectors.shape[1], generator=self.generator)[:MAX_VECTORS]]
            importance = sums.gradients / sums.count if self.gradients else None
            found[index, side, code] = SiteSamples(
                side,
                vectors,
                mean.cpu(),
                covariance.cpu(),
                None if importance is None else importance.cpu(),
                None if moment is None else moment.float().cpu(),
            )
        return found


@contextmanager
def frozen(model: nn.Module) -> Iterator[None]:
    """No gradients for the weights, so that the graph keeps only what keys and values need."""
    trained = [p for p in model.parameters() if p.requires_grad]
    for p in trained:
        p.requires_grad_(False)
    try:
        yield
    finally:
        for p in trained:
            p.requires_grad_(True)


def output_moment(model: nn.Module, layer: int, heads: int, dim: int) -> torch.Tensor | None:
    """``W_o^T W_o`` of the query heads that read each KV head, summed: float32 ``[H_kv, D, D]``.

    None for a model whose attention has no ``o_proj`` of the usual shape.
    """
    decoder = model.get_decoder()
    decoder = getattr(decoder, "language_model", decoder)
    attention = getattr(decoder.layers[layer], "self_attn", None)
    weight = getattr(getattr(attention, "o_proj", None), "weight", None)
    if weight is None or not weight.is_floating_point() or weight.shape[1] % (heads * dim):
        return None
    columns = weight.detach().float().unflatten(1, (heads, -1, dim))  # [hidden, H_kv, R, D]
    return torch.einsum("ohrd,ohre->hde", columns, columns)
