"""The group numbers of a store's pages."""

from __future__ import annotations

import torch

from kvmm.cache.page_groups import PageGroups


def grown(groups: PageGroups, *numbers: int) -> PageGroups:
    new = torch.tensor(numbers, dtype=torch.int32)
    return groups.written(new).counting(groups.used + len(numbers))


def test_numbers_without_space_get_another_buffer():
    first = PageGroups.of(torch.tensor([0, 0, 1], dtype=torch.int32))
    second = grown(first, 2, 2)
    assert second.in_use.tolist() == [0, 0, 1, 2, 2]
    assert first.in_use.tolist() == [0, 0, 1] and first.in_use is first.buffer  # nothing is copied to be read
    assert PageGroups(first.buffer[:0], 0).written(first.buffer).buffer is first.buffer


def test_numbers_with_space_are_written_in_place():
    groups = PageGroups.of(torch.tensor([0, 1], dtype=torch.int32)).allocated(6)
    place = groups.buffer.data_ptr()
    before = groups
    for number in (1, 2, 3):
        groups = grown(groups, number)
    assert groups.buffer.data_ptr() == place and groups.in_use.tolist() == [0, 1, 1, 2, 3]
    assert before.in_use.tolist() == [0, 1]  # what a captured packing believes
    assert groups.buffer.tolist()[5:] == [0]
    assert groups.counting(3).in_use.tolist() == [0, 1, 1]
    assert grown(groups, 4, 4).buffer.data_ptr() != place


def test_copies_are_their_own():
    groups = PageGroups.of(torch.tensor([0, 1], dtype=torch.int32)).allocated(4)
    for twin in (groups.fork(), groups.cut(2), groups.allocated(4)):
        assert twin.in_use.tolist() == [0, 1]
        twin.buffer.fill_(7)
    assert groups.buffer.tolist() == [0, 1, 0, 0]
    assert groups.cut(0) is None and groups.to("cpu").buffer is groups.buffer
