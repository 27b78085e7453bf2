"""Who gets a model next when several threads want it."""

from __future__ import annotations

import threading
import time

import pytest

from kvmm.models.generation import FairLock


def test_a_question_comes_between_the_steps_of_long_work():
    lock, over, steps = FairLock(), threading.Event(), []

    def work() -> None:  # gives the lock back and takes it again at once, as an evaluation does
        while not over.is_set():
            with lock:
                steps.append(time.sleep(0.01))

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(10):
            before = len(steps)
            assert lock.acquire(timeout=10)
            waited = len(steps) - before
            lock.release()
            assert waited <= 3, "one step in hand, and one of each that asked before"
    finally:
        over.set()
        for thread in threads:
            thread.join()


def test_who_gives_up_waiting_does_not_keep_the_lock():
    lock, stopped = FairLock(), threading.Event()
    stopped.set()
    with lock:
        assert not lock.acquire(timeout=0.01)
        assert not lock.acquire(unless=stopped)
    assert lock.acquire(timeout=0)
    lock.release()
    with pytest.raises(RuntimeError):
        lock.release()


def test_only_one_thread_holds_it():
    lock, inside, most = FairLock(), [], []

    def work() -> None:
        for _ in range(300):
            with lock:
                inside.append(1)
                most.append(len(inside))
                inside.pop()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert max(most) == 1 and len(most) == 1200
