"""Needles and a book on the language model: tables and a heatmap of docs/language-model.md, of committed results.

python -m kvmm eval niah@... --model SmolLM2-135M-Instruct ... --out OUT
python -m benchmarks.text_tables OUT --command "python -m kvmm eval niah@..."  # OUT's newest results are committed
python -m benchmarks.text_tables                                               # only the tables and the figure

Times of a run are not kept: other work shares the cores. The figure needs Chrome or Chromium.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from PIL import Image
from PIL.PngImagePlugin import PngInfo

from benchmarks.language_tables import PAGE, RESULTS, ROOT, filled, markdown
from kvmm.analysis.report.files import write_png
from kvmm.eval.report.depth_plot import depth_cells, found_by_depth

NEEDLES, BOOK = RESULTS / "language_needles.json", RESULTS / "language_book.json"
RECORDS = "_records"  # ends the names of the files of a calibration on benchmarks.records_text
FIGURE = ROOT / "docs" / "figures" / "needles.png"
MARK = "<!-- python -m benchmarks.text_tables {}: begin -->"
SHOWN = ("bf16", "oscar4-2", "balanced", "oscar2", "kivi2", "small")  # of the figure
TIMES = ("ttft_s", "tpot_s")
DIGEST = "results"  # what the figure was drawn of, in its metadata


def with_records(path: Path) -> Path:
    """The file of the same task with a calibration on :mod:`benchmarks.records_text`."""
    return path.with_stem(path.stem + RECORDS)


def keep(out: Path, command: str, records: bool = False) -> Path:
    """Make the newest results below a folder the committed ones of their task; returns the file.

    Raises:
        SystemExit: there are no results, they are of another task, or not whole.
    """
    found = sorted(out.rglob("*_results.json"))
    if not found:
        raise SystemExit(f"{out} holds no results of kvmm eval.")
    results = json.loads(found[-1].read_text(encoding="utf-8"))
    tasks = {config["task"].partition("@")[0] for config in results["configs"].values()}
    if tasks not in ({"niah"}, {"pg19"}):
        raise SystemExit(f"{found[-1]} is of {', '.join(sorted(tasks))}, not of niah or pg19.")
    counts = results["n-samples"].values()
    if not results["complete"] or any(one["effective"] != one["original"] or one["left_out"] for one in counts):
        raise SystemExit(f"{found[-1]} lacks answers: run the same command again.")
    for config in results["configs"].values():
        data = Path(config["dataset_path"])
        config["dataset_path"] = data.relative_to(ROOT).as_posix() if data.is_relative_to(ROOT) else str(data)
    for scores in results["results"].values():
        for name in TIMES:
            scores.pop(f"{name},none", None)
    for name in ("throughput", "total_evaluation_time_seconds", "group_subtasks", "higher_is_better", "n-shot"):
        results.pop(name, None)
    path = NEEDLES if tasks == {"niah"} else BOOK
    path = with_records(path) if records else path
    kept = {"command": ""} | results | {"command": command}  # first in the file
    path.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return path


def policies_of(path: Path) -> list[SimpleNamespace]:
    """``policy``, ``score``, ``scores`` and ``parts`` (by length and depth, of needles) of a file's policies."""
    results = json.loads(path.read_text(encoding="utf-8"))
    found = []
    for name, scores in results["results"].items():
        config = results["configs"][name]
        plain = {key.removesuffix(",none"): value for key, value in scores.items()}
        parts = {key.partition("/")[2]: value for key, value in plain.items() if "/" in key}
        found.append(SimpleNamespace(policy=config["policy"], score=plain[config["metric"]], scores=plain, parts=parts))
    return found


def count_at(one: SimpleNamespace, length: int) -> int:
    """How many needles a policy found in texts of a length."""
    return round(sum(value for (n, _), value in depth_cells(one).items() if n == length))


def needle_table(path: Path = NEEDLES) -> str:
    """Markdown: needles found by length of the text, the most found first."""
    shown = policies_of(path)
    lengths = sorted({length for length, _ in depth_cells(shown[0])})
    rows = []
    for one in sorted(shown, key=lambda one: -one.score):
        counts = [count_at(one, length) for length in lengths]
        bits = f"{one.scores['bits_per_value']:.2f}"
        rows.append((one.policy, bits, *map(str, counts), f"{sum(counts)} of {len(depth_cells(one))}"))
    return markdown(("policy", "whole-cache bits", *(f"{length:,}" for length in lengths), "all"), rows)


def book_table(path: Path = BOOK) -> str:
    """Markdown: perplexity of a book behind packed tokens of it, the least first."""
    rows = [
        (
            one.policy,
            *(f"{one.scores[name]:.2f}" for name in ("bits_per_value", "perplexity", "word_perplexity")),
        )
        for one in sorted(policies_of(path), key=lambda one: one.scores["perplexity"])
    ]
    return markdown(("policy", "whole-cache bits", "perplexity per token", "per word"), rows)


def records_table() -> str:
    """Markdown: what the policies that need a calibration find and read, by what they were calibrated on."""
    files = {"the novel": (NEEDLES, BOOK), "with records": (with_records(NEEDLES), with_records(BOOK))}
    found = {}
    for text, (needles, book) in files.items():
        books = {one.policy: one for one in policies_of(book)}
        found[text] = [(one, books[one.policy]) for one in policies_of(needles)]
    lengths = sorted({length for one, _ in found["with records"] for length, _ in depth_cells(one)})
    names = [one.policy for one, _ in found["with records"]]
    rows = [
        (f"{name}, {text}", *(str(count_at(one, length)) for length in lengths), f"{book.scores['perplexity']:.2f}")
        for name in names
        for text, shown in found.items()
        for one, book in shown
        if one.policy == name
    ]
    return markdown(("policy, calibrated on", *(f"{length:,}" for length in lengths), "perplexity per token"), rows)


def digest(path: Path = NEEDLES) -> str:
    """Of the results that the figure shows."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def drawn_of(path: Path = FIGURE) -> str:
    """The digest of the results that :func:`draw` has put into a figure."""
    with Image.open(path) as picture:
        return picture.text.get(DIGEST, "")


def draw(path: Path = FIGURE) -> None:
    """The heatmap of ``report.html``, of the policies of :data:`SHOWN`."""
    found = {one.policy: one for one in policies_of(NEEDLES)}
    task: Any = SimpleNamespace(task="niah", policies=[found[name] for name in SHOWN])
    figure = found_by_depth(task).update_layout(paper_bgcolor="white", plot_bgcolor="white")
    with tempfile.TemporaryDirectory() as folder:
        raw = Path(folder) / "needles.png"
        if missing := write_png([figure], [raw], scale=1.5):
            raise SystemExit(missing)
        picture = Image.open(raw).convert("RGB").quantize(128, dither=Image.Dither.NONE)
        info = PngInfo()
        info.add_text(DIGEST, digest())
        picture.save(path, optimize=True, pnginfo=info)


def tables() -> dict[str, str]:
    """``{name of the mark: Markdown}``."""
    return {"needles": needle_table(), "book": book_table(), "records": records_table()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, nargs="?", help="folder of a run to keep")
    parser.add_argument("--command", help="what made the run")
    parser.add_argument("--records", action="store_true", help="calibrated on benchmarks.records_text")
    options = parser.parse_args()
    if options.out is not None:
        if not options.command:
            parser.error("--command says what made the run: give it, too")
        print(keep(options.out, options.command, options.records).relative_to(ROOT))
        return
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8"), tables(), MARK), encoding="utf-8")
    draw()
    print(PAGE.relative_to(ROOT), FIGURE.relative_to(ROOT))


if __name__ == "__main__":
    main()
