"""What must be set before anything else is imported, and which tests run in one process."""

import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

if not torch.cuda.is_available():
    # Triton decides as it is imported whether kernels are interpreted, and transformers may import it
    os.environ.setdefault("TRITON_INTERPRET", "1")
    if os.environ["TRITON_INTERPRET"] == "1" and find_spec("triton"):
        from tests.interpreter import shorten

        shorten()


UI = Path(__file__).with_name("ui")
# The smaller of the embedded models, which answers several times as fast; tests of the default say so.
os.environ["KVMM_DEFAULT_MODEL"] = str(UI.parents[1] / "assets" / "tiny-omni")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # The tests that share one server and one browser also share one worker (with pytest-xdist, --dist loadgroup).
    for item in items:
        if item.path.is_relative_to(UI):
            item.add_marker(pytest.mark.xdist_group("browser"))
            item.add_marker("browser")
        if "visit" in getattr(item, "fixturenames", ()):
            # A browser beside a second test process misses a wait now and then; the summary counts what ran twice.
            item.add_marker(pytest.mark.flaky(reruns=1))


@pytest.fixture(scope="module", autouse=True)
def _one_thread(request: pytest.FixtureRequest) -> Iterator[None]:
    """Models this small only wait for a second thread, and tests may run side by side; the app's server has its own."""
    if request.path.is_relative_to(UI):
        yield
        return
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
