"""When the engine captures the layers of its steps, and that captured steps give the same answers.

Graphs are replays of the same work on a CPU, as in :mod:`tests.cache.test_batch_graphs`.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from kvmm.cache.batch import keep_in_place
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


@pytest.fixture
def placed(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Caches whose buffers the engine put in place."""
    found: list[Any] = []
    monkeypatch.setattr(
        engine, "keep_in_place", lambda cache, *size: (found.append(cache), keep_in_place(cache, *size))
    )
    return found


def answers(running: Running, questions: tuple[str, ...], tokens: int) -> list[str]:
    """Of questions that are asked at once, each of exactly so many tokens."""
    running.service.engine.ends = frozenset()

    def ask(question: str) -> str:
        answer = running.post(chat(question, max_tokens=tokens)).json()
        assert answer["usage"]["completion_tokens"] == tokens
        return answer["choices"][0]["message"]["content"]

    with ThreadPoolExecutor(len(questions)) as threads:
        return list(threads.map(ask, questions))


def test_answers_that_run_together_are_captured(omni: Any, captures: list[Replay], placed: list[Any]) -> None:
    """If that is asked for; their buffers are put in place then and not before."""
    tokens = 3 * MIN_LEFT
    with serving(omni, "oscar4-2") as plain:
        expected = [answers(plain, (question,), tokens)[0] for question in QUESTIONS]
        assert answers(plain, QUESTIONS, tokens) == expected and not captures and not placed
    with serving(omni, "oscar4-2", graph=True) as running:
        assert answers(running, QUESTIONS, tokens) == expected
    layers = omni[0].config.get_text_config().num_hidden_layers
    assert len(captures) >= layers and len(placed) == len(QUESTIONS)


@pytest.mark.parametrize(("questions", "tokens"), [(QUESTIONS[:1], 2 * MIN_LEFT), (QUESTIONS, MIN_LEFT)])
def test_what_would_not_pay_is_not_captured(
    omni: Any, captures: list[Replay], placed: list[Any], questions: tuple[str, ...], tokens: int
) -> None:
    """One answer alone, and answers that are about to end: nor do they get space for an answer of the full length."""
    with serving(omni, "oscar4-2", graph=True) as running:
        assert len(answers(running, questions, tokens)) == len(questions)
    assert not captures and not placed


def test_answers_with_drafts_are_not_captured(omni: Any, captures: list[Replay], placed: list[Any]) -> None:
    with serving(omni, "oscar4-2", speculative="lookup", graph=True) as running:
        assert len(answers(running, QUESTIONS, 3 * MIN_LEFT)) == 2
    assert not captures and not placed
