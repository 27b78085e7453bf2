"""Predicted memory is the memory of real caches, to the byte."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, Gemma3TextConfig, LlamaConfig, Qwen2_5_VLConfig

from kvmm import KVMMCache, policies
from kvmm.analysis.cost.model import CostModel, split_tokens
from kvmm.analysis.cost.plan import PLAN_POLICIES, make_plan
from kvmm.analysis.cost.shapes import SHAPES, ModelShape, count_parameters, find_shape, shape_of
from kvmm.calibration import FILE_NAME, Calibration, read_calibration
from kvmm.errors import KVMMError
from kvmm.memory_text import memory_text, ratio_text
from kvmm.modality import MODALITY_NAMES
from kvmm.policy import get_policy
from tests.tiny_models import build

CONFIG = LlamaConfig(
    hidden_size=256,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=64,
    num_hidden_layers=2,
)


def packed_cache(
    policy: object,
    tokens: dict[str, int],
    batch: int = 1,
    calibration: Calibration | None = None,
    config: object = CONFIG,
) -> KVMMCache:
    """A cache of random keys and values, packed."""
    cache, shape = KVMMCache(config, policy, calibration=calibration), shape_of(config)
    codes = [m for m, name in enumerate(MODALITY_NAMES) for _ in range(tokens.get(name, 0))]
    cache.set_modality([codes] * batch)
    generator = torch.Generator().manual_seed(1)
    for layer in range(shape.num_layers):
        size = (2, batch, shape.num_key_value_heads, len(codes), shape.head_dim)
        key, value = torch.randn(size, generator=generator).bfloat16()
        if layer == 0:
            cache.announce(torch.zeros(batch, len(codes), dtype=torch.long), None, None)
        cache.update(key, value, layer)
    cache.pack()
    return cache


def assert_equal(policy: object, tokens: dict[str, int], batch: int = 1) -> None:
    cost = CostModel(shape_of(CONFIG), policy).cost(tokens, batch)
    report = packed_cache(policy, tokens, batch).memory()
    assert cost.by_component == {name: n for name, n in report.by_component.items() if n and name != "reserved"}
    assert (cost.nbytes, cost.nbytes_dense) == (report.held_nbytes, report.nbytes_dense)
    assert cost.packed_tokens == report.packed_tokens
    assert cost.packed_bits_per_value == pytest.approx(report.packed_bits_per_value)
    assert memory_text(cost) == memory_text(report)
    assert cost.bits_per_value == pytest.approx(report.bits_per_value)
    assert cost.ratio == pytest.approx(report.ratio)


@pytest.mark.parametrize("policy", policies())
def test_bytes_of_a_mixed_prompt_are_exact(policy):
    assert_equal(policy, {"text": 700, "image": 333, "audio": 90}, batch=2)


@pytest.mark.parametrize("policy", policies())
def test_bytes_beyond_the_measured_tensors_are_exact(policy):
    """3000 tokens are more than are ever encoded to predict them."""
    assert_equal(policy, {"text": 3000, "image": 2500})


@pytest.mark.parametrize("text", [0, 1, 3, 40, 130, 161, 200, 259, 517, 1111])
@pytest.mark.parametrize("image", [0, 1, 20, 130, 700])
def test_splits_are_those_of_the_table(text, image):
    if not text + image:
        return
    policy, tokens = get_policy("kivi2"), {"text": text, "image": image}
    cache = packed_cache("bf16", tokens)
    split = split_tokens(policy, tokens)
    assert split.dense == cache.table.dense.shape[1] and split.sinks == cache.table.num_sinks
    assert {m: size for m, (_, size) in split.packed.items()} == cache.table.page_sizes
    counts = {m: cache.table.counts(positions)[m] for m, positions in cache.table.stores.items()}
    assert {m: count for m, (count, _) in split.packed.items()} == counts


@pytest.mark.parametrize("text", [5, 40, 53, 150, 161, 289, 517])
@pytest.mark.parametrize("policy", ["bf16", "kivi2"])
def test_open_pages(policy, text):
    """16 tokens at a time go into pages of 128 that are not full, where the codecs can; else 128 do."""
    policy, tokens = get_policy(policy, flush_length=16, residual_length=8), {"text": text, "image": 130}
    assert_equal(policy, tokens)
    cache, model = packed_cache(policy, tokens), CostModel(shape_of(CONFIG), policy)
    split = model.split(tokens)
    assert model.opens_pages == cache.table.opens_pages == (policy.name == "bf16")
    assert split.dense == cache.table.dense.shape[1]
    assert {m: size for m, (_, size) in split.packed.items()} == cache.table.page_sizes
    counts = {m: cache.table.counts(positions)[m] for m, positions in cache.table.stores.items()}
    assert {m: count for m, (count, _) in split.packed.items()} == counts


def test_overrides_and_skipped_layers():
    assert_equal(replace(get_policy("kivi2"), skip_layers=(0,)), {"text": 600, "image": 200})
    assert_equal(
        get_policy("oscar2", residual_length=7, flush_length=32, num_sink_tokens=1), {"text": 600, "video": 200}
    )


@pytest.mark.parametrize("policy", ["bf16", "oscar2", "calibquant1", "rd1"])
def test_the_longest_context_fits_and_a_page_more_does_not(policy):
    model, media, budget = CostModel(SHAPES["Qwen2.5-VL-7B-Instruct"], policy), {"image": 1000}, 2**30
    longest = model.longest_context(budget, media, batch=3)
    assert model.cost({"text": longest - 1000, **media}, 3).nbytes <= budget
    assert model.cost({"text": longest - 1000 + 128, **media}, 3).nbytes > budget
    assert model.longest_context(2 * budget, media, batch=3) > longest


def test_small_budgets():
    model = CostModel(shape_of(CONFIG), "kivi2")
    assert model.longest_context(10, {"image": 400}) is None
    assert model.longest_context(10) == 0
    few = model.longest_context(10_000)
    assert model.cost({"text": few}).nbytes <= 10_000 < model.cost({"text": few + 1}).nbytes


def test_a_known_figure():
    """Llama-3.1-8B in bf16 takes 128 KiB a token, and the table one byte and four a slot."""
    cost = CostModel(SHAPES["Llama-3.1-8B-Instruct"], "bf16").cost({"text": 131072})
    assert cost.nbytes_dense == 16 * 2**30
    # the pages of all layers name their position; the residual is full precision here as well
    assert cost.nbytes == 16 * 2**30 + 5 * 131072
    assert 15.9 < cost.bits_per_value < 16.1


def test_a_policy_without_its_calibration_says_what_it_stores():
    balanced, plain = (CostModel(shape_of(CONFIG), name) for name in ("balanced", "oscar4-2"))
    assert (balanced.name, balanced.stored_as, plain.stored_as) == ("balanced", "oscar4-2", "oscar4-2")
    assert balanced.cost({"text": 900}).nbytes == plain.cost({"text": 900}).nbytes


@pytest.mark.parametrize("policy", ["balanced", "small", "rd2.5", "spherical-mid"])
def test_bytes_of_a_calibrated_model_are_exact(policy):
    """Every layer of a calibrated model may store its own number of bits."""
    folder = Path(__file__).resolve().parents[3] / "assets" / "tiny-omni"
    calibration, config = read_calibration(folder / FILE_NAME), AutoConfig.from_pretrained(folder)
    shape, tokens = find_shape(folder), {"text": 300, "image": 1800, "audio": 90}
    model = CostModel(shape, policy, calibration)
    assert model.stored_as == policy
    report = packed_cache(policy, tokens, 1, calibration, config).memory()
    held = {name: n for name, n in report.by_component.items() if n and name != "reserved"}
    assert model.cost(tokens).by_component == held


def test_sliding_layers_hold_their_window():
    shape = shape_of(build("gemma3").config)
    assert shape.num_sliding_layers and shape.sliding_window
    cost = CostModel(shape, "oscar2").cost({"text": 500})
    vector = 2 * shape.num_key_value_heads * shape.head_dim * 2
    assert cost.by_component["sliding"] == shape.num_sliding_layers * shape.sliding_window * vector
    gemma = SHAPES["gemma-3-12b-it"]
    assert (gemma.num_layers, gemma.total_layers, gemma.layer_indices[:2]) == (8, 48, (5, 11))


def test_gemma3_of_transformers_has_the_pattern_of_the_table():
    ours = SHAPES["gemma-3-12b-it"]
    config = Gemma3TextConfig(
        num_hidden_layers=48, num_attention_heads=16, num_key_value_heads=8, head_dim=256, hidden_size=3840,
        sliding_window=1024,
    )  # fmt: skip
    theirs = shape_of(config, ours.name, ours.source)
    assert replace(theirs, parameters=ours.parameters) == ours


def test_parameters_are_counted_from_a_configuration():
    """Without weights; the table's are those of the published configurations."""
    config = LlamaConfig(
        hidden_size=4096, num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=8,
        intermediate_size=14336, vocab_size=128256, tie_word_embeddings=False,
    )  # fmt: skip
    assert count_parameters(config) == SHAPES["Llama-3.1-8B-Instruct"].parameters
    model = build("qwen2_5_vl")
    assert count_parameters(model.config) == sum(p.numel() for p in model.parameters())
    text = {
        **{"hidden_size": 2048, "num_hidden_layers": 36, "num_attention_heads": 16, "num_key_value_heads": 2},
        **{"intermediate_size": 11008, "vocab_size": 151936, "tie_word_embeddings": True},
    }
    vision = {"depth": 32, "hidden_size": 1280, "intermediate_size": 3420, "out_hidden_size": 2048}
    config = Qwen2_5_VLConfig(text_config=text, vision_config=vision, tie_word_embeddings=True)
    assert count_parameters(config) == SHAPES["Qwen2.5-VL-3B-Instruct"].parameters
    assert all(shape.parameters and shape.window for shape in SHAPES.values())


def test_names_and_errors(tmp_path):
    assert find_shape("qwen/qwen2.5-vl-7b") is SHAPES["Qwen2.5-VL-7B-Instruct"]
    CONFIG.save_pretrained(tmp_path)
    shape = find_shape(tmp_path)
    assert (shape.num_layers, shape.num_attention_heads, shape.num_key_value_heads, shape.head_dim) == (2, 4, 2, 64)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(KVMMError, match="configuration"):
        find_shape(tmp_path)
    with pytest.raises(KVMMError, match="No folder and no built-in model"):
        find_shape("nothing-7b")
    with pytest.raises(KVMMError, match="modality"):
        CostModel(shape, "kivi2").cost({"smell": 3})
    with pytest.raises(KVMMError, match="batch"):
        CostModel(shape, "kivi2").cost({"text": 3}, 0)
    with pytest.raises(KVMMError, match="budget"):
        CostModel(shape, get_policy("oscar2", budget=10**6))


def test_dictionaries_are_json():
    shape = ModelShape("tiny", 2, 4, 2, 64, 256)
    cost = CostModel(shape, "oscar2").cost({"text": 300})
    assert json.loads(json.dumps(cost.to_dict()))["context"] == 300
    assert json.loads(json.dumps(shape.to_dict()))["head_dim"] == 64


# -- plans ------------------------------------------------------------------------------------------------------------


def test_a_plan_subtracts_the_weights():
    shape, tokens = SHAPES["Qwen2.5-VL-7B-Instruct"], {"text": 4096}
    whole, alone = (make_plan(shape, ["bf16"], tokens, budget=24 * 2**30, cache_only=one) for one in (False, True))
    assert whole.weights == 2 * 8_292_166_656 and alone.weights == 0
    assert whole.cache_budget == 24 * 2**30 - whole.weights and alone.cache_budget == 24 * 2**30
    same = make_plan(replace(shape, window=0), ["bf16"], tokens, budget=whole.cache_budget, cache_only=True)
    free = make_plan(replace(shape, window=0), ["bf16"], tokens, budget=24 * 2**30)
    assert free.rows[0].longest_context == same.rows[0].longest_context < 2**30 * 24 // 57344
    assert "the weights take 15.45 GiB (8.29 billion parameters" in whole.notes[0]
    assert alone.notes[0] == "24 GiB are for the cache alone."
    small = make_plan(shape, ["bf16"], tokens, budget=10 * 2**30)
    assert small.cache_budget == 0 and small.rows[0].longest_context is None
    assert small.cells(small.rows[0])[-1] == "does not fit"


def test_a_plan_stops_at_the_models_window():
    shape = SHAPES["Qwen2.5-VL-7B-Instruct"]
    plan = make_plan(shape, ["kivi2"], {"text": 200_000}, budget=80 * 2**30)
    (row,) = plan.rows
    assert row.at_window and row.longest_context == 128_000 and plan.cells(row)[-1] == "128,000†"
    assert any("window is 128,000 tokens: it does not read this context" in note for note in plan.notes)
    assert any(note.startswith("†") and "128,000" in note for note in plan.notes)
    few = make_plan(shape, ["bf16"], {"text": 1000}, budget=18 * 2**30)
    assert not few.rows[0].at_window and not any("window" in note for note in few.notes)


def test_a_plan_leads_with_what_is_recommended_and_marks_what_needs_calibration():
    assert PLAN_POLICIES[:2] == ("balanced", "small")
    folder = Path(__file__).resolve().parents[3] / "assets" / "tiny-omni"
    shape, tokens, names = find_shape(folder), {"text": 400, "image": 900}, ["balanced", "rd2", "kivi2"]
    without = make_plan(shape, names, tokens)
    assert [row.label for row in without.rows] == ["balanced*", "rd2*", "kivi2"]
    assert "Until then balanced stores oscar4-2, rd2 stores unfitted codes." in without.notes[-1]
    fitted = make_plan(shape, names, tokens, calibration=read_calibration(folder / FILE_NAME))
    assert not any(row.needs_calibration for row in fitted.rows) and not fitted.notes


@pytest.mark.parametrize("policy", ["bf16", "kivi2", "oscar2", "balanced"])
def test_a_plan_shows_what_a_cache_of_that_shape_measures(policy):
    tokens = {"text": 700, "image": 1300}
    plan = make_plan(shape_of(CONFIG), [policy], tokens)
    report = packed_cache(policy, tokens).memory()
    cells = plan.cells(plan.rows[0])
    assert cells[2:5] == (
        f"{report.packed_bits_per_value:.2f}",
        f"{report.bits_per_value:.2f}",
        ratio_text(report.ratio),
    )
