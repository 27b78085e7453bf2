"""What a layer keeps of the prompt's queries until the prompt is packed."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from kvmm.policy import RetentionSettings

WATCHED = 32  # queries at the end of a prompt that say which pages matter, until decoding shows it
_ROWS = 64  # queries that one step of their attention takes


def watched_queries(settings: RetentionSettings) -> int:
    """How many of a prompt's last queries say what matters: of H2O and VL-Cache all, which pick among them."""
    return 2**31 - 1 if settings.selection in ("h2o", "vlcache") else WATCHED


class PromptQueries:
    """Second moments of a prompt's queries, and the last queries themselves.

    Attributes:
        total: float32 ``[B, H_kv, D, D]``, the sum of ``q q^T`` over the prompt, or None.
        count: float32 ``[B, 1, 1, 1]``, of how many queries a KV head, or None.
        last: ``[B, H_q, n, D]``, the newest queries, or None.
    """

    def __init__(self, keep_last: int):
        """``keep_last`` is how many of the newest queries are kept."""
        self.keep_last = keep_last
        self.clear()

    def clear(self) -> None:
        """Forget all queries."""
        self.total: torch.Tensor | None = None
        self.count: torch.Tensor | None = None
        self.last: torch.Tensor | None = None

    def __bool__(self) -> bool:
        """Whether any query was seen."""
        return self.total is not None or self.last is not None

    @property
    def tensors(self) -> list[torch.Tensor]:
        """What is kept."""
        return [x for x in (self.total, self.count, self.last) if x is not None]

    def add(self, query: torch.Tensor, heads: int, valid: torch.Tensor) -> None:
        """Add queries ``[B, H_q, q, D]`` to ``heads`` KV heads; those count that ``valid`` bool ``[B, q]`` says."""
        batch, query_heads, count, dim = query.shape
        if self.keep_last:
            known = query[:, :, -self.keep_last :]
            if self.last is not None and known.shape[2] < self.keep_last:
                known = torch.cat((self.last, known), 2)[:, :, -self.keep_last :]
            self.last = known.clone()
        grouped = query.float() * valid[:, None, :, None]
        grouped = grouped.reshape(batch, heads, query_heads // heads * count, dim)
        moment = grouped.transpose(-1, -2) @ grouped
        seen = (valid.sum(1) * (query_heads // heads)).float().view(-1, 1, 1, 1)
        self.total = moment if self.total is None else self.total + moment
        self.count = seen if self.count is None else self.count + seen

    def crop(self, count: int) -> None:
        """Forget the newest ``count`` queries, whose tokens are gone; what they added to the sums stays there."""
        if self.last is not None and count > 0:
            kept = self.last.shape[2] - count
            self.last = self.last[:, :, :kept].clone() if kept > 0 else None

    @property
    def moment(self) -> torch.Tensor | None:
        """float32 ``[B, H_kv, D, D]``: the mean of ``q q^T`` over the prompt's queries, or None if there were none."""
        return None if self.total is None else self.total / self.count.clamp_min(1)

    def attention_mass(
        self, key: torch.Tensor, padding: torch.Tensor, count: int | None = None, threshold: float | None = None
    ) -> tuple[torch.Tensor, float]:
        """What part of the attention of the last queries, which must have been kept, each key got.

        Args:
            key: ``[1, H_kv, n, D]``, the keys of the prompt.
            padding: bool ``[1, n]``, places that hold no token.
            count: how many of the kept queries; None for all of them.
            threshold: share of a row's largest probability below which one counts as zero; None counts none.

        Returns:
            the mass float32 ``[1, H_kv, n]``, a mean over queries; and the share of the probabilities, of places that a
            query sees, that count as zero.
        """
        key, last = key.float(), self.last.float()
        last = last if count is None else last[:, :, -count:]
        count = last.shape[2]
        column = torch.arange(key.shape[2], device=key.device)
        rows = column[-count:]
        mass, zeros, seen = 0.0, 0, 0
        for begin in range(0, count, _ROWS):
            piece = last[:, :, begin : begin + _ROWS].unflatten(1, (key.shape[1], -1))  # [B, H_kv, R, q, D]
            scores = piece @ key.transpose(-1, -2).unsqueeze(2) * key.shape[-1] ** -0.5
            later = column > rows[begin : begin + _ROWS].unsqueeze(1)
            hidden = later | padding[:, None, None, None]
            weights = scores.masked_fill(hidden, -torch.inf).softmax(-1).nan_to_num(0.0)
            mass = mass + weights.sum((2, 3))
            if threshold is not None:
                small = (weights < threshold * weights.amax(-1, keepdim=True)) & ~hidden
                zeros, seen = zeros + int(small.sum()), seen + int((~hidden).expand_as(small).sum())
        return mass / (count * last.shape[1] // key.shape[1]), zeros / max(seen, 1)

    def to(self, device: torch.device | str) -> None:
        """Move what is kept to a device."""
        self.restore({name: tensor.to(device) for name, tensor in self.state().items()})

    def index_batch(self, index: torch.Tensor) -> None:
        """Keep, repeat or reorder sequences: ``index`` is int64 ``[B_new]``. Last queries are of one sequence."""
        if self.total is not None:
            self.total, self.count = self.total.index_select(0, index), self.count.index_select(0, index)

    def state(self) -> dict[str, torch.Tensor]:
        """What is kept, by the names of a file."""
        named = {"query_sum": self.total, "query_count": self.count, "last_queries": self.last}
        return {name: tensor for name, tensor in named.items() if tensor is not None}

    def restore(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Take what :meth:`state` returned; other tensors are passed over."""
        self.total, self.count = tensors.get("query_sum"), tensors.get("query_count")
        self.last = tensors.get("last_queries")
