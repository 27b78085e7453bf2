"""Caches in files: packed as they are, and readable only by the model that filled them.

A file is safetensors with JSON in its header: format version, the model's fingerprint, a checksum, and the state that
is no tensor (policy, lengths, page sizes). Pages are written as they are, but for codes, which an entropy coder makes
smaller (:mod:`kvmm.cache.file_codes`), and floats of 16 bits (:mod:`kvmm.cache.file_floats`); all that is one tensor
(:mod:`kvmm.cache.file_bundle`). Nothing is unpickled.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import nn
from transformers import cache_utils
from transformers.cache_utils import DynamicSlidingWindowLayer

from kvmm.bounded_json import MAX_CHARACTERS, parse_json
from kvmm.cache import file_checks
from kvmm.cache.file_bundle import decode_bundle, encode_bundle
from kvmm.cache.file_codes import STREAMS, decode_codes, encode_codes
from kvmm.cache.file_floats import decode_floats, encode_floats
from kvmm.cache.layer import KVMMLayer
from kvmm.cache.state import CacheState
from kvmm.cache.token_table import TokenTable
from kvmm.calibration import Calibration, model_fingerprint
from kvmm.calibration.heads import HeadShape
from kvmm.errors import KVMMError, one_line
from kvmm.generating_model import generating_model
from kvmm.kernels.exact import exact_dtype
from kvmm.policy import KVPolicy
from kvmm.policy.calibrated import load_calibration
from kvmm.tensor_file import read_tensor_file

FORMAT = "kvmm-cache"
FORMAT_VERSION = 1
CODED_VERSION = 2  # of files with entropy-coded pages, as earlier versions wrote them
BUNDLE_VERSION = 3  # of files whose tensors are, beside, in one
_VERSIONS = (FORMAT_VERSION, CODED_VERSION, BUNDLE_VERSION)
Tensors = dict[str, torch.Tensor]
Loaded = TypeVar("Loaded", bound=CacheState)
_HOLDS_NOTHING = getattr(cache_utils, "DummyLayer", ())  # reads the keys and values of another layer
_RETENTION = ("pins", "steps", "runs", "last", "counts")  # what the controller of a budget has to remember


def save_cache(
    cache: CacheState,
    path: str | Path,
    metadata: Mapping[str, Any] | None = None,
    *,
    empty: bool = False,
    compress: bool = True,
) -> None:
    """Write a cache to a file; a file of that name is replaced once the new one is complete.

    Args:
        cache: a cache made with :meth:`KVMMCache.for_model` that holds tokens, packed or not.
        path: the file.
        metadata: what you need to go on, such as the token ids or the model's ``rope_deltas``: JSON values and tensors,
            found again in ``cache.metadata``. Added to the metadata that the cache has already.
        empty: also write a cache without tokens.
        compress: entropy-code the codes of pages where a C compiler is found, which takes time: about a second for 20
            million of them on one core; and floats of 16 bits and small tensors, with zlib.

    Raises:
        KVMMError: if the cache is empty and may not be, its model is gone, a layer is of a kind that no file holds, a
            metadata value is neither JSON nor a tensor, or the file cannot be written.
    """
    path = Path(path)
    if cache.model is None:
        raise KVMMError("Only a cache made with KVMMCache.for_model, of a model that still exists, can be saved.")
    if cache.table.modality is None and not empty:
        raise KVMMError("The cache is empty: run the model with it before saving it.")
    tensors, table = _table_state(cache)
    layers = []
    for index, layer in enumerate(cache.layers):
        state, found = _layer_state(layer, index)
        layers.append(state)
        tensors |= {f"layer.{index}.{name}": tensor for name, tensor in found.items()}
    coded = encode_floats(encode_codes(cache, tensors)) if compress else tensors
    version = FORMAT_VERSION
    if coded.keys() != tensors.keys():
        coded, version = encode_bundle(coded), BUNDLE_VERSION
    values, tensors = {**cache.metadata, **(metadata or {})}, coded
    tensors |= {f"metadata.{name}": value for name, value in values.items() if isinstance(value, torch.Tensor)}
    state = {
        "policy": cache.policy.to_dict(),
        "calibration": calibration_digest(cache.calibration),
        "dtype": str(cache.model.dtype).removeprefix("torch."),
        "table": table,
        "layers": layers,
        "retention": None if cache.retention is None else {n: getattr(cache.retention, n) for n in _RETENTION},
        "metadata": _plain({n: v for n, v in values.items() if not isinstance(v, torch.Tensor)}),
    }
    # clones: safetensors refuses tensors that share memory
    plain = torch.contiguous_format
    tensors = {name: tensor.detach().to("cpu").clone(memory_format=plain) for name, tensor in tensors.items()}
    text = json.dumps(state)
    if len(text) > MAX_CHARACTERS:
        raise KVMMError(f"The metadata has {len(text) >> 20} MiB and may have {MAX_CHARACTERS >> 20}: save less of it.")
    header = {
        "format": FORMAT,
        "format_version": str(version),
        "fingerprint": model_fingerprint(cache.model),
        "checksum": _checksum(text, tensors),
        "state": text,
    }
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        save_file(tensors, unfinished, header)
        os.replace(unfinished, path)
    except (OSError, SafetensorError) as error:
        raise KVMMError(f"Cannot write {path}: {error}") from None
    finally:
        unfinished.unlink(missing_ok=True)


def load_cache(
    path: str | Path,
    model: nn.Module,
    prepare: Callable[[nn.Module, KVPolicy, Calibration | None], Loaded],
    *,
    calibration: str | Path | None = None,
) -> Loaded:
    """Read a cache that :func:`save_cache` wrote; generation goes on where it stopped.

    Args:
        path: the file.
        model: the same model, on any device, in the same dtype.
        prepare: makes an empty cache for a model, a policy and its calibration.
        calibration: the calibration file the cache was packed with, if it is no longer where it was.

    Raises:
        KVMMError: if the file is missing, damaged, no cache, of another format version, or belongs to another model,
            dtype or calibration.
    """
    path = Path(path)
    model = generating_model(model)
    header, tensors = _read(path)
    if header.get("fingerprint") != model_fingerprint(model):
        raise OtherModelError(f"{path} was written by another model; load the model that filled this cache.")
    text = header.get("state", "")
    if header.get("checksum") != _checksum(text, tensors):
        raise KVMMError(f"{path} is damaged (its checksum differs); save the cache again.")
    state = parse_json(text, str(path))
    try:
        return _rebuilt(path, model, prepare, state, tensors, calibration)
    except _Damaged as error:
        raise KVMMError(f"{path} does not hold a whole cache ({one_line(error)}); save it again.") from None
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, OverflowError, RuntimeError) as error:
        if isinstance(error, KVMMError):
            raise
        raise KVMMError(f"{path} does not hold a whole cache ({one_line(repr(error))}); save it again.") from None


class OtherModelError(KVMMError):
    """The file is of another model than the one it is read with."""


class _Damaged(Exception):
    """A field of the file is not what it must be; the message names it."""


@contextmanager
def _checking(where: str) -> Iterator[None]:
    """Errors of the checks inside begin with where the field is, and are damages of the file."""
    try:
        yield
    except (KVMMError, _Damaged) as error:
        raise _Damaged(f"{where}{error}") from None


def _rebuilt(
    path: Path,
    model: nn.Module,
    prepare: Callable[[nn.Module, KVPolicy, Calibration | None], Loaded],
    state: dict[str, Any],
    tensors: Tensors,
    calibration: str | Path | None,
) -> Loaded:
    dtype = str(model.dtype).removeprefix("torch.")
    if state["dtype"] != dtype:
        written = one_line(state["dtype"])
        raise KVMMError(f"{path} was written in {written} and this model is in {dtype}; load it in the same.")
    try:
        policy = KVPolicy.from_dict(state["policy"])
    except KVMMError as error:
        raise KVMMError(f"{path} needs a policy that this kvmm does not have: {one_line(error)}") from None
    if "exact_dtype" not in state["policy"]:  # written before there was this setting: in the model's dtype
        policy = replace(policy, exact_dtype="model")
    if calibration is not None:
        policy = replace(policy, calibration=str(calibration))
    fitted = None
    if state["calibration"] is not None:
        fitted = load_calibration(model, policy)
        if calibration_digest(fitted) != state["calibration"]:
            raise KVMMError(f"{path} was packed with another calibration file; pass it as calibration=.")
    cache = prepare(model, policy, fitted)
    with _checking(""):
        tensors = decode_floats(decode_bundle(tensors))
    _check_names(tensors, len(cache.layers))
    # a table beside static buffers lies in host memory
    device = model.device if cache.table.static is None else torch.device("cpu")
    with _checking("table."):
        table = _prefixed(tensors, "table.", device)
        entry = None if policy.budget is None else policy.retention.entry_tokens
        file_checks.check_table(state["table"], table, policy.num_sink_tokens, entry)
    _restore_table(cache, state["table"], table)
    if not isinstance(state["layers"], list) or len(state["layers"]) != len(cache.layers):
        raise _Damaged(f"layers: must be {len(cache.layers)}")
    shapes, like = file_checks.layer_shapes(model), _prefixed(tensors, "like.", torch.device("cpu"))
    for index, layer in enumerate(cache.layers):
        shape = shapes.get(index, HeadShape())
        with _checking(f"layer.{index}."):
            found = _prefixed(tensors, f"layer.{index}.", model.device)
            _restore_layer(layer, state["layers"][index], found, cache.table, shape, like)
    if cache.retention is not None:
        with _checking("retention."):
            file_checks.check_retention(state["retention"])
        for name in _RETENTION:
            setattr(cache.retention, name, state["retention"][name])
        cache.retention.pins = [tuple(span) for span in cache.retention.pins]
    cache._changed()  # buffers in place get their space
    cache.metadata = {**state["metadata"], **_prefixed(tensors, "metadata.", model.device)}
    return cache


def _read(path: Path) -> tuple[dict[str, str], Tensors]:
    if not path.is_file():
        raise KVMMError(f"There is no cache file {path}.")

    def check(header: dict[str, str]) -> None:
        if header.get("format") != FORMAT:
            raise KVMMError(f"{path} is not a saved cache; name a file that cache.save wrote.")
        if header.get("format_version") not in map(str, _VERSIONS):
            raise KVMMError(
                f"{path} has cache format {one_line(header.get('format_version', ''))} and this kvmm reads "
                f"{FORMAT_VERSION} to {BUNDLE_VERSION}; read it with the kvmm that wrote it."
            )

    return read_tensor_file(path, "save the cache again.", check)


def _check_names(tensors: Tensors, layers: int) -> None:
    """Every tensor belongs to the table, to a layer or to the metadata."""
    numbers = {str(index) for index in range(layers)}
    for name in tensors:
        kind, _, rest = name.partition(".")
        if kind not in ("table", "metadata", "like") and not (kind == "layer" and rest.partition(".")[0] in numbers):
            raise _Damaged(f"{name}: no such tensor belongs here")


def _checksum(text: str, tensors: Tensors) -> str:
    checksum = zlib.crc32(text.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        checksum = zlib.crc32(f"{name} {tensor.dtype} {list(tensor.shape)}".encode(), checksum)
        checksum = zlib.crc32(tensor.flatten().view(torch.uint8).numpy(), checksum)
    return f"{checksum:08x}"


def calibration_digest(calibration: Calibration | None) -> str | None:
    return None if calibration is None else _checksum(calibration.fingerprint, dict(calibration.tensors))


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    for name, value in values.items():
        try:
            json.dumps(value)
        except (TypeError, ValueError):
            raise KVMMError(f"metadata {name!r} is neither a tensor nor a JSON value.") from None
    return values


def _prefixed(tensors: Tensors, prefix: str, device: torch.device) -> Tensors:
    return {name.removeprefix(prefix): t.to(device) for name, t in tensors.items() if name.startswith(prefix)}


# -- the parts of a cache ---------------------------------------------------------------------------------------------


def _table_state(cache: CacheState) -> tuple[Tensors, dict[str, Any]]:
    table = cache.table
    tensors = {}
    if table.modality is not None:
        tensors = {"table.modality": table.modality[:, : table.length], "table.dense": table.dense}
    tensors |= {f"table.{modality}": positions for modality, positions in table.stores.items()}
    values = {"length": table.length, "num_sinks": table.num_sinks, "packed": table.packed}
    return tensors, {**values, "page_sizes": {str(m): size for m, size in table.page_sizes.items()}}


def _restore_table(cache: CacheState, values: dict[str, Any], tensors: Tensors) -> None:
    table = cache.table
    table.length, table.num_sinks, table.packed = values["length"], values["num_sinks"], values["packed"]
    if table.length:
        table.modality, table.dense = tensors["modality"], tensors["dense"]
    table.page_sizes = {int(modality): size for modality, size in values["page_sizes"].items()}
    table.stores = {modality: tensors[str(modality)] for modality in table.page_sizes}
    table.appends = {modality: [positions.shape[1]] for modality, positions in table.stores.items()}
    table.count_text()


def _layer_state(layer: Any, index: int) -> tuple[dict[str, Any], Tensors]:
    if isinstance(layer, KVMMLayer):
        if not layer.is_initialized:
            return {}, {}
        tensors = {
            **dict(zip(("dense_key", "dense_value"), layer.residual.pair, strict=True)),
        }
        tensors |= layer.queries.state()
        parts: dict[str, Any] = {}
        for modality, part in layer.parts.items():
            for side, store in (("key", part.key), ("value", part.value)):
                found, values = store.state()
                tensors |= {f"{modality}.{side}.{name}": tensor for name, tensor in found.items()}
                parts.setdefault(str(modality), {})[side] = values
        dtype = str(layer.dtype).removeprefix("torch.")
        return {"seen": layer.seen, "packed": layer.packed, "dtype": dtype, "parts": parts}, tensors
    if type(layer) is DynamicSlidingWindowLayer:
        if not layer.is_initialized:
            return {}, {}
        return {"seen": layer.cumulative_length}, {"keys": layer.keys, "values": layer.values}
    if isinstance(layer, _HOLDS_NOTHING):
        return {}, {}
    raise KVMMError(f"Layer {index} is a {type(layer).__name__}, which is not kept in a file.")


def _restore_layer(
    layer: Any, values: dict[str, Any], tensors: Tensors, table: TokenTable, shape: HeadShape, like: Tensors
) -> None:
    """Check what a file has of a layer, then take it."""
    if not table.length or isinstance(layer, _HOLDS_NOTHING):
        if values or tensors:
            raise KVMMError("dense_key: a cache without tokens, or a layer that holds none, has none")
        return
    if not isinstance(layer, KVMMLayer):
        file_checks.check_window(values, tensors, table, shape, layer.sliding_window)
        layer.lazy_initialization(tensors["keys"], tensors["values"])
        layer.keys, layer.values, layer.cumulative_length = tensors["keys"], tensors["values"], values["seen"]
        return
    exact = partial(exact_dtype, layer.policy.exact_dtype)
    dtype, shapes = file_checks.check_layer(values, tensors, table, shape, exact, layer.retains)
    file_checks.check_parts(values, table)
    key, value = tensors["dense_key"], tensors["dense_value"]
    layer.restore(key, value, dtype, values["seen"], values["packed"])
    layer.queries.restore(tensors)
    for modality, sides in sorted((int(m), sides) for m, sides in values["parts"].items()):
        size = table.page_sizes[modality]
        pages = table.stores[modality].shape[1] // size
        part = layer.segments.new_part(modality, size)
        for side, store, of_side in zip(("key", "value"), part.stores, shapes, strict=True):
            prefix = f"{modality}.{side}."
            found = {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}
            with _checking(prefix):
                if STREAMS in found and str(modality) in like:
                    sizes = (of_side.batch, of_side.heads, pages * size, of_side.dim)
                    found = decode_codes(store, sizes, found, like[str(modality)])
                file_checks.check_store(store, replace(of_side, pages=pages, page_size=size), found, sides[side])
            store.restore(found, sides[side])
        layer.segments.add(modality, part)
