"""The average of a run's weights: what is in it, and how a run ends from it."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from torch import nn

from kvmm.models.packed_weights import code_weights, load_packed, save_packed
from training.arguments import parse_arguments
from training.averaging import Average, mean_weights, write_mean
from training.measures import answer_loss
from training.optim import Optimizer
from training.replicas import Replicas
from training.schedule import Schedule
from training.smollm2.folder import CONFIG, TOKENIZER
from training.train import Progress, Trainer

ROOT = Path(__file__).parents[2]


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


def test_what_is_not_there_is_not_put():
    with pytest.raises(ValueError, match="nothing was averaged"):
        walk([])[1].put(0.0)
    average = Average([nn.Parameter(torch.ones(2))], keep_start=False)
    average.add()
    average.put(0.0)
    with pytest.raises(ValueError, match="not kept"):
        average.put(0.5)


def test_share_with_the_least_loss_is_chosen():
    parameter, average = walk([2.0])
    told = []

    def distance(share: float) -> float:
        told.append(share)
        return float((parameter.detach() - 5.2).square().mean()) if share else math.nan

    assert average.best_share([0.0, 0.5, 1.0], distance) == 0.5  # a loss that is not finite is not the least
    assert told == [0.0, 0.5, 1.0]
    assert average.best_share([1.0], distance) == 1.0
    assert len(told) == 3  # nothing to choose, nothing measured


def test_loss_that_chooses_counts_every_group_once():
    found = {"page": {"answer": 0.2}, "page, packed": {"answer": 9.0}, "text": {"answer": 0.4}}
    assert answer_loss(found) == pytest.approx(0.3)
    assert answer_loss({}) == 0.0


def test_mean_of_models():
    first, second = {"w": torch.ones(2, 2)}, {"w": torch.full((2, 2), 3.0, dtype=torch.bfloat16)}
    torch.testing.assert_close(mean_weights([first, second]), {"w": torch.full((2, 2), 2.0)})
    for other in ({"w": torch.ones(2, 3)}, {"v": torch.ones(2, 2)}):
        with pytest.raises(ValueError, match="no mean"):
            mean_weights([first, other])


def arguments(*options: str):
    return parse_arguments(["--out", "omni", "--total-minutes", "10", "--lr", "0.01", "--warmup", "1", *options])


def test_learning_rate_stays_until_the_run_settles():
    plan = Schedule(arguments("--average-every", "5", "--settle-minutes", "2", "--settle-lr", "0.3"), 0.0, 30.0)
    rates = [plan.learning_rate(60 * minutes, 100) for minutes in (1, 7.999, 8.0001, 8.75, 9.499)]
    assert rates == pytest.approx([0.01, 0.01, 0.003, 0.0015, 0.3 * 0.01 * 0.005], rel=1e-3)
    falling = Schedule(arguments("--decay", "0.5"), 0.0, 0.0)
    assert [falling.learning_rate(60 * minutes, 100) for minutes in (4, 7.5)] == pytest.approx([0.01, 0.005])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--start-shares", "0.5"), "need --average-every"),
        (("--average-every", "-1"), "need --average-every"),
        (("--average-every", "1", "--settle-minutes", "0.9"), "--settle-minutes must be at least"),
        (("--average-every", "1", "--settle-minutes", "11"), "--settle-minutes must be at least"),
        (("--average-every", "1", "--average-from", "7"), "--average-from must be"),
        (("--average-every", "1", "--average-from", "-1"), "--average-from must be"),
    ],
)
def test_options_that_would_do_nothing_are_refused(options, message, capsys):
    with pytest.raises(SystemExit):
        arguments(*options)
    assert message in capsys.readouterr().err


def trainer(losses: dict[float, float], share: str) -> tuple[Trainer, nn.Linear, list[float]]:
    """As much of a run as its average needs: `losses` by the value of all weights."""
    run, model, measured = Trainer.__new__(Trainer), nn.Linear(4, 4), []
    set_weights(model, 0.0)
    run.args = arguments(
        "--start-shares", "0", share, "--average-every", "2", "--average-from", "1", "--settle-minutes", "2"
    )
    run.schedule = Schedule(run.args, 0.0, 0.0)
    run.model, run.optimizer, run.replicas = model, Optimizer(model, 0.01), Replicas()
    run.average, run.progress, run.started = Average(model.parameters()), Progress(), time.perf_counter()

    def evaluate(seconds: float, what: str) -> float:
        measured.append(round(model.weight[0, 0].item(), 3))
        return losses[measured[-1]]

    run.evaluate = evaluate
    return run, model, measured


def set_weights(model: nn.Module, value: float) -> None:
    for p in model.parameters():
        p.data.fill_(value)


@pytest.mark.parametrize(("losses", "expected"), [({4.0: 0.3, 2.0: 0.5}, 4.0), ({4.0: 0.3, 2.0: 0.2}, 2.0)])
def test_run_goes_on_from_the_mean_that_held_out_batches_choose(losses, expected):
    run, model, measured = trainer(losses, "0.5")
    # (update, minute, weights): the first is too early, the third no second update
    for step, minutes, value in ((2, 0.5, 9.0), (4, 2, 3.0), (5, 3, 9.0), (6, 4, 5.0)):
        set_weights(model, value)
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


def test_run_that_averaged_nothing_goes_on(capsys):
    run, model, measured = trainer({}, "0.5")
    set_weights(model, 7.0)
    run.gather(60 * 8.5)
    assert "no weights were averaged" in capsys.readouterr().out
    assert (measured, run.average, model.weight[0, 0].item()) == ([], None, 7.0)


DRIVER = """
import sys
from training import schedule, train

class ByUpdates(schedule.Schedule):
    "Settles after two updates, whatever the clock says."
    step = 0

    def learning_rate(self, seconds, step):
        self.step = step
        return super().learning_rate(seconds, step)

    def settling(self, seconds):
        return self.step >= 2

train.Schedule = ByUpdates
train.main()
"""


def test_run_averages_and_settles(tmp_path):
    options = [
        "--dataset",
        "tests.training.fake_data",
        "--device",
        "cpu",
        "--workers",
        "2",
        "--slots",
        "4",
        "--steps",
        "4",
    ]
    options += ["--total-minutes", "5", "--log-every", "1", "--average-every", "1", "--start-shares", "0", "0.5"]
    command = [sys.executable, "-c", DRIVER, "--out", str(tmp_path / "omni"), *options]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "going on from the mean of 2 weights, " in done.stdout
    history = json.loads((tmp_path / "omni" / "progress.json").read_text())["history"]
    mixtures = [f"the mean of 2 weights, {share} of those at the start in it" for share in ("0", "0.5")]
    assert [(record["step"], record.get("what")) for record in history] == [
        (3, mixtures[0]),
        (3, mixtures[1]),
        (4, None),
    ]
    first, second = (record["page"]["answer"] for record in history[:2])
    assert first != second


def stored(folder: Path, value: float, tokenizer: str = "{}") -> Path:
    """A stored model whose weights are all `value`."""
    folder.mkdir()
    for name, text in ((TOKENIZER, tokenizer), (CONFIG, "{}"), ("config.json", "{}"), ("evaluation.json", "{}")):
        (folder / name).write_text(text)
    weights = {"model.w": torch.full((32, 32), value), "model.norm": torch.full((32,), value)}
    save_packed(code_weights(weights, 0.08), folder)
    return folder


def test_mean_of_stored_models_loads(tmp_path):
    models = [stored(tmp_path / name, value) for name, value in (("a", 1.0), ("b", 3.0))]
    write_mean(models, tmp_path / "mean", 0.08)
    mean = load_packed(tmp_path / "mean")
    assert float((mean["model.w"] - 2).abs().max()) < 0.08 * 2
    assert set(mean["model.norm"].tolist()) == {2.0}
    names = {file.name for file in (tmp_path / "mean").iterdir()}
    assert names == {CONFIG, TOKENIZER, "config.json", "model.packed.safetensors"}  # no figures of another model


def test_models_that_do_not_fit_are_one_line(tmp_path):
    models = [str(stored(tmp_path / "a", 1.0)), str(stored(tmp_path / "b", 3.0, tokenizer="other"))]
    for folders, message in (
        ([models[0], str(tmp_path)], "is missing"),
        (models, "different tokenizer.json"),
        ([models[0], models[0], "--out", models[0]], "is one of the models"),
        ([models[0], models[0], "--out", str(tmp_path / "a" / CONFIG)], "is a file"),
    ):
        command = [sys.executable, "-m", "training.averaging", "--out", str(tmp_path / "x"), *folders]
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
        assert done.returncode == 1 and message in done.stderr and len(done.stderr.splitlines()) == 1, done.stderr
