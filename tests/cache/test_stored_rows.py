"""What codecs say of their tensors: whose rows they are, and what rows to come hold."""

import pytest
import torch

from kvmm.cache.pages import PageStore
from kvmm.codecs import Codec, Packed, StoreShape, build_codec
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


def test_room_for_outliers_names_the_last_slot():
    store = PageStore(build_codec(spec("ott", 2, 32, pool=3, window=128), "key"), 128)
    store.append(torch.randn(2, 2, 300, 64, generator=torch.Generator().manual_seed(0)))
    held = store.packed["outlier_slot"].clone()
    store.allocate(10, 3, torch.zeros(2, 2, 1, 64))
    kept, to_come = store.buffers["outlier_slot"].split((held.shape[2], 3 * 7), 2)
    assert torch.equal(kept, held) and bool((to_come == 10 * 128 - 1).all())
    assert not any(b[:, :, store.sizes[n] :].any() for n, b in store.buffers.items() if n != "outlier_slot")


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
