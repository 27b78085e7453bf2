"""Refine the transforms of ``rd`` by what packing a document changes in the model's predictions.

The weighted Karhunen-Loeve transform is best for errors that are small and independent of one another. Those of one or
two bits are neither: they meet in the softmax, and every layer sees those of the layers before. So the closed form is
where a gradient descent starts. Its loss is the divergence of the predictions over a packed document from those over
an exact one; the rounding to codes passes gradients straight through (Bengio et al., arXiv 1308.3432).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from transformers.cache_utils import Cache, DynamicLayer

from kvmm.calibration.collect import frozen
from kvmm.calibration.data import Calibration, SiteSamples, site_name
from kvmm.codecs.rd import RD
from kvmm.codecs.rd.fit import comparable_bits
from kvmm.errors import KVMMError
from kvmm.kernels.quantize import GAUSSIAN_HALF_STEP
from kvmm.modality import MODALITY_NAMES, modality_of_ids
from kvmm.models.caches import DYNAMIC
from kvmm.models.documents import Document, read_on
from kvmm.policy import KVPolicy

RATES = (1.0, 1.5, 2.0, 2.5)  # average bits that one transform serves, taken in turn
LEARNING_RATE = 2e-3  # of the mean magnitude of a tensor's entries
_WARM_UP = 20  # steps
_METADATA = "refined"

Prompt = tuple[Mapping[str, torch.Tensor], torch.Tensor, Document]
"""A prompt's inputs, the tokens of its answer int64 ``[n]``, and its document, read exactly."""


class RefinedSite:
    """The transform of one site as what is learned.

    Attributes:
        forward: float32 ``[H, D, D]``, learned.
        mean: float32 ``[H, D]``, learned.
        norm: whether token norms are divided out.
        bits: int64 ``[D]`` by rate of :data:`RATES`.
    """

    def __init__(self, tensors: Mapping[str, torch.Tensor], bits: Mapping[float, torch.Tensor], device: Any) -> None:
        self.forward = tensors["transform"].to(device, torch.float32).requires_grad_()
        self.mean = tensors["mean"].to(device, torch.float32, copy=True).requires_grad_()
        self.norm = bool(tensors["norm"])
        self.bits = {rate: own.to(device) for rate, own in bits.items()}

    def rounded(self, x: torch.Tensor, rate: float) -> torch.Tensor:
        """Vectors ``[H, n, D]`` as they are read from codes of ``rate`` bits, differentiable; in their dtype."""
        vectors = x.float()
        length = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True).clamp_min(1e-6) if self.norm else None
        z = (vectors if length is None else vectors / length) - self.mean.unsqueeze(1)
        z = z @ self.forward.transpose(1, 2)
        coded = rounded_channels(z, self.bits[rate]) @ torch.linalg.inv(self.forward).transpose(1, 2)
        coded = coded + self.mean.unsqueeze(1)
        return (coded if length is None else coded * length).to(x.dtype)


def rounded_channels(z: torch.Tensor, bits: torch.Tensor) -> torch.Tensor:
    """Channels ``[H, n, D]`` rounded to the levels that suit a Gaussian of their mean and deviation.

    ``bits`` int64 ``[D]``; a channel without bits is its mean. Gradients pass the rounding as if it were not there,
    and end where the outermost level clips.
    """
    mean = z.mean(1, keepdim=True)
    deviation = ((z - mean).square().mean(1, keepdim=True) + 1e-12).sqrt()  # finite gradients at zero, too
    # a channel without bits needs a step that gradients can be divided by
    half = torch.tensor([GAUSSIAN_HALF_STEP.get(b) or 1.0 for b in range(9)], device=z.device)[bits]
    step = 2 * half * deviation
    most = (2.0**bits - 1) / 2
    position = ((z - mean) / step).clamp(-most - 0.5, most + 0.5)
    level = ((position + most).round().clamp(min=torch.zeros_like(most), max=2 * most) - most).detach()
    level = position + (level - position).detach()
    return mean + torch.where(bits > 0, level, torch.zeros_like(level)) * step


def refine(
    model: Any,
    prompts: Callable[[int], Prompt],
    calibration: Calibration,
    samples: Mapping[tuple[int, str, int], SiteSamples],
    *,
    steps: int,
    rates: Sequence[float] = RATES,
    learning_rate: float = LEARNING_RATE,
) -> Iterator[tuple[int, float] | Calibration]:
    """Improve the transforms of a calibration by gradient descent; everything else in it stays.

    Args:
        model: as ``load_model`` returns it. Its weights are not changed.
        prompts: gives the prompt of a step.
        calibration: fitted to the model.
        samples: what it was fitted to; the channels keep the deviations that they have there.
        steps: one prompt each.
        rates: average bits, taken in turn.
        learning_rate: largest step, as a share of the mean magnitude of what is learned.

    Yields:
        The number of steps and the divergence in nats a token, after each; last the :class:`Calibration`.

    Raises:
        KVMMError: the calibration has no transforms of ``rd``, or the loss is not finite.
    """
    sites = _sites(calibration, rates, model.device)
    if not sites:
        raise KVMMError("There are no transforms to refine: calibrate without --refine-steps.")
    groups = [
        {"params": [tensor], "most": learning_rate * max(float(tensor.detach().abs().mean()), 1e-6)}
        for site in sites.values()
        for tensor in (site.forward, site.mean)
    ]
    optimizer = torch.optim.Adam(groups, lr=0.0, betas=(0.9, 0.98))
    for step in range(steps):
        share = min(1.0, (step + 1) / _WARM_UP) * 0.5 * (1 + math.cos(math.pi * step / steps))
        for group in optimizer.param_groups:
            group["lr"] = share * group["most"]
        loss = _divergence(model, *prompts(step), sites, rates[step % len(rates)])
        if not bool(torch.isfinite(loss)):
            raise KVMMError("The divergence is not finite: refine in float32, or with a smaller learning rate.")
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        yield step + 1, float(loss.detach())
    tensors = dict(calibration.tensors)
    for (layer, side, modality), site in sites.items():
        name = site_name(RD.name, layer, side, modality)
        forward = _with_deviations(site, samples.get((layer, side, modality)), tensors[name + "variance"])
        tensors[name + "transform"] = forward.to(torch.float16)
        tensors[name + "mean"] = site.mean.detach().cpu()
    yield replace(calibration, tensors=tensors, metadata={**calibration.metadata, _METADATA: steps})


def _sites(
    calibration: Calibration, rates: Iterable[float], device: torch.device
) -> dict[tuple[int, str, int], RefinedSite]:
    found = {}
    for modality in range(len(MODALITY_NAMES)):
        own = [
            site
            for site in calibration.sites(RD.name, modality)
            if site_name(RD.name, *site, modality) + "transform" in calibration.tensors  # not those of another modality
        ]
        if not own:
            continue
        bits = {rate: comparable_bits(calibration, RD.name, modality, rate) for rate in rates}
        for layer, side in own:
            tensors = calibration.site(RD.name, layer, side, modality)
            by_rate = {rate: shared[layer, side] for rate, shared in bits.items()}
            found[layer, side, modality] = RefinedSite(tensors, by_rate, device)
    return found


def _divergence(
    model: Any,
    inputs: Mapping[str, torch.Tensor],
    answer: torch.Tensor,
    document: Document,
    sites: Mapping[tuple[int, str, int], RefinedSite],
    rate: float,
) -> torch.Tensor:
    """KL of the predictions over the rounded document from those over the exact one, mean over the tokens read on."""
    with torch.no_grad():
        exact = read_on(model, inputs, document.cache(DYNAMIC), answer[None, :-1])
        exact = exact[-len(answer) :].float().log_softmax(-1)
    modality = modality_of_ids(inputs["input_ids"][:, : document.length], model.config)[0].to(model.device)
    modality[: KVPolicy.num_sink_tokens] = -1  # kept exact
    cache = document.cache(DYNAMIC)
    layers = [
        _rounded_layer(index, layer, modality, sites, rate) if type(layer) is DynamicLayer else layer
        for index, layer in enumerate(cache.layers)
    ]
    with frozen(model):
        found = read_on(model, inputs, Cache(layers=layers), answer[None, :-1], gradients=True)
    found = found[-len(answer) :].float().log_softmax(-1)
    return (exact.exp() * (exact - found)).sum(-1).mean()


def _rounded_layer(
    index: int,
    layer: DynamicLayer,
    modality: torch.Tensor,
    sites: Mapping[tuple[int, str, int], RefinedSite],
    rate: float,
) -> DynamicLayer:
    rounded = {}
    for side, x in (("key", layer.keys), ("value", layer.values)):
        x = x.detach()
        for code in modality.unique().tolist():
            site = sites.get((index, side, code))
            if site is not None:
                chosen = (modality == code).nonzero()[:, 0]
                x = x.index_copy(2, chosen, site.rounded(x[0].index_select(1, chosen), rate)[None])
        rounded[side] = x
    found = DynamicLayer()
    found.lazy_initialization(rounded["key"], rounded["value"])
    found.keys, found.values = rounded["key"], rounded["value"]
    return found


def _with_deviations(site: RefinedSite, samples: SiteSamples | None, variance: torch.Tensor) -> torch.Tensor:
    """The transform with rows scaled so that channels have the deviations that ``variance`` says, float32.

    Scaling a channel changes nothing in codes whose levels are fitted to a span; spans too short for levels of their
    own take them from the calibration.
    """
    forward = site.forward.detach().cpu()
    if samples is None:
        return forward
    vectors = samples.vectors.float()
    if site.norm:
        vectors = vectors / torch.linalg.vector_norm(vectors, dim=-1, keepdim=True).clamp_min(1e-6)
    z = (vectors - site.mean.detach().cpu().unsqueeze(1)) @ forward.transpose(1, 2)
    found = z.square().mean(1).sqrt()
    wanted = (variance / variance[:, :1].clamp_min(1e-30)).sqrt()
    ratio = torch.where((found > 0) & (wanted > 0), wanted / found.clamp_min(1e-12), torch.ones_like(found))
    return forward * ratio.unsqueeze(-1)


__all__ = ["RATES", "RefinedSite", "refine", "rounded_channels"]
