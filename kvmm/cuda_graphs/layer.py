"""One layer's call of a decode step as a CUDA graph, for steps that are not captured as a whole.

Appending a token and attending to a packed cache takes several kernels whose arguments never change while the buffers
stay where they are: only the new query, key and value do. Launched one by one from Python they cost the host ten times
as much as SDPA, so after a few steps they are captured, and from then on a call is three copies and one launch. A model
whose step cannot be captured (layers with a sliding window, on several GPUs, or that wait for the device) runs so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import torch

from kvmm.cuda_graphs.capture import capture, first_line

WARM_UP = 3  # calls that run as usual first: a step that is captured as a whole has fewer


class GraphPool:
    """What the graphs of one cache's layers on one device share: they never run at the same time.

    Made when first used. A copy makes its own.
    """

    def __init__(self, device: torch.device):
        self.device = device

    def __reduce__(self) -> tuple[Any, ...]:
        return GraphPool, (self.device,)

    @cached_property
    def stream(self) -> torch.cuda.Stream:
        """The stream that captures."""
        return torch.cuda.Stream(self.device)

    @cached_property
    def handle(self) -> Any:
        """Of the memory for what graphs compute on the way."""
        handle = torch.cuda.graph_pool_handle()
        # memory whose last graph is gone cannot be used again, so one graph stays
        self._first, _ = capture(self.stream, lambda: torch.zeros(1, device=self.device), handle)
        return handle


class LayerGraph:
    """The captured call of one layer.

    Attributes:
        captures, replays: graphs captured, and calls replayed from one.
        reason: why nothing is captured (any more), or None.
    """

    def __init__(self, reason: str | None = None) -> None:
        self.captures = self.replays = 0
        self.reason = reason
        self.drop()

    def fork(self) -> LayerGraph:
        """The graph of a layer with other buffers: nothing is captured yet."""
        return LayerGraph(self.reason)

    def __reduce__(self) -> tuple[Any, ...]:
        return LayerGraph, (self.reason,)

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
        pool: GraphPool,
        work: Callable[..., torch.Tensor],
    ) -> torch.Tensor | None:
        """The output of ``work(*inputs)``, replayed.

        Args:
            inputs: what changes from call to call, on one GPU: query, key and value of the new token.
            reads: everything else that ``work`` depends on; the graph is captured anew when an object is another one,
                or a float has another value.
            pool: the memory and the stream of this cache's graphs.
            work: launches kernels and asks the device nothing.

        Returns:
            a new tensor, or None where nothing was done and the call has to run as usual.
        """
        if self.reason is not None or torch.is_grad_enabled() or torch.cuda.is_current_stream_capturing():
            return None
        if self._graph is not None and not self._fits(inputs, reads):
            self.drop()
        if self._graph is None:
            self._warm += 1
            if self._warm <= WARM_UP or not self._capture(inputs, reads, pool, work):
                return None
        return self.replay(inputs)

    @property
    def is_captured(self) -> bool:
        """Whether there is a graph."""
        return self._graph is not None

    def replay(self, inputs: Sequence[torch.Tensor]) -> torch.Tensor:
        """:meth:`run` where the graph is known to fit."""
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
        self, inputs: Sequence[torch.Tensor], reads: tuple[Any, ...], pool: GraphPool, work: Callable[..., torch.Tensor]
    ) -> bool:
        with torch.inference_mode(False):
            self._inputs = [torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in inputs]
        try:
            self._graph, self._output = capture(pool.stream, lambda: work(*self._inputs), pool.handle)
        except Exception as error:  # of any kind: what cannot be captured still runs
            self.reason = f"capturing failed: {first_line(error)}"
            self.drop()
            return False
        self._reads = reads  # holds what the graph reads
        self.captures += 1
        return True
