"""Programs that a model wrote: what runs, what does not, and that they can do nothing else."""

from __future__ import annotations

import socket
import textwrap
import tracemalloc
from pathlib import Path

import pytest

from kvmm.eval import execution
from kvmm.eval.execution import run_program

pytestmark = pytest.mark.skipif(not execution.available(), reason="needs seccomp")


def refused(source: str) -> bool:
    """Whether a program ended with the error that the system gives for what is not allowed."""
    outcome = run_program(textwrap.dedent(source))
    return not outcome.passed and ("PermissionError" in outcome.reason or "not permitted" in outcome.reason)


def test_programs_that_compute_pass_and_others_say_why():
    good = "import math, re, collections, itertools, heapq, hashlib, random, datetime\nassert math.gcd(12, 18) == 6"
    assert run_program(good) == (True, "passed")
    assert run_program("assert 1 == 2, 'no'") == (False, "failed: AssertionError: no")
    assert run_program("def f(:").reason.startswith("failed: SyntaxError")
    assert run_program("print('x' * 10**6)\nimport sys\nprint('y', file=sys.stderr)").passed


@pytest.mark.parametrize("leave", ["import sys; sys.exit(0)", "import os; os._exit(0)", "raise SystemExit", "exit(0)"])
def test_a_program_that_leaves_has_not_passed(leave: str):
    assert not run_program(leave).passed


def test_a_program_that_says_without_end_fills_no_memory():
    """It finds where its end is said, and says gigabytes; this process holds only the beginning."""
    flood = """
        import os
        for descriptor in range(3, 64):
            try:
                while True:
                    os.write(descriptor, b"x" * 2**20)
            except OSError:
                pass
    """
    tracemalloc.start()
    outcome = run_program(textwrap.dedent(flood), seconds=2)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert not outcome.passed and most < 2**21


def test_a_program_that_does_not_end_is_stopped():
    assert run_program("while True: pass", seconds=1) == (False, "timed out")
    assert run_program("x = [0]\nwhile True: x += x", seconds=5, memory=2**28).reason.startswith("failed: MemoryError")


def test_a_program_that_sleeps_is_stopped(monkeypatch):
    monkeypatch.setattr(execution, "WAITS", 0)
    monkeypatch.setattr(execution, "STARTS", 5)
    assert run_program("import time\ntime.sleep(1000)") == (False, "timed out")
    late = "def f():\n    import time\n    time.sleep(1000)"
    assert run_program(late, "f()", "f") == (False, "timed out")


CHECK = "assert f(2) == 4, 'wrong'"
FORGERIES = {
    "it looks for what says the verdict": """
        import os, sys
        frame = sys._getframe()
        while frame:
            for value in [*frame.f_locals.values()]:
                if isinstance(value, str):
                    for descriptor in range(64):
                        try:
                            os.write(descriptor, value.encode())
                        except OSError:
                            pass
            frame = frame.f_back
        os._exit(0)
    """,
    "it answers before it is asked": """
        import os
        for descriptor in range(3, 64):
            try:
                os.write(descriptor, b'{"value": null}\\n' * 9 + b'passed')
            except OSError:
                pass
        os._exit(0)
    """,
    "it is equal to everything": """
        class Equal(int):
            def __eq__(self, other):
                return True
            __hash__ = None
        def f(x):
            return Equal(5)
    """,
    "it changes the language": """
        import builtins, sys
        def f(x):
            return 5
        builtins.AssertionError = builtins.Exception = ZeroDivisionError
        sys.settrace(lambda *_: None)
        compile = exec = print
        sys.modules["__main__"].run_check = lambda *_: None
        sys.modules["__main__"].FAILED = 0
    """,
    "it says that nothing can be confined": "import os\nos._exit(4)",
    "it says no message": """
        import os, json
        def f(x):
            for descriptor in range(3, 64):
                try:
                    os.write(descriptor, b"[]\\n{}\\n")
                except OSError:
                    pass
    """,
}


@pytest.mark.parametrize("how", FORGERIES)
def test_no_program_forges_its_verdict(how: str):
    outcome = run_program(textwrap.dedent(FORGERIES[how]), CHECK, "f")
    assert not outcome.passed and outcome.reason.startswith("failed: ")


def test_a_check_calls_the_program():
    assert run_program("def f(x): return x * x", CHECK, "f") == (True, "passed")
    assert run_program("def f(x): return x", CHECK, "f") == (False, "failed: AssertionError: wrong")
    assert run_program("def f(x): return [][x]", CHECK, "f") == (False, "failed: IndexError: list index out of range")
    assert run_program("def g(x): return 4", CHECK, "f") == (False, "failed: NameError: the program has no f")
    assert (
        run_program("def f(x): return f", CHECK, "f").reason == "failed: TypeError: builtins.function is no plain data"
    )
    assert run_program("def f(x):\n    while True: pass", CHECK, "f", seconds=1) == (False, "timed out")
    assert run_program("def f(x): raise SystemExit", CHECK, "f") == (False, "failed: SystemExit: ")
    caught = "try:\n    f(2)\n    assert False\nexcept ValueError as error:\n    assert str(error) == 'two'"
    assert run_program("def f(x): raise ValueError('two')", caught, "f").passed


def test_values_pass_as_they_are():
    values = r"""[
        None, True, -1, 2**70, -(2**200), 1.5, float("inf"), 1e-300, 1 + 2j, "a\u00e9\ud800\n", b"\x00\xff", [1, [2]],
        [], (), (1, (2,)), {1, 2}, frozenset({(1, 2)}), {"a": [1], 2: (3,)}, range(1, 9, 2),
        Fraction(1, 3), Decimal("1.1"),
    ]"""
    imports = "from fractions import Fraction\nfrom decimal import Decimal\n"
    check = f"{imports}for one in {values}:\n    found = f(one, again=one)\n"
    check += "    assert found == (one, one) and type(found[0]) is type(one), one\n"
    check += "nan = f(float('nan'), again=0)[0]\nassert nan != nan"
    outcome = run_program("def f(x, *, again): return x, again", check, "f")
    assert outcome.passed, outcome.reason
    source = "from collections import Counter, namedtuple\nN = namedtuple('N', 'a b')\n"
    source += "def f(x): return [Counter('aab'), N(1, 2), (i for i in range(3)), {1: 2}.keys(), map(str, [1])][x]"
    check = "assert f(0) == {'a': 2, 'b': 1} and f(1) == (1, 2)\n"
    check += "assert [list(f(i)) for i in (2, 3, 4)] == [[0, 1, 2], [1], ['1']]"
    outcome = run_program(source, check, "f")
    assert outcome.passed, outcome.reason


def test_nothing_can_be_written_or_removed(tmp_path: Path):
    kept = tmp_path / "kept.txt"
    kept.write_text("here")
    for attempt in (f"open({str(kept)!r}, 'w')", f"open({str(tmp_path / 'new')!r}, 'x')", "open('here', 'a')"):
        assert refused(attempt)
    for attempt in ("os.remove({!r})", "os.rename({!r}, 'x')", "os.chmod({!r}, 0)", "os.truncate({!r}, 0)"):
        assert refused(f"import os\n{attempt.format(str(kept))}")
    assert refused("import os\nos.mkdir('folder')")
    assert kept.read_text() == "here" and sorted(tmp_path.iterdir()) == [kept]


def test_no_network_no_processes_no_signals(tmp_path: Path):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert refused(f"import socket\nsocket.create_connection(('127.0.0.1', {port}), 2)")
    assert refused("import os\nos.fork()")
    assert refused("import os\nos.execv('/bin/true', ['true'])")
    assert refused("import os\nos.kill(os.getppid(), 9)")
    assert refused("import subprocess\nsubprocess.run(['true'])")
    assert refused("import os\nos.system('touch x') and None\nos.setuid(0)")
    assert not run_program("import threading\nthreading.Thread(target=print).start()").passed


def test_calls_that_are_not_known_are_denied():
    """By their numbers, past Python: ptrace, mount, unlink, io_uring_setup, memfd_create."""
    numbers = {"x86_64": (101, 165, 87, 425, 319), "aarch64": (117, 40, 35, 425, 279)}
    import platform

    source = "import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\n"
    for number in numbers[platform.machine()]:
        source += f"assert libc.syscall({number}, 0, 0, 0, 0, 0) == -1 and ctypes.get_errno() == 1, {number}\n"
    outcome = run_program(source)
    assert outcome.passed, outcome.reason


def test_a_machine_that_cannot_confine_runs_nothing(monkeypatch):
    monkeypatch.setattr(execution, "available", lambda: False)
    with pytest.raises(execution.KVMMError, match="run them on Linux"):
        run_program("pass")
