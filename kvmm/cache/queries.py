"""What a layer keeps of the prompt's queries until the prompt is packed."""

from __future__ import annotations

from collections.abc import Mapping

import torch

_WATCHED = 32  # queries at the end of a prompt that say which pages matter, until decoding shows it


class PromptQueries:
    """Second moments of a prompt's queries, and the last queries themselves.

    Attributes:
        total: float32 ``[B, H_kv, D, D]``, the sum of ``q q^T`` over the prompt, or None.
        count: float32 ``[B, 1, 1, 1]``, of how many queries a KV head, or None.
        last: ``[B, H_q, n, D]``, the newest queries, or None.
    """

    def __init__(self, keep_last: bool):
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

    def add(self, query: torch.Tensor, heads: int, valid: torch.Tensor) -> None:
        """Add queries ``[B, H_q, q, D]`` to ``heads`` KV heads; those count that ``valid`` bool ``[B, q]`` says."""
        batch, query_heads, count, dim = query.shape
        if self.keep_last:
            self.last = query[:, :, -_WATCHED:].clone()
        grouped = query.float() * valid[:, None, :, None]
        grouped = grouped.reshape(batch, heads, query_heads // heads * count, dim)
        moment = grouped.transpose(-1, -2) @ grouped
        seen = (valid.sum(1) * (query_heads // heads)).float().view(-1, 1, 1, 1)
        self.total = moment if self.total is None else self.total + moment
        self.count = seen if self.count is None else self.count + seen

    @property
    def moment(self) -> torch.Tensor | None:
        """float32 ``[B, H_kv, D, D]``: the mean of ``q q^T`` over the prompt's queries, or None if there were none."""
        return None if self.total is None else self.total / self.count.clamp_min(1)

    def attention_mass(self, key: torch.Tensor, padding: torch.Tensor) -> torch.Tensor:
        """What part of the attention of the last queries, which must have been kept, each key got.

        Args:
            key: ``[1, H_kv, n, D]``, the keys of the prompt.
            padding: bool ``[1, n]``, places that hold no token.

        Returns:
            float32 ``[1, H_kv, n]``.
        """
        key, count = key.float(), self.last.shape[2]
        query = self.last.float().unflatten(1, (key.shape[1], -1))  # [B, H_kv, R, q, D]
        scores = query @ key.transpose(-1, -2).unsqueeze(2) * key.shape[-1] ** -0.5
        column = torch.arange(key.shape[2], device=key.device)
        later = column > column[-count:].unsqueeze(1)
        hidden = later | padding[:, None, None, None]
        return scores.masked_fill(hidden, -torch.inf).softmax(-1).nan_to_num(0.0).mean((2, 3))

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
