"""Questions that wait are read in one call of the model: the same answers, and whatever happens to one of them."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
import torch

from kvmm.models.generation import model_lock
from kvmm.models.question import PIECE_TOKENS
from kvmm.models.sampling import GREEDY, Choice, Sampler
from kvmm.serve import engine
from kvmm.serve.generation import Delta, Finish, Generation
from kvmm.serve.protocol import parse_request
from tests.serve.running import Running, chat, image, serving, text_of

PAGES = ("invoice.png", "receipt.png")
QUESTIONS = ("What is the total?", "What is the date?", "Who is it from?", "What is the first line of the page?")
CASES = [chat(question, image(page), logprobs=True) for question in QUESTIONS for page in PAGES]
UNRELATED = chat("Name an animal.")


@contextlib.contextmanager
def calls_of(model: Any, hook: Callable[[torch.Tensor], None] = lambda ids: None) -> Iterator[list[int]]:
    """Tokens of each call of the model that reads; ``hook`` sees them."""
    counts: list[int] = []

    def note(module: Any, args: Any, kwargs: Any) -> None:
        ids = kwargs["input_ids"]
        if ids.shape[1] > 1:
            counts.append(ids.shape[1])
            hook(ids[0])

    handle = model.register_forward_pre_hook(note, with_kwargs=True)
    try:
        yield counts
    finally:
        handle.remove()


def at_once(running: Running, model: Any, bodies: Sequence[Any]) -> list[httpx.Response]:
    """Answers to requests that all wait before the engine looks at the second of them."""
    status = running.service.engine.status
    with ThreadPoolExecutor(len(bodies) + 1) as clients:
        with model_lock(model):
            jobs = [clients.submit(running.post, UNRELATED)]
            running.wait_for(lambda: status().reading == 1)
            jobs += [clients.submit(running.post, body) for body in bodies]
            running.wait_for(lambda: status().waiting == len(bodies))
        return [job.result() for job in jobs][1:]


def shown(response: httpx.Response) -> tuple[Any, ...]:
    """What a client sees of an answer."""
    answer = response.json()
    choice, usage = answer["choices"][0], answer["usage"]
    tokens = [one["token"] for one in choice["logprobs"]["content"]]
    return text_of(answer), choice["finish_reason"], tokens, usage["completion_tokens"], usage["prompt_tokens_details"]


def read_pages(running: Running) -> None:
    for page in PAGES:
        running.ask("What is it?", image(page), max_tokens=1)


@pytest.fixture(scope="module")
def expected(server: Running) -> list[httpx.Response]:
    """Answers to the cases, one after the other."""
    read_pages(server)
    return [server.post(body) for body in CASES]


def test_questions_that_wait_are_read_in_one_call(omni: Any, expected: list[httpx.Response]) -> None:
    with serving(omni) as running, calls_of(omni[0]) as counts:
        read_pages(running)
        counts.clear()
        found = at_once(running, omni[0], CASES)
        assert len(counts) == 2  # the request that kept the engine, and all others
        assert running.metrics()["kvmm_joint_reads_total"] == len(CASES)
    assert [shown(one) for one in found] == [shown(one) for one in expected]
    for one, other in zip(found, expected, strict=True):
        entries = [answer.json()["choices"][0]["logprobs"]["content"] for answer in (one, other)]
        for a, b in zip(*entries, strict=True):
            assert a["logprob"] == pytest.approx(b["logprob"], abs=1e-3)
        assert one.json()["usage"]["kvmm"] == pytest.approx(other.json()["usage"]["kvmm"], abs=2e-3)
        assert one.json()["usage"]["prompt_tokens_details"]["cached_tokens"] > 500


def test_a_call_reads_no_more_than_a_piece(
    omni: Any, expected: list[httpx.Response], monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(omni) as running, calls_of(omni[0]) as counts:
        read_pages(running)
        counts.clear()
        monkeypatch.setitem(PIECE_TOKENS, "cpu", 40)
        found = at_once(running, omni[0], CASES)
        assert max(counts) <= 40 and 2 < len(counts) < len(CASES)
    assert [shown(one) for one in found] == [shown(one) for one in expected]


def test_what_others_are_about_to_leave_is_read_once(omni: Any, server: Running) -> None:
    """Questions about a text that nobody has read wait until the first of them has."""
    text = "".join(f"Room {k} has {k * 7 % 13} chairs. " for k in range(94))
    bodies = [chat(f"{text}How many chairs has room {k}?", logprobs=True) for k in range(3)]
    alone = [server.post(body) for body in bodies]
    assert alone[0].json()["usage"]["prompt_tokens"] in range(1060, 1150)
    with serving(omni) as running:
        found = at_once(running, omni[0], bodies)
        assert running.metrics()["kvmm_prefix_hits_total"] == 2
        assert running.metrics()["kvmm_joint_reads_total"] == 3  # what follows the text, of all of them
    cached = [one.json()["usage"]["prompt_tokens_details"]["cached_tokens"] for one in found]
    assert sorted(cached) == [0, 1024, 1024]
    assert [shown(one)[:4] for one in found] == [shown(one)[:4] for one in alone]


def test_questions_that_cannot_be_read_together_are_read_one_by_one(
    omni: Any, expected: list[httpx.Response], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "able_to_read_together", lambda cache: False)
    with serving(omni) as running, calls_of(omni[0]) as counts:
        read_pages(running)
        counts.clear()
        found = at_once(running, omni[0], CASES)
        assert len(counts) == 1 + len(CASES) and running.metrics()["kvmm_joint_reads_total"] == 0
    assert [shown(one) for one in found] == [shown(one) for one in expected]


@pytest.mark.parametrize("kind", ["fault", "memory"])
def test_a_question_that_fails_fails_by_itself(omni: Any, expected: list[httpx.Response], kind: str) -> None:
    """What a call of many cannot do is tried by each alone."""
    model, processor = omni
    word = processor.tokenizer(" zebra", add_special_tokens=False)["input_ids"]

    def fail(ids: torch.Tensor) -> None:
        bad = any(ids[k : k + len(word)].tolist() == word for k in range(len(ids)))
        if kind == "memory" and len(ids) > 100:
            raise torch.OutOfMemoryError
        if kind == "fault" and bad:
            raise ValueError("nobody knows what a zebra is")

    with serving(omni) as running:
        read_pages(running)
        with calls_of(model, fail):
            bodies = [*CASES[:3], chat("Where is the zebra?", image(PAGES[0])), *CASES[3:]]
            before, hits = (running.metrics()[name] for name in ("kvmm_prompt_tokens_total", "kvmm_prefix_hits_total"))
            found = at_once(running, model, bodies)
        failed = found.pop(3)
        assert failed.status_code == (500 if kind == "fault" else 200)
        assert [shown(one) for one in found] == [shown(one) for one in expected]
        asked = sum(one.json()["usage"]["prompt_tokens"] for one in found)
        assert asked < running.metrics()["kvmm_prompt_tokens_total"] - before < 1.3 * asked  # counted once each
        assert running.metrics()["kvmm_prefix_hits_total"] - hits == len(bodies)
        assert shown(running.post(CASES[0])) == shown(expected[0])
        running.wait_for(lambda: not any(vars(running.service.engine.status()).values()))


def test_an_answer_that_fails_in_a_step_fails_by_itself(
    omni: Any, expected: list[httpx.Response], monkeypatch: pytest.MonkeyPatch
) -> None:
    choose = Sampler.choose

    def fail(sampler: Sampler, logits: torch.Tensor) -> Choice:
        if sampler.sampling.seed == 13:
            drawn[0] += 1
            if drawn[0] == 2:  # its first token came behind the prompt
                raise ValueError("no luck")
        return choose(sampler, logits)

    drawn = [0]
    monkeypatch.setattr(Sampler, "choose", fail)
    with serving(omni) as running:
        read_pages(running)
        drawing = chat("What is the first line?", image(PAGES[0]), temperature=0.1, seed=13)
        *found, failed = at_once(running, omni[0], [*CASES[:3], drawing])
    assert failed.status_code == 500 and drawn == [2]
    assert [shown(one) for one in found] == [shown(one) for one in expected[:3]]


@pytest.mark.parametrize("gone", [1, len(CASES) - 1])
def test_clients_that_go_away_while_questions_are_read(omni: Any, expected: list[httpx.Response], gone: int) -> None:
    """The others get their answers from the same call; if nobody is left, it ends at the model's next layer."""
    model, layers = omni[0], omni[0].get_decoder().layers
    with serving(omni) as running:
        read_pages(running)
        service, events = running.service, [queue.Queue() for _ in CASES]
        asked = []
        for body, told in zip(CASES, events, strict=True):
            prompt = service.maker.make(parse_request(body), "", threading.Event())
            asked.append(Generation(prompt, GREEDY, 24, service.scope_of(""), service.tokenizer, told.put))
        passed: list[int] = []  # layers since the call began that reads all questions but the first
        last = len(layers) - 1

        def leave(ids: torch.Tensor) -> None:
            passed.clear()
            if len(counts) == 2:
                for one in asked[1 : gone + 1]:
                    service.engine.cancel(one)

        with calls_of(model, leave) as counts, contextlib.ExitStack() as hooks:
            for k in (0, last):
                handle = layers[k].register_forward_pre_hook(lambda *call, k=k: passed.append(k))
                hooks.callback(handle.remove)
            with model_lock(model):
                service.engine.submit(asked[0])
                running.wait_for(lambda: service.engine.status().reading == 1)
                for one in asked[1:]:
                    service.engine.submit(one)
            running.wait_for(lambda: all(one.cancelled.is_set() for one in asked[1 : gone + 1]))
            running.wait_for(lambda: not any(vars(service.engine.status()).values()))
        assert len(counts) == 2 and (passed[:2] == [0, last]) is (gone == 1)
        for told, other in list(zip(events, expected, strict=True))[gone + 1 :]:
            text = ""
            while isinstance(event := told.get(timeout=60), Delta):
                text += event.text
            assert isinstance(event, Finish) and text == text_of(other.json())
