"""Half-blocks of the towers as functions of tensors, first dimension tokens; each is compiled once."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from training.model_config import HEAD_DIM


def rms_norm(x: Tensor, weight: Tensor, eps: float = 1e-6) -> Tensor:
    y = x.float()
    y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + eps)
    return weight * y.to(x.dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding of `x [T, heads, 64]` by angles `[T, 64]`, computed in float32."""
    y = x.float()
    a, b = y.chunk(2, -1)
    return (y * cos[:, None] + torch.cat((-b, a), -1) * sin[:, None]).to(x.dtype)


def rotary_qkv(x, cos, sin, norm, q_w, q_b, k_w, k_b, v_w, v_b, eps: float = 1e-6) -> tuple[Tensor, Tensor, Tensor]:
    """RMS norm, projections, rotation: `x [T, d]` -> q, k, v `[T, heads, 64]`, k and v repeated for grouped queries."""
    y = rms_norm(x, norm, eps)
    q, k, v = (F.linear(y, w, b).unflatten(-1, (-1, HEAD_DIM)) for w, b in ((q_w, q_b), (k_w, k_b), (v_w, v_b)))
    q, k = rotate(q, cos, sin), rotate(k, cos, sin)
    groups = q_w.shape[0] // k_w.shape[0]
    return q, k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)


def gated_output(x, attended, o_w, o_b, norm, gate_w, gate_b, up_w, up_b, down_w, down_b, eps: float = 1e-6) -> Tensor:
    """Output projection and SwiGLU MLP, both residual: `x [T, d]`, `attended [T, d]` -> `[T, d]`."""
    x = x + F.linear(attended, o_w, o_b)
    y = rms_norm(x, norm, eps)
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
_paused = False


def compile_token_functions(**options) -> None:
    """Routes all towers through `torch.compile`d token functions."""
    torch._dynamo.config.recompile_limit = (
        32  # tensors that happen to be views, or a batch of one, count as cases of their own
    )
    for function in (rotary_qkv, gated_output, audio_qkv, audio_output, merge_patches):
        _compiled[function] = torch.compile(function, dynamic=True, **options)


def use_eager_token_functions() -> None:
    """Undoes `compile_token_functions`."""
    _compiled.clear()


@contextlib.contextmanager
def eager_token_functions() -> Iterator[None]:
    """Within it nothing is compiled: for shapes that come once, such as those of an evaluation."""
    global _paused
    _paused = True
    try:
        yield
    finally:
        _paused = False


def fused(function: Callable) -> Callable:
    return function if _paused else _compiled.get(function, function)


def attend(q: Tensor, k: Tensor, v: Tensor, batch: int, bias: Tensor | None = None) -> Tensor:
    """Attention within each of `batch` rows of equal length L.

    Args:
        q, k, v: `[batch * L, heads, 64]`. bias: additive, broadcastable to `[batch, heads, L, L]`.

    Returns:
        `[batch * L, heads * 64]`.
    """
    q, k, v = (t.view(batch, -1, *t.shape[1:]).transpose(1, 2) for t in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias).transpose(1, 2).reshape(-1, q.shape[1] * HEAD_DIM)
