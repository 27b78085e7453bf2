"""Answers that read a packed prefix while it is trained."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from kvmm.calibration import read_calibration
from kvmm.codecs.base import EncodeContext
from kvmm.codecs.rd import RD
from kvmm.codecs.spec import CodecSpec, Site
from kvmm.modality_codes import AUDIO, IMAGE, TEXT
from tests.training.test_train import train
from training.model import OmniModel
from training.model_config import AUDIO_TOKEN, IMAGE_TOKEN
from training.packed_prefix import CodedLayer, CodedSite, PackedPrefix

FILE = Path(__file__).parents[2] / "assets" / "tiny-omni" / "kvmm_calibration.safetensors"
CPU = torch.device("cpu")
LAYERS, HEADS, DIM = 8, 2, 64


def vectors(layer: int, side: str, modality: int, count: int = 256) -> torch.Tensor:
    """Vectors `[count, H, D]` with the mean and the deviations that the calibration has for a site."""
    site = read_calibration(FILE).site("rd", layer, side, modality)
    deviation = (site["variance"] / site["variance"][:, :1]).sqrt()
    z = torch.randn(count, HEADS, DIM) * deviation
    return torch.einsum("thc,hdc->thd", z, torch.linalg.inv(site["transform"].float())) + site["mean"]


@pytest.mark.parametrize("bits", [1.0, 2.0])
@pytest.mark.parametrize("modality", [TEXT, IMAGE, AUDIO])
@pytest.mark.parametrize("side", ["key", "value"])
def test_a_step_reads_what_the_codec_gives_back(side, modality, bits):
    torch.manual_seed(0)
    calibration, spec = read_calibration(FILE), CodecSpec("rd", bits)
    for layer in range(LAYERS):
        x = vectors(layer, side, modality)
        fixed = CodecSpec("rd", bits, None, (("levels", "fixed"), ("parameters", "float32")))
        codec = RD(fixed, side, Site(layer, modality, calibration, spec))
        expected = codec.decode(codec.encode(x.transpose(0, 1)[None], EncodeContext(page_size=128)))[0].transpose(0, 1)
        found, _ = CodedSite(calibration, layer, side, modality, bits, CPU).read(x)
        # a value on the border between two codes may fall on either side
        near = torch.isclose(found, expected, rtol=1e-3, atol=1e-3 * float(x.std())).all(-1)
        assert near.float().mean() > 0.98
        assert not torch.allclose(found, x, rtol=1e-3, atol=1e-3)


def test_gradients_pass_channels_with_bits_alone():
    site = CodedSite(read_calibration(FILE), 3, "key", IMAGE, 1.0, CPU)
    assert site.coded.any()
    assert not site.coded.all()
    x = vectors(3, "key", IMAGE, 8).requires_grad_()
    site.read(x)[0].square().sum().backward()
    moved = torch.einsum("thd,hdc->thc", x.grad, site.inverse)  # by which each channel of the transform would move
    assert moved[..., site.coded].abs().max() > 0
    assert moved[..., ~site.coded].abs().max() < 1e-4 * moved.abs().max()


def test_keys_far_beyond_the_levels_stay_exact():
    torch.manual_seed(0)
    calibration = read_calibration(FILE)
    key, value = (CodedSite(calibration, 2, side, IMAGE, 1.0, CPU) for side in ("key", "value"))
    k, v = vectors(2, "key", IMAGE, 512), vectors(2, "value", IMAGE, 512)
    k[77] *= 40
    tokens = torch.ones(512, dtype=torch.bool)
    tokens[300:] = False
    held_k, held_v = CodedLayer(tokens[:, None], [(tokens, key, value)]).held(k, v)
    for held, exact in ((held_k, k), (held_v, v)):
        same = (held == exact).all(-1)
        assert same[77].all()
        assert same[300:].all()
        assert same[:300].float().mean() < 0.05


@pytest.mark.parametrize("media", ["text", "page", "recording"])
def test_branches_read_codes_and_the_prefix_reads_itself(media):
    torch.manual_seed(0)
    model = OmniModel().eval()
    token = {"text": 50, "page": IMAGE_TOKEN, "recording": AUDIO_TOKEN}[media]
    ids = torch.tensor([[1, 20, *[token] * 36, 21, 30, 31, 32, 40, 41, 0]])
    seg = torch.tensor([[0] * 39 + [1] * 3 + [2] * 2 + [255]], dtype=torch.uint8)
    pos = torch.arange(ids.shape[1]).expand(3, 1, -1)
    given = {}
    if media == "page":
        given = {"visual": torch.randn(36, 384), "image_index": (ids[0] == token).nonzero()[:, 0]}
    if media == "recording":
        given = {"audio": torch.randn(36, 384), "audio_index": (ids[0] == token).nonzero()[:, 0]}
    with torch.no_grad():
        exact = model.hidden_states(ids, pos, seg, **given)
        coarse, fine = (
            model.hidden_states(ids, pos, seg, **given, packed=PackedPrefix(FILE, LAYERS, bits, CPU))
            for bits in (0.5, 8.0)
        )
    if media == "text":
        assert torch.equal(coarse, exact)
        return
    prefix, branches = slice(0, 39), slice(39, 44)
    assert torch.equal(coarse[prefix], exact[prefix])
    far, near = ((x[branches] - exact[branches]).norm() / exact[branches].norm() for x in (coarse, fine))
    assert 0 < near < far


def test_a_run_trains_on_packed_prefixes(tmp_path):
    options = ("--packed", str(FILE), "--packed-share", "1", "--packed-bits", "1", "--seed", "3", "--steps", "1")
    lines = []
    for name, more in (("exact", ()), ("packed", options[:6])):
        log = train("--out", str(tmp_path / name), *options[-4:], *more)
        lines.append(next(line for line in log.splitlines() if " step 1 " in line).partition(" lr ")[2])
    assert lines[0] != lines[1]
