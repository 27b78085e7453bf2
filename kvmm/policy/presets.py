"""The named policies, in three tiers. Their lines are what pickers and the README show."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kvmm.codecs.spec import CodecSpec, spec
from kvmm.policy.policy import PRESETS, KVPolicy, register_policy
from kvmm.policy.settings import KVSpec

_BF16 = KVSpec()
_OUTLIERS = 0.5  # tokens of every 128 that stay exact: few, and what questions look for is often among them


def _kv(codec: str, bits: float, group_size: int | None, **options: Any) -> KVSpec:
    return KVSpec(spec(codec, bits, group_size, **options), spec(codec, bits, group_size, **options))


def _kitty(boost: float, **options: Any) -> KVSpec:
    return KVSpec(spec("kitty", 2, 128, boost=boost, **options), spec("kitty", 2, 128))


def _uniform(name: str, description: str, kv: KVSpec, **fields: Any) -> KVPolicy:
    return KVPolicy(name, description, text=kv, image=kv, video=kv, audio=kv, **fields)


def _media(name: str, description: str, kv: KVSpec, **fields: Any) -> KVPolicy:
    return KVPolicy(name, description, image=kv, video=kv, audio=kv, **fields)


def _paper(name: str, description: str, key: CodecSpec, value: CodecSpec | None = None, **fields: Any) -> KVPolicy:
    """A method by the protocol of its paper: no sinks unless it has them, the newest tokens in a buffer of 128 that is
    packed as a whole when it is full (R = 128), and no look at modalities."""
    protocol = {"num_sink_tokens": 0, "residual_length": 0, "flush_length": 128, "mixed_modalities": True}
    return _uniform(name, description, KVSpec(key, value or key), **(protocol | fields))


def _keys(name: str, description: str, bits: float) -> KVPolicy:
    return _uniform(name, description, KVSpec(spec("spherical", bits), CodecSpec()))


for _policy in (
    _uniform("bf16", "Full precision in the same pages: the lossless control.", _BF16),
    _uniform("kivi4", "KIVI, 4 bits, groups of 32.", _kv("kivi", 4, 32)),
    _uniform("kivi2", "KIVI, 2 bits, groups of 32.", _kv("kivi", 2, 32)),
    _uniform("oscar2", "OScaR, 2 bits, groups of 128: rotation, then token norms.", _kv("oscar", 2, 128)),
    _uniform("oscar2-g32", "OScaR, 2 bits, groups of 32: the setting of its text results.", _kv("oscar", 2, 32)),
    # Keys decide which token is read, so they get the bits: 4 for keys and 2 for values lose fewer answers than the
    # same bits the other way round.
    _uniform(
        "oscar4-2",
        "OScaR, keys of 4 bits and values of 2, groups of 128: without calibration, a language model finds 41 of 45 "
        "numbers in long texts; full precision finds 42.",
        KVSpec(spec("oscar", 4, 128), spec("oscar", 2, 128)),
    ),
    _media(
        "calibquant1",
        "CalibQuant, 1 bit, min/max levels of a channel over all images, or recordings, of a prompt: "
        "tiny-omni loses most answers.",
        _kv("calibquant", 1, None, levels="paper", calibration="file"),
    ),
    _media(
        "calibquant1-shrunk",
        "CalibQuant, 1 bit, as its authors' code runs it: ranges shrunk about zero, to half for keys, to 0.3 for "
        "values; not for models with key biases (Qwen2, Qwen2.5).",
        _kv("calibquant", 1, None, levels="code", calibration="file"),
    ),
    _media(
        "calibquant1-mean",
        "CalibQuant's 1-bit storage with conditional-mean levels: far closer than min/max on text, but "
        "tiny-omni loses most answers about pages.",
        _kv("calibquant", 1, None, levels="mean", calibration="file"),
    ),
    _media(
        "calibquant2",
        "CalibQuant, 2 bits, min/max levels of a channel over all images, or recordings, of a prompt: "
        "tiny-omni loses part of the answers.",
        _kv("calibquant", 2, None, levels="paper", calibration="file"),
    ),
    _uniform(
        "kitty",
        "Kitty, 2 bits, and 4 for the strongest eighth of the key channels of every page.",
        _kitty(0.125),
        num_sink_tokens=32,
        residual_length=128,
    ),
    _uniform(
        "kitty-pro",
        "Kitty-Pro, 2 bits, and 4 for the strongest quarter of the key channels of every page.",
        _kitty(0.25),
        num_sink_tokens=32,
        residual_length=128,
    ),
    _uniform(
        "kitty-range",
        "Kitty with the range of a channel, not its magnitude, to say which eighth has 4 bits.",
        _kitty(0.125, score="range"),
        num_sink_tokens=32,
        residual_length=128,
    ),
    _uniform(
        "quarot2",
        "QuaRot's cache, 2 bits: rotated keys and values with a scale a token.",
        _kv("quarot", 2, 128),
    ),
    _uniform(
        "rotatekv2",
        "RotateKV, 2 bits: keys rotated across heads, a scale a token; after RoPE, not before it as in the paper.",
        _kv("rotatekv", 2, 128),
        num_sink_tokens=20,
    ),
    _uniform(
        "ott2",
        "OTT, 2 bits: KIVI in groups of 128 with a few outlier tokens of each span in full precision.",
        _kv("ott", 2, 128),
    ),
    _uniform(
        "turboquant2",
        "TurboQuant without its residual sketch, 2 bits: token norms, random rotation, a scalar code book.",
        _kv("turboquant", 2, None),
    ),
    _uniform(
        "turboquant2.5",
        "TurboQuant without its residual sketch, 3 bits for half of the rotated channels, 2 for the others.",
        _kv("turboquant", 2.5, None),
    ),
    _keys("spherical-high", "Spherical KV, keys of 6 bits and a length for 16 channels; exact values.", 0.875),
    _keys("spherical-mid", "Spherical KV, keys of 4 bits and a length for 16 channels; exact values.", 0.75),
    _keys("spherical-low", "Spherical KV, keys of 3 bits and a length for 32 channels; exact values.", 0.34375),
    *(
        _uniform(
            f"rd{bits:g}",
            f"kvmm's own transform code: {bits:g} bit{'s' * (bits != 1)} on average, most of them where answers "
            "depend on them.",
            _kv("rd", bits, None),
        )
        for bits in (1, 1.5, 2, 2.25, 2.5, 3)
    ),
    # The protocol of OScaR's comparison: two bits, groups of 32, or of 128 on documents and recordings; five outlier
    # tokens in OTT. The others' are those of their own papers or, where these say nothing, of their authors' code.
    _paper(
        "paper-kivi2",
        "KIVI as its paper runs it: groups of 32 across modalities, a residual of 128, no sinks.",
        spec("kivi", 2, 32),
    ),
    _paper(
        "paper-oscar2",
        "OScaR as its authors run it: norms over all heads, whole zero points, a residual of 128, no sinks.",
        spec("oscar", 2, 128, norm_scope="token", zero_point="integer"),
    ),
    _paper(
        "paper-oscar2-g32",
        "OScaR as its authors run it on text: the same in groups of 32.",
        spec("oscar", 2, 32, norm_scope="token", zero_point="integer"),
    ),
    _media(
        "paper-calibquant1",
        "CalibQuant as its authors' code runs it: shrunk ranges, logits shifted by (0, 3) in every model; not for "
        "models with key biases.",
        _kv("calibquant", 1, None, levels="code", calibration=(0, 3)),
        num_sink_tokens=0,
    ),
    _media(
        "paper-calibquant2",
        "CalibQuant's 2 bits as its authors' code runs them: min/max levels, logits shifted by (0, 3) in every model.",
        _kv("calibquant", 2, None, levels="paper", calibration=(0, 3)),
        num_sink_tokens=0,
    ),
    _paper(
        "paper-kitty",
        "Kitty as its paper runs it: 32 sinks, a buffer of 128 tokens, pages across modalities.",
        _kitty(0.125).key,
        _kitty(0.125).value,
        num_sink_tokens=32,
    ),
    _paper(
        "paper-kitty-pro",
        "Kitty-Pro as its paper runs it: 32 sinks, a buffer of 128 tokens, pages across modalities.",
        _kitty(0.25).key,
        _kitty(0.25).value,
        num_sink_tokens=32,
    ),
    _paper(
        "paper-quarot2",
        "QuaRot as its authors run it: whole zero points, no offset, no sinks; not for models with key biases.",
        spec("quarot", 2, 128, offset="none", zero_point="integer"),
    ),
    _paper(
        "paper-rotatekv2",
        "RotateKV as its authors run it, but after RoPE: groups of four heads, channels by their means, 20 pivot "
        "tokens; not for models with key biases.",
        spec("rotatekv", 2, 128, head_group=4, offset="none", order="mean", pivots=20, zero_point="integer"),
    ),
    _paper(
        "paper-ott2",
        "OTT as its paper runs it: groups of 32 across modalities, five outlier tokens, a residual of 128, no sinks.",
        spec("ott", 2, 32),
    ),
    _paper(
        "paper-turboquant2.5",
        "TurboQuant's 2.5 bits: 3 for the strongest quarter of the channels, no offset; not for models with key "
        "biases.",
        spec("turboquant", 2.25, outliers="magnitude", offset="none"),
    ),
    _uniform(
        "balanced",
        "The default: rd at 2 bits and outlier tokens, or oscar4-2 for a model without a calibration file. Calibrated "
        "on prose, a language model finds 6 of 45 numbers in long texts; full precision finds 42.",
        _kv("rd", 2, None, outliers=_OUTLIERS),
        uncalibrated="oscar4-2",
    ),
    _uniform(
        "small",
        "Answers about pages and recordings in the fewest bits: rd at 1 bit and outlier tokens, or oscar2 for a model "
        "without a calibration file. Calibrated on prose, a language model finds 3 of 45 numbers in long texts.",
        _kv("rd", 1, None, outliers=_OUTLIERS),
        uncalibrated="oscar2",
    ),
):
    register_policy(_policy)


# the tiers, first what to try first
RECOMMENDED, OWN, PAPERS, ADDED = "Recommended", "kvmm's own", "Papers' methods", "Added"
_OWN_CODEC = "rd"
_SOURCES = {  # codec of a paper's method -> how the method is called, and where it is published
    "kivi": "KIVI, arXiv 2402.02750",
    "oscar": "OScaR, arXiv 2605.19660",
    "calibquant": "CalibQuant, arXiv 2502.14882",
    "kitty": "Kitty, arXiv 2511.18643",
    "quarot": "QuaRot, arXiv 2404.00456",
    "rotatekv": "RotateKV, arXiv 2501.16383",
    "ott": "OTT, ACL 2025",
    "turboquant": "TurboQuant, arXiv 2504.19874",
    "spherical": "Spherical KV",
}


@dataclass(frozen=True)
class PolicyGroup:
    """Presets that belong together in a list: ``names`` of ``tier``, and ``source``, their paper ("" without one)."""

    tier: str
    source: str
    names: tuple[str, ...]


def tier_of(policy: KVPolicy) -> tuple[str, str]:
    """The tier of a preset and the paper of its method.

    Recommended are the presets that say what to do on any model, calibrated or not (``uncalibrated``), and the lossless
    control. The others are kvmm's own, a paper's, or of a codec that another package added.
    """
    codecs = [one.codec for one in policy.all_specs() if not one.is_lossless]
    if policy.uncalibrated is not None or not codecs:
        return RECOMMENDED, ""
    if codecs[0] == _OWN_CODEC:
        return OWN, ""
    return (PAPERS, _SOURCES[codecs[0]]) if codecs[0] in _SOURCES else (ADDED, "")


def policy_groups() -> list[PolicyGroup]:
    """All presets by tier, the papers' by paper; the lossless control is the last of the recommended ones."""
    found: dict[tuple[str, str], list[KVPolicy]] = {}
    for policy in PRESETS.values():
        found.setdefault(tier_of(policy), []).append(policy)
    order = (RECOMMENDED, OWN, PAPERS, ADDED)
    return [
        PolicyGroup(*key, tuple(policy.name for policy in sorted(members, key=_is_lossless)))
        for key, members in sorted(found.items(), key=lambda item: order.index(item[0][0]))
    ]


def _is_lossless(policy: KVPolicy) -> bool:
    return all(one.is_lossless for one in policy.all_specs())
