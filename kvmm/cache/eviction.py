"""What eviction methods would drop next, for a comparison with retention under the same budget of bytes.

All three only drop, and none lowers. What they share with :mod:`kvmm.cache.retention` is everything else: entries, the
budget in resident bytes, exact sinks and the exact newest tokens. An order of dropping is nested: what a smaller budget
keeps, a larger one keeps too.

* StreamingLLM (arXiv 2309.17453) keeps the first tokens and a window of the newest. Here: the entry whose newest token
  is oldest goes first, in all layers and heads alike; the first tokens are the policy's sinks.
* H2O (arXiv 2306.14048) gives every head of every layer the same number of tokens, half of them the newest, the others
  those with the largest accumulated attention. Here: the same, by entries.
* VL-Cache (arXiv 2410.23317) ranks tokens by the attention that they get from the prompt behind the last image, keeps a
  tenth of its tokens for the newest, and gives layer ``l`` a share of the budget in proportion to ``1 - s_l``, where
  ``s_l`` is the part of that attention below a hundredth of its row's largest. Here: the same, by entries; decode steps
  add to the ranking by the moving average of :class:`kvmm.policy.RetentionSettings`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import numpy as np

H2O_NEWEST = 2  # one of so many entries kept is the newest
VLCACHE_NEWEST = 10
VLCACHE_THRESHOLD = 0.01  # of the largest of a row, below which attention counts as none


def drop_order(
    selection: str,
    layers: Sequence[int],
    importance: Sequence[np.ndarray],
    newest: Sequence[np.ndarray],
    sparsity: Sequence[float],
) -> list[np.ndarray]:
    """In which order entries go.

    Args:
        selection: ``streaming``, ``h2o`` or ``vlcache``.
        layers: the layer of every member; members of a layer are neighbours.
        importance: ``[P, U]`` of every member, the attention that its entries got.
        newest: ``[P, U]`` of every member, the newest position of each entry.
        sparsity: of the layer of every member.

    Returns:
        float64 ``[P, U]`` of every member: the entry with the smallest number goes first.
    """
    if selection == "streaming":
        return [positions.astype(np.float64) for positions in newest]
    every = {"h2o": H2O_NEWEST, "vlcache": VLCACHE_NEWEST}[selection]
    kept = np.array([max(1.0 - sparsity[n], 0.01) for n in range(len(layers))])
    found: list[np.ndarray] = []
    for _, group in groupby(range(len(layers)), key=lambda n: layers[n]):
        members = list(group)
        mass, place = (np.concatenate([x[n] for n in members]).astype(np.float64) for x in (importance, newest))
        rank = np.stack([_kept_rank(mass[:, u], place[:, u], every) for u in range(mass.shape[1])], 1)
        share = (rank + 1) / len(rank)  # of the layer that is kept when this entry is the last one in
        value = -share / (kept[members[0]] if selection == "vlcache" else 1.0)
        ends = np.cumsum([len(importance[n]) for n in members])[:-1]
        found += np.split(value, ends)
    return found


def _kept_rank(mass: np.ndarray, newest: np.ndarray, every: int) -> np.ndarray:
    """int64 ``[P]``: the place of each entry in the order of keeping, in which one of ``every`` is the newest left."""
    recent, heavy = np.argsort(-newest, kind="stable"), np.argsort(-mass, kind="stable")
    rank = np.full(len(mass), -1)
    r = h = 0
    for place in range(len(mass)):
        if place % every == 0:
            while rank[recent[r]] >= 0:
                r += 1
            rank[recent[r]] = place
        else:
            while rank[heavy[h]] >= 0:
                h += 1
            rank[heavy[h]] = place
    return rank


__all__ = ["VLCACHE_THRESHOLD", "drop_order"]
