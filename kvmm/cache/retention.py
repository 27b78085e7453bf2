"""Rate-distortion retention (Spherical KV): which pages to lower, and which to drop, to stay inside a budget.

Minimise ``sum_i D_i(b_i)`` subject to ``sum_i bytes_i(b_i) <= budget`` over *entries* ``i`` (a page of one KV head, or
of all heads of a layer) and tiers ``b``, each a code of keys and one of values. The budget is of resident bytes: all of
:meth:`KVMMCache.memory` but the backing in host memory. Sinks, the residual and pinned spans are never touched. With
``entries="token"`` a page of a head holds tokens of like importance instead of neighbours, so that choosing pages is
choosing tokens, head by head.

The distortion of an entry is the attention mass it is expected to get times the part of it that its tier spoils,

    D_i(b) = w_i m_i (1 - exp(-sigma_i(b) - rho_i(b))),   D_i(dropped) = w_i m_i,

with ``m_i`` the moving average of attention mass (of its maximum over ``window`` steps), ``sigma_i(b)`` the standard
deviation of the error of its logits (from the error that was measured when the page was encoded, and the size of the
queries seen since), ``rho_i(b)`` the relative error of its values, measured likewise, and ``w_i`` the weight of its
segment and modality. The form of ``D`` is kvmm's own: the paper leaves it to measurements of the implementation.

An entry goes down one tier at a time and is dropped from the last one; next is always the step with the smallest extra
distortion a byte freed, ties broken by layer, head, page. As every step of an entry waits for the one before, the order
of all steps is one sort, and the plan is its shortest prefix that frees enough (:mod:`kvmm.cache.retention_plan`, where
caps of layers and heads enter, and their prices).

With backing, entries may rise. Steps already taken then count as ``hysteresis`` times cheaper than they are, so that an
entry rises only where that gains clearly more than another entry's going down loses; an entry that has just changed
waits for ``cooldown`` runs, and ``stickiness`` is what any change must gain besides. Without backing codes of higher
tiers are gone, and entries only go down.

Nothing is random, so equal prompts and settings give equal decisions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from kvmm.cache.eviction import drop_order
from kvmm.cache.layer import KVMMLayer
from kvmm.cache.memory import left_tensors
from kvmm.cache.retention_plan import Choices, Planned, plan
from kvmm.cache.state import CacheState
from kvmm.cache.tiers import TieredStore
from kvmm.errors import KVMMError
from kvmm.modality import MODALITY_NAMES
from kvmm.policy import KVPolicy

if TYPE_CHECKING:
    from kvmm.cache.part import Part


class RetentionController:
    """Keeps one cache inside its budget.

    Attributes:
        runs: how often the controller has run.
        pins: pinned spans of positions.
        last: what the last run changed: dicts of layer, modality, head (None for all), page, from, to.
    """

    def __init__(self, policy: KVPolicy):
        self.policy = policy
        self.settings = policy.retention
        self.clear()

    def clear(self) -> None:
        """Forget everything but the settings."""
        self.pins: list[tuple[int, int]] = []
        self.steps = 0
        self.runs = 0
        self.last: list[dict[str, Any]] = []
        self.prices: dict[str, Any] = {}
        self.counts = {"lowered": 0, "dropped": 0, "raised": 0}

    def pin(self, start: int, end: int) -> None:
        """Never touch the pages with positions ``start`` to ``end`` (not included)."""
        if not 0 <= start < end:
            raise KVMMError(f"A pinned span needs 0 <= start < end, not {start} to {end}.")
        self.pins.append((int(start), int(end)))

    # -- when -------------------------------------------------------------------------------------------------------

    def after_step(self, cache: CacheState, new_tokens: int) -> None:
        """Run if it is time, or if the cache has outgrown its budget; a prompt being read is left alone."""
        if new_tokens > self.settings.interval or not cache.is_packed:
            return
        self.steps += 1
        if self.steps % self.settings.interval == 0 or resident_nbytes(cache) > self.policy.budget:
            self.run(cache)

    def run(self, cache: CacheState) -> None:
        """Plan and carry out; afterwards the budget holds."""
        self.runs += 1
        members = list(_members(cache))
        found = self._plan(cache, members)
        self.prices = found.prices
        self.last = []
        for (layer, modality, part), target in zip(members, found.targets, strict=True):
            heads = part.key.num_heads
            current = part.key.tier_map()[:, : target.shape[1]]
            for page, unit in np.argwhere(target != current):
                old, new = int(current[page, unit]), int(target[page, unit])
                name = "raised" if new < old else "dropped" if new == part.key.num_tiers else "lowered"
                self.counts[name] += heads if target.shape[1] == 1 else 1
                head = None if target.shape[1] == 1 and heads > 1 else int(unit)
                change = {"layer": layer, "modality": MODALITY_NAMES[modality], "head": head, "page": int(page)}
                self.last.append(change | {"from": old, "to": new})
            target = np.broadcast_to(target, (target.shape[0], heads))
            part.key.move(target, self.runs)
            part.value.move(_value_tiers(target, part), self.runs)
            if self.settings.margin_gate:
                part.key.margin.fill_(float("inf"))

    def _plan(self, cache: CacheState, members: list[tuple[int, int, Part]]) -> Planned:
        """The plan as things stand."""
        choices = [self._choices(cache, *member) for member in members]
        if self.settings.evicts and members:
            newest = [self._positions(cache, modality, part).max(1) for _, modality, part in members]
            importance = [part.key.importance.double().cpu().numpy() for _, _, part in members]
            if self.settings.heads == "uniform":
                newest, importance = ([x.mean(1, keepdims=True) for x in one] for one in (newest, importance))
            sparsity = [0.0 if (s := part.key.sparsity) is None else float(s) for _, _, part in members]
            layers = [layer for layer, _, _ in members]
            orders = drop_order(self.settings.selection, layers, importance, newest, sparsity)
            choices = [replace(c, order=order) for c, order in zip(choices, orders, strict=True)]
        return plan(choices, resident_nbytes(cache), self.policy.budget, self.settings)

    # -- what the plan sees -----------------------------------------------------------------------------------------

    def _choices(self, cache: CacheState, layer: int, modality: int, part: Part) -> Choices:
        settings, key = self.settings, part.key
        positions = self._positions(cache, modality, part)
        tier = key.tier_map()
        energy = key.energy.nan_to_num(1.0 / key.dim).double().cpu().numpy()
        mass = key.importance.double().cpu().numpy()
        weight = self._segment_weight(positions, cache.table.length) * settings.modality_weights[modality]
        mass = mass * weight
        error = np.maximum.accumulate(key.error.double().cpu().numpy(), axis=0)
        noise = np.sqrt(error * energy)
        if part.value.num_tiers > 1:
            noise = noise + np.sqrt(np.maximum.accumulate(part.value.error.double().cpu().numpy(), axis=0))
        spoiled = 1 - np.exp(-noise)
        distortion = np.concatenate((mass * spoiled, mass[None]))
        nbytes = np.broadcast_to(_entry_nbytes(part)[:, None, None], distortion.shape)
        fixed = self._pinned(positions)
        resting = (key.changed >= 0) & (self.runs - key.changed <= settings.cooldown)
        gated = np.zeros(distortion.shape, dtype=bool)
        if settings.margin_gate:
            largest = np.maximum.accumulate(key.largest_error.double().cpu().numpy(), axis=0)
            bound = 2 * largest * np.sqrt(energy * key.dim)  # two logits may err in opposite directions
            margin = key.margin.double().cpu().numpy()
            gated = np.concatenate((bound > margin, np.isfinite(margin)[None]))
        if settings.heads == "uniform":
            distortion, nbytes = (x.sum(2, keepdims=True) for x in (distortion, nbytes))
            tier, fixed = tier[:, :1], fixed[:, :1]
            resting, gated = resting.any(1, keepdims=True), gated.any(2, keepdims=True)
        return Choices(layer, modality, distortion, nbytes, tier, fixed, resting, gated)

    def _positions(self, cache: CacheState, modality: int, part: Part) -> np.ndarray:
        """int32 ``[P, page_size, H]``: the position of the token at every place, -1 where there is none."""
        slots, key = cache.table.stores[modality][0].cpu(), part.key
        places = slots.expand(key.num_heads, -1) if key.order is None else slots[key.order.cpu().long()]
        return places.T.reshape(key.num_pages, -1, key.num_heads).numpy()

    def _pinned(self, positions: np.ndarray) -> np.ndarray:
        """bool ``[P, H]``: the entries that hold a pinned position."""
        pinned = np.zeros((len(positions), positions.shape[2]), dtype=bool)
        for start, end in self.pins:
            pinned |= ((positions >= start) & (positions < end)).any(1)
        return pinned

    def _segment_weight(self, positions: np.ndarray, length: int) -> np.ndarray:
        """float64 ``[P, H]``: the weight of each entry's segment; of tokens in several segments, their mean."""
        prefix, retrieved, recent = self.settings.segment_weights
        weight = np.full(positions.shape, float(retrieved))
        weight[positions >= length - self.settings.recent_length] = recent
        weight[positions < self.settings.prefix_length] = prefix
        held = positions >= 0
        return np.where(held, weight, 0.0).sum(1) / np.maximum(held.sum(1), 1)

    # -- report -----------------------------------------------------------------------------------------------------

    def report(self, cache: CacheState) -> dict[str, Any]:
        """What the controller did and where things stand, for JSON; see :meth:`KVMMCache.retention_report`."""
        entries, shares, distortion, held = [], [], 0.0, 0
        by_layer: dict[int, np.ndarray] = {}
        for layer, modality, part in _members(cache):
            key, tier = part.key, part.key.tier_map()
            c = self._choices(cache, layer, modality, part)
            distortion += float(np.take_along_axis(c.distortion, c.tier[None], 0).sum())
            by_layer[layer] = by_layer.get(layer, 0) + _entry_nbytes(part)[tier].sum(0)
            held += int((tier < key.num_tiers).sum())
            for head in range(key.num_heads):
                entries.append(
                    {
                        "layer": layer,
                        "modality": MODALITY_NAMES[modality],
                        "head": head,
                        "tier_names": [*_tier_names(part), "dropped"],
                        "tiers": tier[:, head].tolist(),
                        "flips": key.flips[:, head].tolist(),
                        "importance": [round(x, 8) for x in key.importance[:, head].tolist()],
                    }
                )
        for layer, nbytes in sorted(by_layer.items()):
            total = max(int(nbytes.sum()), 1)
            shares.append({"layer": layer, "share_by_head": [round(float(b) / total, 6) for b in nbytes]})
        count = sum(len(e["tiers"]) for e in entries)
        flips = sum(sum(e["flips"]) for e in entries)
        return {
            "budget": self.policy.budget,
            "resident_nbytes": resident_nbytes(cache),
            "steps": self.steps,
            "runs": self.runs,
            "mode": self.settings.mode,
            "selection": self.settings.selection,
            "prices": self.prices,
            "heads": self.settings.heads,
            "num_entries": count,
            "num_held": held,
            "flips": flips,
            "flip_rate": flips / max(count * self.runs, 1),
            "repeated_flips": sum(max(0, flip - 1) for e in entries for flip in e["flips"]),
            "distortion": distortion,
            **self.counts,
            "last_run": list(self.last),
            "layers": shares,
            "entries": entries,
        }


def _value_tiers(target: np.ndarray, part: Part) -> np.ndarray:
    """The tiers of values that go with tiers of keys; values without tiers of their own stay until they are dropped."""
    key, value = part.key, part.value
    return np.where(target == key.num_tiers, value.num_tiers, np.minimum(target, value.num_tiers - 1))


def _entry_nbytes(part: Part) -> np.ndarray:
    """int64 ``[tiers + 1]``: bytes of an entry, keys and values, in every tier of keys; dropped last."""
    key, value = (np.array(store.entry_nbytes(), dtype=np.int64) for store in part.stores)
    key[:-1] += value[np.minimum(np.arange(len(key) - 1), len(value) - 2)]
    return key


def _tier_names(part: Part) -> list[str]:
    """What keys are in every tier, and values where they have tiers."""
    names = [f"{tier.name} {tier.spec.bits}" for tier in part.key.tiers]
    if part.value.num_tiers == 1:
        return names
    return [f"{n}, {tier.name} {tier.spec.bits}" for n, tier in zip(names, part.value.tiers, strict=True)]


def _members(cache: CacheState) -> Iterator[tuple[int, int, Part]]:
    """Layer, modality and part of everything that has tiers."""
    for index in cache.packed_layers:
        for modality, part in cache.layers[index].parts.items():
            if isinstance(part.key, TieredStore):
                yield index, modality, part


def resident_nbytes(cache: CacheState) -> int:
    """Bytes of :meth:`KVMMCache.memory` without the backing in host memory."""
    total = cache.table.nbytes()
    for layer in cache.layers:
        if isinstance(layer, KVMMLayer):
            if layer.is_initialized:
                total += sum(t.untyped_storage().nbytes() for t in (layer.dense_key, layer.dense_value))
            for part in layer.parts.values():
                for store in part.stores:
                    total += sum(n for name, n in store.nbytes().items() if name != "backing")
        else:
            total += sum(t.untyped_storage().nbytes() for t in left_tensors(layer).values())
    return total
