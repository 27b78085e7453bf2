"""The codecs by name. To add one: write its file, then add one line to ``_CODECS``."""

from __future__ import annotations

from kvmm.codecs.base import Codec
from kvmm.codecs.bf16 import BF16
from kvmm.codecs.calibquant import CalibQuant
from kvmm.codecs.kitty import Kitty
from kvmm.codecs.kivi import KIVI
from kvmm.codecs.oscar import OScaR
from kvmm.codecs.ott import OTT
from kvmm.codecs.quarot import QuaRot
from kvmm.codecs.rd.codec import RD
from kvmm.codecs.rotatekv import RotateKV
from kvmm.codecs.spec import CodecSpec, Side, Site
from kvmm.codecs.spherical.codec import Spherical
from kvmm.codecs.turboquant import TurboQuant
from kvmm.errors import KVMMError

_CODECS: dict[str, type[Codec]] = {
    "bf16": BF16,
    "kivi": KIVI,
    "oscar": OScaR,
    "calibquant": CalibQuant,
    "spherical": Spherical,
    "kitty": Kitty,
    "quarot": QuaRot,
    "rotatekv": RotateKV,
    "ott": OTT,
    "turboquant": TurboQuant,
    "rd": RD,
}


def codec_names() -> tuple[str, ...]:
    """The names of the registered codecs."""
    return tuple(_CODECS)


def codec_class(name: str) -> type[Codec]:
    """The class of a registered codec; :class:`KVMMError` lists the names if there is none."""
    if name not in _CODECS:
        raise KVMMError(f"Unknown codec {name!r}; choose one of: {', '.join(_CODECS)}.")
    return _CODECS[name]


def check_spec(spec: CodecSpec) -> None:
    """Raise :class:`KVMMError` if a spec names an unknown codec, option or value."""
    codec_class(spec.codec).check(spec)


def build_codec(spec: CodecSpec, side: Side, site: Site | None = None) -> Codec:
    """The codec of a spec for keys or values; ``site`` says of which layer, modality and model."""
    check_spec(spec)
    return codec_class(spec.codec)(spec, side, site)


__all__ = ["build_codec", "check_spec", "codec_class", "codec_names"]
