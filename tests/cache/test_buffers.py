"""Both kinds of buffer for residual tokens do the same, as far as a layer can see."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import pytest
import torch

from kvmm.cache.buffers import DynamicBuffer, StaticBuffer
from kvmm.cache.capacity import StaticCapacity

CAPACITY = 12


class Pair:
    """A dynamic and a static buffer that are told the same; ``table`` counts for the static one."""

    def __init__(self, tokens: int = 5, batch: int = 2):
        self.generator = torch.Generator().manual_seed(0)
        self.batch = batch
        static = StaticCapacity()
        static.text_pages, static.page_size, static.residual_tokens = 1, 32, CAPACITY
        self.table = SimpleNamespace(static=static, stores={}, length=0, dense=torch.zeros(batch, 0))
        self.table.adds_tokens, self.table.filled = False, 0
        key, value = self.tokens(tokens)
        self.count(tokens)
        self.dynamic = DynamicBuffer.empty(key, value)
        self.dynamic.append(key, value)
        self.static = self.dynamic.allocate(self.table, CAPACITY)

    def tokens(self, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        shape = (self.batch, 3, count, 8)
        return tuple(torch.randn(*shape[:3], d, generator=self.generator) for d in (8, 4))

    def count(self, width: int, more: int | None = None) -> None:
        """The table then has ``width`` residual tokens, after ``more`` new ones."""
        self.table.length += width if more is None else more
        self.table.dense = torch.arange(width, dtype=torch.int32).expand(self.batch, -1)
        self.table.static.sync(self.table)

    def append(self, count: int) -> None:
        new = self.tokens(count)
        self.count(self.table.dense.shape[1] + count, count)
        for one in (self.dynamic, self.static):
            one.append(*new)

    def check(self) -> None:
        for one in (self.dynamic, self.static):
            one.flush()
        assert (self.static.length, self.static.seen) == (self.dynamic.length, self.dynamic.seen)
        for mine, theirs in zip(self.static.pair, self.dynamic.pair, strict=True):
            assert torch.equal(mine, theirs)


def test_tokens_one_by_one_stay_in_place():
    pair = Pair()
    pair.check()
    key, value = pair.static.key, pair.static.value
    places = key.data_ptr(), value.data_ptr()
    for _ in range(CAPACITY - 5):
        pair.append(1)
        pair.check()
        # graphs compare the objects and where they lie
        assert pair.static.key is key and pair.static.value is value and pair.static.in_place
    assert (key.data_ptr(), value.data_ptr()) == places
    assert pair.dynamic.key.shape[2] >= CAPACITY and not pair.dynamic.in_place


def test_a_token_waits_for_its_query():
    pair = Pair()
    before = pair.static.key.clone()
    pair.append(1)
    assert torch.equal(pair.static.key, before)
    key, value = pair.static.take_pending()
    assert torch.equal(key, pair.dynamic.pair[0][:, :, -1:]) and torch.equal(value, pair.dynamic.pair[1][:, :, -1:])
    assert pair.static.take_pending() is None and pair.dynamic.take_pending() is None
    pair.static.flush()  # whoever took it has written it
    assert torch.equal(pair.static.key, before)
    pair.append(1)
    for one in (pair.dynamic, pair.static):
        one.crop(5, 5)
    assert pair.static.take_pending() is None


def test_a_turn_that_does_not_fit_leaves_and_comes_back():
    pair = Pair()
    key = pair.static.key
    pair.append(20)
    pair.check()
    assert not pair.static.in_place and pair.static.key is not key
    assert len(pair.static.tensors()) == 4  # both are there and count
    pair.append(1)  # writes at once: nothing in place could be captured
    assert pair.static.take_pending() is None
    pair.check()
    stay = [x[:, :, :7].clone() for x in pair.dynamic.pair]
    for one in (pair.dynamic, pair.static):
        one.keep(*stay)
    pair.count(7, 0)
    pair.check()
    assert pair.static.key is key and pair.static.in_place and len(pair.static.tensors()) == 2


@pytest.mark.parametrize("index", [[1, 0], [0, 0, 1], [1]])
def test_sequences_are_reordered_in_place_where_they_are_as_many(index):
    pair = Pair()
    key, index = pair.static.key, torch.tensor(index)
    for one in (pair.dynamic, pair.static):
        one.index_batch(index)
    pair.batch = len(index)
    pair.check()
    assert (pair.static.key is key) is (len(index) == 2)
    assert pair.static.in_place and pair.static.capacity == CAPACITY


def test_capacity_changes_only_where_it_is_another():
    pair = Pair()
    assert pair.static.allocate(pair.table, CAPACITY) is pair.static
    pair.append(1)
    pair.static = pair.static.allocate(pair.table, 40)
    assert isinstance(pair.static, StaticBuffer) and pair.static.capacity == 40
    pair.check()  # the token that waits goes with it


@pytest.mark.parametrize("kind", ["dynamic", "static"])
@pytest.mark.parametrize("turn", [0, 20])
def test_copies_write_for_themselves(kind, turn):
    pair = Pair()
    pair.append(turn or 1)
    pair.check()
    mine = getattr(pair, kind)
    before = [x.clone() for x in mine.pair]
    for twin in (mine.fork(pair.table), copy.deepcopy(mine)):
        assert all(torch.equal(x, y) for x, y in zip(twin.pair, before, strict=True))
        assert not {x.data_ptr() for x in twin.tensors()} & {x.data_ptr() for x in mine.tensors()}
        assert (twin.length, twin.seen, twin.in_place) == (mine.length, mine.seen, mine.in_place)
        twin.key.zero_()
        assert all(torch.equal(x, y) for x, y in zip(mine.pair, before, strict=True))


def test_elsewhere_a_static_buffer_is_not_in_place():
    pair = Pair()
    pair.static.to("cpu")
    assert pair.static.in_place
    pair.static.to("meta")
    assert not pair.static.in_place and pair.static.key.device.type == "meta"
