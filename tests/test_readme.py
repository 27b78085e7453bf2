"""What the README promises: its commands, its Python, its tables; ``tests/docs`` has its links, limits and models."""

from __future__ import annotations

import re
import stat
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import torch

import kvmm
from benchmarks.answer_tables import SHORT, committed_run, digest, drawn_of, marked, table
from kvmm.codecs import EncodeContext, build_codec, registry
from kvmm.policy import spec
from kvmm.policy.presets import PRESETS, policy_groups
from tests.docs.pages import blocks as docs_blocks
from tests.docs.pages import results, rows, text_of

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return docs_blocks(README, language)


def test_the_python_block_runs_and_answers():
    (code,) = blocks("python")
    assert [code] == docs_blocks(text_of("docs/python.md"), "python")
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    answer, _, modality = result.stdout.strip().rpartition(" {")
    assert re.search(r"\d", answer), "the total of an invoice is an amount"
    assert "bits_per_value" in modality


def test_the_two_commands():
    commands = [line for block in blocks("sh") for line in block.splitlines() if line.startswith("python3 -m venv")]
    assert commands == [
        "python3 -m venv .venv && .venv/bin/pip install -r requirements.txt && .venv/bin/python app.py",
        "python3 -m venv .venv && .venv/bin/pip install -r requirements-dev.txt && .venv/bin/pytest",
    ]
    script = ROOT / ".ci" / "run"
    assert script.stat().st_mode & stat.S_IXUSR
    pattern = re.search(r"grep -m1 '([^']*)' README.md", script.read_text())[1]
    assert [line for line in README.splitlines() if re.search(pattern, line)] == commands[1:]


def test_it_is_short():
    assert len(README.encode()) < 10_000, "details belong to a page of docs/"


def test_answers_are_rows_of_the_whole_table():
    assert marked(README) == table(committed_run(), SHORT)
    whole = marked(text_of("docs/results.md")).splitlines()
    assert [line for line in marked(README).splitlines() if line not in whole] == []
    assert len(SHORT) == 5 and len(committed_run().tasks) == 4
    assert drawn_of() == digest(), "run python -m benchmarks.answer_tables"


def test_speed_is_of_the_tables_of_the_gpu():
    found = list(rows(README, "| What is measured |").values())
    generate = results("generate")["1x32k balanced"]
    attention = results("decode_attention")["32x8k rd2"]
    step = results("decode_step")["1x128k rd2 compile"]
    assert found == [
        [
            f"{generate['dynamic']['tokens_per_second']:.0f}, `DynamicCache`",
            f"{generate['kvmm']['tokens_per_second']:.0f} ({generate['ratio']:.1f}x), `balanced`, uncalibrated",
        ],
        [
            f"{attention['baseline_us']:.0f}, the fastest SDPA kernel in bf16",
            f"{attention['us']:.0f} ({attention['ratio']:.1f}x), `rd2`",
        ],
        [
            f"{step['baseline_ms']:.1f}, transformers' fastest cache",
            f'{step["ms"]:.1f}, `rd2` with `graph="compile"`',
        ],
    ]


def test_how_much_smaller_saved_caches_are():
    ratio = results("at_rest")["rd2"]["coded_ratio"]
    assert f"four pages at `rd2` take {ratio:.1f} times less than in bf16" in README


def test_figures_of_the_language_model():
    found = {one["policy"]: one for one in results("language_drift")["policies"]}
    header, _, cells = README.partition("| `oscar4-2` |")[2].splitlines()[:3]
    names = re.findall(r"`([a-z0-9.-]+)`", "`oscar4-2` |" + header)
    kl = [f"{found[name]['logits']['kl_mean']:.4f} ({found[name]['bits']['bits']:.2f} bits)" for name in names]
    assert [cell.strip() for cell in cells.strip("|").split("|")] == kl and len(kl) == 6
    assert results("language_drift")["settings"]["prefill"] == [1536] and results("language_drift")["prompts"] == 2


def test_the_policies_to_use_are_what_they_are_said_to_be():
    table = rows(README, "| You want |")
    named = {name for cells in table.values() for name in re.findall(r"`([a-z0-9.-]+)`", cells[0])}
    assert {"balanced", "small", "oscar4-2", "kivi2", "spherical-high", "bf16"} == named <= set(kvmm.policies())

    def stored(name: str) -> tuple[str, float, float]:
        both = kvmm.get_policy(name).image
        assert both.key.codec == both.value.codec
        return both.key.codec, both.key.bits, both.value.bits

    assert stored("balanced") == ("rd", 2, 2) and kvmm.get_policy("balanced").uncalibrated == "oscar4-2"
    assert stored("small") == ("rd", 1, 1) and kvmm.get_policy("small").uncalibrated == "oscar2"
    assert stored("oscar4-2") == ("oscar", 4, 2) and stored("oscar2")[1:] == stored("kivi2")[1:] == (2, 2)
    methods = {group.source for group in policy_groups() if group.source}
    assert f"{len(kvmm.policies())} presets cover {['nine', 'ten'][len(methods) - 9]} published methods" in README


def test_the_codec_is_that_of_its_page(monkeypatch):
    monkeypatch.setattr(registry, "_CODECS", dict(registry._CODECS))
    monkeypatch.setitem(PRESETS, "clipped2", None)  # so that there is none afterwards
    del PRESETS["clipped2"]
    x = torch.randn(1, 2, 300, 64, generator=torch.Generator().manual_seed(0))
    encoded = []
    for text in (blocks("py")[0], docs_blocks(text_of("docs/adding-a-codec.md"), "python")[0]):
        exec(compile(text, "README.md", "exec"), {"__name__": "elsewhere"})
        both = [build_codec(spec("clipped", 2, 32), side).encode(x, EncodeContext(128)) for side in ("key", "value")]
        encoded.append([tensor for packed in both for tensor in packed.tensors.values()])
    assert all(torch.equal(one, other) for one, other in zip(*encoded, strict=True))
    clipped = build_codec(spec("clipped", 2, 32), "key").encode(x, EncodeContext(128))["scale"][:, :, :8].float()
    kivi = build_codec(spec("kivi", 2, 32), "key").encode(x, EncodeContext(128))["scale"][:, :, :8].float()
    torch.testing.assert_close(clipped, 0.9 * kivi, rtol=2e-3, atol=0)  # groups behind the 8th are padding


def test_requirements_are_exact_and_without_torchvision():
    lines = [
        line for name in ("requirements.txt", "requirements-dev.txt") for line in (ROOT / name).read_text().splitlines()
    ]
    pins = [line.partition(";")[0].strip() for line in lines if line and not line.startswith(("#", "-r"))]
    assert all(re.fullmatch(r"[A-Za-z0-9_-]+==[0-9.]+", pin) for pin in pins)
    names = {pin.partition("==")[0].lower() for pin in pins}
    assert "torchvision" not in names and {"torch", "triton", "transformers", "gradio", "plotly"} <= names


def test_versions_of_this_environment_are_in_the_supported_range():
    major, minor = map(int, version("transformers").split(".")[:2])
    assert (major, minor) >= (5, 17)
