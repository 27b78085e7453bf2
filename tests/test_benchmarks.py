"""The benchmark scripts run and write what they promise."""

from __future__ import annotations

import argparse
import json
import runpy
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from PIL import Image

from benchmarks import importance, kitty_throughput
from benchmarks.decode_profile import phases
from benchmarks.timing import Timing
from kvmm.kernels.prompt_attention import native
from kvmm.kernels.quantize import compiled
from tests.models import checkpoints

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., dict]:
    """``python -m benchmarks.MODULE`` in this process, without the seconds that a new one needs to import torch."""
    monkeypatch.chdir(ROOT)
    output = tmp_path / "result.json"

    def run(module: str, *options: object) -> dict:
        monkeypatch.setattr(sys, "argv", [module, *map(str, options), "--output", str(output)])
        threads = torch.get_num_threads()
        try:
            runpy.run_module(f"benchmarks.{module}", run_name="__main__", alter_sys=True)
        finally:
            torch.set_num_threads(threads)
        return json.loads(output.read_text())

    return run


@pytest.fixture
def run_smoke(run: Callable[..., dict]) -> Callable[..., dict]:
    """One of the kernel benchmarks at toy sizes on the CPU."""

    def run_smoke(module: str, *options: str) -> dict:
        report = run(module, "--smoke", "--device", "cpu", *options)
        assert report["runs"][-1]["smoke"] and min(report["runs"][-1]["bandwidth"].values()) > 0
        assert not any("failed" in row for row in report["results"])
        return report

    return run_smoke


def test_packing(run):
    report = run("packing", "--rounds", 1, "--policies", "rd2", "kivi2", "--threads", 1)
    assert report["pages"] == 4 and report["tokens"] > 1000 and report["reading_seconds"] > 0
    assert set(report["results"]) == {"rd2", "kivi2"}
    assert all(row["seconds"] > 0 for row in report["results"].values())
    if compiled():
        assert report["results"]["rd2"]["torch_ratio"] > 0


@pytest.fixture
def page(tmp_path: Path) -> str:
    """A document of one page."""
    path = tmp_path / "page.pdf"
    with Image.open(ROOT / "assets" / "samples" / "invoice.png") as image:
        image.convert("RGB").save(path)
    return str(path)


def test_ask_policies(run, page: str):
    options = ["--rounds", 1, "--decode-tokens", 4, "--policies", "small", "--threads", 1]
    report = run("ask_policies", *options, "--pdf", page)
    assert report["pages"] == 1 and report["machine"]["threads"] == 1 and report["versions"]["torch"]
    small, dynamic = report["results"]["small"], report["results"]["dynamic"]
    assert dynamic["seconds_ratio"] == 1 and dynamic["memory"] is None
    assert 0 < small["prefill_seconds"] < small["seconds"] and small["decode_seconds_per_token"] > 0
    assert 0 < small["memory"]["nbytes"] < small["memory"]["nbytes_dense"]


def test_embedded_models(run):
    (row,) = run("embedded_models", "--smoke", "--threads", 1)["results"]
    assert row["name"] == "tiny-omni" and 40e6 < row["stored_bytes"] < 50e6
    assert 0 < row["1_page_first_token_seconds"] < row["4_pages_first_token_seconds"]
    assert 500 < row["1_page_prompt_tokens"] < row["4_pages_prompt_tokens"] / 3
    assert row["loaded_bytes"] < row["resident_peak_bytes"]


def test_cpu_decode(run, page: str):
    options = ["--dtypes", "float32", "--policies", "rd2", "--steps", 2, "--asked", "small", "--rounds", 1]
    found = run("cpu_decode", *options, "--threads", 1, "--pdf", page)["results"]["float32"]
    step, question = found["steps"]["rd2"], found["questions"]["small"]
    assert step["compiled_ratio"] == step["compiled_seconds"] / step["compiled_dynamic_seconds"] > 0
    assert step["torch_ratio"] == step["torch_seconds"] / step["torch_dynamic_seconds"] > 0
    assert question["ratio"] == question["seconds"] / question["dynamic_seconds"] > 0 and question["answer"]


@pytest.mark.skipif(native.library() is None, reason="no dot products of bfloat16, a matrix unit, or no C compiler")
def test_prompt_attention(run):
    for row in run("prompt_attention", "--smoke", "--rounds", 1, "--threads", 1)["results"]:
        assert row["ratio"] == row["torch_ms"] / row["library_ms"] > 0
        assert row["library_distance"] < 1.2 * row["torch_distance"]


def test_retention(run):
    """At equal bytes the whole system lowers where dropping alone drops; tables read what rebuilt keys read."""
    data = ROOT / "tests" / "data" / "heldout" / "sample.jsonl"
    variants = ["A0 full system", "A2 retention only", "A2 quantisation only", "StreamingLLM"]
    options = ["--data", data, "--limit", 2, "--shares", 0.3, "--dtype", "float32", "--steps", 2, "--processes", 2]
    report = run("retention", *options, "--variants", *variants)
    rows = {row["variant"]: row for row in report["results"]}
    exact, full, dropping = (rows[name] for name in ("exact pages", *variants[:2]))
    assert exact["kl"] < 1e-3 and all(rows[name]["nbytes"] <= 0.3 * exact["nbytes"] + 1 for name in variants)
    assert abs(rows["A1 spherical-high, rebuilt keys"]["kl"] - rows["spherical-high"]["kl"]) < 1e-3
    assert full["lowered"] > 0 == dropping["lowered"] and full["held"] > dropping["held"]
    assert rows["angles, 4 bits"]["kl"] < rows["angles, 2 bits"]["kl"]
    (gap,) = report["synergy_gap"]
    assert gap["gap"] == round(gap["alone"] - full["kl"], 5)
    assert {row["variant"] for row in report["iso_quality"]} == set(variants)
    assert len(report["stability"]) == 10 and all(row["flip_rate"] >= 0 for row in report["stability"])


def test_spherical_decode(run_smoke):
    """Direct and rebuilding reads of the same codes, each as near to the reference as it should be."""
    report = run_smoke("spherical_decode", "--shapes", "1x128k", "--codes", "spherical-high", "angles-3")
    rows = {(row["code"], row["path"]): row for row in report["results"]}
    assert len(rows) == 4 and all(row["error"] < 1e-2 and row["tokens_per_second"] > 0 for row in rows.values())
    for code in ("spherical-high", "angles-3"):
        direct, rebuilt = rows[code, "direct"], rows[code, "rebuilt"]
        assert direct["key_bits_per_value"] == rebuilt["key_bits_per_value"] < 5
        assert direct["hbm_bytes"] < rebuilt["hbm_bytes"]


def test_angle_plans(run_smoke):
    report = run_smoke("angle_plans", "--shapes", "1x128k", "--plans", "8,5,1", "6,3,2")
    rows = report["results"]
    assert len(rows) == 6 and all(row["error"] < 1e-2 and row["us"] > 0 < row["floor_us"] for row in rows)


def test_policy_accuracy(run):
    """Two processes share the documents; scores and measured bits of every policy are written."""
    data = ROOT / "tests" / "data" / "heldout" / "sample.jsonl"
    options = ["--data", data, "--limit", 8, "--jobs", 2, "--policies", "rd2", "calibquant1"]
    dynamic, rd, one_bit = run("policy_accuracy", *options)["results"]
    assert dynamic["policy"] == "dynamic" and dynamic["questions"] == rd["questions"] >= 6 and dynamic["kept"] == 1
    assert "media_bits" not in dynamic and one_bit["media_bits"] < rd["media_bits"] < 2.6
    assert one_bit["kept"] < 0.5 < rd["kept"]


def test_importance(tmp_path: Path):
    """Both kinds of importance are measured, on documents held out and on others; a second run adds to the file."""
    output, sample = tmp_path / "r.json", str(ROOT / "tests" / "data" / "heldout" / "sample.jsonl")
    importance.main(["--smoke", "--device", "cpu", "--output", str(output), "--fit", sample, "--on", sample])
    importance.main(["--smoke", "--device", "cpu", "--output", str(output), "--fit", sample, "--append"])
    held_out, others = sorted(json.loads(output.read_text())["results"], key=lambda row: row["name"])
    assert (held_out["name"], others["name"]) == ("embedded, held out", "embedded, others")
    assert (held_out["run"], others["run"]) == (1, 0) and held_out["prompts"] == others["prompts"] == 1
    for row in (held_out, others):
        assert set(row["kl"]) == {"gradient", "query"} and all(0 < kl["rd1"] < 5 for kl in row["kl"].values())


def test_decode_attention(run_smoke):
    """Every row is measured against dense attention, and a second run adds to the file."""
    run_smoke("decode_attention", "--shapes", "1x128k", "--policies", "rd2", "oscar2", "calibquant1-mean")
    report = run_smoke("decode_attention", "--append", "--room", "--shapes", "32x8k", "embedded", "--policies", "rd2")
    assert ["--room" in run["command"] for run in report["runs"]] == [False, True]
    assert [row["run"] for row in report["results"]] == [0, 0, 0, 1, 1, 1]
    for row in report["results"]:
        assert row["error"] < 1e-2 and row["us"] > 0 and row["floor_us"] > 0
        assert abs(row["ratio"] - row["baseline_us"] / row["us"]) < 1e-6
        assert abs(row["floor_share"] - row["floor_us"] / row["us"]) < 1e-6
        assert row["packed_bytes"] < row["bytes"] < row["baseline_bytes"]
    rd2, oscar2, one_bit = (row["packed_bits_per_value"] for row in report["results"][:3])
    assert one_bit < 1.2 < 2 < rd2 < oscar2  # 64 channels: a norm a token is a quarter of a bit


def test_layer_calls(run_smoke):
    """What a call costs the host, of the default and of plain launches, beside the baseline of the same round."""
    (row,) = run_smoke("layer_calls", "--policies", "kivi2", "--rounds", "3", "--profile")["results"]
    assert set(row["host_us"]) == {"replayed", "plain", "dynamic"} and min(row["host_us"].values()) > 0
    least, greatest = row["ratios"]
    assert 0 < least <= row["host_ratio"] <= greatest
    slowest = [function["own_us"] for function in row["profile"]]
    assert slowest == sorted(slowest, reverse=True) and len(slowest) > 5


def test_slot_attention(run_smoke):
    dtypes = ["--dtypes", "kvmm_rd2", "kvmm_oscar2", "--splits", "2", "--runs", "1"]
    report = run_smoke("slot_attention", "--shapes", "1x32k", *dtypes)
    assert [row["name"] for row in report["results"]] == ["1x32k kvmm_rd2", "1x32k kvmm_oscar2"]
    for row in report["results"]:
        assert row["error"] < 1e-2 and row["us"] > 0 < row["write_us"] and row["floor_us"] > 0
        assert abs(row["ratio"] - row["baseline_us"] / row["us"]) < 1e-6
        assert row["prefill_tokens"] == 149 and row["prefill_us"] > 0 < row["decode_us"]
        assert row["bytes"] < row["baseline_bytes"] / 4 and row["capacity"] > 5.5


def test_decode_step(run_smoke):
    """Caches with a graph and without step and generate; bytes are those of weights and cache."""
    modes = ["--modes", "eager", "graph", "--policies", "rd2", "--shapes", "32x4k", "--baselines", "dynamic", "static"]
    report = run_smoke("decode_step", *modes)
    weights = report["runs"][0]["model"]["weight_bytes"]
    assert [row["mode"] for row in report["results"]] == ["eager", "graph"]
    for row in report["results"]:
        assert row["steps"] == 40 and row["ms"] > 0 and row["generate_ms"] > 0
        assert set(row["baselines_ms"]) == {"dynamic", "static"} and row["ratio"] == row["baseline_ms"] / row["ms"]
        assert row["bytes"] == weights + row["cache_bytes"]


def test_generate(run_smoke):
    """Both sides write as many tokens, and what a row says of their times is what it measured."""
    report = run_smoke("generate", "--policies", "balanced+file", "kivi2", "--shapes", "1x4k")
    assert [row["policy"] for row in report["results"]] == ["balanced+file", "kivi2"]
    for row in report["results"]:
        ours, theirs = row["kvmm"], row["dynamic"]
        assert 0 < ours["first_ms"] < ours["short_ms"] and 0 < theirs["first_ms"] < theirs["short_ms"]
        assert row["ratio"] == ours["tokens_per_second"] / theirs["tokens_per_second"] > 0
        assert row["host_ratio"] == row["host_us"]["kvmm"] / row["host_us"]["dynamic"] > 0
        assert row["bits_per_value"] < 16


def test_memory_budget(run_smoke):
    """The packed cache holds more sequences than the dense one in the same bytes, and never more bytes."""
    run_smoke("memory_budget", "--part", "budgets", "--budgets", "5", "10")
    report = run_smoke("memory_budget", "--part", "largest", "--append")
    *budgets, dense, rd2, rd1 = report["results"]
    assert [row["budget_bytes"] for row in budgets] == [5_000_000, 10_000_000]
    for row in budgets:
        assert row["cache_bytes"] <= 1.001 * row["budget_bytes"] and row["batch"] > row["dense_batch"] > 0
        assert abs(row["ratio"] - row["tokens_per_second"] / row["dense_tokens_per_second"]) < 1e-6
    assert dense["batch"] < rd2["batch"] < rd1["batch"] and rd1["ratio"] == rd1["batch"] / dense["batch"]


def test_calibquant_protocol(run_smoke):
    """Its own method at 1 and 2 bits, in both models' shapes; text stays exact."""
    options = ["--part", "calibquant", "--budgets", "10", "--baselines", "dynamic"]
    report = run_smoke("memory_budget", *options)
    rows = report["results"]
    assert [row["model"] for row in rows] == ["internvl-8b"] * 2 + ["internvl-26b"] * 2
    assert [Path(row["policy"]).stem for row in rows] == ["paper-calibquant1", "calibquant2-authors"] * 2
    assert report["runs"][0]["settings"]["weight_bytes"].keys() == {"internvl-8b", "internvl-26b"}
    for one, two in (rows[:2], rows[2:]):
        assert one["batch"] > two["batch"] > two["dense_batch"] > 0
        assert one["cache_bytes"] <= 1.001 * one["budget_bytes"]


def test_kitty_throughput(run_smoke):
    """More sequences in the same memory, and tokens per second of both at their largest batches."""
    options = ["--policies", "paper-kitty", "paper-kivi2"]
    report = run_smoke("kitty_throughput", *options)
    dense, *rows = report["results"]
    assert dense["policy"] == "dense" and {row["policy"] for row in rows} == {"paper-kitty", "paper-kivi2"}
    for row in rows:
        assert row["batch_ratio"] == row["batch"] / dense["batch"] > 1
        assert row["throughput_ratio"] == row["tokens_per_second"] / dense["tokens_per_second"] > 0
        assert row["lengths"] == dense["lengths"] and len(row["ms"]) == len(row["lengths"])
        assert 2 < row["packed_bits_per_value"] < 4
        assert 0 < row["answer_seconds"] == pytest.approx(row["new_tokens"] * sum(row["ms"]) / len(row["ms"]) / 1e3)


def test_prompt_packing(run_smoke):
    options = ["--behind", "0", "--policies", "rd2", "calibquant1-mean"]
    report = run_smoke("prompt_packing", *options)
    for row in report["results"]:
        assert row["share"] == row["pack_ms"] / row["prefill_ms"] and 0 < row["cache_bytes"] < row["bytes"]
        assert 0 < row["host_ms"] <= 1.01 * row["pack_ms"] and row["behind_share"] == row["behind_ms"] / row["read_ms"]


def test_decode_profile(run, tmp_path: Path):
    """What ``ncu`` exports becomes counters in SI units and shares of samples by what the program does there."""
    raw = """
      Metric Name                                                               Metric Unit   Metric Value
      gpu__time_duration.sum                                                             us          57.66
      dram__bytes_read.sum                                                            Mbyte         174.64
      dram__bytes_read.sum.per_second                                              Tbyte/s           3.03
      gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed                              %          64.35
      smsp__inst_executed.sum                                                          inst     22,797,560
      sm__inst_issued.avg.pct_of_peak_sustained_active                                    %          46.31
      smsp__average_warps_issue_stalled_wait_per_issue_active.ratio                    inst           1.21
    """
    (tmp_path / "32x8k_rd2.raw.txt").write_text(raw)
    program = [("LDGSTS [R1]", 5, 8)] * 2 + [("HMMA.16816 R4", 10, 9)] + [("FADD R4", 10, 8)]
    program += [("FFMA R1", 1, 8)] * 300 + [("IMMA.16832 R2", 50, 64)] * 10 + [("STS [R3]", 5, 8)] * 34
    lines = ['"Kernel Name","split_kernel",', '"Address","Source","# Samples","Instructions Executed"']
    lines += [f'"{i}","{code}","{samples}","{executed}"' for i, (code, samples, executed) in enumerate(program)]
    (tmp_path / "32x8k_rd2.source.csv").write_text("\n".join(lines))
    (row,) = run("decode_profile", "--shapes", "32x8k", "--policies", "rd2", "--exports", tmp_path)["results"]
    assert row["issue_share"] == pytest.approx(0.4631)
    assert row["us"] == 57.66 and row["bandwidth"] == 3.03e12 and row["bytes_read"] == 174.64e6
    assert row["dram_share"] == 0.6435 and row["instructions"] == 22797560 and row["stalls"] == {"wait": 1.21}
    samples = {"before": 10, "dense": 10, "query": 310, "pages": 500, "join": 170}
    assert row["phases"] == {phase: n / 1000 for phase, n in samples.items()}


def test_phases_of_a_program_without_int8_products():
    """The loop over pages is where the bf16 products are that warps execute most."""
    program = [("LDG R1", 5, 8), ("HMMA.16816 R4", 10, 9), ("FADD R4", 15, 8)]
    program += [("HMMA.16816 R2", 25, 64)] * 2 + [("STS [R3]", 20, 8)]
    lines = ['"Address","Source","# Samples","Instructions Executed"']
    lines += [f'"{i}","{code}","{samples}","{executed}"' for i, (code, samples, executed) in enumerate(program)]
    expected = {"before": 0.05, "dense": 0.1, "query": 0.15, "pages": 0.5, "join": 0.2}
    assert phases("\n".join(lines)) == pytest.approx(expected)
    with pytest.raises(ValueError, match="no products"):
        phases("\n".join([lines[0], lines[1]]))


def test_serve(run):
    rows = {row["name"]: row for row in run("serve", "--smoke")["results"]}
    assert set(rows) == {f"{name} {clients}" for name in ("answers", "starts", "steps") for clients in (1, 2)}
    start = rows["starts 2"]
    assert 0 < start["median_seconds"] <= start["last_seconds"] == pytest.approx(2 / start["per_second"])
    assert rows["answers 1"]["equal"] and rows["answers 2"]["equal"]
    assert rows["steps 2"]["ratio"] == rows["steps 2"]["per_second"] / rows["steps 1"]["per_second"]


def test_speculative(run, tmp_path: Path):
    """Of the embedded model, and of a model without eyes with a draft model of its own layers."""
    run("speculative", "--smoke", "--policies", "balanced")
    folder = checkpoints.save("llama", tmp_path / "llama")
    (folder / "generation_config.json").write_text("{}")  # the tiny model's suppresses tokens, in generate() alone
    more = ["--append", "--model", folder, "--draft-layers", 2, "--policies", "bf16"]
    report = run("speculative", "--smoke", *more)
    assert {row["task"] for row in report["results"]} > {"copy", "answer", "copy table"}
    for row in report["results"]:
        assert row["equal"] and row["ratio"] == row["per_second"] / row["plain_per_second"] > 0
        assert row["calls"] + row["accepted"] >= row["tokens"] - 1  # an answer may end within a draft
    drafted = [row for row in report["results"] if row["drafter"] == "2 layers"]
    assert len(drafted) == 2 and all(row["drafted"] > 0 for row in drafted)


def test_at_rest(run):
    """A page in a file, as it is and entropy-coded."""
    report = run("at_rest", "--smoke", "--policies", "rd2", "kivi2")
    coded, plain = report["results"]
    assert report["runs"][0]["document"]["pages"] == 1 and report["runs"][0]["document"]["tokens"] > 500
    assert coded["coded_ratio"] > 1.15 * coded["plain_ratio"] and coded["ratio_in_memory"] > 4
    assert plain["coded_bytes"] < 0.95 * plain["plain_bytes"]  # of groups of its own: floats alone are deflated
    assert all(row[f"coded_{what}_seconds"] > 0 for row in report["results"] for what in ("save", "load"))


def test_a_baseline_that_does_not_fit_has_fewer_sequences(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[tuple[int, int]] = []

    def time_one(model: object, batch: int, length: int, steps: int, max_length: int) -> Timing:
        tried.append((batch, length))
        if batch > 8:
            raise torch.OutOfMemoryError("out of memory")
        return Timing.of([batch * length * 1e-6])

    monkeypatch.setitem(kitty_throughput.BASELINES, "static", time_one)
    options = argparse.Namespace(prompt=1000, length=2000, points=2, steps=136)
    found = kitty_throughput.baseline(None, "static", 12, options)
    assert tried == [(12, 1750), (10, 1750), (9, 1750), (8, 1750), (8, 1250)]
    assert found["batch"] == 8 and found["lengths"] == [1250, 1750] and found["ms"] == pytest.approx([10, 14])
    assert found["tokens_per_second"] == pytest.approx(8 * 1000 / found["answer_seconds"])
