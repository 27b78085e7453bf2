"""One run on several GPUs of one host: a process each, with data of its own and gradients summed over all of them.

    export WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=29511
    for i in 0 1; do RANK=$i python -m training.train ... & done; wait

The environment variables are those of `torchrun`. Without them a run has one process and nothing here does anything.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor, nn


class Replicas:
    """The processes of a run.

    Attributes:
        rank: of this process; 0 logs, measures and writes files. world: processes.
    """

    def __init__(self) -> None:
        self.rank, self.world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))

    @property
    def first(self) -> bool:
        return self.rank == 0

    def device(self, name: str) -> torch.device:
        """This process's own GPU, or `name` where it is alone or on a CPU."""
        if self.world == 1 or not name.startswith("cuda"):
            return torch.device(name)
        torch.cuda.set_device(self.rank)
        return torch.device("cuda", self.rank)

    def connect(self) -> None:
        """Finds the others. Call it after data workers are forked."""
        if self.world > 1:
            backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
            dist.init_process_group(backend, rank=self.rank, world_size=self.world)

    def disconnect(self) -> None:
        """Leaves the others: a process that exits with gloo's threads alive is aborted now and then."""
        if self.world > 1:
            dist.destroy_process_group()

    def agree(self, number: float) -> float:
        """The first process's `number`, such as its clock, so that all of them stop and change their rate together."""
        if self.world == 1:
            return number
        shared = torch.tensor(number, dtype=torch.float64)
        dist.broadcast(shared, 0)
        return float(shared)

    @torch.no_grad()
    def sum_gradients(self, parameters: list[nn.Parameter]) -> None:
        """Replaces gradients by their sum over processes; a parameter that no process used keeps none.

        A sum, as over the micro-batches of an update: both optimisers and the clipped norm ignore its scale.
        """
        if self.world == 1:
            return
        used = torch.tensor([p.grad is not None for p in parameters], dtype=torch.uint8)
        dist.all_reduce(used, dist.ReduceOp.MAX)
        shared = [p for p, any_used in zip(parameters, used.tolist(), strict=True) if any_used]
        for p in shared:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
        flat = torch.cat([p.grad.flatten() for p in shared])
        dist.all_reduce(flat)
        for p, part in zip(shared, flat.split([p.numel() for p in shared]), strict=True):
            p.grad.copy_(part.view_as(p))

    @torch.no_grad()
    def align(self, tensors: Iterable[Tensor]) -> None:
        """Copies the first process's tensors to the others: rounding may differ between devices."""
        if self.world > 1:
            for tensor in tensors:
                dist.broadcast(tensor, 0)
