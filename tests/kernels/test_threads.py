"""Work on the threads that torch computes on."""

from __future__ import annotations

import threading

import pytest
import torch

from kvmm.kernels import threads
from kvmm.kernels.threads import in_parts, on_threads


@pytest.fixture(params=["torch's team", "a pool"])
def four(request, monkeypatch):
    """Four threads, and the calls in each of two ways."""
    if request.param == "a pool":
        monkeypatch.setattr(threads, "_team", lambda: None)
    elif threads._team() is None:
        pytest.skip("torch was built with an OpenMP library other than GNU's")
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(before)


def test_every_thread_has_one_call(four):
    barrier, names = threading.Barrier(4, timeout=60), set()

    def work(index, count):
        barrier.wait()  # all four are inside of their calls at once
        names.add(threading.get_ident())
        return index, count

    assert on_threads(work) == [(0, 4), (1, 4), (2, 4), (3, 4)] and len(names) == 4
    assert torch.ones(1000, 1000).sum() == 1e6  # torch goes on with its team


@pytest.mark.parametrize("count", [0, 1, 3, 4, 10])
def test_parts_are_the_whole(four, count):
    parts = in_parts(lambda first, last: list(range(first, last)), count)
    assert [n for part in parts for n in part] == list(range(count)) and max(map(len, parts)) <= -(-count // 4)


def test_an_error_of_one_thread_is_raised(four):
    def work(index, count):
        if index == 2:
            raise MemoryError("no room")

    with pytest.raises(MemoryError, match="no room"):
        on_threads(work)


def test_one_thread_needs_nobody(monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    assert on_threads(lambda index, count: (index, count, threading.current_thread() is threading.main_thread())) == [
        (0, 1, True)
    ]


def test_several_callers_at_once():
    """Visitors' answers are made on threads of their own."""
    found = []

    def caller(n):
        found.append(sum(sum(part) for part in in_parts(lambda first, last: range(first, last), n)))

    callers = [threading.Thread(target=caller, args=(1000 + n,)) for n in range(8)]
    for one in callers:
        one.start()
    for one in callers:
        one.join(60)
    assert sorted(found) == [sum(range(1000 + n)) for n in range(8)]
