"""Files that somebody may send: policies, calibrations, archives, recordings. Each is refused in one line, at once."""

import io
import json
import math
import struct
import time
import zipfile

import numpy as np
import pytest
import soundfile
import torch
from safetensors.torch import save_file

from kvmm import KVMMCache, KVMMError, get_policy
from kvmm.bounded_json import parse_json
from kvmm.calibration import Calibration, model_fingerprint, read_calibration
from kvmm.media import load_audio
from kvmm.policy import KVPolicy, KVSpec, RetentionSettings, spec
from kvmm.ui.server.archive import unpack_benchmark
from tests.fuzz.calibrations import fitted
from tests.fuzz.samples import recordings, tone, wav_of
from tests.tiny_models import build, inputs


def refused(call, *arguments, match=None, seconds=5.0):
    """The call raises a ``KVMMError`` of one short line, soon."""
    began = time.perf_counter()
    with pytest.raises(KVMMError, match=match) as error:
        call(*arguments)
    assert time.perf_counter() - began < seconds
    message = str(error.value)
    assert "\n" not in message and len(message) < 1000
    return message


# -- policies ----------------------------------------------------------------------------------------------------------

POLICIES = {
    "deep lists": ("name: " + "[" * 30_000, "levels"),
    "deep maps": ("{a: " * 10_000, "levels"),
    "deep blocks": ("\n".join(" " * i + "a:" for i in range(300)), "levels"),
    "many keys": ("\n".join(f"key{i}: 1" for i in range(5_500)), "more than 4000 values|more than 64 KiB"),
    "a large file": ("# " + "x" * 100_000 + "\nbase: small", "more than 64 KiB"),
    "a long value": ("name: " + "x" * 20_000, "more than 4096 characters"),
    "a huge integer": ("residual_length: " + "9" * 4_090, "residual_length: must be at most"),
    "a huge hexadecimal": ("residual_length: 0x" + "f" * 2_000, "residual_length: must be at most"),
    "a large integer": ("num_sink_tokens: 99999999999999999999", "num_sink_tokens: must be at most"),
    "a large layer": ("skip_layers: [99999999999999999999]", "skip_layers: must be layer numbers"),
    "an infinite budget": ("budget: " + "9" * 400 + " TiB", "budget: must be a number of bytes"),
    "a large budget": ("budget: 0x" + "f" * 100, "budget: must be a number of bytes"),
    "aliases": ("a: &a [1]\nb: *a", "aliases"),
    "a date that is none": ("name: 2001-99-99", "cannot be read as YAML"),
    "an object": ("name: !!python/object/apply:os.system [id]", "cannot be read as YAML"),
    "options in options": (
        "text: {codec: kivi, bits: 2, parameters: [[1]]}",
        "parameters: must be a single value",
    ),
    "a large group": ("text: {codec: kivi, bits: 2, group_size: 1073741824}", "from 16 to 65536"),
    "a large seed": ("text: {codec: turboquant, bits: 2, seed: 99999999999999999999}", "seed must be"),
    "logits to infinity": ("text: {codec: calibquant, bits: 1, calibration: [.inf, .nan]}", "calibration is None"),
    "weights to infinity": ("retention: {segment_weights: [.inf, 1, 1]}", "3 factors"),
    "a long interval": ("retention: {interval: 99999999999999999999}", "interval must be"),
    "no number": ("retention: {decay: .nan}", "decay must be"),
}


@pytest.mark.parametrize("name", POLICIES)
def test_policy_files(tmp_path, name):
    text, match = POLICIES[name]
    path = tmp_path / "policy.yaml"
    path.write_text(text)
    assert str(path) in refused(get_policy, path, match=match)


def test_bytes_that_are_no_policy(tmp_path):
    path = tmp_path / "policy.yaml"
    for data in (b"\xff\xfe\x00", b"name: \x00", b'name: "\\uD800"', b"\x80" * 100):
        path.write_bytes(data)
        refused(get_policy, path)


def test_whole_numbers_of_bits_are_whole(tmp_path):
    path = tmp_path / "policy.yaml"
    path.write_text("text: {codec: kivi, bits: 2.0, group_size: 32}")
    bits = get_policy(path).text.key.bits
    assert bits == 2 and isinstance(bits, int)


def test_settings_of_a_budget():
    for values in ({"margin_gate": 1}, {"decay": True}, {"hysteresis": math.inf}, {"cooldown": 2**40}):
        refused(lambda values=values: RetentionSettings(**values))


def test_json():
    assert parse_json('{"a": [1, 2.5, null]}', "x") == {"a": [1, 2.5, None]}
    assert parse_json("[" * 64 + "]" * 64, "x")
    for text, match in (
        ("[" * 65 + "]" * 65, "deeper than 64"),
        ("[" * 10**6, "deeper than 64"),
        ('{"a":' * 10**5, "deeper than 64"),
        ("9" * 10_000, "is not JSON"),
        ("", "is not JSON"),
        ("[" + "0," * 100 + "0]", "may have 0"),
    ):
        refused(parse_json, text, "x", *((100,) if "may" in match else ()), match=match)


# -- calibrations ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def fit():
    """A model with its calibration."""
    model = build("qwen3")
    return model, fitted(model)


def use(model, path, codec="rd"):
    kv = KVSpec(spec(codec, 2), spec(codec, 2))
    cache = KVMMCache.for_model(
        model, KVPolicy("fit", text=kv, residual_length=0, flush_length=32, calibration=str(path))
    )
    with torch.no_grad():
        model(**inputs("qwen3"), past_key_values=cache, use_cache=True)
    return cache.pack()


def test_a_calibration_that_fits(fit, tmp_path):
    model, calibration = fit
    calibration.save(tmp_path / "fit")
    for codec in ("rd", "spherical"):
        assert use(model, tmp_path / "fit", codec).is_packed


@pytest.mark.parametrize(
    "name",
    ["rd", "rd.0", "rd.0.key.text", "rd.x.key.text.mean", "rd.0.key.smell.mean", "rd.0.up.text.x", "a.b.c.d.e", ""],
)
def test_names_of_a_calibration(fit, tmp_path, name):
    model, calibration = fit
    Calibration(calibration.fingerprint, {**calibration.tensors, name: torch.zeros(1)}).save(tmp_path / "fit")
    refused(use, model, tmp_path / "fit", match="no name of the form")


TENSORS = [
    ("rd.0.key.text.transform", lambda x: x[:, :-1], "transform: has shape"),
    ("rd.0.key.text.transform", lambda x: x.float(), "transform: has dtype float32 instead of float16"),
    ("rd.0.key.text.transform", torch.zeros_like, "transform: cannot be inverted"),
    ("rd.0.key.text.variance", lambda x: -x - 1, "variance: holds values below 0"),
    ("rd.0.key.text.variance", lambda x: x * math.nan, "variance: holds values that are not finite"),
    ("rd.0.key.text.norm", lambda x: x + 7, "norm: holds"),
    ("rd.0.value.text.mean", lambda x: torch.cat((x, x)), "mean: has shape"),
    ("spherical.0.key.text.product-4-8.words", lambda x: x[:, :, :-1], "product-4-8.words: has shape"),
    ("spherical.0.key.text.product-4-8.scale", lambda x: x[:, :1], "product-4-8.scale: has shape"),
]


@pytest.mark.parametrize(("name", "make", "match"), TENSORS)
def test_tensors_of_a_calibration(fit, tmp_path, name, make, match):
    model, calibration = fit
    tensors = {**calibration.tensors, name: make(calibration.tensors[name])}
    Calibration(calibration.fingerprint, tensors, calibration.metadata).save(tmp_path / "fit")
    refused(use, model, tmp_path / "fit", match=match)


def test_a_calibration_of_other_heads(fit, tmp_path):
    """Whole in itself, with the model's fingerprint, and of twice its heads."""
    model, calibration = fit
    twice = {name: torch.cat((t, t)) if t.dim() > 1 else t for name, t in calibration.tensors.items()}
    Calibration(calibration.fingerprint, twice, calibration.metadata).save(tmp_path / "fit")
    refused(use, model, tmp_path / "fit", match="does not fit the model")
    later = {name.replace(".0.", ".7."): t for name, t in calibration.tensors.items()}
    Calibration(calibration.fingerprint, later, calibration.metadata).save(tmp_path / "fit")
    refused(use, model, tmp_path / "fit", match="the model has no such layer")


@pytest.mark.parametrize("metadata", ["[" * 10_000, "[]", "9" * 5_000, '{"calibquant_tau": {"mean": [1]}}',
                                      '{"calibquant_tau": {"mean": [1, "x"]}}', '{"calibquant_tau": 3}'])  # fmt: skip
def test_metadata_of_a_calibration(fit, tmp_path, metadata):
    model, _ = fit
    header = {"format": "kvmm-calibration", "format_version": "1", "fingerprint": model_fingerprint(model)}
    save_file({"rd.0.key.text.x": torch.zeros(1)}, tmp_path / "fit", header | {"metadata": metadata})
    refused(read_calibration, tmp_path / "fit")
    del header["fingerprint"]
    save_file({}, tmp_path / "other", header)
    refused(read_calibration, tmp_path / "other", match="fingerprint")


# -- archives ----------------------------------------------------------------------------------------------------------


def test_a_member_without_a_name(tmp_path):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        entry = zipfile.ZipInfo("x")
        entry.filename = ""
        archive.writestr(entry, b"[]")
        archive.writestr("a.json", b"[]")
    (tmp_path / "in.zip").write_bytes(stream.getvalue())
    (tmp_path / "out").mkdir()
    refused(unpack_benchmark, tmp_path / "in.zip", tmp_path / "out", match="a file without a name")


# -- recordings --------------------------------------------------------------------------------------------------------


def test_every_coding_is_read_or_refused(tmp_path, monkeypatch):
    """What libsndfile writes, as WAV and in all other formats."""
    monkeypatch.chdir(tmp_path)  # of SD2 it leaves a file where the process stands
    read = 0
    for data in recordings():
        try:
            found = load_audio(data)
        except KVMMError as error:
            assert "\n" not in str(error)
            continue
        read += 1
        assert found.dtype == np.float32 and abs(len(found) - 0.6 * 16_000) < 0.1 * 16_000
    assert read > 30


def test_codings_that_had_no_length():
    """libsndfile reads them only as a stream; FFmpeg reads them whole."""
    stream = io.BytesIO()
    soundfile.write(stream, tone(8000), 8000, subtype="GSM610", format="WAV")
    assert len(load_audio(stream.getvalue())) == pytest.approx(0.6 * 16_000, abs=400)


@pytest.mark.parametrize("coding", ["GSM610", "G721_32", "NMS_ADPCM_16", "NMS_ADPCM_24", "NMS_ADPCM_32", "IMA_ADPCM"])
def test_codings_of_wav(coding):
    stream = io.BytesIO()
    soundfile.write(stream, tone(8000), 8000, subtype=coding, format="WAV")
    try:
        found = load_audio(stream.getvalue())
    except KVMMError as error:
        assert "save it as WAV (PCM), FLAC, OGG, MP3 or M4A" in str(error) and "\n" not in str(error)
    else:  # FFmpeg knows it: what is heard is the tone
        power = np.abs(np.fft.rfft(found)) ** 2
        peak = int(power.argmax())
        assert abs(peak * 16_000 / len(found) - 330) < 5
        assert power[peak - 10 : peak + 10].sum() > 0.9 * power.sum()


@pytest.mark.parametrize("tag", [0x0, 0x2, 0x11, 0x22, 0x31, 0x38, 0x40, 0x45, 0x64, 0x161, 0xFFFE, 0xABCD])
def test_wav_files_of_any_tag(tag):
    """Noise behind a header; FFmpeg makes sound of some."""
    data = np.random.default_rng(tag).bytes(8192)
    for bits, align in ((4, 1), (0, 33), (16, 2), (0, 65)):
        try:
            assert (
                load_audio(wav_of(tag, data, bits=bits, align=align, extra=struct.pack("<H", 320))).dtype == np.float32
            )
        except KVMMError as error:
            assert "\n" not in str(error)


def test_the_fuzzer_counts(tmp_path):
    """A report is JSON with the counts of every kind; see tests/fuzz for the samples that run here."""
    from tests.fuzz.runner import run

    result = run(("policies",), 20, out=tmp_path / "out.json")
    assert json.loads((tmp_path / "out.json").read_text())["kinds"]["policies"]["inputs"] == 20
    assert result["clean"] and result["kinds"]["policies"]["refused"]
