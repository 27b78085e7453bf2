"""Vectors and trellises against scalar levels at equal bits, in rd's transform, on a language model.

    python -m benchmarks.vector_codes --model SmolLM2-135M-Instruct --calibration FILE
        --fit benchmarks/texts/persuasion.txt --text benchmarks/texts/jargon.txt benchmarks/texts/alice.txt

All codes have the transform, the bits of channels and the fixed deviations of the calibration file and code a token by
itself; they differ in what channels of 1, 2 and 4 bits are rounded to. Channels of 6 and 8 bits have uniform levels
throughout.

* ``uniform``: rd's levels, an affine code.
* ``lloyd``: the best levels of a Gaussian, a table a width.
* ``vectors``: 8 channels of 1 bit, or 4 of 2 bits, share one of 256 entries of a table, one for all layers, fitted by
  k-means to the text of ``--fit``; 4-bit channels as ``lloyd``.
* ``trellis``: trellis-coded quantisation (Marcellin and Fischer, 1990) over a token's channels of one width: 8 states,
  Ungerboeck's trellis, twice as many levels, of which the path lets half be reached; the best path is searched.

``cost`` is the squared error in rd's metric, in which errors of all channels cost the same, of all sites of the texts,
in ratio to ``uniform``; ``by_width`` is the squared error of channels of a width at unit variance. ``kl`` is as in
``benchmarks.vllm_slots``: the first token of every block of 128 is exact, and nothing else.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import DynamicCache

from benchmarks.report import Report, add_common_options, table
from benchmarks.vllm_slots import BLOCK_SIZE, Text
from kvmm.calibration import Calibration, read_calibration
from kvmm.calibration.file import FILE_NAME
from kvmm.kernels.quantize import GAUSSIAN_HALF_STEP
from kvmm.models import load_model
from kvmm.vllm.slots import rd_side

GROUP = {1: 8, 2: 4}  # channels that share an index of 8 bits
WIDTHS = (1, 2, 4)
KINDS = ("uniform", "lloyd", "vectors", "trellis")
_STATES = 8
_SAMPLES = 60_000  # vectors that k-means sees
Rounding = Callable[[torch.Tensor, int], torch.Tensor]


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line; prints a table and writes JSON after every row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="folder, hub id or packaged model")
    parser.add_argument("--fit", type=Path, required=True, help="text that tables of vectors are fitted to")
    parser.add_argument("--text", type=Path, nargs="+", required=True, help="text files")
    parser.add_argument("--calibration", type=Path, help="file of kvmm calibrate; default: that of the model's folder")
    parser.add_argument("--bits", type=float, nargs="+", default=[1, 2])
    parser.add_argument("--prefill", type=int, default=1536)
    parser.add_argument("--continue", dest="count", type=int, default=512)
    add_common_options(parser, "vector_codes")
    given = sys.argv[1:] if arguments is None else list(arguments)
    options = parser.parse_args(given)
    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    model, processor = load_model(options.model, device=options.device, dtype=torch.float32)
    calibration = read_calibration(options.calibration or Path(model.name_or_path) / FILE_NAME)
    tokenizer = getattr(processor, "tokenizer", processor)

    def ids(file: Path) -> torch.Tensor:
        found = tokenizer(file.read_text(encoding="utf-8"), return_tensors="pt")["input_ids"]
        return found[:, : options.prefill + options.count].to(model.device)

    texts = [Text(model, x[:, : options.prefill], x[:, options.prefill :]) for x in map(ids, options.text)]
    cache = DynamicCache()
    with torch.no_grad():
        model(ids(options.fit), past_key_values=cache, logits_to_keep=1)
    seen = [(layer.keys[0, :, 4:], layer.values[0, :, 4:]) for layer in cache.layers]
    report = Report("vector_codes", given, options)
    for bits in options.bits:
        sites = [[Channels(calibration, i, side, bits) for side in ("key", "value")] for i in range(len(seen))]
        tables = fitted_tables(sites, seen)
        costs: dict[str, float] = {}
        for kind in KINDS:
            row: dict[str, Any] = {"name": f"{kind} {bits:g}"}
            with report.guarded(row):
                row |= measure(texts, sites, rounding(kind, tables))
                costs[kind] = row["cost"]
                row["cost"] /= costs["uniform"]
    table(("codes", "cost", "KL"), [[row["name"], row.get("cost"), row.get("kl")] for row in report.rows])
    report.finish()


class Channels:
    """The transform of a site, its bits and deviations, and what any rounding of its channels gives back."""

    def __init__(self, calibration: Calibration, layer: int, side: str, bits: float):
        one = rd_side(calibration, layer, side, bits)
        self.forward, self.inverse, self.norm, self.widths = one.forward, one.inverse, one.norm, one.widths
        half = torch.tensor([GAUSSIAN_HALF_STEP[b] for b in one.widths.tolist()])
        self.deviation = one.steps / (2 * half)
        levels = (2.0**one.widths - 1) / 2
        self.mean = one.zero_point + one.offset
        self.mean[:, : one.coded] += one.steps * levels

    def split(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Channels float32 ``[H, T, D]`` about their mean, and norms, of vectors."""
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True).clamp_min(1e-6) if self.norm else None
        z = (x if length is None else x / length) @ self.forward.transpose(1, 2)
        return z - self.mean.unsqueeze(1), length

    def unit(self, z: torch.Tensor, width: int) -> torch.Tensor:
        """The channels of a width at unit variance, ``[H, T, n]``."""
        chosen = (self.widths == width).nonzero()[:, 0]
        return z[..., chosen] / self.deviation[:, None, chosen]

    def rounded(self, x: torch.Tensor, to: Rounding, errors: dict[int, list[float]]) -> tuple[torch.Tensor, float]:
        """Vectors ``[H, T, D]`` as codes give them back, and the squared error of all channels."""
        z, length = self.split(x)
        found = torch.zeros_like(z)
        for width in self.widths.unique().tolist():
            unit = self.unit(z, width)
            coded = to(unit, width)
            errors.setdefault(width, []).append(float((unit - coded).square().mean()))
            chosen = (self.widths == width).nonzero()[:, 0]
            found[..., chosen] = coded * self.deviation[:, None, chosen]
        weight = 1.0 if length is None else length.square()
        cost = float(((z - found).square() * weight).sum())
        y = (found + self.mean.unsqueeze(1)) @ self.inverse.transpose(1, 2)
        return (y if length is None else y * length), cost


def measure(texts: Sequence[Text], sites: Sequence[Sequence[Channels]], to: Rounding) -> dict[str, Any]:
    """Cost and divergence of a rounding."""
    cost, kl, errors = 0.0, [], {}
    for text in texts:
        coded = []
        for pair, of_layer in zip(text.held, sites, strict=True):
            back = []
            for x, site in zip(pair, of_layer, strict=True):
                y, more = site.rounded(x[0], to, errors)
                y[:, ::BLOCK_SIZE] = x[0, :, ::BLOCK_SIZE]
                back.append(y[None])
                cost += more
            coded.append((back[0], back[1]))
        found = text.predicted(coded)
        kl.append(float((text.expected.exp() * (text.expected - found)).sum(-1).mean()))
    by_width = {str(width): sum(parts) / len(parts) for width, parts in sorted(errors.items())}
    return {"cost": cost, "kl": sum(kl) / len(kl), "kl_by_text": kl, "by_width": by_width}


def rounding(kind: str, tables: dict[int, torch.Tensor]) -> Rounding:
    """What a kind makes of channels ``[H, T, n]`` of a width at unit variance."""

    def to(unit: torch.Tensor, width: int) -> torch.Tensor:
        if kind == "uniform" or width not in WIDTHS:
            step, most = 2 * GAUSSIAN_HALF_STEP[width], (2**width - 1) / 2
            return ((unit / step + most).round().clamp(0, 2 * most) - most) * step
        if kind == "trellis":
            return trellis(unit, width)
        whole = unit.shape[-1] // GROUP[width] * GROUP[width] if kind == "vectors" and width in GROUP else 0
        rest = nearest(unit[..., whole:, None], gaussian_levels(2**width)[:, None])[..., 0]
        if not whole:
            return rest
        grouped = unit[..., :whole].unflatten(-1, (-1, GROUP[width]))
        return torch.cat((nearest(grouped, tables[width]).flatten(-2), rest), -1)

    return to


def nearest(x: torch.Tensor, entries: torch.Tensor) -> torch.Tensor:
    """The entry ``[K, n]`` nearest to each of ``[..., n]``."""
    flat = x.reshape(-1, x.shape[-1])
    parts = [entries[torch.cdist(part, entries).argmin(1)] for part in flat.split(65536)]
    return torch.cat(parts).view(x.shape) if parts else x


def gaussian_levels(count: int) -> torch.Tensor:
    """Lloyd-Max levels float32 ``[count]`` of a unit Gaussian."""
    x = torch.linspace(-6, 6, 24001, dtype=torch.float64)
    weight = torch.exp(-x.square() / 2)
    levels = torch.erfinv((torch.arange(count, dtype=torch.float64) + 0.5) / count * 2 - 1) * math.sqrt(2)
    for _ in range(300):
        place = torch.bucketize(x, (levels[1:] + levels[:-1]) / 2)
        mass = torch.zeros(count, dtype=torch.float64).index_add(0, place, weight)
        levels = torch.zeros(count, dtype=torch.float64).index_add(0, place, weight * x) / mass.clamp_min(1e-300)
    return levels.float()


def fitted_tables(
    sites: Sequence[Sequence[Channels]], seen: Sequence[tuple[torch.Tensor, torch.Tensor]]
) -> dict[int, torch.Tensor]:
    """256 entries ``[256, n]`` by width, fitted by k-means to what a text has in all layers."""
    found = {}
    for width, size in GROUP.items():
        parts = []
        for pair, of_layer in zip(seen, sites, strict=True):
            for x, site in zip(pair, of_layer, strict=True):
                unit = site.unit(site.split(x)[0], width)
                whole = unit.shape[-1] // size * size
                parts.append(unit[..., :whole].unflatten(-1, (-1, size)).flatten(0, 2)[::16])
        x = torch.cat(parts)
        x = x[torch.randperm(len(x))[:_SAMPLES]]
        if len(x) < 256:
            continue
        entries = x[:256].clone()
        for _ in range(25):
            place = torch.cdist(x, entries).argmin(1)
            count = torch.bincount(place, minlength=256)
            total = torch.zeros_like(entries).index_add(0, place, x)
            entries = torch.where(count[:, None] > 0, total / count.clamp_min(1)[:, None], entries)
        found[width] = entries
    return found


def trellis(unit: torch.Tensor, width: int) -> torch.Tensor:
    """The best path through Ungerboeck's trellis of 8 states, over the last dimension.

    ``2 ** (width + 1)`` levels belong to four subsets in turn. A state has two branches, each of a subset with
    ``2 ** (width - 1)`` levels: one bit says which branch, the others which level.
    """
    levels = gaussian_levels(2 ** (width + 1))
    subsets = [levels[n::4] for n in range(4)]
    # subset of branch 0 and 1 of each state; the next state of branch b of state s is (2 s + b) mod 8
    branch = torch.tensor([[0, 2], [1, 3], [2, 0], [3, 1], [2, 0], [3, 1], [0, 2], [1, 3]])
    x = unit.reshape(-1, unit.shape[-1])
    count, length = x.shape
    if not length:
        return unit
    cost = torch.full((count, _STATES), torch.inf)
    cost[:, 0] = 0  # where every token begins: another state would have to be stored
    chosen, values = [], []
    states = torch.arange(_STATES)
    before = torch.stack((states // 2, states // 2 + 4))  # the two states before each; its branch is state % 2
    subset = branch[before, states % 2]  # [2, states]
    for at in range(length):
        near = torch.stack([nearest(x[:, at, None], own[:, None])[:, 0] for own in subsets], 1)  # [count, 4]
        error = (x[:, at, None] - near).square()
        paths = torch.stack([cost[:, before[n]] + error[:, subset[n]] for n in range(2)])
        cost, which = paths.min(0)
        chosen.append(which)
        values.append(near)
    state = cost.argmin(1)
    out = torch.zeros_like(x)
    for at in reversed(range(length)):
        which = chosen[at].gather(1, state[:, None])[:, 0]
        out[:, at] = values[at].gather(1, subset[which, state][:, None])[:, 0]
        state = before[which, state]
    return out.view(unit.shape)


if __name__ == "__main__":
    main()
