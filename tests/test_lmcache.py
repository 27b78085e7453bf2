"""The serde that LMCache is given, and what is said without LMCache."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest
import torch

from kvmm import KVMMError
from kvmm.models.loading import default_model

CALIBRATION = str(default_model() / "kvmm_calibration.safetensors")
SHAPE = torch.Size((2, 8, 256, 128))
_WITHOUT = """
import sys
sys.modules["lmcache"] = None
from kvmm import KVMMError
try:
    import kvmm.lmcache
except KVMMError as error:
    print(error)
"""


def test_without_lmcache_one_line_says_what_to_install():
    done = subprocess.run([sys.executable, "-c", _WITHOUT], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.count("\n") == 1 and 'pip install "kvmm[lmcache]"' in done.stdout


@pytest.fixture(scope="module")
def lmcache():
    """LMCache's modules, and the serde registered."""
    pytest.importorskip("lmcache.v1.distributed.serde", reason="LMCache is not installed")
    import kvmm.lmcache

    return kvmm.lmcache


def memory(tensor: torch.Tensor):
    """A memory object of LMCache over a tensor."""
    from lmcache.v1.memory_management import MemoryFormat, MemoryObjMetadata, TensorMemoryObj

    shape, dtype = tensor.shape, tensor.dtype
    metadata = MemoryObjMetadata(
        shape, dtype, 0, tensor.nbytes, 1, fmt=MemoryFormat.KV_2LTD, shapes=[shape], dtypes=[dtype]
    )
    return TensorMemoryObj(tensor.view(-1).view(torch.uint8), metadata, None)


def vectors(seed: int = 0) -> torch.Tensor:
    return torch.randn(SHAPE, generator=torch.Generator().manual_seed(seed)).cumsum(2).bfloat16() / 8


def made(**options):
    from lmcache.v1.distributed.serde import SerdeConfig, create_serde_processor

    return create_serde_processor(SerdeConfig("kvmm_rd", {"calibration": CALIBRATION, **options}))


def waited(ask):
    until = time.monotonic() + 30
    while not (found := ask()) and time.monotonic() < until:
        time.sleep(0.01)
    return found


@pytest.mark.parametrize("options", [{"ratio": 8}, {"bits": 2}, {"ratio": 6.5, "modality": "image", "levels": "fixed"}])
def test_lmcache_serializes_with_it(lmcache, options):
    from lmcache.v1.distributed.api import MemoryLayoutDesc, ObjectKey

    serde, x, key = made(**options), vectors(), ObjectKey(b"0" * 32, "model", 0)
    size = serde.estimate_serialized_size(MemoryLayoutDesc([SHAPE], [torch.bfloat16]))
    out, back = memory(torch.zeros(size, dtype=torch.uint8)), torch.zeros_like(x)
    task = serde.submit_serialize([memory(x)], [out], [key])
    assert waited(lambda: serde.query_serialize_result(task)) is True
    assert out.get_size() <= size and x.nbytes / out.get_size() > 6
    assert ("bits" in options) or out.get_size() == size == int(x.nbytes / options["ratio"])
    task = serde.submit_deserialize([out], [memory(back)], [key])
    assert waited(lambda: serde.query_deserialize_result(task)) is True
    assert (back - x).float().square().sum() < 0.8 * x.float().square().sum()
    expected = serde._deserializer._codec.decode(out.raw_data.numpy(), SHAPE, x.dtype)
    assert torch.equal(back, expected)
    serde.close()


def test_chunks_go_to_disk_and_come_back(lmcache, tmp_path):
    """Through LMCache's own file adapter; one that somebody has changed is not loaded, and the buffer is as it was."""
    from lmcache.v1.distributed.api import ObjectKey
    from lmcache.v1.distributed.config import L1ManagerConfig, L1MemoryManagerConfig
    from lmcache.v1.distributed.l1_manager import L1Manager
    from lmcache.v1.distributed.l2_adapters.serde_wrapper import SerdeL2AdapterWrapper

    adapters = pytest.importorskip("lmcache.v1.distributed.l2_adapters.fs_l2_adapter")
    inner = adapters.FSL2Adapter(adapters.FSL2AdapterConfig(base_path=str(tmp_path)))
    own = L1Manager(L1ManagerConfig(L1MemoryManagerConfig(64 << 20, False, shm_name="")))
    adapter = SerdeL2AdapterWrapper(inner, made(ratio=8), own)
    keys = [ObjectKey(bytes([n]) * 32, "model", 0) for n in range(2)]
    chunks = [vectors(n) for n in range(2)]
    try:
        task = adapter.submit_store_task(keys, [memory(x) for x in chunks])
        assert waited(adapter.pop_completed_store_tasks)[task].is_successful()
        files = sorted(tmp_path.iterdir())
        assert [path.stat().st_size for path in files] == [chunks[0].nbytes // 8] * 2
        for damage in (False, True):
            if damage:
                data = bytearray(files[0].read_bytes())
                data[5000] ^= 1
                files[0].write_bytes(data)
            for n, (key, x) in enumerate(zip(keys, chunks, strict=True)):
                back = torch.full_like(x, 3)
                task = adapter.submit_load_task([key], [memory(back)])
                found = waited(lambda task=task: adapter.query_load_result(task))
                if damage and n == 0:
                    assert not found.test(0) and bool((back == 3).all())
                else:
                    assert found.test(0) and (back - x).float().square().sum() < 0.8 * x.float().square().sum()
    finally:
        adapter.close()


def test_options(lmcache, tmp_path):
    for options, message in (
        ({"calibration": None}, "a file that `kvmm calibrate` wrote"),
        ({"calibration": str(tmp_path / "no")}, "No calibration file"),
        ({"bits": 2, "ratio": 8}, "not both"),
        ({"bits": "2"}, '"bits" must be a number'),
        ({"ratio": 100}, "2.5 to 24"),
        ({"ratio": True}, '"ratio" must be a number'),
        ({"modality": "smell"}, "modality: must be one of"),
        ({"levels": "some"}, "levels must be"),
        ({"max_workers": 0}, "1 to 1024"),
        ({"size": 3}, "no option 'size'"),
    ):
        with pytest.raises(KVMMError, match=message) as error:
            made(**options)
        assert "\n" not in str(error.value)
    from lmcache.v1.distributed.api import MemoryLayoutDesc

    serde = made()
    with pytest.raises(KVMMError, match="one group"):
        serde.estimate_serialized_size(MemoryLayoutDesc([SHAPE, SHAPE], [torch.bfloat16] * 2))
    with pytest.raises(KVMMError, match="all layers and heads"):
        serde.estimate_serialized_size(MemoryLayoutDesc([torch.Size((2, 4, 256, 128))], [torch.bfloat16]))
    serde.close()
