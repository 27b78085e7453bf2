"""What a wheel brings: every file, the command ``kvmm`` and the app with its model, away from the checkout."""

from __future__ import annotations

import json
import os
import shutil
import signal
import site
import socket
import subprocess
import sys
import time
import urllib.request
import zipfile
from importlib.metadata import version
from pathlib import Path

import pytest

import kvmm
from kvmm.models.loading import TINY_MODEL

ROOT = Path(__file__).resolve().parents[1]

pytestmark = pytest.mark.skipif(
    int(version("setuptools").partition(".")[0]) < 77, reason="setuptools is too old for pyproject.toml"
)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in ("pyproject.toml", "LICENSE", "README.md"):
        shutil.copy(ROOT / name, source)
    for name in ("kvmm", "assets"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__", "*.pyc"))
    code = f"from setuptools import build_meta; print('built', build_meta.build_wheel({str(out)!r}))"
    done = subprocess.run([sys.executable, "-c", code], cwd=source, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    (path,) = out.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def scripts(wheel, tmp_path_factory) -> Path:
    """The folder of commands of a fresh environment with the wheel; its requirements are those of this environment."""
    home = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", home], check=True, timeout=120)
    (packages,) = home.glob("lib/python*/site-packages")
    (packages / "requirements.pth").write_text("\n".join(site.getsitepackages()))
    install = ["install", "--quiet", "--no-deps", "--no-index", "--disable-pip-version-check", str(wheel)]
    python = home / "bin" / "python"
    subprocess.run([sys.executable, "-m", "pip", "--python", python, *install], check=True, timeout=300)
    return home / "bin"


NOT_A_USERS = ("PYTHONPATH", "GRADIO_TEMP_DIR", "KVMM_DEFAULT_MODEL")


def environment(temporary: Path) -> dict[str, str]:
    return {
        **{name: value for name, value in os.environ.items() if name not in NOT_A_USERS},
        "TMPDIR": str(temporary),
        "TORCHINDUCTOR_CACHE_DIR": str(temporary.parent / "inductor"),
        "COLUMNS": "120",
    }


def test_the_wheel_has_every_file(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    missing = [
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "kvmm").rglob("*")
        if path.is_file() and path.suffix not in (".pyc",) and path.relative_to(ROOT).as_posix() not in names
    ]
    assert missing == []
    assert any(name.endswith("assets/tiny-omni/config.json") for name in names)


def test_the_installed_command(scripts, tmp_path):
    def kvmm_command(*arguments: str) -> str:
        command = [scripts / "kvmm", *arguments]
        done = subprocess.run(
            command, cwd=tmp_path, env=environment(tmp_path), capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert kvmm_command("--version") == f"kvmm {kvmm.__version__}\n"
    help_text = kvmm_command("app", "--help")
    assert "Usage: kvmm app" in help_text
    of_checkout = subprocess.run(
        [sys.executable, "app.py", "--help"], cwd=ROOT, env=environment(tmp_path), capture_output=True, text=True
    ).stdout
    assert of_checkout.split() == help_text.replace("kvmm app", "app.py").split()


def test_the_installed_app_serves_its_page_and_leaves_nothing(scripts, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    command = [scripts / "kvmm", "app", "--port", str(port)]
    app = subprocess.Popen(
        command, cwd=tmp_path, env=environment(temporary), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        config, until = "", time.monotonic() + 180
        while not config and time.monotonic() < until and app.poll() is None:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/config", timeout=10) as reply:
                    config = reply.read().decode()
            except OSError:
                time.sleep(0.5)
        assert "invoice.png" in config, app.poll()  # with the samples of the installation
        parts = [part["props"] for part in json.loads(config)["components"]]
        (chosen,) = (part["value"] for part in parts if part.get("elem_id") == "model")
        assert chosen == TINY_MODEL
        app.send_signal(signal.SIGTERM)
        said, _ = app.communicate(timeout=60)
    finally:
        app.kill()
    assert app.returncode == 0 and "Traceback" not in said, said
    assert [path.name for path in temporary.iterdir()] == []


def test_a_question_leaves_no_temporary_folder(scripts, tmp_path):
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    done = subprocess.run(
        [scripts / "kvmm", "ask", "--max-new-tokens", "2", "--image", ROOT / "assets/samples/table.png", "When?"],
        cwd=tmp_path, env=environment(temporary), capture_output=True, text=True, timeout=180,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert list(temporary.iterdir()) == []
