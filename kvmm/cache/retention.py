"""Rate-distortion retention (Spherical KV): which pages to lower, and which to drop, to stay inside a budget.

Minimise ``sum_i D_i(b_i)`` subject to ``sum_i bytes_i(b_i) <= budget`` over *entries* ``i`` (a page of one KV head, or
of all heads of a layer) and tiers ``b``. The budget is of resident bytes: all of :meth:`KVMMCache.memory` but the
backing in host memory. Sinks, the residual and pinned spans are never touched.

The distortion of an entry is the attention mass it is expected to get times the part of it that its tier spoils,

    D_i(b) = w_i m_i (1 - exp(-sigma_i(b))),   D_i(dropped) = w_i m_i,

with ``m_i`` the moving average of attention mass, ``sigma_i(b)`` the standard deviation of the error of its logits
(from the error that was measured when the page was encoded, and the size of the queries seen since), and ``w_i`` the
weight of its segment and modality. An entry goes down one tier at a time and is dropped from the last one; next is
always the step with the smallest extra distortion a byte freed, ties broken by layer, head, page. As every step of an
entry waits for the one before, the order of all steps is one sort, and the plan is its shortest prefix that frees
enough.

With backing, entries may rise. Steps already taken then count as ``hysteresis`` times cheaper than they are, so that an
entry rises only where that gains clearly more than another entry's going down loses; an entry that has just changed
waits for ``cooldown`` runs. Without backing codes of higher tiers are gone, and entries only go down.

Nothing is random, so equal prompts and settings give equal decisions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from kvmm.cache.layer import KVMMLayer
from kvmm.cache.state import CacheState
from kvmm.cache.tiers import TieredStore
from kvmm.errors import KVMMError
from kvmm.modality import MODALITY_NAMES
from kvmm.policy import KVPolicy, RetentionSettings

if TYPE_CHECKING:
    from kvmm.cache.pages import Part

_LAST_RESORT = 9  # the class of steps that nothing but the budget can force


@dataclass(frozen=True)
class Choices:
    """The entries of one modality in one layer, as a plan sees them. All arrays are float64 or int64.

    Attributes:
        layer, modality: where they are.
        distortion: ``[tiers + 1, P, U]``, not falling along the tiers; ``U`` is the heads, or 1 for all of them.
        nbytes: ``[tiers + 1, P, U]``.
        tier: ``[P, U]``, the tier now.
        fixed: bool ``[P, U]``, entries that may not be touched.
        resting: bool ``[P, U]``, entries in their cooldown.
        gated: bool ``[tiers + 1, P, U]``, tiers whose logit error exceeds the margin of the entry.
    """

    layer: int
    modality: int
    distortion: np.ndarray
    nbytes: np.ndarray
    tier: np.ndarray
    fixed: np.ndarray
    resting: np.ndarray
    gated: np.ndarray


def plan(
    choices: list[Choices], resident: int, budget: int, settings: RetentionSettings
) -> tuple[list[np.ndarray], list[tuple[int, int, int, int, int]]]:
    """The tier of every entry.

    Args:
        choices: the entries, in order of layer and modality.
        resident: bytes now.
        budget: bytes allowed.
        settings: mode, hysteresis and backing matter here.

    Returns:
        Targets int64 ``[P, U]`` of each member of ``choices``, and the steps of the plan in their order:
        ``(member, page, unit, from, to)``.

    Raises:
        KVMMError: if even the last step leaves more than the budget.
    """
    columns = [_steps(number, c, settings) for number, c in enumerate(choices)]
    total = resident
    if settings.backing == "host":  # start as if everything had risen
        total += sum(
            int((c.nbytes[0] - np.take_along_axis(c.nbytes, c.tier[None], 0)[0])[~c.fixed].sum()) for c in choices
        )
    targets = [np.where(c.fixed | (settings.backing != "host"), c.tier, 0) for c in choices]
    steps = np.concatenate(columns) if columns else np.zeros(0, dtype=_STEP)
    order = np.lexsort(tuple(steps[n] for n in ("to", "page", "member", "unit", "layer", "ratio", "kind")))
    steps = steps[order]
    needed = total - budget
    if needed <= 0:
        return targets, []
    freed = np.cumsum(steps["saved"])
    if not len(freed) or freed[-1] < needed:
        least = total - (int(freed[-1]) if len(freed) else 0)
        raise KVMMError(
            f"The budget of {budget} bytes cannot be met: what may not be "
            f"{'dropped' if settings.mode == 'quantize' else 'lowered or dropped'} here takes {least} bytes (sinks, "
            "newest tokens, pinned spans, tables); raise budget, or unpin."
        )
    taken = steps[: int(np.searchsorted(freed, needed)) + 1]
    for member, target in enumerate(targets):
        own = taken[taken["member"] == member]
        np.maximum.at(target, (own["page"], own["unit"]), own["to"])
    return targets, taken[["member", "page", "unit", "from", "to"]].tolist()


_STEP = np.dtype(
    [
        *((name, np.int64) for name in ("kind", "layer", "member", "unit", "page", "from", "to", "saved")),
        ("ratio", np.float64),
    ]
)


def _steps(number: int, c: Choices, settings: RetentionSettings) -> np.ndarray:
    """All steps down that the entries of one member could take, one a row."""
    last = c.nbytes.shape[0] - 1
    tiers = {"retain": [0, last], "quantize": list(range(last))}.get(settings.mode, list(range(last + 1)))
    page, unit = (axis.ravel() for axis in np.indices(c.tier.shape))
    now, free = c.tier.ravel(), ~c.fixed.ravel()
    found = []
    kind_before = ratio_before = None
    for start, end in pairwise(tiers):
        saved = (c.nbytes[start] - c.nbytes[end]).ravel()
        ratio = (c.distortion[end] - c.distortion[start]).ravel() / np.maximum(saved, 1)
        kind = np.zeros_like(now)
        if settings.mode == "decoupled":
            kind[:] = end
            if end < last:
                ratio = np.zeros_like(ratio)
        taken = now >= end
        resting = c.resting.ravel()
        gated = c.gated[end].ravel()
        ratio = np.where(taken, np.where(resting, -1.0, ratio / settings.hysteresis), ratio)
        kind = np.where(taken & resting, -1, kind)
        kind = np.where((~taken & resting) | (gated & ~(taken & resting)), _LAST_RESORT, kind)
        if kind_before is not None:  # a step waits for the one before
            waits = np.where(kind == kind_before, np.maximum(ratio, ratio_before), ratio)
            ratio = np.where(kind < kind_before, ratio_before, waits)
            kind = np.maximum(kind, kind_before)
        kind_before, ratio_before = kind, ratio
        possible = free & (saved > 0) & ((settings.backing == "host") | ~taken)
        rows = np.zeros(int(possible.sum()), dtype=_STEP)
        rows["layer"], rows["member"], rows["from"], rows["to"] = c.layer, number, start, end
        for name, values in (("kind", kind), ("unit", unit), ("page", page), ("saved", saved), ("ratio", ratio)):
            rows[name] = values[possible]
        found.append(rows)
    return np.concatenate(found) if found else np.zeros(0, dtype=_STEP)


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
        choices = [self._choices(cache, *member) for member in members]
        targets, _ = plan(choices, resident_nbytes(cache), self.policy.budget, self.settings)
        self.last = []
        for (layer, modality, part), c, target in zip(members, choices, targets, strict=True):
            heads = part.key.num_heads
            for page, unit in np.argwhere(target != c.tier):
                old, new = int(c.tier[page, unit]), int(target[page, unit])
                name = "raised" if new < old else "dropped" if new == part.key.num_tiers else "lowered"
                self.counts[name] += heads if c.tier.shape[1] == 1 else 1
                head = None if c.tier.shape[1] == 1 and heads > 1 else int(unit)
                change = {"layer": layer, "modality": MODALITY_NAMES[modality], "head": head, "page": int(page)}
                self.last.append(change | {"from": old, "to": new})
            target = np.broadcast_to(target, (target.shape[0], heads))
            part.key.move(target, self.runs)
            part.value.move(np.where(target == part.key.num_tiers, part.value.num_tiers, 0), self.runs)
            if self.settings.margin_gate:
                part.key.margin.fill_(float("inf"))

    # -- what the plan sees -----------------------------------------------------------------------------------------

    def _choices(self, cache: CacheState, layer: int, modality: int, part: Part) -> Choices:
        settings, key = self.settings, part.key
        positions = cache.table.stores[modality][0].cpu().numpy().reshape(key.num_pages, -1)
        tier = key.tier_map()
        energy = key.energy.nan_to_num(1.0 / key.dim).double().cpu().numpy()
        mass = key.importance.double().cpu().numpy()
        weight = self._segment_weight(positions, cache.table.length) * settings.modality_weights[modality]
        mass = mass * weight[:, None]
        error = np.maximum.accumulate(key.error.double().cpu().numpy(), axis=0)
        spoiled = 1 - np.exp(-np.sqrt(error * energy))
        distortion = np.concatenate((mass * spoiled, mass[None]))
        sizes = np.array(key.entry_nbytes(), dtype=np.int64)
        sizes[:-1] += part.value.entry_nbytes()[0]
        nbytes = np.broadcast_to(sizes[:, None, None], distortion.shape)
        fixed = np.broadcast_to(self._pinned(positions)[:, None], tier.shape)
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

    def _pinned(self, positions: np.ndarray) -> np.ndarray:
        """bool ``[P]``: the pages that hold a pinned position, of slots ``[P, page_size]``."""
        pinned = np.zeros(len(positions), dtype=bool)
        for start, end in self.pins:
            pinned |= ((positions >= start) & (positions < end)).any(1)
        return pinned

    def _segment_weight(self, positions: np.ndarray, length: int) -> np.ndarray:
        """float64 ``[P]``: the weight of each page's segment; a page belongs to the outermost that it touches."""
        prefix, retrieved, recent = self.settings.segment_weights
        first = np.where(positions < 0, length, positions).min(1)
        last = positions.max(1)
        weight = np.full(len(positions), float(retrieved))
        weight[last >= length - self.settings.recent_length] = recent
        weight[first < self.settings.prefix_length] = prefix
        return weight

    # -- report -----------------------------------------------------------------------------------------------------

    def report(self, cache: CacheState) -> dict[str, Any]:
        """What the controller did and where things stand, for JSON; see :meth:`KVMMCache.retention_report`."""
        entries, shares, distortion, held = [], [], 0.0, 0
        by_layer: dict[int, np.ndarray] = {}
        for layer, modality, part in _members(cache):
            key, tier = part.key, part.key.tier_map()
            c = self._choices(cache, layer, modality, part)
            distortion += float(np.take_along_axis(c.distortion, c.tier[None], 0).sum())
            sizes = np.array(key.entry_nbytes())
            sizes[:-1] += part.value.entry_nbytes()[0]
            by_layer[layer] = by_layer.get(layer, 0) + sizes[tier].sum(0)
            held += int((tier < key.num_tiers).sum())
            for head in range(key.num_heads):
                entries.append(
                    {
                        "layer": layer,
                        "modality": MODALITY_NAMES[modality],
                        "head": head,
                        "tier_names": [*(f"{t.name} {t.spec.bits}" for t in key.tiers), "dropped"],
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
            "heads": self.settings.heads,
            "num_entries": count,
            "num_held": held,
            "flips": flips,
            "flip_rate": flips / max(count * self.runs, 1),
            "distortion": distortion,
            **self.counts,
            "last_run": list(self.last),
            "layers": shares,
            "entries": entries,
        }


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
        elif getattr(layer, "is_initialized", False) and getattr(layer, "keys", None) is not None:
            total += layer.keys.untyped_storage().nbytes() + layer.values.untyped_storage().nbytes()
    return total
