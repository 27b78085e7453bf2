"""Page stores whose pages can be lowered to a coarser code, or dropped, one head at a time.

Every (page, KV head) is an *entry* (:mod:`kvmm.cache.entries`) with a tier: 0 is the codec of the policy, then its
lower tiers (:meth:`Codec.lower_tier`), and the last number means dropped: no bytes, and scores that no softmax sees.
Each tier keeps its entries' tensors and nothing else, so what lowering frees is really free. Which entry goes where is
the business of :mod:`kvmm.cache.retention`.

Codes cannot be undone: a lower tier is encoded from what the tier above decodes to, and an entry can rise again only if
the store keeps the first tier's codes in the host's memory (``backing``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from kvmm.cache.entries import Tensors
from kvmm.cache.observed import ObservedStore
from kvmm.codecs.base import Codec, EncodeContext, Packed
from kvmm.codecs.tiers import lower_tiers, span_tier
from kvmm.errors import KVMMError
from kvmm.policy import RetentionSettings

_EVERYTHING = RetentionSettings()


class TieredStore(ObservedStore):
    """Entries whose tiers change.

    Args:
        codec: the policy's own.
        page_size: tokens per entry.
        settings: their tiers, and what is learnt of them.
    """

    def __init__(self, codec: Codec, page_size: int, settings: RetentionSettings = _EVERYTHING):
        super().__init__([codec, *lower_tiers(codec, settings.tiers)], page_size, settings)
        self.keeps_backing = settings.rises
        self.backing: Tensors = {}

    @classmethod
    def for_settings(cls, codec: Codec, page_size: int, settings: RetentionSettings) -> TieredStore:
        """The store of a codec under a policy's settings."""
        return cls(codec, page_size, settings)

    # -- new pages --------------------------------------------------------------------------------------------------

    def append(
        self,
        x: torch.Tensor,
        valid: torch.Tensor | None = None,
        query_moment: torch.Tensor | None = None,
        keys: torch.Tensor | None = None,
        mass: torch.Tensor | None = None,
        order: torch.Tensor | None = None,
    ) -> torch.Tensor | None:
        """Encode ``x`` ``[1, H, T, D]`` into new pages of tier 0.

        Args:
            x, valid, query_moment, keys: as in :class:`EncodeContext`.
            mass: float ``[1, H, T]``, the attention that the tokens are known to have got; without it new pages are as
                important as the mean of the others.
            order: int64 ``[H, T]``, the token that each place of a head is to hold; None for the order that the
                settings ask for.

        Returns:
            The order that the places were given, for the store of the values; None if it is that of the tokens.
        """
        if x.shape[0] != 1:
            raise KVMMError("budget= works with one sequence at a time; use a cache a sequence, or leave budget out.")
        if order is None and mass is not None and self.settings.entries == "token":
            rank = mass[0].float() if valid is None else mass[0].float().masked_fill(~valid, -1.0)
            order = rank.argsort(dim=-1, descending=True, stable=True)
        codec, heads = self.tiers[0], x.shape[1]
        pages = -(-x.shape[2] // self.page_size)
        if order is not None:
            x = x.gather(2, order[None, :, :, None].expand_as(x))
            keys = None if keys is None else keys.gather(2, order[None, :, :, None].expand_as(keys))
            mass = None if mass is None else mass.gather(2, order[None])
            # what holds no token comes last in every head
            valid = None if valid is None else torch.arange(x.shape[2], device=x.device) < valid.sum(1, keepdim=True)
        self._extend_order(order, heads, pages, x)
        previous = Packed(self._named("span."), self.page_size, self.page_group) if self.num_pages else None
        context = EncodeContext(self.page_size, valid, query_moment, previous, keys, self.exact_dtype)
        new = codec.encode(x, context)
        if (shared := span_tier(self.tiers)) is not codec:  # exact entries, whose lower tiers have a span
            span = shared.encode(x, context)
            rows = {name: span[name] for name in shared.shared_tensors if name in span.tensors}
            new = Packed(new.tensors | rows, self.page_size, span.page_group)
        first = self.num_pages * heads
        entries = torch.arange(first, first + pages * heads, dtype=torch.int32, device=x.device)
        fresh: Tensors = {}
        buffers = dict(self.buffers)
        for name, tensor in new.tensors.items():
            if new.page_group is not None and name in shared.shared_tensors:
                _extend(buffers, f"span.{name}", tensor)
                continue
            if tensor.shape[1] != heads or tensor.shape[2] % pages:
                raise KVMMError(
                    f"budget= cannot lower pages of codec {codec.name} with these options, whose {name} serves several "
                    "heads or pages; use groups inside a page and norm_scope=head, or leave budget out."
                )
            fresh[name] = tensor[0].unflatten(1, (pages, -1)).transpose(0, 1).flatten(0, 1).unsqueeze(0)
        if new.page_group is not None:
            shifted = new.page_group + self.num_groups
            self.page_group = shifted if self.page_group is None else torch.cat((self.page_group, shifted))
            self.num_groups = max(self.num_groups, int(shifted.max()) + 1)
        for name, tensor in fresh.items():
            _extend(buffers, f"0.{name}", tensor, dim=1)
        _extend(buffers, "0.entries", entries.view(1, 1, -1))
        self.num_heads, self.dim = heads, x.shape[-1]
        self.num_pages += pages
        self._set(buffers)
        self._begin(pages)
        if codec.side == "key" or self.num_tiers > 1:
            self._note_errors(self._chain(fresh, entries.long(), x, valid))
        if codec.side == "key":
            self._note_pages(pages, mass, x.device)
        return order

    def _extend_order(self, order: torch.Tensor | None, heads: int, pages: int, x: torch.Tensor) -> None:
        """Note the slots of the places of new pages, in the smallest integers that hold them."""
        if order is None and self.order is None:
            return
        begin = self.num_pages * self.page_size
        end = begin + pages * self.page_size
        dtype = torch.int16 if end <= torch.iinfo(torch.int16).max else torch.int32
        places = torch.arange(begin, end, device=x.device).repeat(heads, 1)
        if order is not None:
            places[:, : order.shape[1]] = order + begin
        before = torch.arange(begin, device=x.device).repeat(heads, 1) if self.order is None else self.order
        self.order = torch.cat((before.to(dtype), places.to(dtype)), 1)

    def _chain(self, tensors: Tensors, entries: torch.Tensor, x: torch.Tensor, valid: torch.Tensor | None):
        """Make every lower tier exist, if only empty, and measure all: float32 ``[2, num_tiers, pages, H]``."""
        missing = -x.shape[2] % self.page_size
        exact = torch.nn.functional.pad(x.float(), (0, 0, 0, missing))
        exact = exact[0].unflatten(1, (-1, self.page_size)).transpose(0, 1).flatten(0, 1)  # [E, N, D]
        weight = x.new_ones(1, x.shape[2], dtype=torch.float32) if valid is None else valid.float()
        weight = torch.nn.functional.pad(weight, (0, missing)).view(-1, 1, self.page_size)

        def mean_square(vectors: torch.Tensor) -> torch.Tensor:
            square = vectors.square().sum(-1).unflatten(0, (-1, self.num_heads)) * weight
            return square.sum(-1) / weight.sum(-1).clamp_min(1)

        heads = entries % self.num_heads
        unit = 1.0 if self.codec.side == "key" else mean_square(exact).clamp_min(1e-12)
        buffers, found = dict(self.buffers), []
        for tier, codec in enumerate(self.tiers):
            if tier:
                tensors = self._recoded(tensors, entries, tier - 1)
                for name, tensor in tensors.items():
                    buffers.setdefault(f"{tier}.{name}", tensor[:, :0].clone())
                buffers.setdefault(f"{tier}.entries", entries[:0].int().view(1, 1, 0))
            error = codec.page_decode(self._as_heads(tensors, entries, codec), heads)[0] - exact
            largest = (error.square().sum(-1).unflatten(0, (-1, self.num_heads)) * weight).amax(-1).sqrt()
            found.append(torch.stack((mean_square(error) / unit, largest)))
        self._set(buffers)
        return torch.stack(found, 1)

    def _recoded(self, tensors: Tensors, entries: torch.Tensor, tier: int) -> Tensors:
        """Tensors of entries in ``tier``, taken to the next tier; where that has the same code, as they are."""
        codec, lower = self.tiers[tier], self.tiers[tier + 1]
        if codec.spec == lower.spec:
            return tensors
        heads = entries % self.num_heads
        source = codec.page_source(self._as_heads(tensors, entries, codec), heads)
        return lower.page_recode(source, self._as_heads(tensors, entries), heads)

    # -- moving entries ---------------------------------------------------------------------------------------------

    def entry_nbytes(self) -> list[int]:
        """Bytes of one entry in every tier, dropped (0) last."""
        sizes = []
        for tier in range(self.num_tiers):
            tensors = self._named(f"{tier}.").values()
            sizes.append(sum(t[0, :1].nbytes if t.shape[1] else _row(t) for t in tensors) + 4)
        return [*sizes, 0]

    def move(self, target: np.ndarray, run: int = 0) -> None:
        """Give every entry the tier of ``target`` int ``[P, H]``.

        Raises:
            KVMMError: if an entry should rise and its first codes are gone.
        """
        current = self.tier_map()
        moving = np.flatnonzero((target != current).ravel())
        if not len(moving):
            return
        self.flips = self.flips + (target != current)
        self.changed = np.where(target != current, run, self.changed)
        now, then = current.ravel(), target.ravel()
        rising = moving[then[moving] < now[moving]]
        pieces: dict[int, list[tuple[np.ndarray, Tensors]]] = {tier: [] for tier in range(self.num_tiers)}
        backed = self.backing.get("entries")
        if len(rising):
            if backed is None or not np.isin(rising, backed[0, 0].numpy()).all():
                raise KVMMError(
                    "The codes of a higher tier are gone; use RetentionSettings(backing='host') to keep them."
                )
            rows = np.searchsorted(backed[0, 0].numpy(), rising)
            tensors = {n: t[:, rows] for n, t in self.backing.items() if n != "entries"}
            device = self.buffers["0.entries"].device
            self._lowered(rising, {n: t.to(device) for n, t in tensors.items()}, 0, then, pieces)
        for tier in range(self.num_tiers):
            entries = self.buffers[f"{tier}.entries"][0, 0].cpu().numpy()
            tensors = self._named(f"{tier}.")
            stays = np.flatnonzero(then[entries] == tier)
            falls = np.flatnonzero(then[entries] > tier)
            pieces[tier].append((entries[stays], _rows(tensors, stays)))
            if len(falls):
                if tier == 0 and self.keeps_backing:
                    self._back(entries[falls], _rows(tensors, falls))
                self._lowered(entries[falls], _rows(tensors, falls), tier, then, pieces)
        buffers = {name: t for name, t in self.buffers.items() if name.startswith("span.")}
        for tier, found in pieces.items():
            numbers = np.concatenate([entries for entries, _ in found])
            order = np.argsort(numbers, kind="stable")
            device = self.buffers["0.entries"].device
            buffers[f"{tier}.entries"] = torch.as_tensor(numbers[order].astype(np.int32), device=device).view(1, 1, -1)
            for name in self._named(f"{tier}."):
                joined = torch.cat([tensors[name] for _, tensors in found], 1)
                buffers[f"{tier}.{name}"] = joined[:, torch.as_tensor(order, device=joined.device)]
        self._set(buffers)
        self._forget(np.flatnonzero(then == 0))

    def _lowered(
        self,
        entries: np.ndarray,
        tensors: Tensors,
        tier: int,
        then: np.ndarray,
        pieces: dict[int, list[tuple[np.ndarray, Tensors]]],
    ) -> None:
        """Take entries of ``tier`` down step by step, leaving each in ``pieces`` at the tier ``then`` names."""
        while len(entries) and tier < self.num_tiers:
            there = np.flatnonzero(then[entries] == tier)
            if len(there):
                pieces[tier].append((entries[there], _rows(tensors, there)))
            on = np.flatnonzero((then[entries] > tier) & (then[entries] < self.num_tiers))
            if not len(on):
                return
            entries, tensors = entries[on], _rows(tensors, on)
            index = torch.as_tensor(entries, device=next(iter(tensors.values())).device).long()
            tensors = self._recoded(tensors, index, tier)
            tier += 1

    def _back(self, entries: np.ndarray, tensors: Tensors) -> None:
        rows = {name: t.to("cpu", copy=True) for name, t in tensors.items()}
        backing = dict(self.backing)
        for name, tensor in rows.items():
            _extend(backing, name, tensor, dim=1)
        _extend(backing, "entries", torch.as_tensor(entries.astype(np.int32)).view(1, 1, -1))
        order = backing["entries"][0, 0].argsort(stable=True)
        self.backing = {n: t[:, :, order] if n == "entries" else t[:, order] for n, t in backing.items()}

    def _forget(self, entries: np.ndarray) -> None:
        """Drop the backing of entries that are in the first tier again."""
        if not self.backing:
            return
        kept = np.flatnonzero(~np.isin(self.backing["entries"][0, 0].numpy(), entries))
        rows = torch.as_tensor(kept)
        self.backing = {n: t[:, :, rows] if n == "entries" else t[:, rows] for n, t in self.backing.items()}

    # -- the rest of a store ----------------------------------------------------------------------------------------

    def _set(self, buffers: Tensors) -> None:
        self._replace(dict(buffers))
        self.sizes = {name: tensor.shape[2] for name, tensor in self.buffers.items()}

    def index_batch(self, index: torch.Tensor) -> None:
        if index.tolist() != [0]:
            raise KVMMError("A cache with a budget holds one sequence and cannot be repeated; leave budget out.")

    def to(self, device: torch.device | str) -> None:
        super().to(device)
        for name, tensor in self._state_tensors().items():
            setattr(self, name, tensor.to(device))

    def state(self) -> tuple[Tensors, dict[str, Any]]:
        tensors = dict(self.buffers) | {f"state.{n}": t for n, t in self._state_tensors().items()}
        tensors |= {f"backing.{name}": tensor for name, tensor in self.backing.items()}
        if self.page_group is not None:
            tensors["page_group"] = self.page_group
        values = {name: getattr(self, name) for name in ("num_pages", "num_heads", "num_groups", "dim")}
        return tensors, values | {"since": self.since, "changed": self.changed.tolist(), "flips": self.flips.tolist()}

    def restore(self, tensors: Tensors, values: Mapping[str, Any]) -> None:
        tensors = dict(tensors)
        self.page_group = tensors.pop("page_group", None)
        for name in [n for n in tensors if n.startswith("state.")]:
            setattr(self, name.removeprefix("state."), tensors.pop(name))
        backing = [n for n in tensors if n.startswith("backing.")]
        self.backing = {name.removeprefix("backing."): tensors.pop(name).cpu() for name in backing}
        self.num_pages, self.num_heads = int(values["num_pages"]), int(values["num_heads"])
        self.num_groups, self.dim = int(values["num_groups"]), int(values["dim"])
        self.since = int(values.get("since", 0))
        shape = (self.num_pages, self.num_heads)
        self.changed, self.flips = (np.array(values[n], dtype=np.int64).reshape(shape) for n in ("changed", "flips"))
        self._set(tensors)

    def nbytes(self) -> dict[str, int]:
        sizes: dict[str, int] = {}
        for name, tensor in self.buffers.items():
            kind = name.partition(".")[2]
            kind = "page_table" if kind == "entries" else kind
            sizes[kind] = sizes.get(kind, 0) + tensor.nbytes
        if self.page_group is not None:
            sizes["page_table"] = sizes.get("page_table", 0) + self.page_group.nbytes
        if state := sum(t.nbytes for t in self._state_tensors().values()):
            sizes["retention"] = state
        if self.backing:
            sizes["backing"] = sum(t.nbytes for t in self.backing.values())
        return sizes


def _extend(buffers: Tensors, name: str, tensor: torch.Tensor, dim: int = 2) -> None:
    old = buffers.get(name)
    buffers[name] = tensor if old is None else torch.cat((old, tensor), dim)


def _rows(tensors: Tensors, rows: np.ndarray) -> Tensors:
    return {name: t[:, torch.as_tensor(rows, device=t.device)] for name, t in tensors.items()}


def _row(tensor: torch.Tensor) -> int:
    """Bytes of one entry of an empty buffer."""
    count = tensor.element_size()
    for size in tensor.shape[2:]:
        count *= size
    return count
