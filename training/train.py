"""Trains the embedded model on one GPU.

    python -m training.train --out runs/omni

trains from scratch for `--total-minutes`. Where a command may only run for minutes, chain runs: each continues the last
one's schedule.

    python -m training.train --out runs/omni --minutes 9 --total-minutes 45        # repeat five times

Two things are written. `--state` (default: `<out>-state`) holds float32 weights and optimiser state and is picked up by
the next run on the same machine. `--out` holds bf16 weights in files below 15 MiB plus `progress.json`: small enough to
carry elsewhere (`training.chain` makes them smaller), enough to continue from with `--init`, and what `python -m
training.export --weights <out>` turns into the checkpoint.
"""

from __future__ import annotations

import os

# ruff: noqa: E402
# Before numpy: a BLAS thread pool in every data worker starves the thread that launches GPU kernels.
for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_variable] = "1"

import argparse
import contextlib
import json
import random
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch.nn.attention import SDPBackend, sdpa_kernel

from kvmm.errors import KVMMError
from training.arguments import parse_arguments
from training.augment import render_media
from training.averaging import Average
from training.base import Base
from training.checkpoints import CHECKPOINT, carried, has_new_heads, load_weights, replaced, split_weights
from training.distill import teacher_logits
from training.graphs import Steps, cuda_capture
from training.loader import Loader, prepared_dataset, ring_name, spec_group, to_device
from training.measures import PACKED, Figures, answer_loss, describe, line, step_statistics
from training.model import OmniModel
from training.model_config import AUXILIARY, ModelConfig
from training.optim import Optimizer
from training.packed_prefix import PackedPrefix
from training.replicas import Replicas
from training.rounding import Rounding
from training.schedule import Schedule
from training.token_functions import compile_token_functions, eager_token_functions, use_eager_token_functions


@dataclass
class Progress:
    """What a chain of runs carries from one to the next besides tensors."""

    step: int = 0
    minutes: float = 0.0  # of the schedule
    runs: int = 0  # part of every data seed
    history: list[dict] = field(default_factory=list)  # held-out measurements
    heads_from: int = 0  # the update from which auxiliary heads teach the towers


class Trainer:
    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.started = args, time.perf_counter()
        self.progress, source = self.find_checkpoint()
        used = self.progress.minutes
        self.minutes = max(args.total_minutes - used, 0.0) if args.minutes is None else args.minutes
        self.reserve = 20.0 if args.device.startswith("cuda") else 0.0  # seconds for the last checkpoint and figures
        self.schedule = Schedule(args, used, self.reserve)
        # The workers are forked here, before anything touches CUDA.
        self.base = Base(args.base) if args.base is not None else None
        if self.base and not self.base.has_weights and (source is None or (args.distill_weight and not args.teacher)):
            sys.exit(f"--base {args.base} has no pretrained weights: add --init and --teacher, such as the same folder")
        self.packed = self.read_packed()
        dataset = prepared_dataset(args.dataset)
        self.specs = [
            (replace(spec, sequences=min(spec.sequences, args.sequences or spec.sequences)), share)
            for spec, share in dataset.SPECS
            if not args.only or spec.name in args.only
        ]
        self.progress.runs += 1
        self.replicas = Replicas()
        seed_key = (1, args.seed, self.progress.runs, *([self.replicas.rank] if self.replicas.rank else []))
        self.loader = Loader(self.specs, dataset.make_step, args.workers, args.slots, seed_key)
        self.device = self.replicas.device(args.device)
        self.replicas.connect()
        torch.manual_seed(args.seed * 1000 + self.progress.runs)
        torch.set_float32_matmul_precision("high")
        self.model = OmniModel(self.base and self.base.config).to(self.device)
        self.teacher = self.base and self.base.start(self.model, args.distill_weight > 0, args.teacher)
        adamw = ("model.",) if self.base is not None and args.text_optimizer == "adamw" else ()
        self.optimizer = Optimizer(self.model, args.lr, adamw=adamw)
        loaded = {*(self.base.loaded if self.base else ()), *(self.load(source) if source is not None else ())}
        if has_new_heads(loaded):
            self.progress.heads_from = self.progress.step + args.head_updates
        self.packed = self.packed and self.packed.to(self.device)
        self.packed_choice = random.Random(args.seed * 1000 + self.progress.runs)  # the same in all processes of a run
        self.rounding = Rounding(self.model, args.round_step) if args.round_step else None
        self.stream = torch.cuda.Stream(self.device) if args.graphs else None
        self.steps = Steps(
            self.model.parameters(), self.backward, cuda_capture(self.stream) if args.graphs else None,
            possible=lambda spec: not spec.frames,  # the loss of recordings waits for the device
            say=self.say,
        )  # fmt: skip
        self.replicas.align(self.model.state_dict().values())
        # without the auxiliary heads, which start from nothing and do not ship
        kept = (p for name, p in self.model.named_parameters() if not name.startswith(AUXILIARY))
        self.average = Average(kept, any(args.start_shares)) if args.average_every else None
        torch.manual_seed(args.seed * 1000 + self.progress.runs + 97 * self.replicas.rank)  # of the augmentation
        self.loader.start(self.device)
        self.held_out: list | None = None
        self.profiler: torch.profiler.profile | None = None
        sizes = sum(p.numel() for p in self.model.export_weights().values()) / 1e6
        late = f", auxiliary heads teach from update {heads_from}" if (heads_from := self.progress.heads_from) else ""
        self.say(
            f"{sizes:.2f}M parameters, {len(self.specs)} specs, run {self.progress.runs}, from {source or 'scratch'}, "
            f"{self.minutes:.1f} minutes, {used:.1f} of {args.total_minutes:g} used{late}"
        )

    def read_packed(self) -> PackedPrefix | None:
        if self.args.packed is None:
            return None
        config = self.base.config if self.base is not None else ModelConfig()
        try:
            return PackedPrefix(self.args.packed, config, self.args.packed_bits)
        except KVMMError as error:
            sys.exit(f"--packed: {error}")

    # ---- time and log ----

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.started

    def say(self, text: str) -> None:
        if self.replicas.first:
            print(f"[{self.seconds:6.1f}s] {text}", flush=True)

    def rounded_weights(self, seconds: float):
        """Rounded weights in the last minutes of the schedule, if asked for."""
        late = self.rounding and self.schedule.ending(seconds, self.args.round_minutes)
        return self.rounding.applied() if late else contextlib.nullcontext()

    # ---- checkpoints ----

    def find_checkpoint(self) -> tuple[Progress, Path | None]:
        args = self.args
        for folder in (None if args.fresh else args.state, args.init):
            if folder is not None and (folder / "progress.json").is_file():
                saved = json.loads((folder / "progress.json").read_text())
                progress = Progress(**{k: saved[k] for k in Progress.__dataclass_fields__ if k in saved})
                if args.elapsed_minutes is not None and folder == args.init:  # else every run would start it again
                    progress.minutes = args.elapsed_minutes
                return progress, folder
        if args.init is not None:
            if not (args.init / CHECKPOINT).is_file():
                sys.exit(f"--init {args.init}: no weights there; name an --out folder or an exported checkpoint")
            return Progress(minutes=args.elapsed_minutes or 0.0), args.init
        return Progress(minutes=args.elapsed_minutes or 0.0), None

    @torch.no_grad()
    def load(self, folder: Path) -> Iterable[str]:
        """Full state from a --state folder, or bf16 weights from an --out folder; without optimiser state the learning
        rate warms up again. Returns the names of the weights that were there.
        """
        own, saved = self.model.state_dict(), load_weights(folder)
        fresh = {name: t for name, t in own.items() if name.startswith(AUXILIARY)}
        kept = {n: t for n, t in saved.items() if not (n in fresh and t.shape != fresh[n].shape)}
        self.model.load_state_dict(fresh | kept)  # a head of another alphabet starts from nothing
        if (folder / "optimizer.safetensors").is_file():
            saved = load_file(folder / "optimizer.safetensors")
            for name, tensor in self.optimizer.tensors().items():
                old = saved.get(name, tensor)
                tensor.copy_(old if old.shape == tensor.shape else tensor)  # a head added since starts from nothing
        else:
            self.schedule.warm_up(self.progress.step)
        return kept

    def save(self) -> None:
        self.progress.minutes = self.schedule.minutes(self.seconds)
        weights = {name: t.detach().cpu().contiguous() for name, t in self.model.state_dict().items()}
        if not all(t.isfinite().all() for t in weights.values()):
            raise FloatingPointError("the weights are no longer finite; the last checkpoint is kept")
        progress = json.dumps(asdict(self.progress), indent=1)
        with replaced(self.args.state) as folder:
            save_file(weights, folder / "weights-0.safetensors")
            save_file(
                {n: t.cpu().contiguous() for n, t in self.optimizer.tensors().items()}, folder / "optimizer.safetensors"
            )
            (folder / "progress.json").write_text(progress)
        with replaced(self.args.out) as folder:
            for i, part in enumerate(split_weights(carried(weights, self.base is not None))):
                save_file(part, folder / f"weights-{i:02d}.safetensors")
            if self.base is not None:
                self.base.copy_to(folder)
            (folder / "progress.json").write_text(progress)

    # ---- one step ----

    def autocast(self):
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda")

    def rendered(self, batch: dict[str, torch.Tensor], training: bool) -> dict[str, torch.Tensor]:
        """The batch as `OmniModel.forward` reads it."""
        inputs = render_media(batch, training, torch.bfloat16 if self.device.type == "cuda" else torch.float32)
        if training and self.progress.heads_from:  # an input: captured steps are the same before and after
            late = float(self.progress.step >= self.progress.heads_from)
            inputs["heads_teach"] = torch.full((), late, device=self.device)
        return inputs

    def losses(self, inputs: dict[str, torch.Tensor], training: bool) -> dict[str, torch.Tensor]:
        with self.autocast():
            soft = teacher_logits(self.teacher, inputs) if training else None
            media = (inputs.get(name) for name in ("pages", "mel", "keep"))
            return self.model(inputs, *media, soft, self.packed if "packed" in inputs else None)

    def backward(self, spec, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        """Adds the gradients of one micro-batch; returns its statistics."""
        out = self.losses(inputs, training=True)
        weight = self.args.audio_weight if spec_group(spec) == "audio" else 1.0
        loss = out["loss"] + self.args.aux_weight * out["aux"] + self.args.distill_weight * out["distill"]
        (weight * loss).backward()
        return step_statistics(out, inputs["target_weight"])

    def can_pack(self, spec) -> bool:
        return self.packed is not None and spec_group(spec) != "text"

    def from_codes(self, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Inputs of a step whose branches read codes: what counts is the name, which gives it a graph of its own."""
        return inputs | {"packed": torch.ones((), device=self.device)}

    def accumulate(self, sums: dict[str, torch.Tensor]) -> None:
        """Gradients of one update's micro-batches; adds what the log shows to `sums`."""
        self.steps.begin()
        for _ in range(self.args.accumulate):
            spec, batch = self.loader.next()
            inputs, chosen = self.rendered(batch, training=True), self.packed_choice.random() < self.args.packed_share
            if chosen and self.can_pack(spec):
                inputs = self.from_codes(inputs)
            group = spec_group(spec) + (PACKED if "packed" in inputs else "")
            sums[group] = sums.get(group, 0) + self.steps.run(spec, inputs)
        self.steps.finish()

    def try_compiled(self) -> None:
        """Compiles on first batches of every kind; if that fails the run goes on eagerly, slower rather than lost."""
        if not self.args.compile:
            return
        compile_token_functions()
        kinds = {ring_name(spec) for spec, _ in self.specs}
        try:
            while kinds:
                spec, batch = self.loader.next()
                inputs = self.rendered(batch, training=True)
                self.backward(spec, inputs)
                if self.can_pack(spec) and ring_name(spec) in kinds:  # what follows attention is compiled anew for it
                    self.backward(spec, self.from_codes(inputs))
                kinds.discard(ring_name(spec))
            self.say("compiled")
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            self.say(f"torch.compile failed, running eagerly: {error!r:.800}")
            use_eager_token_functions()
        for p in self.model.parameters():
            p.grad = None

    @contextlib.contextmanager
    def profiled(self, first: int) -> Iterator[None]:
        """Records the updates of `--profile`, and prints which kernels took longest."""
        start, count = self.args.profile or (0, 0)
        done = self.progress.step - first
        if count and done == start and self.replicas.first:
            activity = "CUDA" if self.device.type == "cuda" else "CPU"
            self.profiler = torch.profiler.profile(activities=[getattr(torch.profiler.ProfilerActivity, activity)])
            self.profiler.start()
        yield
        if done == start + count - 1:
            self.end_profile()

    def end_profile(self) -> None:
        if self.profiler is None:
            return
        self.profiler.stop()
        by = f"self_{'device' if self.device.type == 'cuda' else 'cpu'}_time_total"
        self.say(self.profiler.key_averages().table(sort_by=by, row_limit=40, max_name_column_width=90))
        self.profiler = None

    # ---- measuring ----

    @torch.no_grad()
    @eager_token_functions()
    def measure(self, seconds: float) -> dict[str, dict[str, float]]:
        """Teacher-forced figures of held-out batches by group: losses, token accuracy, share of exact branches."""
        if self.held_out is None:
            self.held_out = self.loader.held_out()
        self.model.eval()
        figures = Figures()
        with self.rounded_weights(seconds):  # late in the schedule: the weights that will be stored
            for spec, step in self.held_out:
                batch, group = to_device(step, self.device), spec_group(spec)
                inputs = self.rendered(batch, training=False)
                readings = {group: inputs}
                if self.can_pack(spec):
                    readings[f"{group}{PACKED}"] = self.from_codes(inputs)
                for name, read in readings.items():
                    out = self.losses(read, training=False)
                    figures.add(name, out, batch["target_weight"], batch["target_branch"])
        self.model.train()
        return figures.describe()

    def evaluate(self, seconds: float, what: str = "") -> float:
        """Measures, logs and keeps the figures; returns the mean loss of answers over groups that read no codes."""
        found = self.measure(seconds)
        record = {"step": self.progress.step, "minutes": round(self.schedule.minutes(seconds), 2)}
        self.progress.history.append(record | ({"what": what} if what else {}) | found)
        shown = " | ".join(f"{group}: {line(figures)}" for group, figures in found.items())
        self.say(f"HELD OUT step {self.progress.step} {what}{': ' if what else ''}{shown}")
        return answer_loss(found)

    # ---- the average ----

    def gather(self, seconds: float) -> None:
        """Takes the weights into the average now and then; when the last minutes begin, gives the model the average."""
        if (average := self.average) is None or not self.schedule.settling(seconds):
            if average is not None and self.schedule.averaging(seconds, self.progress.step):
                average.add()
            return
        self.average = None
        if not average.count:
            self.say("the last minutes begin, and no weights were averaged: going on with those that there are")
            return
        name = f"the mean of {average.count} weights, {{:g}} of those at the start in it"
        loss = lambda share: self.evaluate(seconds, name.format(share))  # noqa: E731
        share = average.best_share(self.args.start_shares, loss) if self.replicas.first else 0.0
        average.put(share := self.replicas.agree(share))
        self.replicas.align(self.model.state_dict().values())
        self.say(f"going on from {name.format(share)}")
        torch._foreach_zero_(list(self.optimizer.tensors().values()))
        self.schedule.warm_up(self.progress.step)

    # ---- the loop ----

    def run(self) -> None:
        args, deadline = self.args, self.minutes * 60 - self.reserve
        self.model.train()
        self.try_compiled()
        sums: dict[str, torch.Tensor] = {}
        saved = measured = window = self.seconds
        waited, first = self.loader.waited, self.progress.step
        while (now := self.replicas.agree(self.seconds)) < deadline and self.progress.step - first < args.steps:
            with self.profiled(first):
                with self.rounded_weights(now):
                    self.accumulate(sums)
                self.replicas.sum_gradients(self.optimizer.parameters)
                rate = self.schedule.learning_rate(now, self.progress.step)
                shares = {"model.": self.schedule.text_rate(now)}
                self.optimizer.step(rate, shares if self.base is not None else None)
            self.progress.step += 1
            self.gather(now)
            if (self.progress.step - first) % args.log_every:
                continue
            self.replicas.align(self.model.state_dict().values())
            described = {g: describe(v) for g, v in sorted(sums.items())}  # waits for the device
            ms, wait = (
                (b - a) / args.log_every * 1e3 for a, b in ((window, self.seconds), (waited, self.loader.waited))
            )
            groups = " | ".join(f"{g}: {line(d)}" for g, d in described.items())
            self.say(f"step {self.progress.step} {ms:.0f} ms wait {wait:.0f} lr {rate:.2e} {groups}")
            if any(d["answer"] != d["answer"] for d in described.values()):
                raise FloatingPointError("the loss is no longer finite; the last checkpoint is kept")
            sums.clear()
            if not self.replicas.first:
                continue
            if self.seconds - saved > args.save_minutes * 60:
                self.save()
                saved = self.seconds
            if self.seconds - measured > args.eval_minutes * 60:
                self.evaluate(self.seconds)
                measured = self.seconds
            window, waited = self.seconds, self.loader.waited
        self.end_profile()
        if self.average is not None and self.average.count:
            self.say(f"ended before its last minutes: the mean of {self.average.count} weights is not used")
        self.replicas.disconnect()
        if not self.replicas.first:
            return
        self.save()
        self.say(f"saved step {self.progress.step}, {self.progress.minutes:.2f} of {args.total_minutes:g} minutes")
        self.evaluate(self.seconds)
        history = json.dumps(asdict(self.progress), indent=1)
        for folder in (args.out, args.state):
            (folder / "progress.json").write_text(history)


def main() -> None:
    trainer = Trainer(parse_arguments(description=__doc__))

    def watch() -> None:
        """Ends a run that overstays, whatever it hangs in: one cut off from outside might take its files with it."""
        time.sleep(max(trainer.minutes * 60 + 15 - trainer.seconds, 1))
        trainer.say("out of time: ending without another checkpoint")
        trainer.loader.close()
        os._exit(3)

    if trainer.device.type == "cuda":
        threading.Thread(target=watch, daemon=True).start()
    status = 1
    try:
        # cuDNN's attention is the fastest on Hopper for these shapes; the others take what it refuses.
        order = [
            SDPBackend.CUDNN_ATTENTION,
            SDPBackend.FLASH_ATTENTION,
            SDPBackend.EFFICIENT_ATTENTION,
            SDPBackend.MATH,
        ]
        kernels = sdpa_kernel(order, set_priority=True) if trainer.device.type == "cuda" else contextlib.nullcontext()
        if trainer.stream is not None:
            trainer.stream.wait_stream(torch.cuda.current_stream(trainer.device))
        with kernels, torch.cuda.stream(trainer.stream):
            trainer.run()
        trainer.say("done")
        status = 0
    except Exception:
        import traceback

        traceback.print_exc()
    trainer.loader.close()
    with contextlib.suppress(Exception):  # compile workers left behind would keep the output pipe open
        from torch._inductor.async_compile import shutdown_compile_workers

        shutdown_compile_workers()
    sys.stdout.flush()
    sys.stderr.flush()
    # Not sys.exit: queue threads, the prefetch thread and CUDA's own would wait for workers that no longer exist.
    os._exit(status)


if __name__ == "__main__":
    main()
