"""The mean of the weights that a run passes through, from which its last minutes settle.

At a learning rate that does not fall, weights circle around a region of low loss; their mean lies inside it and is
better on documents that training has not met than any of them (Izmailov et al., 2018, "Averaging Weights Leads to Wider
Optima and Better Generalization", section 3). The weights that a run starts from are such a mean of earlier runs, and a
part of them may go into the new one (Wortsman et al., 2022, "Robust fine-tuning of zero-shot models", section 3); which
part, held-out batches decide.

    python -m training.averaging MODEL MODEL... --step 0.08 --out runs/mean

writes the mean of several stored models, each trained on from the one before, as a --base and --init for the next run.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from kvmm.models.packed_weights import PACKED_FILE, code_weights, load_packed, save_packed
from training.arguments import step_share
from training.model_config import AUXILIARY
from training.smollm2.folder import CONFIG, EMBEDDINGS, TOKENIZER


class Average:
    """A running mean over the parameters of a model.

    Attributes:
        count: weights in the mean so far.
    """

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        self.parameters = list(parameters)
        self.start: list[Tensor] = [p.detach().clone() for p in self.parameters]
        self.mean: list[Tensor] = [torch.zeros_like(p) for p in self.parameters]
        self.count = 0

    @torch.no_grad()
    def add(self) -> None:
        """Takes the present weights into the mean."""
        self.count += 1
        torch._foreach_lerp_(self.mean, self.parameters, 1 / self.count)

    @torch.no_grad()
    def put(self, share: float) -> None:
        """Gives the model the mean, with `share` of the weights at the start in it."""
        torch._foreach_copy_(self.parameters, torch._foreach_lerp(self.mean, self.start, share))

    def best_share(self, shares: Sequence[float], loss: Callable[[], float]) -> float:
        """The share of the start whose mixture has the least `loss()`; the first one where nothing is to choose.

        Leaves the model with the last mixture tried: call :meth:`put` afterwards.
        """
        if len(shares) == 1:
            return shares[0]
        losses = {}
        for share in shares:
            self.put(share)
            losses[share] = loss()
        return min(losses, key=losses.get)


def mean_weights(models: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    """The mean of several models' weights by name, float32.

    Raises:
        ValueError: their names or shapes differ.
    """
    shapes = [{name: tensor.shape for name, tensor in weights.items()} for weights in models]
    if any(other != shapes[0] for other in shapes[1:]):
        raise ValueError("weights of models of different sizes have no mean")
    return {name: sum(weights[name].float() for weights in models) / len(models) for name in shapes[0]}


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m training.averaging", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", type=Path, nargs="+", help=f"folders with a {PACKED_FILE}; sizes are the first one's")
    parser.add_argument("--step", type=step_share, default=0.08, help="of stored weights (default 0.08)")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    for path in (*(folder / PACKED_FILE for folder in args.models), *(args.models[0] / n for n in (CONFIG, TOKENIZER))):
        if not path.is_file():
            sys.exit(f"{path} is missing: name folders of training.export --step")
    try:
        mean = mean_weights([load_packed(folder) for folder in args.models])
    except ValueError as error:
        sys.exit(str(error))
    args.out.mkdir(parents=True, exist_ok=True)
    for file in args.models[0].glob("*.json"):
        shutil.copy(file, args.out / file.name)
    file = save_packed(code_weights(mean, args.step, (*EMBEDDINGS, *AUXILIARY)), args.out)
    print(f"{file}: {file.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
