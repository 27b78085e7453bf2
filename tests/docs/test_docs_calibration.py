"""The figures of docs/calibration.md are those of ``benchmarks/results`` and of the file that is shipped."""

from __future__ import annotations

import math
import re

from kvmm.calibration.file import FILE_NAME, read_calibration
from kvmm.codecs.rd.fit import pooled_bits
from kvmm.modality import IMAGE
from tests.docs.pages import ROOT, results, rows, text_of


def test_vectors_and_trellises():
    """Rows of the table are in the order of the file, by bits."""
    measured = results("vector_codes")
    section = text_of("docs/calibration.md").partition("## Vectors and trellises")[2].partition("\n## ")[0]
    shown = re.findall(r"^\| (\w+) \| (\d) \| ([\d.]+) \| ([\d.]+) \|$", section, re.MULTILINE)
    assert {f"{kind} {bits}" for kind, bits, _, _ in shown} == set(measured) and len(shown) == len(measured)
    for kind, bits, cost, kl in shown:
        row = measured[f"{kind} {bits}"]
        assert (cost, kl) == (f"{row['cost']:.3f}", f"{row['kl']:.4f}")


def test_what_is_said_of_gradients():
    table = rows(text_of("docs/calibration.md"), "| | without gradients |")
    assert len(table) == 5
    for name, cells in table.items():
        slots = "in vLLM" in name
        files = ("vllm_slots_no_gradients", "vllm_slots") if slots else ("language_no_gradients", "language_sinks")
        for cell, file in zip(cells, files, strict=True):
            if slots:
                kl = results(file)[name.split("`")[1]]["kl"]
            else:
                found = {row["policy"]: row["logits"]["kl_mean"] for row in results(file)["policies"]}
                kl = found[name.strip("`")]
            assert cell == f"{kl:.4f}".removeprefix("0")


def test_what_a_calibration_takes_is_better_on_other_texts_too():
    table, found, best = rows(text_of("docs/calibration.md"), "| documents |"), results("importance"), {}
    assert len(table) == 2 * len(found) == 6
    for name, row in found.items():
        for importance, said in (("gradient", "gradients"), ("query", "queries and weights")):
            kl = [f"{kl:.4f}".removeprefix("0") for kl in row["kl"][importance].values()]
            assert table[f"{name}, {said}"] == [str(row["prompts"]), *kl] and len(kl) == 3
        scores = {importance: math.prod(kl.values()) for importance, kl in row["kl"].items()}
        best[name] = min(scores, key=scores.get)
    assert best == {
        "SmolLM2-135M-Instruct, held out": "query",
        "SmolLM2-135M-Instruct, others": "query",
        "embedded, held out": "gradient",
    }


def test_how_many_layers_hold_most_bits_of_an_image():
    """From the file that is shipped: what each layer has of the budget of ``rd2``."""
    calibration = read_calibration(ROOT / "assets" / "tiny-omni" / FILE_NAME)
    bits: dict[int, int] = {}
    for (layer, _), channels in pooled_bits(calibration, "rd", IMAGE, 2.0, None).items():
        bits[layer] = bits.get(layer, 0) + int(channels.sum())
    share = sum(sorted(bits.values())[-3:]) / sum(bits.values())
    said = " ".join(text_of("docs/calibration.md").split())
    assert (
        len(bits) == 8 and f"at 2 bits three of eight layers hold {100 * share:.0f} % of the bits of an image" in said
    )


def test_what_is_said_of_relatives():
    ratio = results("at_rest")["rd1"]["coded_ratio"]
    said = " ".join(text_of("docs/calibration.md").partition("## Relatives")[2].split())
    assert f"a file of four pages at `rd1` is {ratio:.1f} times smaller" in said


def test_what_is_said_of_sinks_in_a_calibration():
    said = " ".join(text_of("docs/calibration.md").split())
    with_them, without = (
        {row["policy"]: f"{row['logits']['kl_mean']:.4f}".removeprefix("0") for row in results(name)["policies"]}
        for name in ("language_unrefined", "language_sinks")
    )
    assert f"the KL of `rd1` is {without['rd1']} with and {with_them['rd1']} without this" in said
    for name in ("rd2", "rd3"):
        assert f"of `{name}` {without[name]} and {with_them[name]}" in said
