"""Where the compiled library lies: this user's own, whole, and rebuilt where it is not; and what sanitizers say."""

import ctypes
import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kvmm.kernels import build
from kvmm.kernels.attention.backends.cpu import kernel as native

ROOT = Path(__file__).parents[2]
COMPILER = shutil.which("cc") or shutil.which("gcc")

QUICK = ("-O0", "-shared", "-fPIC")

pytestmark = pytest.mark.skipif(COMPILER is None, reason="no C compiler")


@pytest.fixture
def home(tmp_path, monkeypatch):
    """An empty cache folder, and a compiler that does not take long."""
    monkeypatch.setattr(build, "FLAGS", QUICK)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "kvmm"


def libraries(folder):
    return sorted(folder.glob("*.so"))


def works(library):
    return bool(library.kvmm_attend)


def test_the_library_is_kept(home):
    first = build.library_in(build.cache_folder(), native.SOURCE, COMPILER, ())
    stamp = first.stat().st_mtime_ns
    assert first.parent == home and home.stat().st_mode & 0o777 == 0o700
    assert build.library_in(home, native.SOURCE, COMPILER, ()) == first and first.stat().st_mtime_ns == stamp
    other = build.library_in(home, native.SOURCE, COMPILER, ("-DOTHER",))
    assert other != first and libraries(home) == sorted({first, other})
    assert [path.name for path in home.iterdir() if path.suffix != ".so"] == []


@pytest.mark.parametrize("writable", [True, False])
def test_no_temporary_folder_is_left(monkeypatch, tmp_path, writable):
    cache, temporary = tmp_path / "cache", tmp_path / "temporary"
    temporary.mkdir()
    if not writable:
        cache.write_text("a file where the cache folder should be")
    monkeypatch.setattr(build, "FLAGS", QUICK)
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    assert works(build.load(native.SOURCE, COMPILER, ())) and list(temporary.iterdir()) == []
    assert cache.is_dir() == writable


DAMAGE = {
    "cut": lambda path: path.write_bytes(path.read_bytes()[:3000]),
    "empty": lambda path: path.write_bytes(b""),
    "changed": lambda path: path.write_bytes(path.read_bytes()[:-1] + b"\x01\x02"),
    "writable for others": lambda path: path.chmod(0o766),
    "a link": lambda path: (path.rename(path.with_suffix(".kept")), path.symlink_to(path.with_suffix(".kept"))),
    "a folder": lambda path: (path.unlink(), path.mkdir()),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_library_is_built_again(home, name):
    path = build.library_in(home, native.SOURCE, COMPILER, ())
    whole = path.read_bytes()
    DAMAGE[name](path)
    if name == "a folder":  # nothing of ours, so nothing that is removed
        assert works(build.load(native.SOURCE, COMPILER, ()))
        return
    assert works(build.load(native.SOURCE, COMPILER, ()))
    assert path.read_bytes() == whole and not path.is_symlink() and path.stat().st_mode & 0o077 == 0


def test_what_is_loaded_is_what_was_checked(home, monkeypatch):
    """Another file in its place between the two has no effect."""
    evil = home.parent / "evil.c"
    evil.write_text("int kvmm_attend(void) { return 42; }")
    subprocess.run([COMPILER, "-shared", "-fPIC", "-o", str(evil.with_suffix(".so")), str(evil)], check=True)
    opened = build._opened

    def swapped(path):
        descriptor = opened(path)
        os.replace(shutil.copy(evil.with_suffix(".so"), home / "x"), path)
        return descriptor

    path = build.library_in(home, native.SOURCE, COMPILER, ())
    monkeypatch.setattr(build, "_opened", swapped)
    library = build._loaded(path)
    monkeypatch.undo()
    assert not hasattr(library, "evil") and library._name.startswith("/proc/self/fd/")
    loaded = Path(f"/proc/self/fd/{build._FILES[-1]}").read_bytes()
    assert loaded != path.read_bytes() and build._digest(loaded) in path.name


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o702])
def test_a_folder_that_others_may_write_to(home, mode, caplog):
    home.mkdir()
    home.chmod(mode)
    with pytest.raises(PermissionError, match="others may write"):
        build.library_in(home, native.SOURCE, COMPILER, ())
    assert works(build.load(native.SOURCE, COMPILER, ()))  # of its own
    assert libraries(home) == [] and "is not kept" in caplog.text


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root gives files away")
def test_files_of_somebody_else(home):
    path = build.library_in(home, native.SOURCE, COMPILER, ())
    os.chown(path, 12345, 12345)
    assert build.library_in(home, native.SOURCE, COMPILER, ()).stat().st_uid == 0
    os.chown(home, 12345, 12345)
    with pytest.raises(PermissionError, match="somebody else"):
        build.library_in(home, native.SOURCE, COMPILER, ())
    assert works(build.load(native.SOURCE, COMPILER, ()))


def test_it_is_on_the_disk_before_it_has_its_name(home, monkeypatch):
    done, fsync, replace = [], os.fsync, Path.replace

    def synced(descriptor):
        done.append(os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}")))
        fsync(descriptor)

    def replaced(self, other):
        done.append("replace")
        return replace(self, other)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "replace", replaced)
    build.library_in(home, native.SOURCE, COMPILER, ())
    assert done == ["decode.so", "replace", "kvmm"]


@pytest.mark.parametrize("given", ["", "relative/folder"])
def test_where_there_is_no_home(monkeypatch, given):
    monkeypatch.setattr(build, "FLAGS", QUICK)
    monkeypatch.setenv("XDG_CACHE_HOME", given)

    def nobody():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", nobody)
    assert build.cache_folder() is None and works(build.load(native.SOURCE, COMPILER, ()))


NOBODY = """
import os, pathlib
from kvmm.kernels.attention.backends.cpu import kernel as native
from tests.kernels.calls import attend_with
from tests.kernels.test_attention_cpu import KINDS, inputs, make_part
arguments = inputs([make_part(KINDS["oscar2"], 200)])
os.setgid(54321), os.setuid(54321)
try:
    raise SystemExit(f"there is a home: {pathlib.Path.home()}")
except RuntimeError:
    pass
assert attend_with(native, *arguments) is not None
print("works")
"""


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can be somebody else")
def test_a_user_without_home_and_name(tmp_path):
    """As in a container that runs under any number."""
    if any(not folder.stat().st_mode & 0o001 for folder in native.SOURCE.path.parents):
        pytest.skip("the source lies where only root can read")
    environment = {n: v for n, v in os.environ.items() if n not in ("HOME", "XDG_CACHE_HOME", "USER", "LOGNAME")}
    environment |= {"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1", "TMPDIR": "/tmp", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", NOBODY], env=environment, cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert done.stdout.strip() == "works", done.stderr[-2000:]


# -- sanitizers --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sanitized():
    """The environment of a process whose library is built with sanitizers."""
    try:
        environment = os.environ | build.sanitized_environment() | {"OMP_NUM_THREADS": "1"}
    except OSError as error:
        pytest.skip(str(error))
    probe = "from kvmm.kernels.attention.backends.cpu import kernel; assert kernel.available()"
    if subprocess.run(
        [sys.executable, "-c", probe], env=environment, cwd=ROOT, capture_output=True, timeout=200
    ).returncode:
        pytest.skip("the sanitizers do not work here")
    return environment


OUT_OF_BOUNDS = """
import torch
from kvmm.kernels.attention.backends.cpu import kernel as native
from tests.kernels.calls import attend_with
from tests.kernels.test_attention_cpu import KINDS, inputs, make_part
part = make_part(KINDS["oscar2"], 500)
arguments = inputs([part])
assert attend_with(native, *arguments) is not None
native.readable = lambda *sizes: True  # nobody looks
tensors = part.key.packed.tensors
tensors["codes"] = tensors["codes"][:, :, :, :1].clone()
native._descriptions.clear()
attend_with(native, *arguments)
"""


def test_the_address_sanitizer_sees(sanitized):
    """What the checks of shapes are for: without them this is a read out of bounds, which the tests below would see."""
    done = subprocess.run(
        [sys.executable, "-c", OUT_OF_BOUNDS], env=sanitized, cwd=ROOT, capture_output=True, text=True, timeout=200
    )
    assert done.returncode and "heap-buffer-overflow" in done.stderr, done.stderr[-2000:]


@pytest.mark.parametrize(
    ("tests", "chosen"),
    [
        ("test_attention_cpu.py", "every_codec or small_pages or head_dims or room or threads or no_parts"),
        ("test_pages_native.py", "not refused"),  # torch's errors end a process with the address sanitizer
    ],
)
def test_the_kernels_under_sanitizers(sanitized, tests, chosen):
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-k",
        chosen,
        f"tests/kernels/{tests}",
    ]
    done = subprocess.run(command, env=sanitized, cwd=ROOT, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0 and " passed" in done.stdout, done.stdout[-2000:] + done.stderr[-2000:]


def test_broken_caches_under_sanitizers(sanitized):
    from tests.fuzz.runner import run

    result = run(("caches",), 60, start=10**6, sanitize=True)
    assert result["clean"] and result["kinds"]["caches"]["accepted"], result


def test_sanitizers_need_their_runtime(monkeypatch):
    monkeypatch.setenv(build.SANITIZE, "address,undefined")
    monkeypatch.delenv("LD_PRELOAD", raising=False)
    with pytest.raises(OSError, match="runtime"):
        build._sanitizer_flags()
    assert native.library() is None or isinstance(native.library(), ctypes._CFuncPtr)


def test_threads_that_ask_at_once_compile_once(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "two.c").write_text("int two(void) { return 2; }")
    source, compiled, run = build.Source("two", tmp_path / "two.c"), [], build._run

    def counted(*command: str) -> bytes:
        if "-dM" not in command:
            compiled.append(command)
            time.sleep(0.2)  # for the others to ask meanwhile
        return run(*command)

    monkeypatch.setattr(build, "_run", counted)
    with ThreadPoolExecutor(4) as pool:
        libraries = list(pool.map(build.first_loaded, [source] * 4))
    assert [library.two() for library in libraries] == [2] * 4 and len(compiled) == 1
