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

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kvmm.modality_codes import AUDIO, IMAGE
from training.distill import distillation_loss
from training.model_config import (
    AUXILIARY,
    CELLS_PER_TOKEN,
    HEAD_DIM,
    MASKED,
    NUM_CHARS,
    NUM_SPOKEN,
    PREFIX,
    STANDALONE,
    ModelConfig,
)
from training.packed_prefix import CodedLayer, PackedPrefix
from training.token_functions import attend, fused, gated_output, rms_norm, rotary_qkv
from training.towers import AudioTower, GatedMLP, RMSNorm, VisionTower


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
        self.eps = config.rms_norm_eps

    def forward(
        self, x: Tensor, cos: Tensor, sin: Tensor, rows: int, bias: Tensor, coded: CodedLayer | None = None
    ) -> Tensor:
        a = self.self_attn
        q, k, v = fused(rotary_qkv)(
            x, cos, sin, self.input_layernorm.weight,
            a.q_proj.weight, a.q_proj.bias, a.k_proj.weight, a.k_proj.bias, a.v_proj.weight, a.v_proj.bias, self.eps,
        )  # fmt: skip
        attended = attend(q, k, v, rows, bias)
        if coded is not None:
            attended = torch.where(coded.branches, attend(q, *self.decoded(coded, k, v), rows, bias), attended)
        return fused(gated_output)(
            x, attended, a.o_proj.weight, None, self.post_attention_layernorm.weight, *self.mlp.tensors(), self.eps
        )

    def decoded(self, coded: CodedLayer, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values `[T, heads, 64]`, repeated for grouped queries, as their codes give them back."""
        groups = self.self_attn.q_proj.out_features // self.self_attn.k_proj.out_features
        return tuple(x.repeat_interleave(groups, 1) for x in coded.decoded(k[:, ::groups], v[:, ::groups]))


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
        audio: Tensor | None = None, audio_index: Tensor | None = None, packed: PackedPrefix | None = None,
    ) -> Tensor:  # fmt: skip
        """Text tower before its final norm.

        Args:
            ids: int `[B, S]`. pos: int `[3, B, S]` (time, height, width). seg: uint8 `[B, S]`.
            visual, audio: media embeddings `[n, d]`, placed at the rows `image_index`, `audio_index` (int64 `[n]`) of
                the flattened sequence.
            packed: codes from which branches read the media of their prefix; None: they read them exactly.

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
        # recordings beside pages are spoken questions, which stand in branches and are read exactly
        media = ((IMAGE, visual, image_index), (AUDIO, audio if visual is None else None, audio_index))
        places = {modality: index for modality, embeddings, index in media if embeddings is not None}
        layers = packed.of_step(seg, places) if packed is not None else [None] * len(self.model.layers)
        for layer, coded in zip(self.model.layers, layers, strict=True):
            x = layer(x, cos, sin, rows, bias, coded)
        return x

    def logits(self, hidden: Tensor) -> Tensor:
        """Final norm and tied head: `[T, d]` -> `[T, vocab_size]`."""
        hidden = rms_norm(hidden, self.model.norm.weight, self.config.rms_norm_eps)
        return aligned_linear(hidden, self.model.embed_tokens.weight)

    def forward(
        self, batch: dict[str, Tensor], pages: Tensor | None, mel: Tensor | None, aux_keep: Tensor | None = None,
        teacher: Tensor | None = None, packed: PackedPrefix | None = None,
    ) -> dict[str, Tensor]:  # fmt: skip
        """Losses of one step.

        Args:
            batch: `ids`, `pos`, `seg`, `image_index`, `audio_index` as in `hidden_states`; `target_index` int64 `[n]`
                (rows whose next token is a target), `target_ids` int64 `[n]`, `target_weight` float `[n]` (0 = filler);
                with pages `chars` uint8 `[N, H / 14, W / 7]`; `heads_teach` float scalar, the factor of the auxiliary
                heads' gradients that reaches the towers (1 without it).
            pages: normalised `[N, 3, H, W]` or None. mel: `[M, F, 128]` or None.
            aux_keep: bool `[N]`, False for pages whose pixels no longer match `chars`.
            teacher: logits `[n, vocab_size]` at the targets of a model that reads the pages' text; `teacher_weight`
                float `[n]` in the batch says where they count.
            packed: as in `hidden_states`.

        Returns:
            `loss` (weighted mean over targets), `aux` (0 without pages), `distill` (0 without a teacher), and for the
            log: `ce`, `hit` per target, `aux_hits`, `aux_count`.
        """
        visual = None if pages is None else self.visual(pages)
        audio, heard = (None, None) if mel is None else self.audio_tower(mel)
        hidden = self.hidden_states(
            batch["ids"], batch["pos"], batch["seg"], visual, batch.get("image_index"), audio,
            batch.get("audio_index"), packed,
        )  # fmt: skip
        logits = self.logits(hidden.index_select(0, batch["target_index"])).float()
        weight = batch["target_weight"]
        ce = F.cross_entropy(logits, batch["target_ids"], reduction="none")
        zero = ce.new_zeros(())
        out = dict(loss=(ce * weight).sum() / weight.sum().clamp(min=1), aux=zero, aux_hits=zero, aux_count=zero)
        out["distill"] = zero
        if teacher is not None:
            out["distill"] = distillation_loss(logits, teacher, batch["target_ids"], batch["teacher_weight"])
        out.update(ce=ce.detach(), hit=logits.detach().argmax(-1) == batch["target_ids"])
        if visual is not None and "chars" in batch:
            out.update(self.auxiliary_loss(let_through(visual, batch), batch["chars"], aux_keep))
        if heard is not None and "spoken" in batch:
            out["aux"] = out["aux"] + self.spoken_loss(let_through(heard, batch), batch["spoken"])
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


def let_through(features: Tensor, batch: dict[str, Tensor]) -> Tensor:
    """`features` with the batch's `heads_teach` of their gradient."""
    share = batch.get("heads_teach")
    return features if share is None else features.detach() + share * (features - features.detach())


def aligned_linear(x: Tensor, weight: Tensor) -> Tensor:
    """`x @ weight.T`, `[T, d]` and `[V, d]` -> `[T, V]`, with rows whose bytes are a multiple of 128.

    For rows of other sizes cuBLAS has slow kernels: they took 6 % of the GPU's time of an update.
    """
    missing = -len(weight) % 64
    return F.linear(x, F.pad(weight, (0, 0, 0, missing)))[:, : len(weight)] if missing else F.linear(x, weight)
