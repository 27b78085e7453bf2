"""Calibration files: what was fitted to one model offline, for the codecs that use it.

A file is safetensors with JSON metadata. Tensors are named ``<codec>.<layer>.<side>.<modality>.<name>``; a codec reads
those of its own name. The file carries the fingerprint of the model it was fitted to and is refused by any other.
"""

from __future__ import annotations

import hashlib
import json
import re
import warnings
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from weakref import WeakKeyDictionary

import torch
from torch import nn

from kvmm.bounded_json import parse_json
from kvmm.calibration.data import FORMAT, FORMAT_VERSION, Calibration
from kvmm.calibration.heads import HeadShape, head_shapes, layer_configs, local_heads, num_layers
from kvmm.codecs.registry import codec_class, codec_names
from kvmm.errors import KVMMError, one_line
from kvmm.generating_model import generating_model
from kvmm.modality import MODALITY_NAMES
from kvmm.tensor_file import read_tensor_file

_NAME = re.compile(rf"\w+\.\d{{1,5}}\.(key|value)\.({'|'.join(MODALITY_NAMES)})\.[\w.-]+")
_fingerprints: WeakKeyDictionary[nn.Module, str] = WeakKeyDictionary()
FILE_NAME = "kvmm_calibration.safetensors"  # in a model's folder, found without being asked for


def read_calibration(path: str | Path) -> Calibration:
    """Read a calibration file; one that was read before and has not changed is the same object.

    Raises:
        KVMMError: if it is missing, damaged, no calibration or of another format version.
    """
    path = Path(path)
    if not path.is_file():
        raise KVMMError(f"No calibration file {path}; make one with: python -m kvmm calibrate --out {path}")
    return _read(path, path.stat().st_mtime_ns)


@lru_cache(maxsize=8)
def _read(path: Path, _: int) -> Calibration:
    def check(header: dict[str, str]) -> None:
        if header.get("format") != FORMAT:
            raise KVMMError(f"{path} is not a calibration file; name one that `kvmm calibrate` wrote.")
        if header.get("format_version") != str(FORMAT_VERSION):
            raise KVMMError(
                f"{path} has calibration format {one_line(header.get('format_version', ''))}, this kvmm reads "
                f"{FORMAT_VERSION}; run `kvmm calibrate` again."
            )

    header, tensors = read_tensor_file(path, "make it again.", check)
    metadata = parse_json(header.get("metadata", "{}"), str(path))
    try:
        if not isinstance(metadata, dict) or not header.get("fingerprint"):
            raise KVMMError("fingerprint or metadata: is missing or of the wrong kind")
        calibration = Calibration(header["fingerprint"], tensors, metadata)
        _check(calibration)
    except KVMMError as error:
        raise KVMMError(f"{path} is no whole calibration file ({one_line(error)}); make it again.") from None
    return calibration


def _check(calibration: Calibration, shapes: Mapping[int, HeadShape] | None = None, layers: int = 0) -> None:
    """Compare names, tensors and numbers with what codecs declare of them.

    Args:
        calibration: what a file holds.
        shapes: heads and channels by layer, where the model is known; for layers left out any size will do.
        layers: how many the model has.

    Raises:
        KVMMError: with the name of what is wrong.
    """
    for name in calibration.tensors:
        if not _NAME.fullmatch(name):
            raise KVMMError(f"{name!r}: is no name of the form codec.layer.side.modality.tensor")
    for name in codec_names():
        codec_class(name).check_metadata(calibration.metadata)
    for site, tensors in calibration._by_site.items():
        codec, layer, side, *_ = site.split(".")
        if codec not in codec_names():
            continue
        heads, dim = "heads", "channels"
        if shapes is not None:
            if int(layer) >= layers:
                raise KVMMError(f"{site}: the model has no such layer")
            if shape := shapes.get(int(layer)):
                heads, dim = shape.heads, shape.key_dim if side == "key" else shape.value_dim
        codec_class(codec).check_fit(tensors, side, heads, dim, site)


@lru_cache(maxsize=8)
def _check_for(calibration: Calibration, shapes: tuple[tuple[int, HeadShape], ...], layers: int) -> None:
    _check(calibration, dict(shapes), layers)


def model_fingerprint(model: nn.Module) -> str:
    """What identifies a model's decoder: a SHA-256 over its geometry and a sample of its weights.

    Device and dtype do not enter, so a file made in float32 on a CPU serves the same model in bfloat16 on a GPU.
    """
    model = generating_model(model)
    if model in _fingerprints:
        return _fingerprints[model]
    config = model.config.get_text_config(decoder=True)
    digest = hashlib.sha256()
    geometry = ("model_type", "num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads")
    layers = layer_configs(config)
    values = [list(dict.fromkeys(str(getattr(layer, name, None)) for layer in layers)) for name in geometry]
    # a value that all layers share stands alone, as files of models without values by layer have it
    digest.update(json.dumps([one[0] if len(one) == 1 else one for one in values]).encode())
    for name, weight in sorted(model.named_parameters()):
        if name.endswith(("k_proj.weight", "v_proj.weight", "qkv_proj.weight")) and weight.is_floating_point():
            if hasattr(weight, "full_tensor"):  # a DTensor, split over processes, which all come here
                weight = weight.full_tensor()
            flat = weight.detach().flatten()
            sample = flat[:: max(1, flat.numel() // 64)][:64].to("cpu", torch.float32).to(torch.bfloat16)
            digest.update(name.rpartition("layers.")[2].encode() + sample.view(torch.int16).numpy().tobytes())
    return _fingerprints.setdefault(model, digest.hexdigest())


@lru_cache(maxsize=32)
def _of_heads(calibration: Calibration, heads: tuple[int, int]) -> Calibration:
    return replace(calibration, heads=heads)


def forget_fingerprint(model: nn.Module) -> None:
    """Weights have changed: the next :func:`model_fingerprint` reads them again."""
    _fingerprints.pop(generating_model(model), None)


def calibration_of(model: nn.Module, path: str | None = None) -> Calibration | None:
    """The calibration of a model: the file at ``path``, else the one in the model's folder, else None.

    Raises:
        KVMMError: if the file is damaged, or the one at ``path`` was fitted to another model.
    """
    found = Path(getattr(model, "name_or_path", "") or "") / FILE_NAME
    if path is None and not found.is_file():
        return None
    calibration = read_calibration(path or found)
    if calibration.fingerprint == model_fingerprint(model):
        if shapes := head_shapes(model):
            try:
                _check_for(calibration, tuple(shapes.items()), num_layers(model))
            except KVMMError as error:
                raise KVMMError(f"{path or found} does not fit the model ({one_line(error)}); make it again.") from None
        heads = local_heads(model)
        return calibration if heads is None else _of_heads(calibration, heads)
    other = one_line(str(calibration.metadata.get("model") or "unnamed"))
    message = f"{path or found} was fitted to another model ({other}); run `kvmm calibrate` for this one."
    if path is not None:
        raise KVMMError(message)
    # weights changed since the file was put beside them: nobody asked for it here
    warnings.warn(message, stacklevel=2)
    return None


__all__ = ["FILE_NAME", "calibration_of", "forget_fingerprint", "model_fingerprint", "read_calibration"]
