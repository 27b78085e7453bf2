"""From nothing to a checkpoint that transformers loads, on a CPU: train, resume, carry over, export."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer, Qwen2_5OmniThinkerForConditionalGeneration

from tests.training.fake_data import SPECS, make_step
from training.augment import render_mel, render_pages
from training.base import Base
from training.checkpoints import MAX_FILE_BYTES, has_new_heads, load_weights
from training.export import export
from training.head_gradients import compare, smallest
from training.loader import index_step
from training.model import OmniModel
from training.optim import Optimizer, orthogonalise
from training.train import Progress, Trainer

ROOT = Path(__file__).parents[2]
TOKENIZER = ROOT / "training" / "tokenizer.json"


def train(*arguments: str) -> str:
    command = [sys.executable, "-m", "training.train", "--dataset", "tests.training.fake_data", "--device", "cpu"]
    command += ["--workers", "2", "--slots", "4", "--total-minutes", "5", "--log-every", "1", "--accumulate", "2"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [*command, *arguments], capture_output=True, text=True, cwd=ROOT, env=environment, timeout=200
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("run") / "omni"
    train("--out", str(folder), "--steps", "2")
    return folder


def test_late_measurements_are_of_the_weights_that_will_be_stored(trained, tmp_path):
    losses = []
    for name, options in (("exact", ()), ("coarse", ("--round-step", "0.9", "--round-minutes", "5"))):
        folder = tmp_path / name
        train("--init", str(trained), "--out", str(folder), "--steps", "0", *options)
        losses.append(json.loads((folder / "progress.json").read_text())["history"][-1]["page"]["answer"])
    assert losses[0] != losses[1]


def test_run_writes_small_files_and_measurements(trained):
    files = sorted(trained.iterdir())
    assert 1 < len(files) <= 6
    assert all(f.stat().st_size <= 15 * 2**20 for f in files)
    assert MAX_FILE_BYTES < 15 * 2**20
    progress = json.loads((trained / "progress.json").read_text())
    assert (progress["step"], progress["runs"]) == (2, 1)
    assert set(progress["history"][-1]) > {"page", "pages", "audio", "spoken"}
    assert 0 <= progress["history"][-1]["page"]["exact"] <= 1
    start, end = OmniModel().state_dict(), load_weights(trained)
    assert start.keys() == end.keys()
    assert all(t.isfinite().all() for t in end.values())


def test_next_run_continues_with_optimiser_state_and_from_carried_weights(trained, tmp_path):
    log = train("--out", str(trained), "--steps", "1")
    progress = json.loads((trained / "progress.json").read_text())
    assert "run 2, from" in log
    assert "step 3 " in log
    assert (progress["step"], progress["runs"], len(progress["history"])) == (3, 2, 2)
    log = train("--out", str(tmp_path / "carried"), "--init", str(trained), "--steps", "1")
    carried = json.loads((tmp_path / "carried" / "progress.json").read_text())
    assert (carried["step"], carried["runs"]) == (4, 3)
    assert f"lr {2.2e-3 / 30:.2e}" in log  # without optimiser state the learning rate warms up again


def test_a_profile_names_what_takes_longest(tmp_path):
    log = train("--out", str(tmp_path / "omni"), "--steps", "2", "--profile", "1", "5")  # ends before that
    assert "aten::mm" in log or "aten::addmm" in log
    assert "Self CPU time total" in log


def test_export_loads_with_from_pretrained(trained, tmp_path):
    export(load_weights(trained), TOKENIZER, tmp_path / "omni")
    model, report = Qwen2_5OmniThinkerForConditionalGeneration.from_pretrained(
        tmp_path / "omni", output_loading_info=True, dtype=torch.float32
    )
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    again, weights = load_weights(tmp_path / "omni"), load_weights(trained)  # training can start from a checkpoint too
    assert all(torch.equal(t, weights[name]) for name, t in again.items())
    assert {name.split(".")[0] for name in weights.keys() - again.keys()} == {"aux_head", "ctc_head"}
    assert model.lm_head.weight.data_ptr() == model.get_input_embeddings().weight.data_ptr()
    assert (model.generation_config.eos_token_id, model.generation_config.pad_token_id) == (2, 0)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "omni")
    content = [{"type": "image"}, {"type": "text", "text": "What is the total?"}, {"type": "audio"}]
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": content}], tokenize=False, add_generation_prompt=True
    )
    assert prompt == (
        "<|im_start|>user\n<|vision_bos|><|IMAGE|><|vision_eos|>What is the total?<|audio_bos|><|AUDIO|><|audio_eos|>"
        "<|im_end|>\n<|im_start|>assistant\n"
    )
    ids = tokenizer(prompt)["input_ids"]
    assert [i for i in ids if i < 11] == [1, 6, 9, 7, 4, 3, 5, 2, 1]
    assert tokenizer.decode(ids) == prompt


def test_exported_files_load_without_torchvision_and_answer(trained, tmp_path):
    from PIL import Image

    from kvmm import load_model

    export(load_weights(trained), TOKENIZER, tmp_path / "omni")
    model, processor = load_model(str(tmp_path / "omni"), device="cpu", dtype=torch.float32)
    page = Image.fromarray(np.full((700, 500, 3), 255, np.uint8))
    content = [{"type": "image"}, {"type": "audio"}]
    text = processor.apply_chat_template(
        [{"role": "user", "content": content}], tokenize=False, add_generation_prompt=True
    )
    inputs = processor(text=[text], images=[page], audio=[np.zeros(16000, np.float32)], return_tensors="pt")
    grid = inputs["image_grid_thw"][0]
    assert 256 <= int(grid.prod()) // 4 <= 640
    assert inputs["input_features"].shape[1] == 128
    with torch.no_grad():
        assert model(**inputs).logits.isfinite().all()


def test_heads_from_nothing_are_told_from_those_that_come_along(trained, tmp_path):
    """An exported checkpoint has none; from it, towers learn from answers alone at first."""
    export(load_weights(trained), TOKENIZER, tmp_path / "omni")
    assert not has_new_heads(load_weights(trained)) and not has_new_heads(())
    assert has_new_heads(load_weights(tmp_path / "omni"))
    options = ("--out", str(tmp_path / "out"), "--steps", "1", "--head-updates", "7")
    note = "auxiliary heads teach from update 7"
    assert note in train("--init", str(tmp_path / "omni"), *options, "--fresh")
    assert note in train(*options)  # it goes on from its state, whose heads are still learning


def test_heads_teach_from_an_update_on():
    trainer = Trainer.__new__(Trainer)
    trainer.device = torch.device("cpu")
    for heads_from, expected in ((0, [None] * 3), (5, [0.0, 1.0, 1.0])):
        found = []
        for step in (4, 5, 6):
            trainer.progress = Progress(step=step, heads_from=heads_from)
            assert "heads_teach" not in trainer.rendered({}, training=False)
            found.append(trainer.rendered({}, training=True).get("heads_teach"))
        assert found == expected


def test_gradients_of_heads_are_compared_with_those_of_answers(base, train_assets):
    used = Base(base)
    model = OmniModel(used.config)
    used.start(model, teach=False)
    spec = replace(smallest("page"), sequences=1, height=112, width=280, seq_len=384, teacher_len=0)
    torch.manual_seed(0)
    once, twice = (compare(model, spec, 1, weight) for weight in (1.0, 2.0))
    assert twice["times"] == pytest.approx(2 * once["times"], abs=0.02) and once["times"] > 0
    assert -1 <= once["cosine"] == twice["cosine"] <= 1 and once["sequences"] == 1


def test_missing_fonts_and_words_are_one_line_before_any_process_starts(tmp_path):
    command = [sys.executable, "-m", "training.train", "--dataset", "training.office_dataset", "--out", str(tmp_path)]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "KVMM_TRAIN_ASSETS": str(tmp_path / "assets")}
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment, timeout=100)
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.strip() == (
        f"{tmp_path}/assets/words.txt is missing; run: python -m training.assets --out {tmp_path}/assets"
    )


def test_datasets_name_what_is_missing(tmp_path, monkeypatch, train_assets):
    from training import dataset, office_dataset
    from training.pages.canvas import font_files

    office_dataset.prepare()
    monkeypatch.setattr(office_dataset, "memos", tuple)
    with pytest.raises(FileNotFoundError, match=r"no texts in .*utterances"):
        office_dataset.prepare()
    font_files.cache_clear()
    (tmp_path / "words.txt").write_text("apple river")
    monkeypatch.setenv("KVMM_TRAIN_ASSETS", str(tmp_path))
    with pytest.raises(FileNotFoundError, match=f"no fonts in {tmp_path}/fonts/train; run: python -m training.assets"):
        dataset.prepare()
    font_files.cache_clear()


def test_index_step_targets_and_padding():
    spec = SPECS[0][0]
    step = make_step(3, spec)
    out = index_step(step, branches=True)
    assert out["ids"].shape == (2, 128)
    assert (out["seg"][:, spec.seq_len :] == 255).all()
    real = out["target_weight"] > 0
    assert real.sum() == (step["weight"] > 0).sum()
    flat = out["ids"].reshape(-1)
    assert np.array_equal(flat[out["target_index"][real] + 1], out["target_ids"][real])
    assert set(out["target_branch"][out["target_weight"] == 2]) == {0, 1}  # one answer branch a row
    assert (out["target_branch"][out["target_weight"] != 2] == -1).all()


def test_index_step_refuses_missing_media():
    step = make_step(3, SPECS[0][0])
    step["pages"] = step["pages"][:1]
    with pytest.raises(ValueError, match="placeholders"):
        index_step(step)


def test_first_token_of_a_branch_is_no_target():
    step = make_step(3, SPECS[2][0])
    first = int(np.argmax(step["seg"][0] == 1))
    step["weight"][:, first] = 2
    out = index_step(step)
    assert first - 1 not in out["target_index"][out["target_weight"] > 0] % out["ids"].shape[1]


def test_clean_pages_are_what_the_image_processor_makes():
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    from tests.training.test_model import patches

    rng = np.random.default_rng(0)
    ink = torch.from_numpy(rng.integers(0, 256, (1, 84, 56), dtype=np.uint8))
    shade = torch.tensor([[250, 240, 230, 10, 20, 60]], dtype=torch.uint8)
    rendered, in_place = render_pages(ink, shade, training=False)
    colours = shade.view(2, 3).float()
    image = (colours[0] + (colours[1] - colours[0]) * ink[0, ..., None] / 255).round().byte().numpy()
    processor = Qwen2VLImageProcessorPil(size={"shortest_edge": 784, "longest_edge": 100 * 784})
    expected = processor(images=[image], return_tensors="pt", input_data_format="channels_last")["pixel_values"]
    assert in_place.all()
    # half a level either way where the coverage falls between two 8-bit colours
    torch.testing.assert_close(patches(rendered), expected, atol=1.01 / 255 / 0.26, rtol=0)


def test_augmentation_spares_some_pages_and_reports_warps():
    torch.manual_seed(0)
    random.seed(0)  # some strengths are one number for all pages
    ink = torch.zeros(160, 112, 84, dtype=torch.uint8)
    ink[:, 40:60, 30:50] = 255
    shade = torch.tensor([[250, 250, 250, 5, 5, 5]], dtype=torch.uint8).expand(160, 6)
    clean, _ = render_pages(ink, shade, training=False)
    spoiled, in_place = render_pages(ink, shade, training=True)
    same = (spoiled == clean).flatten(1).all(1)
    assert 0.25 < same.float().mean() < 0.45
    assert in_place[same].all()
    assert 0 < (~in_place).sum() < 60
    assert spoiled.isfinite().all()
    # paper beside the print: the corner may lie beyond a photographed page
    text, paper = spoiled[:, :, 48:52, 38:42].mean((1, 2, 3)), spoiled[:, :, 68:78, 36:46].mean((1, 2, 3))
    assert (text < paper - 0.5).all()  # still readable
    mel = torch.randn(20, 40, 128, dtype=torch.float16)
    assert torch.equal(render_mel(mel, training=False), mel.float())
    assert 5 <= (render_mel(mel, training=True) != mel.float()).flatten(1).any(1).sum() <= 15


def test_muon_orthogonalises_and_state_round_trips():
    torch.manual_seed(0)
    values = torch.linalg.svdvals(orthogonalise(torch.randn(3, 24, 16)))
    assert ((values > 0.6) & (values < 1.3)).all()
    layer = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.LayerNorm(8))
    target, x = torch.randn(64, 8), torch.randn(64, 8)
    optimizer, losses = Optimizer(layer, 0.05), []
    for _ in range(30):
        loss = (layer(x) - target).pow(2).mean()
        losses.append(loss.item())
        loss.backward()
        optimizer.step(0.05)
    assert losses[-1] < 0.9 * losses[0]
    other = Optimizer(torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.LayerNorm(8)), 0.05)
    for name, tensor in other.tensors().items():
        tensor.copy_(optimizer.tensors()[name])
    assert all(torch.equal(t, optimizer.tensors()[n]) for n, t in other.tensors().items())
    assert any(t.abs().sum() > 0 for n, t in other.tensors().items() if n.startswith("momentum"))


def test_matrices_of_a_named_tower_can_be_left_to_adamw():
    torch.manual_seed(0)
    model = torch.nn.ModuleDict({"model": torch.nn.Linear(8, 8), "visual": torch.nn.Linear(8, 8)})
    optimizer = Optimizer(model, 0.05, adamw=("model.",))
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    (model["visual"](model["model"](torch.randn(4, 8))) ** 2).mean().backward()
    optimizer.step(0.05, {"model.": 0.1})
    change = {name: (p - before[name]).abs() for name, p in model.named_parameters()}
    # AdamW's first update is its rate in every element; Muon's is orthogonal and differs from one to the next.
    torch.testing.assert_close(change["model.weight"], torch.full((8, 8), 0.005), atol=2e-4, rtol=0)
    assert change["visual.weight"].std() > 1e-3
    assert set(optimizer.tensors()) >= {"momentum.visual.weight", "exp_avg.model.weight"}
