"""The plan of retention: which entries go down a tier, and which away, so that the budget and all caps hold."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from kvmm.errors import KVMMError
from kvmm.policy import RetentionSettings

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
        order: ``[P, U]``, of an eviction method: the entry with the smallest number is dropped first; else None.
    """

    layer: int
    modality: int
    distortion: np.ndarray
    nbytes: np.ndarray
    tier: np.ndarray
    fixed: np.ndarray
    resting: np.ndarray
    gated: np.ndarray
    order: np.ndarray | None = None


class Planned(NamedTuple):
    """A plan.

    Attributes:
        targets: int64 ``[P, U]`` of each member, the tier of every entry.
        steps: what it does, in its order: ``(member, page, unit, from, to)``.
        prices: distortion per byte at which the plan stops: ``budget`` of the budget, and what comes on top of it where
            a cap binds: ``layers`` by layer, ``heads`` by ``layer.head``. They are the multipliers of the constraints.
    """

    targets: list[np.ndarray]
    steps: list[tuple[int, int, int, int, int]]
    prices: dict[str, Any]


def plan(choices: list[Choices], resident: int, budget: int, settings: RetentionSettings) -> Planned:
    """The tier of every entry.

    Layers and heads over their caps take their own cheapest steps first, whatever the others could do; then the
    cheapest of all go on until the budget holds.

    Args:
        choices: the entries, in order of layer and modality.
        resident: bytes now.
        budget: bytes allowed.
        settings: mode, selection, caps, hysteresis, stickiness and backing matter here.

    Raises:
        KVMMError: if even the last step leaves more than the budget.
    """
    mean = sum(float(c.distortion[-1].sum()) for c in choices) / max(1, sum(c.tier.size for c in choices))
    columns = [_steps(number, c, settings, settings.stickiness * mean) for number, c in enumerate(choices)]
    total = resident
    if settings.rises:  # start as if everything had risen
        total += sum(
            int((c.nbytes[0] - np.take_along_axis(c.nbytes, c.tier[None], 0)[0])[~c.fixed].sum()) for c in choices
        )
    targets = [np.where(c.fixed | (not settings.rises), c.tier, 0) for c in choices]
    steps = np.concatenate(columns) if columns else np.zeros(0, dtype=_STEP)
    order = np.lexsort(tuple(steps[n] for n in ("to", "page", "member", "unit", "layer", "ratio", "kind")))
    steps = steps[order]
    taken, limits = _capped(choices, targets, steps, total, budget, settings)
    needed = total - budget - int(steps["saved"][taken].sum())
    price = 0.0
    if needed > 0:
        left = np.flatnonzero(~taken)
        freed = np.cumsum(steps["saved"][left])
        if not len(freed) or freed[-1] < needed:
            least = budget + needed - (int(freed[-1]) if len(freed) else 0)
            verb = "dropped" if settings.mode == "quantize" else "lowered or dropped"
            raise KVMMError(
                f"The budget of {budget} bytes cannot be met: what may not be {verb} here takes {least} bytes (sinks, "
                "newest tokens, pinned spans, tables); raise budget, or unpin."
            )
        chosen = left[: int(np.searchsorted(freed, needed)) + 1]
        taken[chosen] = True
        price = float(steps["ratio"][chosen[-1]])
    prices = {level: {k: p - price for k, p in found.items() if p > price} for level, found in limits.items()}
    steps = steps[taken]
    for member, target in enumerate(targets):
        own = steps[steps["member"] == member]
        np.maximum.at(target, (own["page"], own["unit"]), own["to"])
    return Planned(targets, steps[["member", "page", "unit", "from", "to"]].tolist(), {"budget": price, **prices})


def _capped(
    choices: list[Choices],
    targets: list[np.ndarray],
    steps: np.ndarray,
    total: int,
    budget: int,
    settings: RetentionSettings,
) -> tuple[np.ndarray, dict[str, dict[str, float]]]:
    """The steps, bool, that caps force, and the distortion per byte of the last one of every group."""
    taken = np.zeros(len(steps), dtype=bool)
    limits: dict[str, dict[str, float]] = {"heads": {}, "layers": {}}
    if settings.head_cap is None and settings.layer_cap is None:
        return taken, limits
    held: dict[tuple[int, int], int] = {}
    for c, target in zip(choices, targets, strict=True):
        nbytes = np.take_along_axis(c.nbytes, target[None], 0)[0].sum(0)
        for unit, own in enumerate(nbytes.tolist()):
            held[c.layer, unit] = held.get((c.layer, unit), 0) + own
    room = max(0, budget - (total - sum(held.values())))
    layers = sorted({layer for layer, _ in held})
    whole = [((layer,), sum(n for (own, _), n in held.items() if own == layer)) for layer in layers]
    single = [(key, n) for key, n in sorted(held.items()) if (key[0], 1) in held]
    for level, cap, groups in (("heads", settings.head_cap, single), ("layers", settings.layer_cap, whole)):
        for key, nbytes in groups if cap is not None else ():
            own = steps["layer"] == key[0]
            if len(key) > 1:
                own &= steps["unit"] == key[1]
            over = nbytes - cap * room / len(groups) - steps["saved"][own & taken].sum()
            left = np.flatnonzero(own & ~taken)
            if over <= 0 or not len(left):
                continue
            freed = np.cumsum(steps["saved"][left])
            chosen = left[: int(np.searchsorted(freed, over)) + 1]
            taken[chosen] = True
            limits[level][".".join(map(str, key))] = float(steps["ratio"][chosen[-1]])
    return taken, limits


_STEP = np.dtype(
    [
        *((name, np.int64) for name in ("kind", "layer", "member", "unit", "page", "from", "to", "saved")),
        ("ratio", np.float64),
    ]
)


def _steps(number: int, c: Choices, settings: RetentionSettings, switch: float) -> np.ndarray:
    """All steps down that the entries of one member could take, one a row; ``switch`` is what a change costs."""
    last = c.nbytes.shape[0] - 1
    tiers = {"retain": [0, last], "quantize": list(range(last))}.get(settings.mode, list(range(last + 1)))
    if c.order is not None:
        tiers = [0, last]
    page, unit = (axis.ravel() for axis in np.indices(c.tier.shape))
    now, free = c.tier.ravel(), ~c.fixed.ravel()
    found = []
    kind_before = ratio_before = None
    for start, end in pairwise(tiers):
        saved = (c.nbytes[start] - c.nbytes[end]).ravel()
        extra = (c.distortion[end] - c.distortion[start]).ravel()
        # leaving the tier that an entry has costs once, whichever way it leaves
        extra = extra + np.where(now == start, switch, np.where(now == end, -switch, 0.0))
        ratio = extra / np.maximum(saved, 1) if c.order is None else c.order.ravel()
        kind = np.zeros_like(now)
        if settings.mode == "decoupled":
            kind[:] = end
            if end < last:
                ratio = np.zeros_like(ratio)
        taken = now >= end
        resting = c.resting.ravel()
        gated = c.gated[end].ravel()
        if c.order is None:
            ratio = np.where(taken, np.where(resting, -1.0, ratio / settings.hysteresis), ratio)
        kind = np.where(taken & resting, -1, kind)
        kind = np.where((~taken & resting) | (gated & ~(taken & resting)), _LAST_RESORT, kind)
        if kind_before is not None:  # a step waits for the one before
            waits = np.where(kind == kind_before, np.maximum(ratio, ratio_before), ratio)
            ratio = np.where(kind < kind_before, ratio_before, waits)
            kind = np.maximum(kind, kind_before)
        kind_before, ratio_before = kind, ratio
        possible = free & (saved > 0) & (settings.rises | ~taken)
        rows = np.zeros(int(possible.sum()), dtype=_STEP)
        rows["layer"], rows["member"], rows["from"], rows["to"] = c.layer, number, start, end
        for name, values in (("kind", kind), ("unit", unit), ("page", page), ("saved", saved), ("ratio", ratio)):
            rows[name] = values[possible]
        found.append(rows)
    return np.concatenate(found) if found else np.zeros(0, dtype=_STEP)


__all__ = ["Choices", "Planned", "plan"]
