"""The contact sheet: every asked kind is shown and measured, and an unknown one is refused."""

from __future__ import annotations

import json

import numpy as np
import pytest
from PIL import Image

pytestmark = pytest.mark.usefixtures("train_assets")


def run(monkeypatch, *arguments: str) -> None:
    from training.office import sheet

    monkeypatch.setattr("sys.argv", ["sheet", *arguments])
    sheet.main()


def test_sheets_show_and_measure_the_kinds(monkeypatch, tmp_path, capsys, train_assets):
    run(
        monkeypatch,
        "--out",
        str(tmp_path),
        "--kinds",
        "poster",
        "menu",
        "--pages",
        "3",
        "--samples",
        "2",
        "--photographed",
    )
    report = json.loads((tmp_path / "sheet.json").read_text())
    assert set(report["kinds"]) == {"poster", "menu"}
    assert all(figures["ms_per_page"] > 0 and figures["questions"] > 1 for figures in report["kinds"].values())
    low, high = sorted(figures["ms_per_page"] for figures in report["kinds"].values())
    assert low - 0.1 <= report["weighted_ms_per_page"] <= high + 0.1
    picture = np.asarray(Image.open(tmp_path / "sheet_00.png"))
    assert picture.shape[0] > 750 and picture.std() > 10
    assert (tmp_path / "questions.txt").read_text().count("== ") == 4
    assert "pages a second of one worker" in capsys.readouterr().out


def test_an_unknown_kind_is_named(monkeypatch, tmp_path, capsys):
    with pytest.raises(SystemExit):
        run(monkeypatch, "--out", str(tmp_path), "--kinds", "papyrus")
    assert "no such kind: papyrus; known are" in capsys.readouterr().err
