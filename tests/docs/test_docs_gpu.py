"""The tables and figures of docs/gpu.md and of what else was measured on a GPU are those of ``benchmarks/results``."""

from __future__ import annotations

import json

import kvmm
from benchmarks import gpu_tables
from benchmarks.gpu_session import FORMATS
from benchmarks.gpu_tables import ATTENTION
from tests.docs.pages import results, rows, text_of

GPU, SPHERICAL = (text_of(f"docs/{name}.md") for name in ("gpu", "spherical"))

STEPS = {"1 x 131072": "1x128k", "1 x 32768": "1x32k", "32 x 4096": "32x4k"}
GENERATE = {"1 x 4096": "1x4k", "1 x 32768": "1x32k", "16 x 4096": "16x4k"}


def test_decode_attention():
    table = rows(GPU, "| Tokens | bf16 |")
    assert list(table) == list(ATTENTION)
    for start, shape in ATTENTION.items():
        measured = [
            results("decode_attention")[f"{shape} {policy}"] for policy in ("rd2", "oscar2", "calibquant1-mean")
        ]
        expected = [f"{row['us']:.0f} ({row['ratio']:.1f}x)" for row in measured]
        assert [cell.replace(" faster", "") for cell in table[start]] == [
            f"{measured[0]['baseline_us']:.0f}",
            *expected,
        ]


def test_decode_attention_of_presets():
    table, measured = rows(GPU, "| Preset | 1 x 131072 |"), results("decode_attention_presets")
    assert len(table) > 10
    for name, cells in table.items():
        found = [measured[f"{shape} {name.strip('`')}"] for shape in ("1x128k", "32x8k", "64x4k")]
        assert cells == [f"{x['us']:.0f} ({x['ratio']:.1f}x, {100 * x['floor_share']:.0f} %)" for x in found]
    assert not any("(0." in cell for cells in table.values() for cell in cells)


def test_what_is_said_of_angle_codes():
    """Direct and rebuilding reads of every tier."""
    table, measured = rows(SPHERICAL, "| Codes | 1 x 131072: us, direct |"), results("spherical_decode")
    assert list(table) == [f"`{code}`" for code in dict.fromkeys(row["code"] for row in measured.values())]
    for code, cells in table.items():
        long = [measured[f"1x128k {code.strip('`')} {path}"] for path in ("direct", "rebuilt")]
        many = [measured[f"32x8k {code.strip('`')} {path}"] for path in ("direct", "rebuilt")]
        expected = [f"{x['us']:.0f}" for x in long] + [f"{x['hbm_bytes'] / 1e6:.0f}" for x in long]
        expected += [f"{long[0]['scratch_bytes'] / 1e6:.1f}", f"{long[1]['scratch_bytes'] / 1e6:.0f}"]
        assert cells == expected + [f"{x['us']:.0f}" for x in many]
        assert all(x["us"] < x["baseline_us"] for x in (long[0], many[0])) == code.startswith("`spherical")
    dense = [measured[f"{shape} spherical-high direct"]["baseline_us"] for shape in ("1x128k", "32x8k")]
    page = " ".join(SPHERICAL.split())
    assert f"takes {dense[0]:.0f} microseconds in the first column and {dense[1]:.0f} in the second" in page
    (one, rebuilt), (rows_of_32, rebuilt_rows) = (
        [measured[f"{shape} spherical-high {path}"]["tokens_per_second"] for path in ("direct", "rebuilt")]
        for shape in ("1x128k", "32x8k")
    )
    assert f"write {one:.0f} tokens per second in the first column and its control {rebuilt:.1f}, and" in page
    assert f"and {rows_of_32:.0f} and {rebuilt_rows:.0f} in all rows of the second" in page


def test_decode_attention_of_outlier_tokens():
    table, measured = rows(GPU, "| `rd` | 1 x 131072 |"), results("decode_attention_presets")
    assert list(table) == ["`rd2`", "`balanced`", "`small`"]
    for name, cells in table.items():
        found = [measured[f"{shape} {name.strip('`')}"] for shape in ("1x128k", "32x8k", "64x4k")]
        assert cells == [f"{x['us']:.0f} ({x['ratio']:.1f}x, {100 * x['floor_share']:.0f} %)" for x in found]
    slower = measured["1x128k balanced"]["us"] - measured["1x128k rd2"]["us"]
    assert f"costs {slower:.0f} microseconds" in " ".join(GPU.split())


def test_no_shape_is_slower_than_bf16():
    measured = results("decode_attention_shapes").values()
    usual = [row for row in measured if row["policy"] in FORMATS]
    assert len(usual) == len(FORMATS) * len({row["shape"] for row in measured})
    assert "No row is slower than bf16" in GPU
    assert min(row["ratio"] for row in measured) >= 1


def test_serving_on_a_gpu():
    found, said = results("serve_gpu"), " ".join(text_of("docs/serving.md").split())
    steps, graphs = ([found[f"{kind} {n}"]["per_second"] for n in (1, 16)] for kind in ("steps", "graphs"))
    plain, captured = ([found[f"{kind} {n}"] for n in (1, 16)] for kind in ("answers_plain", "answers"))
    other = results("serve_gpu_h100")
    busy_plain, busy = ([other[f"{kind} {n}"] for n in (1, 16)] for kind in ("answers_plain", "answers"))
    assert plain[1]["equal_share"] == captured[1]["equal_share"] == 0 and "none of the 16 answers is" in said
    for text in (
        f"{steps[1]:.0f} tokens per second where one gets {steps[0]:.0f} ({steps[1] / steps[0]:.1f}x)",
        f"{graphs[1]:.0f} tokens per second at 16, {graphs[1] / steps[0]:.1f} times one without graphs",
        f"one answer alone gets {graphs[0]:.0f}",
        f"get {plain[1]['ratio']:.1f} times the requests per second of one client there, and with `--graph` "
        f"{captured[1]['ratio']:.1f} times those of one client with it, "
        f"{captured[1]['per_second'] / plain[0]['per_second']:.1f} times those of one without",
        f"it was {busy_plain[1]['ratio']:.1f}, {busy[1]['ratio']:.1f} and "
        f"{busy[1]['per_second'] / busy_plain[0]['per_second']:.1f} times",
    ):
        assert text in said


def test_generate_with_outlier_tokens():
    (row,) = results("generate_outliers").values()
    said = " ".join(GPU.split())
    assert (
        f"generates {row['kvmm']['tokens_per_second']:.0f} tokens per second behind 4096 ({row['ratio']:.1f}x)" in said
    )
    assert f"the first token comes {100 * (row['first_ratio'] - 1):.0f} % later" in said


def test_attention_of_all_low_bit_presets():
    """The range is over every preset that is measured, and those that are not are said."""
    measured = results("decode_attention_presets")
    shapes = {row["shape"] for row in measured.values()}
    ranges = {}
    for spherical in (False, True):
        names = [n for n in kvmm.policies() if n.startswith("spherical") == spherical and n != "bf16"]
        names = [name for name in names if not name.startswith("paper-")]
        ratios = [measured[f"{shape} {name}"]["ratio"] for shape in shapes for name in names]
        ranges[spherical] = f"{min(ratios):.1f} to {max(ratios):.1f} times"
    tokens = [row["tokens"] for row in measured.values()]
    readme, page = (" ".join(text.split()) for text in (text_of("README.md"), GPU))
    assert f"over {min(tokens)} to {max(tokens)} tokens is {ranges[False]} as fast as in bf16" in readme
    papers = [row for row in measured.values() if row["policy"].startswith("paper-")]
    ratios = [row["ratio"] for row in papers]
    assert len({row["policy"] for row in papers}) == sum(name.startswith("paper-") for name in kvmm.policies())
    said = f"the `paper-` presets are {min(ratios):.1f} to {max(ratios):.1f} times as fast"
    assert f"Spherical KV's ({ranges[True]}); {said}" in readme
    assert f"Spherical KV's are {ranges[False]} as fast as bf16." in page
    bf16 = [measured[f"{shape} bf16"]["ratio"] for shape in ("1x128k", "64x4k")]
    assert "bf16 pages at {:.2f} and {:.2f} times cuDNN's speed".format(*bf16) in page
    assert gpu_tables.of_papers(results) in GPU


def test_whole_steps():
    table = rows(GPU, "| Tokens | transformers |")
    assert list(table) == list(STEPS)
    for start, shape in STEPS.items():
        rd2, oscar2 = (results("decode_step")[f"{shape} {policy} compile"] for policy in ("rd2", "oscar2"))
        expected = [rd2["baseline_ms"], rd2["floor_bf16_ms"], rd2["ms"], oscar2["ms"]]
        assert table[start] == [f"{ms:.1f}" for ms in expected]
    others = [f"{results('decode_step')[f'{shape} oscar2 compile']['baseline_ms']:.1f}" for shape in STEPS.values()]
    assert f"(transformers there: {others[0]}, {others[1]} and {others[2]})" in GPU


def test_generate():
    table = rows(GPU, "| Prompt | `DynamicCache` |")
    assert list(table) == list(GENERATE)
    policies = ("balanced", "balanced+file", "oscar2", "kivi2", "kitty")
    for start, shape in GENERATE.items():
        measured = [results("generate")[f"{shape} {policy}"] for policy in policies]
        expected = [f"{measured[0]['dynamic']['tokens_per_second']:.0f}"]
        expected += [f"{row['kvmm']['tokens_per_second']:.0f} ({row['ratio']:.1f}x)" for row in measured]
        assert table[start] == expected


def test_what_is_said_of_generate():
    measured, said = results("generate").values(), " ".join(GPU.split())
    assert f"at most {100 * (max(row['first_ratio'] for row in measured) - 1):.0f} % later" in said
    for name, text in (("short_ratio", "{} to {} % of its"), ("host_ratio", "{} to {} % of the host time")):
        found = [round(100 * row[name]) for row in measured]
        assert text.format(min(found), max(found)) in said, name


def test_what_is_said_of_budgets():
    said, measured = " ".join(GPU.split()), results("memory_budget")
    for tokens, text in ((3328, "decodes {} to {} times as many"), (8192, "and {} to {} times with 8192")):
        ratios = [row["ratio"] for row in measured.values() if row.get("visual_tokens") == tokens]
        assert text.format(f"{min(ratios):.1f}", f"{max(ratios):.1f}") in said
    batch = {name: measured[f"largest {name}"]["batch"] for name in ("bf16", "rd2", "rd1")}
    assert (
        f"{batch['bf16']} sequences of 4096 tokens in bf16, {batch['rd2']} with `rd2` and {batch['rd1']} with" in said
    )


def test_what_is_said_of_the_papers_throughput():
    said, measured = " ".join(GPU.split()), results("calibquant_throughput").values()

    def span(model, policy, visual):
        rows = [row for row in measured if row["model"] == model and row["visual_tokens"] == visual]
        found = [row["ratio"] for row in rows if policy in row["policy"]]
        return f"{min(found):.1f} to {max(found):.1f}"

    eight, large, one, two = "internvl-8b", "internvl-26b", "paper-calibquant1", "calibquant2-authors"
    assert (
        f"{span(eight, one, 256)} times the tokens per second with `{one}` and {span(eight, two, 256)} with its" in said
    )
    assert f"{span(large, one, 256)} and {span(large, two, 256)} times in the 26B model's" in said
    assert f"{span(eight, one, 3328)} times the tokens with `{one}` and {span(eight, two, 3328)} with 2 bits" in said
    assert f"{span(large, one, 3328)} and {span(large, two, 3328)} in the 26B one" in said
    fits = {
        visual: [r["batch"] / r["dense_batch"] for r in measured if r["visual_tokens"] == visual]
        for visual in (256, 3328)
    }
    assert max(fits[256]) < 1
    assert f"3328 tokens {min(fits[3328]):.1f} to {max(fits[3328]):.1f} times as many fit" in said
    assert all(row["steps"] >= 480 for row in measured)

    kitty = results("kitty_throughput")
    ratios = {name: (kitty[name]["batch_ratio"], kitty[name]["throughput_ratio"]) for name in kitty if name != "dense"}
    batch, speed = ratios["paper-kitty"]
    assert f"`paper-kitty` holds {batch:.1f} times the sequences and writes {speed:.1f} times the tokens" in said
    for name in ("kitty-pro", "paper-kivi2"):
        assert f"`{name}` {ratios[name][0]:.1f} and {ratios[name][1]:.1f} times" in said
    rates = {name: f"{row['tokens_per_second']:.0f}" for name, row in kitty["dense"]["baselines"].items()}
    assert f"`DynamicCache` ({rates['dynamic']} tokens per second) and `StaticCache` ({rates['static']}, which" in said


def test_what_is_said_of_packing_a_prompt():
    said, measured = " ".join(GPU.split()), {row["policy"]: row for row in results("prompt_packing").values()}
    assert set(measured) == set(kvmm.policies()) - {"bf16"}
    behind = {policy: 100 * row["behind_share"] for policy, row in measured.items()}
    assert f"for {min(behind.values()):.1f} to {max(behind.values()):.1f} % of the time of reading it longer" in said
    assert sorted(behind, key=behind.get)[-2:] == ["small", "balanced"]
    assert "longer, longest with `balanced` and `small`" in said
    alone = [100 * row["share"] for row in measured.values()]
    assert f"{min(alone):.0f} to {max(alone):.0f} % of the time of reading it, on three hosts" in said
    extra = {policy: 100 * row["extra_layers"] for policy, row in measured.items()}
    plain = [share for name, share in extra.items() if "spherical" not in name]
    assert f"at most {max(extra.values()):.0f} % of one layer's" in said
    assert f"without Spherical KV at most {max(plain):.0f} %" in said


def test_what_is_said_of_several_devices():
    said, measured = " ".join(GPU.split()), results("multi_gpu")
    rates = {name: [one["tokens_per_second"] for one in row["policies"].values()] for name, row in measured.items()}
    low, high = min(rates["qwen3 tp_plan x2"]), max(rates["qwen3 tp_plan x2"])
    assert f"{low:.0f} to {high:.0f} per second ({max(rates['qwen3 alone x1']):.0f} on one" in said
    assert f"no graph can span, {max(rates['qwen3 device_map x2']):.0f} " in said


def test_what_is_said_of_streaming_and_of_many_query_heads():
    said, measured = " ".join(GPU.split()), results("decode_streaming")
    mean, longest = [], []
    for row in measured.values():
        if "/" not in row["policy"]:
            name = row["name"].replace(row["policy"], f"benchmarks/policies/{row['policy']}-stream16.yaml")
            mean.append(measured[name]["ms"] / row["ms"])
            longest.append(measured[name]["slowest_ms"] / row["slowest_ms"])
    assert len(mean) == 4
    assert "{:.0f} to {:.0f} % longer in the mean".format(*(100 * (f(mean) - 1) for f in (min, max))) in said
    assert "longest one of 136 is {:.0f} to {:.0f} %".format(*(100 * (f(longest) - 1) for f in (min, max))) in said
    assert {row["steps"] for row in measured.values()} == {136}
    many = [row["ratio"] for row in results("decode_attention_shapes").values() if row["rows"] == 16]
    assert (
        f"With 16 query heads per KV head the products take longer than the memory, and what is left of the gain is \
{min(many):.1f} to {max(many):.1f} times"
        in said
    )


def test_tables_are_written_by_the_script():
    assert gpu_tables.updated(GPU) == GPU
    assert gpu_tables.updated(GPU.replace("| 30 (4.2x", "| 3 (42x")) == GPU != GPU.replace("| 30 (4.2x", "| 3 (42x")


def test_the_hosts_time_is_said_of_every_preset():
    found: dict[int, set[str]] = {}
    for row in results("layer_calls").values():
        found.setdefault(row["layers"], set()).add(row["policy"])
        if row["layers"] == 4:  # where the host's time of a replayed call goes, but for what a step costs once
            slowest = " ".join(function["function"] for function in row["profile"])
            assert all(name in slowest for name in ("'clone'", "_foreach_copy_", "replay"))
    assert found[4] == set(kvmm.policies())
    above = {r["policy"] for r in results("layer_calls").values() if r["layers"] == 4 and r["host_ratio"] > 1.5}
    assert above == found[36]


TABLED = ("decode_attention", "decode_attention_presets", "decode_profile")


def test_tables_are_of_one_gpu():
    """The page says H200 above them; rows of another GPU have files of their own."""
    for name in (
        "decode_attention",
        "decode_attention_presets",
        "decode_profile",
        "calibquant_throughput",
        "layer_calls",
    ):
        path = gpu_tables.ROOT / "benchmarks" / "results" / f"{name}.json"
        report = json.loads(path.read_text(encoding="utf-8"))
        assert {report["runs"][row["run"]]["machine"]["gpu"] for row in report["results"]} == {"NVIDIA H200"}


def test_rows_say_their_gpu():
    row = {"shape": "1x128k", "us": 38.6, "ratio": 3.21, "floor_share": 0.587}
    runs = [{"machine": {"gpu": gpu}} for gpu in ("NVIDIA H200", "NVIDIA H100 80GB HBM3")]
    rows = [{**row, "policy": "kivi2", "run": 1}, {**row, "policy": "rd2", "run": 0}]
    text = gpu_tables.with_gpus({"runs": runs, "results": [*rows, {"policy": "ott2", "failed": "no", "run": 0}]})
    assert text.split("\n")[2:] == [
        "| 1x128k | `kivi2` | NVIDIA H100 80GB HBM3 | 39 (3.2x, 59 %) |",
        "| 1x128k | `rd2` | NVIDIA H200 | 39 (3.2x, 59 %) |",
    ]


def test_presets_of_papers_have_a_table_once_they_are_measured():
    assert gpu_tables.of_papers(lambda name: {}) == "The presets that follow a paper (`paper-`) are not measured."
    row = {"policy": "paper-kivi2", "us": 38.6, "ratio": 3.21, "floor_share": 0.587}
    found = {"1x128k paper-kivi2": row, "64x4k bf16": {"policy": "bf16"}}
    lines = gpu_tables.of_papers(lambda name: found).split("\n")
    assert lines[2:4] == ["| `paper-kivi2` | 39 (3.2x, 59 %) | - |", ""]
    assert lines[4].startswith("Not measured: `paper-oscar2`, ") and "kivi2" not in lines[4]
    slow = {"policy": "paper-rotatekv2", "us": 3374.7, "ratio": 0.037, "floor_share": 0.006}
    assert "| 3375 (27x slower, 1 %) | - |" in gpu_tables.of_papers(lambda name: {"1x128k paper-rotatekv2": slow})


def test_what_is_said_of_limits():
    said, presets = " ".join(GPU.split()), results("decode_attention_presets")
    exact = 64 * 8 * 128 * 2 * 128 * 2  # bytes: sequences, heads, tokens, keys and values, channels, bf16
    packed = 64 * 8 * (4096 - 128) * 2 * (128 // 2 + 128 // 32 * 4)
    kivi4, queries = presets["64x4k kivi4"], 2 * 64 * 32 * 128 * 2  # and the output, bf16
    assert kivi4["packed_bytes"] == packed and kivi4["bytes"] == packed + exact + queries
    speed = kivi4["bytes"] / kivi4["floor_us"] / 1e6
    assert f"are {packed / 1e6:.0f} MB, 128 tokens in bf16 are {exact / 1e6:.0f} MB more" in said
    assert f"delivers {speed:.2f} TB/s, takes {kivi4['floor_us']:.0f} microseconds" in said
    shares = [100 * exact / presets[f"64x4k {name}"]["bytes"] for name in ("rd2", "calibquant1")]
    assert "are {:.0f} % of the bytes of `rd2` at 64 x 4096 and {:.0f} % of those of".format(*shares) in said
    profiles = [results("decode_profile")[f"{shape} rd2"] for shape in ("64x4k", "1x128k")]
    outside = [100 * (1 - row["phases"]["pages"]) for row in profiles]
    many, few = ({phase: f"{100 * share:.0f} %" for phase, share in row["phases"].items()} for row in profiles)
    assert f"{outside[0]:.0f} % are outside of the loop over pages at 64 x 4096" in said
    parts = many["dense"], many["query"], many["before"], many["join"]
    assert "({} with the bf16 tokens, {} with the query, {} before both, {} where warps".format(*parts) in said
    assert f"{outside[1]:.0f} % at 1 x 131072, where every block has few pages ({few['query']} with the query" in said
    waits = [row["stalls"]["long_scoreboard"] for row in profiles]
    assert "waits for memory {:.1f} and {:.1f} cycles".format(*waits) in said
    assert all(wait == max(row["stalls"].values()) for wait, row in zip(waits, profiles, strict=True))
    kivi4 = [100 * results("decode_profile")[f"{shape} kivi4"]["dram_share"] for shape in ("1x128k", "64x4k")]
    assert "`kivi4` reads at {:.0f} % and {:.0f} % of the memory's peak".format(*kivi4) in said
    assert f"own times, {profiles[1]['us']:.0f} and {profiles[0]['us']:.0f} microseconds for `rd2`" in said
