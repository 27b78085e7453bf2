"""The codecs, one file per method; :mod:`kvmm.codecs.registry` knows them by name."""

from typing import TYPE_CHECKING

from kvmm.lazy import lazy_names

if TYPE_CHECKING:
    from kvmm.codecs.base import Codec, EncodeContext, Packed, StoreShape
    from kvmm.codecs.registry import build_codec, check_spec, codec_class, codec_names, register_codec
    from kvmm.codecs.spec import CodecSpec, Side, Site

__all__ = [
    "Codec",
    "CodecSpec",
    "EncodeContext",
    "Packed",
    "Side",
    "Site",
    "StoreShape",
    "Stored",
    "build_codec",
    "check_spec",
    "codec_class",
    "codec_names",
    "register_codec",
]

# a spec is written without torch, which the codecs need
__getattr__, __dir__ = lazy_names(
    __name__,
    {
        **dict.fromkeys(("Codec", "EncodeContext", "Packed", "StoreShape", "Stored"), "kvmm.codecs.base"),
        **dict.fromkeys(
            ("build_codec", "check_spec", "codec_class", "codec_names", "register_codec"), "kvmm.codecs.registry"
        ),
        **dict.fromkeys(("CodecSpec", "Side", "Site"), "kvmm.codecs.spec"),
    },
)
