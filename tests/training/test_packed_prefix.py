"""Answers that read a packed prefix while it is trained."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from PIL import Image

from kvmm.calibration import Calibration, read_calibration
from kvmm.codecs.base import EncodeContext
from kvmm.codecs.common.outliers import num_outliers
from kvmm.codecs.common.transform import offline_transform
from kvmm.codecs.rd import RD
from kvmm.codecs.rd.clipped import find_clipped
from kvmm.codecs.spec import CodecSpec, Site
from kvmm.errors import KVMMError
from kvmm.modality_codes import AUDIO, IMAGE, TEXT
from kvmm.models import load_model
from kvmm.models.documents import Document, read_on
from kvmm.models.positions import all_position_ids, extended_position_ids
from kvmm.models.prompting import document_length
from kvmm.policy import get_policy
from tests.training.test_train import train
from training.arguments import parse_arguments
from training.checkpoints import load_weights
from training.model import OmniModel
from training.model_config import AUDIO_TOKEN, IMAGE_TOKEN, ModelConfig
from training.packed_prefix import OUTLIERS, CodedLayer, CodedSite, PackedPrefix

ASSETS = Path(__file__).parents[2] / "assets"
FILE, SAMPLES = ASSETS / "tiny-omni" / "kvmm_calibration.safetensors", ASSETS / "samples"
CPU = torch.device("cpu")
LAYERS, HEADS, DIM = 8, 2, 64


def vectors(layer: int, side: str, modality: int, count: int = 256, rows: int = 1) -> torch.Tensor:
    """Vectors `[rows, H, count, D]` with the mean and the deviations that the calibration has for a site."""
    site = read_calibration(FILE).site("rd", layer, side, modality)
    deviation = (site["variance"] / site["variance"][:, :1]).sqrt()[:, None]
    z = torch.randn(rows, HEADS, count, DIM) * deviation
    return z @ torch.linalg.inv(site["transform"].float()).transpose(1, 2) + site["mean"][:, None]


@pytest.mark.parametrize("mixed", [False, True], ids=["float32", "autocast"])
@pytest.mark.parametrize("bits", [1.0, 2.0])
@pytest.mark.parametrize("modality", [TEXT, IMAGE, AUDIO])  # of tiny-omni only sites of text divide norms out
@pytest.mark.parametrize("side", ["key", "value"])
def test_a_step_reads_what_the_codec_gives_back(side, modality, bits, mixed):
    torch.manual_seed(0)
    calibration, spec = read_calibration(FILE), CodecSpec("rd", bits)
    fixed = CodecSpec("rd", bits, None, (("levels", "fixed"), ("parameters", "float32")))
    for layer in range(LAYERS):
        x = vectors(layer, side, modality, 128)  # longer spans have levels of their own
        codec = RD(fixed, side, Site(layer, modality, calibration, spec))
        expected = codec.decode(codec.encode(x, EncodeContext(page_size=128)))
        site = CodedSite(calibration, layer, side, modality, bits)
        with torch.autocast("cpu", torch.bfloat16, enabled=mixed):
            found = site(x)
        assert found.dtype == torch.float32
        # a value on the border between two codes may fall on either side
        near = torch.isclose(found, expected, rtol=1e-3, atol=1e-3 * float(x.std())).all(-1)
        assert near.float().mean() > 0.98


@pytest.mark.parametrize("side", ["key", "value"])
def test_longer_spans_are_read_about_as_the_codec_gives_them_back(side):
    """Both have the span's mean; the codec refines levels, so that values between two codes may change sides."""
    torch.manual_seed(0)
    calibration, spec = read_calibration(FILE), CodecSpec("rd", 1.0)
    for layer in range(LAYERS):
        x = vectors(layer, side, IMAGE, 512, rows=2)
        x = x + x.std() * torch.randn(2, HEADS, 1, DIM)  # away from what the file knows
        codec = RD(spec, side, Site(layer, IMAGE, calibration, spec))
        expected = codec.decode(codec.encode(x, EncodeContext(page_size=128)))
        found = CodedSite(calibration, layer, side, IMAGE, 1.0)(x)
        assert (found - expected).norm() < 0.5 * (x - expected).norm()


def test_gradients_pass_channels_with_bits_as_if_these_were_exact():
    site = CodedSite(read_calibration(FILE), 3, "key", IMAGE, 1.0)
    assert 0 < site.coded.sum() < DIM
    x, weight = vectors(3, "key", IMAGE, 8).requires_grad_(), torch.randn(DIM)
    (site(x) @ weight).sum().backward()
    kept = (site.inverse * site.coded) @ site.matrix  # the projection on the channels with bits
    torch.testing.assert_close(x.grad, (weight @ kept)[None, :, None].expand_as(x), rtol=1e-3, atol=1e-3)


def test_outliers_are_those_of_the_codec():
    torch.manual_seed(0)
    calibration = read_calibration(FILE)
    for layer in range(LAYERS):
        keys = vectors(layer, "key", IMAGE, 600, rows=3) + 0.3 * torch.randn(3, 1, 1, DIM)
        keys[:, :, ::97] *= 3
        transform = offline_transform(calibration, "rd", layer, "key", IMAGE, CPU)
        count = num_outliers(600, OUTLIERS, 128, EncodeContext())
        assert count == 2
        expected = find_clipped(keys, transform, transform.norm, count, EncodeContext())
        site = CodedSite(calibration, layer, "key", IMAGE, 1.0)
        with torch.autocast("cpu", torch.bfloat16):
            found = site.outliers(keys)
        assert torch.equal(found.nonzero()[:, 2].view(3, HEADS, count), expected)


def test_media_are_decoded_but_for_outliers_and_the_rest_stays_exact():
    torch.manual_seed(0)
    calibration, rows, media = read_calibration(FILE), 2, 256
    key, value = (CodedSite(calibration, 2, side, IMAGE, 1.0) for side in ("key", "value"))
    pictures = [vectors(2, side, IMAGE, media, rows) for side in ("key", "value")]
    pictures[0][0, :, 77], pictures[0][1, :, 5] = 40 * pictures[0][0, :, 77], 40 * pictures[0][1, :, 5]
    k, v = (torch.cat((torch.randn(rows, HEADS, 4, DIM), x, torch.randn(rows, HEADS, 9, DIM)), 2) for x in pictures)
    k, v = (x.transpose(1, 2).flatten(0, 1) for x in (k, v))
    length = media + 13
    places = torch.cat([torch.arange(4, 4 + media) + row * length for row in range(rows)])
    found = CodedLayer(torch.ones(len(k), 1, dtype=torch.bool), rows, [(places, key, value)]).decoded(k, v)
    for x, exact, before, site in zip(found, (k, v), pictures, (key, value), strict=True):
        now = x.unflatten(0, (rows, length)).transpose(1, 2)
        was = exact.unflatten(0, (rows, length)).transpose(1, 2)
        assert torch.equal(now[:, :, :4], was[:, :, :4])
        assert torch.equal(now[:, :, 4 + media :], was[:, :, 4 + media :])
        coded = torch.ones(rows, HEADS, media, dtype=torch.bool)
        coded[0, :, 77] = coded[1, :, 5] = False  # the one outlier of each sequence
        picture = now[:, :, 4 : 4 + media]
        assert torch.equal(picture[~coded], before[~coded])
        torch.testing.assert_close(picture[coded], site(before)[coded])
    half = (x.to(torch.bfloat16) for x in (k, v))
    layer = CodedLayer(torch.ones(len(k), 1, dtype=torch.bool), rows, [(places, key, value)])
    assert {x.dtype for x in layer.decoded(*half)} == {torch.bfloat16}


@pytest.mark.parametrize("media", ["text", "page", "recording"])
def test_branches_read_codes_and_the_prefix_reads_itself(media):
    torch.manual_seed(0)
    model = OmniModel().eval()
    token = {"text": 50, "page": IMAGE_TOKEN, "recording": AUDIO_TOKEN}[media]
    ids = torch.tensor(
        [[1, 20, *[token] * 36, 21, 30, 31, 32, 40, 41, 0], [1, 22, *[token] * 36, 21, 33, 31, 0, 0, 0, 0]]
    )
    seg = torch.tensor([[0] * 39 + [1] * 3 + [2] * 2 + [255], [0] * 39 + [1] * 2 + [255] * 4], dtype=torch.uint8)
    pos = torch.arange(ids.shape[1]).expand(3, 2, -1)
    given, places = {}, (ids.flatten() == token).nonzero()[:, 0]
    if media == "page":
        given = {"visual": torch.randn(72, 384), "image_index": places}
    if media == "recording":
        given = {"audio": torch.randn(72, 384), "audio_index": places}
    with torch.no_grad():
        exact = model.hidden_states(ids, pos, seg, **given)
        coarse, fine = (
            model.hidden_states(ids, pos, seg, **given, packed=PackedPrefix(FILE, ModelConfig(), bits))
            for bits in (0.5, 8.0)
        )
    if media == "text":
        assert torch.equal(coarse, exact)
        return
    prefix, branches = seg.flatten() == 0, (seg.flatten() > 0) & (seg.flatten() < 255)
    assert torch.equal(coarse[prefix], exact[prefix])
    for row in (slice(0, 45), slice(45, 90)):
        far, near = ((x[row][branches[row]] - exact[row][branches[row]]).norm() for x in (coarse, fine))
        assert 0 < near < far


def test_spoken_questions_are_read_exactly():
    """They stand in branches: what one says is nothing to another."""
    torch.manual_seed(0)
    model, packed = OmniModel().eval(), PackedPrefix(FILE, ModelConfig(), 1.0)
    prefix, branch = [1, 20, *[IMAGE_TOKEN] * 36, 21], [4, *[AUDIO_TOKEN] * 12, 5, 30, 31]
    ids = torch.tensor([prefix + branch + branch])
    seg = torch.tensor([[0] * 39 + [1] * 16 + [2] * 16], dtype=torch.uint8)
    pos = torch.arange(ids.shape[1]).expand(3, 1, -1)
    pages, clips = ((ids[0] == token).nonzero()[:, 0] for token in (IMAGE_TOKEN, AUDIO_TOKEN))
    visual, audio = torch.randn(36, 384), torch.randn(24, 384)
    other = torch.cat((audio[:12], torch.randn(12, 384)))
    with torch.no_grad():
        first, second = (model.hidden_states(ids, pos, seg, visual, pages, x, clips, packed) for x in (audio, other))
        exact = model.hidden_states(ids, pos, seg, visual, pages, audio, clips)
    assert torch.equal(first[:55], second[:55])
    assert not torch.equal(first[55:], second[55:])
    assert not torch.equal(first[39:], exact[39:])


def test_each_layer_has_the_codes_of_its_own_sites():
    calibration, packed = read_calibration(FILE), PackedPrefix(FILE, ModelConfig(), 1.0)
    places = {modality: torch.arange(4) for modality in (IMAGE, AUDIO)}
    layers = packed.of_step(torch.zeros(1, 8, dtype=torch.uint8), places)
    assert len(layers) == LAYERS
    for number, layer in enumerate(layers):
        for modality, (_, *sites) in zip(places, layer.sites, strict=True):
            for side, site in zip(("key", "value"), sites, strict=True):
                own = calibration.site("rd", number, side, modality)["transform"].float()
                assert torch.equal(site.matrix, own)


def test_logits_after_a_packed_page_are_those_of_a_cache():
    """Of the embedded model's own weights: what follows a page reads it as a cache of the preset `small` has it."""
    model, processor = load_model("tiny-omni", device="cpu", dtype=torch.float32)
    ours = OmniModel().eval()
    ours.load_state_dict(load_weights(ASSETS / "tiny-omni"), strict=False)
    page = Image.open(SAMPLES / "invoice.png").convert("RGB")
    text = processor.apply_chat_template(
        [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What is the total?"}]}],
        tokenize=False, add_generation_prompt=True,
    )  # fmt: skip
    inputs = dict(processor(text=[text], images=[page], return_tensors="pt"))
    ids, answer = inputs["input_ids"], torch.tensor([[200, 201, 202]])
    start, positions = document_length(ids, model.config), all_position_ids(model, inputs)
    seg = torch.zeros(1, ids.shape[1] + 3, dtype=torch.uint8)
    seg[:, start:] = 1
    with torch.no_grad():
        cache = Document(model, inputs).cache(get_policy("small"))
        expected = read_on(model, inputs, cache, answer)
        visual = model.get_image_features(inputs["pixel_values"], inputs["image_grid_thw"])
        visual = getattr(visual, "pooler_output", visual)
        visual = visual[0] if isinstance(visual, (tuple, list)) else visual
        whole = torch.cat((ids, answer), 1)
        places = (whole[0] == IMAGE_TOKEN).nonzero()[:, 0]
        step = (whole, extended_position_ids(positions, 3)[-3:], seg, visual, places)
        exact, packed = (
            ours.logits(ours.hidden_states(*step, packed=codes))[start:]
            for codes in (None, PackedPrefix(FILE, ModelConfig(), 1.0))
        )
    apart, changed = ((x - expected).norm() / expected.norm() for x in (packed, exact))
    assert apart < 0.5 * changed


def test_a_run_trains_on_packed_prefixes_and_measures_them(tmp_path):
    for share, expected in (("1", {"page, packed"}), ("0", {"page"})):
        options = ("--out", str(tmp_path / share), "--steps", "2", "--only", "page")
        log = train(*options, "--packed", str(FILE), "--packed-share", share)
        step, held = (
            dict(re.findall(r"(page(?:, packed)?): ([^|]*)", next(line for line in log.splitlines() if mark in line)))
            for mark in ("] step 1 ", "HELD OUT")
        )
        assert step.keys() == expected
        assert held.keys() == {"page", "page, packed"}
        assert held["page"].strip() != held["page, packed"].strip()


def test_files_and_bits_that_do_not_fit_are_one_line(tmp_path, capsys):
    for bits in (-1.0, 0.0, 9.0):
        with pytest.raises(KVMMError, match="more than 0 and at most 8 bits"):
            PackedPrefix(FILE, ModelConfig(), bits)
    for sizes in ({"num_layers": 4}, {"num_kv_heads": 3}):
        with pytest.raises(KVMMError, match="name the calibration file of this model"):
            PackedPrefix(FILE, ModelConfig(**sizes), 1.0)
    whole = read_calibration(FILE)
    silent = Calibration(
        whole.fingerprint, {n: t for n, t in whole.tensors.items() if ".audio." not in n}, whole.metadata
    )
    silent.save(tmp_path / "silent.safetensors")
    with pytest.raises(KVMMError, match="rd for audio"):
        PackedPrefix(tmp_path / "silent.safetensors", ModelConfig(), 1.0)
    with pytest.raises(SystemExit):
        parse_arguments(["--out", "runs/x", "--packed-share", "1.5"])
    assert "1.5 is not a share from 0 to 1" in capsys.readouterr().err
    for option, value in (("--packed-share", "0.5"), ("--packed-bits", "2"), ("--packed-share", "0")):
        with pytest.raises(SystemExit):
            parse_arguments(["--out", "runs/x", option, value])
        assert "--packed-share need --packed" in capsys.readouterr().err
    defaults = parse_arguments(["--out", "runs/x", "--packed", str(FILE)])
    assert (defaults.packed_bits, defaults.packed_share) == (1.0, 0.3)
    given = parse_arguments(["--out", "runs/x", "--packed", str(FILE), "--packed-bits", "2", "--packed-share", "0"])
    assert (given.packed_bits, given.packed_share) == (2.0, 0.0)
