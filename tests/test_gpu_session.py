"""What is measured on a GPU in one go: its commands are right, and its results come back and find their files."""

from __future__ import annotations

import argparse
import importlib
import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from benchmarks import gpu_session, serve
from benchmarks.gpu_session import STEPS, Step
from kvmm import policies


class Parsed(Exception):
    """The arguments were accepted."""


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.name)
def test_benchmarks_take_their_arguments(step: Step, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parse = argparse.ArgumentParser.parse_args

    def parsed(self: argparse.ArgumentParser, *given: Any) -> None:
        raise Parsed(parse(self, *given))

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parsed)
    options = argparse.Namespace(work=tmp_path, smoke=False)
    module, *arguments = gpu_session.command_of(step, options)[2:]
    assert module == f"benchmarks.{shlex.split(step.command)[0]}"
    with pytest.raises(Parsed) as accepted:
        importlib.import_module(module).main(arguments)
    assert accepted.value.args[0].output == tmp_path / "results" / f"{step.name}.json"


def test_a_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    """Steps run while there is time, and what they found is in one file."""
    attention = "decode_attention --shapes 1x128k --baselines math --policies"
    steps = (
        Step("decode_attention_presets", f"{attention} rd2", 10, programs=True),
        Step("decode_attention_32x8k", f"{attention} kivi2", 100_000),
    )
    monkeypatch.setattr(gpu_session, "STEPS", steps)
    gpu_session.main(["--smoke", "--out", str(tmp_path), "--work", str(tmp_path / "work"), "--seconds", "200"])
    said = capsys.readouterr().out
    assert "decode_attention_presets: 1x128k rd2 us=" in said and "decode_attention_32x8k: left out" in said
    assert (tmp_path / "work" / "programs").is_dir()
    found = json.loads((tmp_path / "session.json").read_text())
    assert list(found) == ["decode_attention_presets.json"]
    gpu_session.main(["--unpack", str(tmp_path / "session.json"), "--into", str(tmp_path / "into")])
    assert json.loads((tmp_path / "into" / "decode_attention_presets.json").read_text()) == found.popitem()[1]


def test_answers_are_measured_with_graphs_and_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build, answers, services, captured = serve.build_service, serve._answers, [], []

    def built(*given: Any) -> Any:
        services.append(build(*given))
        assert not services[0].engine.captures
        return services[0]

    def measured(*given: Any) -> dict[str, Any]:
        captured.append(services[0].engine.captures)
        return answers(*given)

    monkeypatch.setattr(serve, "build_service", built)
    monkeypatch.setattr(serve, "_answers", measured)
    (step,) = (step for step in STEPS if step.name == "serve_gpu")
    serve.main([*shlex.split(step.command)[1:], "--dtype", "float32", "--smoke", "--output", str(tmp_path / "rows")])
    names = [row["name"] for row in json.loads((tmp_path / "rows").read_text())["results"]]
    assert names == [f"{name} {n}" for name in ("answers", "answers_plain", "steps", "graphs") for n in (1, 2)]
    assert captured == [True, True, False, False]


def report(gpu: str, *names: str, command: str = "one") -> dict[str, Any]:
    run = {"command": command, "machine": {"gpu": gpu}}
    return {"runs": [run], "results": [{"name": name, "us": 1.0, "run": 0} for name in names]}


def test_rows_find_their_files(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """Rows of one GPU replace those of the same name; those of another one have a file of their own."""
    target, session = tmp_path / "decode_attention_presets.json", tmp_path / "session.json"
    target.write_text(json.dumps(report("NVIDIA H200", "a", "b")))
    session.write_text(json.dumps({"decode_attention_32x8k.json": report("NVIDIA H200", "b", "c", command="two")}))
    gpu_session.unpack(session, tmp_path)
    joined = json.loads(target.read_text())
    assert [(row["name"], joined["runs"][row["run"]]["command"]) for row in joined["results"]] == [
        ("a", "one"),
        ("b", "two"),
        ("c", "two"),
    ]
    session.write_text(json.dumps({"decode_attention_presets.json": report("NVIDIA H100 80GB HBM3", "a")}))
    gpu_session.unpack(session, tmp_path)
    assert json.loads(target.read_text()) == joined
    (other,) = set(tmp_path.glob("decode_attention_presets_*.json"))
    assert len(json.loads(other.read_text())["results"]) == 1
    assert "3 rows" in capsys.readouterr().out


def test_rows_of_two_gpus_in_one_file(tmp_path: Path) -> None:
    """A row never replaces one of the same name that another GPU gave."""
    target, session = tmp_path / "serve_gpu.json", tmp_path / "session.json"
    two = report("NVIDIA H200", "a", "b")
    two["runs"] += report("NVIDIA H100 80GB HBM3")["runs"]
    two["results"].append({"name": "c", "us": 1.0, "run": 1})
    target.write_text(json.dumps(two))
    session.write_text(json.dumps({"serve_steps.json": report("NVIDIA H100 80GB HBM3", "a", "c", "d", command="new")}))
    gpu_session.main(["--unpack", str(session), "--into", str(tmp_path), "--hash", "abc", "--note", "busy host"])
    joined, beside = (json.loads((tmp_path / name).read_text()) for name in ("serve_gpu.json", "serve_gpu_h100.json"))
    found = {row["name"]: joined["runs"][row["run"]] for row in joined["results"]}
    assert {name: (run["command"], run["machine"]["gpu"][7:11]) for name, run in found.items()} == {
        "a": ("one", "H200"),
        "b": ("one", "H200"),
        "c": ("new", "H100"),
        "d": ("new", "H100"),
    }
    assert [row["name"] for row in beside["results"]] == ["a"]
    assert all((run["git_hash"], run["note"]) == ("abc", "busy host") for run in (found["c"], *beside["runs"]))
    assert "note" not in found["a"]


def test_a_note_stands_after_earlier_ones(tmp_path: Path) -> None:
    """Those that the session's file has, and those that it was unpacked with before; none twice."""
    target, session = tmp_path / "serve_gpu.json", tmp_path / "session.json"
    measured = report("NVIDIA H200", "a")
    measured["runs"][0]["note"] = "no host times"
    session.write_text(json.dumps({"serve_gpu.json": measured}))
    for note in ("busy host", "busy host", "copied tree"):
        gpu_session.unpack(session, tmp_path, "abc", note)
    (run,) = json.loads(target.read_text())["runs"]
    assert run["note"] == "no host times; busy host; copied tree"
    other = report("NVIDIA H200", "a", command="two")
    session.write_text(json.dumps({"serve_gpu.json": other}))
    gpu_session.unpack(session, tmp_path, "abc", "idle host")
    (run,) = json.loads(target.read_text())["runs"]
    assert run["note"] == "idle host"  # another run's notes are its own


def test_a_step_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w") as log:
        assert gpu_session.ended(gpu_session.start(["sleep", "60"], log), 0.1) is None
        assert gpu_session.ended(gpu_session.start(["false"], log), 10) == 1


def test_every_kernel_is_compiled_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all shapes and policies of the attention benchmarks, and all presets of layer calls, by one process each."""
    started: list[str] = []
    monkeypatch.setattr(gpu_session, "start", lambda command, log: started.append(command[-1]))
    monkeypatch.setattr(gpu_session, "ended", lambda process, seconds: 0)
    gpu_session.compile_first(STEPS, argparse.Namespace(work=tmp_path, seconds=100.0), None)
    compiled, called = [], []
    for command in "; ".join(started).split("; "):
        words = shlex.split(command)
        names = words[words.index("--policies") + 1 : words.index("--programs")]
        if "benchmarks.layer_calls" in words:
            called += names
            continue
        shapes = words[words.index("--shapes") + 1 : words.index("--policies")]
        compiled += [(shape, name) for shape in shapes for name in names]
    wanted = []
    for step in STEPS:
        if step.name.startswith("decode_attention"):
            words = shlex.split(step.command)
            shapes = words[words.index("--shapes") + 1 : words.index("--baselines")]
            wanted += [(shape, name) for shape in shapes for name in gpu_session._policies_of(words)]
    assert sorted(compiled) == sorted(wanted) and len(set(wanted)) == len(wanted)
    assert sorted(called) == sorted(policies())
