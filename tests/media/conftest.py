"""Each test runs twice: decoding in a process of its own, which is the default, and in this one.

Tests that change a limit of this process decode here alone.
"""

from __future__ import annotations

import contextlib

import pytest

from kvmm import decoding


def pytest_generate_tests(metafunc):
    both = ["here"] if "monkeypatch" in metafunc.fixturenames else ["own process", "here"]
    metafunc.parametrize("where", both, indirect=True)


@pytest.fixture(autouse=True)
def where(request):
    with decoding.in_process() if request.param == "here" else contextlib.nullcontext():
        yield request.param
