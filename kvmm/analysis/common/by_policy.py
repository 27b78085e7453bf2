"""The base of reports that measure several policies on one prompt."""

from __future__ import annotations

from typing import Generic, TypeVar

import numpy as np

from kvmm.errors import KVMMError
from kvmm.modality import MODALITY_NAMES

One = TypeVar("One")


class ByPolicy(Generic[One]):
    """A report with an entry for every policy.

    Attributes:
        modality: int8 ``[T]``, what every token is.
        policies: the entries, each with its policy's name in ``policy``.
    """

    modality: np.ndarray
    policies: tuple[One, ...]

    def of(self, policy: str) -> One:
        """The entry of a policy by its name. Raises :class:`KVMMError` if it was not measured."""
        for one in self.policies:
            if one.policy == policy:
                return one
        raise KVMMError(f"Policy {policy!r} was not measured: choose {', '.join(p.policy for p in self.policies)}.")

    def modalities(self) -> list[str]:
        """Names of the modalities present, in the order of their codes."""
        return list(self.tokens())

    def tokens(self) -> dict[str, int]:
        """Tokens by the name of their modality, of those present."""
        counts = {name: int((self.modality == m).sum()) for m, name in enumerate(MODALITY_NAMES)}
        return {name: count for name, count in counts.items() if count}
