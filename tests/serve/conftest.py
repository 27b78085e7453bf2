from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.encoded_pages import load_embedded
from tests.serve.running import Running, serving


@pytest.fixture(scope="session")
def omni() -> tuple[Any, Any]:
    """The embedded model and its processor, in float32 on the CPU."""
    return load_embedded()


@pytest.fixture(scope="module")
def server(omni: tuple[Any, Any]) -> Iterator[Running]:
    with serving(omni) as running:
        yield running
