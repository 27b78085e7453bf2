"""What was fitted to one model, and what codecs fit themselves to. Codecs read it, so it knows none of them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from kvmm.modality_codes import IMAGE, MODALITY_NAMES, VIDEO

FORMAT = "kvmm-calibration"
FORMAT_VERSION = 1


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
    def digest(self) -> str:
        """16 hexadecimal digits that tell this fit from any other one of the same model."""
        digest = hashlib.sha256(json.dumps(dict(self.metadata), sort_keys=True, default=str).encode())
        for name, tensor in sorted(self.tensors.items()):
            values = tensor.detach().cpu().contiguous().flatten().view(torch.uint8)
            digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode() + values.numpy().tobytes())
        return digest.hexdigest()[:16]

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

    def to(self, device: torch.device | str) -> SiteSamples:
        """The same samples on ``device``."""
        moved = {f.name: getattr(self, f.name) for f in fields(self)}
        return replace(self, **{name: t.to(device) for name, t in moved.items() if isinstance(t, torch.Tensor)})


def site_name(codec: str, layer: int, side: str, modality: int) -> str:
    """The prefix of a site's tensors in a file."""
    return f"{codec}.{layer}.{side}.{MODALITY_NAMES[modality]}."


__all__ = ["FORMAT", "FORMAT_VERSION", "Calibration", "SiteSamples", "site_name"]
