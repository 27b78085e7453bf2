"""The tables and figures of docs/ are those of ``benchmarks/results`` and of the code."""

from __future__ import annotations

import json
import re

import pytest

import kvmm
from benchmarks import departure_tables, goal_tables, retention_tables, witness_tables
from benchmarks.answer_tables import (
    AT_REST,
    BEGIN_AT_REST,
    BEGIN_STREAMED,
    BEGIN_VARIANTS,
    STREAMED,
    VARIANTS,
    committed_run,
    marked,
    table,
)
from benchmarks.free_running import means
from kvmm import KVPolicy, media, policies
from kvmm.eval.report.pages import summary_of
from kvmm.models.families import FAMILIES
from kvmm.policy.costs import ANSWERS_PATH
from kvmm.policy.presets import PAPERS, PRESETS, tier_of
from tests.docs.pages import ROOT, blocks, results, rows, text_of
from tests.presets import presets_timed

RESULTS, POLICIES, SPHERICAL = (text_of(f"docs/{name}.md") for name in ("results", "policies", "spherical"))
_OWN_NAMES = ("balanced", "small")  # rd under other names


# -- python.md -------------------------------------------------------------------------------------------------------


def test_what_is_said_of_upstream_tests():
    lossless = [row for row in results("upstream_suites")["rows"] if row["policy"] == "bf16"]
    said = " ".join(text_of("docs/python.md").split())
    assert (
        f"{sum(row['passed'] for row in lossless)} of transformers' own tests of {len(lossless)} families pass" in said
    )
    packed = [row for row in results("upstream_suites")["rows"] if row["policy"] != "bf16"]
    assert {(row["family"], row["policy"]) for row in packed} == {
        (row["family"], policy) for row in lossless for policy in ("oscar2", "balanced")
    }
    assert f"{sum(row['passed'] for row in packed)} pass (" in said and not any(row["crashes"] for row in packed)


# -- results.md ------------------------------------------------------------------------------------------------------


def test_the_table_of_answers_is_the_committed_run():
    run = committed_run()
    assert marked(RESULTS) == table(run)
    assert [one.policy for one in run.tasks[0].policies] == list(policies())


def test_the_table_of_variants_is_the_committed_run():
    assert marked(RESULTS, BEGIN_VARIANTS) == table(committed_run(VARIANTS))


def test_the_table_of_streamed_policies_is_the_committed_run():
    streamed = committed_run(STREAMED)
    assert marked(RESULTS, BEGIN_STREAMED) == table(streamed)
    bits = {row[0]: row[1] for row in summary_of(streamed)[1]}
    rd1, rd2 = (bits[f"rd{n}-stream8-outliers"] for n in (1, 2))
    said = " ".join(POLICIES.split())
    assert f"the answers of `balanced` in {rd2} bits of the whole cache rather than {bits['balanced']}" in said
    assert f"has those of `small` in {rd1} rather than {bits['small']}" in said


def test_answers_from_files_of_a_twelfth():
    """``rd1.5-stream8-outliers`` answers no worse than ``rd2``, in a twelfth of the bytes."""
    run = committed_run(AT_REST)
    assert marked(text_of("docs/python.md"), BEGIN_AT_REST) == table(run)
    assert results("at_rest")["rd1.5-stream8-outliers"]["coded_ratio"] >= 12
    for task in run.tasks:
        assert task.policy("rd1.5-stream8-outliers").score >= task.policy("rd2").score


def test_what_is_said_of_the_table_is_in_it():
    """Every figure of the text is one of the table: bits, also to one place, or a difference without its sign."""
    _, summary = summary_of(committed_run())
    bits = {name: float(cells[0]) for name, *cells in summary}
    lost = {cell.split(" ")[0].lstrip("+-") for _, _, *cells in summary for cell in cells}
    text = RESULTS.partition("## What the table says")[2].partition("\n## ")[0]
    figures = set(re.findall(r"\d+\.\d+", re.sub(r"`[^`]*`", "", text)))
    assert len(figures) > 10
    known = lost | {f"{value:.2f}" for value in bits.values()} | {f"{value:.1f}" for value in bits.values()}
    assert figures - known == set()
    more = [f"{100 * (bits[name] / bits['rd2'] - 1):.0f}" for name in ("oscar2", "kivi2")]
    assert re.findall(r"with (\d+) % more", text) == more
    for page in ("README.md", "docs/results.md"):
        for value in re.findall(r"`bf16` reads (\S+) here", " ".join(text_of(page).split())):
            assert value == f"{bits['bf16']:.2f}"


def test_questions_are_those_of_the_run():
    counts = [max(one.answered for one in task.policies) for task in committed_run().tasks]
    said = " ".join(RESULTS.split())
    for count, what in zip(
        counts, ("questions of pages", "of the ten", "about recordings", "of documents"), strict=True
    ):
        assert f"{count} {what}" in said
    for page in ("README.md", "docs/evaluation.md"):
        assert f"{sum(counts)} questions" in " ".join(text_of(page).split())


def test_cpu_steps():
    table = rows(RESULTS, "| Policies | float32 |")
    steps = {dtype: results("cpu_decode")["results"][dtype]["steps"] for dtype in ("float32", "bfloat16")}
    fast, slow, torch_only = table.values()
    slow_names = {name for name in presets_timed() if name.startswith(("rotatekv", "ott", "spherical", "turboquant"))}
    for column, dtype in enumerate(steps):
        ratios = {name: row["compiled_ratio"] for name, row in steps[dtype].items() if name != "bf16"}
        assert set(ratios) | {"bf16"} == set(presets_timed())
        for cells, names in ((fast, set(ratios) - slow_names), (slow, slow_names)):
            low, high = re.fullmatch(r"([0-9.]+) to ([0-9.]+) times", cells[column]).groups()
            digits = len(low) - 2
            assert low == f"{min(ratios[n] for n in names):.{digits}f}"
            assert high == f"{max(ratios[n] for n in names):.{digits}f}"
        assert torch_only[column] == f"{steps[dtype]['rd2']['torch_ratio']:.1f} times"


def test_what_is_said_of_prompts_on_a_cpu():
    said, measured = " ".join(RESULTS.split()), results("prompt_attention").values()
    ratios = [row["ratio"] for row in measured]
    assert f"{min(ratios):.1f} to {max(ratios):.1f} times as fast as by torch's SDPA" in said
    assert all(row["library_distance"] < 1.02 * row["torch_distance"] for row in measured)
    first = [
        results("embedded_models_epyc")["office-omni"][f"{pages}_first_token_seconds"]
        for pages in ("1_page", "4_pages")
    ]
    assert f"comes {first[0]:.1f} seconds after a page and {first[1]:.1f} after four" in said
    older = {name.removesuffix(", float32"): row["ratio"] for name, row in results("prompt_attention_float32").items()}
    assert f"{older['patches of a page']:.1f} times as fast for the patches of a page" in said
    assert f"{older['prompt of a page']:.1f} times for a page in front of the text tower" in said
    assert f"{older['fourth page behind three']:.1f} behind three others" in said
    assert f"{older['prompt of four pages']:.1f} times for four pages at once" in said
    rows = results("prompt_attention_float32").values()
    assert all(row["library_distance"] < 1.1 * row["torch_distance"] for row in rows)
    slow = results("embedded_models_float32")["office-omni"]
    first = [slow[f"{pages}_first_token_seconds"] for pages in ("1_page", "4_pages")]
    assert f"comes {first[0]:.1f} seconds after a page and {first[1]:.1f} after four" in said


# presets that C packs
IN_C = re.compile("rd|balanced|small|(paper-)?turboquant|calibquant1-mean")


def test_what_is_said_of_a_question_on_a_cpu():
    said, answers = " ".join(RESULTS.split()), results("ask_policies")["results"]
    mib = {name: answers[name]["memory"]["nbytes"] / 2**20 for name in ("bf16", "balanced", "small")}
    whole = f"{mib['bf16']:.1f} MiB in full precision, {mib['balanced']:.1f} under `balanced`, {mib['small']:.1f} under"
    assert whole in said
    ratios = []
    for name, wording in (
        ("packing", "adds {:.1f} to {:.1f} % to reading them"),
        ("packing_office", "thirty layers, {:.1f} to {:.1f} %"),
    ):
        rows = {policy: row for policy, row in results(name)["results"].items() if policy != "bf16"}
        shares = [100 * row["share_of_reading"] for row in rows.values()]
        assert wording.format(min(shares), max(shares)) in said
        ratios += [row["torch_ratio"] for policy, row in rows.items() if IN_C.match(policy)]
    assert f"packing is {min(ratios):.1f} to {max(ratios):.1f} times as fast as by torch alone" in said
    both = results("cpu_decode")["results"].values()
    ratios = [row["ratio"] for one in both for row in one["questions"].values()]
    assert f"{min(ratios):.2f} to {max(ratios):.2f} times under the five policies timed" in said
    assert all(len(one["questions"]) == 5 for one in both)


def test_what_is_said_of_divergence():
    said = " ".join(RESULTS.partition("## Divergence")[2].split())
    found = {policy["policy"]: policy for policy in results("drift")["policies"]}
    kl = {name: policy["logits"]["kl_mean"] for name, policy in found.items()}
    bits = {name: policy["bits"]["packed_bits"] for name, policy in found.items()}

    def short(name: str) -> str:
        return f"{kl[name]:.4f}".removeprefix("0")

    assert f"`rd2`, at {bits['rd2']:.2f} bits" in said and f"`kivi4` at {bits['kivi4']:.2f} " in said
    assert f"(KL {short('rd2')} and {short('kivi4')})" in said
    assert f"`rd1`, at {bits['rd1']:.2f}, nearer than any other method below four bits ({short('rd1')};" in said
    assert set(policies()) <= set(found)
    others = [name for name in policies() if not name.startswith("rd") and name not in _OWN_NAMES and bits[name] < 4]
    first, second = sorted(others, key=kl.__getitem__)[:2]
    assert kl["rd1"] < kl[first]
    next_ones = " and ".join(f"{short(name)} of `{name}` at {bits[name]:.2f}" for name in (first, second))
    assert f"the next are {next_ones})" in said


def test_files_at_rest():
    table, measured = rows(text_of("docs/python.md"), "| policy | KL |"), results("at_rest")
    assert list(table) == [f"`{name}`" for name in measured if name.startswith("rd")]
    for name, cells in table.items():
        row = measured[name.strip("`")]
        ratios = [f"{row[key]:.2f}x" for key in ("ratio_in_memory", "plain_ratio", "coded_ratio")]
        seconds = [f"{row[f'coded_{what}_seconds']:.2f} s" for what in ("save", "load")]
        kl = f"{row['kl']:.4f}".removeprefix("0")
        assert cells == [kl, *ratios, *seconds, f"{row['read_pages_seconds']:.1f} s"]


def test_what_is_said_of_refinement():
    said = " ".join(text_of("docs/language-model.md").split())
    kl = [
        {row["policy"]: row["logits"]["kl_mean"] for row in results(f"language_{name}")["policies"]}
        for name in ("unrefined", "refined")
    ]
    for name, (before, after) in {"rd1": (".052", ".044"), "rd2": (".029", ".023"), "rd3": (".022", ".017")}.items():
        assert f"`{name}`" in said and f"from {before} to {after}" in said
        assert [f"{one[name]:.3f}"[1:] for one in kl] == [before, after]
    queries, refined = (
        {row["policy"]: row["logits"]["kl_mean"] for row in results(name)["policies"]}
        for name in ("language_drift", "language_refined_queries")
    )
    for name in ("rd1", "rd2", "rd3"):
        before, after = (f"{found[name]:.4f}".removeprefix("0") for found in (queries, refined))
        assert f"`{name}` goes from {before} to {after}" in said or f"`{name}` from {before} to {after}" in said
    assert all(queries[name] < kl[1][name] for name in ("rd1.5", "rd2", "rd2.25", "rd2.5", "rd3"))


def test_what_is_said_of_a_soak():
    said, found = " ".join(text_of("docs/serving-others.md").split()), results("soak")
    good, memory, left = found["turns"]["good"], found["rss_mib"], found["left"]
    assert f"{found['questions']:,} turns of eight visitors" in said and found["visitors"] == 8
    assert f"{len(found['errors'])} of {good['turns']} questions about good files failed" in said
    assert len(found["errors"]) == good["errors"]
    assert f"was {memory['second_quarter']:.0f} MiB in its second quarter and {memory['last_quarter']:.0f} MiB" in said
    assert not any((left["files"], left["folders"], left["visitors"], left["states"], left["cache_bytes"]))


def test_what_small_files_ask_for():
    table, found = rows(text_of("docs/serving-others.md"), "| A file of |"), results("hostile_files")["cases"]
    assert list(table) == list(found)
    for name, (size, grew, others, before) in table.items():
        case = found[name]
        slower = case["others"]["beside"] / case["others"]["alone"]
        assert (size, grew) == (f"{case['bytes'] / 1000:,.1f} kB", f"{case['peak_mib']:,} MiB")
        assert others == f"x {slower:.2f}" and slower <= 2 and case["left_percent"] <= 10
        if before != "-":
            peak, ended = case["beside"]["peak_mib"], case["beside"]["outcome"].startswith("ended")
            assert before == f"{peak:,} MiB" + (", ended" if ended else "")


def test_what_is_said_of_fuzzers():
    found = results("fuzz")
    assert f"has the counts of {found['inputs']:,} inputs" in text_of("docs/hostile-files.md")
    assert found["clean"] and sum(kind["inputs"] for kind in found["kinds"].values()) == found["inputs"]


def test_retention():
    assert retention_tables.marked(SPHERICAL) == retention_tables.tables(
        results("retention_budgets"), results("retention")
    )


def test_what_is_said_of_retention():
    """The sentences below the tables."""
    found = {(row["variant"], row["share"]): row for row in results("retention_budgets")["results"]}
    said = " ".join(SPHERICAL.split())
    kl = {key: row["kl"] for key, row in found.items()}
    count = max(row["questions"] for row in found.values())
    assert count == 16 and "What sixteen questions show" in said
    met = {key: row["questions"] == count for key, row in found.items()}
    *_, half, large, small = sorted({share for _, share in kl} - {1.0}, reverse=True)
    compared = {
        large: ("A2 retention only", "A2 quantisation only", "StreamingLLM", "H2O"),
        small: ("A2 retention only",),
    }
    for share, others in compared.items():
        full = kl["A0 full system", share]
        assert all(met[name, share] and full < kl[name, share] for name in others)
        assert full > max(kl[name, share] for name in ("entries of neighbours", "angles of 4 bits and down"))
        assert full > kl["exact, then angles", share] and full == kl["A3 no caps", share]
    assert not any(met.get((name, small)) for name in ("A2 quantisation only", "StreamingLLM", "H2O", "VL-Cache"))
    joint, first = (f"{kl[name, large]:.3f}".removeprefix("0") for name in ("A0 full system", "A2 decoupled"))
    assert f"({first} against {joint})" in said and kl["A2 decoupled", small] > 3 * kl["A0 full system", small]
    cached, whole = found["VL-Cache", large], found["A0 full system", large]
    assert cached["kl_p95"] > 4 * whole["kl_p95"] and round(whole["accuracy"] - cached["accuracy"]) == 5
    assert kl["entries of pages", large] < kl["A0 full system", large] < kl["A0 full system", small]
    assert kl["entries of pages", small] > kl["A0 full system", small]
    assert all(kl[f"entries of {what}", half] < kl["A0 full system", half] for what in ("neighbours", "pages"))
    assert all(kl["angles of 4 bits and down", share] < kl["A0 full system", share] for _, share in kl if share < 1)
    assert kl["VL-Cache", large] < kl["A0 full system", large] and not met["VL-Cache", small]
    assert round(kl["A0 full system", large] / kl["exact, then angles", large]) == 6
    gaps = {row["share"]: f"{row['gap']:.2f}".removeprefix("0") for row in results("retention_budgets")["synergy_gap"]}
    assert f"is {gaps[large]} nats at 30 % and, to dropping, {gaps[small]} at 15 %" in said
    front = {row["variant"]: row["share"] for row in results("retention_budgets")["iso_quality"] if row["share"]}
    assert front == {"angles of 4 bits and down": half, "exact, then angles": 0.75, "VL-Cache": 0.75}
    assert (half, large, small) == (0.45, 0.3, 0.15) and met["angles of 4 bits and down", half]
    assert (
        f"to 45 % of the bytes, with a divergence of {kl['angles of 4 bits and down', half]:.3f}".replace("0.", ".")
        in said
    )
    assert results("retention_budgets")["model"] == results("retention")["model"]
    high, angles = found["spherical-high", 1.0], found["angles, 4 bits", 1.0]
    assert f"cost {high['accuracy_full'] - high['accuracy']:.1f} points" in said
    assert angles["accuracy"] >= angles["accuracy_full"] and 1.1 < angles["nbytes"] / high["nbytes"] < 1.2
    assert round(high["kl"] / angles["kl"]) in range(45, 56)
    gains = [100 * (1 - kl[f"spherical-high, gain {gain}", 1.0] / high["kl"]) for gain in ("1.05", "1.1", "1.2")]
    assert f"{min(gains):.0f} to {max(gains):.0f} % off the mean" in said
    assert round(found["spherical-high, gain 1.2", 1.0]["kl_p95"] / high["kl_p95"]) == 2


def test_the_table_of_witnesses():
    assert witness_tables.marked(SPHERICAL) == witness_tables.witness_table()
    runs = [json.loads(path.read_text(encoding="utf-8"))["policies"] for path in witness_tables.RUNS.values()]
    for run in runs:
        assert {"balanced", "small", "oscar2", "kivi2", "spherical-high"} <= set(run)
    calls = {name: one["tool_calls"] for name, one in runs[0].items()}
    assert all(one["valid_full"] == 1 and one["answers"] == 5 for one in calls.values())
    kept = {name: round(5 * one["kept"]) for name, one in calls.items()}
    said = " ".join(SPHERICAL.split())
    assert "`oscar2` keeps three of them, `balanced` one, although its divergence on the text is the smallest" in said
    kl = {name: one["witnesses"][1]["measures"][0]["value"] for name, one in runs[0].items()}
    assert min(kl, key=kl.__getitem__) == "balanced" and kept == dict.fromkeys(kept, 0) | {"oscar2": 3, "balanced": 1}
    verdicts = [one["passed"] for run in runs for policy in run.values() for one in policy["witnesses"]]
    numbers = [one["number"] for run in runs for policy in run.values() for one in policy["witnesses"]]
    assert {at for at, passed in zip(numbers, verdicts, strict=True) if passed is not None} == set(range(1, 9))


# -- models.md and policies.md ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", ["docs/models.md", "README.md"])
def test_limits_are_those_of_the_code(page: str):
    said = " ".join(text_of(page).split())
    assert f"images up to {media.MAX_IMAGE_PIXELS // 10**6} million pixels" in said
    assert f"{media.MAX_IMAGE_SIDE // 1000} 000 a side" in said
    assert f"PDFs up to {media.MAX_PDF_PAGES} pages" in said
    assert f"recordings up to {media.MAX_AUDIO_SECONDS // 60} minutes" in said


@pytest.mark.parametrize("page", ["docs/models.md", "README.md"])
def test_every_family_is_named(page: str):
    said = re.sub(r"[^a-z0-9]", "", text_of(page).lower())
    for name in FAMILIES:
        short = re.sub(r"(thinker|moe|[^a-z0-9])", "", name)
        assert short in said, name


def test_what_rd_is_to_hold():
    shown = goal_tables.goal_table()
    assert goal_tables.marked(RESULTS) == shown
    files = re.findall(r"`([\w/]+\.json)` \|$", shown, re.MULTILINE)
    assert len(files) == len(shown.splitlines()) - 2
    assert all((ROOT / "benchmarks" / "results" / file).is_file() for file in files)


def test_what_is_said_of_bounds_that_are_not_kept():
    said = RESULTS.partition(goal_tables.BEGIN)[2].partition(goal_tables.END)[2].partition("\n## ")[0]
    said = " ".join(said.split())
    assert said.startswith("Two are not kept") and goal_tables.goal_table().count("| no |") == 2
    found = results("language_diverging")
    own = {name: means(row) for name, row in found.items()}
    assert own["rd2"]["kl"] < own["oscar2-g32"]["kl"] / 2 and "less than half of that" in said
    texts = found["oscar2-g32"]["texts"].values()
    assert {one["tokens"] for one in texts} == {128} and len(texts) == 6 and "one of OScaR's six never leaves" in said
    assert sum(one["diverged_at"] is None for one in texts) == 1
    small = [row for row in results("at_rest").values() if row["coded_ratio"] >= 12]
    assert f"KL is {min(row['kl'] for row in small):.4f}".replace("0.", ".") + " or more" in said
    assert {re.match(r"rd[\d.]+", row["name"])[0] for row in small} == {"rd1", "rd1.5"}


def test_what_departures_cost():
    assert departure_tables.marked(RESULTS) == departure_tables.departure_table()
    for name in departure_tables.DEPARTURES:
        files = [ROOT / "benchmarks" / "policies" / f"{name}{end}.yaml" for end in ("", "-text")]
        assert name in kvmm.policies() or any(kvmm.get_policy(str(file)) for file in files if file.is_file())


def test_what_is_said_of_departures():
    """Every KL divergence of the text below the table, and of the codecs' docstrings, is one of the two reports."""
    reports = (departure_tables.TEXT, departure_tables.PAGES)
    one, pages = ({name: kl for name, (_, kl) in departure_tables.measured(path).items()} for path in reports)
    text = RESULTS.partition("## What departures")[2].partition(departure_tables.END)[2].partition("\n## ")[0]
    figures = re.findall(r"(?<![0-9])[0-9]*\.[0-9]{4}", text)
    worth = {
        f"{float(one[name]) - float(one[f'{name}-window128']):.4f}".removeprefix("0")
        for name in ("paper-kivi2", "paper-kitty", "paper-kitty-pro")
    }
    measured = set(one.values()) | set(pages.values())
    assert len(figures) > 20 and set(figures) - measured - worth == set()
    assert results("drift")["settings"]["limit"] == 24 and results("drift")["settings"]["transcribe"] == 64
    for name in ("kitty", "oscar", "ott", "quarot", "rotatekv", "turboquant"):
        text = (ROOT / "kvmm" / "codecs" / f"{name}.py").read_text(encoding="utf-8").split('"""')[1]
        quoted = re.findall(r"(?<![0-9])\.[0-9]{4}(?![0-9])", text)
        assert len(quoted) > 4 and set(quoted) - measured == set(), name


def test_the_policy_table_is_the_registry():
    table = {name.strip("`"): line for name, (line,) in rows(POLICIES, "| Policy | What it is |").items()}
    assert table == kvmm.policies()


def test_every_codec_of_a_preset_has_its_source():
    table = rows(POLICIES, "| Codec | Published as |")
    codecs = {one.codec for policy in PRESETS.values() for one in policy.all_specs() if not one.is_lossless}
    assert {name.strip("`") for name in table} == codecs
    for policy in PRESETS.values():
        tier, source = tier_of(policy)
        if tier == PAPERS:
            (codec,) = {one.codec for one in policy.all_specs() if not one.is_lossless}
            name, _, where = source.partition(", ")
            (cell,) = table[f"`{codec}`"]
            assert name in cell and (not where.startswith("arXiv") or where.removeprefix("arXiv ") in cell)


def test_what_calibquant_keeps():
    said, found = " ".join(POLICIES.split()), json.loads(ANSWERS_PATH.read_text(encoding="utf-8"))["policies"]
    kept = {name: row["kept"] for name, row in found.items() if "calibquant" in name}
    assert f"of {found['bf16']['right']} right answers about pages `tiny-omni` keeps {kept['calibquant1']} " in said
    for name in kept:
        assert f"{kept[name]} under **`{name}`**" in said


def test_the_policy_file(tmp_path):
    streamed, example = blocks(POLICIES, "yaml")
    path = tmp_path / "policy.yaml"
    path.write_text(streamed, encoding="utf-8")
    said = KVPolicy.from_file(path)
    measured = KVPolicy.from_file(ROOT / "benchmarks" / "policies" / "rd2-stream8-outliers.yaml")
    assert said.image == measured.image and said.text == measured.text and said.audio == measured.audio
    assert (said.residual_length, said.flush_length) == (measured.residual_length, measured.flush_length) == (8, 16)
    path.write_text(example, encoding="utf-8")
    policy = KVPolicy.from_file(path)
    assert policy.skip_layers == (0, -1) and policy.overrides[0].image.key.bits == 4
