"""Work on the threads that torch computes on."""

from __future__ import annotations

import ctypes
import signal
import threading
import time

import pytest
import torch

from kvmm.kernels import threads
from kvmm.kernels.threads import in_parts

WORK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)


class Given(ctypes.Structure):
    _fields_ = [("number", ctypes.c_int64)]


@pytest.fixture(params=["torch's team", "a pool"])
def four(request, monkeypatch):
    """Four threads, and the calls in each of two ways."""
    if threads._take_parts() is None:
        pytest.skip("there is no C compiler")
    if request.param == "a pool":
        monkeypatch.setattr(threads, "_team", lambda: None)
    elif threads._team() is None:
        pytest.skip("torch's OpenMP library has no GNU interface that all see")
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(before)


def test_all_threads_work_at_once(four):
    barrier, names, parts = threading.Barrier(4, timeout=60), set(), []

    @WORK
    def work(given, first, last):
        barrier.wait()
        names.add(threading.get_ident())
        parts.append((Given.from_address(given).number, first, last))
        return 0

    assert in_parts(work, Given(7), 10) == 0
    assert sorted(parts) == [(7, 0, 3), (7, 3, 6), (7, 6, 9), (7, 9, 10)] and len(names) == 4
    assert torch.ones(1000, 1000).sum() == 1e6  # torch goes on with its team


@pytest.mark.parametrize("step", [1, 3, 100, None])
@pytest.mark.parametrize("count", [0, 1, 3, 4, 50])
def test_parts_are_the_whole(four, count, step):
    seen = []

    @WORK
    def work(given, first, last):
        seen.extend(range(first, last))
        return 0

    assert in_parts(work, Given(), count, step) == 0 and sorted(seen) == list(range(count))


def test_a_failure_is_returned_when_all_have_ended(four):
    ended = []

    @WORK
    def work(given, first, last):
        if first == 0:
            return 2
        time.sleep(0.2)
        ended.append(first)
        return first % 2

    assert in_parts(work, Given(), 4) == 2
    before = len(ended)
    time.sleep(0.5)
    assert len(ended) == before


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="Windows has no timers of signals")
def test_an_interrupt_waits_until_all_have_ended(four):
    """What the threads write to would be freed under them."""

    def interrupt(*_):
        raise KeyboardInterrupt

    ended = []

    @WORK
    def work(given, first, last):
        if threading.current_thread() is not threading.main_thread():  # there the exception would come in here
            time.sleep(0.4)
        ended.append(first)
        return 0

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            signal.setitimer(signal.ITIMER_REAL, 0.1)
            in_parts(work, Given(), 8, 1)
            time.sleep(1)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert sorted(ended) == list(range(8))


def test_one_thread_needs_nobody(monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    monkeypatch.setattr(threads, "_take_parts", lambda: pytest.fail("one thread"))
    calls = []
    assert in_parts(WORK(lambda given, first, last: calls.append((first, last)) or 0), Given(), 9, 2) == 0
    assert calls == [(0, 9)]


def test_several_callers_at_once(four):
    """Visitors' answers are made on threads of their own."""
    totals = {}

    def caller(n):
        seen = []
        in_parts(WORK(lambda given, first, last: seen.extend(range(first, last)) or 0), Given(), n, 7)
        totals[n] = sum(seen)

    callers = [threading.Thread(target=caller, args=(1000 + n,)) for n in range(8)]
    for one in callers:
        one.start()
    for one in callers:
        one.join(60)
    assert totals == {n: sum(range(n)) for n in range(1000, 1008)}
