"""Caches in files: the same tokens afterwards, nothing decoded, and a clear refusal of everything else."""

import json
import struct

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from kvmm import KVMMCache, KVMMError, get_policy, policies
from kvmm.cache import file as cache_file
from kvmm.calibration import Calibration, model_fingerprint
from kvmm.policy import KVPolicy, KVSpec, LayerOverride, spec
from tests.tiny_models import build, generate, inputs

FIELDS = {"residual_length": 0, "flush_length": 32, "num_sink_tokens": 2}


def filled(family, policy, batch=2, pack=True, **overrides):
    """A model, its cache after a prompt and some tokens, and the ids so far."""
    model, arguments = build(family), inputs(family, batch)
    cache = KVMMCache.for_model(model, policy, **{**FIELDS, **overrides})
    ids, mask = arguments["input_ids"], arguments["attention_mask"]
    if pack:
        ids = generate(model, arguments, past_key_values=cache, max_new_tokens=20)
    else:
        with torch.no_grad():
            model(**arguments, past_key_values=cache, use_cache=True)
    more = torch.full((batch, 3), 7)
    ids = torch.cat((ids, more), 1)
    mask = torch.cat((mask, torch.ones(batch, ids.shape[1] - mask.shape[1], dtype=mask.dtype)), 1)
    return model, cache, {"input_ids": ids, "attention_mask": mask}


def go_on(model, cache, arguments):
    """The answer, and the logits of every step."""
    out = generate(
        model, arguments, past_key_values=cache, max_new_tokens=12, output_logits=True, return_dict_in_generate=True
    )
    return out.sequences, torch.stack(out.logits)


@pytest.mark.parametrize(
    ("family", "policy"),
    [("gemma3", "bf16"), ("gemma3", "balanced"), *(("qwen2_5_omni", policy) for policy in policies())],
)
def test_generation_goes_on_with_the_same_tokens(tmp_path, family, policy):
    model, cache, arguments = filled(family, policy)
    path = tmp_path / "cache.safetensors"
    cache.save(path)
    loaded = KVMMCache.load(path, model)
    assert loaded.policy == cache.policy
    assert loaded.get_seq_length() == cache.get_seq_length()
    for one, other in zip(cache.layers, loaded.layers, strict=True):
        assert torch.equal(one.keys, other.keys) and torch.equal(one.values, other.values)
    assert loaded.memory().nbytes <= cache.memory().nbytes  # without the room for more
    assert loaded.memory().by_modality.keys() == cache.memory().by_modality.keys()
    tokens, logits = go_on(model, cache, arguments)
    tokens_loaded, logits_loaded = go_on(model, loaded, arguments)
    assert torch.equal(tokens_loaded, tokens) and torch.equal(logits_loaded, logits)


@pytest.mark.parametrize("policy", policies())
def test_the_file_is_as_small_as_the_cache(tmp_path, policy):
    _, cache, _ = filled("qwen2_5_vl", policy)
    path = tmp_path / "cache"
    cache.save(path)
    tensors = load_file(path)
    assert sum(t.nbytes for t in tensors.values()) <= cache.memory().nbytes
    assert path.stat().st_size < cache.memory().nbytes + 16384  # names, shapes, the policy


def test_before_packing(tmp_path):
    model, cache, arguments = filled("qwen2_5_vl", "kivi2", pack=False)
    cache.save(tmp_path / "cache")
    loaded = KVMMCache.load(tmp_path / "cache", model)
    assert not loaded.is_packed
    assert torch.equal(go_on(model, loaded, arguments)[0], go_on(model, cache, arguments)[0])


def test_a_loaded_cache_is_a_cache(tmp_path):
    """Crop, fork, batch operations, saving again."""
    model, cache, arguments = filled("llama", "oscar2")
    cache.save(tmp_path / "a", {"note": "first"})
    loaded = KVMMCache.load(tmp_path / "a", model)
    for one in (cache, loaded):
        one.crop(-25)
        one.batch_select_indices(torch.tensor([1]))
    fork = loaded.fork()
    arguments = {name: x[1:, : x.shape[1] - 23] for name, x in arguments.items()}
    expected = go_on(model, cache, arguments)[0]
    loaded.save(tmp_path / "b")
    assert torch.equal(go_on(model, fork, arguments)[0], expected)
    again = KVMMCache.load(tmp_path / "b", model)
    assert again.metadata == {"note": "first"}
    assert torch.equal(go_on(model, again, arguments)[0], expected)


def test_metadata(tmp_path):
    model, cache, _ = filled("qwen2_5_vl", "kivi2")
    deltas = model.model.rope_deltas
    cache.save(tmp_path / "cache", {"rope_deltas": deltas, "title": "Invoice", "pages": [1, 2]})
    metadata = KVMMCache.load(tmp_path / "cache", model).metadata
    assert torch.equal(metadata.pop("rope_deltas"), deltas)
    assert metadata == {"title": "Invoice", "pages": [1, 2]}
    with pytest.raises(KVMMError, match="'when' is neither"):
        cache.save(tmp_path / "other", {"when": object()})
    assert not (tmp_path / "other").exists()


def test_a_policy_of_one_s_own(tmp_path):
    kivi, oscar = (KVSpec(spec(name, 2, 32), spec(name, 4, 32)) for name in ("kivi", "oscar"))
    policy = KVPolicy("mine", image=kivi, text=oscar, skip_layers=(-1,), overrides=(LayerOverride((0,), image=oscar),))
    model, cache, arguments = filled("qwen2_5_vl", policy)
    cache.save(tmp_path / "cache")
    loaded = KVMMCache.load(tmp_path / "cache", model)
    assert loaded.policy == cache.policy and loaded.policy.name == "mine"
    assert torch.equal(go_on(model, loaded, arguments)[0], go_on(model, cache, arguments)[0])


def refused(path, model, match):
    with pytest.raises(KVMMError, match=match) as error:
        KVMMCache.load(path, model)
    assert "\n" not in str(error.value) and str(path) in str(error.value) and len(str(error.value)) < 1000


def rewrite(path, out, change_header=None, change_tensors=None, checksum=True):
    """A copy of a file with something changed, by default with a checksum that fits."""
    with safe_open(path, "pt") as file:
        header = file.metadata()
    tensors = load_file(path)
    if change_header:
        change_header(header)
    if change_tensors:
        change_tensors(tensors)
    if checksum:
        header["checksum"] = cache_file._checksum(header["state"], tensors)
    save_file(tensors, out, header)
    return out


def test_another_model_is_refused(tmp_path):
    _, cache, _ = filled("qwen2_5_vl", "kivi2")
    path = tmp_path / "cache"
    cache.save(path)
    refused(path, build("qwen2_vl"), "another model")
    build.cache_clear()
    model = build("qwen2_5_vl")  # the same weights in another object
    KVMMCache.load(path, model)
    refused(path, model.to(torch.bfloat16), "written in float32 and this model is in bfloat16")
    model.to(torch.float32)
    with torch.no_grad():
        model.get_decoder().layers[1].self_attn.k_proj.weight.mul_(1.5)
    fresh = type(model)(model.config).eval()
    fresh.load_state_dict(model.state_dict())
    build.cache_clear()
    refused(path, fresh, "another model")


def test_damaged_files_are_refused(tmp_path):
    model, cache, _ = filled("qwen2_5_vl", "kivi2")
    path = tmp_path / "cache"
    cache.save(path)
    whole = path.read_bytes()
    broken = tmp_path / "broken"
    for count in (0, 5, 100, len(whole) // 2, len(whole) - 1):
        broken.write_bytes(whole[:count])
        refused(broken, model, "not a complete safetensors file")
    start = 8 + struct.unpack("<Q", whole[:8])[0]
    for offset in (start, start + (len(whole) - start) // 2, len(whole) - 1):
        broken.write_bytes(whole[:offset] + bytes([whole[offset] ^ 1]) + whole[offset + 1 :])
        refused(broken, model, "damaged")
    refused(tmp_path / "missing", model, "no cache file")
    refused(tmp_path, model, "no cache file")
    save_file({"x": torch.zeros(2)}, broken)
    refused(broken, model, "not a saved cache")
    broken.write_bytes(b"\x80\x04K\x01." * 100)  # a pickle is read by nobody
    refused(broken, model, "not a complete safetensors file")


def test_other_versions_and_policies_are_refused(tmp_path):
    model, cache, _ = filled("qwen2_5_vl", "kivi2")
    path, other = tmp_path / "cache", tmp_path / "other"
    cache.save(path, compress=False)
    rewrite(path, other, lambda header: header.update(format_version="9"))
    refused(other, model, "format 9 and this kvmm reads 1 to 3")
    rewrite(path, other, lambda header: header.update(format_version="é" * 5000))
    refused(other, model, "format é+ ... and this kvmm reads 1 to 3")
    rewrite(path, other, lambda header: header.update(state=header["state"].replace('"float32"', f'"{"9" * 5000}"')))
    refused(other, model, "written in 9+ ... and this model is in float32")
    rewrite(path, other, lambda header: header.update(state=header["state"].replace('"kivi"', '"zip"')))
    refused(other, model, "Unknown codec 'zip'")
    rewrite(path, other, lambda header: header.update(state=header["state"].replace('"bits": 2', '"bits": 3')))
    refused(other, model, "not 3")
    rewrite(path, other, lambda header: header.update(state=header["state"].replace('"residual_length"', '"resid"')))
    refused(other, model, "unknown key 'resid'")
    rewrite(path, other, lambda header: header.update(state=header["state"].replace("kivi", "oscar")), checksum=False)
    refused(other, model, "damaged")
    name = next(name for name in load_file(path) if name.endswith("scale"))
    rewrite(path, other, change_tensors=lambda tensors: tensors.pop("layer.0.dense_key"))
    refused(other, model, "does not hold a whole cache")
    rewrite(path, other, change_tensors=lambda tensors: tensors.pop(name), checksum=False)
    refused(other, model, "damaged")


def test_calibration_must_be_the_same(tmp_path):
    model = build("qwen2_5_vl")
    file = tmp_path / "fit.safetensors"
    tensors = {"oscar.0.key.image.x": torch.ones(2)}
    Calibration(model_fingerprint(model), tensors).save(file)
    model, cache, arguments = filled("qwen2_5_vl", get_policy("oscar2", calibration=str(file)))
    path = tmp_path / "cache"
    cache.save(path)
    moved = tmp_path / "moved.safetensors"
    file.rename(moved)
    refused_by = pytest.raises(KVMMError, match="No calibration file")
    with refused_by:
        KVMMCache.load(path, model)
    loaded = KVMMCache.load(path, model, calibration=moved)
    assert torch.equal(go_on(model, loaded, arguments)[0], go_on(model, cache, arguments)[0])
    Calibration(model_fingerprint(model), {"oscar.0.key.image.x": torch.zeros(2)}).save(moved)
    with pytest.raises(KVMMError, match="another calibration"):
        KVMMCache.load(path, model, calibration=moved)


def test_writing_is_atomic(tmp_path, monkeypatch):
    model, cache, _ = filled("llama", "kivi2")
    path = tmp_path / "cache"
    cache.save(path)
    before = path.read_bytes()

    def fails(tensors, name, header):
        name.write_bytes(b"half")
        raise OSError("No space left on device")

    monkeypatch.setattr(cache_file, "save_file", fails)
    with pytest.raises(KVMMError, match=r"Cannot write .*No space left"):
        cache.save(path)
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]
    monkeypatch.undo()
    with pytest.raises(KVMMError, match="Cannot write"):
        cache.save(tmp_path / "no" / "such" / "folder")
    KVMMCache.load(path, model)


def test_what_cannot_be_saved(tmp_path):
    model = build("llama")
    with pytest.raises(KVMMError, match="empty"):
        KVMMCache.for_model(model, "kivi2").save(tmp_path / "cache")
    with pytest.raises(KVMMError, match="for_model"):
        KVMMCache(model.config, "kivi2").save(tmp_path / "cache")
    assert not list(tmp_path.iterdir())


def test_the_header_is_json(tmp_path):
    _, cache, _ = filled("llama", "kivi2")
    cache.save(tmp_path / "cache")
    with safe_open(tmp_path / "cache", "pt") as file:
        header = file.metadata()
    state = json.loads(header["state"])
    assert header["format"] == "kvmm-cache" and header["format_version"] == "1"
    assert state["policy"]["name"] == "kivi2" and state["table"]["packed"] is True


@pytest.mark.parametrize("packed", [True, False])
def test_a_cache_with_a_budget_goes_on(tmp_path, packed):
    """What was lowered and dropped, what is pinned, and what the next decisions rest on."""
    model = build("qwen3")
    ids = torch.randint(3, 110, (1, 610), generator=torch.Generator().manual_seed(0))
    arguments = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}

    def start(**budget):
        cache = KVMMCache.for_model(model, "balanced", **FIELDS, **budget)
        with torch.no_grad():
            model(input_ids=ids[:, :-5], past_key_values=cache, use_cache=True)
        return cache.pack() if packed or not budget else cache

    cache = start(budget=int(0.8 * start().memory().nbytes))
    if packed:
        assert cache.retention_report()["flips"] > 0
    cache.pin(40, 50)
    cache.save(tmp_path / "cache")
    loaded = KVMMCache.load(tmp_path / "cache", model)
    assert loaded.retention.pins == [(40, 50)]
    tokens, logits = go_on(model, cache, arguments)
    tokens_loaded, logits_loaded = go_on(model, loaded, arguments)
    assert torch.equal(tokens_loaded, tokens)
    torch.testing.assert_close(logits_loaded, logits)
    assert loaded.retention_report() == cache.retention_report()
    assert cache.retention_report()["flips"] > 0
