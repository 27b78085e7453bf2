"""``load_model``: where it looks, what it refuses, and with which dtype it loads."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file

from kvmm import embedded
from kvmm.calibration import FILE_NAME
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
    for module in (embedded, loading):
        monkeypatch.setattr(module, "EMBEDDED_MODELS", ("not there", folder.name, "other"))
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


def with_header(path, header, size=1000):
    """A safetensors file of a header and ``size`` bytes."""
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(size))


@pytest.mark.parametrize("stated", [500, None, ["5"], "-5", "5e9", "٣٢", "²", "", "99999", "9" * 30, "9" * 5000])
def test_a_malformed_number_of_weights_is_not_believed(tmp_path, stated):
    header = {"__metadata__": {loading.ELEMENTS: stated}, "w.coded": {"dtype": "U8", "shape": [900]}}
    header |= {"w.steps": {"dtype": "BF16", "shape": [20]}, "v.low": {"dtype": "U8", "shape": [4, 5]}}
    with_header(tmp_path / loading.PACKED_FILE, header)
    assert loading._parameters(tmp_path) == 900 + 2 * 4 * 5
    header["__metadata__"][loading.ELEMENTS] = "1234"
    with_header(tmp_path / loading.PACKED_FILE, header)
    assert loading._parameters(tmp_path) == 1234


@pytest.mark.parametrize(
    "header",
    [
        [], 5, {"w": 5}, {"w": {}}, {"w": {"shape": 3}}, {"w": {"shape": ["ab", 2]}}, {"w": {"shape": [-1, 3]}},
        {"w": {"shape": [True]}}, {"__metadata__": ["elements"]}, {"__metadata__": "elements"},
    ],
    ids=str,
)  # fmt: skip
def test_a_malformed_header_is_one_line(tmp_path, header):
    with_header(tmp_path / loading.PACKED_FILE, header)
    with pytest.raises(KVMMError, match="not a complete safetensors file"):
        loading._parameters(tmp_path)


def test_a_header_nested_too_deep_is_one_line(tmp_path):
    text = b"[" * 200_000
    (tmp_path / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text)
    with pytest.raises(KVMMError, match="not a complete safetensors file"):
        loading._parameters(tmp_path)


def test_a_calibration_is_no_weights():
    folder = loading.assets_folder() / loading.TINY_MODEL
    weights = load_file(folder / "model.safetensors")
    assert (folder / FILE_NAME).is_file()
    assert loading._parameters(folder) == sum(tensor.numel() for tensor in weights.values())


def test_dtype(folder, monkeypatch):
    for native, expected in ((True, torch.bfloat16), (False, torch.float32)):
        monkeypatch.setattr(loading, "cpu_multiplies_bfloat16", lambda native=native: native)
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
