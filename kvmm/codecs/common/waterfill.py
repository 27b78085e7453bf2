"""Reverse water-filling: which channel gets how many bits.

Cover & Thomas, Elements of Information Theory, theorem 10.3.3, with the distortions that a scalar quantiser reaches in
place of the Gaussian rate-distortion function, and with whole bits.
"""

from __future__ import annotations

import heapq

import torch

# Mean squared error of the best uniform quantiser of a unit Gaussian.
DISTORTION = {0: 1.0, 1: 0.3634, 2: 0.1188, 4: 0.01154, 6: 0.00104, 8: 0.0000851}
STEPS = tuple(DISTORTION)  # bits that a channel may get: one bit, or digits of two


def waterfill(variance: torch.Tensor, average: float) -> torch.Tensor:
    """Give each channel bits so that the sum of ``variance * distortion`` is least.

    The next bits always go where they lower that sum most a bit; ties go to the first channel.

    Args:
        variance: ``[N]``, the cost of leaving a channel without bits, all in one unit.
        average: bits a channel on average, 0 to 8.

    Returns:
        int64 ``[N]``; their sum is at most ``average * N``, short of it by less than the width of one step.
    """
    weights = variance.double().tolist()
    left = average * len(weights) + 1e-6
    bits = [0] * len(weights)
    heap: list[tuple[float, int, int]] = []

    def offer(channel: int) -> None:
        have = bits[channel]
        gains = [((DISTORTION[have] - DISTORTION[to]) / (to - have), to) for to in STEPS if to > have]
        if gains:
            gain, to = max(gains)
            heapq.heappush(heap, (-gain * weights[channel], channel, to))

    for channel in range(len(weights)):
        offer(channel)
    while heap:
        _, channel, to = heapq.heappop(heap)
        if to - bits[channel] > left:
            continue  # a narrower step elsewhere may still fit
        left -= to - bits[channel]
        bits[channel] = to
        offer(channel)
    return torch.tensor(bits)
