"""Mutators: of bytes, of JSON values, and of the fields of a safetensors file."""

from __future__ import annotations

import json
import random
import struct
from typing import Any

ODD_INTEGERS = (-1, 0, 1, 2, 3, 7, 31, 127, 128, 255, 256, 2**15, 2**16, 2**31 - 1, 2**31, -(2**31), 2**63, 10**40)
ODD_TEXTS = (
    "",
    " ",
    "\0",
    "../../x",
    "/etc/passwd",
    "é" * 40,
    "x" * 4000,
    "float64",
    "load",
    "nan",
    "-0",
    "[[",
    "1e999",
)


def mutated_bytes(rng: random.Random, data: bytes, others: tuple[bytes, ...] = ()) -> bytes:
    """``data`` with one to four changes: bits, runs, cuts, splices with another input, numbers of 16 and 32 bits."""
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4))):
        size = len(out)
        if not size:
            return bytes(rng.randbytes(rng.randrange(64)))
        at = rng.randrange(size) if rng.random() < 0.6 else rng.randrange(min(size, 512))
        kind = rng.randrange(8)
        if kind == 0:
            for _ in range(rng.choice((1, 3, 16))):
                out[rng.randrange(size)] ^= 1 << rng.randrange(8)
        elif kind == 1:
            out[at : at + rng.choice((1, 4, 64))] = rng.randbytes(rng.choice((1, 4, 64)))
        elif kind == 2:
            del out[at:]
        elif kind == 3:
            del out[at : at + rng.choice((1, 2, 16, 256))]
        elif kind == 4:
            start = rng.randrange(size)
            out[at:at] = out[start : start + rng.choice((1, 16, 256, 4096))]
        elif kind == 5 and others:
            other = rng.choice(others)
            out[at:] = other[rng.randrange(len(other) or 1) :]
        elif kind == 6:
            value = rng.choice(ODD_INTEGERS) & 0xFFFFFFFF
            out[at : at + 4] = struct.pack(rng.choice((">I", "<I")), value)
        else:
            out[at : at + 2] = struct.pack(rng.choice((">H", "<H")), rng.choice(ODD_INTEGERS) & 0xFFFF)
    return bytes(out)


def odd_value(rng: random.Random) -> Any:
    """A JSON value that somebody did not expect."""
    kind = rng.randrange(10)
    if kind < 3:
        return rng.choice(ODD_INTEGERS)
    if kind < 5:
        return rng.choice(ODD_TEXTS)
    if kind == 5:
        return rng.choice((float("nan"), float("inf"), -1e300, 0.5, 1e-320))
    if kind == 6:
        return rng.choice((None, True, False))
    if kind == 7:
        return [odd_value(rng) for _ in range(rng.randrange(4))]
    if kind == 8:
        return {str(rng.choice(ODD_TEXTS)): odd_value(rng) for _ in range(rng.randrange(3))}
    nested: Any = rng.choice((0, "x"))
    for _ in range(rng.choice((3, 40, 400))):
        nested = [nested] if rng.random() < 0.5 else {"a": nested}
    return nested


def _places(value: Any, found: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        found.append((value, key))
        _places(inner, found)
    return found


def mutated_json(rng: random.Random, value: Any) -> Any:
    """A copy of a JSON value with one to three changes: values replaced, nudged, removed, renamed, repeated."""
    root = [json.loads(json.dumps(value))]
    for _ in range(rng.choice((1, 1, 2, 3))):
        places = _places(root, [])
        holder, key = rng.choice(places)
        old, kind = holder[key], rng.randrange(7)
        if kind == 0 and isinstance(old, (int, float)) and not isinstance(old, bool):
            holder[key] = old + rng.choice((-1, 1, 2, -2, 0.5, 100, -(10**6)))
        elif kind == 1 and holder is not root:
            del holder[key]
        elif kind == 2 and isinstance(holder, dict):
            holder[rng.choice((*ODD_TEXTS, f"{key}.", str(key).upper()))] = holder.pop(key)
        elif kind == 3 and isinstance(old, list):
            holder[key] = old * rng.choice((0, 2, 50))
        elif kind == 4:
            other, name = rng.choice(places)
            holder[key], other[name] = json.loads(json.dumps(other[name])), json.loads(json.dumps(old))
        else:
            holder[key] = odd_value(rng)
        try:
            json.dumps(root)
        except (ValueError, RecursionError):  # swapped into itself
            return odd_value(rng)
    return root[0]


def mutated_header(rng: random.Random, data: bytes) -> bytes:
    """A safetensors file whose header was changed: dtypes, shapes, offsets, names; or its length."""
    (length,) = struct.unpack("<Q", data[:8])
    header, body = json.loads(data[8 : 8 + length]), data[8 + length :]
    names = [name for name in header if name != "__metadata__"]
    for _ in range(rng.choice((1, 1, 2))):
        entry = header[rng.choice(names)]
        kind = rng.randrange(7)
        if kind == 0:
            dtypes = "F64 F32 F16 BF16 I64 I32 I16 I8 U8 BOOL U16 U32 U64 F8_E4M3 F8_E5M2 C64 X9".split()
            entry["dtype"] = rng.choice(dtypes)
        elif kind == 1:
            rng.shuffle(entry["shape"])
        elif kind == 2:
            entry["shape"] = _same_size(rng, entry["shape"])
        elif kind == 3:
            entry["shape"].append(rng.choice((1, 0, 2, -1, 2**63, 2**40)))
        elif kind == 4:
            entry["data_offsets"][rng.randrange(2)] += rng.choice((-1, 1, 4, -4, 2**40))
        elif kind == 5:
            other = header[rng.choice(names)]
            entry["data_offsets"] = list(other["data_offsets"])
        else:
            entry[rng.choice(("dtype", "shape", "data_offsets"))] = odd_value(rng)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    size = len(text) if rng.random() < 0.95 else rng.choice(ODD_INTEGERS) % 2**64
    return struct.pack("<Q", size) + text + body


def _same_size(rng: random.Random, shape: list[int]) -> list[int]:
    """Another shape of as many elements."""
    shape = list(shape) or [1]
    if len(shape) == 1:
        return [1, *shape]
    i, j = rng.sample(range(len(shape)), 2)
    for divisor in (2, 3, 4, 5, shape[i] or 1):
        if shape[i] % divisor == 0:
            shape[i] //= divisor
            shape[j] *= divisor
            break
    return shape
