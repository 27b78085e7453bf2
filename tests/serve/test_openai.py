"""The server as OpenAI's own client package sees it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from kvmm.serve.http import Settings
from tests.serve.running import MODEL, audio, image, pdf, serving

openai = pytest.importorskip("openai", reason="OpenAI's client package is not installed: pip install openai")


@pytest.fixture(scope="module")
def client(omni: Any) -> Any:
    with serving(omni, settings=Settings(MODEL, ("key",))) as running:
        yield openai.OpenAI(base_url=f"{running.url}/v1", api_key="key", max_retries=0, timeout=1200)


def ask(client: Any, *parts: Any, **options: Any) -> Any:
    content = [{"type": "text", "text": part} if isinstance(part, str) else part for part in parts]
    return client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": content}], **options)


def test_models(client: Any) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).owned_by == "kvmm"


def test_answers_whole_and_streamed(client: Any) -> None:
    question = (image(), "What is the total?")
    whole = ask(client, *question, logprobs=True, top_logprobs=3, max_tokens=24)
    text = whole.choices[0].message.content
    assert text and whole.choices[0].finish_reason == "stop"
    assert whole.choices[0].logprobs.content[0].top_logprobs[0].logprob <= 0
    streamed = list(ask(client, *question, stream=True, stream_options={"include_usage": True}, max_tokens=24))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in streamed if chunk.choices) == text
    usage = streamed[-1].usage
    assert usage.total_tokens == whole.usage.total_tokens
    assert 0 < usage.prompt_tokens_details.cached_tokens < usage.prompt_tokens
    assert usage.kvmm["cache_nbytes"] > 0


def test_files_of_every_kind(client: Any) -> None:
    for file in (pdf(), audio()):
        assert ask(client, file, "What does it say?", max_tokens=8).choices[0].message.content


def test_sixteen_clients_at_once(client: Any) -> None:
    cases = [(name, f"What is line {k}?") for name in ("invoice.png", "receipt.png") for k in range(8)]

    def answer(case: tuple[str, str]) -> str:
        return ask(client, image(case[0]), case[1], max_tokens=16).choices[0].message.content

    alone = [answer(case) for case in cases]
    with ThreadPoolExecutor(16) as threads:
        assert list(threads.map(answer, cases)) == alone


def test_errors_have_the_classes_of_the_client(client: Any) -> None:
    with pytest.raises(openai.BadRequestError, match="temperature"):
        ask(client, "x", temperature=3)
    with pytest.raises(openai.NotFoundError, match="no model 'gpt'"):
        client.chat.completions.create(model="gpt", messages=[{"role": "user", "content": "x"}])
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="wrong").models.list()
    error = None
    try:
        ask(client, {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}})
    except openai.BadRequestError as found:
        error = found
    assert error is not None and "addresses are not fetched" in error.message and error.param
