"""Policies from YAML: what a file may say, what follows from it, and one clear line for what is wrong."""

import json

import pytest
import torch

from kvmm import KVMMCache, KVMMError, KVPolicy, get_policy, policies
from kvmm.models.conversation import Conversation
from kvmm.policy import KVSpec, LayerOverride, spec
from kvmm.policy.files import parse_bytes
from tests.tiny_models import build, generate, inputs

FULL = """
base: oscar4-2
name: mine
description: Images in 2 bits, recordings as small does.
text:
  key: {codec: kivi, bits: 4, group_size: 32}
  value: bf16
image: {codec: oscar, bits: 2, group_size: 128, norm: none, rotation: false}
audio: small
skip_layers: [0, -1]
overrides:
  - layers: [1, 2]
    image: {bits: 4}
  - layers: -2
    video: {key: {codec: calibquant, bits: 1, levels: mean, calibration: [1, 2.5]}}
num_sink_tokens: 2
residual_length: 64
budget: 1.5 MiB
"""


@pytest.fixture
def file(tmp_path):
    def write(text, name="my.yaml"):
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return write


def test_every_key(file):
    policy = get_policy(str(file(FULL)))
    oscar = spec("oscar", 2, 128, norm="none", rotation=False)
    four = spec("oscar", 4, 128, norm="none", rotation=False)
    base = get_policy("oscar4-2")
    assert policy == KVPolicy(
        "mine",
        "Images in 2 bits, recordings as small does.",
        text=KVSpec(spec("kivi", 4, 32), spec("bf16")),
        image=KVSpec(oscar, oscar),
        video=base.video,
        audio=get_policy(get_policy("small").uncalibrated).audio,  # because of the budget
        skip_layers=(0, -1),
        overrides=(
            LayerOverride((1, 2), image=KVSpec(four, four)),
            LayerOverride(
                (-2,),
                video=KVSpec(
                    spec("calibquant", 1, levels="mean", calibration=(1, 2.5)),
                    base.video.value,
                ),
            ),
        ),
        num_sink_tokens=2,
        residual_length=64,
        uncalibrated=get_policy("small").uncalibrated,
        budget=3 << 19,
    )
    assert KVPolicy.from_file(file(FULL)) == policy
    assert get_policy(file(FULL, "MY.YML"), residual_length=8, key_bits=8).image.key.bits == 8


def test_defaults(file):
    policy = KVPolicy.from_file(file("image: {codec: kivi, bits: 2}", "two.yaml"))
    assert policy.name == "two" and "two.yaml" in policy.description
    assert policy.text == KVSpec() and policy.image.key == spec("kivi", 2)
    assert (policy.num_sink_tokens, policy.residual_length) == (KVPolicy().num_sink_tokens, KVPolicy().residual_length)


def test_a_calibration_file_lies_beside_the_policy(file, tmp_path):
    assert KVPolicy.from_file(file("calibration: fit.safetensors")).calibration == str(tmp_path / "fit.safetensors")
    assert KVPolicy.from_file(file("calibration: /a/fit.safetensors")).calibration == "/a/fit.safetensors"


@pytest.mark.parametrize("name", policies())
def test_plain_values_make_an_equal_policy(name, file):
    policy = get_policy(name)
    text = json.dumps(policy.to_dict())
    assert KVPolicy.from_dict(json.loads(text)) == policy
    assert KVPolicy.from_file(file(text)) == policy  # JSON is YAML
    assert KVPolicy.from_file(file(f"base: {name}")) == KVPolicy.from_dict(
        {**json.loads(text), "name": "my", "description": "From my.yaml."}
    )


def test_round_trip_of_everything(file):
    policy = KVPolicy.from_file(file(FULL + "calibration: x.safetensors\n"))
    assert KVPolicy.from_dict(json.loads(json.dumps(policy.to_dict()))) == policy


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("bsae: balanced", "unknown key 'bsae'; use base, name"),
        ("base: balancd", "base: Unknown policy 'balancd'"),
        ("base: other.yaml", "base: must be a preset's name"),
        ("base: [a]", "base: must be a preset's name"),
        ("image: {codec: zip, bits: 2}", "image.codec: Unknown codec 'zip'"),
        ("image: {codec: 3, bits: 2}", "image.codec: must be a codec's name"),
        ("image: {codec: kivi}", "image.bits: is missing"),
        ("image: {codec: kivi, bits: two}", "image.bits: must be a number, not 'two'"),
        ("image: {codec: kivi, bits: true}", "image.bits: must be a number"),
        ("image: {codec: kivi, bits: 3}", "image: Codec kivi stores 1, 2, 4 or 8 bits, not 3"),
        ("image: {codec: kivi, bits: 2, group_size: 32.5}", "image.group_size: must be a number of elements"),
        ("image: {codec: kivi, bits: 2, group_size: 48}", "image: group_size must be a power of two"),
        ("image: {codec: oscar, bits: 2, norm: l3}", "image: Codec oscar: norm must be"),
        ("image: {codec: oscar, bits: 2, colour: 1}", "image: Codec oscar has no option 'colour'"),
        ("image: {key: {codec: zip, bits: 2}}", "image.key.codec: Unknown codec"),
        ("image: {key: bf16, values: bf16}", "image: unknown key 'values'; use key, value"),
        ("image: fast", "image: Unknown policy 'fast'"),
        ("image: 2", "image: must be a preset's name or a mapping"),
        ("skip_layers: all", "skip_layers: must be layer numbers"),
        ("skip_layers: [0, 1.5]", "skip_layers: must be layer numbers"),
        ("overrides: {layers: [0]}", "overrides: must be a list"),
        ("overrides: [3]", r"overrides\[0\]: must be a mapping"),
        ("overrides: [{image: bf16}]", r"overrides\[0\].layers: is missing"),
        ("overrides: [{layers: [0]}, {layers: [1], imgae: bf16}]", r"overrides\[1\]: unknown key 'imgae'"),
        ("overrides: [{layers: [0], image: {codec: zip}}]", r"overrides\[0\].image.codec: Unknown codec"),
        ("residual_length: -1", "residual_length must be a number of tokens, 0 or more"),
        ("residual_length: some", "residual_length: must be a number of tokens"),
        ("num_sink_tokens: 2.5", "num_sink_tokens: must be a number of tokens"),
        ("budget: much", "budget: must be a number of bytes above 0"),
        ("budget: 0", "budget: must be a number of bytes above 0"),
        ("budget: 12 parsecs", "budget: must be a number of bytes above 0"),
        ("name: [a]", "name: must be text"),
        ("calibration: 3", "calibration: must be text"),
        ("", "write keys such as"),
        ("- base", "write keys such as"),
        ("base: [", "line 1: this cannot be read as YAML"),
        ("a: b\n\tc: d", "line 2: this cannot be read as YAML"),
        ("base: kivi2\nimage: bf16\nimage: kivi4", "line 3: this cannot be read as YAML .key 'image' is there twice"),
        ("image: {codec: kivi, bits: 2, bits: 4}", "key 'bits' is there twice"),
        ("!!python/object/apply:os.getcwd []", "this cannot be read as YAML"),
    ],
)
def test_errors_name_the_file_and_the_key(file, text, says):
    path = file(text)
    with pytest.raises(KVMMError, match=says) as error:
        get_policy(str(path))
    assert str(error.value).startswith(str(path)) and "\n" not in str(error.value)


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(KVMMError, match="There is no policy file"):
        get_policy(str(tmp_path / "none.yaml"))
    (tmp_path / "folder.yaml").mkdir()
    with pytest.raises(KVMMError, match="Cannot read"):
        get_policy(str(tmp_path / "folder.yaml"))
    (tmp_path / "bytes.yaml").write_bytes(b"name: \xff\xfe")
    with pytest.raises(KVMMError, match="Cannot read"):
        get_policy(str(tmp_path / "bytes.yaml"))


@pytest.mark.parametrize(
    ("text", "count"), [(7, 7), ("512 MiB", 512 << 20), ("1.5GB", 1_500_000_000), ("2 KB", 2000), ("64 B", 64)]
)
def test_bytes(text, count):
    assert parse_bytes(text) == count


def test_memory_by_layer_follows_the_file(file):
    """Skipped layers stay dense, overridden ones take their own bits, the others the policy's."""
    model = build("qwen2_5_omni")
    arguments = inputs("qwen2_5_omni")

    def layers(text):
        cache = KVMMCache.for_model(model, get_policy(str(file(text)), residual_length=0, num_sink_tokens=0))
        with torch.no_grad():
            model(**arguments, past_key_values=cache, use_cache=True)
        cache.pack()
        return cache, [layer["nbytes"] for layer in cache.memory().by_layer]

    two = "image: {codec: kivi, bits: 2, group_size: 32}\naudio: {codec: kivi, bits: 2, group_size: 32}\n"
    cache, plain = layers(two)
    _, full = layers("name: full")
    assert plain[0] == plain[1] and full[0] == full[1] and plain[0] < full[0]
    _, skipped = layers(f"{two}skip_layers: [-1]")
    assert skipped == [plain[0], full[1]]
    _, skipped = layers(f"{two}skip_layers: 0")
    assert skipped == [full[0], plain[1]]
    cache, mixed = layers(f"{two}overrides: [{{layers: [1], image: {{bits: 8}}}}]")
    assert mixed[0] == plain[0] and plain[1] < mixed[1] < full[1]
    images = [layer.parts[1].key.packed["codes"].shape[3] for layer in cache.layers]
    assert images[1] == 4 * images[0]
    for text in ("skip_layers: [2]", "skip_layers: [-3]", "overrides: [{layers: [0, 2], image: bf16}]"):
        with pytest.raises(KVMMError, match=r"names layer -?[23], but the model has 2"):
            layers(text)


def test_skipping_every_layer_is_lossless(file):
    model = build("qwen2_5_omni")
    arguments = inputs("qwen2_5_omni", 2)
    cache = KVMMCache.for_model(model, str(file("base: kivi2\nskip_layers: [0, 1]\nresidual_length: 0")))
    assert torch.equal(generate(model, arguments, past_key_values=cache), generate(model, arguments))
    assert cache.is_packed


def test_a_conversation_reads_the_file_once(file):
    model = build("llama")
    path = file("base: kivi2")
    talk = Conversation(model, None, str(path))
    path.unlink()
    assert talk._new_cache().policy.image.key.codec == "kivi"
