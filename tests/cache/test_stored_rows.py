"""What codecs say of their tensors: whose rows they are, and what rows to come hold."""

from typing import ClassVar

import pytest
import torch

from kvmm.cache.pages import PageStore
from kvmm.codecs import Codec, Packed, StoreShape, build_codec
from kvmm.codecs.base import Stored
from kvmm.errors import KVMMError
from kvmm.policy import spec
from tests.cache.test_file_checks import SPECS, store_of


@pytest.mark.parametrize("side", ["key", "value"])
@pytest.mark.parametrize("kv", SPECS, ids=str)
def test_rows_are_what_the_shapes_say(kv, side):
    store = store_of(kv, side, (40, 200))
    codec, tensors = store.codec, store.packed.tensors
    pages = 3 + 1 + 4
    fields = codec.fields(StoreShape(2, 2, pages, 64, 64, torch.float32), tensors)
    stored = codec.stored
    for name, tensor in tensors.items():
        rows = stored[name].rows if name in stored else "page"
        if "page_group" in fields:
            assert (fields[name].shape[2] == "groups") == (rows == "group"), name
        if rows == "page":
            assert tensor.shape[2] % pages == 0, name
        if rows == "span":
            assert tensor.shape[2] == 1, name
    if "page_group" in fields:
        assert store.num_groups == tensors[store._grouped].shape[2]
    assert store.packed.slots == pages * 64


class Keeping(Codec):
    """Keeps the first two tokens of every page beside it."""

    name = "keeping"
    stored: ClassVar = {"kept_slot": Stored("token", fill="last slot")}

    def encode(self, x, context):
        first = 0 if context.previous is None else context.previous["codes"].shape[2]
        pages = -(-x.shape[2] // context.page_size)
        codes = x.new_ones(*x.shape[:2], pages, context.page_size, dtype=torch.uint8)
        page = torch.arange(first, first + pages) * context.page_size
        slot = (page[:, None] + torch.arange(2)).flatten().int().expand(*x.shape[:2], -1)
        return Packed({"codes": codes, "kept_slot": slot}, context.page_size)

    def decode(self, packed):
        return packed["codes"].flatten(2, 3).unsqueeze(-1).float()


def test_room_for_tokens_names_the_last_slot():
    store = PageStore(Keeping(spec("kivi", 2, 32), "key"), 128)
    store.append(torch.zeros(2, 2, 300, 64))
    held = store.packed["kept_slot"].clone()
    store.allocate(10, 3, torch.zeros(2, 2, 1, 64))
    kept, to_come = store.buffers["kept_slot"].split((held.shape[2], 2 * 7), 2)
    assert torch.equal(kept, held) and bool((to_come == 10 * 128 - 1).all())
    assert not store.buffers["codes"][:, :, 3:].any()


def test_there_is_no_room_for_outliers_that_no_page_of_an_answer_keeps():
    store = PageStore(build_codec(spec("ott", 2, 32, pool=3, window=128), "key"), 128)
    store.append(torch.randn(2, 2, 300, 64, generator=torch.Generator().manual_seed(0)))
    held = store.packed["outlier_slot"].clone()
    store.allocate(10, 3, torch.zeros(2, 2, 1, 64))
    assert torch.equal(store.buffers["outlier_slot"], held)
    store.append(torch.randn(2, 2, 128, 64))
    assert torch.equal(store.packed["outlier_slot"], held)


class Undeclared(Codec):
    name = "undeclared"

    def encode(self, x, context):
        pages = -(-x.shape[2] // context.page_size)
        codes = x.new_zeros(*x.shape[:2], pages, context.page_size, dtype=torch.uint8)
        groups = torch.zeros(pages, dtype=torch.int32)
        return Packed({"codes": codes, "scale": x[:, :, :1]}, context.page_size, groups)

    def decode(self, packed):
        return packed["codes"].flatten(2, 3).unsqueeze(-1).float()


def test_a_codec_that_groups_pages_says_by_what():
    store = PageStore(Undeclared(spec("kivi", 2, 32), "key"), 64)
    with pytest.raises(KVMMError, match="declares no tensor whose rows are groups"):
        store.append(torch.zeros(1, 1, 70, 16))
    assert type(build_codec(spec("kivi", 2, 32), "key")).stored is not Codec.stored
