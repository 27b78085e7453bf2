"""Which importance a calibration is fitted to: the one that drifts less on documents held out."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from kvmm.calibration import choose, read_calibration
from kvmm.calibration.choose import GRADIENT, QUERY, ImportanceChoice, held_out, without_gradients
from kvmm.calibration.collect import Collector
from kvmm.calibration.fit import Example, calibrate, fit_codecs
from kvmm.commands.calibrate import command
from kvmm.models.documents import Document
from kvmm.models.forced_text import ForcedText
from tests.models import checkpoints
from tests.tiny_models import build, inputs

KIND = "qwen2_5_omni"
ANSWER = torch.tensor([5, 9, 4, 11, 3])


@pytest.fixture(scope="module")
def collected():
    model, collector = build(KIND), Collector(build(KIND))
    for seed in range(3):
        collector.add(inputs(KIND, 1, seed=seed), ANSWER)
    return model, collector.samples()


def test_one_document_in_five_is_held_out():
    assert held_out(list("abcd")) == []
    assert held_out(list("abcdefghijkl")) == [4, 9]
    assert held_out(list("aabccddeeef")) == [7, 8, 9]
    many = held_out(range(1000))
    assert len(many) == 8 and many[0] > 100 and many[-1] == 999


def test_without_gradients_is_what_a_collector_without_them_gives(collected):
    model, samples = collected
    collector = Collector(model, gradients=False)
    for seed in range(3):
        collector.add(inputs(KIND, 1, seed=seed), ANSWER)
    expected, found = fit_codecs(collector.samples(), ["rd"]), fit_codecs(without_gradients(samples), ["rd"])
    assert set(found) == set(expected)
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, atol=1e-3, rtol=1e-3)


def prompt(model, seed: int):
    arguments = inputs(KIND, 1, seed=seed)
    with torch.no_grad():
        return arguments, ANSWER, Document(model, arguments)


def text(model, seed: int) -> ForcedText:
    arguments, answer, document = prompt(model, seed)
    return ForcedText(document, arguments, answer[None])


def test_both_are_measured_with_files_of_their_own(collected):
    model, samples = collected
    with ImportanceChoice(model, ("rd1", "rd2")) as choice:
        assert choice.divergence == {} and choice.best == GRADIENT
        choice.fit(samples)
        for seed in (7, 8):
            choice.add(*prompt(model, seed))
        expected = {
            (importance, name): sum(float(text(model, seed).measure(policy).kl.sum()) for seed in (7, 8))
            for (importance, name), policy in choice.policies.items()
        }
        file = read_calibration(choice.policies[QUERY, "rd1"].calibration)
    count = 2 * text(model, 7).count
    assert set(choice.divergence) == {GRADIENT, QUERY}
    for (importance, name), total in expected.items():
        assert choice.divergence[importance][name] == pytest.approx(total / count, rel=1e-4)
    assert len({kl for by in choice.divergence.values() for kl in by.values()}) == 4
    assert file.metadata["importance"] == QUERY
    name = "rd.0.key.image.transform"
    assert torch.equal(file.tensors[name], fit_codecs(without_gradients(samples), ["rd"])[name])


@pytest.mark.parametrize(
    ("gradient", "query", "best"),
    [
        ((0.3, 0.2), (0.2, 0.2), QUERY),
        ((0.1, 0.01), (0.05, 0.1), GRADIENT),
        ((0.0, 0.0), (0.0, 0.0), GRADIENT),
        ((float("nan"), 0.2), (1.0, 1.0), QUERY),
    ],
)
def test_the_lower_divergence_is_taken(collected, monkeypatch, gradient, query, best):
    model, samples = collected
    made_up = {(GRADIENT, "rd1"): gradient[0], (GRADIENT, "rd2"): gradient[1]}
    made_up |= {(QUERY, "rd1"): query[0], (QUERY, "rd2"): query[1]}

    class Text:
        count = 2
        document = SimpleNamespace(unpacked=lambda policy: SimpleNamespace(pack=lambda: None))

        def measure(self, policy, cache):
            (key,) = (key for key, one in choice.policies.items() if one is policy)
            return SimpleNamespace(kl=torch.tensor([made_up[key]] * 2))

    monkeypatch.setattr(choose, "ForcedText", lambda *arguments: Text())
    with ImportanceChoice(model, ("rd1", "rd2")) as choice:
        choice.fit(samples)
        choice.add(*prompt(model, 7))
    assert choice.best == best


def test_prompts_beyond_the_window_say_nothing(collected, monkeypatch):
    model, samples = collected
    arguments, answer, document = prompt(model, 7)
    config = model.config.get_text_config(decoder=True)
    with ImportanceChoice(model, ("rd1",)) as choice:
        choice.fit(samples)
        monkeypatch.setattr(config, "max_position_embeddings", arguments["input_ids"].shape[1])
        choice.add(arguments, answer, document)
        assert choice.divergence == {} and choice.best == GRADIENT


@pytest.fixture
def five(monkeypatch):
    """Five made-up examples of five documents, and a choice that measures what it is told."""
    from kvmm.calibration import fit

    monkeypatch.setattr(fit, "_encoded", lambda model, processor, one: (inputs(KIND, 1, seed=one.audio), ANSWER, None))
    monkeypatch.setattr(fit, "search_tau", lambda *arguments: {})
    return [Example("q", images=(f"{seed}.png",), audio=seed, answer="a") for seed in range(5)]


@pytest.mark.parametrize("better", [GRADIENT, QUERY])
def test_a_calibration_is_fitted_to_what_was_chosen(five, monkeypatch, better):
    model = build(KIND)
    measured = []

    def add(self, arguments, answer, document):
        measured.append(document)
        self._positions += 1
        for importance, name in self.policies:
            self._sums[importance, name] += 0.1 if importance == better else 0.2

    monkeypatch.setattr(choose.ImportanceChoice, "add", add)
    *steps, found = calibrate(model, None, five)
    *_, other = calibrate(model, None, five, gradients=better == GRADIENT)
    assert steps == [1, 2, 3, 4, 5] and len(measured) == 1
    assert found.metadata["importance"] == other.metadata["importance"] == better
    assert found.metadata["importance_kl"][better] == dict.fromkeys(choose.MEASURED, 0.1)
    assert found.metadata["examples"] == 5 and other.metadata["importance_kl"] == {}
    # all five are fitted to in the end
    *_, four = calibrate(model, None, five[:4], gradients=better == GRADIENT)
    name = "rd.1.value.image.mean"
    torch.testing.assert_close(found.tensors[name], other.tensors[name], atol=1e-5, rtol=1e-4)
    assert not torch.allclose(four.tensors[name], other.tensors[name], atol=1e-3, rtol=1e-2)


def test_few_documents_are_fitted_to_with_gradients(five, monkeypatch):
    monkeypatch.setattr(choose.ImportanceChoice, "fit", lambda *arguments: pytest.fail("nothing to measure on"))
    *_, found = calibrate(build(KIND), None, five[:4])
    assert found.metadata["importance"] == GRADIENT and found.metadata["importance_kl"] == {}


def test_the_command_measures_and_says_what_it_took(tmp_path, monkeypatch, capsys):
    from kvmm.calibration import fit

    folder, data, out = tmp_path / "llama", tmp_path / "words.txt", tmp_path / "fit.safetensors"
    checkpoints.save("llama", folder)
    data.write_text("the quick brown fox jumps over a lazy dog and then the dog looks back at it " * 200)
    monkeypatch.setattr(fit, "TEXT_TOKENS", 300)
    command(out, model=str(folder), data=data, limit=5, dtype="float32", quiet=True)
    first, *lines = capsys.readouterr().out.splitlines()
    assert "5 examples" in first and [line.split(":")[0] for line in lines] == [GRADIENT, QUERY]
    metadata = read_calibration(out).metadata
    for line, (importance, kl) in zip(lines, metadata["importance_kl"].items(), strict=True):
        said = ", ".join(f"{name} {value:.4f}" for name, value in kl.items())
        assert f"{importance}: KL {said}" in line and min(kl.values()) > 0
        assert line.endswith("(taken)") == (importance == metadata["importance"])
    command(out, model=str(folder), data=data, limit=5, dtype="float32", gradients=False, quiet=True)
    assert len(capsys.readouterr().out.splitlines()) == 1 and read_calibration(out).metadata["importance"] == QUERY
