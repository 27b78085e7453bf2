"""YAML that anybody may have written: size, depth and number of values are known before a value is made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from kvmm.errors import KVMMError, one_line

MAX_BYTES = 64 * 2**10
MAX_DEPTH = 12
MAX_VALUES = 4000
MAX_CHARACTERS = 4096  # of one value


class _Loader(yaml.SafeLoader):
    """YAML's safe loader, which would take the last of two equal keys without a word; here it is an error."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = []
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if key in seen:
                problem = f"key {key!r} is there twice"
                raise yaml.constructor.ConstructorError(None, None, problem, key_node.start_mark)
            seen.append(key)
        return super().construct_mapping(node, deep)


def read_yaml(path: Path) -> Any:
    """The value in a YAML file.

    Raises:
        KVMMError: one line with the file: it is missing or no YAML, has more than 64 KiB, 4000 values, 12 levels or
            4096 characters in a value, or uses aliases.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
        text = data.decode("utf-8-sig")
    except FileNotFoundError:
        raise KVMMError(f"There is no policy file {path}.") from None
    except (OSError, ValueError) as error:
        raise KVMMError(f"Cannot read {path}: {one_line(error)}") from None
    if len(data) > MAX_BYTES:
        raise KVMMError(f"{path} has more than {MAX_BYTES >> 10} KiB, which no policy needs.")
    try:
        _check_events(text, path)
        return yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark is not None else ""
        problem = one_line(getattr(error, "problem", None) or "wrong characters")
        raise KVMMError(f"{path}{where}: this cannot be read as YAML ({problem}).") from None
    except (ValueError, OverflowError, TypeError, RecursionError, AttributeError, KeyError, IndexError) as error:
        if isinstance(error, KVMMError):
            raise
        # a number of thousands of digits, a date that is none, and what else YAML's own types refuse
        raise KVMMError(f"{path}: this cannot be read as YAML ({one_line(error)}).") from None


def _check_events(text: str, path: Path) -> None:
    """Go through the file without making values, as far as the first limit."""
    depth = count = 0
    for event in yaml.parse(text, yaml.SafeLoader):
        line = event.start_mark.line + 1
        if isinstance(event, yaml.AliasEvent):
            raise KVMMError(f"{path}, line {line}: aliases (*{one_line(event.anchor)[:40]}) are not read.")
        if isinstance(event, yaml.ScalarEvent):
            event.value.encode()  # half of a surrogate pair is no text
            if len(event.value) > MAX_CHARACTERS:
                raise KVMMError(f"{path}, line {line}: a value has more than {MAX_CHARACTERS} characters.")
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        count += isinstance(event, (yaml.CollectionStartEvent, yaml.ScalarEvent))
        if depth > MAX_DEPTH or count > MAX_VALUES:
            limit = f"{MAX_DEPTH} levels" if depth > MAX_DEPTH else f"{MAX_VALUES} values"
            raise KVMMError(f"{path}, line {line}: has more than {limit}, which no policy needs.")


__all__ = ["read_yaml"]
