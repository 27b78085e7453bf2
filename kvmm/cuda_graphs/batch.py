"""The layers' calls of a step of several caches as CUDA graphs: one launch a layer, whatever the number of sequences.

Each sequence appends and attends by kernels of its own, one after the other in the layer's graph. Launched one by one
from Python they cost the host the time of a layer for every sequence, and a step of sixteen sequences then takes nearly
as long as sixteen steps.

They do not run side by side: attention reads residual tokens on a stream beside the capturing one, whose memory the
next call takes again, which is right as long as calls follow each other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from kvmm.cuda_graphs.layer import GraphPool, LayerGraph

Work = Callable[..., torch.Tensor]


class BatchGraphs:
    """The graphs of one set of caches; hold it for as long as these caches step together.

    Args:
        device: of all layers.

    Attributes:
        layers: the graph of each layer, by its index.
    """

    def __init__(self, device: torch.device) -> None:
        self._pool = GraphPool(device)
        self.layers: dict[int, LayerGraph] = {}
        self._layouts: dict[int, tuple[int, ...]] = {}  # of the caches when a layer's graph was last known to fit
        self._layout: tuple[int, ...] = ()

    def begin_step(self, layout: tuple[int, ...]) -> None:
        """A step begins; ``layout`` is :attr:`KVMMCache.layout` of every cache, which changes when a buffer may have
        moved."""
        self._layout = layout

    def fits(self, index: int) -> bool:
        """Whether a layer's graph can be replayed without a look at the layers."""
        return self._layouts.get(index) == self._layout and self.layers[index].is_captured

    def replay(self, index: int, inputs: Sequence[torch.Tensor]) -> torch.Tensor:
        """What :meth:`run` returns, of a layer that :meth:`fits`."""
        return self.layers[index].replay(inputs)

    def run(
        self, index: int, inputs: Sequence[torch.Tensor], reads: tuple[Any, ...], works: Sequence[Work]
    ) -> torch.Tensor:
        """One layer's call for all sequences.

        Args:
            index: of the layer.
            inputs: query, key and value of the new tokens, row ``b`` of sequence ``b``.
            reads: what all of ``works`` depend on, as in :meth:`LayerGraph.run`.
            works: append and attend, one of each sequence, by rows of ``inputs``.

        Returns:
            ``[B, H_q, 1, D]``.
        """

        def work(*inputs: torch.Tensor) -> torch.Tensor:
            return torch.cat([one(*(x[b : b + 1] for x in inputs)) for b, one in enumerate(works)])

        output = self.layers.setdefault(index, LayerGraph()).run(inputs, reads, self._pool, work)
        if output is None:
            return work(*inputs)
        self._layouts[index] = self._layout
        return output


__all__ = ["BatchGraphs"]
