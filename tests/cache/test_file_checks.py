"""Saved caches that somebody changed: every field is compared with what it must be before anything reads it."""

import json
import struct

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from kvmm import KVMMCache, KVMMError
from kvmm.cache import file as cache_file
from kvmm.cache.file_checks import check_store
from kvmm.cache.pages import PageStore
from kvmm.calibration.heads import head_shapes
from kvmm.codecs import StoreShape, build_codec, codec_class, codec_names
from kvmm.fields import Field, check_fields
from kvmm.kernels.attention.backends.cpu import kernel as native
from kvmm.kernels.attention.backends.cpu.kernel import readable
from kvmm.policy import KVPolicy, KVSpec, spec
from tests.cache.harness import matrix_specs
from tests.tiny_models import FAMILIES, build, generate, inputs

SPECS = [*matrix_specs(), spec("ott", 2, 32, pool=3), spec("rotatekv", 2, 16, pivots=2)]
FIELDS = {"residual_length": 0, "flush_length": 32, "num_sink_tokens": 2}


def store_of(kv, side, more):
    store = PageStore.for_codec(build_codec(kv, side), 64)
    store.exact_dtype = torch.float32
    for count in (170, *more):
        store.append(torch.randn(2, 2, count, 64, generator=torch.Generator().manual_seed(count)))
    return store


@pytest.mark.parametrize("side", ["key", "value"])
@pytest.mark.parametrize("kv", SPECS, ids=str)
def test_what_codecs_store_is_what_they_declare(kv, side):
    store = store_of(kv, side, (40, 200))
    tensors, values = store.state()
    shape = StoreShape(2, 2, 3 + 1 + 4, 64, 64, torch.float32)
    check_store(store, shape, tensors, values)
    for name in tensors:  # and every one of them is needed
        with pytest.raises(KVMMError):
            check_store(store, shape, {n: t for n, t in tensors.items() if n != name}, values)


def test_every_codec_declares():
    assert all(codec_class(name).fields is not codec_class("bf16").__mro__[1].fields for name in codec_names())


def test_a_codec_without_a_declaration_is_not_read():
    class Silent(codec_class("bf16")):
        fields = codec_class("bf16").__mro__[1].fields

    store = PageStore.for_codec(Silent(spec("bf16"), "key"), 64)
    with pytest.raises(KVMMError, match="does not declare what it stores"):
        check_store(store, StoreShape(1, 1, 1, 64, 16, torch.float32), {}, {"num_groups": 0})


@pytest.mark.parametrize("family", FAMILIES)
def test_heads_that_a_model_has(family):
    """What the projections say is what the cache holds, where they say anything."""
    model = build(family)
    shapes = head_shapes(model)
    cache = KVMMCache.for_model(model, "bf16")
    with torch.no_grad():
        model(**inputs(family), past_key_values=cache, use_cache=True)
    assert shapes
    for index, layer in enumerate(cache.layers):
        if index in shapes:
            heads, dim, value_dim = shapes[index].heads, shapes[index].key_dim, shapes[index].value_dim
            assert layer.keys.shape[1::2] == (heads, dim) and layer.values.shape[1::2] == (heads, value_dim)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A model and a file per policy."""
    folder, model = tmp_path_factory.mktemp("caches"), build("qwen3")
    found = {}
    kitty = KVSpec(spec("kitty", 2, None, boost=0.25), spec("kivi", 2, 16))
    one_range = KVSpec(spec("calibquant", 2), spec("calibquant", 2, value_ranges="tensor"))
    ott = KVSpec(spec("ott", 2, 32, pool=3), spec("ott", 2, 32, pool=3))
    rotated = KVSpec(spec("rotatekv", 2, 16), spec("rotatekv", 2, 16))
    for name, policy in (
        *((n, n) for n in ("kivi2", "oscar2", "bf16")),
        ("kitty", KVPolicy("kitty", text=kitty)),
        ("kitty without boost", KVPolicy("kitty", text=KVSpec(spec("kitty", 2, None, boost=0), spec("kivi", 2, 16)))),
        ("one range", KVPolicy("one range", text=one_range)),
        ("ott", KVPolicy("ott", text=ott)),
        ("rotatekv", KVPolicy("rotatekv", text=rotated)),
    ):
        cache = KVMMCache.for_model(model, policy, **FIELDS)
        generate(model, inputs("qwen3"), past_key_values=cache, max_new_tokens=20)
        cache.save(folder / name, compress=False)  # tensors by their names, as they are in memory
        found[name] = folder / name
    return model, found


def changed(path, out, tensors=None, state=None):
    """A copy with tensors and JSON changed by functions, and a checksum that fits."""
    with safe_open(path, "pt") as file:
        header = file.metadata()
    found, values = load_file(path), json.loads(header["state"])
    for change, what in ((tensors, found), (state, values)):
        if change is not None:
            change(what)
    header["state"] = json.dumps(values)
    found = {name: tensor.contiguous() for name, tensor in found.items()}
    header["checksum"] = cache_file._checksum(header["state"], found)
    save_file(found, out, header)
    return out


def put(name, make):
    """Replace the tensor whose name ends like this, in the first layer, by ``make`` of it."""

    def change(tensors):
        full = next(n for n in sorted(tensors) if n.endswith(name))
        tensors[full] = make(tensors[full])

    return change


def filled(value):
    return lambda x: torch.full_like(x, value)


TENSORS = [
    ("kivi2", "key.codes", lambda x: x[..., :-1], r"layer.0.0.key.codes: has shape"),
    ("kivi2", "key.codes", lambda x: x[:, :, :, :1], "key.codes: has shape"),
    ("kivi2", "key.codes", lambda x: x.view(torch.int8), "key.codes: has dtype int8 instead of uint8"),
    ("kivi2", "key.scale", lambda x: x[:, :, :0], "key.scale: has shape"),
    ("kivi2", "key.scale", lambda x: x.view(torch.int16), "key.scale: has dtype int16 instead of float16"),
    ("kivi2", "key.scale", lambda x: x.view(torch.bfloat16), "key.scale: has dtype bfloat16"),
    ("kivi2", "value.scale", filled(float("nan")), "value.scale: holds values that are not finite"),
    ("kivi2", "value.zero_point", filled(float("inf")), "value.zero_point: holds values that are not finite"),
    ("oscar2", "key.norm", lambda x: x[:, :1, :1], "key.norm: has shape"),
    ("bf16", "key.values", lambda x: x.half(), "key.values: has dtype float16 instead of bfloat16"),
    ("bf16", "key.values", lambda x: x.flatten(3), "key.values: has shape"),
    ("kitty", "key.boosted", filled(255), "key.boosted: holds 255 and may hold 0 to"),
    ("kitty", "key.page_group", filled(99), "key.page_group: holds 99 and may hold 0 to 0"),
    ("kitty", "key.page_group", filled(-1), "key.page_group: holds -1 and may hold 0 to 0"),
    ("kitty", "key.high_codes", lambda x: x[..., :-1], "key.high_codes: has shape"),
    ("kitty without boost", "key.zero_point", filled(float("inf")), "key.zero_point: holds values that are not finite"),
    ("one range", "value.scale", lambda x: x[..., :1], "value.scale: has shape"),
    ("ott", "key.outlier_slot", filled(10**6), "key.outlier_slot: holds 1000000"),
    ("ott", "value.outlier_slot", filled(-1), "value.outlier_slot: holds -1"),
    ("rotatekv", "key.channel_order", filled(0), "channel_order: does not name every channel once"),
    ("rotatekv", "key.channel_order", filled(999), "channel_order: holds 999"),
    ("kivi2", "dense_key", lambda x: x[..., :-1], "layer.0.dense_key: has shape"),
    ("kivi2", "dense_key", lambda x: x.repeat(1, 2, 1, 1), "layer.0.dense_key: has shape"),
    ("kivi2", "dense_value", lambda x: x.double(), "layer.0.dense_value: has dtype float64"),
    ("kivi2", "table.dense", filled(-2), "table.dense: holds -2"),
    ("kivi2", "table.dense", filled(10**6), "table.dense: holds 1000000"),
    ("kivi2", "table.dense", filled(0), "table.dense: a token is in two places"),
    ("kivi2", "table.0", lambda x: x[:, :-1], "table.0: has .* slots, no whole pages"),
    ("kivi2", "table.modality", filled(9), "table.modality: holds 9"),
    ("kivi2", "table.modality", filled(-1), "table.modality: says padding"),
]


@pytest.mark.parametrize(("policy", "name", "make", "match"), TENSORS)
def test_changed_tensors_are_refused(files, tmp_path, policy, name, make, match):
    model, paths = files
    path = changed(paths[policy], tmp_path / "x", put(name, make))
    with pytest.raises(KVMMError, match=match) as error:
        KVMMCache.load(path, model)
    assert str(path) in str(error.value) and "\n" not in str(error.value)


STATES = [
    (lambda s: s["table"].update(length=10**6), "table.modality: has shape"),
    (lambda s: s["table"].update(length=-1), "table.length: must be a whole number"),
    (lambda s: s["table"].update(num_sinks=10**6), "table.num_sinks"),
    (lambda s: s["table"].update(packed=1), "table.packed"),
    (lambda s: s["table"]["page_sizes"].update({"0": 48}), "table.page_sizes"),
    (lambda s: s["table"]["page_sizes"].update({"7": 32}), "table.page_sizes"),
    (lambda s: s["layers"][0].update(seen=1), "layer.0.seen"),
    (lambda s: s["layers"][0].update(dtype="load"), "layer.0.dtype: must be float32"),
    (lambda s: s["layers"][0].update(dtype="float64"), "layer.0.dtype"),
    (lambda s: s["layers"][0]["parts"].pop("0"), "layer.0.parts"),
    (lambda s: s["layers"][0]["parts"]["0"]["key"].update(num_groups=10**9), "layer.0.0.key.num_groups"),
    (lambda s: s["layers"].pop(), "layers: must be"),
    (lambda s: s["layers"].__setitem__(0, {}), "layer.0.seen"),
    (lambda s: s.pop("table"), "'table'"),
]


@pytest.mark.parametrize(("change", "match"), STATES)
def test_changed_state_is_refused(files, tmp_path, change, match):
    model, paths = files
    path = changed(paths["kivi2"], tmp_path / "x", state=change)
    with pytest.raises(KVMMError, match=match):
        KVMMCache.load(path, model)


def test_tensors_that_nobody_asked_for(files, tmp_path):
    model, paths = files
    for name in ("layer.0.0.key.more", "layer.0.more", "layer.99.dense_key", "table.3", "other", "layer.0.1.key.codes"):
        more = {name: torch.zeros(1)}
        path = changed(paths["kivi2"], tmp_path / "x", lambda tensors, more=more: tensors.update(more))
        with pytest.raises(KVMMError, match="no such tensor belongs here"):
            KVMMCache.load(path, model)


def test_what_options_store_is_read_back(files, tmp_path):
    """Without boosted channels no tensor of theirs belongs to a file; one range for all values is a plain scale."""
    model, paths = files
    for name in ("kitty without boost", "one range"):
        KVMMCache.load(paths[name], model)
    for tensor in ("boosted", "high_codes"):
        more = {f"layer.0.0.key.{tensor}": torch.zeros(1, dtype=torch.uint8)}
        path = changed(paths["kitty without boost"], tmp_path / "x", lambda tensors, more=more: tensors.update(more))
        with pytest.raises(KVMMError, match="no such tensor belongs here"):
            KVMMCache.load(path, model)


def test_deep_and_broken_json(files, tmp_path):
    model, paths = files
    with safe_open(paths["kivi2"], "pt") as file:
        header, tensors = file.metadata(), load_file(paths["kivi2"])
    for state, match in (
        ("[" * 100_000, "nested deeper than 64"),
        ("[" * 100 + "]" * 100, "nested deeper than 64"),
        ("1" * 5000, "is not JSON"),
        ("{", "is not JSON"),
        ("[]", "does not hold a whole cache"),
    ):
        save_file(tensors, tmp_path / "x", header | {"state": state, "checksum": cache_file._checksum(state, tensors)})
        with pytest.raises(KVMMError, match=match) as error:
            KVMMCache.load(tmp_path / "x", model)
        assert len(str(error.value)) < 1000


def test_a_header_that_says_another_shape(files, tmp_path):
    """Bytes that stay, of a tensor whose header was changed by hand, as a file editor would."""
    model, paths = files
    data = paths["oscar2"].read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    name = next(n for n in header if n.endswith("key.codes"))
    shape = header[name]["shape"]
    header[name]["shape"] = [*shape[:3], shape[4], shape[3]]
    text = json.dumps(header).encode()
    (tmp_path / "x").write_bytes(struct.pack("<Q", len(text)) + text + data[8 + length :])
    path = changed(tmp_path / "x", tmp_path / "y")
    with pytest.raises(KVMMError, match=r"key\.codes: has shape"):
        KVMMCache.load(path, model)


def test_a_loaded_cache_has_memory_of_its_own(files, tmp_path):
    """A file that is cut while its cache is in use takes nothing away."""
    model, paths = files
    path = tmp_path / "x"
    path.write_bytes(paths["kivi2"].read_bytes())
    cache = KVMMCache.load(path, model)
    before = cache.layers[0].keys.clone()
    with path.open("r+b") as file:
        file.truncate(10)
    assert torch.equal(cache.layers[0].keys, before)


def test_a_fork_belongs_to_the_model_too(files, tmp_path):
    """So that it can be saved, whatever a pickle leaves out."""
    model, paths = files
    cache = KVMMCache.load(paths["kivi2"], model)
    twin = cache.fork()
    assert twin.model is model
    twin.save(tmp_path / "twin")
    assert torch.equal(KVMMCache.load(tmp_path / "twin", model).layers[0].keys, cache.layers[0].keys)


def test_fields():
    fields = {"a": Field(torch.int32, (2, "n"), 0, "n"), "b": Field(torch.float16, ((1, 4), "n"), required=False)}
    assert check_fields({"a": torch.zeros(2, 3, dtype=torch.int32)}, fields) == {"n": 3}
    for tensors, match in (
        ({}, "a: is missing"),
        ({"a": torch.zeros(2, 3)}, "a: has dtype float32 instead of int32"),
        ({"a": torch.full((2, 3), 3, dtype=torch.int32)}, "a: holds 3 and may hold 0 to 2"),
        (
            {"a": torch.zeros(2, 3, dtype=torch.int32), "b": torch.zeros(2, 3).half()},
            r"b: has shape \[2, 3\] instead of",
        ),
        ({"a": torch.zeros(2, 3, dtype=torch.int32), "c": torch.zeros(1)}, "c: no such tensor"),
    ):
        with pytest.raises(KVMMError, match=match):
            check_fields(tensors, fields)


@pytest.mark.skipif(not native.available(), reason="no C compiler")
@pytest.mark.parametrize("name", ["codes", "scale", "zero_point", "norm"])
def test_the_library_is_given_nothing_too_small(name):
    """A store that was changed after it was checked: the reference takes it, and raises."""
    store = store_of(spec("oscar", 2, 128), "key", ())
    digits = store.codec.packed_format(store.packed)
    assert readable(digits, True, 2, 2, 64)
    store.packed.tensors[name] = store.packed.tensors[name][:, :, :1].contiguous()
    broken = store.codec.packed_format(store.packed)
    whole = name == "codes"  # fewer pages of codes are a smaller store, whose scales are too many for it
    assert not readable(broken, True, 2, 2, 64) or whole
    assert not readable(digits, True, 2, 2, 32) and not readable(digits, True, 2, 3, 64)
