"""Steps that are repeated from fixed places gather the gradients of steps that are not."""

from __future__ import annotations

import pytest
import torch

from training.graphs import Steps


class Towers(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.text, self.eyes = torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)


def backward(model: Towers):
    def run(spec: str, inputs: dict) -> torch.Tensor:
        tower = model.eyes if spec == "page" else model.text
        loss = tower(inputs["x"]).square().sum()
        loss.backward()
        return loss.detach()[None]

    return run


def replayed(function):
    """What a graph does, on a CPU: runs only when replayed, writes its output to one place."""
    output = torch.zeros(1)
    return lambda: output.copy_(function()), output


def forged(function):
    def replay():
        function()
        function()

    return replay, torch.zeros(1)


def refused(function):
    raise RuntimeError("operation not permitted when stream is capturing")


@pytest.mark.parametrize(
    ("capture", "message"), [(replayed, ""), (forged, "differs by 1;"), (refused, "not permitted")]
)
def test_gradients_are_those_of_plain_steps(capture, message):
    torch.manual_seed(0)
    model, said = Towers(), []
    plain = Steps(model.parameters(), backward(model))
    steps = Steps(model.parameters(), backward(model), capture, lambda spec: spec != "sound", said.append)
    parameters = list(model.parameters())
    for kinds in (("page", "page"), ("text", "page"), ("text", "text"), ("sound", "page"), ("sound", "sound")):
        batches = [(kind, {"x": torch.randn(4 if kind == "page" else 5, 3)}) for kind in kinds]
        found = []
        for way in (plain, steps):
            for p in parameters:
                p.grad = None
            way.begin()
            outputs = [way.run(*batch) for batch in batches]
            way.finish()
            found.append((outputs, [p.grad if p.grad is None else p.grad.clone() for p in parameters]))
        for expected, measured in zip(*found, strict=True):
            for a, b in zip(expected, measured, strict=True):
                assert (a is None) == (b is None)
                if a is not None:
                    torch.testing.assert_close(a, b)
    assert bool(said) == bool(message)
    assert all(message in text for text in said)
    kept = [step is not None for step in steps.captured.values()]
    assert sum(kept) == (2 if capture is replayed else 0)
    assert len(kept) == 3


def test_other_shapes_are_other_steps():
    model = Towers()
    steps = Steps(model.parameters(), backward(model), replayed)
    for rows in (2, 3, 2, 3):
        steps.begin()
        x = torch.randn(rows, 3)
        loss = steps.run("page", {"x": x})
        steps.finish()
        torch.testing.assert_close(loss, model.eyes(x).square().sum()[None])
    assert len(steps.captured) == 2
