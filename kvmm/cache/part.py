"""Keys and values of one modality in one layer."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kvmm.cache.pages import PageStore


@dataclass
class Part:
    """The key pages and the value pages of one modality."""

    key: PageStore
    value: PageStore

    @property
    def stores(self) -> tuple[PageStore, PageStore]:
        """Both stores."""
        return self.key, self.value

    def append(
        self,
        key: torch.Tensor,
        value: torch.Tensor,
        valid: torch.Tensor | None = None,
        query_moment: torch.Tensor | None = None,
        mass: torch.Tensor | None = None,
        filled: int = 0,
    ) -> None:
        """Add keys and values ``[B, H, T, D]`` of the same tokens; ``filled`` as in :meth:`PageStore.append`.

        ``mass`` float ``[1, H, T]`` is the attention that the tokens got, for stores that observe; the rest as in
        :class:`EncodeContext`.
        """
        behind = {"filled": filled} if filled else {}
        order = self.key.append(key, valid, query_moment, **behind, **({} if mass is None else {"mass": mass}))
        self.value.append(value, valid, query_moment, key, **behind, **({} if order is None else {"order": order}))

    def fork(self) -> Part:
        """Both stores forked."""
        return Part(self.key.fork(), self.value.fork())


__all__ = ["Part"]
