"""The tables of docs/gpu.md on decode attention, from the committed result files.

    python -m benchmarks.gpu_tables
    python -m benchmarks.gpu_tables --show decode_attention_presets_h100

The first writes the page's tables, each of the one GPU that its text names. ``--show`` prints a result file of decode
attention as a table in which every row says which GPU it was measured on.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.ask_policies import ROOT
from kvmm import policies

PAGE = ROOT / "docs" / "gpu.md"
ATTENTION = {
    "1 x 131072": "1x128k",
    "32 x 8192": "32x8k",
    "64 x 4096": "64x4k",
    "1 x 131072, 7 query heads per KV head": "1x128k-r7",
    "1 x 131072, 64 channels": "1x128k-d64",
}
COLUMNS = ("1x128k", "32x8k", "64x4k")
AIMS = {  # microseconds at 1 x 131072 and 64 x 4096, of presets that miss one
    "rd2": (25, 50),
    "oscar2": (25, 50),
    "oscar2-g32": (45, 75),
    "kivi4": (45, 75),
    "calibquant1": (14, 28),
}
BEGIN, END = "<!-- python -m benchmarks.gpu_tables: {} -->", "<!-- end -->"
SORTED_BY = ("batch", "tokens", "dim", "rows")  # rows of other shapes
STREAMED = ("rd2", "balanced")  # and their forms that pack 16 tokens at a time
HEADS = ("| Tokens | bf16 |", "| Preset | 1 x 131072 |", "| `rd` | 1 x 131072 |", "| Preset, tokens | Aim |")

Results = Callable[[str], dict[str, dict[str, Any]]]


def results(name: str) -> dict[str, dict[str, Any]]:
    """The rows of a result file by name."""
    path = ROOT / "benchmarks" / "results" / f"{name}.json"
    return {row["name"]: row for row in json.loads(path.read_text(encoding="utf-8"))["results"]}


def updated(text: str, read: Results = results) -> str:
    """The page with the cells of its tables as the result files have them.

    Raises:
        ValueError: a table is not there.
    """
    lines = text.split("\n")
    for head in HEADS:
        found = [index for index, line in enumerate(lines) if line.startswith(head)]
        if len(found) != 1:
            raise ValueError(f"docs/gpu.md has {len(found)} tables that begin with {head!r}")
        first = last = found[0] + 2
        while last < len(lines) and lines[last].startswith("|"):
            last += 1
        names = [line.strip("| ").split(" | ")[0].strip() for line in lines[first:last]]
        lines[first:last] = [f"| {' | '.join([name, *cells])} |" for name, cells in rows_of(head, names, read)]
    text = "\n".join(lines)
    for name, make in WRITTEN.items():
        before, begin, rest = text.partition(BEGIN.format(name))
        _, end, behind = rest.partition(END)
        if not end:
            raise ValueError(f"docs/gpu.md has no {BEGIN.format(name)} with an end")
        text = f"{before}{begin}\n{make(read)}\n{end}{behind}"
    return text


def of_papers(read: Results) -> str:
    """What is said of the presets that follow a paper: a table of those that are measured."""
    presets = read("decode_attention_presets")
    names = list(dict.fromkeys(row["policy"] for row in presets.values() if row["policy"].startswith("paper-")))
    if not names:
        return "The presets that follow a paper (`paper-`) are not measured."
    lines = ["| Preset of a paper | 1 x 131072 | 64 x 4096 |", "| --- | --- | --- |"]
    for name in names:
        found = [presets.get(f"{shape} {name}", {}) for shape in ("1x128k", "64x4k")]
        lines.append(f"| `{name}` | {' | '.join(cell(row) if 'us' in row else '-' for row in found)} |")
    missing = [f"`{name}`" for name in policies() if name.startswith("paper-") and name not in names]
    if missing:
        lines += ["", f"Not measured: {', '.join(missing)}."]
    return "\n".join(lines)


def of_shapes(read: Results) -> str:
    """Other batches, query heads and head dimensions, sorted by them: a table for the presets of the same shapes."""
    rows = sorted(read("decode_attention_shapes").values(), key=lambda row: [row[key] for key in SORTED_BY])
    measured = {row["name"]: row for row in rows}
    shapes: dict[str, list[str]] = {}
    for row in rows:
        shapes.setdefault(row["policy"], []).append(row["shape"])
    tables = []
    for group in dict.fromkeys(map(tuple, shapes.values())):
        names = [name for name, own in shapes.items() if tuple(own) == group]
        lines = [
            f"| Tokens | Query heads per KV head | Channels | bf16 | {' | '.join(f'`{name}`' for name in names)} |"
        ]
        lines.append("|" + " --- |" * (4 + len(names)))
        for shape in group:
            found = [measured[f"{shape} {name}"] for name in names]
            one = found[0]
            cells = [f"{one['batch']} x {one['tokens']}", one["rows"], one["dim"], f"{one['baseline_us']:.0f}"]
            lines.append(f"| {' | '.join(map(str, [*cells, *map(cell, found)]))} |")
        tables.append("\n".join(lines))
    return "\n\n".join(tables)


def of_host(read: Results) -> str:
    """The host time of a layer's call beside that of `DynamicCache` and SDPA, over all presets."""
    ratios: dict[int, list[float]] = {}
    for row in read("layer_calls").values():
        ratios.setdefault(row["layers"], []).append(row["host_ratio"])
    few, many = ratios[min(ratios)], ratios[max(ratios)]
    within, above = sum(ratio <= 1.5 for ratio in few), [ratio for ratio in few if ratio > 1.5]
    return (
        f"A layer's call in such a step takes the host {min(few):.1f} to {max(few):.1f} times as long as with "
        f"`DynamicCache` and SDPA\nin a model of {min(ratios)} layers, {statistics.median(few):.2f} in the median over "
        f"all {len(few)} presets and at most 1.5 for {within} of them.\nOf the other {len(above)}, in a model of "
        f"{max(ratios)} layers, it takes {min(many):.2f} to {max(many):.2f} times as long."
    )


def of_streaming(read: Results) -> str:
    """A table of whole decode steps of presets that pack page by page and 16 tokens at a time."""
    measured = read("decode_streaming")
    heads = ("Preset", "Packs", "Tokens", "ms a step, mean", "longest", "`DynamicCache`")
    lines = [f"| {' | '.join(heads)} |", "|" + " --- |" * len(heads)]
    for name in STREAMED:
        for policy, packs in ((name, "by page"), (f"benchmarks/policies/{name}-stream16.yaml", "16 tokens")):
            for row in (row for row in measured.values() if row["policy"] == policy):
                tokens = f"{row['batch']} x {row['tokens']}"
                times = f"{row['ms']:.1f} | {row['slowest_ms']:.1f} | {row['baseline_ms']:.0f}"
                lines.append(f"| `{name}` | {packs} | {tokens} | {times} |")
    return "\n".join(lines)


WRITTEN = {"papers": of_papers, "shapes": of_shapes, "host": of_host, "streaming": of_streaming}


def rows_of(head: str, names: list[str], read: Results) -> list[tuple[str, list[str]]]:
    """The first cells of a table and the others; those of the page's rows, but for what misses its aim."""
    presets = read("decode_attention_presets")
    if head == HEADS[0]:
        return [(name, attention_cells(read("decode_attention"), name)) for name in names]
    if head == HEADS[-1]:
        return missed_rows(presets)
    return [(name, [cell(presets[f"{shape} {name.strip('`')}"]) for shape in COLUMNS]) for name in names]


def cell(row: dict[str, Any]) -> str:
    """Microseconds, times bf16, and the part of what the memory can deliver."""
    times = f"{row['ratio']:.1f}x" if row["ratio"] > 0.5 else f"{1 / row['ratio']:.0f}x slower"
    return f"{row['us']:.0f} ({times}, {100 * row['floor_share']:.0f} %)"


def attention_cells(measured: dict[str, dict[str, Any]], name: str) -> list[str]:
    """A row of the first table."""
    found = [measured[f"{ATTENTION[name]} {policy}"] for policy in ("rd2", "oscar2", "calibquant1-mean")]
    cells = [f"{row['us']:.0f} ({row['ratio']:.1f}x)" for row in found]
    if name == next(iter(ATTENTION)):
        cells[0] = cells[0].replace("x)", "x faster)")
    return [f"{found[0]['baseline_us']:.0f}", *cells]


def missed_rows(presets: dict[str, dict[str, Any]]) -> list[tuple[str, list[str]]]:
    """What misses its aim: the aim, what was measured, megabytes, the time that the memory takes for them, and the part
    of the memory's speed that the aim asks for and that there is."""
    rows = []
    for policy, aims in AIMS.items():
        for (tokens, shape), aim in zip((("1 x 131072", "1x128k"), ("64 x 4096", "64x4k")), aims, strict=True):
            row = presets[f"{shape} {policy}"]
            if row["us"] <= aim:
                continue
            cells = [f"{aim}", f"{row['us']:.0f}", f"{row['bytes'] / 1e6:.0f}", f"{row['floor_us']:.0f}"]
            cells += [f"{100 * row['floor_us'] / aim:.0f} %", f"{100 * row['floor_share']:.0f} %"]
            rows.append((f"`{policy}`, {tokens}", cells))
    return rows


def with_gpus(report: dict[str, Any]) -> str:
    """A table of all rows, with the GPU of each."""
    gpus = [run["machine"]["gpu"] for run in report["runs"]]
    lines = ["| Shape | Preset | GPU | us |", "| --- | --- | --- | --- |"]
    for row in report["results"]:
        if "us" in row:
            lines.append(f"| {row['shape']} | `{row['policy']}` | {gpus[row['run']]} | {cell(row)} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None, page: Path = PAGE) -> None:
    """Write the page, or print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--show", metavar="NAME", help="of a result file")
    name = parser.parse_args(arguments).show
    if name:
        path = ROOT / "benchmarks" / "results" / f"{name}.json"
        print(with_gpus(json.loads(path.read_text(encoding="utf-8"))))
        return
    page.write_text(updated(page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
