"""Kernels that code pages, compiled for a GPU that is not there."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

_COMPILE = """
import json, sys, torch
from kvmm.codecs import EncodeContext, build_codec, spherical, turboquant
from kvmm.kernels.quantize.tiles import TilePages
from kvmm.policy import spec
from tests.kernels.compiled_launches import recorded, resources
turboquant.cut_pages = spherical.codec.cut_pages = TilePages
codec, bits, side = sys.argv[1:]
x = torch.zeros(1, 2, 4096, 128, dtype=torch.bfloat16)
with recorded() as found:
    build_codec(spec(codec, float(bits)), side).encode(x, EncodeContext(128))
print(json.dumps([[name, resources(kernel)] for name, kernel in found]))
"""


@pytest.mark.parametrize(
    ("codec", "bits", "side", "names"),
    [
        ("turboquant", 2.5, "key", ["moments_kernel", "means_kernel", "book_kernel"]),
        ("turboquant", 2.0, "value", ["book_kernel"]),
        ("spherical", 0.875, "key", ["moments_kernel", "means_kernel", "encode_kernel"]),
    ],
)
def test_code_books_compile_for_hopper(codec, bits, side, names):
    """One kernel, behind two for the mean of keys: nothing spills, and the tensor cores multiply."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    command = [sys.executable, "-c", _COMPILE, codec, str(bits), side]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert [name for name, _ in found] == names
    assert [each["stack"] for _, each in found] == [0] * len(names)
    assert found[-1][1].get("HGMMA", 0) >= 8
