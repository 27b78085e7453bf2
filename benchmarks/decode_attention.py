"""Decode attention of one layer over a packed cache against the fastest dense attention, in one process.

    python -m benchmarks.decode_attention [--shapes 1x128k 32x8k ...] [--policies rd2 oscar2 ...] [--profile]

What is timed is all that a layer does with a query: ``kvmm.kernels.attention.attend`` over a cache of so many text
tokens: full pages of the policy's codec, written from random keys and values, and the rest in the model's dtype, which
is the sinks, the residual and what does not fill a page. Dense attention reads one tensor of the same tokens. Both run
in a CUDA graph of several calls, which leaves host time out, in turn on as many sets of data as the second-level cache
cannot hold; ``no_graph_us`` is without one. What a layer's call costs the host is in :mod:`benchmarks.layer_calls`.

Baselines: SDPA's flash and cuDNN kernels with ``enable_gqa``, and with the query heads of a KV head as rows
(``[B, H_kv, R, D]`` against ``[B, H_kv, T, D]``), and FlexAttention, compiled. The fastest counts.

``bytes`` are those of every tensor that a call reads or writes; their time at the measured bandwidth (the better of a
copy and a sum) is the floor. ``error`` is the relative distance from the torch reference on the same pages.
``embedded`` is a row on the pages that tiny-omni writes for a four-page document, in turn through its layers.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.programs import keep_programs
from benchmarks.report import Report, add_common_options, attempt, table
from benchmarks.synthetic import main_modality, make_calibration, random_vectors
from benchmarks.timing import bandwidth, free_memory, kernel_times, l2_bytes, time_calls
from kvmm import get_policy, policies
from kvmm.cache.pages import PageStore
from kvmm.cache.part import Part
from kvmm.codecs import Site, build_codec
from kvmm.codecs.base import page_size_for
from kvmm.kernels.attention import attend
from kvmm.kernels.attention.backends.torch import reference
from kvmm.kernels.attention.call import AttentionCall, PackedReader
from kvmm.modality import MODALITY_NAMES
from kvmm.policy import KVPolicy

_ROOM = 68  # residual tokens beyond those in use, with --room
_LAYER, _LAYERS = 6, 8  # whose spectrum the made-up calibration has
_LOGITS = 3.0  # standard deviation of the scores: some tokens matter more than others, as in a model


@dataclass(frozen=True)
class Shape:
    """Sequences, tokens, KV heads, query heads a KV head, channels a head."""

    batch: int
    tokens: int
    heads: int = 8
    rows: int = 4
    dim: int = 128


SHAPES = {
    "1x128k": Shape(1, 2**17),
    "32x8k": Shape(32, 2**13),
    "64x4k": Shape(64, 2**12),
    "1x128k-r7": Shape(1, 2**17, rows=7),
    "32x8k-r7": Shape(32, 2**13, rows=7),
    "1x128k-d64": Shape(1, 2**17, dim=64),
    "32x8k-d64": Shape(32, 2**13, dim=64),
    "128x4k": Shape(128, 2**12),
    **{f"1x128k-r{rows}": Shape(1, 2**17, rows=rows) for rows in (1, 16)},
    **{f"1x128k-d{dim}": Shape(1, 2**17, dim=dim) for dim in (80, 96, 256)},
    **{f"64x4k-r{rows}": Shape(64, 2**12, rows=rows) for rows in (1, 7, 16)},
    **{f"64x4k-d{dim}": Shape(64, 2**12, dim=dim) for dim in (64, 80, 96, 256)},
}
_DEFAULT = ("1x128k", "32x8k", "64x4k", "1x128k-r7", "32x8k-r7", "1x128k-d64", "32x8k-d64")
EMBEDDED = "embedded"
_PAGES = ("invoice", "letter", "form", "table")  # of the samples
_SMOKE = Shape(2, 512, heads=2, rows=2, dim=64)


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line; prints a table and writes JSON after every row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", default=[*_DEFAULT, EMBEDDED], choices=[*SHAPES, EMBEDDED])
    parser.add_argument("--policies", nargs="+", default=["rd2", "oscar2", "calibquant1-mean"], help="presets, or all")
    parser.add_argument("--baselines", nargs="+", default=list(BASELINES), choices=list(BASELINES))
    parser.add_argument("--dense", type=int, help="tokens at least in the model's dtype; default: sinks and residual")
    parser.add_argument("--room", action="store_true", help="buffers with room, lengths on the device, as with graphs")
    parser.add_argument("--tau", nargs=2, type=float, help="calibrate the logits of codecs that can, in two passes")
    parser.add_argument("--runs", type=int, default=50, help="timed replays, of which the median counts")
    parser.add_argument("--profile", action="store_true", help="also the time of every kernel of a call")
    parser.add_argument("--programs", type=Path, help="folder where compiled kernels are kept for other processes")
    parser.add_argument("--no-error", action="store_true", help="do not compare with the reference")
    add_common_options(parser, "decode_attention")
    given = sys.argv[1:] if arguments is None else list(arguments)
    options = parser.parse_args(given)

    torch.manual_seed(options.seed)
    if options.programs:
        keep_programs(options.programs)
    report = Report("decode_attention", given, options)
    report.run["bandwidth"] = bandwidth(options.device)
    report.run["l2_bytes"] = l2_bytes(options.device)
    report.run["settings"] = {"runs": options.runs, "dtype": "bfloat16"}
    named = list(policies()) if options.policies == ["all"] else options.policies
    for name in options.shapes:
        if name == EMBEDDED:
            embedded_rows(report, named, options)
        else:
            shape_rows(report, name, _SMOKE if options.smoke else SHAPES[name], named, options)
    show(report)
    report.finish()


# -- data -----------------------------------------------------------------------------------------------------------


@dataclass
class Inputs:
    """One set of inputs of :func:`kvmm.kernels.attention.attend`."""

    query: torch.Tensor
    parts: list[Part]
    dense_key: torch.Tensor
    dense_value: torch.Tensor
    in_use: tuple[torch.Tensor, torch.Tensor] | None = None  # int32 [1] each: pages and residual tokens, with room

    def __post_init__(self) -> None:
        pages = None if self.in_use is None else self.in_use[0]
        self._views = [
            Part(*(PackedReader(s.codec, s.packed if pages is None else s.at_capacity(pages)) for s in part.stores))
            for part in self.parts
        ]

    def attend(self, function: Callable[..., torch.Tensor] = attend) -> torch.Tensor:
        """The attention, by the package's entry or another function with its arguments."""
        scaling = self.query.shape[-1] ** -0.5
        length = {} if self.in_use is None else {"residual_length": self.in_use[1]}
        return function(self.query, self._views, self.dense_key, self.dense_value, None, scaling, **length)

    def with_room(self, tokens: int) -> Inputs:
        """The same as a cache with ``max_length`` has it: room for more, and what is in use known to the device."""
        held = -(-tokens // self.parts[0].key.page_size)
        for part in self.parts:
            for one in part.stores:
                one.allocate(held + 3, held, self.dense_key[:, :, :1])
        columns = self.dense_key.shape[2]
        dense = (F.pad(x, (0, 0, 0, _ROOM)) for x in (self.dense_key, self.dense_value))
        counts = (torch.full((1,), n, dtype=torch.int32, device=self.query.device) for n in (held, columns))
        return Inputs(self.query, self.parts, *dense, tuple(counts))

    @property
    def packed_nbytes(self) -> int:
        """Bytes of the packed tensors, what is in use of them."""
        packed = [store.packed for part in self.parts for store in part.stores]
        held = [tensor for one in packed for tensor in [*one.tensors.values(), one.page_group] if tensor is not None]
        return sum(tensor.nbytes for tensor in held)

    @property
    def nbytes(self) -> int:
        """Bytes that a call has to read or write: all of this, and an output of the query's size."""
        room = 0 if self.in_use is None else _ROOM
        dense = sum(x[:, :, room:].nbytes for x in (self.dense_key, self.dense_value))
        return self.packed_nbytes + dense + 2 * self.query.nbytes


def queries(shape: Shape, key: torch.Tensor, device: str) -> torch.Tensor:
    """Random queries ``[B, R * H_kv, 1, D]`` for keys ``[B, H_kv, T, D]``, whose scores deviate by ``_LOGITS``."""
    length = torch.linalg.vector_norm(key[:, :, :64].float(), dim=-1).mean()
    query = torch.randn(shape.batch, shape.rows * shape.heads, 1, shape.dim, device=device)
    return (query * (_LOGITS * shape.dim**0.5 / length)).to(key.dtype)


def with_tau(policy: KVPolicy, tau: tuple[float, float]) -> KVPolicy:
    """The policy with CalibQuant's calibration of logits (section 3.3) at ``tau``, where its codecs have that."""
    modality = MODALITY_NAMES[main_modality(policy)]
    kv = getattr(policy, modality)
    if "calibration" not in dict(kv.key.options):
        return policy
    key = replace(kv.key, options=tuple(sorted({**dict(kv.key.options), "calibration": tau}.items())))
    return replace(policy, **{modality: replace(kv, key=key)})


def packed_tokens(policy: KVPolicy, tokens: int, kept: int | None = None) -> int:
    """Of ``tokens`` text tokens those in full pages; ``kept`` at least, else sinks and residual, are not."""
    kept = policy.num_sink_tokens + policy.residual_length if kept is None else kept
    size = page_size_for(tokens - kept)
    return (tokens - kept) // size * size


def pack(policy: KVPolicy, key: torch.Tensor, value: torch.Tensor) -> Part:
    """The pages that a cache layer would write for keys and values ``[B, H, T, D]``."""
    modality = main_modality(policy)
    kv = policy.specs(modality)
    calibration = make_calibration(_LAYERS, key.shape[1], key.shape[3], (modality,), pooled=False)
    size = page_size_for(key.shape[2])
    stores = []
    for spec, side, sibling, x in ((kv.key, "key", kv.value, key), (kv.value, "value", kv.key, value)):
        codec = build_codec(spec, side, Site(_LAYER, modality, calibration, sibling))
        stores.append(PageStore.for_codec(codec, size))
        stores[-1].append(x, keys=key if side == "value" else None)
    return Part(*stores)


def several(inputs: Inputs, device: str) -> list[Inputs]:
    """As many copies of the inputs as it takes to exceed the second-level cache four times."""
    count = min(16, 1 + 4 * l2_bytes(device) // inputs.nbytes)
    copies = [inputs]
    for _ in range(count - 1):
        parts = [part.fork() for part in inputs.parts]
        for part in parts:
            for store in part.stores:
                store.own()
        dense = inputs.dense_key.clone(), inputs.dense_value.clone()
        copies.append(Inputs(inputs.query.clone(), parts, *dense, inputs.in_use))
    return copies


# -- dense attention ------------------------------------------------------------------------------------------------


def _sdpa(backend: SDPBackend, as_rows: bool) -> Callable[..., Callable[[], torch.Tensor]]:
    def make(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> Callable[[], torch.Tensor]:
        if as_rows:
            query = query.reshape(key.shape[0], key.shape[1], -1, key.shape[3])

        def call() -> torch.Tensor:
            with sdpa_kernel(backend):
                return F.scaled_dot_product_attention(query, key, value, enable_gqa=not as_rows)

        return call

    return make


def _flex(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> Callable[[], torch.Tensor]:
    from torch.nn.attention.flex_attention import flex_attention

    compiled = torch.compile(flex_attention, dynamic=False)
    return lambda: compiled(query, key, value, enable_gqa=True)


BASELINES: dict[str, Callable[..., Callable[[], torch.Tensor]]] = {
    "flash": _sdpa(SDPBackend.FLASH_ATTENTION, False),
    "cudnn": _sdpa(SDPBackend.CUDNN_ATTENTION, False),
    "flash_rows": _sdpa(SDPBackend.FLASH_ATTENTION, True),
    "cudnn_rows": _sdpa(SDPBackend.CUDNN_ATTENTION, True),
    "flex": _flex,
    "math": _sdpa(SDPBackend.MATH, False),
}


def baseline(sets: list[tuple[torch.Tensor, ...]], options: argparse.Namespace) -> dict[str, Any]:
    """Every baseline on sets of ``(query, key, value)``: times, the fastest, and what did not run.

    Raises:
        RuntimeError: if none runs.
    """
    times: dict[str, Any] = {}
    failures: dict[str, str] = {}
    names = ["math"] if options.device == "cpu" else [name for name in options.baselines if name != "math"]
    for name in names:
        attempt(
            times,
            failures,
            name,
            lambda name=name: time_calls([BASELINES[name](*one) for one in sets], options.device, options.runs),
        )
    if not times:
        raise RuntimeError(f"no dense attention runs here: {failures}")
    best = min(times, key=lambda name: times[name].median)
    eager = time_calls([BASELINES[best](*one) for one in sets], options.device, options.runs, graph=False)
    nbytes = sets[0][1].nbytes + sets[0][2].nbytes + 2 * sets[0][0].nbytes
    return {
        "baseline": best,
        "baseline_us": times[best].median * 1e6,
        "baseline_no_graph_us": eager.median * 1e6,
        "baseline_bytes": nbytes,
        "baseline_bandwidth": nbytes / times[best].median,
        "baselines_us": {name: timing.median * 1e6 for name, timing in times.items()},
        "baselines_failed": failures,
    }


# -- rows -----------------------------------------------------------------------------------------------------------


def shape_rows(
    report: Report, name: str, shape: Shape, policy_names: Sequence[str], options: argparse.Namespace
) -> None:
    """The baselines of one shape, then a row for each policy."""
    size = (shape.batch, shape.heads, shape.tokens, shape.dim)
    key, value = (random_vectors(size, options.device, torch.bfloat16) for _ in range(2))
    query = queries(shape, key, options.device)
    dense = baseline(_dense_sets(query, key, value, options.device), options)
    for policy in policy_names:
        row = {"name": f"{name} {policy}", "shape": name, "policy": policy, **vars(shape), **dense}
        with report.guarded(row):
            chosen = get_policy(policy)
            if options.tau and (calibrated := with_tau(chosen, tuple(options.tau))) != chosen:
                chosen, row["name"] = calibrated, f"{row['name']} calibrated"
            packed = packed_tokens(chosen, shape.tokens, options.dense)
            row["dense_tokens"] = shape.tokens - packed
            parts = [pack(chosen, key[:, :, :packed], value[:, :, :packed])]
            inputs = Inputs(query, parts, *(x[:, :, packed:].clone() for x in (key, value)))
            if options.room:
                row["name"] += " room"
                inputs = inputs.with_room(packed)
            row |= measure(several(inputs, options.device), packed, dense, report, options)
        free_memory()


def _dense_sets(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, device: str) -> list[tuple[Any, ...]]:
    count = min(16, 1 + 4 * l2_bytes(device) // (key.nbytes + value.nbytes))
    return [(query, key, value)] + [(query.clone(), key.clone(), value.clone()) for _ in range(count - 1)]


def measure(
    sets: list[Inputs],
    tokens: int,
    dense: dict[str, Any],
    report: Report,
    options: argparse.Namespace,
    different: bool = False,
) -> dict[str, Any]:
    """What one row says of the packed side: times, bytes, floor, error and, if asked for, kernels; means over sets."""
    speed = max(report.run["bandwidth"].values())
    calls = [one.attend for one in sets]
    packed, nbytes = (statistics.fmean(size) for size in zip(*((s.packed_nbytes, s.nbytes) for s in sets), strict=True))
    batch, heads, _, dim = sets[0].dense_key.shape
    found: dict[str, Any] = {"packed_bits_per_value": 8 * packed / (2 * batch * heads * tokens * dim)}
    if not options.no_error:
        found["error"] = max(distance(one) for one in (sets if different else sets[:1]))
        free_memory()
    timing = time_calls(calls, options.device, options.runs)
    eager = time_calls(calls, options.device, options.runs, graph=False)
    found |= {
        "us": timing.median * 1e6,
        "ratio": dense["baseline_us"] * 1e-6 / timing.median,
        "timing": timing.to_dict(),
        "no_graph_us": eager.median * 1e6,
        "sets": len(sets),
        "bytes": nbytes,
        "packed_bytes": packed,
        "bandwidth": nbytes / timing.median,
        "floor_us": nbytes / speed * 1e6,
        "floor_share": nbytes / speed / timing.median,
    }
    if options.profile and options.device != "cpu":
        found["kernels"] = kernel_times(sets[len(sets) // 2].attend)
    return found


def _by_torch(query: torch.Tensor, segments: Sequence[Part], *rest: Any, residual_length: Any = None) -> torch.Tensor:
    return reference.attend(AttentionCall(query, *rest, residual_length), segments)


def distance(inputs: Inputs) -> float:
    """Relative distance between the measured path and the reference on the same pages."""
    ours, expected = inputs.attend().float(), inputs.attend(_by_torch).float()
    return float((ours - expected).norm() / expected.norm())


def embedded_rows(report: Report, policy_names: Sequence[str], options: argparse.Namespace) -> None:
    """Rows on tiny-omni's pages: one sequence, and the same pages for 32."""
    from kvmm.media import load_image
    from kvmm.models import assets_folder, load_model
    from kvmm.models.documents import Document
    from kvmm.models.loading import TINY_MODEL
    from kvmm.models.prompting import encode_question

    model, processor = load_model(TINY_MODEL, device=options.device, dtype="bfloat16")
    names = _PAGES[:1] if options.smoke else _PAGES
    images = [load_image(assets_folder() / "samples" / f"{name}.png") for name in names]
    with torch.no_grad():
        document = Document(model, encode_question(model, processor, "What is the total?", images))
    for batch in (1, 2) if options.smoke else (1, 32):
        for policy in policy_names:
            name = f"{EMBEDDED} x{batch}"
            row: dict[str, Any] = {"name": f"{name} {policy}", "shape": name, "policy": policy, "batch": batch}
            with report.guarded(row):
                cache = document.unpacked(policy)
                if batch > 1:
                    cache.batch_repeat_interleave(batch)
                dense_sets, sets = [], []
                for layer in cache.layers:
                    key, value = (x.clone() for x in layer.dense())
                    rows = model.config.get_text_config().num_attention_heads // key.shape[1]
                    shape = Shape(batch, key.shape[2], key.shape[1], rows, key.shape[3])
                    dense_sets.append((queries(shape, key, options.device), key, value))
                cache.pack()
                for layer, (query, _, _) in zip(cache.layers, dense_sets, strict=True):
                    dense = (x[:, :, : layer.num_dense].contiguous() for x in (layer.dense_key, layer.dense_value))
                    sets.append(Inputs(query, list(layer.parts.values()), *dense))
                row |= vars(shape)
                dense_times = baseline(dense_sets, options)
                packed_tokens = shape.tokens - layer.num_dense
                row |= dense_times | measure(sets, packed_tokens, dense_times, report, options, True)
            free_memory()


def show(report: Report) -> None:
    """A table of the rows of the file."""
    header = ("row", "us", "no graph", "dense", "by", "ratio", "bits", "GB/s", "floor", "share", "error")
    keys = ("us", "no_graph_us", "baseline_us", "baseline", "ratio", "packed_bits_per_value")
    rows = []
    for row in report.rows:
        speed = row["bandwidth"] / 1e9 if "bandwidth" in row else None
        cells = [row.get(key) for key in keys]
        rows.append([row["name"], *cells, speed, *(row.get(k) for k in _LAST)])
    table(header, rows)


_LAST = ("floor_us", "floor_share", "error")


if __name__ == "__main__":
    main()
