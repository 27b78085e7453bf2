"""The tables of docs/vllm.md on CUDA, from the committed result files.

python -m benchmarks.vllm_tables
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.ask_policies import ROOT
from benchmarks.gpu_tables import results

PAGE = ROOT / "docs" / "vllm.md"
BATCHES = ("1", "32", "128", "32 images")
SHAPES = {"1x32k": "1 x 32768", "32x4k": "32 x 4096", "128x2k": "128 x 2048"}
BEGIN, END = "<!-- python -m benchmarks.vllm_tables: {} begin -->", "<!-- {} end -->"

Rows = dict[str, dict[str, Any]]


def throughput(rows: Rows) -> str:
    """Tokens a second of every cache by batch, times vLLM's own in bf16, and the tokens that a cache holds."""
    lines = [
        "| cache on CUDA | batch 1 | batch 32 | batch 128 | batch 32, images | tokens that fit |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for cache in dict.fromkeys(row["cache"] for row in rows.values()):
        cells = []
        for batch in BATCHES:
            rate, own = (rows[f"{name} {batch}"]["tokens_per_second"] for name in (cache, "auto"))
            cells.append(f"{rate:.0f}" if cache == "auto" else f"{rate:.0f} ({rate / own:.2f}x)")
        held, own = (rows[f"{name} 1"]["capacity"] for name in (cache, "auto"))
        cells.append(f"{held / 1e6:.2f} million" + ("" if cache == "auto" else f" ({held / own:.1f}x)"))
        name = "`auto` (bf16)" if cache == "auto" else f"`{cache}`"
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def prompts(rows: Rows) -> str:
    """Thousands of prompt tokens a second."""
    lines = [
        "| prompts, cache | batch 1 | batch 32 | batch 128 | batch 32, images |",
        "| --- | --- | --- | --- | --- |",
    ]
    for cache in dict.fromkeys(row["cache"] for row in rows.values()):
        found = [rows[f"{cache} {batch}"]["prompt_tokens_per_second"] / 1e3 for batch in BATCHES]
        lines.append(f"| `{cache}` | {' | '.join(f'{rate:.0f}' for rate in found)} |")
    return "\n".join(lines)


def attention(rows: Rows) -> str:
    """Attention of one layer by shape and cache."""
    lines = [
        "| Sequences x tokens, cache | us | bf16 | ratio | part of the memory's speed |",
        "| --- | --- | --- | --- | --- |",
    ]
    for row in rows.values():
        cells = [f"{row['us']:.0f}", f"{row['baseline_us']:.0f}", f"{row['ratio']:.2f}x"]
        cells.append(f"{100 * row['floor_share']:.0f} %")
        lines.append(f"| {SHAPES[row['shape']]}, `{row['cache_dtype']}` | {' | '.join(cells)} |")
    return "\n".join(lines)


TABLES = {  # the mark of a table, how it is made, of which result file
    "throughput": (throughput, "vllm_gpu_throughput"),
    "prompts": (prompts, "vllm_gpu_throughput"),
    "attention": (attention, "slot_attention"),
}


def updated(text: str) -> str:
    """The page with its tables as the result files have them.

    Raises:
        ValueError: a table's marks are not there.
    """
    for name, (made, file) in TABLES.items():
        begin, end = BEGIN.format(name), END.format(name)
        before, mark, rest = text.partition(begin)
        _, closed, behind = rest.partition(end)
        if not mark or not closed:
            raise ValueError(f"docs/vllm.md has no {begin} with an end")
        text = f"{before}{begin}\n{made(results(file))}\n{end}{behind}"
    return text


def main(page: Path = PAGE) -> None:
    """Write the page."""
    page.write_text(updated(page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
