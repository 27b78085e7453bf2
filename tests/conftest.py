"""What must be set before anything else is imported, and which tests run in one process."""

import os
from pathlib import Path

import pytest
import torch

if not torch.cuda.is_available():
    # Triton decides as it is imported whether kernels are interpreted, and transformers may import it
    os.environ.setdefault("TRITON_INTERPRET", "1")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # The tests that share one server and one browser also share one worker (with pytest-xdist, --dist loadgroup).
    ui = Path(__file__).with_name("ui")
    for item in items:
        if item.path.is_relative_to(ui):
            item.add_marker(pytest.mark.xdist_group("browser"))
