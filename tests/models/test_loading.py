"""``load_model``: where it looks, what it refuses, and with which dtype it loads."""

from __future__ import annotations

import json

import pytest
import torch

from kvmm.errors import KVMMError
from kvmm.models import load_model, loading
from tests.models import checkpoints


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return checkpoints.save("qwen2_5_omni", tmp_path_factory.mktemp("models") / "omni")


def test_the_default_model_can_be_named_by_the_environment(folder, monkeypatch):
    monkeypatch.setenv(loading.DEFAULT_MODEL_ENV, str(folder))
    model, processor = load_model(device="cpu")
    assert model.config.model_type == "qwen2_5_omni_thinker" and not model.training
    assert processor.image_processor.patch_size == 4 and processor.feature_extractor.feature_size == 16
    monkeypatch.setenv(loading.DEFAULT_MODEL_ENV, str(folder / "nothing"))
    with pytest.raises(KVMMError, match=r"not at .*nothing: let KVMM_DEFAULT_MODEL name a model's folder"):
        load_model()
    monkeypatch.chdir(folder)
    for named, path in (
        (".", folder),
        ("tiny-omni", loading.assets_folder() / "tiny-omni"),
        ("~", loading.Path.home()),
    ):
        monkeypatch.setenv(loading.DEFAULT_MODEL_ENV, named)
        assert loading.default_model() == path.resolve()


def test_without_the_environment_it_is_the_embedded_model(folder, monkeypatch):
    monkeypatch.delenv(loading.DEFAULT_MODEL_ENV, raising=False)
    assert loading.assets_folder().parent == loading.Path(__file__).resolve().parents[2]
    monkeypatch.setattr(loading, "assets_folder", lambda: folder.parent)
    assert loading.default_model() == folder.parent / "tiny-omni" and loading.embedded_models() == []
    monkeypatch.setattr(loading, "EMBEDDED_MODELS", ("not there", folder.name, "other"))
    (folder.parent / "other").mkdir(exist_ok=True)
    (folder.parent / "other/config.json").write_text("{}")
    assert loading.embedded_models() == [folder.name, "other"]
    assert load_model(device="cpu")[0].config.text_config.hidden_size == 64


def test_a_checkout_has_a_default_for_ordinary_documents(monkeypatch):
    monkeypatch.delenv(loading.DEFAULT_MODEL_ENV, raising=False)
    assert loading.embedded_models() == ["office-omni", "tiny-omni"]
    assert loading.default_model() == loading.assets_folder() / "office-omni"


@pytest.mark.parametrize("name", ["./missing", "/missing/folder", "~/missing-kvmm", "a/b/c", "plain-name"])
def test_a_missing_folder(name):
    with pytest.raises(KVMMError, match=r"There is no model folder .*: check the path") as caught:
        load_model(name)
    assert "\n" not in str(caught.value)


def test_a_model_of_a_checkout_where_there_is_none(folder, monkeypatch):
    monkeypatch.setattr(loading, "assets_folder", lambda: folder.parent)
    with pytest.raises(KVMMError, match="office-omni is in a checkout of the repository only: clone it, or") as caught:
        load_model("office-omni")
    assert "\n" not in str(caught.value)
    with pytest.raises(KVMMError, match=r"tiny-omni is not in .*: clone the whole repository, or"):
        load_model("tiny-omni")
    monkeypatch.delenv(loading.DEFAULT_MODEL_ENV)
    with pytest.raises(KVMMError, match=r"default model is not at .*tiny-omni: clone the whole repository"):
        load_model()


def test_a_hub_id_without_a_network(monkeypatch):
    def unreachable(*args, **kwargs):
        raise ConnectionError("no route")

    monkeypatch.setattr(loading, "snapshot_download", unreachable)
    with pytest.raises(KVMMError, match="the hub cannot be reached: connect to the network or give a local folder"):
        load_model("owner/model")


def test_a_hub_id_is_downloaded_to_a_folder(folder, monkeypatch):
    monkeypatch.setattr(loading, "snapshot_download", lambda name, allow_patterns: str(folder))
    model, _ = load_model("owner/model", device="cpu")
    assert model.config.model_type == "qwen2_5_omni_thinker"


def test_folders_that_hold_no_usable_model(folder, tmp_path):
    with pytest.raises(KVMMError, match=r"config\.json"):
        load_model(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "t5"}))
    with pytest.raises(KVMMError, match="'t5' are not supported: choose a model of one of these: gemma3"):
        load_model(tmp_path)
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    (tmp_path / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes()[:100])
    with pytest.raises(KVMMError, match="not a complete safetensors file: copy or download it again"):
        load_model(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(KVMMError, match="cannot be loaded as a qwen2_5_omni_thinker model") as caught:
        load_model(tmp_path)
    assert "\n" not in str(caught.value)


def test_pickled_weights_are_not_read(folder, tmp_path):
    for path in folder.iterdir():
        if path.suffix != ".safetensors":
            (tmp_path / path.name).write_bytes(path.read_bytes())
    torch.save({}, tmp_path / "pytorch_model.bin")
    with pytest.raises(KVMMError, match="cannot be loaded"):
        load_model(tmp_path, device="cpu")


def test_memory_is_checked_before_loading(folder, monkeypatch):
    monkeypatch.setattr(loading, "free_bytes", lambda device: 1000)
    with pytest.raises(KVMMError, match=r"omni needs about .* GiB .* are free on cpu: choose a smaller model"):
        load_model(folder, device="cpu")


def test_dtype(folder, monkeypatch):
    for native, expected in ((True, torch.bfloat16), (False, torch.float32)):
        monkeypatch.setattr(loading, "_cpu_multiplies_bfloat16", lambda native=native: native)
        assert load_model(folder, device="cpu")[0].dtype == expected
    assert load_model(folder, device="cpu", dtype="float16")[0].dtype == torch.float16
    with pytest.raises(KVMMError, match="not a dtype"):
        load_model(folder, dtype="int4")


def test_device(folder):
    with pytest.raises(KVMMError, match="not a device"):
        load_model(folder, device="toaster")
    if not torch.cuda.is_available():
        with pytest.raises(KVMMError, match="no CUDA GPU"):
            load_model(folder, device="cuda")
