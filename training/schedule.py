"""Learning rates, rounding and averaging by elapsed minutes of the schedule."""

from __future__ import annotations

import argparse


class Schedule:
    """The schedule of a chain of runs.

    Attributes:
        warm_from, warm_steps: the update at which the learning rate begins to warm up, and over how many.
    """

    def __init__(self, args: argparse.Namespace, used: float, reserve: float) -> None:
        """`used`: minutes of the schedule before this run. `reserve`: seconds at its end without updates."""
        self.args, self.used, self.reserve = args, used, reserve / 60
        self.warm_from, self.warm_steps = 0, args.warmup

    def warm_up(self, step: int, steps: int = 30) -> None:
        """Warms up again from update `step` on, because the optimisers have lost their moments."""
        self.warm_from, self.warm_steps = step, steps

    def minutes(self, seconds: float) -> float:
        """Minutes of the schedule after `seconds` of this run."""
        return self.used + seconds / 60

    def ending(self, seconds: float, minutes: float) -> bool:
        """Whether the last `minutes` have begun."""
        return self.minutes(seconds) > self.args.total_minutes - minutes

    def settling(self, seconds: float) -> bool:
        """Whether the last `--settle-minutes` have begun, if there is an average."""
        return self.args.average_every > 0 and self.ending(seconds, self.args.settle_minutes)

    def averaging(self, seconds: float, step: int) -> bool:
        """Whether the weights of update `step` are part of the average."""
        return step % self.args.average_every == 0 and self.minutes(seconds) >= self.args.average_from

    def left(self, seconds: float) -> float:
        """Minutes in which there will be updates."""
        return self.args.total_minutes - self.reserve - self.minutes(seconds)

    def learning_rate(self, seconds: float, step: int) -> float:
        """Warm-up, constant, linear decay over the last `--decay` of the total time; with an average, constant until
        the last `--settle-minutes`, in which `--settle-lr` of it decays.
        """
        args, falling, scale = self.args, self.args.decay * (self.args.total_minutes - self.reserve), 1.0
        if self.settling(seconds):
            falling, scale = args.settle_minutes - self.reserve, args.settle_lr
        elif args.average_every:
            falling = 0.0
        scale *= min(1.0, max(self.left(seconds) / falling, 0.005)) if falling > 0 else 1.0
        return args.lr * scale * min(1.0, (step - self.warm_from + 1) / self.warm_steps)

    def text_rate(self, seconds: float) -> float:
        """Share of the learning rate that the pretrained text tower gets: none at first, if asked for."""
        return 0.0 if self.minutes(seconds) < self.args.freeze_minutes else self.args.text_lr
