"""The codecs by name. To add one: write its file, then add one line to ``_CODECS``.

A codec of another package is added by :func:`register_codec`.
"""

from __future__ import annotations

import inspect
import re

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
from kvmm.codecs.spherical.angles import SphericalAngles
from kvmm.codecs.spherical.codec import Spherical
from kvmm.codecs.turboquant import TurboQuant
from kvmm.errors import KVMMError, unknown_name

_CODECS: dict[str, type[Codec]] = {
    "bf16": BF16,
    "kivi": KIVI,
    "oscar": OScaR,
    "calibquant": CalibQuant,
    "spherical": Spherical,
    "spherical-angles": SphericalAngles,
    "kitty": Kitty,
    "quarot": QuaRot,
    "rotatekv": RotateKV,
    "ott": OTT,
    "turboquant": TurboQuant,
    "rd": RD,
}


def register_codec(codec: type[Codec]) -> type[Codec]:
    """Register a codec under its ``name``: policies, policy files, saved caches and the test matrix then know it.

    A class decorator. A class that its own module defines again, as a notebook's cell does, replaces the older one.

    Args:
        codec: a subclass of :class:`Codec` without abstract methods.

    Returns:
        ``codec``.

    Raises:
        KVMMError: if it is no codec, or its name is not a lowercase word or another codec's.
    """
    if not (inspect.isclass(codec) and issubclass(codec, Codec)):
        raise KVMMError(f"register_codec takes a subclass of kvmm's Codec, not {codec!r}.")
    name = codec.__dict__.get("name")
    if not isinstance(name, str) or not re.fullmatch(r"[a-z][a-z0-9_-]*", name):
        raise KVMMError(f"{codec.__name__} needs a name of its own, such as name = {codec.__name__.lower()!r}.")
    if missing := sorted(codec.__abstractmethods__):
        raise KVMMError(f"Codec {name} does not define {', '.join(missing)}.")
    known = _CODECS.get(name)
    if known is not None and (known.__module__, known.__qualname__) != (codec.__module__, codec.__qualname__):
        raise KVMMError(f"There is a codec {name!r} already ({known.__module__}.{known.__qualname__}); rename yours.")
    _CODECS[name] = codec
    return codec


def codec_names() -> tuple[str, ...]:
    """The names of the registered codecs."""
    return tuple(_CODECS)


def codec_class(name: str) -> type[Codec]:
    """The class of a registered codec; :class:`KVMMError` lists the names if there is none."""
    if name not in _CODECS:
        raise unknown_name("codec", name, _CODECS)
    return _CODECS[name]


def check_spec(spec: CodecSpec) -> None:
    """Raise :class:`KVMMError` if a spec names an unknown codec, option or value."""
    codec_class(spec.codec).check(spec)


def build_codec(spec: CodecSpec, side: Side, site: Site | None = None) -> Codec:
    """The codec of a spec for keys or values; ``site`` says of which layer, modality and model."""
    check_spec(spec)
    return codec_class(spec.codec)(spec, side, site)


__all__ = ["build_codec", "check_spec", "codec_class", "codec_names", "register_codec"]
