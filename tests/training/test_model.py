"""The training module computes what transformers computes from the same weights."""

from __future__ import annotations

import pytest
import torch

from training.export import hf_model
from training.model import OmniModel, aligned_linear, attention_bias, let_through
from training.model_config import CELL, PATCH, STANDALONE, ModelConfig

IMAGE, AUDIO = 9, 3


@pytest.fixture(scope="module")
def models():
    torch.manual_seed(0)
    model = OmniModel().eval()
    for p in model.parameters():  # zero biases and unit norms would hide a forgotten one
        if p.ndim == 1:
            p.data.add_(torch.randn_like(p) * 0.1)
    return model, hf_model(model.export_weights())


def patches(pages: torch.Tensor) -> torch.Tensor:
    """Flattened patches of the transformers image processor: merge-block raster order, both temporal frames alike."""
    n, _, height, width = pages.shape
    p = pages.view(n, 1, 3, height // CELL, 2, PATCH, width // CELL, 2, PATCH).expand(n, 2, *(-1,) * 7)
    return p.permute(0, 3, 6, 4, 7, 2, 1, 5, 8).reshape(n * height * width // PATCH**2, -1)


def compare(models, pages=None, mel=None) -> float:
    """Largest difference of logits over a prompt with the given media, positions from transformers' own rule."""
    model, reference = models
    ids = [1, 100, 101]
    kwargs: dict = {}
    if mel is not None:
        ids += [4, *[AUDIO] * (mel.shape[1] // 4), 5]
        kwargs.update(
            input_features=mel.transpose(1, 2), feature_attention_mask=torch.ones(mel.shape[:2], dtype=torch.long)
        )
    if pages is not None:
        for _ in pages:
            ids += [150, 6, *[IMAGE] * (pages[0, 0].numel() // CELL**2), 7]
        grid = torch.tensor([[1, pages.shape[2] // PATCH, pages.shape[3] // PATCH]] * len(pages))
        kwargs.update(pixel_values=patches(pages), image_grid_thw=grid)
    ids = torch.tensor([[*ids, 200, 201, 202, 2]])
    mask = torch.ones_like(ids)
    owner = reference if hasattr(reference, "get_rope_index") else reference.model
    lengths = None if mel is None else torch.tensor([mel.shape[1]])
    pos, _ = owner.get_rope_index(ids, kwargs.get("image_grid_thw"), None, mask, False, lengths, None)
    with torch.no_grad():
        expected = reference(input_ids=ids, attention_mask=mask, **kwargs).logits[0]
        hidden = model.hidden_states(
            ids, pos, torch.zeros_like(ids, dtype=torch.uint8),
            None if pages is None else model.visual(pages), (ids[0] == IMAGE).nonzero()[:, 0],
            None if mel is None else model.audio_tower(mel)[0], (ids[0] == AUDIO).nonzero()[:, 0],
        )  # fmt: skip
        return (model.logits(hidden) - expected).abs().max().item()


@pytest.mark.parametrize(
    ("pages", "frames"),
    [((1, 112, 140), 0), ((3, 84, 196), 0), (None, 252), (None, 700), ((1, 84, 56), 100)],
    ids=["page", "three pages", "audio 252", "audio 700", "audio and page"],
)
def test_logits_equal_transformers(models, pages, frames):
    torch.manual_seed(1)
    pixels = torch.randn(pages[0], 3, *pages[1:]) if pages else None
    mel = torch.randn(1, frames, 128) if frames else None
    assert compare(models, pixels, mel) < 2e-5


@pytest.mark.parametrize("size", [64, 65, 100])
def test_aligned_linear_is_linear(size):
    x, weight = torch.randn(5, 16, requires_grad=True), torch.randn(size, 16, requires_grad=True)
    expected, found = x @ weight.T, aligned_linear(x, weight)
    torch.testing.assert_close(found, expected)
    grad = torch.randn_like(expected)
    for mine, plain in zip(*(torch.autograd.grad(y, (x, weight), grad) for y in (found, expected)), strict=True):
        torch.testing.assert_close(mine, plain)


def test_rope_frequencies_are_the_chosen_ladders(models):
    model, reference = models
    config = ModelConfig()
    time, height, width = model.inv_freq.split(config.mrope_section)
    torch.testing.assert_close(time[[0, -1]], torch.tensor([0.7, 0.002]))
    for axis in (height, width):
        torch.testing.assert_close(axis[[0, -1]], torch.tensor([1.0, 0.004]))
    for axis in (time, height, width):
        ratio = axis[1:] / axis[:-1]
        torch.testing.assert_close(ratio, ratio[:1].expand_as(ratio), rtol=1e-4, atol=0)
    rotary = next(m for n, m in reference.named_modules() if n.endswith("rotary_emb") and "visual" not in n)
    assert torch.equal(rotary.inv_freq, model.inv_freq)
    rotary(torch.zeros(1), torch.full((3, 1, 1), config.max_positions + 5))  # beyond the trained length nothing changes
    assert torch.equal(rotary.inv_freq, model.inv_freq)


def test_size_fits_the_repository():
    assert sum(t.nbytes for t in OmniModel().export_weights().values()) // 2 + 60_000 < 39.9e6


def test_attention_bias_separates_branches():
    seg = torch.tensor([[0, 0, 1, 1, 2, STANDALONE, STANDALONE, 255]], dtype=torch.uint8)
    seen = attention_bias(seg, torch.float32)[0, 0] == 0
    rows = [row.nonzero()[:, 0].tolist() for row in seen]
    assert rows == [[0], [0, 1], [0, 1, 2], [0, 1, 2, 3], [0, 1, 4], [5], [5, 6], [7]]


def test_branch_equals_its_own_sequence(models):
    """Packed behind a shared prefix, a branch has the logits it would have alone."""
    model, _ = models
    prefix, first, second = [1, 20, 21, 22], [30, 31, 32], [40, 41]
    ids = torch.tensor([prefix + first + second])
    pos = torch.tensor([0, 1, 2, 3, 4, 5, 6, 4, 5]).expand(3, 1, -1)
    seg = torch.tensor([[0] * 4 + [1] * 3 + [2] * 2], dtype=torch.uint8)
    alone = torch.tensor([prefix + second])
    with torch.no_grad():
        packed = model.logits(model.hidden_states(ids, pos, seg))[-2:]
        single = model.logits(
            model.hidden_states(alone, torch.arange(6).expand(3, 1, -1), torch.zeros_like(alone, dtype=torch.uint8))
        )[-2:]
    torch.testing.assert_close(packed, single, atol=1e-5, rtol=0)


@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
def test_heads_that_start_from_nothing_teach_the_towers_in_part(share):
    torch.manual_seed(0)
    model = OmniModel()
    features = torch.randn(2, 6, model.config.hidden_size)
    gradients = []
    for batch in ({}, {"heads_teach": torch.tensor(share)}):
        given = features.clone().requires_grad_()
        read = let_through(given, batch)
        assert torch.equal(read, features)
        loss = model.aux_head(read).logsumexp(-1).mean()
        gradients.append(torch.autograd.grad(loss, (given, model.aux_head.weight)))
    (plain, head), (part, same) = gradients
    torch.testing.assert_close(part, share * plain)
    torch.testing.assert_close(same, head)


@pytest.mark.parametrize("tower, head", [("visual", "aux_head"), ("audio_tower", "ctc_head")])
def test_auxiliary_losses_reach_the_towers_as_far_as_they_may(tower, head):
    torch.manual_seed(0)
    model = OmniModel()
    pages, mel = torch.randn(1, 3, 56, 56), torch.randn(1, 32, 128)
    media = (pages, None) if tower == "visual" else (None, mel)
    token = IMAGE if tower == "visual" else AUDIO
    ids = torch.tensor([[1, *[token] * (4 if tower == "visual" else 8), 20, 21, 22]])
    index = (ids[0] == token).nonzero()[:, 0]
    batch = {
        "ids": ids, "pos": torch.arange(ids.shape[1]).expand(3, 1, -1), "seg": torch.zeros_like(ids, dtype=torch.uint8),
        "image_index": index, "audio_index": index, "target_index": torch.tensor([6]), "target_ids": torch.tensor([21]),
        "target_weight": torch.ones(1), "chars": torch.randint(1, 60, (1, 4, 8), dtype=torch.uint8),
        "spoken": torch.tensor([[3, 4, 5]], dtype=torch.uint8),
    }  # fmt: skip
    found = {}
    for share in (None, 0.0, 1.0):
        more = {} if share is None else {"heads_teach": torch.tensor(share)}
        loss = model(batch | more, *media)["aux"]
        parts = (list(getattr(model, name).parameters()) for name in (tower, head))
        found[share] = []
        for part in parts:
            gradients = torch.autograd.grad(loss, part, retain_graph=True, allow_unused=True)
            found[share].append(float(sum(g.square().sum() for g in gradients if g is not None)))
    assert found[0.0][0] == 0 < found[0.0][1]
    assert found[None] == pytest.approx(found[1.0]) and found[None][0] > 0
