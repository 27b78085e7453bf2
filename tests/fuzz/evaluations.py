"""Evaluation files: results and rows of runs that reports read, and data files that visitors send."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

from kvmm.eval.report.build import build_report, find_runs
from kvmm.eval.report.files import write_report
from kvmm.eval.tasks import get_task
from kvmm.eval.tasks.rows import forget_files, media_inside_folder
from tests.fuzz.mutate import mutated_bytes, mutated_json

_MINI = Path(__file__).parents[2] / "assets" / "mini"
_TASKS = {
    "docvqa": ("docvqa", "val_v1.0_withQT.json"),
    "ocrbench": ("ocrbench", "OCRBench.json"),
    "mp-docvqa": ("multipage", "val_v1.0_withQT.json"),
    "audio-qa": ("audio", "val_v1.0_withQT.json"),
}


def run_files() -> tuple[dict[str, Any], dict[str, list[dict[str, Any]]]]:
    """The results and the rows of a small run of two policies."""
    configs, rows, results = {}, {}, {}
    for policy in ("bf16", "kivi2"):
        name = f"docvqa_{policy}"
        configs[name] = {"task": "docvqa", "policy": policy, "metric": "anls", "dataset_path": "mini", "left_out": []}
        results[name] = {"anls,none": 0.5, "anls/form,none": 0.25}
        rows[policy] = [
            {"doc_id": str(i), "input": "What?", "target": ["a"], "filtered_resps": ["a"], "anls": 0.5, "error": None,
             "kv_bytes": 100, "kv_bytes_bf16": 800, "ttft_s": 0.1, "tpot_s": 0.01, "output_tokens": 3,
             "packed_bits_per_value": 2.0, "repetition_rate": 0.0, "group": None, "token_counts": [1, 2, 3]}
            for i in range(6)
        ]  # fmt: skip
    return {
        "model_name": "tiny", "date": "x", "configs": configs, "results": results, "complete": True,
        "config": {"batch_size": 1, "device": "cpu", "dtype": "float32"}, "versions": {"torch": "2"},
        "higher_is_better": {"docvqa": {"anls": True}}, "total_evaluation_time_seconds": "3.5",
    }, rows  # fmt: skip


class Fuzzer:
    """Runs and benchmarks with values and bytes changed."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.results, self.rows = run_files()
        self.data = {}
        for task, (name, file) in _TASKS.items():
            shutil.copytree(_MINI / name, folder / task)
            values = json.loads((_MINI / name / file).read_text())
            if isinstance(values, dict):
                values["data"] = values["data"][:6]
            self.data[task] = (file, values if isinstance(values, dict) else values[:6])

    def originals(self) -> list[tuple[str, Any, Any]]:
        """What is broken, whole."""
        whole = [(task, json.dumps(values).encode(), None) for task, (_, values) in self.data.items()]
        return [*whole, ("run", *self._encoded(self.results, self.rows))]

    @staticmethod
    def _encoded(results: Any, rows: dict[str, list[Any]]) -> tuple[bytes, dict[str, bytes]]:
        lines = {name: "".join(json.dumps(row) + "\n" for row in found).encode() for name, found in rows.items()}
        return json.dumps(results).encode(), lines

    def make(self, rng: random.Random, number: int) -> tuple[str, Any, Any]:
        """A task and its data file, or ``run`` with results and rows."""
        if rng.random() < 0.6:
            task = rng.choice(sorted(self.data))
            values = self.data[task][1]
            if rng.random() < 0.2:
                return task, mutated_bytes(rng, json.dumps(values).encode()), None
            return task, json.dumps(mutated_json(rng, values)).encode("utf-8", "surrogatepass"), None
        results = mutated_json(rng, self.results) if rng.random() < 0.5 else self.results
        rows = {name: [mutated_json(rng, row) if rng.random() < 0.3 else row for row in found]
                for name, found in self.rows.items()}  # fmt: skip
        data, lines = self._encoded(results, rows)
        if rng.random() < 0.2:
            data = mutated_bytes(rng, data)
        return "run", data, {name: mutated_bytes(rng, x) if rng.random() < 0.1 else x for name, x in lines.items()}

    def run(self, given: tuple[str, Any, Any]) -> None:
        """Load a benchmark as the app does, or write the report of a run."""
        task, data, lines = given
        if task != "run":
            (self.folder / task / self.data[task][0]).write_bytes(data)
            forget_files()
            with media_inside_folder():
                get_task(task).load(self.folder / task, limit=20)
            return
        home, out = self.folder / "runs" / "tiny", self.folder / "report"
        for folder in (home, out):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
        (home / "20260101_000000_results.json").write_bytes(data)
        for name, text in lines.items():
            (home / f"20260101_000000_samples_docvqa_{name}.jsonl").write_bytes(text)
        runs = find_runs(self.folder / "runs")
        write_report(out, build_report(runs), runs)
