"""The key of an installation: written whole, by one process, for one user; and an app without a home."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx
import pytest
import torch
from gradio_client import Client, handle_file
from safetensors import safe_open
from safetensors.torch import save_file

from kvmm.errors import KVMMError
from kvmm.ui.server import signing
from kvmm.ui.server.signing import KEY_BYTES, app_key, check_signature, sign

ROOT = Path(__file__).resolve().parents[3]


def test_a_key_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    seen = []

    def fail(descriptor: int) -> None:
        seen.append([path.name for path in tmp_path.iterdir()])
        raise OSError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(signing.os, "fsync", fail)
        assert len(app_key(tmp_path)) == KEY_BYTES  # of this process
    assert "app.key" not in seen[0] and list(tmp_path.iterdir()) == []
    key = app_key(tmp_path)
    assert app_key(tmp_path) == key and [path.name for path in tmp_path.iterdir()] == ["app.key"]
    assert (tmp_path / "app.key").stat().st_mode & 0o777 == 0o600


def test_processes_that_begin_at_once_have_one_key(tmp_path):
    found, barrier = [], threading.Barrier(8)

    def begin() -> None:
        barrier.wait()
        found.append(app_key(tmp_path))

    threads = [threading.Thread(target=begin) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8 and set(found) == {(tmp_path / "app.key").read_bytes()}


def test_a_key_that_was_cut_off_is_made_anew(tmp_path):
    app_key(tmp_path)
    (tmp_path / "app.key").write_bytes(b"torn")
    key = app_key(tmp_path)
    assert len(key) == KEY_BYTES and app_key(tmp_path) == key


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o640, 0o604, 0o666])
def test_a_key_that_others_can_touch_is_refused(tmp_path, mode):
    app_key(tmp_path)
    (tmp_path / "app.key").chmod(mode)
    with pytest.raises(KVMMError, match=r"app\.key is open to other users.*chmod go-rwx"):
        app_key(tmp_path)


@pytest.mark.parametrize("umask", [0o002, 0o000, 0o022, 0o077])
def test_an_app_starts_whatever_the_umask(tmp_path, umask):
    before = os.umask(umask)
    try:
        key = app_key(tmp_path / "state" / "kvmm")
    finally:
        os.umask(before)
    assert app_key(tmp_path / "state" / "kvmm") == key
    assert (tmp_path / "state" / "kvmm").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("mode", [0o775, 0o777, 0o720])
def test_a_folder_of_ours_is_closed_to_others_and_its_key_stays(tmp_path, mode):
    key = app_key(tmp_path)
    tmp_path.chmod(mode)
    assert app_key(tmp_path) == key
    assert tmp_path.stat().st_mode & 0o777 == mode & ~0o022


def test_where_folders_have_no_modes_the_key_is_of_this_process(tmp_path, monkeypatch, caplog):
    tmp_path.chmod(0o777)
    monkeypatch.setattr(Path, "chmod", lambda *_: None)  # as exFAT and SMB do
    keys = [app_key(tmp_path) for _ in range(3)]
    assert len(set(keys)) == 3 and list(tmp_path.iterdir()) == []
    (line,) = [record.getMessage() for record in caplog.records if record.name == "kvmm.ui.server.signing"]
    assert str(tmp_path) in line and "only until the app ends" in line


def test_where_files_have_no_modes_no_key_is_left(tmp_path, monkeypatch):
    make = signing.tempfile.mkstemp

    def open_to_all(**options) -> tuple[int, str]:
        handle, path = make(**options)
        os.fchmod(handle, 0o755)
        return handle, path

    monkeypatch.setattr(signing.tempfile, "mkstemp", open_to_all)
    assert app_key(tmp_path) != app_key(tmp_path) and list(tmp_path.iterdir()) == []


def test_a_folder_of_another_user_is_refused(tmp_path, monkeypatch):
    owner = os.getuid()
    monkeypatch.setattr(signing.os, "getuid", lambda: owner + 1)
    with pytest.raises(KVMMError, match="belongs to another user"):
        app_key(tmp_path)


def test_a_key_of_another_user_is_refused(tmp_path, monkeypatch):
    app_key(tmp_path)
    key = tmp_path / "app.key"
    key.rename(tmp_path / "elsewhere")
    key.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(KVMMError, match="belongs to another user"):
        app_key(tmp_path)
    key.unlink()
    owner = os.getuid()
    monkeypatch.setattr(signing.os, "getuid", lambda: owner + 1)
    with pytest.raises(KVMMError, match="belongs to another user"):
        app_key(tmp_path)


def saved(path: Path, **metadata: str) -> Path:
    save_file({"b": torch.arange(6.0), "a": torch.ones(3, dtype=torch.uint8)}, path, {"title": 'é, "x"', **metadata})
    return path


def test_a_signed_file_keeps_its_tensors_and_metadata(tmp_path):
    path, key = saved(tmp_path / "talk.kvmm"), b"k" * KEY_BYTES
    for _ in range(2):  # one that was signed before is signed anew
        sign(path, key)
        check_signature(path, key)
        with safe_open(path, "pt") as file:
            assert {**file.metadata(), "signature": ""} == {"title": 'é, "x"', "signature": ""}
            assert file.get_tensor("b").tolist() == [0, 1, 2, 3, 4, 5] and file.get_tensor("a").tolist() == [1, 1, 1]
    assert [path.name for path in tmp_path.iterdir()] == ["talk.kvmm"]
    with pytest.raises(KVMMError, match="not saved by this app"):
        check_signature(path, b"j" * KEY_BYTES)
    data = path.read_bytes()
    for at in range(len(data)):
        path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        with pytest.raises(KVMMError, match=r"not saved by this app|not a saved conversation"):
            check_signature(path, key)
    path.write_bytes(data + b"x")
    with pytest.raises(KVMMError, match="not saved by this app"):
        check_signature(path, key)


def test_a_file_that_the_version_before_signed_is_opened(tmp_path):
    path, key = saved(tmp_path / "talk.kvmm"), b"k" * KEY_BYTES
    data = path.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    digest = hmac.new(key, json.dumps(header, sort_keys=True).encode() + data[start:], hashlib.sha256).hexdigest()
    for mark, is_ours in ((digest, True), ("0" * 64, False), (digest + "é", False), (7, False)):
        header["__metadata__"]["signature"] = mark
        text = json.dumps(header).encode()
        path.write_bytes(len(text).to_bytes(8, "little") + text + data[start:])
        with contextlib.nullcontext() if is_ours else pytest.raises(KVMMError, match="not saved by this app"):
            check_signature(path, key)


def test_nothing_of_a_strangers_file_is_parsed(tmp_path, monkeypatch):
    path, key, parsed = saved(tmp_path / "talk.kvmm"), b"k" * KEY_BYTES, []
    sign(path, b"j" * KEY_BYTES)
    own, loads = path.read_bytes(), json.loads
    monkeypatch.setattr(signing.json, "loads", lambda text: parsed.append(len(text)) or loads(text))
    many, long = b'{"__metadata__":[' + b"0," * 300_000, b'{"__metadata__": "' + b"x" * 17 * 2**20
    deep = b'{"__metadata__":' + b"[" * 300_000
    for data in (own, *(len(text).to_bytes(8, "little") + text for text in (many, long, deep))):
        path.write_bytes(data)
        with pytest.raises(KVMMError, match=r"not saved by this app|not a saved conversation"):
            check_signature(path, key)
    assert parsed == []


def test_without_a_home_the_key_is_of_this_process(monkeypatch):
    def missing() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", missing)
    assert len(app_key()) == KEY_BYTES and app_key() != app_key()


def test_an_app_needs_no_home_and_no_entry_in_passwd(tmp_path):
    code = (
        "import os, pwd, sys\n"
        "def missing(*_):\n"
        "    raise KeyError('getpwuid(): uid not found: 54321')\n"
        "pwd.getpwuid = missing\n"
        "assert os.path.expanduser('~') == '~'\n"
        "sys.path.insert(0, sys.argv.pop(1))\n"
        "from kvmm.cli import main\n"
        "main()\n"
    )
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-c", code, str(ROOT), "app", "--port", str(port), "--max-new-tokens", "4"]
    with (tmp_path / "log").open("w+b") as log:
        environment = {"OMP_NUM_THREADS": "1", "TMPDIR": str(tmp_path)}
        app = subprocess.Popen(command, env=environment, cwd=tmp_path, stdout=log, stderr=log)
        try:
            url, until = f"http://127.0.0.1:{port}/", time.monotonic() + 240
            while not _answers(url) and time.monotonic() < until:
                assert app.poll() is None, (tmp_path / "log").read_text()[-2000:]
                time.sleep(0.5)
            page = handle_file(ROOT / "assets" / "samples" / "invoice.png")
            answer = Client(url, verbose=False).predict([page], "What is the total?", api_name="/ask")["answer"]
            assert answer.startswith("$")
        finally:
            app.terminate()
            app.wait(60)
    assert not list(tmp_path.glob("kvmm*"))  # uploads and the compiled library end with the app


def _answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=5).status_code == 200
    except httpx.HTTPError:
        return False
