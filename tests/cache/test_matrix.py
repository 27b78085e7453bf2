"""The matrix every codec joins by being registered: packed attention equals SDPA over the codec's own dense decode."""

import pytest
import torch

from kvmm.modality import AUDIO, IMAGE, PADDING, TEXT
from tests.cache.harness import Harness, layout, matrix_specs, uniform

SPECS = matrix_specs()
TOLERANCE = 1e-4
matrix = pytest.mark.parametrize("spec", SPECS, ids=lambda s: f"{s.codec}-{s.bits}b-g{s.group_size}")


@matrix
def test_one_sequence(spec):
    h = Harness(uniform(spec))
    h.feed([layout((TEXT, 6), (IMAGE, 300), (TEXT, 90))])
    h.feed([[TEXT]])
    assert h.cache.is_packed
    assert h.compare(1) < TOLERANCE
    for _ in range(3):
        h.feed([[TEXT]])
    assert h.compare(1) < TOLERANCE


@matrix
def test_ragged_padded_batch_and_later_turns(spec):
    """Left padding, interleaved modalities, one sequence without audio, a padded second turn, a second image."""
    h = Harness(uniform(spec, num_sink_tokens=3, residual_length=16, flush_length=32))
    rows = [
        layout((TEXT, 5), (IMAGE, 70), (TEXT, 30), (IMAGE, 60), (TEXT, 60)),
        layout((PADDING, 90), (TEXT, 4), (AUDIO, 41), (IMAGE, 37), (TEXT, 53)),
    ]
    h.feed(rows)
    h.feed([[TEXT], [TEXT]])
    assert h.compare(1, "none") < TOLERANCE
    assert h.compare(1, "short") < TOLERANCE
    h.feed([layout((TEXT, 4), (IMAGE, 40), (TEXT, 6)), layout((PADDING, 30), (TEXT, 20))])
    assert h.compare(50, "full") < TOLERANCE
    assert h.compare(50, "none") < TOLERANCE
    h.feed([[TEXT], [TEXT]])
    assert h.cache.table.stores[IMAGE].shape[1] >= 130 + 40
    assert h.compare(1, "short") < TOLERANCE


@matrix
@pytest.mark.parametrize(("ratio", "dim"), [(7, 128), (1, 80), (2, 96)])
def test_head_shapes(spec, ratio, dim):
    h = Harness(uniform(spec), heads=2, ratio=ratio, dim=dim)
    h.feed([layout((IMAGE, 160), (TEXT, 20))])
    h.feed([[TEXT]])
    assert h.compare(1) < TOLERANCE
    h.feed([[TEXT] * 9])
    assert h.compare(9) < TOLERANCE


@matrix
def test_degenerate_statistics(spec):
    """A constant channel, a run of equal tokens, zero tokens: finite, and equal to the decode."""
    h = Harness(uniform(spec))
    key, value = h.random(1, 2, 200, 64), h.random(1, 2, 200, 64)
    for x in (key, value):
        x[:, :, 64:128] = 1.25
        x[:, :, 140:150] = 0.0
        x[..., 3] = 5.0
    h.feed([layout((IMAGE, 180), (TEXT, 20))], key, value)
    h.feed([[TEXT]])
    assert h.compare(1) < TOLERANCE
    decoded, _ = h.layer.dense()
    if spec.codec in ("bf16", "kivi"):  # a constant channel needs no bits
        torch.testing.assert_close(decoded[..., :200, 3], key[..., 3])


@matrix
def test_one_token_prompt(spec):
    h = Harness(uniform(spec))
    keys, _ = h.feed([[TEXT]])
    assert isinstance(keys, torch.Tensor) != h.layer.needs_queries
    h.feed([[TEXT]])
    assert h.compare(1) < TOLERANCE


@matrix
def test_padding_never_enters_statistics(spec):
    """The same sequence alone and left-padded decodes to the same keys and values."""
    row = layout((TEXT, 5), (IMAGE, 100), (TEXT, 40))
    alone, padded = Harness(uniform(spec)), Harness(uniform(spec))
    key, value = alone.random(1, 2, len(row), 64), alone.random(1, 2, len(row), 64)
    alone.feed([row], key, value)
    other = padded.random(1, 2, 175, 64)
    pad = torch.zeros(1, 2, 30, 64)
    rows = [layout((PADDING, 30)) + row, layout((TEXT, 5), (IMAGE, 130), (TEXT, 40))]
    padded.feed(
        rows,
        torch.cat((torch.cat((pad, key), 2), other)),
        torch.cat((torch.cat((pad, value), 2), other)),
    )
    alone.cache.pack()
    padded.cache.pack()
    for single, batched in zip(alone.layer.dense(), padded.layer.dense(), strict=True):
        if spec.codec == "calibquant" or spec.group_size != 32:
            # groups longer than a page depend on how pages were chosen for the longer row, span statistics do not
            error = (single[0] - batched[0, :, 30:]).abs().mean()
            assert error < 0.15 * single.abs().mean()
        else:
            torch.testing.assert_close(single[0], batched[0, :, 30:], atol=1e-5, rtol=1e-5)


@matrix
def test_key_bias_of_norm_600(spec):
    """A huge constant key offset (Qwen2's key bias) must not add to the error of what distinguishes the keys."""
    errors = []
    for norm in (0.0, 600.0):
        h = Harness(uniform(spec, num_sink_tokens=0, exact_dtype="model"), seed=3)
        bias = h.random(1, 2, 1, 64)
        key = h.random(1, 2, 256, 64) + norm * bias / bias.norm(dim=-1, keepdim=True)
        h.feed([[IMAGE] * 256], key)
        h.cache.pack()
        decoded, _ = h.layer.dense()
        errors.append(float((decoded - key).pow(2).mean()))
    assert errors[1] < 1.3 * errors[0] + 1e-3, errors
