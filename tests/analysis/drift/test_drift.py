"""Logit drift against independent computation, on logits by hand and on tiny models."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch

from kvmm import KVMMCache, KVMMError, get_policy
from kvmm.analysis.drift.measure import long_context_tail, measure_drift, packed_length, standard_error, summarise
from kvmm.models.caches import DYNAMIC
from kvmm.models.documents import Document, answer_tokens, read_on
from kvmm.models.forced_text import ForcedText, PositionDrift, compare_logits
from kvmm.models.positions import all_position_ids, extended_position_ids
from kvmm.policy import KVPolicy, KVSpec, spec
from tests.tiny_models import FAMILIES, build, inputs

MIXED = ("llama", "mistral", "qwen2_5_vl", "qwen3_vl", "llava", "qwen2_5_omni", "gemma3")


def text(count: int, seed: int = 1) -> torch.Tensor:
    return torch.randint(3, 110, (1, count), generator=torch.Generator().manual_seed(seed))


def prompt_of(family: str) -> dict[str, torch.Tensor]:
    """The family's prompt; for text-only models one that fills pages."""
    found = inputs(family)
    if family in ("llama", "mistral"):
        found = {"input_ids": text(300, seed=0), "attention_mask": torch.ones(1, 300, dtype=torch.long)}
    return found


def positions(kl, **changes) -> PositionDrift:
    kl = np.asarray(kl, dtype=np.float32)
    count = len(kl)
    fields = {
        "js": np.zeros(count, dtype=np.float32),
        "difference": np.zeros(count, dtype=np.float32),
        "top1": np.ones(count, dtype=bool),
        "overlap": np.ones(count, dtype=np.float32),
        "nll": np.zeros(count, dtype=np.float32),
        "nll_full": np.zeros(count, dtype=np.float32),
        "context": np.arange(100, 100 + count),
        "progress": np.arange(count, dtype=np.float32) / count,
    }
    return PositionDrift(kl, **{**fields, **changes})


# -- formulas ---------------------------------------------------------------------------------------------------------


def test_two_distributions_by_hand():
    full = torch.tensor([[0.5, 0.3, 0.2]]).log() + 7  # logits are known up to a constant
    other = torch.tensor([[0.2, 0.3, 0.5]]).log() - 2
    found = compare_logits(full, other, torch.tensor([0]), top_k=2)
    assert found["kl"].item() == pytest.approx(0.3 * math.log(2.5), rel=1e-5)  # (0.5 - 0.2) ln(0.5 / 0.2)
    assert found["top1"].tolist() == [False]
    assert found["overlap"].tolist() == [0.5]  # {0, 1} and {2, 1}
    assert found["nll_full"].item() == pytest.approx(math.log(2), rel=1e-5)
    assert found["nll"].item() == pytest.approx(math.log(5), rel=1e-5)


def test_kl_has_a_direction():
    full, other = torch.tensor([[0.9, 0.1]]).log(), torch.tensor([[0.5, 0.5]]).log()
    forward = 0.9 * math.log(1.8) + 0.1 * math.log(0.2)
    assert compare_logits(full, other)["kl"].item() == pytest.approx(forward, rel=1e-5)
    assert compare_logits(other, full)["kl"].item() == pytest.approx(0.5 * math.log(1 / 1.8) + 0.5 * math.log(5))


def test_many_positions_against_numpy():
    generator = torch.Generator().manual_seed(0)
    full, other = torch.randn(2, 150, 40, generator=generator) * 3  # more than are compared at a time
    targets = torch.randint(0, 40, (140,), generator=generator)
    found = compare_logits(full, other, targets, top_k=5)
    p, q = (np.exp(x) / np.exp(x).sum(-1, keepdims=True) for x in (full.double().numpy(), other.double().numpy()))
    np.testing.assert_allclose(found["kl"], (p * np.log(p / q)).sum(-1), rtol=1e-4)
    overlap = [len(set(a) & set(b)) / 5 for a, b in zip((-p).argsort(-1)[:, :5], (-q).argsort(-1)[:, :5], strict=True)]
    np.testing.assert_allclose(found["overlap"], overlap, rtol=1e-6)
    np.testing.assert_array_equal(found["top1"], p.argmax(-1) == q.argmax(-1))
    np.testing.assert_allclose(found["nll"][:140], -np.log(q[np.arange(140), targets]), rtol=1e-4)
    assert found["nll"][140:].isnan().all() and found["nll_full"][140:].isnan().all()


def test_tokens_that_cannot_come_are_no_nan():
    full = torch.tensor([[0.0, 0.0, -math.inf]])
    found = compare_logits(full, torch.tensor([[0.0, 0.0, 0.0]]))
    assert found["kl"].item() == pytest.approx(math.log(1.5), rel=1e-5)
    assert compare_logits(full, full)["kl"].item() == 0


def test_half_precision_logits_are_compared_in_float32():
    full = torch.randn(4, 1000, generator=torch.Generator().manual_seed(0)).bfloat16()
    other = full + 0.25 * torch.arange(1000).remainder(2).bfloat16()
    double = (full.double().log_softmax(-1), other.double().log_softmax(-1))
    expected = (double[0].exp() * (double[0] - double[1])).sum(-1)
    torch.testing.assert_close(compare_logits(full, other)["kl"], expected.float(), rtol=1e-3, atol=1e-6)


def test_shapes_that_do_not_fit_are_refused():
    with pytest.raises(KVMMError, match="cannot be compared"):
        compare_logits(torch.zeros(2, 3), torch.zeros(2, 4))
    with pytest.raises(KVMMError, match="next tokens"):
        compare_logits(torch.zeros(2, 3), torch.zeros(2, 3), torch.zeros(3, dtype=torch.long))


def test_summary():
    kl = np.arange(101) / 10
    nll = np.full(101, math.log(4.0))
    nll[0], nll[-1] = math.log(16.0), np.nan  # the last position has no next token
    top1 = np.arange(101) % 4 != 0
    one = summarise(positions(kl, nll=nll, nll_full=np.log(2.0) + 0 * nll, top1=top1), top_k=7)
    assert one.positions == 101 and one.top_k == 7
    assert one.kl_mean == pytest.approx(5) and one.kl_median == pytest.approx(5)
    assert one.kl_p90 == pytest.approx(9) and one.kl_p99 == pytest.approx(9.9) and one.kl_max == pytest.approx(10)
    assert one.top1_agreement == pytest.approx(75 / 101)
    assert one.perplexity == pytest.approx(4 * 4 ** (1 / 100), rel=1e-5) and one.perplexity_full == pytest.approx(2)
    unknown = np.full(3, np.nan, dtype=np.float32)
    assert summarise(positions([1, 2, 3], nll=unknown, nll_full=unknown)).perplexity is None
    with pytest.raises(KVMMError, match="no positions"):
        summarise(positions([]))


def test_tail_and_buckets():
    tail = long_context_tail(
        positions([1, 1, 2, 2, 3, 3, 6, 6], context=np.array([200, 255, 256, 300, 511, 512, 9, 9]))
    )
    assert tail.head_kl == 1 and tail.tail_kl == 6 and tail.ratio == 6
    assert [b.kl_mean for b in tail.by_position] == [1, 2, 3, 6]
    assert [(b.start, b.end, b.positions) for b in tail.by_context] == [(0, 256, 4), (256, 512, 3), (512, 1024, 1)]
    assert tail.by_context[1].kl_mean == pytest.approx(7 / 3)
    short = long_context_tail(positions([5.0]))
    assert short.tail_kl == 5 and short.head_kl is None and short.ratio is None
    assert long_context_tail(positions([0, 0, 0, 1])).ratio is None


def test_standard_error_takes_prompts_as_draws():
    parts = [positions([1, 1, 1]), positions([4, 4, 4]), positions([1, 1, 1])]
    # equal lengths: that of the mean of the prompts' means
    assert standard_error(parts) == pytest.approx(np.std([1, 4, 1], ddof=1) / math.sqrt(3))
    uneven = [positions([1, 3]), positions([6])]  # the mean is 10 / 3, what is left of the sums -8/3 and 8/3
    assert standard_error(uneven) == pytest.approx(math.sqrt(2 * 2 * (8 / 3) ** 2) / 3)
    assert standard_error(parts[:1]) is None and standard_error([parts[0], parts[2]]) == 0


def test_pooled_keeps_every_position():
    pooled = PositionDrift.pooled([positions([1, 2]), positions([3])])
    assert pooled.kl.tolist() == [1, 2, 3] and pooled.progress.tolist() == [0, 0.5, 0]


# -- positions and caches ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_positions_after_a_prompt_are_those_of_the_model(family):
    """The text after a prompt counts on as in one forward pass over everything."""
    model, prompt = build(family), inputs(family)
    longer = dict(prompt)
    for name, value in prompt.items():
        if value.shape == prompt["input_ids"].shape:
            more = text(9) if name == "input_ids" else torch.full((1, 9), int(name == "attention_mask"))
            longer[name] = torch.cat([value, more.to(value.dtype)], 1)
    found = extended_position_ids(all_position_ids(model, prompt), 9)
    assert torch.equal(found, all_position_ids(model, longer))
    assert torch.equal(extended_position_ids(found, 0), found)


def test_rope_deltas_of_the_model_are_left_alone():
    model = build("qwen2_5_vl")
    model.model.rope_deltas = marker = torch.tensor([[-7]])
    all_position_ids(model, inputs("qwen2_5_vl"))
    assert model.model.rope_deltas is marker
    model.model.rope_deltas = None


@torch.no_grad()
@pytest.mark.parametrize("family", MIXED)
def test_full_precision_is_one_pass_over_everything(family):
    """What a policy is compared with: the logits of the whole sequence read at once, without a cache."""
    model, prompt, continuation = build(family), inputs(family), text(12)
    length = prompt["input_ids"].shape[1]
    packed = length - 5
    forced = ForcedText(Document(model, prompt, packed), prompt, continuation)
    ids = torch.cat([prompt["input_ids"], continuation], 1)
    media = {n: v for n, v in prompt.items() if v.shape != prompt["input_ids"].shape}
    whole = {"input_ids": ids, "attention_mask": torch.ones_like(ids), **media}
    if family == "gemma3":
        whole["token_type_ids"] = torch.nn.functional.pad(prompt["token_type_ids"], (0, 12))
    whole["position_ids"] = extended_position_ids(all_position_ids(model, prompt), 12)
    logits = model(**whole).logits[0]
    torch.testing.assert_close(forced.full, logits[length - 1 : -1], rtol=1e-4, atol=1e-4)
    assert torch.equal(forced.targets, continuation[0])


@torch.no_grad()
def reference_cache(model, prompt, length: int, policy) -> KVMMCache:
    """The first tokens of a prompt, read by a forward pass into the policy's own cache."""
    cache = KVMMCache.for_model(model, policy)
    head = {n: v[:, :length] if v.shape == prompt["input_ids"].shape else v for n, v in prompt.items()}
    model(**head, position_ids=all_position_ids(model, prompt)[..., :length], past_key_values=cache, use_cache=True)
    return cache.pack()


@torch.no_grad()
@pytest.mark.parametrize("family", MIXED)
def test_a_document_is_packed_as_a_prompt_would_be(family):
    """The keys of one exact pass serve all policies: the cache is the one that the policy's own pass fills."""
    model, prompt = build(family), prompt_of(family)
    length = prompt["input_ids"].shape[1] - 4
    document = Document(model, prompt, length)
    policy = get_policy("kivi2", residual_length=0, flush_length=32)
    own = reference_cache(model, prompt, length, policy)
    cache = document.cache(policy)
    assert cache.memory().by_modality == own.memory().by_modality
    expected, found = (read_on(model, prompt, c, text(6)) for c in (own, cache))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    exact = read_on(model, prompt, document.cache(DYNAMIC), text(6))
    assert torch.allclose(found, exact, atol=1e-4) == (family == "mistral")  # its layers slide and are not packed
    again = read_on(model, prompt, document.cache(policy), text(6))  # reading on changed no shared page
    torch.testing.assert_close(again, found, rtol=0, atol=0)


def test_a_codec_that_wants_queries_sees_them():
    model, prompt = build("llama"), prompt_of("llama")
    kv = KVSpec(spec("kitty", 2, 128, boost=0.25, score="query_range"), spec("kitty", 2, 128))
    policy = KVPolicy("queries", text=kv, residual_length=0, flush_length=32)
    cache = Document(model, prompt, 280).cache(policy)
    assert cache.layers[0].needs_queries and cache.is_packed and cache.get_seq_length() == 280
    assert torch.equal(cache.layers[0].keys, reference_cache(model, prompt, 280, policy).layers[0].keys)


def test_generation_goes_on_from_a_packed_document():
    model, prompt = build("qwen2_5_vl"), inputs("qwen2_5_vl")
    document = Document(model, prompt)
    plain = model.generate(**prompt, max_new_tokens=12, do_sample=False, suppress_tokens=[120, 121], pad_token_id=0)
    for policy in (DYNAMIC, "bf16"):
        tokens = answer_tokens(model, prompt, document.cache(policy), 12)
        assert torch.equal(tokens, plain[0, prompt["input_ids"].shape[1] :])


def test_documents_that_cannot_be_packed_are_refused():
    model = build("llama")
    with pytest.raises(KVMMError, match="one sequence"):
        Document(model, inputs("llama", 2), 5)
    padded = inputs("llama")
    padded["attention_mask"] = padded["attention_mask"].clone()
    padded["attention_mask"][0, 0] = 0
    with pytest.raises(KVMMError, match="padding"):
        Document(model, padded, 5)
    for length in (0, 1000):
        with pytest.raises(KVMMError, match="1 or more"):
            Document(model, inputs("llama"), length)


# -- drift of policies ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["llama", "qwen2_5_vl", "qwen2_5_omni", "llava"])
def test_fewer_bits_drift_further(family):
    model, prompt = build(family), prompt_of(family)
    packed = prompt["input_ids"].shape[1] - 2
    found = {}
    for name in ("bf16", "kivi4", "kivi2"):
        policy = get_policy(name, residual_length=0, flush_length=32, exact_dtype="model")
        drift, bits = measure_drift(model, prompt, policy, text(24), packed=packed)
        found[name] = (summarise(drift), bits)
    exact, four, two = (found[name][0] for name in found)
    assert exact.kl_max < 1e-5 and exact.top1_agreement == 1 and exact.topk_overlap > 0.99
    assert exact.perplexity == pytest.approx(exact.perplexity_full, rel=1e-3)
    assert exact.kl_max < four.kl_mean < two.kl_mean / 3
    assert two.topk_overlap < four.topk_overlap
    assert found["kivi2"][1]["packed_bits"] < found["kivi4"][1]["packed_bits"] - 1.9
    assert ("media_bits" in found["kivi2"][1]) == (family != "llama")


def test_only_the_continuation_is_scored():
    model, prompt = build("llama"), prompt_of("llama")
    length = prompt["input_ids"].shape[1]
    drift, _ = measure_drift(model, prompt, "kivi2", text(10), packed=length - 8)
    assert len(drift) == 10 and drift.context.tolist() == list(range(length, length + 10))
    assert not np.isnan(drift.nll).any()
    whole, _ = measure_drift(model, prompt, "kivi2", text(10))  # nothing of the prompt is left to read over the cache
    assert packed_length(model, prompt) == length
    assert len(whole) == 9 and whole.context.tolist() == list(range(length + 1, length + 10))


def test_nothing_to_compare_is_an_error():
    model, prompt = build("llama"), inputs("llama")
    document = Document(model, prompt, prompt["input_ids"].shape[1])
    with pytest.raises(KVMMError, match="a token more"):
        ForcedText(document, prompt, text(1))
    with pytest.raises(KVMMError, match="1024 positions"):
        ForcedText(document, prompt, text(1024))


def test_measuring_leaves_the_document_as_it_was():
    model, prompt = build("llama"), prompt_of("llama")
    document = Document(model, prompt, 290)
    forced = ForcedText(document, prompt, text(10))
    policy = get_policy("kivi2", residual_length=0, flush_length=32)
    first = forced.measure(policy)
    before = copy.deepcopy(document.cache(policy).memory().to_dict())
    second = forced.measure(policy)
    assert np.array_equal(first.kl, second.kl) and first.kl.max() > 0
    assert document.cache(policy).memory().to_dict() == before
