"""Modality distillation: the loss, paired sequences, and a run that learns from a teacher and resumes, on a CPU."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.training.conftest import SMALL
from training.base import Base
from training.distill import distillation_loss, teacher_logits
from training.loader import index_step
from training.model import OmniModel
from training.model_config import UNTAUGHT

ROOT = Path(__file__).parents[2]


def small_step(seed: int, teacher_len: int = 448) -> dict[str, np.ndarray]:
    from training.office_dataset import SPECS, make_step

    spec = next(spec for spec, _ in SPECS if spec.name == "page")
    return make_step(
        seed, dataclasses.replace(spec, sequences=2, height=168, width=280, seq_len=384, teacher_len=teacher_len)
    )


def test_loss_is_the_weighted_divergence():
    torch.manual_seed(0)
    student, teacher = torch.randn(2, 6, 11).unbind()
    targets, weight = torch.randint(0, 11, (6,)), torch.tensor([1.0, 1, 0, 1, 1, 0])
    p, q = teacher.softmax(-1), student.softmax(-1)
    trust = p.gather(1, targets[:, None])[:, 0] * weight
    expected = ((p * (p / q).log()).sum(-1) * trust).sum() / trust.sum().clamp(min=1)
    torch.testing.assert_close(distillation_loss(student, teacher, targets, weight), expected)
    assert distillation_loss(teacher, teacher, targets, weight).abs() < 1e-6
    assert distillation_loss(student, teacher, targets, torch.zeros(6)) == 0


def test_both_sequences_have_the_same_targets(train_assets):
    targets = 0
    for seed in (3, 4, 5):  # a page may hold next to nothing
        step = index_step(small_step(seed))
        real = step["target_weight"] > 0
        student, teacher = step["ids"].reshape(-1), step["teacher_ids"].reshape(-1)
        assert np.array_equal(student[step["target_index"][real] + 1], teacher[step["teacher_index"][real] + 1])
        assert step["teacher_weight"][~real].sum() == 0
        targets += real.sum()
    assert targets > 150


def test_a_text_that_is_cut_off_teaches_nothing(train_assets):
    steps = [small_step(seed, teacher_len=96) for seed in range(6)]
    cut = [step for step in steps if (step["teacher_weight"] == UNTAUGHT).any()]
    assert cut
    for step in cut:
        out = index_step(step)
        assert out["teacher_weight"].sum() < (out["target_weight"] > 0).sum()


def test_a_step_of_text_asks_about_the_text(train_assets):
    from training.office_dataset import SPECS, make_step
    from training.tokenizer import tokenizer

    spec = next(spec for spec, _ in SPECS if spec.name == "text")
    step = make_step(4, dataclasses.replace(spec, sequences=2))
    assert "pages" not in step and "teacher_ids" not in step
    prefix = tokenizer().decode(step["ids"][0][step["seg"][0] == 0].tolist())
    assert prefix.startswith("user\n") and len(prefix) > 100
    assert (step["weight"][0] > 0).sum() > 20


def test_the_teacher_is_the_frozen_base(base, train_assets):
    start = Base(base)
    model = OmniModel(start.config)
    teacher = start.start(model, True)
    batch = {name: torch.from_numpy(array) for name, array in index_step(small_step(5)).items()}
    logits = teacher_logits(teacher, batch)
    assert logits.shape == (len(batch["target_ids"]), SMALL.vocab_size)
    assert not any(p.requires_grad for p in teacher.parameters())
    assert all(torch.equal(a, b) for a, b in zip(teacher.model.parameters(), model.model.parameters(), strict=True))
    assert teacher_logits(None, batch) is None and start.start(model, False) is None


def test_the_student_learns_from_the_teacher(base, train_assets):
    """With the text tower frozen, what the student sees moves its answers towards the teacher's."""
    from training.augment import render_pages

    start = Base(base)
    torch.manual_seed(1)
    model = OmniModel(start.config)
    teacher = start.start(model, True)
    for p in teacher.parameters():
        p.mul_(1.5)  # a teacher that answers otherwise
    batch = {name: torch.from_numpy(array) for name, array in index_step(small_step(6)).items()}
    pages, keep = render_pages(batch["pages"], batch["shade"], training=False)
    soft, seen = teacher_logits(teacher, batch), []
    optimizer = torch.optim.AdamW([*model.visual.parameters(), *model.aux_head.parameters()], 3e-3)
    for _ in range(25):
        out = model(batch, pages, None, keep, soft)
        seen.append((float(out["distill"].detach()), float(out["aux"].detach())))
        optimizer.zero_grad()
        (out["distill"] * 1000 + out["aux"]).backward()
        optimizer.step()
    assert seen[-1][0] < 0.97 * seen[0][0]
    assert seen[-1][1] < 0.8 * seen[0][1]


def train(*arguments: str) -> str:
    command = [sys.executable, "-m", "training.train", "--dataset", "tests.training.paired_data", "--device", "cpu"]
    command += ["--workers", "1", "--slots", "4", "--total-minutes", "5", "--log-every", "1", "--accumulate", "2"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, *arguments], capture_output=True, text=True, cwd=ROOT, env=environment, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def export_and_load(weights: Path, folder: Path, expected: dict[str, torch.Tensor]) -> None:
    """A packed checkpoint of the run loads with the run's sizes, vocabulary and weights."""
    from kvmm import load_model
    from kvmm.models.packed_weights import code_weights
    from training.evaluate import read_model
    from training.export import export
    from training.smollm2.folder import read_config

    coded = code_weights(expected, 0.02)
    export(expected, weights / "tokenizer.json", folder, read_config(weights), coded)
    assert not (folder / "model.safetensors").exists()
    model, processor = load_model(str(folder), device="cpu", dtype=torch.float32)
    layer = model.get_input_embeddings().weight
    assert layer.shape == (SMALL.vocab_size, SMALL.hidden_size)
    assert (layer - expected["model.embed_tokens.weight"]).abs().max() < 0.02 * layer.abs().max()
    assert model.lm_head.weight.data_ptr() == layer.data_ptr()
    assert model.generation_config.eos_token_id == 2
    patch = dict(model.named_parameters())
    name = next(n for n in patch if n.endswith("visual.blocks.0.attn.q.weight"))
    assert (patch[name] - expected["visual.blocks.0.attn.q.weight"]).abs().max() < 0.02 * patch[name].abs().max()
    ids = torch.tensor([processor.tokenizer.encode("What is the total?")])
    with torch.no_grad():
        logits = model(input_ids=ids).logits
        assert logits.isfinite().all()
        assert torch.equal(read_model(folder, torch.float32).eval()(input_ids=ids).logits, logits)  # without kvmm


def test_a_base_without_weights_asks_for_what_it_needs(base, tmp_path):
    for name in ("model_config.json", "tokenizer.json"):
        shutil.copy(base / name, tmp_path / name)
    command = f"-m training.train --base {tmp_path} --out {tmp_path / 'omni'} --device cpu --workers 1".split()
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, cwd=ROOT, timeout=120)
    assert done.returncode == 1 and "add --init and --teacher" in done.stderr and "Traceback" not in done.stderr


def test_a_run_onto_a_base_resumes_and_is_exported(base, tmp_path):
    from training.checkpoints import load_weights

    out = tmp_path / "omni"
    log = train("--base", str(base), "--out", str(out), "--steps", "2")
    assert " kl " in log
    progress = json.loads((out / "progress.json").read_text())
    assert (progress["step"], progress["runs"]) == (2, 1)
    assert {f.name for f in out.iterdir()} >= {"model_config.json", "tokenizer.json", "weights-00.safetensors"}
    log = train("--base", str(base), "--out", str(out), "--steps", "1")
    assert "run 2, from" in log and "step 3 " in log
    carried = tmp_path / "carried"
    # what was carried is enough: it has sizes, vocabulary, weights, and a text tower to teach
    log = train("--base", str(out), "--out", str(carried), *f"--init {out} --teacher {out}".split(), "--steps", "1",
                *"--freeze-minutes 4 --round-step 0.08 --round-minutes 5".split())  # fmt: skip
    assert " kl " in log
    first, second = load_weights(out), load_weights(carried)
    export_and_load(out, tmp_path / "model", first)
    assert first.keys() == second.keys()
    name = "model.layers.0.mlp.up_proj.weight"  # frozen; 8 bits are read as they were written
    assert (first[name] - second[name]).abs().max() < 0.01 * first[name].abs().max()
    assert not torch.equal(first["visual.merger.mlp.0.weight"], second["visual.merger.mlp.0.weight"])


def test_texts_are_read_whole(train_assets):
    """Else answers would be taught whose place was cut off."""
    from training.office_dataset import SPECS, Pair, text_page
    from training.pages import Rng

    spec = dataclasses.replace(next(spec for spec, _ in SPECS if spec.name == "text"), seq_len=384)
    for seed in range(8):
        pair = Pair(spec)
        pair.read_page(text_page(Rng(seed), spec, held=False), spec, seen=False)
        assert pair.whole


CHARTS = ("plot", "plot_series", "series_chart", "pictogram", "gauge", "progress", "subject_chart", "small_charts")


@pytest.mark.parametrize("kind", CHARTS)
def test_texts_tell_what_charts_show(kind, train_assets):
    """Marks have no words: who reads the page as text gets each value with its label, as the answers write it."""
    from training.office.chart_questions import LISTED
    from training.office.pages import make_office_page
    from training.office_dataset import SPECS, Pair
    from training.tokenizer import tokenizer

    spec = next(spec for spec, _ in SPECS if spec.name == "text")
    asked = 0
    for seed in range(16):
        page = make_office_page(seed, spec.height, spec.width, False, kind)
        pair = Pair(spec)
        pair.read_page(page, spec, seen=False)
        text = tokenizer().decode(pair.student.ids[: pair.student.used].tolist())
        assert page.charts and (not pair.whole or all(line in text for line in page.charts))
        lines = [line.partition("] ")[2] for line in page.charts]
        entries = {entry for line in lines for entry in line.split("; ")}
        for fact in page.facts:
            if LISTED[0] in fact.asks or any(ask.startswith("List the values of ") for ask in fact.asks):
                assert fact.value in lines, (fact, page.charts)
                asked += 1
            for label in (ask.removesuffix(": how much?") for ask in fact.asks if ask.endswith(": how much?")):
                named = f"{label.split(', ')[-1]}: {fact.value}", f"{label.split(', ')[0]}: {fact.value}"
                assert entries.intersection(named) or f"{label}: {fact.value}" in entries, (fact, page.charts)
                asked += 1
            if fact.asks[0].startswith(
                ("Which line is ", "Which series has the darkest", "Which series has the light")
            ):
                word = fact.asks[0].split()[3 if fact.asks[0].startswith("Which line") else 4].rstrip("?")
                assert any(f", {fact.value}, {word}" in line for line in page.charts), (fact, page.charts)
                asked += 1
            for ask in fact.asks:
                if named := re.fullmatch(r'In the chart "(.+)": how much is (.+)\?', ask):
                    told = next(line for line in page.charts if f", {named[1]}]" in line)
                    assert f"{named[2]}: {fact.value}" in told.partition("] ")[2].split("; "), (fact, page.charts)
                    asked += 1
        if kind == "gauge":
            assert lines[0] in {fact.value for fact in page.facts}, (page.facts, lines)
            asked += 1
    assert asked > 8


def test_a_text_without_charts_tells_of_none(train_assets):
    from training.office.pages import make_office_page

    assert not make_office_page(1, 756, 532, False, "letter").charts


def test_charts_of_one_page_are_not_asked_alike():
    """ "What is the highest value?" has an answer for each of two charts."""
    from training.office.document import Document
    from training.office.lookups import add_lookups
    from training.pages import Rng

    for seed in range(12):
        document = Document(Rng(seed), (756, 532))
        for low in (10, 60):
            values = [low + 7 * i for i in range(4)]
            document.chart("bar", ["Ann", "Bo", "Cy", "Di"], values, printed=[str(x) for x in values], ticks=None)
        add_lookups(document)
        questions = [ask.questions[0] for ask in document.asks if ask.answer is not None]
        assert len(questions) == len(set(questions)) and "What is the highest value?" not in questions
