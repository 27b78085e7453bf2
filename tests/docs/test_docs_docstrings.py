"""Entries of docstrings that are for several names, as the API reference reads them."""

from __future__ import annotations

import importlib.util

import pytest

from tests.docs.pages import DOCS

pytest.importorskip("griffe")


def _split(text: str) -> str:
    spec = importlib.util.spec_from_file_location("docs_docstrings", DOCS / "docstrings.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.split_entries(text)


def test_shared_entries_become_one_each():
    text = """Encode.

Args:
    key, value: float32 ``[B, H, T, D]``: what
        is encoded.
    *args, **kwargs: more.
    size: of a page, group, or span: tokens.

Raises:
    KVMMError: for one, two: or three."""
    assert (
        _split(text)
        == """Encode.

Args:
    key: float32 ``[B, H, T, D]``: what
        is encoded.
    value: float32 ``[B, H, T, D]``: what
        is encoded.
    *args: more.
    **kwargs: more.
    size: of a page, group, or span: tokens.

Raises:
    KVMMError: for one, two: or three."""
    )
