"""The mean of the weights that a run passes through, from which its last minutes go on, and the mean of whole models.

At a learning rate that does not fall, weights circle around a region of low loss, and their mean, which lies inside it,
often generalises better than any of them (Izmailov et al., 2018, "Averaging Weights Leads to Wider Optima and Better
Generalization"). Here a few minutes at a falling rate follow, in which the mean settles on the weights that will be
stored. A model that is trained on from another may have kept too little of it: a share of the first weights in the mean
brings it back (Wortsman et al., 2022, "Robust fine-tuning of zero-shot models", who mix weights before and after
fine-tuning). Held-out batches choose the share.

    python -m training.averaging MODEL MODEL... --step 0.08 --out runs/mean

writes the mean of several stored models, each trained on from the one before, as a --base and --init for the next run
and as a model that `kvmm.load_model` loads.
"""

from __future__ import annotations

import argparse
import math
import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from kvmm.models.packed_weights import PACKED_FILE, load_packed, save_packed
from training.arguments import step_share
from training.checkpoints import coded
from training.smollm2.folder import CONFIG, TOKENIZER

SETTINGS = ("*config.json", TOKENIZER, "*.jinja")  # files that a mean has from its first model


class Average:
    """A running mean over parameters.

    Attributes:
        count: weights in the mean so far.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], keep_start: bool = True) -> None:
        """`keep_start`: whether the present weights may be mixed in later, for which a copy of them is kept."""
        self.parameters = list(parameters)
        self.start: list[Tensor] | None = [p.detach().clone() for p in self.parameters] if keep_start else None
        self.mean: list[Tensor] = [torch.zeros_like(p) for p in self.parameters]
        self.count = 0

    @torch.no_grad()
    def add(self) -> None:
        """Takes the present weights into the mean."""
        self.count += 1
        torch._foreach_lerp_(self.mean, self.parameters, 1 / self.count)

    @torch.no_grad()
    def put(self, share: float) -> None:
        """Gives the parameters their mean, with `share` of what they were at the start in it.

        Raises:
            ValueError: there is no mean yet, or the start was not kept.
        """
        if not self.count or (share and self.start is None):
            raise ValueError("nothing was averaged" if not self.count else "the weights at the start were not kept")
        mixed = torch._foreach_lerp(self.mean, self.start, share) if share else self.mean
        torch._foreach_copy_(self.parameters, mixed)

    def best_share(self, shares: Sequence[float], loss: Callable[[float], float]) -> float:
        """The share of the start whose mixture has the least loss; the only one without a measurement.

        Leaves the parameters with the last mixture tried: call :meth:`put` afterwards.

        Args:
            loss: measures the parameters as they are; it is told the share.
        """
        if len(shares) == 1:
            return shares[0]
        losses = {}
        for share in shares:
            self.put(share)
            losses[share] = loss(share)
        return min(shares, key=lambda share: losses[share] if math.isfinite(losses[share]) else math.inf)


def mean_weights(models: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    """The mean of several models' weights by name, float32; those of the models may have any float dtype.

    Raises:
        ValueError: names or shapes differ.
    """
    shapes = [{name: tensor.shape for name, tensor in weights.items()} for weights in models]
    if any(other != shapes[0] for other in shapes[1:]):
        raise ValueError("weights of models whose tensors differ in names or sizes have no mean")
    return {name: sum(weights[name].float() for weights in models) / len(models) for name in shapes[0]}


def write_mean(folders: Sequence[Path], out: Path, step: float) -> Path:
    """Writes the mean of stored models, in steps of `step`, with the settings of the first; returns the weights' file.

    Raises:
        ValueError: a model is not complete, they do not fit together, or `out` is one of them.
    """
    same = (CONFIG, TOKENIZER)
    for path in (folder / name for folder in folders for name in (PACKED_FILE, *same)):
        if not path.is_file():
            raise ValueError(f"{path} is missing: name folders of training.export --step")
    if out.is_file():
        raise ValueError(f"--out {out} is a file: name a folder")
    if out.resolve() in [folder.resolve() for folder in folders]:
        raise ValueError(f"--out {out} is one of the models: choose another folder")
    for name in same:
        if len({(folder / name).read_bytes() for folder in folders}) > 1:
            raise ValueError(f"models with different {name} have no mean")
    mean = mean_weights([load_packed(folder) for folder in folders])
    out.mkdir(parents=True, exist_ok=True)
    for file in (file for pattern in SETTINGS for file in folders[0].glob(pattern)):
        shutil.copy(file, out / file.name)
    return save_packed(coded(mean, step), out)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m training.averaging", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", type=Path, nargs="+", help=f"folders with a {PACKED_FILE}")
    parser.add_argument(
        "--step", type=step_share, default=0.08, help="of stored weights, as for training.export (default 0.08)"
    )
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    if len(args.models) < 2:
        parser.error("a mean needs at least two models")
    try:
        file = write_mean(args.models, args.out, args.step)
    except ValueError as error:
        sys.exit(str(error))
    print(f"{file}: {file.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
