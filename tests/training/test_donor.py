"""The towers of one model in front of another text tower."""

from __future__ import annotations

import dataclasses
import shutil

import torch

from kvmm.models.packed_weights import code_weights
from training.base import Base
from training.export import export
from training.model import OmniModel
from training.model_config import ModelConfig
from training.smollm2.donor import PROJECTIONS, SCALE, donor_sizes, donor_towers, lift, read_towers, write_towers
from training.smollm2.folder import write_base
from training.tokenizer import PATH, use_tokenizer

SIZES = dict(vision_size=64, vision_layers=1, vision_intermediate_size=128, audio_size=64, audio_layers=1,
             audio_intermediate_size=128)  # fmt: skip
DONOR = ModelConfig(vocab_size=2048, hidden_size=64, num_layers=1, num_heads=1, num_kv_heads=1, intermediate_size=64,
                    **SIZES)  # fmt: skip


def test_a_donor_sees_and_hears_the_same_in_a_wider_model(tmp_path):
    torch.manual_seed(0)
    donor = OmniModel(DONOR).eval()
    export(donor.state_dict(), PATH, tmp_path / "donor", DONOR)
    assert donor_sizes(tmp_path / "donor") == SIZES
    towers = donor_towers(tmp_path / "donor", 128)
    wide = dataclasses.replace(DONOR, hidden_size=128, num_heads=2, **donor_sizes(tmp_path / "donor"))
    text = {n: t for n, t in OmniModel(wide).export_weights().items() if n.startswith("model.")}
    write_base(tmp_path / "base", wide, text, 8, 32)
    write_towers(tmp_path / "base", towers)
    shutil.copy(PATH, tmp_path / "base" / "tokenizer.json")
    model = OmniModel(wide).eval()
    try:
        teacher = Base(tmp_path / "base").start(model, True)
    finally:
        use_tokenizer(PATH)
    pages, mel = torch.randn(1, 3, 84, 56), torch.randn(1, 40, 128)
    with torch.no_grad():
        for ours, theirs in (
            (model.visual(pages), donor.visual(pages)),
            (model.audio_tower(mel)[0], donor.audio_tower(mel)[0]),
        ):
            torch.testing.assert_close(ours, SCALE * theirs @ lift(64, 128).T, atol=0.02, rtol=0.02)  # stored in bf16
    assert torch.equal(teacher.model.embed_tokens.weight, model.model.embed_tokens.weight)


def test_a_donor_of_the_same_width_keeps_its_projections_packed_or_not(tmp_path):
    torch.manual_seed(0)
    donor = OmniModel(DONOR)
    export(donor.state_dict(), PATH, tmp_path / "plain", DONOR)
    export(donor.state_dict(), PATH, tmp_path / "packed", DONOR, code_weights(donor.state_dict(), 0.02))
    for folder, tolerance in (("plain", 0.01), ("packed", 0.03)):
        towers = donor_towers(tmp_path / folder, DONOR.hidden_size)
        assert set(PROJECTIONS) <= {name.rpartition(".")[0] + "." for name in towers}
        for name, tensor in towers.items():
            expected = donor.state_dict()[name]
            assert (tensor - expected).abs().max() <= tolerance * expected.abs().max(), name


def test_a_lift_keeps_lengths_and_a_base_without_a_donor_has_no_towers(tmp_path):
    torch.testing.assert_close(lift(6, 9).T @ lift(6, 9), torch.eye(6), atol=1e-6, rtol=0)
    assert read_towers(tmp_path) == {}
    assert all(name.startswith(("visual.", "audio_tower.")) for name in PROJECTIONS)
