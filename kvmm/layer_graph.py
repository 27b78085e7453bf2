"""One layer's call of a decode step as a CUDA graph, for steps that are not captured as a whole.

Appending a token and attending to a packed cache takes several kernels whose arguments never change while the buffers
stay where they are: only the new query, key and value do. Launched one by one from Python they cost the host ten times
as much as SDPA, so after a few steps they are captured, and from then on a call is three copies and one launch. A model
whose step cannot be captured (layers with a sliding window, on several GPUs, or that wait for the device) runs so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from kvmm.capture import capture

WARM_UP = 3  # calls that run as usual first: a step that is captured as a whole has fewer


class LayerGraph:
    """The captured call of one layer.

    Attributes:
        captures, replays: graphs captured, and calls replayed from one.
    """

    def __init__(self) -> None:
        self.captures = self.replays = 0
        self._off = False  # set when capturing failed: this layer goes on without
        self.drop()

    def __deepcopy__(self, memo: dict) -> LayerGraph:
        return LayerGraph()  # another cache has other buffers

    def drop(self) -> None:
        """Free the graph; after the next calls it is captured anew."""
        self._graph: torch.cuda.CUDAGraph | None = None
        self._warm = 0
        self._reads: tuple[Any, ...] = ()
        self._inputs: list[torch.Tensor] = []
        self._output: torch.Tensor | None = None

    def run(
        self,
        inputs: Sequence[torch.Tensor],
        reads: tuple[Any, ...],
        pool: Any,
        work: Callable[..., torch.Tensor],
    ) -> torch.Tensor | None:
        """The output of ``work(*inputs)``, replayed.

        Args:
            inputs: what changes from call to call, on one GPU: query, key and value of the new token.
            reads: objects whose identity, and numbers whose value, stand for everything else that ``work`` reads.
            pool: of the memory that graphs share which never run at the same time.
            work: launches kernels and asks the device nothing.

        Returns:
            a tensor of the caller's own, or None where nothing was done: the call has to run as usual.
        """
        if self._off or torch.cuda.is_current_stream_capturing():
            return None
        if self._graph is None or not self._fits(inputs, reads):
            self._graph = None
            self._warm += 1
            if self._warm <= WARM_UP or not self._capture(inputs, reads, pool, work):
                return None
        torch._foreach_copy_(self._inputs, list(inputs))
        self._graph.replay()
        self.replays += 1
        return self._output.clone()

    def _fits(self, inputs: Sequence[torch.Tensor], reads: tuple[Any, ...]) -> bool:
        same = len(reads) == len(self._reads) and all(
            mine is theirs or (isinstance(mine, float) and mine == theirs)
            for mine, theirs in zip(self._reads, reads, strict=True)
        )
        return same and all(
            mine.shape == theirs.shape and mine.dtype == theirs.dtype
            for mine, theirs in zip(self._inputs, inputs, strict=True)
        )

    def _capture(
        self, inputs: Sequence[torch.Tensor], reads: tuple[Any, ...], pool: Any, work: Callable[..., torch.Tensor]
    ) -> bool:
        with torch.inference_mode(False):
            self._inputs = [torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in inputs]
        try:
            stream = capture_stream(inputs[0].device)
            self._graph, self._output = capture(stream, lambda: work(*self._inputs), pool)
        except Exception:  # of any kind: what cannot be captured still runs
            self._off = True
            self.drop()
            return False
        self._reads = reads  # holds what the graph reads
        self.captures += 1
        return True


_streams: dict[torch.device, torch.cuda.Stream] = {}


def capture_stream(device: torch.device) -> torch.cuda.Stream:
    """The stream of a device that calls are captured on."""
    if device not in _streams:
        _streams[device] = torch.cuda.Stream(device)
    return _streams[device]
