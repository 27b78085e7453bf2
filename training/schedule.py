"""What of a run follows the minutes of its schedule: learning rates, rounding, the average."""

from __future__ import annotations

import argparse


class Schedule:
    """The schedule of a chain of runs.

    Attributes:
        warm_from, warm_steps: the update at which the learning rate begins to warm up, and how many take part.
    """

    def __init__(self, args: argparse.Namespace, used: float, reserve: float) -> None:
        """`used`: minutes of the schedule before this run. `reserve`: seconds at its end without updates."""
        self.args, self.used, self.total = args, used, args.total_minutes - reserve / 60
        self.warm_from, self.warm_steps = 0, args.warmup

    def warm_up(self, step: int, steps: int = 30) -> None:
        """Warms up from update `step` on, as where moments of the gradients are missing."""
        self.warm_from, self.warm_steps = step, steps

    def minutes(self, seconds: float) -> float:
        """Minutes of the schedule after `seconds` of this run."""
        return self.used + seconds / 60

    def ending(self, seconds: float, minutes: float) -> bool:
        """Whether the last `minutes` have begun."""
        return self.minutes(seconds) > self.args.total_minutes - minutes

    def settling(self, seconds: float) -> bool:
        """Whether the minutes have begun that start from the run's average."""
        return self.args.average_every > 0 and self.ending(seconds, self.args.settle_minutes)

    def averaging(self, seconds: float, step: int) -> bool:
        """Whether the weights of update `step` are part of the average."""
        return step % self.args.average_every == 0 and self.minutes(seconds) >= self.args.average_from

    def learning_rate(self, seconds: float, step: int) -> float:
        """Warm-up, constant, linear decay over the last `--decay` of the total time; with an average, constant until
        the last `--settle-minutes`, in which `--settle-lr` of it decays.
        """
        args, left = self.args, 1 - self.minutes(seconds) / self.total
        decay, scale = args.decay, 1.0
        if args.average_every:
            decay, scale = (args.settle_minutes / self.total, args.settle_lr) if self.settling(seconds) else (0.0, 1.0)
        scale *= min(1.0, max(left / decay, 0.005)) if decay else 1.0
        return args.lr * scale * min(1.0, (step - self.warm_from + 1) / self.warm_steps)

    def text_rate(self, seconds: float) -> float:
        """Share of the learning rate that the pretrained text tower gets: none at first, if asked for."""
        return 0.0 if self.minutes(seconds) < self.args.freeze_minutes else self.args.text_lr
