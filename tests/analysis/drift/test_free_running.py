"""Free-running generation: rows of a batch are what ``generate`` writes alone, and the figures of known texts."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from kvmm.analysis.drift.free_running import FreeRun, loop_start, repetition, run_free, summarise_run
from kvmm.errors import KVMMError
from kvmm.models.caches import DYNAMIC
from kvmm.models.documents import Document, answer_tokens, read_on
from kvmm.policy import get_policy
from tests import tiny_models as tiny

COUNT, PACKED = 70, 180


@pytest.fixture(scope="module")
def model():
    return tiny.build.__wrapped__("llama")  # one of its own: other tests set generation settings of the shared one


@pytest.fixture(scope="module")
def inputs(model):
    ids = torch.randint(3, tiny.VOCAB, (1, PACKED + 2), generator=torch.Generator().manual_seed(1))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


@pytest.fixture(scope="module")
def policies():
    return {DYNAMIC: DYNAMIC, **{name: get_policy(name) for name in ("bf16", "kivi2", "oscar2", "kitty")}}


@pytest.fixture(scope="module")
def runs(model, inputs, policies):
    *counts, found = run_free(model, inputs, policies, COUNT, packed=PACKED)
    assert counts == [32, 64, COUNT] and list(found) == list(policies)
    return found


def test_every_row_is_what_generate_writes_alone(model, inputs, policies, runs):
    document = Document(model, inputs, PACKED)
    for name, policy in policies.items():
        alone = answer_tokens(model, inputs, document.cache(policy), COUNT, min_new_tokens=COUNT)
        assert runs[name].tokens == tuple(alone.tolist()), name
    assert len({run.tokens for run in runs.values()}) > 1


def test_kl_is_of_the_policys_own_text(model, inputs, policies, runs):
    document = Document(model, inputs, PACKED)
    text = torch.tensor([runs["kivi2"].tokens])
    full = read_on(model, inputs, document.cache(DYNAMIC), text[:, :-1]).log_softmax(-1)[1:]
    # one token at a time, as it was written: pages are packed on the way
    cache, rows = document.cache(policies["kivi2"]), []
    with torch.no_grad():
        for token in torch.cat([inputs["input_ids"][:, PACKED:], text[:, :-1]], 1).unbind(1):
            rows.append(model(input_ids=token[:, None], past_key_values=cache).logits[0, -1])
    own = torch.stack(rows[1:]).log_softmax(-1)
    expected = (full.exp() * (full - own)).sum(-1)
    assert torch.allclose(torch.from_numpy(runs["kivi2"].kl), expected, atol=1e-4) and expected.max() > 1e-2
    nll = -full.gather(1, text[0][:, None])[:, 0]
    assert torch.allclose(torch.from_numpy(runs["kivi2"].nll), nll, atol=1e-4)
    assert runs[DYNAMIC].kl.max() < 1e-5


def test_no_text_ends(model, inputs, runs, monkeypatch):
    end = runs[DYNAMIC].tokens[0]
    monkeypatch.setattr(model.generation_config, "eos_token_id", [end])
    *_, found = run_free(model, inputs, {DYNAMIC: DYNAMIC}, 8, packed=PACKED)
    assert end not in found[DYNAMIC].tokens and len(found[DYNAMIC].tokens) == 8


def test_what_cannot_be_generated(model, inputs):
    with pytest.raises(KVMMError, match="nothing to generate"):
        next(run_free(model, inputs, {}, 4))
    with pytest.raises(KVMMError, match="positions: use less"):
        next(run_free(model, inputs, {DYNAMIC: DYNAMIC}, 10**6))


def test_repetition():
    assert repetition([1, 2, 3]) == 0 and repetition(range(50)) == 0
    assert repetition([1, 2, 3, 4, 1, 2, 3, 4]) == pytest.approx(1 / 5)
    assert repetition([7] * 13) == pytest.approx(9 / 10)


def test_a_loop_starts_where_the_text_has_one_period():
    assert loop_start(range(100)) is None and loop_start([]) is None
    assert loop_start([5, 6, 7, 1, 2, 3, 1, 2, 3, 1, 2, 3]) == 3
    assert loop_start([1, 2, 3, 1, 2, 3, 9]) is None
    assert loop_start([9, 9]) is None  # two equal words are no loop
    assert loop_start([*range(10), *[4] * 30]) == 10


def test_a_summary():
    kl, nll = np.arange(16, dtype=np.float32), np.full(16, np.log(3), dtype=np.float32)
    run = FreeRun(tuple(range(16)), kl, nll, {})
    found = summarise_run(run, (*range(5), *range(20, 31)))
    assert found.diverged_at == 5 and found.tokens == 16 and found.loop_at is None and found.repetition == 0
    assert found.kl_mean == 7.5 and found.kl_max == 15 and found.kl_by_position == tuple(2 * i + 0.5 for i in range(8))
    assert found.perplexity == pytest.approx(3)
    assert summarise_run(run, range(16)).diverged_at is None
