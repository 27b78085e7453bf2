"""The embedded model answers real questions: a fixed sample of the held-out set, under three policies.

Fonts, values, layouts, wordings and voices of the sample never occur in training (see ``training/heldout``).
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from statistics import mean, median

import pytest

from kvmm.eval import anls, cer
from kvmm.media import load_media
from kvmm.models.conversation import Conversation
from tests.encoded_pages import load_embedded

SAMPLE = Path(__file__).parent / "data" / "heldout"
# Mean ANLS over all answers of the sample.
ANLS_FLOOR = {"bf16": 0.935, "balanced": 0.935, "small": 0.93}
CER_CEILING = 0.03  # median over the two transcribed pages, policy bf16
UNANSWERABLE_FLOOR = 0.8  # share of "It does not say." where the page holds no answer, policy bf16
TRANSCRIPTION_TOKENS = 900


@pytest.fixture(scope="module")
def loaded():
    return load_embedded(dtype=None)


def conversations() -> list[dict]:
    return [json.loads(line) for line in (SAMPLE / "sample.jsonl").read_text(encoding="utf-8").splitlines()]


def answers(loaded, line: dict, policy: str) -> list[str]:
    """The model's answers to all turns of one conversation."""
    model, processor = loaded
    conversation = Conversation(model, processor, policy=policy)
    files = [*line["images"], *([line["audio"]] if line["audio"] else [])]
    media = [item for name in files for item in load_media(SAMPLE / name)]
    found = []
    for turn in line["turns"]:
        limit = TRANSCRIPTION_TOKENS if turn.get("metric") == "cer" else 64
        for progress in conversation.ask(turn["question"], media, max_new_tokens=limit):
            last = progress
        found.append(last.text)
        media = []
    return found


def test_sample_holds_every_set():
    lines = conversations()
    assert len({line["set"] for line in lines}) == 13
    assert sum(len(line["turns"]) for line in lines) >= 55
    for line in lines:
        for name in [*line["images"], *([line["audio"]] if line["audio"] else [])]:
            assert (SAMPLE / name).is_file()


@pytest.mark.parametrize("policy", ANLS_FLOOR)
def test_answers(loaded, policy: str):
    scores: dict[str, list[float]] = defaultdict(list)
    refusals, errors, wrong = [], [], []
    for line in conversations():
        transcription = line["set"] == "transcription"
        if transcription and policy != "bf16":
            continue
        for turn, prediction in zip(line["turns"], answers(loaded, line, policy), strict=True):
            if transcription:
                errors.append(cer(prediction, turn["answers"][0]))
                continue
            value = anls(prediction, turn["answers"])
            scores[line["set"]].append(value)
            if line["set"] == "unanswerable":
                refusals.append(value == 1)
            if value < 1:
                wrong.append(f"{line['id']}: {turn['question']!r} -> {prediction!r}, not {turn['answers'][0]!r}")
    summary = {name: round(mean(values), 3) for name, values in scores.items()}
    overall = mean(value for values in scores.values() for value in values)
    detail = f"{overall:.3f} {summary}\n" + "\n".join(wrong)
    assert overall >= ANLS_FLOOR[policy], detail
    if policy == "bf16":
        assert median(errors) <= CER_CEILING, errors
        assert mean(refusals) >= UNANSWERABLE_FLOOR, detail
