"""``kvmm app --endpoint``: what is wrong is said in one line before anything is served."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from kvmm.cli import run
from tests.ui.endpoint.fake_server import FakeServer

UNUSED = "http://127.0.0.1:1/v1"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--endpoint", "127.0.0.1:8000"], "no address of a server"),
        (["--endpoint", UNUSED], "cannot be reached"),
        (["--api-key", "secret"], "name it with --endpoint"),
        (["--endpoint", UNUSED, "--api-key", "schl\u00fcssel"], "printable ASCII"),
        (["--endpoint", UNUSED, "--device", "cpu"], "--device is for a model of this app"),
        (["--endpoint", UNUSED, "--fuse-values"], "--fuse-values is for a model of this app"),
    ],
)
def test_mistakes_are_one_line(arguments: list[str], says: str, capsys: Any) -> None:
    assert run(["app", *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("kvmm: ") and says in line


def test_a_wrong_key_and_an_unknown_model_are_one_line(capsys: Any, monkeypatch: Any) -> None:
    with contextlib.closing(FakeServer()) as server:
        assert run(["app", "--endpoint", server.url, "--model", "huge"]) == 2
        assert "has no model 'huge'; it has: small, large" in capsys.readouterr().err
        server.models = (401, {})
        monkeypatch.setenv("KVMM_API_KEY", "from the environment")
        assert run(["app", "--endpoint", server.url]) == 2
        assert "does not accept the key: give the right one with --api-key" in capsys.readouterr().err
