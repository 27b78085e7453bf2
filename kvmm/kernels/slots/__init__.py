"""A paged cache whose slots hold a token's codes: written one by one in any order, read by attention."""

from kvmm.kernels.slots.format import SlotFormat, SlotSide
from kvmm.kernels.slots.native import MAX_NEW, NativeSlots, Rows

__all__ = ["MAX_NEW", "NativeSlots", "Rows", "SlotFormat", "SlotSide"]
