"""What packing does to the tokens of a cache, and what cropping leaves: the same in every layer."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch


@dataclass
class Move:
    """Tokens that go from the residual into the pages of one modality.

    Attributes:
        modality: where to.
        index: int64 ``[B, n]`` places among the residual tokens; a slot without a token repeats a real one of the same
            sequence.
        valid: bool ``[B, n]``, or None if every slot holds a token.
        positions: int32 ``[B, P * page_size]``, -1 for slots without a token.
        page_size: tokens a page.
        start: where the places of every sequence are a run from this one on, which layers need not copy; else None.
        filled: slots in use of the last page, which the tokens are added to; 0: they begin a page.
    """

    modality: int
    index: torch.Tensor
    valid: torch.Tensor | None
    positions: torch.Tensor
    page_size: int
    start: int | None = None
    filled: int = 0


@dataclass
class Plan:
    """What one packing step does, the same in every layer: moves, then the tokens that stay."""

    moves: list[Move]
    stay: torch.Tensor
    stay_positions: torch.Tensor
    num_sinks: int

    def to(self, device: torch.device) -> Plan:
        """The plan with what layers read of it (not the positions) on ``device``."""
        if device not in self._copies:
            moves = [
                replace(m, index=sent(m.index, device), valid=None if m.valid is None else sent(m.valid, device))
                for m in self.moves
            ]
            self._copies[device] = replace(self, moves=moves, stay=sent(self.stay, device))
        return self._copies[device]

    _copies: dict[torch.device, Plan] = field(default_factory=dict, init=False, repr=False)


@dataclass
class Cut:
    """What cropping leaves, the same in every layer.

    Attributes:
        width: residual tokens that remain, counted from the left.
        appends: modality -> how many of the appends to its pages remain; modalities not named keep all.
    """

    width: int
    appends: dict[int, int] = field(default_factory=dict)


def sent(x: torch.Tensor, device: torch.device) -> torch.Tensor:
    """``x`` on ``device``, without waiting for a GPU that still reads the prompt."""
    if device.type != "cuda" or x.device.type != "cpu":
        return x.to(device)
    return x.pin_memory().to(device, non_blocking=True)


def pick(selected: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Columns where ``selected`` ``[B, n]``, in order: index ``[B, m]`` and validity (None if all valid)."""
    counts = selected.sum(1, keepdim=True)
    width = int(counts.max())
    order = torch.sort(~selected, dim=1, stable=True).indices[:, :width]
    slot = torch.arange(width, device=selected.device)
    index = order.gather(1, torch.minimum(slot, (counts - 1).clamp_min(0)))
    valid = slot < counts
    return index, None if bool(valid.all()) else valid


def run(index: torch.Tensor) -> int | None:
    """The first place where all rows of ``index`` ``[B, n]`` are the same run of places, else None."""
    steps = torch.arange(index.shape[1], device=index.device)
    start = index[0, 0]
    found = torch.where((index == start + steps).all(), start, -1)
    return first if (first := int(found)) >= 0 else None


def fill(positions: torch.Tensor, valid: torch.Tensor | None, width: int) -> torch.Tensor:
    if valid is not None:
        positions = positions.masked_fill(~valid, -1)
    if width > positions.shape[1]:
        positions = torch.nn.functional.pad(positions, (0, width - positions.shape[1]), value=-1)
    return positions


def used(positions: torch.Tensor) -> int:
    """Slots ``[B, n]`` up to the last one with a token."""
    used = (positions >= 0).any(0).nonzero()
    return int(used[-1]) + 1 if used.numel() else 0


__all__ = ["Cut", "Move", "Plan", "fill", "pick", "run", "sent", "used"]
