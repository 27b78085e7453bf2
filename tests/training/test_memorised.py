"""Documents that training had beside those that it had not."""

from __future__ import annotations

import json
import sys

import pytest

from training import memorised


def test_both_sorts_are_answered(base, train_assets, tmp_path, monkeypatch):
    path = tmp_path / "memorised.json"
    monkeypatch.setattr(sys, "argv", ["memorised", "--model", str(base), "--sequences", "2", "--out", str(path)])
    monkeypatch.setattr(memorised, "cpu_multiplies_bfloat16", lambda: False)
    memorised.main()
    report = json.loads(path.read_text())
    met, held = (report["documents"][name] for name in ("met", "held"))
    assert report["dtype"] == "float32"
    assert met["branches"] > 3 < held["branches"] and met["loss"] != held["loss"]
    for one in (met, held):
        assert one["loss"] > 1 and 0 <= one["exact"] <= one["accuracy"] < 0.5  # weights that have learnt nothing


def test_a_folder_without_weights_is_named(base, tmp_path, monkeypatch, capsys):
    for name in ("model_config.json", "tokenizer.json"):
        (tmp_path / name).write_bytes((base / name).read_bytes())
    monkeypatch.setattr(sys, "argv", ["memorised", "--model", str(tmp_path), "--out", str(tmp_path / "x.json")])
    with pytest.raises(SystemExit):
        memorised.main()
    assert "no model.packed.safetensors" in capsys.readouterr().err
