"""When the engine captures the layers of its steps, and that captured steps give the same answers.

Graphs are replays of the same work on a CPU, as in :mod:`tests.cache.test_batch_graphs`.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from kvmm.cuda_graphs import layer as layer_graph
from kvmm.cuda_graphs.layer import GraphPool
from kvmm.serve import engine
from kvmm.serve.engine import MIN_LEFT
from tests.cache.test_batch_graphs import Replay
from tests.serve.running import Running, chat, serving

QUESTIONS = ("Name three animals.", "Count from one to twenty.")


@pytest.fixture
def captures(monkeypatch: pytest.MonkeyPatch) -> list[Replay]:
    made: list[Replay] = []

    def capture(stream: Any, work: Any, pool: Any = None) -> tuple[Replay, torch.Tensor]:
        made.append(Replay(work))
        return made[-1], made[-1].output

    monkeypatch.setattr(layer_graph, "capture", capture)
    monkeypatch.setattr(GraphPool, "stream", None)
    monkeypatch.setattr(GraphPool, "handle", None)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(engine, "able_to_graph", lambda cache: True)
    return made


def answers(running: Running, questions: tuple[str, ...], tokens: int) -> list[str]:
    """Of questions that are asked at once, each of exactly so many tokens."""
    running.service.engine.ends = frozenset()

    def ask(question: str) -> str:
        answer = running.post(chat(question, max_tokens=tokens)).json()
        assert answer["usage"]["completion_tokens"] == tokens
        return answer["choices"][0]["message"]["content"]

    with ThreadPoolExecutor(len(questions)) as threads:
        return list(threads.map(ask, questions))


@pytest.mark.parametrize("graph", [None, True])
def test_answers_that_run_together_are_captured(omni: Any, captures: list[Replay], graph: bool | None) -> None:
    tokens = 3 * MIN_LEFT
    with serving(omni, "oscar4-2", graph=False) as plain:
        expected = [answers(plain, (question,), tokens)[0] for question in QUESTIONS]
        assert answers(plain, QUESTIONS, tokens) == expected and not captures
    with serving(omni, "oscar4-2", graph=graph) as running:
        assert answers(running, QUESTIONS, tokens) == expected
    layers = omni[0].config.get_text_config().num_hidden_layers
    assert len(captures) >= layers


@pytest.mark.parametrize(("questions", "tokens"), [(QUESTIONS[:1], 2 * MIN_LEFT), (QUESTIONS, MIN_LEFT)])
def test_what_would_not_pay_is_not_captured(
    omni: Any, captures: list[Replay], questions: tuple[str, ...], tokens: int
) -> None:
    """One answer alone, and answers that are about to end."""
    with serving(omni, "oscar4-2") as running:
        assert len(answers(running, questions, tokens)) == len(questions)
    assert not captures


def test_answers_with_drafts_are_not_captured(omni: Any, captures: list[Replay]) -> None:
    with serving(omni, "oscar4-2", speculative="lookup") as running:
        assert len(answers(running, QUESTIONS, 3 * MIN_LEFT)) == 2
    assert not captures
