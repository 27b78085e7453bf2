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
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch
from safetensors.torch import save_file
from torch import nn

from kvmm.bounded_json import parse_json
from kvmm.calibration.heads import HeadShape, head_shapes, layer_configs, local_heads, num_layers
from kvmm.errors import KVMMError, one_line
from kvmm.modality import IMAGE, MODALITY_NAMES, VIDEO
from kvmm.policy import KVPolicy, KVSpec, get_policy
from kvmm.tensor_file import read_tensor_file

FORMAT = "kvmm-calibration"
FORMAT_VERSION = 1
_NAME = re.compile(rf"\w+\.\d{{1,5}}\.(key|value)\.({'|'.join(MODALITY_NAMES)})\.[\w.-]+")
_fingerprints: WeakKeyDictionary[nn.Module, str] = WeakKeyDictionary()
FILE_NAME = "kvmm_calibration.safetensors"  # in a model's folder, found without being asked for


@dataclass(frozen=True, eq=False)
class Calibration:
    """Fitted tensors of one model.

    Attributes:
        fingerprint: :func:`model_fingerprint` of the model.
        tensors: by name, on the CPU.
        metadata: how they were made: model, data, versions.
        heads: the first KV head of this process and the one after its last, where a model is split over several; None
            for all. Tensors are of all heads everywhere, so that all processes give channels the same bits.
    """

    fingerprint: str
    tensors: Mapping[str, torch.Tensor]
    metadata: Mapping[str, Any] = field(default_factory=dict)
    heads: tuple[int, int] | None = None

    def __deepcopy__(self, memo: dict) -> Calibration:
        return self  # immutable, shared by every cache of the model

    def own(self, tensor: torch.Tensor) -> torch.Tensor:
        """The part of a tensor ``[H_kv, ...]`` that belongs to the heads of this process."""
        return tensor if self.heads is None else tensor[self.heads[0] : self.heads[1]]

    def site(self, codec: str, layer: int, side: str, modality: int) -> dict[str, torch.Tensor]:
        """The tensors of one codec for the keys or values of one layer and modality; empty if there are none.

        Frames of a video are images: without a fit of their own they take that of images.
        """
        for kind in (modality, IMAGE) if modality == VIDEO else (modality,):
            if found := self._by_site.get(site_name(codec, layer, side, kind)):
                return dict(found)
        return {}

    def sites(self, codec: str, modality: int) -> list[tuple[int, str]]:
        """``(layer, side)`` of every site that :meth:`site` has tensors for, in order."""
        split = [site.split(".") for site in self._by_site]
        layers = sorted({(int(layer), side) for name, layer, side, *_ in split if name == codec})
        return [pair for pair in layers if self.site(codec, *pair, modality)]

    @cached_property
    def _by_site(self) -> dict[str, dict[str, torch.Tensor]]:
        """The tensors of every site, by :func:`site_name`: each new cache of a model asks for all of them."""
        sites: dict[str, dict[str, torch.Tensor]] = {}
        for name, tensor in self.tensors.items():
            *site, rest = name.split(".", 4)
            sites.setdefault(".".join([*site, ""]), {})[rest] = tensor
        return sites

    def save(self, path: str | Path) -> None:
        """Write the file."""
        header = {"format": FORMAT, "format_version": str(FORMAT_VERSION), "fingerprint": self.fingerprint}
        metadata = header | {"metadata": json.dumps(dict(self.metadata))}
        save_file({name: t.contiguous() for name, t in self.tensors.items()}, path, metadata)

    @classmethod
    def load(cls, path: str | Path) -> Calibration:
        """Read a file.

        Raises:
            KVMMError: if it is missing, damaged, no calibration or of another format version.
        """
        path = Path(path)
        if not path.is_file():
            raise KVMMError(f"No calibration file {path}; make one with: python -m kvmm calibrate --out {path}")
        return _read(path, path.stat().st_mtime_ns)


@dataclass(frozen=True, eq=False)
class SiteSamples:
    """What a calibration run saw of the keys or the values of one layer and modality; codecs fit themselves to it.

    Attributes:
        side: ``key`` or ``value``.
        vectors: float32 ``[H_kv, n, D]``, a sample of the tokens (keys after RoPE).
        mean: float32 ``[H_kv, D]``, of all tokens seen.
        covariance: float32 ``[H_kv, D, D]``, of all tokens seen.
        importance: float32 ``[H_kv, D, D]``: the mean of ``g g^T`` over tokens, with ``g`` the gradient of the answers'
            loss with respect to the token's vector; what an error there costs, in the same unit everywhere. None if no
            gradients were taken.
        query_moment: float32 ``[H_kv, D, D]``, the mean of ``q q^T`` over queries (keys), or the output projection's
            ``W_o^T W_o`` over the head's group (values); None where it is not known.
    """

    side: str
    vectors: torch.Tensor
    mean: torch.Tensor
    covariance: torch.Tensor
    importance: torch.Tensor | None
    query_moment: torch.Tensor | None


def site_name(codec: str, layer: int, side: str, modality: int) -> str:
    """The prefix of a site's tensors in a file."""
    return f"{codec}.{layer}.{side}.{MODALITY_NAMES[modality]}."


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
    from kvmm.cache.codecs import codec_class, codec_names

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
    model = getattr(model, "thinker", model)
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
    _fingerprints.pop(getattr(model, "thinker", model), None)


def load_calibration(model: nn.Module, policy: KVPolicy) -> Calibration | None:
    """The calibration of a policy for a model: the file it names, else the one in the model's folder, else None.

    Raises:
        KVMMError: if the file is damaged, or the one that the policy names was fitted to another model.
    """
    path = policy.calibration
    found = Path(getattr(model, "name_or_path", "") or "") / FILE_NAME
    if path is None and not found.is_file():
        return None
    calibration = Calibration.load(path or found)
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


def without_fit(policy: KVPolicy, calibration: Calibration | None) -> KVPolicy:
    """The policy for a model with this calibration: modalities that their codec was not fitted to are stored as the
    preset ``policy.uncalibrated`` says, in all layers.
    """
    if policy.uncalibrated is None:
        return policy
    other, changes = get_policy(policy.uncalibrated), {}
    for modality, name in enumerate(MODALITY_NAMES):
        kv = getattr(policy, name)
        if any(calibration is None or not calibration.sites(codec, modality) for codec in _fitted_codecs(kv)):
            changes[name] = getattr(other, name)
    return replace(policy, uncalibrated=None, **changes)


def wants_fit(policy: KVPolicy, calibration: Calibration | None) -> bool:
    """Whether some modality's codec is fitted to a model and this calibration (None: there is none) has no fit."""
    return any(
        calibration is None or not calibration.sites(codec, modality)
        for modality, name in enumerate(MODALITY_NAMES)
        for codec in _fitted_codecs(getattr(policy, name))
    )


def _fitted_codecs(kv: KVSpec) -> set[str]:
    from kvmm.cache.codecs import codec_class

    return {one.codec for one in (kv.key, kv.value) if codec_class(one.codec).wants_calibration}


__all__ = [
    "FILE_NAME",
    "Calibration",
    "SiteSamples",
    "forget_fingerprint",
    "load_calibration",
    "model_fingerprint",
    "site_name",
    "wants_fit",
]
