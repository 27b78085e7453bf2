"""What a codec is.

A codec stores one tensor (the keys or the values of one modality). It is a pure pair ``encode`` / ``decode`` plus how
the codes meet a query: ``scores`` for keys, ``weighted_values`` for values, both in the codec's own *basis* (a
rotation, for instance), which the driver applies to the query and undoes on the output once for all stores that share
it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch

from kvmm.codecs.spec import CodecSpec, Side, Site
from kvmm.errors import KVMMError
from kvmm.fields import Field
from kvmm.kernels.quantize import BITS

if TYPE_CHECKING:
    from kvmm.calibration.data import SiteSamples
    from kvmm.kernels.angle.format import AngleFormat
    from kvmm.kernels.attention.format import DenseFormat, PackedFormat

PAGE_SIZE = 128  # tokens
_MIN_PAGE_SIZE = 32
PAGED = ("codes", "values")  # tensors with one row a page: a codec without ``page_group`` stores one of them


Rows = Literal["page", "group", "span", "token"]


@dataclass(frozen=True)
class Stored:
    """What a page store has to know of a tensor ``[B, H, n, ...]`` that a codec stores.

    Attributes:
        rows: what its ``n`` rows belong to: ``page`` (as many to every page), ``group`` (one a group of pages, which
            ``page_group`` points into), ``span`` (one for all pages) or ``token`` (to single tokens).
        fill: what rows hold that there is room for and that are not in use: a number, or ``last slot``, the number of
            the last slot that there is room for, which stays empty.
    """

    rows: Rows = "page"
    fill: int | Literal["last slot"] = 0


@dataclass
class Packed:
    """What ``encode`` returns and a page store keeps.

    Attributes:
        tensors: named tensors ``[B, H, n, ...]`` that grow along dimension 2 (pages or groups). The name says what
            ``memory()`` counts it as: ``codes``, ``scale``, ``zero_point``, ``norm``, ``values``, ...
        page_size: tokens a page.
        page_group: integer ``[P]``, the group of each page where a group is longer than a page and there is more than
            one; else None. ``encode`` counts from the groups that the store already holds, so negative numbers reuse
            those.
        num_pages: int32 ``[1]`` on the device, how many of the pages that the tensors have room for are in use; None
            if all are. Only attention reads such a ``Packed``: its other methods want tensors without room.
        shared_group: the group that all pages share where that is known without asking the device, else None.
    """

    tensors: dict[str, torch.Tensor]
    page_size: int
    page_group: torch.Tensor | None = None
    num_pages: torch.Tensor | None = None
    shared_group: int | None = None

    def __getitem__(self, name: str) -> torch.Tensor:
        return self.tensors[name]

    @property
    def slots(self) -> int:
        """Tokens that there is room for in the pages."""
        if self.page_group is not None:
            return len(self.page_group) * self.page_size
        return next(self.tensors[name] for name in PAGED if name in self.tensors).shape[2] * self.page_size

    @cached_property
    def only_group(self) -> int | None:
        """The group that all pages share, if there is one: asked at every step, read from the device once."""
        if self.shared_group is not None or self.num_pages is not None:
            return self.shared_group
        groups = [] if self.page_group is None else self.page_group.unique().tolist()
        return groups[0] if len(groups) == 1 else None


@dataclass(frozen=True)
class StoreShape:
    """The sizes that the tensors of a store follow from.

    Attributes:
        batch, heads, pages: ``B``, ``H`` and ``P``.
        page_size: ``N``, tokens a page.
        dim: ``D``, channels of a vector.
        exact_dtype: of what the codec keeps as it is.
        device: where the codec's own tables are wanted.
    """

    batch: int
    heads: int
    pages: int
    page_size: int
    dim: int
    exact_dtype: torch.dtype
    device: torch.device = torch.device("cpu")  # noqa: RUF009 - immutable


@dataclass(frozen=True)
class EncodeContext:
    """What a codec may know about the tokens it encodes.

    Attributes:
        page_size: tokens a page.
        valid: bool ``[B, T]``, False at slots that hold no token (their values copy a real token of the same
            sequence, so minima and maxima may ignore it; means must not), or None if all do.
        query_moment: float32 ``[B, H_kv, D, D]``, the mean of ``q q^T`` over the prompt's queries of each KV head
            (before the softmax scale), or None if the codec did not ask for it (``needs_queries``) or none is known.
        previous: what the store already holds, or None.
        keys: for values, the keys ``[B, H, T, D]`` of the same tokens, or None if they are not known.
        exact_dtype: the dtype of what the codec keeps as it is (:mod:`kvmm.kernels.exact`); None: that of the input.
    """

    page_size: int = PAGE_SIZE
    valid: torch.Tensor | None = None
    query_moment: torch.Tensor | None = None
    previous: Packed | None = None
    keys: torch.Tensor | None = None
    exact_dtype: torch.dtype | None = None


def page_size_for(tokens: int) -> int:
    """Tokens a page for a store that starts with ``tokens`` tokens.

    128, unless the last page would then leave more than 1/16 of the store unused: a single image of a few hundred
    tokens gets pages of 64 or 32, so that padding does not eat what the codec saves.
    """
    size = PAGE_SIZE
    while size > _MIN_PAGE_SIZE and -tokens % size > tokens / 16:
        size //= 2
    return size


class Codec(ABC):
    """Base of all codecs. Subclasses are registered in :mod:`kvmm.codecs`."""

    name: ClassVar[str]
    bits: ClassVar[tuple[int, ...]] = BITS
    options: ClassVar[Mapping[str, tuple[Any, ...]]] = {}  # option -> the values it may take, the default first
    calibrates_logits: bool = False
    needs_queries: bool = False  # whether ``encode`` wants the prompt's query moments
    wants_calibration: bool = False  # whether a policy had better use another codec where there is no fit
    pages_stand_alone: bool = False  # whether a page of one head can be read without the others
    # whether a constant that all keys of a span share (a key bias) is stored beside the codes and costs no accuracy
    absorbs_bias: bool = True
    inherits: tuple[str, ...] = ()  # what pages share that a lower tier takes from the first one
    stored: Mapping[str, Stored] = {}  # of the tensors that are not of rows by page
    # whether ``encode`` of a page behind others is the same work for every page, so that it can be captured: it asks
    # the device nothing, and reads of ``previous`` only tensors that such a page adds nothing to
    static_encode: bool = False
    # whether tokens can be added to a page that is not full: behind a first page, what is stored of a token depends on
    # that token and on what pages share
    opens_pages: bool = False
    stream_tensors: tuple[str, ...] = ()  # those that hold codes which files keep as streams

    def __init__(self, spec: CodecSpec, side: Side, site: Site | None = None):
        self.spec = spec
        self.side = side
        self.site = site or Site()

    @classmethod
    def check(cls, spec: CodecSpec) -> None:
        """Raise :class:`KVMMError` if the spec asks for something the codec does not offer."""
        if spec.bits not in cls.bits:
            raise KVMMError(f"Codec {cls.name} stores {_either(cls.bits)} bits, not {spec.bits}.")
        group = spec.group_size
        if group is not None and (
            isinstance(group, bool) or not isinstance(group, int) or not 16 <= group <= 2**16 or group & (group - 1)
        ):
            raise KVMMError(f"group_size must be a power of two from 16 to 65536, not {group!r}.")
        cls.check_options(spec)

    @classmethod
    def check_options(cls, spec: CodecSpec) -> None:
        """Raise :class:`KVMMError` for an unknown option or value."""
        for name, value in spec.options:
            if name not in cls.options:
                raise KVMMError(f"Codec {cls.name} has no option {name!r}; it has: {', '.join(cls.options) or 'none'}.")
            allowed = cls.options[name]
            if len(allowed) > 1 and value not in allowed:
                raise KVMMError(f"Codec {cls.name}: {name} must be {_either(allowed)}, not {value!r}.")

    @classmethod  # noqa: B027 - most codecs take any
    def check_model(cls, spec: CodecSpec, head_dim: int) -> None:
        """Raise :class:`KVMMError` if the codec cannot store vectors of ``head_dim`` channels."""

    @property
    def shared_tensors(self) -> tuple[str, ...]:
        """Names of the tensors that pages share, by ``page_group`` where there is one."""
        return tuple(name for name, stored in self.stored.items() if stored.rows in ("group", "span"))

    def option(self, name: str) -> Any:
        """An option's value, or its default."""
        return self.spec.option(name, self.options[name][0])

    @classmethod
    def fit(cls, samples: SiteSamples) -> dict[str, torch.Tensor]:
        """Tensors for the calibration file, fitted to one site; they come back through ``site.calibration``.

        ``kvmm calibrate`` calls this for every codec, layer, side and modality. Most codecs need nothing.
        """
        return {}

    @classmethod  # noqa: B027 - most codecs are fitted to nothing
    def check_fit(
        cls, tensors: Mapping[str, torch.Tensor], side: str, heads: int | str, dim: int | str, where: str
    ) -> None:
        """Check what a calibration file has for one site, before the codec reads it.

        Args:
            tensors: by name; what the codec does not know is passed over, because nothing reads it.
            side: ``key`` or ``value``.
            heads, dim: KV heads and channels of the model, or names for sizes that are not known yet.
            where: what names in messages begin with.

        Raises:
            KVMMError: with the name of a tensor that is not as :meth:`fit` makes it.
        """

    @classmethod  # noqa: B027 - most codecs keep nothing there
    def check_metadata(cls, metadata: Mapping[str, Any]) -> None:
        """Check what a calibration file's metadata have for the codec; raises as :meth:`check_fit`."""

    @classmethod
    def reads_calibration(cls, spec: CodecSpec) -> bool:
        """Whether what is stored depends on the calibration file where there is one; by default if there is a
        :meth:`fit`.
        """
        return cls.fit.__func__ is not Codec.fit.__func__

    @property
    def transform_id(self) -> Hashable:
        """Codecs with equal ids share one transform of the query, or one inverse transform of the output."""
        return "identity"

    def transform_query(self, query: torch.Tensor) -> torch.Tensor:
        """Apply the transform of the stored keys to queries ``[B, H, Q, D]``."""
        return query

    def restore_output(self, output: torch.Tensor) -> torch.Tensor:
        """Apply the inverse transform of the stored values to weighted values ``[B, H, Q, D]``."""
        return output

    def calibrate_logits(self, scores: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """Calibrate the scaled scores ``[B, H, Q, T]`` of this store before the softmax (``calibrates_logits``).

        ``bias`` is ``[B, 1, q or 1, T]``, very negative at slots that hold no token, or None.
        """
        return scores

    @abstractmethod
    def encode(self, x: torch.Tensor, context: EncodeContext) -> Packed:
        """Encode ``x`` ``[B, H, T, D]``, any float dtype, into pages."""

    def fields(self, store: StoreShape, tensors: Mapping[str, torch.Tensor]) -> dict[str, Field]:
        """What ``encode`` stores: of every tensor its dtype, its shape and the values it may hold, besides
        ``page_group`` where pages have one. Tensors of a file are compared with it before anything reads them.

        Args:
            store: the sizes.
            tensors: what a file has, where the declaration of one tensor depends on the values of another.

        Raises:
            KVMMError: if the codec declares nothing, so that its caches cannot be read from files; or with the name of
                a tensor that others depend on and that is not as it must be.
        """
        raise KVMMError(f"codec {self.name} does not declare what it stores, so its caches are not read from files")

    def merge_pages(
        self, old: Mapping[str, torch.Tensor], new: Mapping[str, torch.Tensor], slots: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        """Pages ``[B, H, n, ...]`` of ``old`` with what ``new`` has in some slots (``opens_pages``).

        Args:
            old, new: the tensors with rows by page, by name.
            slots: bool ``[page_size]``.
        """
        raise KVMMError(f"Codec {self.name} fills pages as a whole.")

    def stream_bits(self, dim: int) -> torch.Tensor | None:
        """uint8 ``[C]``, bits of the channels that have codes, for vectors of ``dim``; None: files keep pages as they
        are."""
        return None

    def streams(self, packed: Packed) -> torch.Tensor:
        """The codes uint8 ``[B, H, T, C]`` of pages on a CPU, for files (``stream_bits``)."""
        raise KVMMError(f"Codec {self.name} has no streams.")

    def from_streams(self, codes: torch.Tensor, page_size: int, device: torch.device) -> dict[str, torch.Tensor]:
        """The tensors ``stream_tensors`` of :meth:`streams`, for pages on ``device``."""
        raise KVMMError(f"Codec {self.name} has no streams.")

    @abstractmethod
    def decode(self, packed: Packed) -> torch.Tensor:
        """Decode to float32 ``[B, H, P * page_size, D]``, in the model's basis."""

    def scores(self, query: torch.Tensor, packed: Packed) -> torch.Tensor:
        """``q . k``: transformed queries ``[B, H, Q, D]`` to ``[B, H, Q, P * page_size]``. For keys."""
        raise KVMMError(f"Codec {self.name} does not store keys.")

    def weighted_values(self, probabilities: torch.Tensor, packed: Packed) -> torch.Tensor:
        """``sum_t p_t v_t``: ``[B, H, Q, P * page_size]`` to ``[B, H, Q, D]`` in the codec's basis. For values."""
        raise KVMMError(f"Codec {self.name} does not store values.")

    def packed_format(self, packed: Packed) -> PackedFormat | DenseFormat | AngleFormat | None:
        """How kernels read ``packed`` in place (:mod:`kvmm.kernels.attention`).

        None if only ``scores`` and ``weighted_values`` do.
        """
        return None

    # -- single pages, for stores that lower or drop them one by one (``pages_stand_alone``) ------------------------
    # ``packed`` holds E pages as E heads of one page each; ``heads`` int64 ``[E]`` says which heads they belong to.

    def page_scores(self, query: torch.Tensor, packed: Packed, heads: torch.Tensor) -> torch.Tensor:
        """:meth:`scores` of single pages: ``[1, H, Q, D]`` to ``[1, E, Q, page_size]``."""
        return self.scores(query.index_select(1, heads), packed)

    def page_weighted_values(
        self, probabilities: torch.Tensor, packed: Packed, heads: torch.Tensor, num_heads: int
    ) -> torch.Tensor:
        """:meth:`weighted_values` of single pages, added up by head.

        ``[1, E, Q, page_size]`` to ``[1, num_heads, Q, D]``.
        """
        mixed = self.weighted_values(probabilities, packed)
        return mixed.new_zeros(1, num_heads, *mixed.shape[2:]).index_add_(1, heads, mixed)

    def page_decode(self, packed: Packed, heads: torch.Tensor) -> torch.Tensor:
        """:meth:`decode` of single pages: ``[1, E, page_size, D]``."""
        return self.decode(packed)

    def page_source(self, packed: Packed, heads: torch.Tensor) -> torch.Tensor:
        """What a lower tier encodes: :meth:`page_decode`, without what the codec adds to help attention."""
        return self.page_decode(packed, heads)

    def page_recode(self, x: torch.Tensor, packed: Packed, heads: torch.Tensor) -> dict[str, torch.Tensor]:
        """For lower tiers: page tensors of ``x`` ``[1, E, page_size, D]``, with the span tensors of ``packed``.

        Raises:
            KVMMError: if the codec stores what several pages share.
        """
        new = self.encode(x, EncodeContext(packed.page_size))
        if new.page_group is not None:
            raise KVMMError(
                f"retention tiers: codec {self.name} with these options shares data between pages and cannot be a "
                "lower tier; use groups inside a page."
            )
        return new.tensors

    def lower_tier(self) -> Codec | None:
        """The next codec down that can take over a page of this one, sharing its span tensors; None if none can."""
        return None


def _either(values: tuple[Any, ...]) -> str:
    names = [str(v) for v in values]
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"
