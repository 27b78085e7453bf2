"""Training with the keys and values that a packed cache holds, so that answers survive codes of few bits.

A page or a recording is read exactly, then packed, and what is asked about it reads the codes (:mod:`kvmm.cache`).
Steps do the same: a branch reads its shared prefix as :mod:`kvmm.codecs.rd` would give it back, while the prefix
reads itself exactly. Tokens of pages and recordings are coded; text of a prompt, which is short there, is not.
Transforms and bits are those of a calibration file and stay as they are. Levels are the file's, too, where a cache
fits them to each prompt, and the last tokens of a prefix are coded with the others, so that a step reads somewhat
coarser codes than a cache has.

Gradients pass codes as if they were exact (the straight-through estimator of :mod:`training.rounding`), except for
channels without bits, which are constants.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from kvmm.calibration import Calibration, read_calibration
from kvmm.codecs.rd import RD
from kvmm.codecs.rd.levels import gaussian_levels
from kvmm.codecs.spec import CodecSpec, Side, Site
from kvmm.modality_codes import AUDIO, IMAGE
from training.model_config import AUDIO_TOKEN, IMAGE_TOKEN, PREFIX

PLACEHOLDERS = {IMAGE: IMAGE_TOKEN, AUDIO: AUDIO_TOKEN}
OUTLIERS = 0.5 / 128  # share of tokens that stay exact, as in the presets of `rd`
REACH = 3.0  # deviations beyond which a key counts as an outlier, as in `kvmm.codecs.rd.clipped`


class CodedSite:
    """What `rd` keeps of one layer's keys or values of one modality, all heads.

    Args:
        calibration: of the model. layer, side, modality: which site. bits: average a channel over the whole model.
    """

    def __init__(
        self, calibration: Calibration, layer: int, side: Side, modality: int, bits: float, device: torch.device
    ) -> None:
        spec = CodecSpec("rd", bits)
        codec = RD(spec, side, Site(layer, modality, calibration, spec))
        dim = calibration.site("rd", layer, side, modality)["transform"].shape[-1]
        transform = codec.transform(dim, torch.device("cpu"))
        layout = codec.layout(dim, transform)
        scale, zero_point = gaussian_levels(layout, transform.deviation, torch.float32)
        self.forward, self.inverse = (m.to(device) for m in (transform.forward, transform.inverse))
        self.norm = codec.uses_norm(transform)
        scales = torch.ones(scale.shape[1], dim)
        scales[:, : layout.coded] = scale[0, :, 0]
        rows = transform.offset, scales, zero_point[0, :, 0], REACH * transform.deviation
        self.offset, self.scale, self.zero_point, self.reach = (row.float().to(device)[:, None] for row in rows)
        self.highest, self.coded = layout.levels(torch.device("cpu")).to(device), (layout.bits > 0).to(device)

    def read(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """What the codes of vectors give back.

        Args:
            x: `[T, H, D]`, keys after RoPE or values.

        Returns:
            the same in float32 from codes, `[T, H, D]`, and how far each vector lies beyond the levels, `[T, H]`.
        """
        y = x.float().transpose(0, 1)
        if self.norm:
            length = torch.linalg.vector_norm(y, dim=-1, keepdim=True).clamp_min(1e-6)
            y = y / length
        z = y @ self.forward.transpose(1, 2) - self.offset
        with torch.no_grad():
            beyond = (z.abs() - self.reach).clamp_min(0).square().sum(-1)
            codes = torch.minimum(((z - self.zero_point) / self.scale).round().clamp_min(0), self.highest)
            error = self.zero_point + codes * self.scale - z
        back = (torch.where(self.coded, z + error, 0) + self.offset) @ self.inverse.transpose(1, 2)
        return (back * length if self.norm else back).transpose(0, 1), beyond.T


@dataclass(frozen=True)
class CodedLayer:
    """The prefix of one layer as its branches read it.

    Attributes:
        reads: bool `[T, 1]`, rows that read codes.
        sites: of every modality that is packed, bool `[T]`, its tokens, and the sites of keys and of values.
    """

    reads: Tensor
    sites: Sequence[tuple[Tensor, CodedSite, CodedSite]]

    def held(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values with the prefix from codes, `[T, H, D]`; tokens whose keys are outliers stay exact."""
        for tokens, key, value in self.sites:
            (coded_k, beyond), (coded_v, _) = key.read(k), value.read(v)
            beyond = beyond.masked_fill(~tokens[:, None], -1)
            exact = beyond.topk(max(round(len(k) * OUTLIERS), 1), dim=0).indices
            coded = tokens[:, None].expand_as(beyond).scatter(0, exact, False)[..., None]
            k, v = torch.where(coded, coded_k.to(k.dtype), k), torch.where(coded, coded_v.to(v.dtype), v)
        return k, v


class PackedPrefix:
    """Codes of a whole model's prefixes.

    Args:
        file: a calibration file of the model with `rd`. layers: of its text tower. bits: average a channel.

    Raises:
        KVMMError: the file cannot be read. ValueError: it lacks `rd` for a layer.
    """

    def __init__(self, file: Path, layers: int, bits: float, device: torch.device) -> None:
        calibration = read_calibration(file)
        self.sites: list[dict[int, tuple[CodedSite, CodedSite]]] = []
        for layer in range(layers):
            pairs = {}
            for modality in PLACEHOLDERS:
                if not all(calibration.site("rd", layer, side, modality) for side in ("key", "value")):
                    raise ValueError(f"{file} has no transform of rd for layer {layer}")
                key, value = (CodedSite(calibration, layer, s, modality, bits, device) for s in ("key", "value"))
                pairs[modality] = key, value
            self.sites.append(pairs)

    def layers(self, ids: Tensor, seg: Tensor, modalities: Sequence[int]) -> list[CodedLayer]:
        """How the layers' branches read a step.

        Args:
            ids, seg: `[B, S]`. modalities: of media in the step.
        """
        prefix = (seg == PREFIX).flatten()
        tokens = {m: (ids == PLACEHOLDERS[m]).flatten() for m in modalities}
        return [CodedLayer(~prefix[:, None], [(t, *site[m]) for m, t in tokens.items()]) for site in self.sites]
