"""The tables and figures of docs/ are those of ``benchmarks/results`` and of the code."""

from __future__ import annotations

import re

import pytest

import kvmm
from kvmm import KVPolicy, media
from kvmm.eval.report import PolicyResult, RunResult, TaskResult
from kvmm.eval.report_pages import summary_table
from kvmm.eval.statistics import Difference
from kvmm.models.families import FAMILIES
from kvmm.presets import PAPERS, PRESETS, tier_of
from tests.docs.pages import blocks, results, rows, text_of

GPU, RESULTS, POLICIES, RETENTION = (text_of(f"docs/{name}.md") for name in ("gpu", "results", "policies", "retention"))
_OWN_NAMES = ("balanced", "small")  # rd under other names


# -- gpu.md ----------------------------------------------------------------------------------------------------------

ATTENTION = {
    "1 x 131072": "1x128k",
    "32 x 8192": "32x8k",
    "64 x 4096": "64x4k",
    "1 x 131072, 7 query heads per KV head": "1x128k-r7",
    "1 x 131072, 64 channels": "1x128k-d64",
}
STEPS = {"1 x 131072": "1x128k", "1 x 32768": "1x32k", "32 x 4096": "32x4k"}
GENERATE = {"1 x 4096": "1x4k", "1 x 32768": "1x32k"}


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


# -- results.md ------------------------------------------------------------------------------------------------------


def _run(values: dict) -> RunResult:
    """A run of ``report.json``, with what the summary reads of it."""
    tasks = []
    for task in values["tasks"]:
        policies = tuple(
            # a run that is older than a field has none of it
            PolicyResult(
                **{
                    "packed_bits_per_value": None,
                    **one,
                    "difference": one["difference"] and Difference(**one["difference"]),
                }
            )
            for one in task["policies"]
        )
        tasks.append(TaskResult(**{**task, "policies": policies, "failures": ()}))
    return RunResult(**{**values, "tasks": tuple(tasks)})


def _table(text: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]


def mini_table() -> list[list[str]]:
    """The cells of ``kvmm report --table summary`` of the committed run."""
    (values,) = results("mini/report")["runs"]
    return _table(summary_table(_run(values)))


def test_the_table_of_answers_is_the_committed_run():
    (marked,) = re.findall(r"<!-- kvmm report --table summary [^>]*begin -->\n(.*?)<!-- end -->", RESULTS, re.DOTALL)
    found, expected = _table(marked), mini_table()
    assert [row[0] for row in found[2:]] == [row[0] for row in expected[2:]] == list(PRESETS)
    assert found[0][2:] == expected[0][2:] and found[2:] == expected[2:]


def test_questions_are_those_of_the_run():
    (values,) = results("mini/report")["runs"]
    counts = [max(one["answered"] for one in task["policies"]) for task in values["tasks"]]
    for count, what in zip(
        counts, ("questions of pages", "of the ten", "about recordings", "of documents"), strict=True
    ):
        assert f"{count} {what}" in " ".join(RESULTS.split())


def test_cpu_steps():
    table = rows(RESULTS, "| Policies | float32 |")
    steps = {dtype: results("cpu_decode")["results"][dtype]["steps"] for dtype in ("float32", "bfloat16")}
    fast, slow, torch_only = table.values()
    slow_names = {name for name in PRESETS if name.startswith(("rotatekv", "ott", "spherical", "turboquant"))}
    for column, dtype in enumerate(steps):
        ratios = {name: row["compiled_ratio"] for name, row in steps[dtype].items() if name != "bf16"}
        assert set(ratios) | {"bf16"} == set(PRESETS)
        for cells, names in ((fast, set(ratios) - slow_names), (slow, slow_names)):
            low, high = re.fullmatch(r"([0-9.]+) to ([0-9.]+) times", cells[column]).groups()
            digits = len(low) - 2
            assert low == f"{min(ratios[n] for n in names):.{digits}f}"
            assert high == f"{max(ratios[n] for n in names):.{digits}f}"
        assert torch_only[column] == f"{steps[dtype]['rd2']['torch_ratio']:.1f} times"


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
    others = [name for name in PRESETS if not name.startswith("rd") and bits[name] < 4 and name not in _OWN_NAMES]
    first, second = sorted(others, key=kl.__getitem__)[:2]
    assert kl["rd1"] < kl[first]
    next_ones = " and ".join(f"{short(name)} of `{name}` at {bits[name]:.2f}" for name in (first, second))
    assert f"the next are {next_ones})" in said


def test_retention():
    table = rows(RETENTION, "| Under the budget |")
    found = {
        (row["variant"], row["share"]): row["kl"]
        for row in results("retention")["results"]
        if row["policy"] == "spherical-high"
    }
    variants = [("no budget", 1.0), ("joint", 0.7), ("A2 retention only", 0.7), ("A2 decoupled", 0.7)]
    assert [cell for (cell,) in table.values()] == [f"{found[variant]:.2f}" for variant in variants]


# -- models.md and policies.md ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", ["docs/models.md"])
def test_limits_are_those_of_the_code(page: str):
    said = " ".join(text_of(page).split())
    assert f"images up to {media.MAX_IMAGE_PIXELS // 10**6} million pixels" in said
    assert f"{media.MAX_IMAGE_SIDE // 1000} 000 a side" in said
    assert f"PDFs up to {media.MAX_PDF_PAGES} pages" in said
    assert f"recordings up to {media.MAX_AUDIO_SECONDS // 60} minutes" in said


@pytest.mark.parametrize("page", ["docs/models.md"])
def test_every_family_is_named(page: str):
    said = re.sub(r"[^a-z0-9]", "", text_of(page).lower())
    for name in FAMILIES:
        short = re.sub(r"(thinker|moe|[^a-z0-9])", "", name)
        assert short in said, name


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


def test_the_policy_file(tmp_path):
    (example,) = blocks(POLICIES, "yaml")
    path = tmp_path / "policy.yaml"
    path.write_text(example, encoding="utf-8")
    policy = KVPolicy.from_file(path)
    assert policy.skip_layers == (0, -1) and policy.overrides[0].image.key.bits == 4
