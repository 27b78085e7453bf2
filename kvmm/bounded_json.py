"""JSON from files that anybody may have written: its size, its depth and its errors are bounded."""

from __future__ import annotations

import json
from typing import Any

from kvmm.errors import KVMMError, one_line

MAX_CHARACTERS = 32 * 2**20  # a parsed value takes up to twenty times as many bytes
MAX_DEPTH = 64


def parse_json(text: str, where: str, max_characters: int = MAX_CHARACTERS) -> Any:
    """The value of a JSON text.

    Args:
        text: the JSON.
        where: what messages begin with, such as the file's name.
        max_characters: how long the text may be.

    Raises:
        KVMMError: the text is longer, nested deeper than 64 levels, or no JSON.
    """
    if len(text) > max_characters:
        raise KVMMError(f"{where} has {len(text) >> 20} MiB of JSON and may have {max_characters >> 20}.")
    try:
        value = json.loads(text)
    except RecursionError:
        raise _too_deep(where) from None
    except ValueError as error:  # no JSON, or a number of thousands of digits
        raise KVMMError(f"{where} is not JSON ({one_line(error)}).") from None
    level = [value] if isinstance(value, (dict, list)) else []
    for _ in range(MAX_DEPTH + 1):
        if not level:
            return value
        inner = (one for each in level for one in (each.values() if isinstance(each, dict) else each))
        level = [one for one in inner if isinstance(one, (dict, list))]
    raise _too_deep(where)


def _too_deep(where: str) -> KVMMError:
    return KVMMError(f"{where} is JSON nested deeper than {MAX_DEPTH} levels.")


__all__ = ["MAX_CHARACTERS", "parse_json"]
