"""The folder of compiled programs that benchmarks share."""

import os
import stat

import pytest

from benchmarks.programs import keep_programs
from kvmm.kernels.attention.backends.cuda import nvrtc


@pytest.fixture
def compiled(monkeypatch) -> list[bytes]:
    """Sources that were compiled."""
    sources: list[bytes] = []

    def compile_source(source, name, headers, capability):
        sources.append(source)
        return b"\x7fELF\n" + source, 'line 1: a "warning"\nline 2'

    monkeypatch.setattr(nvrtc, "compile_source", compile_source)
    return sources


def test_a_program_is_compiled_once(compiled, tmp_path):
    keep_programs(tmp_path / "programs")
    for source in (b"a", b"b", b"a"):
        found = nvrtc.compile_source(source, "x.cu", {"h": b"1"}, (9, 0))
        assert found == (b"\x7fELF\n" + source, 'line 1: a "warning"\nline 2')
    nvrtc.compile_source(b"a", "x.cu", {"h": b"2"}, (9, 0))
    nvrtc.compile_source(b"a", "x.cu", {"h": b"2"}, (10, 0))
    assert compiled == [b"a", b"b", b"a", b"a"]
    assert len(list((tmp_path / "programs").iterdir())) == 4


@pytest.mark.skipif(os.name != "posix", reason="folders have modes")
def test_a_folder_that_others_write_to_is_refused(compiled, tmp_path):
    keep_programs(tmp_path / "new")
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o700
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o1777)
    keep_programs(tmp_path / "open" / "mine")
    with pytest.raises(PermissionError, match="another folder"):
        keep_programs(tmp_path / "open")
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(PermissionError, match="another folder"):
        keep_programs(tmp_path / "open" / "mine")


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="files have no owners")
def test_a_folder_of_another_user_is_refused(compiled, tmp_path, monkeypatch):
    (tmp_path / "theirs").mkdir()
    owner = (tmp_path / "theirs").stat().st_uid
    monkeypatch.setattr(os, "getuid", lambda: owner + 1)
    if owner == 0:
        os.chown(tmp_path / "theirs", 12345, -1)
    with pytest.raises(PermissionError, match="belongs to somebody else"):
        keep_programs(tmp_path / "theirs")
