"""The vision and the audio tower; modules hold the parameters under their checkpoint names."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from training.model_config import CELL, HEAD_DIM, PATCH, ModelConfig
from training.token_functions import (
    attend,
    audio_output,
    audio_qkv,
    fused,
    gated_output,
    merge_patches,
    rotary_qkv,
)


class RMSNorm(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))


class GatedMLP(nn.Module):
    def __init__(self, size: int, intermediate_size: int, bias: bool) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(size, intermediate_size, bias=bias)
        self.up_proj = nn.Linear(size, intermediate_size, bias=bias)
        self.down_proj = nn.Linear(intermediate_size, size, bias=bias)

    def tensors(self) -> list[Tensor | None]:
        return [t for layer in (self.gate_proj, self.up_proj, self.down_proj) for t in (layer.weight, layer.bias)]


class VisionAttention(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.q, self.k, self.v, self.proj = (nn.Linear(size, size) for _ in range(4))


class VisionBlock(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.norm1, self.norm2 = RMSNorm(config.vision_size), RMSNorm(config.vision_size)
        self.attn = VisionAttention(config.vision_size)
        self.mlp = GatedMLP(config.vision_size, config.vision_intermediate_size, bias=True)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, pages: int) -> Tensor:
        a = self.attn
        q, k, v = fused(rotary_qkv)(
            x, cos, sin, self.norm1.weight, a.q.weight, a.q.bias, a.k.weight, a.k.bias, a.v.weight, a.v.bias
        )
        return fused(gated_output)(
            x, attend(q, k, v, pages), a.proj.weight, a.proj.bias, self.norm2.weight, *self.mlp.tensors()
        )


class PatchEmbed(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.proj = nn.Conv3d(3, size, (2, PATCH, PATCH), (2, PATCH, PATCH), bias=False)


class PatchMerger(nn.Module):
    def __init__(self, size: int, out_size: int) -> None:
        super().__init__()
        self.ln_q = RMSNorm(size)
        self.mlp = nn.Sequential(nn.Linear(4 * size, 4 * size), nn.GELU(), nn.Linear(4 * size, out_size))

    def forward(self, x: Tensor) -> Tensor:
        first, last = self.mlp[0], self.mlp[2]
        return fused(merge_patches)(
            x.view(-1, 4, x.shape[-1]), self.ln_q.weight, first.weight, first.bias, last.weight, last.bias
        )


class VisionTower(nn.Module):
    """Pages to merged visual tokens; no layer is windowed, so tokens stay in merge-block raster order throughout."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.patch_embed = PatchEmbed(config.vision_size)
        self.blocks = nn.ModuleList(VisionBlock(config) for _ in range(config.vision_layers))
        self.merger = PatchMerger(config.vision_size, config.hidden_size)
        self._angles: dict[tuple, tuple[Tensor, Tensor]] = {}

    def angles(self, height: int, width: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Cosines and sines `[H * W / 196, 64]` of the axial rotary embedding, patches in merge-block raster order."""
        key = (height, width, device)
        if key not in self._angles:
            rows, columns = height // CELL, width // CELL
            y = torch.arange(rows * 2).view(rows, 1, 2, 1).expand(rows, columns, 2, 2).reshape(-1, 1)
            x = torch.arange(columns * 2).view(1, columns, 1, 2).expand(rows, columns, 2, 2).reshape(-1, 1)
            half = HEAD_DIM // 2
            frequencies = 1.0 / (self.config.vision_rope_theta ** (torch.arange(0, half, 2).float() / half))
            angle = torch.cat([y * frequencies, x * frequencies], -1).repeat(1, 2)
            self._angles[key] = angle.cos().to(device), angle.sin().to(device)
        return self._angles[key]

    def forward(self, pages: Tensor) -> Tensor:
        """Normalised `pages [N, 3, H, W]`, H and W multiples of 28 -> `[N * H * W / 784, hidden_size]`."""
        count, _, height, width = pages.shape
        rows, columns = height // CELL, width // CELL
        patches = (
            pages.view(count, 3, rows, 2, PATCH, columns, 2, PATCH)
            .permute(0, 2, 5, 3, 6, 1, 4, 7)
            .reshape(-1, 3 * PATCH * PATCH)
        )
        # A still image fills both frames of a temporal patch, so the kernel's two temporal slices act as their sum.
        x = F.linear(patches, self.patch_embed.proj.weight.sum(2).flatten(1))
        cos, sin = (t.repeat(count, 1) for t in self.angles(height, width, pages.device))
        for block in self.blocks:
            x = block(x, cos, sin, count)
        return self.merger(x)


class AudioAttention(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.q_proj, self.v_proj, self.out_proj = (nn.Linear(size, size) for _ in range(3))
        self.k_proj = nn.Linear(size, size, bias=False)


class AudioLayer(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        size = config.audio_size
        self.self_attn = AudioAttention(size)
        self.self_attn_layer_norm, self.final_layer_norm = nn.LayerNorm(size), nn.LayerNorm(size)
        self.fc1 = nn.Linear(size, config.audio_intermediate_size)
        self.fc2 = nn.Linear(config.audio_intermediate_size, size)

    def forward(self, x: Tensor, chunks: int) -> Tensor:
        a, first, last = self.self_attn, self.self_attn_layer_norm, self.final_layer_norm
        q, k, v = fused(audio_qkv)(
            x, first.weight, first.bias, a.q_proj.weight, a.q_proj.bias, a.k_proj.weight, a.v_proj.weight, a.v_proj.bias
        )
        return fused(audio_output)(
            x, attend(q, k, v, chunks), a.out_proj.weight, a.out_proj.bias, last.weight, last.bias,
            self.fc1.weight, self.fc1.bias, self.fc2.weight, self.fc2.bias,
        )  # fmt: skip


class AudioTower(nn.Module):
    """Log-mel clips to audio tokens; chunks of `2 * n_window` frames are convolved and attended over independently."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        size = config.audio_size
        self.chunk = 2 * config.n_window
        self.conv1 = nn.Conv1d(config.num_mel_bins, size, 3, padding=1)
        self.conv2 = nn.Conv1d(size, size, 3, stride=2, padding=1)
        self.audio_bos_eos_token = nn.Embedding(
            2, config.hidden_size
        )  # part of the checkpoint, not used by the thinker
        self.layers = nn.ModuleList(AudioLayer(config) for _ in range(config.audio_layers))
        self.ln_post = nn.LayerNorm(size)
        self.proj = nn.Linear(size, config.hidden_size)
        half = size // 2
        frequencies = torch.exp(-math.log(10000.0) / (half - 1) * torch.arange(half).float())
        angle = torch.arange(config.max_source_positions).float()[:, None] * frequencies
        self.register_buffer("positions", torch.cat([angle.sin(), angle.cos()], 1), persistent=False)

    def encode(self, mel: Tensor) -> Tensor:
        """Equal chunks `[C, f, 128]`, f a multiple of 4 -> `[C, f / 2, d]`, before the pooling of neighbours."""
        x = F.gelu(self.conv1(mel.transpose(1, 2)))
        x = F.gelu(self.conv2(x)).transpose(1, 2)
        chunks, length, size = x.shape
        x = (x + self.positions[:length].to(x.dtype)).reshape(-1, size).contiguous()
        for layer in self.layers:
            x = layer(x, chunks)
        return x.view(chunks, length, size)

    def forward(self, mel: Tensor) -> tuple[Tensor, Tensor]:
        """`mel [M, F, 128]`, F a multiple of 4 -> audio tokens `[M * F / 4, hidden_size]` and, for the auxiliary loss,
        the normalised features before pooling `[M, F / 2, d]`.
        """
        clips, frames, bins = mel.shape
        whole = frames // self.chunk * self.chunk
        parts = []
        if whole:
            parts.append(self.encode(mel[:, :whole].reshape(-1, self.chunk, bins)).view(clips, whole // 2, -1))
        if whole < frames:
            parts.append(self.encode(mel[:, whole:]))
        x = torch.cat(parts, 1) if len(parts) > 1 else parts[0]
        pooled = x.view(clips, frames // 4, 2, -1).mean(2)
        return self.proj(self.ln_post(pooled)).flatten(0, 1), self.ln_post(x)
