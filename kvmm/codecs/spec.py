"""What says how one tensor of one modality is stored, and of which layer and model it is; no codec is needed for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from kvmm.modality_codes import TEXT

if TYPE_CHECKING:
    from kvmm.calibration.data import Calibration

Side = Literal["key", "value"]


@dataclass(frozen=True)
class CodecSpec:
    """How one tensor (keys or values) of one modality is stored.

    Attributes:
        codec: a registered codec name, see :func:`kvmm.codecs.codec_names`.
        bits: bits a code; 16 for ``bf16``, which keeps tokens exact (``KVPolicy.exact_dtype``). Codecs that give
            channels different numbers of bits take an average, such as 2.25.
        group_size: elements that share one scale: tokens for a per-channel code, channels for a per-token code
            (capped at ``head_dim``). ``None`` means the codec's own unit: the whole span of a modality.
        options: codec options as sorted pairs, so that a spec stays hashable. Use :func:`spec` to write them.
    """

    codec: str = "bf16"
    bits: float = 16
    group_size: int | None = None
    options: tuple[tuple[str, Any], ...] = ()

    @property
    def is_lossless(self) -> bool:
        """Whether the codec keeps tokens exact; bit overrides leave such a spec alone."""
        return self.codec == "bf16"

    def option(self, name: str, default: Any = None) -> Any:
        """The value of one option, or ``default``."""
        return dict(self.options).get(name, default)


def spec(codec: str, bits: float = 16, group_size: int | None = None, **options: Any) -> CodecSpec:
    """Write a :class:`CodecSpec`; keyword arguments after ``group_size`` are codec options."""
    return CodecSpec(codec, bits, group_size, tuple(sorted(options.items())))


@dataclass(frozen=True)
class Site:
    """Whose keys or values a codec stores, for codecs that know the model.

    Attributes:
        layer: index of the decoder layer.
        modality: a code of :mod:`kvmm.modality`.
        calibration: what was fitted to this model offline, or None.
        sibling: the spec of the other side (values for keys, keys for values), or None.
    """

    layer: int = 0
    modality: int = TEXT
    calibration: Calibration | None = None
    sibling: CodecSpec | None = None

    def __deepcopy__(self, memo: dict) -> Site:
        return self  # immutable, and the calibration is shared by all caches of a model


__all__ = ["CodecSpec", "Side", "Site", "spec"]
