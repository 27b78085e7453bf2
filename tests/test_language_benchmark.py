"""``benchmarks.drift`` on texts: forced and free-running, resumed, and the tables that are made of its files."""

from __future__ import annotations

import json

import pytest

from benchmarks import drift as benchmark
from benchmarks import language_tables
from kvmm.analysis.drift.report import validate
from tests.models import checkpoints

WORDS = "the quick brown fox jumps over a lazy dog and then the dog looks back at it "


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return checkpoints.save("llama", tmp_path_factory.mktemp("models") / "llama")


@pytest.fixture
def texts(tmp_path):
    paths = [tmp_path / "fox.txt", tmp_path / "dog.txt"]
    for path, words in zip(paths, (WORDS, WORDS[::-1]), strict=True):
        path.write_text(words * 10)
    return list(map(str, paths))


def call(folder, texts, output, *options):
    given = ["--model", str(folder), "--dtype", "float32", "--text", *texts, "--output", str(output)]
    benchmark.main([*given, "--prefill", "200", *options])
    return json.loads(output.read_text())


def refused(capsys, *arguments):
    with pytest.raises(SystemExit) as exit_:
        call(*arguments)
    (line,) = capsys.readouterr().err.splitlines()
    assert exit_.value.code == 2
    return line


def test_forced_texts_are_resumed(folder, texts, tmp_path, capsys, monkeypatch):
    output, options = tmp_path / "drift.json", ("--continue", "40")
    first = call(folder, texts, output, *options, "--policies", "kivi2")
    assert validate(first) == [] and first["prompts"] == 2 and first["settings"]["text"] == "fox.txt, dog.txt"
    assert first["policies"][0]["logits"]["positions"] == 2 * 39 and first["policies"][0]["kl_error"] > 0

    ran = []
    forced = benchmark.run_forced
    monkeypatch.setattr(benchmark, "run_forced", lambda m, p, left, **o: ran.extend(left) or forced(m, p, left, **o))
    both = call(folder, texts, output, *options, "--policies", "bf16", "kivi2", "--resume")
    assert ran == ["bf16"] and [one["policy"] for one in both["policies"]] == ["bf16", "kivi2"]
    assert both["policies"][1] == first["policies"][0] and both["policies"][0]["logits"]["kl_max"] < 1e-2
    capsys.readouterr()
    line = refused(capsys, folder, texts, output, "--continue", "30", "--policies", "bf16", "--resume")
    assert "has another settings than this run" in line
    output.write_text("{}")
    assert "is no report to go on with" in refused(capsys, folder, texts, output, *options, "--resume")


def test_free_running_is_resumed_and_shown(folder, texts, tmp_path, capsys):
    output, options = tmp_path / "free.json", ("--free-running", "40", "--group", "2")
    first = call(folder, texts, output, *options, "--policies", "kivi2")
    assert [row["name"] for row in first["results"]] == ["dynamic", "kivi2"]
    full, kivi = (row["texts"] for row in first["results"])
    assert list(full) == ["fox", "dog"] and len(full["fox"]["ids"]) == 40 and full["fox"]["kl_max"] < 1e-4
    assert full["fox"]["diverged_at"] is None and kivi["fox"]["kl_mean"] > 1e-4 and kivi["fox"]["packed_bits"] < 4
    assert first["runs"][0]["machine"]["cpu"] and "--free-running 40" in first["runs"][0]["command"]
    both = call(folder, texts, output, *options, "--policies", "kivi2", "bf16", "kivi4", "--resume")
    assert [row["name"] for row in both["results"]] == ["dynamic", "kivi2", "bf16", "kivi4"]
    assert both["results"][:2] == first["results"] and both["results"][2]["texts"]["dog"]["diverged_at"] is None
    out, err = capsys.readouterr()
    assert "not measured: oscar2" in err and out.splitlines()[-1].startswith("kivi4")
    line = refused(capsys, folder, texts, output, "--free-running", "41", "--policies", "bf16", "--resume")
    assert "rows of other settings" in line
    table = language_tables.free_table(output)
    assert table.splitlines()[2].startswith("| full precision |  |  |") and "`oscar2`" in table.splitlines()[-1]


def test_options_that_do_not_go_together(folder, texts, tmp_path, capsys):
    output = tmp_path / "out.json"
    for options, match in (
        (("--free-running", "0"), "1 or more"),
        (("--free-running", "4", "--prefill", "50", "60"), "one --prefill"),
    ):
        assert match in refused(capsys, folder, texts, output, *options)
    assert "same name" in refused(capsys, folder, [*texts, texts[0]], output)
    assert not output.exists()


def test_tables_replace_what_is_between_their_marks():
    begin = language_tables.BEGIN.format("free")
    page = f"a\n{begin}\nold\n{language_tables.END}\nb\n"
    assert language_tables.filled(page, {"free": "| new \\1 |\n"}) == page.replace("old", "| new \\1 |")
    with pytest.raises(ValueError, match="0 places for the table forced"):
        language_tables.filled(page, {"forced": ""})
    assert language_tables.markdown(("a", "b"), [("c", "1")]) == "| a | b |\n| --- | ---: |\n| c | 1 |\n"


def test_the_page_shows_the_committed_results():
    page, found = language_tables.PAGE.read_text(encoding="utf-8"), language_tables.tables()
    assert found and language_tables.filled(page, found) == page, "run python -m benchmarks.language_tables"


def test_what_is_said_of_outlier_tokens():
    report = json.loads(language_tables.FORCED.read_text(encoding="utf-8"))
    kl = {one["policy"]: one["logits"]["kl_mean"] for one in report["policies"]}
    bits = {one["policy"]: one["bits"]["packed_bits"] for one in report["policies"]}
    said = " ".join(language_tables.PAGE.read_text(encoding="utf-8").split())
    assert f"from 1 to 3 bits the KL of `rd` falls {kl['rd1'] / kl['rd3']:.1f} times" in said
    assert f"it falls {kl['rd1-outliers'] / kl['rd3-outliers']:.1f} times" in said
    for rate in ("rd1", "rd2", "rd3"):
        cost = bits[f"{rate}-outliers"] - bits[rate]
        assert f"They cost {f'{cost:.2f}'.lstrip('0')} bits a value" in said
