"""Policies: which codec stores the keys and the values of which modality, and what stays in full precision."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from kvmm.errors import KVMMError
from kvmm.modality import MODALITY_NAMES


@dataclass(frozen=True)
class CodecSpec:
    """How one tensor (keys or values) of one modality is stored.

    Attributes:
        codec: a registered codec name, see :func:`kvmm.cache.codecs.codec_names`.
        bits: bits a code; 16 for ``bf16``, which stores the model's own dtype.
        group_size: elements that share one scale: tokens for a per-channel code, channels for a per-token code
            (capped at ``head_dim``). ``None`` means the codec's own unit: the whole span of a modality.
        options: codec options as sorted pairs, so that a spec stays hashable. Use :func:`spec` to write them.
    """

    codec: str = "bf16"
    bits: int = 16
    group_size: int | None = None
    options: tuple[tuple[str, Any], ...] = ()

    @property
    def is_lossless(self) -> bool:
        """Whether the codec keeps the model's dtype; bit overrides leave such a spec alone."""
        return self.codec == "bf16"

    def option(self, name: str, default: Any = None) -> Any:
        """The value of one option, or ``default``."""
        return dict(self.options).get(name, default)


def spec(codec: str, bits: int = 16, group_size: int | None = None, **options: Any) -> CodecSpec:
    """Write a :class:`CodecSpec`; keyword arguments after ``group_size`` are codec options."""
    return CodecSpec(codec, bits, group_size, tuple(sorted(options.items())))


@dataclass(frozen=True)
class KVSpec:
    """The key spec and the value spec of one modality."""

    key: CodecSpec = field(default_factory=CodecSpec)
    value: CodecSpec = field(default_factory=CodecSpec)


@dataclass(frozen=True)
class KVPolicy:
    """What a :class:`kvmm.KVMMCache` does with every token.

    Attributes:
        name: the preset's name, or any name of your own.
        description: one line for pickers and help texts.
        text, image, video, audio: the specs of each modality.
        num_sink_tokens: first tokens of each sequence kept in the model's dtype.
        residual_length: newest text tokens kept in the model's dtype. Images, video and audio are packed entirely.
    """

    name: str = "custom"
    description: str = ""
    text: KVSpec = field(default_factory=KVSpec)
    image: KVSpec = field(default_factory=KVSpec)
    video: KVSpec = field(default_factory=KVSpec)
    audio: KVSpec = field(default_factory=KVSpec)
    num_sink_tokens: int = 4
    residual_length: int = 32

    def specs(self, modality: int) -> KVSpec:
        """The specs of a modality code (``kvmm.modality``)."""
        return getattr(self, MODALITY_NAMES[modality])


_BF16 = KVSpec()
_OVERRIDES = ("key_bits", "value_bits", "group_size", "residual_length", "num_sink_tokens")


def _kv(codec: str, bits: int, group_size: int | None, **options: Any) -> KVSpec:
    return KVSpec(spec(codec, bits, group_size, **options), spec(codec, bits, group_size, **options))


def _uniform(name: str, description: str, kv: KVSpec, **fields: Any) -> KVPolicy:
    return KVPolicy(name, description, text=kv, image=kv, video=kv, audio=kv, **fields)


def _media(name: str, description: str, kv: KVSpec, **fields: Any) -> KVPolicy:
    return KVPolicy(name, description, image=kv, video=kv, audio=kv, **fields)


_PRESETS: dict[str, KVPolicy] = {
    p.name: p
    for p in (
        _uniform("bf16", "Full precision in the same pages: the lossless control.", _BF16),
        _uniform("kivi4", "KIVI, 4 bits, groups of 32.", _kv("kivi", 4, 32)),
        _uniform("kivi2", "KIVI, 2 bits, groups of 32.", _kv("kivi", 2, 32)),
        _uniform("oscar2", "OScaR, 2 bits, groups of 128: rotation, then token norms.", _kv("oscar", 2, 128)),
        _uniform("oscar2-g32", "OScaR, 2 bits, groups of 32: the setting of its text results.", _kv("oscar", 2, 32)),
        _media(
            "calibquant1",
            "CalibQuant, 1 bit a channel over each image or recording, min/max levels: only large models (7B and up) "
            "still answer.",
            _kv("calibquant", 1, None, levels="paper"),
        ),
        _media(
            "calibquant1-mean",
            "CalibQuant's 1-bit storage with conditional-mean levels, far closer than min/max: small models still do "
            "not answer.",
            _kv("calibquant", 1, None, levels="mean"),
        ),
        _media(
            "calibquant2",
            "CalibQuant, 2 bits a channel over each image or recording: small models lose part of the answers.",
            _kv("calibquant", 2, None, levels="paper"),
        ),
        # Keys decide which token is read, so they get the bits: 4 for keys and 2 for values lose fewer answers than the
        # same bits the other way round.
        _uniform(
            "balanced",
            "Near-lossless on every modality: rotated keys of 4 bits with token norms, values of 2. The default.",
            KVSpec(spec("oscar", 4, 128), spec("oscar", 2, 128)),
        ),
        # Norms cost an eighth of a bit at a head dimension of 64; media tokens did as well without, text keeps them.
        _media(
            "small",
            "The fewest bits that still answer: rotated keys and values of 2 bits, no token norms on media.",
            _kv("oscar", 2, 128, norm="none"),
            text=_kv("oscar", 2, 128),
        ),
    )
}


def policies() -> dict[str, str]:
    """The presets: ``{name: one line}``."""
    return {name: p.description for name, p in _PRESETS.items()}


def get_policy(policy: str | KVPolicy = "balanced", **overrides: Any) -> KVPolicy:
    """A policy by name, with overrides.

    Args:
        policy: a preset's name, or a :class:`KVPolicy` to start from.
        **overrides: ``key_bits``, ``value_bits`` and ``group_size`` change every spec that is not ``bf16``;
            ``residual_length`` and ``num_sink_tokens`` count tokens. ``None`` leaves a value as it is.

    Raises:
        KVMMError: for an unknown name, override or value.
    """
    if isinstance(policy, str):
        if policy not in _PRESETS:
            raise KVMMError(f"Unknown policy {policy!r}; choose one of: {', '.join(_PRESETS)}.")
        policy = _PRESETS[policy]
    elif not isinstance(policy, KVPolicy):
        raise KVMMError(f"policy must be a preset's name or a KVPolicy, not {type(policy).__name__}.")
    if unknown := set(overrides) - set(_OVERRIDES):
        raise KVMMError(f"Unknown override {', '.join(sorted(unknown))}; use {', '.join(_OVERRIDES)}.")
    overrides = {name: value for name, value in overrides.items() if value is not None}

    for name in ("residual_length", "num_sink_tokens"):
        if name in overrides:
            value = overrides[name]
            if not isinstance(value, int) or value < 0:
                raise KVMMError(f"{name} must be a number of tokens, 0 or more, not {value!r}.")
            policy = replace(policy, **{name: value})
    changes = {name: overrides[name] for name in ("key_bits", "value_bits", "group_size") if name in overrides}
    if changes:
        policy = _with_changes(policy, changes)
    _check(policy)
    return policy


def _with_changes(policy: KVPolicy, changes: Mapping[str, Any]) -> KVPolicy:
    def change(old: CodecSpec, bits: int | None) -> CodecSpec:
        if old.is_lossless:
            return old
        return replace(
            old, bits=old.bits if bits is None else bits, group_size=changes.get("group_size", old.group_size)
        )

    modalities = {}
    for name in MODALITY_NAMES:
        kv = getattr(policy, name)
        modalities[name] = KVSpec(change(kv.key, changes.get("key_bits")), change(kv.value, changes.get("value_bits")))
    changed = replace(policy, **modalities)
    if changed == policy and all(getattr(policy, n).key.is_lossless for n in MODALITY_NAMES):
        raise KVMMError(
            f"Policy {policy.name!r} quantises nothing, so {', '.join(changes)} has no effect; choose another policy."
        )
    return changed


def check_head_dim(policy: KVPolicy, head_dim: int) -> None:
    """Raise :class:`KVMMError` if a codec of the policy cannot store vectors of ``head_dim`` channels."""
    from kvmm.cache.codecs import codec_class

    for name in MODALITY_NAMES:
        kv = getattr(policy, name)
        for one in (kv.key, kv.value):
            codec_class(one.codec).check_model(one, head_dim)


def _check(policy: KVPolicy) -> None:
    from kvmm.cache.codecs import check_spec  # imported here: codecs read CodecSpec from this module

    for name in MODALITY_NAMES:
        kv = getattr(policy, name)
        check_spec(kv.key)
        check_spec(kv.value)


__all__ = ["CodecSpec", "KVPolicy", "KVSpec", "check_head_dim", "get_policy", "policies", "spec"]
