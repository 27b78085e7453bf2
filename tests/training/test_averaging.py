"""The average of a run's weights: what is in it, and how a run ends from it."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import pytest
import torch
from torch import nn

from kvmm.models.packed_weights import code_weights, load_packed, save_packed
from tests.training.test_train import train
from training.arguments import parse_arguments
from training.averaging import Average, mean_weights
from training.optim import Optimizer
from training.replicas import Replicas
from training.schedule import Schedule
from training.smollm2.folder import CONFIG, TOKENIZER
from training.train import Progress, Trainer


def walk(values: list[float]) -> tuple[nn.Parameter, Average]:
    """A parameter that starts at 8 and an average over `values` that it takes afterwards."""
    parameter = nn.Parameter(torch.full((2, 3), 8.0))
    average = Average([parameter])
    for value in values:
        parameter.data.fill_(value)
        average.add()
    return parameter, average


def test_average_is_the_mean_of_what_was_added():
    parameter, average = walk([1.0, 2.0, 6.0])
    average.put(0.0)
    torch.testing.assert_close(parameter.data, torch.full((2, 3), 3.0))
    assert average.count == 3


def test_share_of_the_start_is_mixed_in():
    parameter, average = walk([1.0, 3.0])
    average.put(0.25)
    torch.testing.assert_close(parameter.data, torch.full((2, 3), 0.75 * 2.0 + 0.25 * 8.0))


def test_share_with_the_least_loss_is_chosen():
    parameter, average = walk([2.0])
    distance = lambda: float((parameter.detach() - 5.2).square().mean())  # noqa: E731
    assert average.best_share([0.0, 0.5, 1.0], distance) == 0.5
    assert average.best_share([1.0], distance) == 1.0


def test_average_of_a_noisy_walk_is_nearer_to_the_minimum():
    torch.manual_seed(0)
    target, parameter = torch.randn(64), nn.Parameter(torch.zeros(64))
    average, apart = Average([parameter]), []
    for step in range(400):
        gradient = parameter.data - target + 3 * torch.randn(64)
        parameter.data -= 0.2 * gradient
        if step >= 50:
            average.add()
            apart.append(float((parameter.data - target).norm()))
    average.put(0.0)
    assert float((parameter.data - target).norm()) < 0.4 * sum(apart) / len(apart)


def test_mean_of_models():
    first, second = {"w": torch.ones(2, 2)}, {"w": torch.full((2, 2), 3.0, dtype=torch.bfloat16)}
    torch.testing.assert_close(mean_weights([first, second]), {"w": torch.full((2, 2), 2.0)})
    with pytest.raises(ValueError, match="no mean"):
        mean_weights([first, {"w": torch.ones(2, 3)}])
    with pytest.raises(ValueError, match="no mean"):
        mean_weights([first, {"v": torch.ones(2, 2)}])


def schedule(*options: str) -> Schedule:
    arguments = ["--out", "omni", "--total-minutes", "10", "--lr", "0.01", "--warmup", "1", *options]
    return Schedule(parse_arguments(arguments), 0.0, 0.0)


def test_learning_rate_stays_until_the_run_settles():
    plan = schedule("--average-every", "5", "--settle-minutes", "2", "--settle-lr", "0.3")
    rates = [plan.learning_rate(60 * minutes, 100) for minutes in (1, 7.9, 8.0001, 9, 9.999)]
    assert rates == pytest.approx([0.01, 0.01, 0.003, 0.0015, 0.3 * 0.01 * 0.005], rel=1e-3)
    falling = schedule("--decay", "0.5")
    assert [falling.learning_rate(60 * minutes, 100) for minutes in (4, 7.5)] == pytest.approx([0.01, 0.005])


def trainer(tmp_path, losses: dict[float, float]) -> tuple[Trainer, nn.Linear, list[float]]:
    """As much of a run as its average needs: `losses` by the value of all weights."""
    run, model, measured = Trainer.__new__(Trainer), nn.Linear(4, 4), []
    model.weight.data.fill_(0.0), model.bias.data.fill_(0.0)
    run.args = parse_arguments(["--out", str(tmp_path), "--start-shares", "0", "0.5"])
    run.schedule = schedule("--average-every", "2", "--average-from", "1", "--settle-minutes", "2")
    run.model, run.optimizer, run.replicas = model, Optimizer(model, 0.01), Replicas()
    run.average, run.progress, run.started = Average(model.parameters()), Progress(), time.perf_counter()

    def evaluate(what: str) -> float:
        measured.append(round(float(model.weight[0, 0]), 3))
        return losses[measured[-1]]

    run.evaluate = evaluate
    return run, model, measured


@pytest.mark.parametrize(("losses", "expected"), [({4.0: 0.3, 2.0: 0.5}, 4.0), ({4.0: 0.3, 2.0: 0.2}, 2.0)])
def test_run_settles_from_the_average_that_held_out_batches_choose(tmp_path, losses, expected):
    run, model, measured = trainer(tmp_path, losses)
    # (update, minute, weights): the first is too early, the third no second update, the last too late
    for step, minutes, value in ((2, 0.5, 9.0), (4, 2, 3.0), (5, 3, 9.0), (6, 4, 5.0)):
        model.weight.data.fill_(value), model.bias.data.fill_(value)
        run.progress.step = step
        run.gather(60 * minutes)
    for tensor in run.optimizer.tensors().values():
        tensor.fill_(1.0)
    run.progress.step = 8
    run.gather(60 * 8.5)
    assert measured == [4.0, 2.0]
    assert set(model.weight.flatten().tolist()) == {expected}
    assert not any(tensor.any() for tensor in run.optimizer.tensors().values())
    assert (run.schedule.warm_from, run.average) == (8, None)


def test_average_is_part_of_a_run(tmp_path):
    options = ("--average-every", "1", "--start-shares", "0", "0.5", "--settle-minutes", "4.99")
    train("--out", str(tmp_path / "a"), "--steps", "2", *options)  # its start-up alone takes longer than .01 minutes
    history = json.loads((tmp_path / "a" / "progress.json").read_text())["history"]
    assert [record["step"] for record in history] == [2]  # nothing had been averaged


def test_command_writes_a_model_that_loads(tmp_path):
    for name, value in (("a", 1.0), ("b", 3.0)):
        (tmp_path / name).mkdir()
        for file in (CONFIG, TOKENIZER):
            (tmp_path / name / file).write_text("{}")
        weights = {"model.w": torch.full((32, 32), value), "model.norm": torch.full((32,), value)}
        save_packed(code_weights(weights, 0.08), tmp_path / name)
    command = [sys.executable, "-m", "training.averaging"]
    folders = [str(tmp_path / name) for name in "ab"]
    done = subprocess.run([*command, *folders, "--out", str(tmp_path / "mean")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    mean = load_packed(tmp_path / "mean")
    assert float((mean["model.w"] - 2).abs().max()) < 0.08 * 2
    assert set(mean["model.norm"].tolist()) == {2.0}
    done = subprocess.run([*command, str(tmp_path), "--out", str(tmp_path / "x")], capture_output=True, text=True)
    assert done.returncode == 1 and "is missing" in done.stderr and len(done.stderr.splitlines()) == 1
