"""How sure a model says it is: the map, its file, and the same answer's value in every path."""

from __future__ import annotations

import json
import math

import pytest
import torch

from kvmm import KVMMError
from kvmm.media import load_media
from kvmm.models import Conversation
from kvmm.models.confidence import (
    FILE_NAME,
    BatchLogprobRecorder,
    ConfidenceMap,
    LogprobRecorder,
    answer_features,
    best_logprobs,
    confidence_map_of,
    read_confidence_map,
)
from kvmm.models.loading import default_model
from kvmm.samples import load_samples
from tests.encoded_pages import load_embedded

MAP = ConfidenceMap(-0.5, {"first_token": 0.4, "mean_token": 0.3}, 0.7, "f" * 64)


def test_features_of_an_answer():
    found = answer_features([-0.1, -0.3, -0.2])
    assert found == {
        "first_token": pytest.approx(-math.log(0.1001)),
        "mean_token": pytest.approx(-math.log(0.2001)),
        "least_token": pytest.approx(-math.log(0.3001)),
    }


def test_more_probable_tokens_are_never_less_sure():
    chances = [MAP.confidence([-(10.0**-k), -0.2]).probability for k in range(-3, 6)]
    assert chances == sorted(chances) and 0 < chances[0] < chances[-1] < 1
    assert MAP.confidence([]) is None
    assert MAP.confidence([-8.0]).unsure and not MAP.confidence([-1e-9]).unsure
    assert "larger model" in MAP.confidence([-8.0]).line and MAP.confidence([-1e-9]).line == ""


def test_the_recorder_keeps_choices_and_changes_nothing():
    recorder, logits = LogprobRecorder(), torch.randn(3, 50)
    wanted = logits.log_softmax(-1).amax(-1)
    for row in logits:
        assert recorder(torch.zeros(1, 1), row[None]) is not None
    assert recorder.logprobs(2) == pytest.approx(wanted[:2].tolist())
    torch.testing.assert_close(best_logprobs(logits.bfloat16()), logits.bfloat16().float().log_softmax(-1).amax(-1))


def test_the_rows_of_a_batch_are_kept_apart():
    recorder, steps = BatchLogprobRecorder(), torch.randn(4, 2, 50)
    assert recorder.logprobs([0, 0]) == [[], []]
    for step in steps:
        assert recorder(torch.zeros(2, 1), step) is step
    wanted = steps.log_softmax(-1).amax(-1)
    first, second = recorder.logprobs([4, 2])  # the second row ends earlier
    assert first == pytest.approx(wanted[:, 0].tolist()) and second == pytest.approx(wanted[:2, 1].tolist())


def test_length_alone_makes_no_answer_less_sure(embedded):
    """A transcription of ten times as many tokens, each as probable, is as sure."""
    found, tokens = confidence_map_of(embedded[0]), [-0.01, -0.3, -0.02]
    assert found.confidence(tokens * 10).probability == pytest.approx(found.confidence(tokens).probability)


def test_a_file_gives_back_its_map(tmp_path):
    MAP.save(tmp_path / FILE_NAME)
    assert read_confidence_map(tmp_path / FILE_NAME) == MAP


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda c: c.update(format="x"), "no confidence file"),
        (lambda c: c.update(format_version=9), "confidence format 9"),
        (lambda c: c.pop("intercept"), "'intercept' is missing"),
        (lambda c: c.update(intercept="1"), "intercept is no finite number"),
        (lambda c: c.update(weights={"first_token": -1}), "weight of first_token is negative"),
        (lambda c: c.update(weights={"x\ny": 1}), "no feature"),
        (lambda c: c.update(unsure_below=2), "unsure_below is no probability"),
    ],
)
def test_a_damaged_file_is_one_line(tmp_path, change, match):
    path = tmp_path / FILE_NAME
    MAP.save(path)
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))
    with pytest.raises(KVMMError, match=match) as error:
        read_confidence_map(path)
    assert str(path) in str(error.value) and "\n" not in str(error.value)


@pytest.fixture(scope="module")
def embedded():
    return load_embedded(dtype=None)


def test_the_embedded_model_has_one_and_other_weights_none(embedded, tmp_path):
    model = embedded[0]
    assert confidence_map_of(model) == read_confidence_map(default_model() / FILE_NAME)
    MAP.save(tmp_path / FILE_NAME)
    before = model.name_or_path
    try:
        model.name_or_path = str(tmp_path)
        with pytest.warns(UserWarning, match="fitted to other weights"):
            assert confidence_map_of(model) is None
        (tmp_path / FILE_NAME).unlink()
        assert confidence_map_of(model) is None
    finally:
        model.name_or_path = before


@pytest.mark.parametrize("policy", ["bf16", "balanced"])
def test_an_answer_says_how_sure_it_is_and_is_the_same(embedded, policy, monkeypatch):
    model, processor = embedded
    (sample, *_) = load_samples()

    def ask():
        conversation = Conversation(model, processor, policy)
        *_, last = conversation.ask(sample.question, [one for file in sample.files for one in load_media(file)])
        return last

    told = ask()
    monkeypatch.setattr("kvmm.models.conversation.confidence_map_of", lambda model: None)
    plain = ask()
    assert told.text == plain.text and plain.confidence is None
    assert 0.5 < told.confidence.probability <= 1 and not told.confidence.unsure
