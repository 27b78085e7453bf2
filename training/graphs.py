"""Micro-batches as CUDA graphs.

A step of a small model is thousands of kernels of tens of microseconds: launching them takes longer than running them.
Steps of one kind have equal shapes, so forward and backward are captured once (`torch.cuda.CUDAGraph`) and replayed
with other inputs. Gradients keep their places, because a graph adds to the memory that it has seen.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

TOLERANCE = 0.1  # relative difference between the gradients of a replay and of the step it was captured from
Inputs = dict[str, Tensor]


@dataclass
class Captured:
    """A replayable step: where it reads its inputs, what it leaves, and which parameters get gradients."""

    inputs: Inputs
    replay: Callable[[], None]
    output: Tensor
    used: list[bool]


def cuda_capture(stream: torch.cuda.Stream) -> Callable[[Callable[[], Tensor]], tuple[Callable[[], None], Tensor]]:
    """Captures functions on `stream`, all in one pool of memory, since they are replayed one after another."""
    pool = torch.cuda.graph_pool_handle()

    def capture(function: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
        graph = torch.cuda.CUDAGraph()
        # Other threads go on copying batches meanwhile.
        with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
            output = function()
        return graph.replay, output

    return capture


class Steps:
    """Runs micro-batches and gathers their gradients, captured where that is possible.

    Args:
        parameters: of the model. backward: called with a spec and its inputs; adds gradients and returns a tensor for
            the log. capture: called with a function of tensors at fixed places; returns what repeats it, and its
            output. None runs everything as it is.
        possible: whether steps of a spec can be captured: nothing in them may wait for the device. say: for messages.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        backward: Callable[[object, Inputs], Tensor],
        capture: Callable | None = None,
        possible: Callable[[object], bool] = lambda spec: True,
        say: Callable[[str], None] = print,
    ) -> None:
        self.parameters, self.backward, self.capture = list(parameters), backward, capture
        self.possible, self.say = possible, say
        self.places = [torch.zeros_like(p) for p in self.parameters] if capture else []
        self.used = [False] * len(self.parameters)
        self.captured: dict[Hashable, Captured | None] = {}

    def begin(self) -> None:
        """Before the micro-batches of an update."""
        if self.capture:
            torch._foreach_zero_(self.places)
            self.attach()
            self.used = [False] * len(self.parameters)

    def finish(self) -> None:
        """After them: parameters that took no part have no gradient, so that optimisers leave them alone."""
        if self.capture:
            for p, used in zip(self.parameters, self.used, strict=True):
                p.grad = p.grad if used else None

    def attach(self) -> None:
        for p, place in zip(self.parameters, self.places, strict=True):
            p.grad = place

    def run(self, spec: object, inputs: Inputs) -> Tensor:
        """Adds one micro-batch's gradients; returns what `backward` returned."""
        if not self.capture:
            return self.backward(spec, inputs)
        shapes = sorted((name, tuple(t.shape), str(t.dtype)) for name, t in inputs.items())
        key = (repr(spec), *shapes)
        if key not in self.captured:
            return self.first(key, spec, inputs)
        step = self.captured[key]
        if step is None:
            output, gradients = self.alone(spec, inputs)
            self.add(gradients)
            return output
        for name, place in step.inputs.items():
            place.copy_(inputs[name])
        step.replay()
        self.mark(step.used)
        return step.output.clone()

    def mark(self, used: list[bool]) -> None:
        self.used = [a or b for a, b in zip(self.used, used, strict=True)]

    def alone(self, spec: object, inputs: Inputs) -> tuple[Tensor, list[Tensor | None]]:
        """One step as it is: what it returned, and its own gradients."""
        for p in self.parameters:
            p.grad = None
        output = self.backward(spec, inputs)
        gradients = [p.grad for p in self.parameters]
        self.attach()
        return output, gradients

    @torch.no_grad()
    def add(self, gradients: list[Tensor | None]) -> None:
        pairs = [(place, g) for place, g in zip(self.places, gradients, strict=True) if g is not None]
        torch._foreach_add_([place for place, _ in pairs], [g for _, g in pairs])
        self.mark([g is not None for g in gradients])

    def first(self, key: Hashable, spec: object, inputs: Inputs) -> Tensor:
        """The first step of its shapes: runs as it is, is captured, and is replayed once to compare the two."""
        output, gradients = self.alone(spec, inputs)
        self.captured[key] = None
        if not self.possible(spec):
            self.add(gradients)
            return output
        output = output.clone()
        fixed = {name: t.clone() for name, t in inputs.items()}
        before = [place.clone() for place in self.places]
        try:
            replay, result = self.capture(lambda: self.backward(spec, fixed))
            replay()
            error = self.difference(before, gradients)
        except RuntimeError as problem:  # also what is out of memory
            self.say(f"steps like {key[0]} are not captured: {problem!s:.300}")
            error = float("inf")
        else:
            if error < TOLERANCE:
                used = [g is not None for g in gradients]
                self.captured[key] = Captured(fixed, replay, result, used)
                self.mark(used)
                return output
            self.say(f"a captured step like {key[0]} differs by {error:.2g}; such steps run as they are")
        self.attach()
        torch._foreach_copy_(self.places, before)
        self.add(gradients)
        return output

    @torch.no_grad()
    def difference(self, before: list[Tensor], gradients: list[Tensor | None]) -> float:
        """How far what was added since `before` is from `gradients`, relative to their norm."""
        apart = size = 0.0
        for place, start, gradient in zip(self.places, before, gradients, strict=True):
            added = place - start
            apart += (added if gradient is None else added - gradient).float().square().sum()
            size += 0.0 if gradient is None else gradient.float().square().sum()
        return float((apart / size).sqrt())
