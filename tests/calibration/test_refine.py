"""Refining transforms by gradient descent, on a tiny random model."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from kvmm.calibration import Calibration, model_fingerprint
from kvmm.calibration.collect import Collector
from kvmm.calibration.data import site_name
from kvmm.calibration.file import _check
from kvmm.calibration.fit import fit_codecs
from kvmm.calibration.refine import RefinedSite, _divergence, _sites, refine, rounded_channels
from kvmm.codecs import Site, build_codec
from kvmm.codecs.base import EncodeContext
from kvmm.codecs.rd.fit import pooled_bits
from kvmm.errors import KVMMError
from kvmm.kernels.quantize import GAUSSIAN_HALF_STEP
from kvmm.modality import IMAGE
from kvmm.models.documents import Document
from kvmm.policy import spec
from tests.tiny_models import build, inputs

ANSWER = torch.tensor([5, 9, 4, 11, 3])


def prompt(seed: int):
    model, arguments = build("qwen2_5_omni"), inputs("qwen2_5_omni", 1, seed=seed)
    with torch.no_grad():
        return arguments, ANSWER, Document(model, arguments)


@pytest.fixture(scope="module")
def fitted():
    model = build("qwen2_5_omni")
    collector = Collector(model)
    for seed in range(3):
        arguments, answer, document = prompt(seed)
        collector.add(arguments, answer, document)
    samples = collector.samples()
    tensors = fit_codecs(samples, ["rd"])
    return model, samples, Calibration(model_fingerprint(model), tensors, {"importance": "gradient"})


def test_channels_are_rounded_to_the_levels_of_a_gaussian():
    z = torch.randn(2, 4000, 5, generator=torch.Generator().manual_seed(0)) * 3 + 1
    bits = torch.tensor([0, 1, 2, 4, 8])
    found = rounded_channels(z, bits)
    for channel, b in enumerate(bits.tolist()):
        levels = found[0, :, channel].unique()
        assert len(levels) <= 2**b
        if 0 < b < 8:
            steps = levels.diff() / z[0, :, channel].std(correction=0)
            torch.testing.assert_close(steps, torch.full_like(steps, 2 * GAUSSIAN_HALF_STEP[b]), atol=1e-3, rtol=1e-3)
    error = (found - z).square().mean((0, 1)) / z.var((0, 1))
    torch.testing.assert_close(error[:4], torch.tensor([1.0, 0.363, 0.119, 0.0115]), atol=2e-3, rtol=0.05)


def test_gradients_pass_the_rounding_and_end_where_it_clips():
    z = torch.linspace(-1, 1, 9)[None, :, None].clone()
    z[0, -1] = 30.0
    z.requires_grad_()
    rounded_channels(z, torch.tensor([2]))[0, :, 0][[2, 8]].sum().backward()
    assert torch.isfinite(z.grad).all() and float(z.grad[0, 2].abs()) > 0.5
    still = torch.full((1, 3, 2), 2.0, requires_grad=True)  # without any deviation
    rounded_channels(still, torch.tensor([0, 2])).sum().backward()
    assert torch.isfinite(still.grad).all()


def test_refining_lowers_the_divergence_and_keeps_the_file_whole(fitted):
    model, samples, calibration = fitted
    before = model.training, [p.requires_grad for p in model.parameters()]
    *steps, refined = refine(model, lambda step: prompt(step % 3), calibration, samples, steps=60, rates=(1.0,))
    assert [number for number, _ in steps] == list(range(1, 61))
    assert before == (model.training, [p.requires_grad for p in model.parameters()])

    def loss(one: Calibration) -> float:
        sites = _sites(one, (1.0,), model.device)
        return sum(float(_divergence(model, *prompt(seed), sites, 1.0).detach()) for seed in range(3))

    assert loss(refined) < 0.8 * loss(calibration)
    _check(refined)
    assert refined.metadata["refined"] == 60 and refined.fingerprint == calibration.fingerprint
    assert set(refined.tensors) == set(calibration.tensors)
    name = site_name("rd", 0, "key", IMAGE)
    assert refined.tensors[name + "transform"].dtype == torch.float16
    assert not torch.equal(refined.tensors[name + "transform"], calibration.tensors[name + "transform"])
    assert torch.equal(refined.tensors[name + "variance"], calibration.tensors[name + "variance"])


def test_channels_keep_their_deviations(fitted):
    model, samples, calibration = fitted
    *_, refined = refine(model, lambda step: prompt(step % 3), calibration, samples, steps=8, learning_rate=0.05)
    site = samples[1, "value", IMAGE]
    tensors = refined.site("rd", 1, "value", IMAGE)
    vectors = site.vectors.float()
    if bool(tensors["norm"]):
        vectors = vectors / vectors.norm(dim=-1, keepdim=True)
    z = (vectors - tensors["mean"].unsqueeze(1)) @ tensors["transform"].float().transpose(1, 2)
    wanted = (tensors["variance"] / tensors["variance"][:, :1]).sqrt()
    large = wanted > 1e-2  # half precision
    torch.testing.assert_close(z.square().mean(1).sqrt()[large], wanted[large], atol=2e-3, rtol=2e-2)


@pytest.mark.parametrize("side", ["key", "value"])
@pytest.mark.parametrize("rate", [1.0, 2.0])
def test_a_rounded_site_is_what_the_codec_reads(fitted, side, rate):
    """But for levels: the codec fits them to the span by least squares, training takes them from its moments."""
    _, samples, calibration = fitted
    bits = pooled_bits(calibration, "rd", IMAGE, rate, None)[1, side]
    x = samples[1, side, IMAGE].vectors.float()
    found = RefinedSite(calibration.site("rd", 1, side, IMAGE), {rate: bits}, "cpu").rounded(x, rate).detach()
    codec = build_codec(spec("rd", rate), side, Site(1, IMAGE, calibration, sibling=spec("rd", rate)))
    read = codec.decode(codec.encode(x[None], EncodeContext(128)))[0, :, : x.shape[1]]
    assert float((found - read).square().mean()) < 0.35 * float((x - read).square().mean())


@pytest.mark.parametrize("importance", ["gradient", "query"])
def test_channels_have_the_bits_that_the_codec_gives_them(fitted, importance):
    """One budget for the model where costs have one unit, one for every layer and side where they have not."""
    calibration = replace(fitted[2], metadata={"importance": importance})
    sites = _sites(calibration, (1.0, 2.0), torch.device("cpu"))
    assert len(sites) > 4
    for (layer, side, modality), site in sites.items():
        for rate, bits in site.bits.items():
            place = Site(layer, modality, calibration, sibling=spec("rd", rate))
            codec = build_codec(spec("rd", rate), side, place)
            transform = codec.transform(len(bits), torch.device("cpu"))
            assert torch.equal(codec.layout(len(bits), transform).bits, bits)


def test_what_cannot_be_refined_is_said(fitted):
    model, samples, calibration = fitted
    with pytest.raises(KVMMError, match="no transforms to refine"):
        next(refine(model, prompt, Calibration(calibration.fingerprint, {}), {}, steps=1))
    broken = dict(calibration.tensors)
    name = site_name("rd", 0, "key", IMAGE) + "mean"
    broken[name] = torch.full_like(broken[name], float("nan"))
    bad = Calibration(calibration.fingerprint, broken, calibration.metadata)
    with pytest.raises(KVMMError, match="not finite"):
        list(refine(model, prompt, bad, samples, steps=1))
