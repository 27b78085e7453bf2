"""What docs say of other engines is in ``benchmarks/results``."""

from __future__ import annotations

import json

import pytest

from benchmarks import vllm_tables
from tests.docs.pages import ROOT, results, rows, text_of


def test_serdes_of_lmcache():
    table, measured = rows(text_of("docs/lmcache.md"), "| serde | smaller |"), results("lmcache_serde")
    assert list(table) == [f"`{name}`" for name in measured]
    for name, (smaller, kl, *others) in table.items():
        row = measured[name.strip("`")]
        if "not_run" in row:
            assert (smaller, kl) == (f"{row['estimated_ratio']:.2f}x", "needs CUDA") and "CUDA" in row["not_run"]
            continue
        speeds = [f"{row[key]:.0f} MB/s" for key in ("serialize_mb_s", "deserialize_mb_s")]
        assert [smaller, kl] == [f"{row['ratio']:.2f}x", f"{row['kl']:.1e}"]
        assert others == [str(row["same_answers"]), *speeds]


def test_slots_of_vllm():
    table, measured = rows(text_of("docs/vllm.md"), "| cache dtype | bits |"), results("vllm_slots")
    assert set(table) == {f"`{name}`" for name in measured if "without" not in name}
    assert [cells[0] for cells in table.values()] == sorted(cells[0] for cells in table.values())
    for name, (bits, kl, without) in table.items():
        row, plain = measured[name.strip("`")], measured[f"{name.strip('`')} without first"]
        assert [bits, kl, without] == [f"{row['bits']:.2f}", f"{row['kl']:.4f}", f"{plain['kl']:.4f}"]
    before, after = (f"{found['kvmm_rd2']['kl']:.3f}"[1:] for found in (results("vllm_slots_before"), measured))
    assert f"`kvmm_rd2` on a language model falls from {before} to {after}" in " ".join(text_of("CHANGELOG.md").split())


def test_speed_in_vllm():
    said = text_of("docs/vllm.md")
    table, measured = rows(said, "| cache | batch 1 |"), results("vllm_throughput")
    names = {"vLLM's own (`auto`)": "auto", "`kvmm_rd2`": "kvmm_rd2", "`kvmm_rd4`": "kvmm_rd4"}
    names |= {f"{name}, torch": f"{own}-torch" for name, own in names.items() if own != "auto"}
    assert set(table) == set(names)
    for name, cells in table.items():
        found = [measured.get(f"{names[name]} {batch}", {}).get("tokens_per_second") for batch in (1, 8, 32)]
        assert cells == ["-" if rate is None else f"{rate:.3g}" for rate in found]
    held = [measured[f"{name} 1"]["capacity"] / measured["auto 1"]["capacity"] for name in ("kvmm_rd4", "kvmm_rd2")]
    assert f"held {held[0]:.1f} (`kvmm_rd4`) and {held[1]:.1f} times (`kvmm_rd2`) the tokens" in " ".join(said.split())


def test_tables_of_vllm_on_a_gpu_are_written_by_the_script():
    page = text_of("docs/vllm.md")
    assert vllm_tables.updated(page) == page
    assert vllm_tables.updated(page.replace("17090 (1.52x)", "17090 (2.52x)")) == page
    with pytest.raises(ValueError, match="throughput begin"):
        vllm_tables.updated(page.replace("throughput begin", "begin"))


def test_what_is_said_of_vllm_on_a_gpu():
    said, measured = " ".join(text_of("docs/vllm.md").split()), results("vllm_gpu_throughput")
    batches = ("1", "32", "128", "32 images")
    rates = {key: measured[key]["tokens_per_second"] for key in measured}
    caches = {row["cache"] for row in measured.values()}
    assert all(max(caches, key=lambda cache: rates[f"{cache} {b}"]) == "kvmm_rd2" for b in batches)
    gain = rates["kvmm_rd2 128"] / rates["auto 128"]
    assert f"At a batch of 128 `kvmm_rd2` is the fastest of these, {gain:.2f} times bf16" in said
    assert f"{rates['kvmm_rd2 32']:.0f} against {rates['fp8 32']:.0f} of `fp8` at 32, one run each" in said
    slower = {cache: [b for b in batches if rates[f"{cache} {b}"] < rates[f"auto {b}"]] for cache in caches}
    assert slower["kvmm_rd4"] == ["1", "32", "32 images"] and slower["kvmm_oscar2"] == ["1", "32"]
    attention = results("slot_attention").values()
    many = [row for row in attention if row["batch"] > 1 and row["cache_dtype"] != "kvmm_rd4"]
    shares, ratios = ([row[key] for row in many] for key in ("floor_share", "ratio"))
    assert f"It is low: {100 * min(shares):.0f} to {100 * max(shares):.0f} % with 2 bits" in said
    assert f"still {min(ratios):.2f} to {max(ratios):.2f} times as fast as bf16" in said
    four = [row["ratio"] for row in attention if row["batch"] > 1 and row["cache_dtype"] == "kvmm_rd4"]
    assert "({:.2f} and {:.2f} times)".format(*four) in said
    alone = [row["ratio"] for row in attention if row["batch"] == 1]
    assert f"slower than bf16: {min(alone):.2f} to {max(alone):.2f} times its speed" in said
    run = json.loads((ROOT / "benchmarks/results/vllm_gpu_throughput.json").read_text(encoding="utf-8"))["runs"][0]
    assert run["settings"]["layers"] == 24 and "24 layers of 2048 channels, 16 query and 8 KV heads" in said
    assert run["versions"]["vllm"] == "0.26.0" and run["machine"]["gpu"] == "NVIDIA H200"


def test_what_drafts_gain():
    table, measured = rows(text_of("docs/serving.md"), "| answer, policy, drafter |"), results("speculative")
    expected = {}
    for row in measured.values():
        who = "SmolLM2" if row["name"].startswith("SmolLM2") else "embedded"
        cells = [str(row["tokens"]), str(row["calls"]), f"{row['acceptance']:.0%}".replace("%", " %")]
        assert row["equal"]
        expected[f"{who}, {row['task']}, `{row['policy']}`, {row['drafter']}"] = [*cells, f"{row['ratio']:.2f}x"]
    assert table == expected
