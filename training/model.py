"""Training form of `Qwen2_5OmniThinkerForConditionalGeneration`: same parameter names, no per-sample loops.

The Hugging Face module walks over images, audio chunks and windows in Python, which is right for inference and slow for
training. Here every tower works on flattened tokens `[T, d]`: the per-token half-blocks are plain functions of tensors,
so `torch.compile` traces each of them once with a dynamic token count and all layers and all batch shapes share the
result; only scaled-dot-product attention in between sees the batch structure.

Names of parameters follow the checkpoint layout of transformers (`visual.*`, `audio_tower.*`, `model.*`, tied
`lm_head`), so the weights load with `from_pretrained`; `tests/training/test_model.py` checks that the logits agree.
`aux_head` and `ctc_head` exist for training only.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

IMAGE_TOKEN, AUDIO_TOKEN = 9, 3
HEAD_DIM = 64  # of all three towers
PATCH, MERGE = 14, 2
CELL = PATCH * MERGE  # pixels a side of one merged visual token
NUM_CHARS = 95  # classes of the auxiliary head: 0 for none, else ord(c) - 32 of a printable ASCII character
NUM_SPOKEN = 29  # classes of the spoken auxiliary head: 0 blank, 1-26 letters, 27 space, 28 apostrophe
CELLS_PER_TOKEN = 8  # 2 x 4 sub-cells of 14 x 7 pixels
AUXILIARY = ("aux_head", "ctc_head")  # parameters that are dropped at export
PREFIX, STANDALONE, PADDING = 0, 254, 255  # values of `seg` with a meaning of their own; others number the branches
MASKED = -3e4  # additive mask; finite, so that a fully masked row stays a number in bf16


@dataclass(frozen=True)
class ModelConfig:
    """Sizes of the three towers; the defaults are the model that ships (19.8M parameters)."""

    vocab_size: int = 2048
    hidden_size: int = 384
    num_layers: int = 8
    num_heads: int = 6
    num_kv_heads: int = 2
    intermediate_size: int = 704
    max_positions: int = 8192
    rope_theta: float = 10000.0
    mrope_section: tuple[int, int, int] = (8, 12, 12)
    rope_time: tuple[float, float] = (
        0.7,
        0.002,
    )  # highest and lowest frequency of the time section, radians a position
    rope_space: tuple[float, float] = (1.0, 0.004)  # the same for the height and width sections
    vision_size: int = 256
    vision_layers: int = 8
    vision_intermediate_size: int = 640
    vision_rope_theta: float = 10000.0
    audio_size: int = 192
    audio_layers: int = 3
    audio_intermediate_size: int = 768
    num_mel_bins: int = 128
    n_window: int = 300
    max_source_positions: int = 1500

    @property
    def rope_factors(self) -> list[float]:
        """Per-frequency divisors for rope type "longrope": `factor_i = theta ** (-i / 32) / target_i`.

        The default frequencies of a three-axis rotary embedding give each axis a different band (time gets only the
        fast ones), far too fast for positions that a page advances by its width. Here each axis has its own geometric
        ladder instead.
        """
        targets: list[float] = []
        for count, (high, low) in zip(
            self.mrope_section, (self.rope_time, self.rope_space, self.rope_space), strict=True
        ):
            targets += [high * (low / high) ** (i / (count - 1)) for i in range(count)]
        half = HEAD_DIM // 2
        return [round(self.rope_theta ** (-i / half) / target, 10) for i, target in enumerate(targets)]

    def inverse_frequencies(self) -> Tensor:
        """Angular frequencies of the text rotary embedding, float32 `[32]`, by the "longrope" formula."""
        exponent = torch.arange(0, HEAD_DIM, 2, dtype=torch.int64).float() / HEAD_DIM
        return 1.0 / (torch.tensor(self.rope_factors, dtype=torch.float32) * self.rope_theta**exponent)


# ---- per-token functions: tensors in, tensors out, first dimension = tokens; compiled once each ----


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    y = x.float()
    y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)
    return weight * y.to(x.dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding of `x [T, heads, 64]` by angles `[T, 64]`, computed in float32."""
    y = x.float()
    a, b = y.chunk(2, -1)
    return (y * cos[:, None] + torch.cat((-b, a), -1) * sin[:, None]).to(x.dtype)


def rotary_qkv(x, cos, sin, norm, q_w, q_b, k_w, k_b, v_w, v_b) -> tuple[Tensor, Tensor, Tensor]:
    """RMS norm, projections, rotation: `x [T, d]` -> q, k, v `[T, heads, 64]`, k and v repeated for grouped queries."""
    y = rms_norm(x, norm)
    q, k, v = (F.linear(y, w, b).unflatten(-1, (-1, HEAD_DIM)) for w, b in ((q_w, q_b), (k_w, k_b), (v_w, v_b)))
    q, k = rotate(q, cos, sin), rotate(k, cos, sin)
    groups = q_w.shape[0] // k_w.shape[0]
    return q, k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)


def gated_output(x, attended, o_w, o_b, norm, gate_w, gate_b, up_w, up_b, down_w, down_b) -> Tensor:
    """Output projection and SwiGLU MLP, both residual: `x [T, d]`, `attended [T, d]` -> `[T, d]`."""
    x = x + F.linear(attended, o_w, o_b)
    y = rms_norm(x, norm)
    return x + F.linear(F.silu(F.linear(y, gate_w, gate_b)) * F.linear(y, up_w, up_b), down_w, down_b)


def audio_qkv(x, norm_w, norm_b, q_w, q_b, k_w, v_w, v_b) -> tuple[Tensor, Tensor, Tensor]:
    """Layer norm and projections: `x [T, d]` -> q, k, v `[T, heads, 64]`."""
    y = F.layer_norm(x, x.shape[-1:], norm_w, norm_b)
    q, k, v = F.linear(y, q_w, q_b), F.linear(y, k_w), F.linear(y, v_w, v_b)
    return tuple(t.unflatten(-1, (-1, HEAD_DIM)) for t in (q, k, v))


def audio_output(x, attended, o_w, o_b, norm_w, norm_b, fc1_w, fc1_b, fc2_w, fc2_b) -> Tensor:
    """Output projection and GELU MLP, both residual: `[T, d]` -> `[T, d]`."""
    x = x + F.linear(attended, o_w, o_b)
    y = F.layer_norm(x, x.shape[-1:], norm_w, norm_b)
    return x + F.linear(F.gelu(F.linear(y, fc1_w, fc1_b)), fc2_w, fc2_b)


def merge_patches(x, norm, w1, b1, w2, b2) -> Tensor:
    """Joins the four patches of a merge block: `x [T, 4, d_vision]` -> `[T, d_text]`."""
    y = rms_norm(x, norm).flatten(1)
    return F.linear(F.gelu(F.linear(y, w1, b1)), w2, b2)


_compiled: dict[Callable, Callable] = {}


def compile_token_functions(**options) -> None:
    """Routes the training path through `torch.compile`d token functions; evaluation (no gradients) stays eager."""
    torch._dynamo.config.recompile_limit = (
        32  # tensors that happen to be views, or a batch of one, count as cases of their own
    )
    for function in (rotary_qkv, gated_output, audio_qkv, audio_output, merge_patches):
        _compiled[function] = torch.compile(function, dynamic=True, **options)


def use_eager_token_functions() -> None:
    """Undoes `compile_token_functions`."""
    _compiled.clear()


def fused(function: Callable) -> Callable:
    return _compiled.get(function, function) if torch.is_grad_enabled() else function


def attend(q: Tensor, k: Tensor, v: Tensor, batch: int, bias: Tensor | None = None) -> Tensor:
    """Attention within each of `batch` rows of equal length L.

    Args:
        q, k, v: `[batch * L, heads, 64]`. bias: additive, broadcastable to `[batch, heads, L, L]`.

    Returns:
        `[batch * L, heads * 64]`.
    """
    q, k, v = (t.view(batch, -1, *t.shape[1:]).transpose(1, 2) for t in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias).transpose(1, 2).reshape(-1, q.shape[1] * HEAD_DIM)


# ---- modules: they hold the parameters under their checkpoint names ----


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


class TextAttention(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        size, q_size, kv_size = config.hidden_size, config.num_heads * HEAD_DIM, config.num_kv_heads * HEAD_DIM
        self.q_proj = nn.Linear(size, q_size)
        self.k_proj, self.v_proj = nn.Linear(size, kv_size), nn.Linear(size, kv_size)
        self.o_proj = nn.Linear(q_size, size, bias=False)


class TextLayer(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.self_attn = TextAttention(config)
        self.mlp = GatedMLP(config.hidden_size, config.intermediate_size, bias=False)
        self.input_layernorm, self.post_attention_layernorm = RMSNorm(config.hidden_size), RMSNorm(config.hidden_size)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, rows: int, bias: Tensor) -> Tensor:
        a = self.self_attn
        q, k, v = fused(rotary_qkv)(
            x, cos, sin, self.input_layernorm.weight,
            a.q_proj.weight, a.q_proj.bias, a.k_proj.weight, a.k_proj.bias, a.v_proj.weight, a.v_proj.bias,
        )  # fmt: skip
        attended = attend(q, k, v, rows, bias)
        return fused(gated_output)(
            x, attended, a.o_proj.weight, None, self.post_attention_layernorm.weight, *self.mlp.tensors()
        )


class TextModel(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(TextLayer(config) for _ in range(config.num_layers))
        self.norm = RMSNorm(config.hidden_size)


def attention_bias(seg: Tensor, dtype: torch.dtype) -> Tensor:
    """Additive mask `[B, 1, S, S]` of packed branches from `seg uint8 [B, S]`.

    Causal; a token sees its own segment, and the shared prefix (0) unless it is standalone (254) or padding (255).
    """
    key, query = seg[:, None, :], seg[:, :, None]
    visible = (key == query) | ((key == PREFIX) & (query < STANDALONE))
    visible &= torch.ones(seg.shape[1], seg.shape[1], dtype=torch.bool, device=seg.device).tril()
    return torch.zeros((), dtype=dtype, device=seg.device).masked_fill(~visible, MASKED)[:, None]


class OmniModel(nn.Module):
    """The thinker (vision, audio, text) and two auxiliary heads that read characters, one of pages, one of speech."""

    def __init__(self, config: ModelConfig | None = None) -> None:
        super().__init__()
        self.config = config = config or ModelConfig()
        self.visual = VisionTower(config)
        self.audio_tower = AudioTower(config)
        self.model = TextModel(config)
        self.aux_head = nn.Linear(config.hidden_size, CELLS_PER_TOKEN * NUM_CHARS)
        self.ctc_head = nn.Linear(config.audio_size, NUM_SPOKEN)
        self.register_buffer("inv_freq", config.inverse_frequencies(), persistent=False)
        axis = torch.arange(3).repeat_interleave(torch.tensor(config.mrope_section))
        self.register_buffer("rope_axis", axis, persistent=False)
        self.initialise()

    @torch.no_grad()
    def initialise(self) -> None:
        """Embeddings: std 0.02; matrices: 0.7 / sqrt(fan-in), 0.3 times that where they write to a residual stream."""
        residual = ("o_proj.weight", "down_proj.weight", "out_proj.weight", "fc2.weight", "attn.proj.weight")
        for name, p in self.named_parameters():
            if "embed_tokens" in name or "_head.weight" in name:
                p.normal_(0, 0.02)
            elif p.ndim >= 2:
                p.normal_(0, 0.7 * p[0].numel() ** -0.5 * (0.3 if name.endswith(residual) else 1.0))
            elif name.endswith("bias"):
                p.zero_()

    def export_weights(self) -> dict[str, Tensor]:
        """The checkpoint's tensors by their transformers names: all but the auxiliary heads."""
        return {name: t for name, t in self.state_dict().items() if not name.startswith(AUXILIARY)}

    def hidden_states(
        self, ids: Tensor, pos: Tensor, seg: Tensor,
        visual: Tensor | None = None, image_index: Tensor | None = None,
        audio: Tensor | None = None, audio_index: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        """Text tower before its final norm.

        Args:
            ids: int `[B, S]`. pos: int `[3, B, S]` (time, height, width). seg: uint8 `[B, S]`.
            visual, audio: media embeddings `[n, d]`, placed at the rows `image_index`, `audio_index` (int64 `[n]`) of
                the flattened sequence.

        Returns:
            `[B * S, d]`.
        """
        rows = ids.shape[0]
        x = self.model.embed_tokens(ids.flatten().long())
        for embeddings, index in ((visual, image_index), (audio, audio_index)):
            if embeddings is not None:
                x = x.to(embeddings.dtype).index_copy(0, index, embeddings)
        if torch.is_autocast_enabled(x.device.type):
            x = x.to(torch.get_autocast_dtype(x.device.type))
        angle = (pos.flatten(1)[self.rope_axis].T.float() * self.inv_freq).repeat(1, 2)
        cos, sin = angle.cos(), angle.sin()
        bias = attention_bias(seg, x.dtype)
        for layer in self.model.layers:
            x = layer(x, cos, sin, rows, bias)
        return x

    def logits(self, hidden: Tensor) -> Tensor:
        """Final norm and tied head: `[T, d]` -> `[T, vocab_size]`."""
        return F.linear(rms_norm(hidden, self.model.norm.weight), self.model.embed_tokens.weight)

    def forward(
        self, batch: dict[str, Tensor], pages: Tensor | None, mel: Tensor | None, aux_keep: Tensor | None = None
    ) -> dict[str, Tensor]:
        """Losses of one step.

        Args:
            batch: `ids`, `pos`, `seg`, `image_index`, `audio_index` as in `hidden_states`; `target_index` int64 `[n]`
                (rows whose next token is a target), `target_ids` int64 `[n]`, `target_weight` float `[n]` (0 = filler);
                with pages `chars` uint8 `[N, H / 14, W / 7]`.
            pages: normalised `[N, 3, H, W]` or None. mel: `[M, F, 128]` or None.
            aux_keep: bool `[N]`, False for pages whose pixels no longer match `chars`.

        Returns:
            `loss` (weighted mean over targets), `aux` (0 without pages), and for the log: `ce`, `hit` per target,
            `aux_hits`, `aux_count`.
        """
        visual = None if pages is None else self.visual(pages)
        audio, heard = (None, None) if mel is None else self.audio_tower(mel)
        hidden = self.hidden_states(
            batch["ids"], batch["pos"], batch["seg"], visual, batch.get("image_index"), audio, batch.get("audio_index")
        )
        logits = self.logits(hidden.index_select(0, batch["target_index"])).float()
        weight = batch["target_weight"]
        ce = F.cross_entropy(logits, batch["target_ids"], reduction="none")
        zero = ce.new_zeros(())
        out = dict(loss=(ce * weight).sum() / weight.sum().clamp(min=1), aux=zero, aux_hits=zero, aux_count=zero)
        out.update(ce=ce.detach(), hit=logits.detach().argmax(-1) == batch["target_ids"])
        if visual is not None and "chars" in batch:
            out.update(self.auxiliary_loss(visual, batch["chars"], aux_keep))
        if heard is not None and "spoken" in batch:
            out["aux"] = out["aux"] + self.spoken_loss(heard, batch["spoken"])
        return out

    def spoken_loss(self, features: Tensor, spoken: Tensor) -> Tensor:
        """Connectionist temporal classification of what is said (Graves et al., 2006), a character mean.

        Without it the audio tower learns slowly from answers alone. features `[M, F / 2, d]`; spoken uint8 `[M, L]`,
        classes of `NUM_SPOKEN`, 0 after the end.
        """
        logits = self.ctc_head(features).float().log_softmax(-1).transpose(0, 1)
        lengths = (spoken > 0).sum(1)
        steps = torch.full_like(lengths, features.shape[1])
        return F.ctc_loss(logits, spoken.long(), steps, lengths, zero_infinity=True)

    def auxiliary_loss(self, visual: Tensor, chars: Tensor, keep: Tensor | None) -> dict[str, Tensor]:
        """Characters of the 2 x 4 sub-cells of every merged token; blank cells, by far the most, count 0.15."""
        count, rows, columns = chars.shape
        target = chars.view(count, rows // 2, 2, columns // 4, 4).permute(0, 1, 3, 2, 4).long()
        weight = torch.where(target > 0, 1.0, 0.15)
        if keep is not None:
            weight = weight * keep.view(-1, 1, 1, 1, 1)
        target, weight = target.reshape(-1), weight.reshape(-1)
        logits = self.aux_head(visual).float().view(-1, NUM_CHARS)
        ce = F.cross_entropy(logits, target, reduction="none")
        written = (target > 0) & (weight > 0)
        return dict(
            aux=(ce * weight).sum() / weight.sum().clamp(min=1),
            aux_hits=((logits.detach().argmax(-1) == target) & written).sum(),
            aux_count=written.sum(),
        )
