"""The Hadamard rotation of values, folded into a model's weights.

The rotation of a head's values commutes with attention, so it can be moved into the value projection, and its inverse
into the output projection (QuaRot, arXiv 2404.00456; OScaR, arXiv 2605.19660): ``W_v <- H W_v``,
``b_v <- H b_v`` for every KV head, ``W_o <- W_o H^T`` for every query head. The model computes what it did before, up
to rounding, and a codec need not rotate values (``value_rotation="fused"``). Keys cannot be folded, because RoPE comes
between.

``load_model(..., fuse_values=True)`` does it, and so does ``--fuse-values`` of ``kvmm ask``, ``app``, ``drift``,
``eval`` and ``calibrate``. A policy whose codec leaves ``value_rotation`` open then stores values as they come.

This changes the model: its config says so (``kvmm_value_rotation``, which a saved model keeps), and a calibration file
fitted before is for another model. Caches that hold tokens already must not be used any further.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import nn

from kvmm.calibration import forget_fingerprint
from kvmm.codecs import build_codec, codec_class
from kvmm.errors import KVMMError
from kvmm.generating_model import generating_model
from kvmm.kernels.hadamard import hadamard_matrix
from kvmm.policy import KVPolicy, KVSpec

_FLAG = "kvmm_value_rotation"
_KNOWN = {"q_proj", "k_proj", "v_proj", "o_proj", "q_norm", "k_norm", "rotary_emb"}


def fuse_value_rotation(model: nn.Module) -> None:
    """Rotate the values of every attention layer by weights; a second call does nothing.

    The weights are multiplied in float64 and rounded to their dtype once.

    Args:
        model: a transformers model with separate ``v_proj`` and ``o_proj``, weights in floating point.

    Raises:
        KVMMError: if the weights cannot take the rotation; one line says why. The model is then unchanged.
    """
    _fold(model, fused=True)


def unfuse_value_rotation(model: nn.Module) -> None:
    """Take :func:`fuse_value_rotation` back; does nothing to a model that is not fused.

    Weights return to what they were up to rounding in their dtype.
    """
    _fold(model, fused=False)


def is_fused(config: Any) -> bool:
    """Whether a model's configuration says that its weights rotate its values."""
    return getattr(_text_config(config), _FLAG, None) == "hadamard"


def fit_value_rotation(policy: KVPolicy, config: Any) -> KVPolicy:
    """The policy for a model with this configuration.

    On a model whose weights rotate its values, codecs that can leave the rotation to the weights (option
    ``value_rotation``) do so unless the policy says ``online``.

    Raises:
        KVMMError: if the policy rotates values that the weights rotate, or counts on weights that do not.
    """
    fused = is_fused(config)

    def fit(kv: KVSpec) -> KVSpec:
        value = kv.value
        if value.option("value_rotation") == "fused" and not fused:
            raise KVMMError(
                "value_rotation='fused' needs a model whose weights rotate its values: load it with fuse_values=True "
                "(--fuse-values), or call kvmm.cache.fuse.fuse_value_rotation(model) first."
            )
        if not fused or build_codec(value, "value").transform_id != "hadamard":
            return kv
        if "value_rotation" in codec_class(value.codec).options and value.option("value_rotation") is None:
            options = {**dict(value.options), "value_rotation": "fused"}
            return replace(kv, value=replace(value, options=tuple(sorted(options.items()))))
        raise KVMMError(
            f"The weights of this model rotate its values already, and policy {policy.name!r} would rotate them back: "
            "use codec oscar with value_rotation='fused', leave out fuse_values (--fuse-values), or call "
            "unfuse_value_rotation(model)."
        )

    return policy.map_specs(fit)


def _text_config(config: Any) -> Any:
    config = getattr(config, "thinker_config", None) or config
    return config.get_text_config(decoder=True)


def _fold(model: nn.Module, fused: bool) -> None:
    model = generating_model(model)
    config = _text_config(model.config)
    if is_fused(config) == fused:
        return
    layers = _attention_layers(model)
    for attention, head_dim in layers:
        matrix = hadamard_matrix(head_dim, attention.v_proj.weight.device).double()
        matrix = matrix if fused else matrix.T
        value, output = attention.v_proj, attention.o_proj
        _rewrite(value.weight, lambda w, m=matrix: (m @ w.unflatten(0, (-1, m.shape[0]))).flatten(0, 1))
        if value.bias is not None:
            _rewrite(value.bias, lambda b, m=matrix: (b.unflatten(0, (-1, m.shape[0])) @ m.T).flatten())
        _rewrite(output.weight, lambda w, m=matrix: (w.unflatten(1, (-1, m.shape[0])) @ m.T).flatten(1))
    if fused:
        setattr(config, _FLAG, "hadamard")
    else:
        delattr(config, _FLAG)
    forget_fingerprint(model)


@torch.no_grad()
def _rewrite(parameter: torch.Tensor, change: Any) -> None:
    parameter.copy_(change(parameter.double()))


def _attention_layers(model: nn.Module) -> list[tuple[nn.Module, int]]:
    """The attention modules of the decoder and their head dimensions, all checked."""
    name = type(model).__name__
    decoder = model.get_decoder()
    decoder = getattr(decoder, "language_model", decoder)
    found = []
    for layer in getattr(decoder, "layers", ()):
        attention = getattr(layer, "self_attn", None)
        if attention is None:  # a layer without keys and values
            continue
        children = dict(attention.named_children())
        head_dim = getattr(attention, "head_dim", None)
        projections = [children.get(part) for part in ("q_proj", "v_proj", "o_proj")]
        if head_dim is None or not all(isinstance(part, nn.Linear) for part in projections):
            raise _refused(name, "has no separate linear v_proj and o_proj")
        query, value, output = projections
        # anything else between the two projections (a norm of values, a gate) need not commute with a rotation
        if (
            not set(children) <= _KNOWN
            or value.out_features % head_dim
            or query.out_features != output.in_features
            or output.in_features % head_dim
        ):
            raise _refused(name, "does more with its values than attention")
        if not all(part.weight.is_floating_point() and not part.weight.is_meta for part in (value, output)):
            raise _refused(name, "has weights that are quantised or not loaded")
        try:
            hadamard_matrix(head_dim)
        except KVMMError:
            raise _refused(name, f"has heads of {head_dim} channels, for which there is no Hadamard matrix") from None
        found.append((attention, head_dim))
    if not found:
        raise _refused(name, "has no attention layers with values of their own")
    return found


def _refused(name: str, reason: str) -> KVMMError:
    return KVMMError(
        f"The rotation of values cannot be folded into this model: {name} {reason}. Leave out fuse_values "
        "(--fuse-values); codecs then rotate values as they store them."
    )
