"""Training with the keys and values that a packed cache holds, so that answers survive codes of few bits.

Where a document is packed before it is asked about (`kvmm.models.documents`), questions and answers read codes of its
page or recording. Steps do the same: a branch reads the media of its shared prefix as :mod:`kvmm.codecs.rd` would give
them back, while the prefix reads itself exactly. Transforms and bits are those of a calibration file and stay as they
are. Two things differ from a cache: levels are those of Gaussians with the deviations of the prompt, which a cache
refines, and text of a prompt, which is short there, stays exact.

Gradients pass codes as if they were exact (the straight-through estimator of :mod:`training.rounding`), except for
channels without bits, which pass none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from kvmm.calibration import Calibration, read_calibration
from kvmm.codecs.base import PAGE_SIZE, EncodeContext
from kvmm.codecs.common.outliers import num_outliers
from kvmm.codecs.rd import RD
from kvmm.codecs.rd.clipped import REACH
from kvmm.codecs.rd.codec import SHORT_SPAN
from kvmm.codecs.spec import CodecSpec, Side, Site
from kvmm.errors import KVMMError
from kvmm.kernels.quantize.reference import gaussian_steps, uniform_codes
from kvmm.modality_codes import AUDIO, IMAGE, MODALITY_NAMES
from kvmm.policy import get_policy
from training.model_config import HEAD_DIM, PREFIX, ModelConfig

MEDIA, SIDES = (IMAGE, AUDIO), ("key", "value")
OUTLIERS: float = get_policy("small").image.key.option("outliers", 0)  # of every 128 tokens of a page, these stay exact


class CodedSite(nn.Module):
    """The codes of one layer's keys or values of one modality.

    Buffers, float32: ``matrix`` and ``inverse`` ``[H_kv, D, D]``, the transform and its inverse; ``offset`` and
    ``deviation`` ``[H_kv, 1, D]``, mean and standard deviation of each channel in the file; ``step`` and ``highest``
    ``[D]``, the distance between the levels of each channel in deviations, and its highest code; ``coded`` bool
    ``[D]``, the channels with bits.

    Args:
        calibration: of the model, with `rd` for this site. layer, side, modality: the site. bits: average a channel
            over the whole model.
    """

    def __init__(self, calibration: Calibration, layer: int, side: Side, modality: int, bits: float) -> None:
        super().__init__()
        spec = CodecSpec("rd", bits, None, (("fit", "offline"),))
        codec = RD(spec, side, Site(layer, modality, calibration, spec))
        transform = codec.transform(HEAD_DIM, torch.device("cpu"))
        layout = codec.layout(HEAD_DIM, transform)
        self.norm = codec.uses_norm(transform)
        half, highest = gaussian_steps(tuple(layout.bits.tolist()), torch.device("cpu"))
        buffers = {
            "matrix": transform.forward,
            "inverse": transform.inverse,
            "offset": transform.offset[:, None],
            "deviation": transform.deviation[:, None],
            "step": 2 * half,
            "highest": highest.clone(),  # shared there
            "coded": layout.bits > 0,
        }
        for name, buffer in buffers.items():
            self.register_buffer(name, buffer, persistent=False)

    def channels(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """Transformed vectors less the offset, float32 `[B, H_kv, n, D]`, and their norms `[B, H_kv, n, 1]` if these
        are divided out.
        """
        x, norm = x.float(), None
        if self.norm:
            norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True).clamp_min(1e-6)
            x = x / norm
        return x @ self.matrix.mT - self.offset, norm

    def levels(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Scale and zero point, `[B or 1, H_kv, 1, D]`, for channels `[B, H_kv, n, D]`: those of a span's own mean and
        deviations, or for a short one those of the file. The zero point of a channel without bits is its mean.
        """
        mean, deviation = torch.zeros_like(self.deviation)[None], self.deviation[None]
        if z.shape[2] > SHORT_SPAN:
            variance, mean = torch.var_mean(z, 2, correction=0, keepdim=True)
            deviation = variance.sqrt()
        scale = self.step * deviation
        return scale, mean - scale * self.highest / 2

    def forward(self, x: Tensor) -> Tensor:
        """Vectors `[B, H_kv, n, D]`, keys after RoPE or values, as their codes give them back: float32, same shape."""
        with torch.autocast(x.device.type, enabled=False):
            z, norm = self.channels(x)
            with torch.no_grad():
                scale, zero_point = self.levels(z)
                read = zero_point + uniform_codes(z, scale, zero_point, self.highest) * scale
            decoded = (torch.where(self.coded, z + (read - z).detach(), read) + self.offset) @ self.inverse.mT
            return decoded if norm is None else decoded * norm

    @torch.no_grad()
    def outliers(self, keys: Tensor) -> Tensor:
        """Of a site of keys, the tokens of each sequence and head that stay exact, bool `[B, H_kv, n]`, as
        :func:`kvmm.codecs.rd.clipped.find_clipped` chooses them among keys `[B, H_kv, n, D]`.
        """
        with torch.autocast(keys.device.type, enabled=False):
            z, _ = self.channels(keys)
            variance, mean = torch.var_mean(z, 2, correction=0, keepdim=True)
            beyond = ((z - mean).abs() - REACH * variance.sqrt()).clamp_min(0).square().sum(-1)
        count = num_outliers(keys.shape[2], OUTLIERS, PAGE_SIZE, EncodeContext())
        return torch.zeros_like(beyond, dtype=torch.bool).scatter(-1, beyond.topk(count, -1).indices, True)


@dataclass(frozen=True)
class CodedLayer:
    """What branches read of one layer.

    Attributes:
        branches: bool `[T, 1]`, the tokens that read codes. sequences: of the step, B.
        sites: of each modality of the step the places of its tokens, int64 `[B * n]`, as many in every sequence, and
            the sites of keys and of values.
    """

    branches: Tensor
    sequences: int
    sites: Sequence[tuple[Tensor, CodedSite, CodedSite]]

    def decoded(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values `[T, H_kv, D]` with those of media from codes; outliers stay exact."""
        for places, key, value in self.sites:
            exact_k, exact_v = (
                x.index_select(0, places).unflatten(0, (self.sequences, -1)).transpose(1, 2) for x in (k, v)
            )
            outliers = key.outliers(exact_k)[..., None]
            k, v = (
                x.index_copy(0, places, torch.where(outliers, e, site(e).to(e.dtype)).transpose(1, 2).flatten(0, 1))
                for x, e, site in ((k, exact_k, key), (v, exact_v, value))
            )
        return k, v


class PackedPrefix(nn.Module):
    """The codes of a whole model; on the CPU until it is moved.

    Args:
        file: a calibration file of the model. config: sizes of the model. bits: average a channel.

    Raises:
        KVMMError: the file cannot be read, is of a model of other sizes or lacks `rd`; or bits that `rd` does not have.
    """

    def __init__(self, file: Path, config: ModelConfig, bits: float) -> None:
        super().__init__()
        calibration = read_calibration(file)
        RD.check(CodecSpec("rd", bits))
        wanted = [(layer, side) for layer in range(config.num_layers) for side in SIDES]
        shape = (config.num_kv_heads, HEAD_DIM, HEAD_DIM)
        for modality in MEDIA:
            found = calibration.sites("rd", modality)
            shapes = {tuple(calibration.site("rd", *site, modality)["transform"].shape) for site in found}
            if found != wanted or shapes != {shape}:
                raise KVMMError(
                    f"{file}: its transforms of rd for {MODALITY_NAMES[modality]} are not those of {config.num_layers} "
                    f"layers with {config.num_kv_heads} heads of {HEAD_DIM}; name the calibration file of this model."
                )
        self.sites = nn.ModuleDict(
            {
                f"{layer} {side} {modality}": CodedSite(calibration, layer, side, modality, bits)
                for layer, side in wanted
                for modality in MEDIA
            }
        )
        self.num_layers = config.num_layers

    def of_step(self, seg: Tensor, places: Mapping[int, Tensor]) -> list[CodedLayer]:
        """What branches read of each layer in a step.

        Args:
            seg: uint8 `[B, S]`, 0 for the prefix. places: of the tokens of each modality of the step in the flattened
                sequences, int64 `[B * n]`.
        """
        branches = (seg != PREFIX).flatten()[:, None]

        def sites(layer: int) -> list[tuple[Tensor, CodedSite, CodedSite]]:
            return [(at, *(self.sites[f"{layer} {side} {m}"] for side in SIDES)) for m, at in places.items()]

        return [CodedLayer(branches, len(seg), sites(layer)) for layer in range(self.num_layers)]
