"""Policies as plain values: what a YAML file and a saved cache hold.

```yaml
base: balanced            # a preset to start from; without it everything is full precision
image: {codec: oscar, bits: 2, group_size: 128, norm: none}
text:
  key: {codec: kivi, bits: 4, group_size: 32}
  value: bf16
audio: small              # what another preset does with audio
skip_layers: [0, -1]
overrides:
  - layers: [1, 2]
    image: {bits: 4}      # a mapping without a codec changes what is there
residual_length: 64
exact_dtype: float16      # of tokens kept exact; auto, bfloat16, float16 or model
budget: 512 MiB
retention:
  base: spherical         # or streamingllm, h2o, vlcache; `retention: h2o` alone does too
  mode: joint
  heads: uniform
  tiers:                  # below the policy's own, highest first
    - {key: {codec: spherical, bits: 0.75}, value: {codec: kivi, bits: 4, group_size: 32}}
```
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any, TypeVar

from kvmm.bounded_yaml import read_yaml
from kvmm.codecs.spec import CodecSpec
from kvmm.errors import KVMMError, one_line
from kvmm.modality_codes import MODALITY_NAMES
from kvmm.policy.retention_presets import retention_preset
from kvmm.policy.settings import KVSpec, LayerOverride, RetentionSettings

Policy = TypeVar("Policy")  # a kvmm.KVPolicy, whose class uses this module
_SUFFIXES = (".yaml", ".yml")
_MAX_NUMBER = 2**31 - 1  # of tokens, of layers
_MAX_BUDGET = 2**62
_UNITS = {"B": 1} | {f"{p}{b}": n**i for b, n in (("B", 1000), ("iB", 1024)) for i, p in enumerate("KMGT", start=1)}


def is_policy_file(name: str) -> bool:
    """Whether a policy's name is that of a file."""
    return name.lower().endswith(_SUFFIXES)


def read_policy(path: str | Path, start: Policy, named: Callable[..., Policy]) -> Policy:
    """The policy in a YAML file. Relative paths inside it start at its folder.

    Args:
        path: the file.
        start, named: as for :func:`policy_from_dict`.

    Raises:
        KVMMError: one line with the file and the key, if it is missing, no YAML, or holds something wrong.
    """
    path = Path(path)
    values = read_yaml(path)
    try:
        if not isinstance(values, dict):
            raise KVMMError("write keys such as `base: balanced`, not a single value or a list.")
        described = {"name": path.stem, "description": f"From {path.name}.", **values}
        policy = policy_from_dict(described, start, named)
    except KVMMError as error:
        raise KVMMError(f"{path}: {one_line(error)}") from None
    if policy.calibration is not None and "calibration" in values:
        policy = replace(policy, calibration=str(path.parent / policy.calibration))
    return policy


def policy_from_dict(values: Mapping[str, Any], start: Policy, named: Callable[..., Policy]) -> Policy:
    """The policy that plain values describe; :func:`policy_to_dict` writes the same form.

    Args:
        values: the keys of :class:`kvmm.KVPolicy`, all optional, and ``base``, the policy to start from. A modality is
            a preset's name, a codec mapping (``codec``, ``bits``, ``group_size`` and the codec's options) for keys and
            values, or ``key`` and ``value`` with one mapping each. ``overrides`` is a list of ``layers`` with
            modalities. ``budget`` is a number of bytes, or such as ``512 MiB``.
        start: the policy that values without ``base`` start from.
        named: :func:`kvmm.get_policy`, which knows the presets and checks what comes out.

    Raises:
        KVMMError: one line that begins with the key.
    """
    _check_keys("", values, ("base", *(field.name for field in fields(start))))
    base = values.get("base")
    if base is not None and (not isinstance(base, str) or is_policy_file(base)):
        raise KVMMError(f"base: must be a preset's name, not {_shown(base)}.")
    policy = start if base is None else _at("base", named, base)
    changes: dict[str, Any] = {}
    for name in ("name", "description", "calibration", "uncalibrated", "exact_dtype"):
        if values.get(name) is not None:
            changes[name] = _typed(name, values[name], str, "text")
    if values.get("mixed_modalities") is not None:
        changes["mixed_modalities"] = values["mixed_modalities"]
        if not isinstance(values["mixed_modalities"], bool):
            raise KVMMError(f"mixed_modalities: must be true or false, not {_shown(values['mixed_modalities'])}.")
    for name in ("num_sink_tokens", "residual_length", "flush_length"):
        if values.get(name) is not None:
            changes[name] = _typed(name, values[name], int, "a number of tokens")
            if changes[name] > _MAX_NUMBER:
                raise KVMMError(f"{name}: must be at most {_MAX_NUMBER} tokens.")
    if values.get("retention") is not None:
        settings = values["retention"]
        settings = {"base": settings} if isinstance(settings, str) else settings
        settings = dict(_typed("retention", settings, Mapping, "a name or a mapping of settings"))
        _check_keys("retention", settings, ("base", *(field.name for field in fields(RetentionSettings))))
        start_from = policy.retention
        if (name := settings.pop("base", None)) is not None:
            start_from = _at("retention", retention_preset, _typed("retention.base", name, str, "a name"))
        if settings.get("tiers") is not None:
            settings["tiers"] = _tiers(settings["tiers"], named)
        try:
            changes["retention"] = replace(start_from, **settings)
        except TypeError:
            raise KVMMError("retention: a setting has a value of the wrong kind.") from None
    if values.get("budget") is not None:
        changes["budget"] = parse_bytes(values["budget"])
    for name in MODALITY_NAMES:
        if values.get(name) is not None:
            changes[name] = _modality(name, values[name], name, getattr(policy, name), named)
            if isinstance(values[name], str) and changes.get("uncalibrated", policy.uncalibrated) is None:
                changes["uncalibrated"] = named(values[name]).uncalibrated  # comes with what falls back on it
    if values.get("skip_layers") is not None:
        changes["skip_layers"] = _layers("skip_layers", values["skip_layers"])
    policy = replace(policy, **changes)
    if values.get("overrides") is not None:
        policy = replace(policy, overrides=tuple(_overrides(values["overrides"], policy, named)))
    names = ("num_sink_tokens", "residual_length", "flush_length", "budget")
    limits = {name: changes[name] for name in names if name in changes}
    return named(policy, **limits)


def policy_to_dict(policy: Policy) -> dict[str, Any]:
    """Plain values, for JSON or YAML, from which :func:`policy_from_dict` makes an equal policy."""
    values = {field.name: getattr(policy, field.name) for field in fields(policy)}
    values |= {name: _kv_to_dict(values[name]) for name in MODALITY_NAMES}
    values["retention"] = {
        name: list(value) if isinstance(value, tuple) else value for name, value in asdict(policy.retention).items()
    }
    if policy.retention.tiers is not None:
        values["retention"]["tiers"] = [_kv_to_dict(tier) for tier in policy.retention.tiers]
    values["skip_layers"] = list(policy.skip_layers)
    values["overrides"] = [
        {"layers": list(override.layers)}
        | {name: _kv_to_dict(kv) for name in MODALITY_NAMES if (kv := getattr(override, name)) is not None}
        for override in policy.overrides
    ]
    return {name: value for name, value in values.items() if value is not None}


def parse_bytes(value: Any, key: str = "budget") -> int:
    """Bytes from a number, or from text such as ``512 MiB``, ``1.5 GB``."""
    if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= _MAX_BUDGET:
        return value
    match = re.fullmatch(r"\s*(\d{1,18}(?:\.\d{1,18})?)\s*([KMGT]?i?B)\s*", value) if isinstance(value, str) else None
    count = 0 if match is None or match[2] not in _UNITS else int(float(match[1]) * _UNITS[match[2]])
    if not 0 < count <= _MAX_BUDGET:
        raise KVMMError(f"{key}: must be a number of bytes above 0, such as 536870912 or 512 MiB, not {_shown(value)}.")
    return count


def _kv_to_dict(kv: KVSpec) -> dict[str, Any]:
    return {"key": _spec_to_dict(kv.key), "value": _spec_to_dict(kv.value)}


def _spec_to_dict(spec: CodecSpec) -> dict[str, Any]:
    values: dict[str, Any] = {"codec": spec.codec, "bits": spec.bits}
    if spec.group_size is not None:
        values["group_size"] = spec.group_size
    return values | {name: list(value) if isinstance(value, tuple) else value for name, value in spec.options}


def _modality(key: str, value: Any, modality: str, base: KVSpec, named: Callable[..., Policy]) -> KVSpec:
    if isinstance(value, Mapping) and ("key" in value or "value" in value):
        _check_keys(key, value, ("key", "value"))
        return KVSpec(
            _side(f"{key}.key", value.get("key"), modality, "key", base, named),
            _side(f"{key}.value", value.get("value"), modality, "value", base, named),
        )
    return KVSpec(*(_side(key, value, modality, side, base, named) for side in ("key", "value")))


def _side(key: str, value: Any, modality: str, side: str, base: KVSpec, named: Callable[..., Policy]) -> CodecSpec:
    from kvmm.codecs import check_spec, codec_class  # codecs need torch, which --help does without

    spec = getattr(base, side)
    if value is None:
        return spec
    if isinstance(value, str):
        if is_policy_file(value):
            raise KVMMError(f"{key}: must be a preset's name or a mapping, not a file.")
        return getattr(getattr(_at(key, named, value), modality), side)
    if not isinstance(value, Mapping):
        raise KVMMError(f"{key}: must be a preset's name or a mapping with `codec` and `bits`, not {_shown(value)}.")
    values = dict(value)
    if "codec" in values:
        codec = _typed(f"{key}.codec", values.pop("codec"), str, "a codec's name")
        widths = _at(f"{key}.codec", codec_class, codec).bits
        if "bits" not in values and len(widths) != 1:
            raise KVMMError(f"{key}.bits: is missing; codec {codec} needs it.")
        spec = CodecSpec(codec, widths[0])
    bits = values.pop("bits", spec.bits)
    if isinstance(bits, bool) or not isinstance(bits, (int, float)):
        raise KVMMError(f"{key}.bits: must be a number, not {_shown(bits)}.")
    if isinstance(bits, float) and bits.is_integer():
        bits = int(bits)
    group_size = values.pop("group_size", spec.group_size)
    if group_size is not None:
        _typed(f"{key}.group_size", group_size, int, "a number of elements")
    options = dict(spec.options) | {str(name): _option(f"{key}.{name}", option) for name, option in values.items()}
    spec = CodecSpec(spec.codec, bits, group_size, tuple(sorted(options.items())))
    _at(key, check_spec, spec)
    return spec


def _option(key: str, value: Any) -> Any:
    """A codec's option: a plain value, or a list of them as a tuple."""
    if any(isinstance(one, (list, Mapping, set, tuple)) for one in (value if isinstance(value, list) else [value])):
        raise KVMMError(f"{key}: must be a single value or a list of them, not {_shown(value)}.")
    return tuple(value) if isinstance(value, list) else value


def _tiers(value: Any, named: Callable[..., Policy]) -> tuple[KVSpec, ...]:
    if not isinstance(value, list):
        raise KVMMError(f"retention.tiers: must be a list of specs, highest first, not {_shown(value)}.")
    found = []
    for number, tier in enumerate(value):
        key = f"retention.tiers[{number}]"
        if not isinstance(tier, Mapping) or set(tier) != {"key", "value"}:
            raise KVMMError(f"{key}: must be a mapping with `key` and `value`, not {_shown(tier)}.")
        found.append(_modality(key, tier, "text", KVSpec(), named))
    return tuple(found)


def _overrides(value: Any, policy: Policy, named: Callable[..., Policy]) -> Iterable[LayerOverride]:
    if not isinstance(value, list):
        raise KVMMError(f"overrides: must be a list of layers with modalities, not {_shown(value)}.")
    for number, entry in enumerate(value):
        key = f"overrides[{number}]"
        if not isinstance(entry, Mapping):
            raise KVMMError(f"{key}: must be a mapping with `layers` and modalities, not {_shown(entry)}.")
        _check_keys(key, entry, ("layers", *MODALITY_NAMES))
        if "layers" not in entry:
            raise KVMMError(f"{key}.layers: is missing; list the layers, such as [0, 1] or [-1].")
        given = {name: entry[name] for name in MODALITY_NAMES if entry.get(name) is not None}
        specs = {n: _modality(f"{key}.{n}", value, n, getattr(policy, n), named) for n, value in given.items()}
        yield LayerOverride(_layers(f"{key}.layers", entry["layers"]), **specs)


def _layers(key: str, value: Any) -> tuple[int, ...]:
    layers = value if isinstance(value, (list, tuple)) else [value]
    numbers = (isinstance(layer, int) and not isinstance(layer, bool) and abs(layer) <= _MAX_NUMBER for layer in layers)
    if not all(numbers):
        raise KVMMError(f"{key}: must be layer numbers, such as [0, 1] or [-1], not {_shown(value)}.")
    return tuple(layers)


def _typed(key: str, value: Any, kind: type, what: str) -> Any:
    if not isinstance(value, kind) or isinstance(value, bool):
        raise KVMMError(f"{key}: must be {what}, not {_shown(value)}.")
    return value


def _check_keys(key: str, values: Mapping[str, Any], allowed: tuple[str, ...]) -> None:
    for name in values:
        if name not in allowed:
            where = f"{key}: " if key else ""
            raise KVMMError(f"{where}unknown key {_shown(name)}; use {', '.join(allowed)}.")


def _shown(value: Any) -> str:
    """A value in a message; of an integer of thousands of digits Python makes no text."""
    try:
        return one_line(repr(value))
    except (ValueError, RecursionError):
        return f"this {type(value).__name__}"


def _at(key: str, call: Any, *arguments: Any) -> Any:
    """Call, with the key in front of an error's message."""
    try:
        return call(*arguments)
    except KVMMError as error:
        raise KVMMError(f"{key}: {error}") from None


__all__ = ["is_policy_file", "parse_bytes", "policy_from_dict", "policy_to_dict", "read_policy"]
