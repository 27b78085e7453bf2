"""Policies: which codec stores the keys and the values of which modality, and what stays in full precision."""

from kvmm.codecs.spec import CodecSpec, spec
from kvmm.policy import presets as _presets  # noqa: F401 - registers them
from kvmm.policy.policy import KVPolicy, check_head_dim, check_layers, get_policy, policies, register_policy
from kvmm.policy.settings import KVSpec, LayerOverride, RetentionSettings

__all__ = [
    "CodecSpec",
    "KVPolicy",
    "KVSpec",
    "LayerOverride",
    "RetentionSettings",
    "check_head_dim",
    "check_layers",
    "get_policy",
    "policies",
    "register_policy",
    "spec",
]
