"""Entropy-coded pages in files: the same pages afterwards, and one line about whatever is damaged or made up."""

from __future__ import annotations

import json
import random

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from kvmm import KVMMCache, KVMMError
from kvmm.cache import file as cache_file
from kvmm.cache import file_codes
from kvmm.cache.file_bundle import decode_bundle
from kvmm.kernels.entropy import compiled
from kvmm.modality import TEXT
from kvmm.policy import KVPolicy, KVSpec, spec
from tests.tiny_models import build

pytestmark = pytest.mark.skipif(not compiled(), reason="codes are coded by a C library, and there is no compiler")
RD = KVSpec(spec("rd", 2, None), spec("rd", 1.5, None))
POLICY = KVPolicy("mine", text=RD, image=RD, video=RD, audio=RD, num_sink_tokens=2, residual_length=0)
PREFIX = "layer.0.0.key."


def packed(tokens: int = 700, batch: int = 1, alike: bool = False) -> KVMMCache:
    """A cache of keys and values in which a phrase comes again and again, or of one token."""
    model = build("qwen3")
    cache = KVMMCache.for_model(model, POLICY)
    phrase = torch.randint(3, 110, (batch, 30), generator=torch.Generator().manual_seed(0))
    ids = phrase.repeat(1, -(-tokens // 30))[:, :tokens]
    with torch.no_grad():
        model(input_ids=ids, past_key_values=cache)
    cache.pack()
    if alike:  # as the patches of a blank page
        for layer in cache.layers:
            for store in layer.parts[TEXT].stores:
                for name in store.codec.stream_tensors:
                    if name in store.packed.tensors:
                        store.packed[name].zero_()
    return cache


def version(path) -> str:
    with safe_open(path, "pt") as file:
        return file.metadata()["format_version"]


def pages(cache: KVMMCache) -> list[torch.Tensor]:
    stores = [store for layer in cache.layers for part in layer.parts.values() for store in part.stores]
    return [tensor for store in stores for _, tensor in sorted(store.packed.tensors.items())]


def assert_equal(one: KVMMCache, other: KVMMCache) -> None:
    mine, theirs = pages(one), pages(other)
    assert len(mine) == len(theirs) > 8
    assert all(torch.equal(x, y) for x, y in zip(mine, theirs, strict=True))


@pytest.mark.parametrize("batch", [1, 2])
def test_pages_come_back(tmp_path, batch):
    """From coded files and plain ones, and a coded one is smaller."""
    cache, coded, plain = packed(batch=batch), tmp_path / "coded", tmp_path / "plain"
    cache.save(coded)
    cache.save(plain, compress=False)
    assert (version(coded), version(plain)) == ("3", "1")
    assert coded.stat().st_size < 0.95 * plain.stat().st_size
    for path in (coded, plain):
        assert_equal(KVMMCache.load(path, cache.model), cache)


def test_without_a_compiler_codes_are_as_before_and_coded_ones_are_read(tmp_path, monkeypatch):
    cache, coded, plain = packed(), tmp_path / "coded", tmp_path / "plain"
    cache.save(coded)
    monkeypatch.setattr("kvmm.kernels.entropy.streams.library", lambda: None)
    cache.save(plain)
    assert any(name.endswith(file_codes.STREAMS) for name in decode_bundle(load_file(coded)))
    assert not any(name.endswith(file_codes.STREAMS) for name in load_file(plain))
    assert_equal(KVMMCache.load(coded, cache.model), cache)


def test_pages_that_are_all_alike_are_read_again(tmp_path, monkeypatch):
    """A reader takes no file whose bytes are too few for its tokens, so none is written."""
    monkeypatch.setattr(file_codes, "_FREE", 0)
    cache = packed(3000, alike=True)
    cache.save(tmp_path / "cache")
    assert_equal(KVMMCache.load(tmp_path / "cache", cache.model), cache)


def rewritten(path, out, change):
    """A copy, without a bundle, with changed tensors and a checksum that fits."""
    with safe_open(path, "pt") as file:
        header = file.metadata()
    tensors = decode_bundle(load_file(path))
    change(tensors)
    tensors = {name: tensor.contiguous() for name, tensor in tensors.items()}
    header["checksum"] = cache_file._checksum(header["state"], tensors)
    save_file(tensors, out, header)
    return out


def put(name, value, at=0):
    def change(tensors):
        tensors[name] = tensors[name].clone()
        tensors[name].view(-1)[at] = value

    return change


STREAMS, SIZES = PREFIX + "streams", PREFIX + "stream_sizes"
CHANGES = {
    "stream_sizes: no such tensor": lambda t: t.pop(STREAMS),
    "stream_sizes: is missing": lambda t: t.pop(SIZES),
    "key.stream_sizes: no such tensor": lambda t: t.pop("like.0"),
    "stream_sizes: has shape": lambda t: t.update({SIZES: t[SIZES][1:]}),
    "stream_sizes: has dtype": lambda t: t.update({SIZES: t[SIZES].long()}),
    "stream_sizes: holds -1": put(SIZES, -1),
    "stream_sizes: are not those": put(SIZES, 2**31 - 1),
    "stream_sizes: are not those of": lambda t: t.update({STREAMS: t[STREAMS][:-1]}),
    "streams: has dtype": lambda t: t.update({STREAMS: t[STREAMS].view(torch.int8)}),
    "like: has shape": lambda t: t.update({"like.0": t["like.0"][:, :, 1:]}),
    "like: holds 2000": put("like.0", 2000, at=-1),
    "like: holds -3": put("like.0", -3, at=-1),
    "like: must be tokens before": put("like.0", 7, at=1),
    "codes_9bit: no such tensor": lambda t: t.update({PREFIX + "codes_9bit": torch.zeros(4)}),
}


@pytest.mark.parametrize("message", CHANGES)
def test_damaged_streams_are_refused(tmp_path, message):
    cache = packed()
    cache.save(tmp_path / "cache")
    broken = rewritten(tmp_path / "cache", tmp_path / "broken", CHANGES[message])
    with pytest.raises(KVMMError, match=f"does not hold a whole cache.*{message}") as error:
        KVMMCache.load(broken, cache.model)
    assert "\n" not in str(error.value) and len(str(error.value)) < 500


def test_other_bytes_are_other_codes_and_no_more(tmp_path):
    """Streams have no redundancy: with a checksum that fits, any bytes are codes of the right number."""
    cache, rng = packed(), random.Random(0)
    cache.save(tmp_path / "cache")
    for _ in range(8):

        def change(tensors):
            streams = tensors[STREAMS]
            streams[[rng.randrange(len(streams)) for _ in range(rng.choice((1, 50)))]] = rng.randrange(256)

        loaded = KVMMCache.load(rewritten(tmp_path / "cache", tmp_path / "other", change), cache.model)
        assert [x.shape for x in pages(loaded)] == [x.shape for x in pages(cache)]
        with torch.no_grad():
            loaded.model(input_ids=torch.tensor([[7]]), past_key_values=loaded)


def test_few_bytes_that_claim_many_pages_are_refused_before_memory_is_taken(tmp_path, monkeypatch):
    cache, slots = packed(), 2**19
    cache.save(tmp_path / "cache")

    def state(text: str) -> str:
        values = json.loads(text)
        values["table"]["length"] = slots
        for layer in values["layers"]:
            layer["seen"] = slots
        return json.dumps(values)

    with safe_open(tmp_path / "cache", "pt") as file:
        header = file.metadata()
    tensors = decode_bundle(load_file(tmp_path / "cache"))
    dense = tensors["table.dense"].shape[1]
    tensors["table.modality"] = torch.zeros(1, slots, dtype=torch.int8)
    tensors["table.0"] = (dense + torch.arange(slots, dtype=torch.int32)[None]).masked_fill_(
        torch.arange(slots) >= slots - dense, -1
    )
    tensors["table.dense"] = torch.arange(dense, dtype=torch.int32)[None]
    tensors["like.0"] = torch.ones(1, 2, slots, dtype=torch.int16)
    tensors["like.0"][:, :, 0] = 0
    header["state"] = state(header["state"])
    header["checksum"] = cache_file._checksum(header["state"], tensors)
    save_file(tensors, tmp_path / "bomb", header)

    def never(*arguments):
        raise AssertionError("memory was taken")

    monkeypatch.setattr(file_codes, "decode_streams", never)
    with pytest.raises(KVMMError, match="streams: are too few for the tokens"):
        KVMMCache.load(tmp_path / "bomb", cache.model)
