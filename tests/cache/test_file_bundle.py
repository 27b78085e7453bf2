"""Many small tensors as one: the same afterwards, and one line about whatever is damaged or made up."""

from __future__ import annotations

import json
import zlib

import pytest
import torch
from safetensors.torch import load_file

from kvmm import KVMMCache, KVMMError
from kvmm.cache import file_bundle
from kvmm.cache.file_bundle import INDEX, LARGE, SMALL, decode_bundle, encode_bundle
from kvmm.policy import get_policy
from tests.tiny_models import build

TENSORS = {
    "table.0": torch.arange(300, dtype=torch.int32)[None],
    "streams": torch.arange(4096).to(torch.uint8),
    "scale": torch.linspace(-1, 1, 24).half().view(2, 3, 4),
    "low": torch.zeros(3, 1000, dtype=torch.uint8).T,
    "empty": torch.zeros(2, 0, 3, dtype=torch.bfloat16),
    "number": torch.tensor(3.5, dtype=torch.float64),
    "truth": torch.tensor([True, False]),
}


def test_tensors_come_back():
    bundle = encode_bundle(TENSORS)
    assert set(bundle) == {INDEX, SMALL, LARGE} and bundle[LARGE].numel() == 4096 + 3000
    assert sum(t.nbytes for t in bundle.values()) < 4096 + 3000 + 700  # of 1200 + 48 + 8 + 2 bytes, and their names
    found = decode_bundle(bundle | {"metadata.x": torch.ones(2)})
    assert torch.equal(found.pop("metadata.x"), torch.ones(2)) and list(found) == list(TENSORS)
    for name, tensor in TENSORS.items():
        assert found[name].dtype == tensor.dtype and torch.equal(found[name], tensor), name


def test_what_a_bundle_does_not_hold_stays():
    assert decode_bundle(TENSORS) is TENSORS
    strange = {"x": torch.zeros(2, dtype=torch.complex64)}
    assert encode_bundle(strange) is strange
    nothing = {f"x{n}": torch.zeros(1 << 17) for n in range(16)}  # 8 MiB of zeros: what a reader takes for made up
    assert encode_bundle(nothing) is nothing


def deflated(data: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(zlib.compress(data)), dtype=torch.uint8)


def index(*entries) -> torch.Tensor:
    return deflated(json.dumps(entries).encode())


CHANGES = {
    "bundle.small: is missing": lambda b: b.pop(SMALL),
    "bundle.large: must be bytes": lambda b: b.update({LARGE: b[LARGE].view(torch.int8)}),
    "bundle.index: Error -3": lambda b: b.update({INDEX: b[INDEX] + 1}),
    "bundle.small: is too much, or not whole": lambda b: b.update({SMALL: b[SMALL][:-1]}),
    "bundle.small: is too much": lambda b: b.update({SMALL: deflated(bytes(1 << 24))}),
    "bundle.index: is no text": lambda b: b.update({INDEX: deflated(b"\xff\xfe")}),
    "bundle.index is not JSON": lambda b: b.update({INDEX: deflated(b"[")}),
    "bundle.index: must be names": lambda b: b.update({INDEX: deflated(b"{}")}),
    "bundle.index: must be names, ": lambda b: b.update({INDEX: index(["x", "float", [2], 0])}),
    "bundle.index: must be names, d": lambda b: b.update({INDEX: index(["x", "int8", [-2], 0])}),
    "bundle.index: must be names, dt": lambda b: b.update({INDEX: index(["x", "int8", [2.0], 0])}),
    "bundle.index: must be names, dty": lambda b: b.update({INDEX: index(["x", "int8", [2], 2])}),
    "bundle.index: is not that": lambda b: b.update({INDEX: index(["x", "int8", [2**39, 2**39], 0])}),
    "bundle.index: must be names, dtyp": lambda b: b.update({INDEX: index(["x", "int8", [1] * 17, 0])}),
    "bundle.index: is not that of": lambda b: b.update({INDEX: index(["x", "int8", [5], 1])}),
    "bundle.small: is too": lambda b: b.update({INDEX: index(["x", "int8", [5], 0], ["y", "int8", [7096], 1])}),
    "bundle.small: is less": lambda b: b.update({INDEX: index(["x", "int8", [9999], 0], ["y", "int8", [7096], 1])}),
    "bundle.index: is not that of the": lambda b: b.update({"scale": torch.zeros(1)}),
    "truth: must be truth values": lambda b: (
        b.update(encode_bundle({"truth": torch.tensor([7], dtype=torch.uint8)}))
        or b.update({INDEX: index(["truth", "bool", [1], 0])})
    ),
}


@pytest.mark.parametrize("message", CHANGES)
def test_damaged_bundles_are_refused(message):
    bundle = encode_bundle(TENSORS)
    CHANGES[message](bundle)
    with pytest.raises(KVMMError, match=message) as error:
        decode_bundle(bundle)
    assert "\n" not in str(error.value)


def declared(entries: list, small: int) -> dict[str, torch.Tensor]:
    """A bundle of what is written as an index, and small tensors of so many zeros."""
    return {INDEX: index(*entries), SMALL: deflated(bytes(small)), LARGE: torch.zeros(0, dtype=torch.uint8)}


@pytest.mark.parametrize(
    ("entries", "size"),
    [
        ([["x", "int8", [1 << 20], 0]], 1 << 20),  # what a writer lets follow as it is
        ([["x", "uint8", [2048], 0]], 2048),
        ([[str(n), "int8", [1000], 0] for n in range(70_000)], 70_000_000),
        ([[str(n), "int8", [], 0] for n in range(100_001)], 100_001),
    ],
)
def test_nothing_is_inflated_that_no_writer_makes(entries, size, monkeypatch):
    bundle, inflated = declared(entries, size), []
    before = file_bundle._inflated
    monkeypatch.setattr(file_bundle, "_inflated", lambda *given: inflated.append(given[-1]) or before(*given))
    with pytest.raises(KVMMError, match=r"bundle\.index: is not that of the bytes, its|has more than 100000 entries"):
        decode_bundle(bundle)
    assert inflated == [INDEX]


def test_small_tensors_are_inflated_to_what_the_index_says(monkeypatch):
    """100 MiB of zeros take 100 KiB: a reader asks the decoder for the four bytes that are declared."""
    asked, make = [], zlib.decompressobj

    class Decoder:
        def __init__(self):
            self.inner = make()

        def decompress(self, data, most):
            asked.append(most)
            return self.inner.decompress(data, most)

        def __getattr__(self, name):
            return getattr(self.inner, name)

    monkeypatch.setattr(file_bundle.zlib, "decompressobj", Decoder)
    with pytest.raises(KVMMError, match=r"bundle\.small: is too much"):
        decode_bundle(declared([["x", "int32", [1], 0]], 100 << 20))
    assert asked[1:] == [5]


def test_a_writer_keeps_what_a_reader_would_refuse(monkeypatch):
    monkeypatch.setattr(file_bundle, "_MAX_SMALL_BYTES", 1300)
    tensors = TENSORS | {"more": torch.arange(100), "last": torch.ones(3)}
    bundle = encode_bundle(tensors)
    assert bundle[LARGE].numel() == 4096 + 3000 + 800
    assert all(torch.equal(found, tensors[name]) for name, found in decode_bundle(bundle).items())
    monkeypatch.setattr(file_bundle, "_MAX_ENTRIES", 8)
    assert encode_bundle(tensors) is tensors


def test_a_bundle_of_before_there_were_bounds_is_read():
    """As it was written then: names, dtypes, shapes, places; elements' first bytes before their second ones."""
    bundle = {
        INDEX: index(["a", "int16", [2], 0], ["b", "uint8", [2, 1024], 1], ["c", "bool", [1], 0]),
        SMALL: deflated(b"\x01\x02\x03\x04\x01"),
        LARGE: torch.arange(2048).to(torch.uint8),
    }
    found = decode_bundle(bundle)
    assert found["a"].tolist() == [0x301, 0x402] and found["c"].tolist() == [True]
    assert torch.equal(found["b"].flatten(), bundle[LARGE])


def test_files_have_bundles_and_are_read_without(tmp_path, monkeypatch):
    """A file of two layers is smaller with one; those that were written before there were any are read."""
    model = build("qwen3")
    policy = get_policy("rd2", residual_length=64)
    cache = KVMMCache.for_model(model, policy)
    with torch.no_grad():
        model(
            input_ids=torch.randint(3, 110, (1, 500), generator=torch.Generator().manual_seed(0)),
            past_key_values=cache,
        )
    cache.pack()
    cache.save(tmp_path / "bundle")
    assert set(load_file(tmp_path / "bundle")) == {INDEX, SMALL, LARGE}
    monkeypatch.setattr("kvmm.cache.file.encode_bundle", lambda tensors: tensors)
    monkeypatch.setattr("kvmm.cache.file.BUNDLE_VERSION", 2)
    cache.save(tmp_path / "before")
    monkeypatch.undo()
    assert (tmp_path / "bundle").stat().st_size < (tmp_path / "before").stat().st_size - 2000
    dense = [layer.residual.pair for layer in cache.layers]
    for name in ("bundle", "before"):
        loaded = KVMMCache.load(tmp_path / name, model)
        for one, other in zip(dense, (layer.residual.pair for layer in loaded.layers), strict=True):
            assert all(torch.equal(x, y) for x, y in zip(one, other, strict=True))


def test_the_bound_of_what_a_byte_stands_for():
    assert file_bundle._plausible(1 << 20, 0) and not file_bundle._plausible((1 << 20) + 257, 1)
