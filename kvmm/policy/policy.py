"""Policies: which codec stores the keys and the values of which modality, and what stays in full precision."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from kvmm.codecs.spec import CodecSpec
from kvmm.errors import KVMMError, unknown_name
from kvmm.modality_codes import MODALITY_NAMES
from kvmm.policy.files import is_policy_file, policy_from_dict, policy_to_dict, read_policy
from kvmm.policy.retention_presets import retention_preset
from kvmm.policy.settings import KVSpec, LayerOverride, RetentionSettings

PAGE_SIZES = (128, 64, 32)
FLUSH_LENGTHS = (*PAGE_SIZES, 16)
OPEN_PAGE_SIZE = 64  # of pages that tokens are added to: half of it is unused on average
EXACT_DTYPES = ("auto", "bfloat16", "float16", "model")


@dataclass(frozen=True)
class KVPolicy:
    """What a :class:`kvmm.KVMMCache` does with every token.

    Attributes:
        name: the preset's name, or any name of your own.
        description: one line for pickers and help texts.
        text, image, video, audio: the specs of each modality.
        skip_layers: indices of decoder layers kept exact; negative ones count from the last.
        overrides: other specs for some layers; later ones win, ``skip_layers`` wins over all.
        calibration: a calibration file; None takes the one in the model's folder, if there is one.
        uncalibrated: the preset that says what to do with a modality whose codec is fitted to a model, where there is
            no fit, or a ``budget`` that the codec does not serve; None leaves that to the codec.
        budget: bytes that the packed cache may hold; pages are lowered or dropped to stay below. None sets no limit.
        retention: how they are chosen.
        num_sink_tokens: first tokens of each sequence kept exact.
        residual_length: newest text tokens kept exact. Images, video and audio are packed entirely.
        flush_length: text tokens that are packed at a time: 128, 64 or 32, as a page, or 16. Fewer than that wait exact
            beside the residual, in a prompt and while tokens are generated, so that groups of up to 128 tokens hold for
            both. 16 tokens are added to a page of 64 that is not full, where the codecs of text can do that
            (``Codec.opens_pages``); where they cannot, 128 tokens are packed at a time.
        mixed_modalities: pack tokens of all modalities together in the order of the sequence, as a cache does that does
            not know them: groups, sinks and residual are then of any modality. All modalities must have one spec.
        exact_dtype: what exact tokens (sinks, residual, ``bf16`` pages, outliers) are stored in once the prompt is
            packed: ``auto`` (the model's dtype if it has 16 bits, else bfloat16), ``bfloat16``, ``float16``, or
            ``model`` (the model's dtype, also where that is float32). float16 is 8 times finer than bfloat16, which
            counts where keys have large biases. Attention computes in the model's dtype.
    """

    name: str = "custom"
    description: str = ""
    text: KVSpec = field(default_factory=KVSpec)
    image: KVSpec = field(default_factory=KVSpec)
    video: KVSpec = field(default_factory=KVSpec)
    audio: KVSpec = field(default_factory=KVSpec)
    skip_layers: tuple[int, ...] = ()
    overrides: tuple[LayerOverride, ...] = ()
    calibration: str | None = None
    uncalibrated: str | None = None
    budget: int | None = None
    retention: RetentionSettings = field(default_factory=RetentionSettings)
    num_sink_tokens: int = 4
    residual_length: int = 32
    flush_length: int = 128
    mixed_modalities: bool = False
    exact_dtype: str = "auto"

    def text_page(self, opens_pages: bool) -> tuple[int, int]:
        """Tokens of a page of text, and how many of them are packed at a time.

        Args:
            opens_pages: whether all codecs of text can add tokens to a page that is not full.
        """
        if self.flush_length in PAGE_SIZES:
            return self.flush_length, self.flush_length
        return (OPEN_PAGE_SIZE, self.flush_length) if opens_pages else (PAGE_SIZES[0], PAGE_SIZES[0])

    def specs(self, modality: int, layer: int = 0, num_layers: int = 1) -> KVSpec:
        """The specs of a modality code (``kvmm.modality``) in decoder layer ``layer`` of ``num_layers``."""
        name = MODALITY_NAMES[modality]
        if self.skips(layer, num_layers):
            return KVSpec()
        found = getattr(self, name)
        for override in self.overrides:
            if _contains(override.layers, layer, num_layers):
                found = getattr(override, name) or found
        return found

    def skips(self, layer: int, num_layers: int) -> bool:
        """Whether ``skip_layers`` names decoder layer ``layer`` of ``num_layers``."""
        return _contains(self.skip_layers, layer, num_layers)

    def all_specs(self) -> list[CodecSpec]:
        """Every codec spec that some layer may use, without repetition."""
        found = [getattr(self, name) for name in MODALITY_NAMES]
        found += [kv for o in self.overrides for name in MODALITY_NAMES if (kv := getattr(o, name)) is not None]
        return list(dict.fromkeys(one for kv in found for one in (kv.key, kv.value)))

    def with_preset(self, name: str, where: Callable[[KVSpec], bool]) -> KVPolicy:
        """The policy with the specs of another preset for the modalities ``where`` says so."""
        other = get_policy(name)
        return replace(self, **{n: getattr(other, n) for n in MODALITY_NAMES if where(getattr(self, n))})

    def map_specs(self, change: Callable[[KVSpec], KVSpec]) -> KVPolicy:
        """The policy with every :class:`KVSpec` replaced by ``change`` of it."""

        def changed(holder: Any) -> dict[str, KVSpec]:
            return {n: change(kv) for n in MODALITY_NAMES if (kv := getattr(holder, n)) is not None}

        overrides = tuple(replace(override, **changed(override)) for override in self.overrides)
        return replace(self, overrides=overrides, **changed(self))

    @classmethod
    def from_file(cls, path: str | Path) -> KVPolicy:
        """The policy in a YAML file; see :mod:`kvmm.policy.files` for its keys. Raises :class:`KVMMError`."""
        return read_policy(path, cls(), get_policy)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> KVPolicy:
        """The policy that plain values describe; see :func:`kvmm.policy.files.policy_from_dict`."""
        return policy_from_dict(values, cls(), get_policy)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON or YAML, from which :meth:`from_dict` makes an equal policy."""
        return policy_to_dict(self)


def _contains(layers: tuple[int, ...], layer: int, num_layers: int) -> bool:
    return layer in layers or layer - num_layers in layers


_OVERRIDES = (
    *("key_bits", "value_bits", "group_size", "residual_length", "num_sink_tokens", "calibration", "budget"),
    *("retention", "exact_dtype", "flush_length"),
)


PRESETS: dict[str, KVPolicy] = {}  # by name, in the order of pickers; :mod:`kvmm.policy.presets` fills it


def register_policy(policy: KVPolicy) -> KVPolicy:
    """Make a policy a preset: its name works wherever a preset's does, and lists, pickers and tables show it.

    Args:
        policy: with a name of its own and a description of one line.

    Returns:
        ``policy``.

    Raises:
        KVMMError: if the name cannot be a preset's or is another preset's, or the description is not one line.
    """
    name = policy.name
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name) or is_policy_file(name):
        raise KVMMError(f"{name!r} cannot be a preset's name; use letters, digits, hyphens and dots.")
    if not policy.description.strip() or "\n" in policy.description:
        raise KVMMError(f"Policy {name!r} needs a description of one line.")
    if PRESETS.get(name, policy) != policy:
        raise KVMMError(f"There is a preset {name!r} already; choose another name.")
    PRESETS[name] = policy
    return policy


def policies() -> dict[str, str]:
    """The presets: ``{name: one line}``."""
    return {name: p.description for name, p in PRESETS.items()}


def get_policy(policy: str | Path | KVPolicy = "balanced", **overrides: Any) -> KVPolicy:
    """A policy by name, with overrides.

    Args:
        policy: a preset's name, a YAML file (``*.yaml``, ``*.yml``), or a :class:`KVPolicy` to start from.
        **overrides: ``key_bits``, ``value_bits`` and ``group_size`` change every spec that is not ``bf16``;
            ``residual_length``, ``num_sink_tokens`` and ``flush_length`` count tokens, ``budget`` counts bytes,
            ``calibration`` is a file, ``retention`` a :class:`RetentionSettings` or the name of one, ``exact_dtype`` as
            in :class:`KVPolicy`. ``None`` leaves a value as it is.

    Raises:
        KVMMError: for an unknown name, override or value.
    """
    if isinstance(policy, Path):
        policy = str(policy)
    if isinstance(policy, str):
        if is_policy_file(policy):
            return get_policy(KVPolicy.from_file(policy), **overrides)
        if policy not in PRESETS:
            raise unknown_name("policy", policy, PRESETS, ", or name a .yaml file")
        policy = PRESETS[policy]
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
    if "calibration" in overrides:
        policy = replace(policy, calibration=str(overrides["calibration"]))
    if "budget" in overrides:
        if not isinstance(overrides["budget"], int) or overrides["budget"] <= 0:
            raise KVMMError(f"budget must be a number of bytes above 0, not {overrides['budget']!r}.")
        policy = replace(policy, budget=overrides["budget"])
    if "retention" in overrides:
        if isinstance(overrides["retention"], str):
            overrides["retention"] = retention_preset(overrides["retention"])
        if not isinstance(overrides["retention"], RetentionSettings):
            raise KVMMError(f"retention must be a name or RetentionSettings, not {overrides['retention']!r}.")
        policy = replace(policy, retention=overrides["retention"])
    for name in ("exact_dtype", "flush_length"):
        if name in overrides:
            policy = replace(policy, **{name: overrides[name]})
    changes = {name: overrides[name] for name in ("key_bits", "value_bits", "group_size") if name in overrides}
    if changes:
        policy = _with_changes(policy, changes)
    if policy.budget is not None and policy.uncalibrated is not None:
        policy = policy.with_preset(policy.uncalibrated, lambda kv: not _stands_alone(kv))
    _check(policy)
    return policy


def _with_changes(policy: KVPolicy, changes: Mapping[str, Any]) -> KVPolicy:
    def change(old: CodecSpec, bits: int | None) -> CodecSpec:
        if old.is_lossless:
            return old
        return replace(
            old, bits=old.bits if bits is None else bits, group_size=changes.get("group_size", old.group_size)
        )

    changed = policy.map_specs(
        lambda kv: KVSpec(change(kv.key, changes.get("key_bits")), change(kv.value, changes.get("value_bits")))
    )
    if changed == policy and all(one.is_lossless for one in policy.all_specs()):
        raise KVMMError(
            f"Policy {policy.name!r} quantises nothing, so {', '.join(changes)} has no effect; choose another policy."
        )
    return changed


def check_layers(policy: KVPolicy, num_layers: int) -> None:
    """Raise :class:`KVMMError` if ``skip_layers`` or an override names a layer that the model does not have."""
    named = [layer for layers in (policy.skip_layers, *(o.layers for o in policy.overrides)) for layer in layers]
    if wrong := [layer for layer in named if not -num_layers <= layer < num_layers]:
        raise KVMMError(
            f"Policy {policy.name!r} names layer {wrong[0]}, but the model has {num_layers}: 0 to {num_layers - 1}, or "
            f"-{num_layers} to -1 from the end."
        )


def check_head_dim(policy: KVPolicy, head_dim: int) -> None:
    """Raise :class:`KVMMError` if a codec of the policy cannot store vectors of ``head_dim`` channels."""
    from kvmm.codecs import codec_class

    for one in (*policy.all_specs(), *_tier_specs(policy)):
        codec_class(one.codec).check_model(one, head_dim)


def _stands_alone(kv: KVSpec) -> bool:
    from kvmm.codecs import codec_class

    return all(codec_class(one.codec).pages_stand_alone for one in (kv.key, kv.value))


def _check_mixed(policy: KVPolicy) -> None:
    for holder in (policy, *policy.overrides):
        if len({getattr(holder, name) for name in MODALITY_NAMES}) > 1:
            raise KVMMError(
                "mixed_modalities packs all tokens alike: give text, image, video and audio the same codec, bits and "
                "options."
            )
    if policy.budget is not None:
        raise KVMMError("budget= weighs pages by their modality; leave mixed_modalities out.")


def _tier_specs(policy: KVPolicy) -> tuple[CodecSpec, ...]:
    """The specs of the tiers that entries go down, without a budget none."""
    tiers = policy.retention.tiers or () if policy.budget is not None else ()
    return tuple(dict.fromkeys(one for kv in tiers for one in (kv.key, kv.value)))


def _check(policy: KVPolicy) -> None:
    from kvmm.codecs import check_spec, codec_class, codec_names  # codecs need torch, which --help does without

    if policy.exact_dtype not in EXACT_DTYPES:
        raise KVMMError(f"exact_dtype must be one of {', '.join(EXACT_DTYPES)}, not {policy.exact_dtype!r}.")
    if isinstance(policy.flush_length, bool) or policy.flush_length not in FLUSH_LENGTHS:
        raise KVMMError(f"flush_length must be 128, 64, 32 or 16 tokens, not {policy.flush_length!r}.")
    if policy.mixed_modalities:
        _check_mixed(policy)
    for one in (*policy.all_specs(), *_tier_specs(policy)):
        check_spec(one)
        if policy.budget is not None and policy.retention.entry_tokens == 1 and not one.is_lossless:
            raise KVMMError(f"retention entry_tokens: codec {one.codec} packs tokens together; use at least 8.")
        if policy.budget is not None and not codec_class(one.codec).pages_stand_alone:
            able = ", ".join(name for name in codec_names() if codec_class(name).pages_stand_alone)
            raise KVMMError(
                f"budget= cannot lower pages of codec {one.codec}, which are not read one by one; choose a policy of "
                f"one of these, or leave budget out: {able}."
            )


__all__ = ["PRESETS", "KVPolicy", "check_head_dim", "check_layers", "get_policy", "policies", "register_policy"]
