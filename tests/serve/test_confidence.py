"""How sure the server says that the model is: what ``Conversation`` says of the same question under the same policy."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from kvmm.eval.run.batching import DocumentBatch, make_prompt
from kvmm.media import load_image, load_media
from kvmm.models import Conversation
from kvmm.models.confidence import Confidence
from kvmm.models.prompting import encode_question
from kvmm.samples import SAMPLES
from tests.media.files import scan_pdf
from tests.serve.running import Running, image, noise, serving, text_of

POLICIES = ("bf16", "balanced", "small")
QUESTION = "What is the total?"


@pytest.fixture(scope="module", params=POLICIES)
def served(request: Any, omni: Any) -> Any:
    with serving(omni, request.param) as running:
        yield request.param, running


def asked(omni: Any, policy: str, question: str, data: bytes, tokens: int = 24) -> tuple[str, Confidence]:
    *_, last = Conversation(*omni, policy, graph=False).ask(question, load_media(data), max_new_tokens=tokens)
    return last.text, last.confidence


def content_of(part: dict[str, Any]) -> bytes:
    url = part["image_url"]["url"] if "image_url" in part else part["file"]["file_data"]
    return base64.b64decode(url.partition(",")[2])


def document(text: str) -> dict[str, Any]:
    """The invoice as a scan, with a text layer."""
    data = base64.b64encode(scan_pdf(load_image(SAMPLES / "invoice.png"), text)).decode()
    return {"type": "file", "file": {"filename": "scan.pdf", "file_data": f"data:application/pdf;base64,{data}"}}


@pytest.mark.parametrize(("question", "part"), [(QUESTION, image()), ("What does it say?", noise())])
def test_a_page_that_is_read_in_the_order_of_a_conversation(
    served: tuple[str, Running], omni: Any, monkeypatch: pytest.MonkeyPatch, question: str, part: dict[str, Any]
) -> None:
    """Both read the question over exact keys and pack afterwards: the same answer, and as sure."""
    monkeypatch.setattr("kvmm.serve.prompts.MIN_PREFIX", 10**6)  # nothing is kept, and so nothing packed before
    policy, server = served
    answer = server.ask(question, part)
    text, confidence = asked(omni, policy, question, content_of(part))
    told = answer["usage"]["kvmm"]
    assert text_of(answer) == text and answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert told["confidence"] == pytest.approx(confidence.probability, abs=1e-3)
    assert told["unsure"] is confidence.unsure and "supported" not in told


def test_a_page_that_is_packed_before_the_question(served: tuple[str, Running], omni: Any) -> None:
    """The server's question reads packed pages, as in ``kvmm eval``; that of a conversation exact ones."""
    policy, server = served
    model, processor = omni
    part = image()
    answer = server.ask(QUESTION, part)
    inputs = encode_question(model, processor, QUESTION, [load_media(content_of(part))[0].data])
    prompt = make_prompt(model, inputs, pack_first=True)
    (packed,) = DocumentBatch(model, [prompt]).answers(policy, [prompt], [0], 24)
    text, confidence = asked(omni, policy, QUESTION, content_of(part))
    told = answer["usage"]["kvmm"]
    assert told["confidence"] == pytest.approx(packed.confidence.probability, abs=1e-3)
    assert told["confidence"] == pytest.approx(confidence.probability, abs=0.02)
    assert text_of(answer) == text and told["unsure"] is confidence.unsure is packed.confidence.unsure


@pytest.mark.parametrize(("text", "supported"), [("TOTAL $364.08", True), ("TOTAL $864.08", False)])
def test_the_text_of_a_page(served: tuple[str, Running], omni: Any, text: str, supported: bool | None) -> None:
    policy, server = served
    part = document(text)
    answer = server.ask(QUESTION, part)
    said, confidence = asked(omni, policy, QUESTION, content_of(part))
    told = answer["usage"]["kvmm"]
    assert told.get("nearest_text") == (None if supported else "$864.08")
    assert text_of(answer) == said == "$364.08"
    assert told.get("supported") is confidence.supported is supported
    assert told["unsure"] is confidence.unsure is (supported is False)
    assert told["confidence"] == pytest.approx(confidence.probability, abs=0.02)


def test_an_earlier_page_counts(omni: Any) -> None:
    """A picture in an earlier message may hold what the PDF's text does not."""
    with serving(omni) as server:
        messages = [
            {"role": "user", "content": [noise(), {"type": "text", "text": "Look."}]},
            {"role": "assistant", "content": "Yes."},
            {"role": "user", "content": [document("TOTAL $864.08"), {"type": "text", "text": QUESTION}]},
        ]
        answer = server.ask("", messages=messages)
    assert "confidence" in answer["usage"]["kvmm"] and "supported" not in answer["usage"]["kvmm"]


def test_a_drawn_answer_has_no_confidence(server: Running) -> None:
    answer = server.ask(QUESTION, image(), temperature=0.5, seed=1)
    assert "confidence" not in answer["usage"]["kvmm"]
    answer = server.ask(QUESTION, document("TOTAL $864.08"), temperature=0.01, seed=1)
    told = answer["usage"]["kvmm"]
    assert text_of(answer) == "$364.08" and "confidence" not in told and told["nearest_text"] == "$864.08"


def test_a_stop_text_is_not_looked_for(omni: Any, server: Running) -> None:
    """The answer ends before ".08": what is told of it is of the text that the client has."""
    answer = server.ask(QUESTION, document("TOTAL $364.08"), stop=[".08"])
    assert text_of(answer) == "$364" and answer["usage"]["kvmm"]["supported"] is False


def test_drafts_are_as_sure(omni: Any, server: Running) -> None:
    plain = server.ask("What does it say?", image("letter.png"), max_tokens=40)
    with serving(omni, speculative="lookup") as drafted:
        answer = drafted.ask("What does it say?", image("letter.png"), max_tokens=40)
    found, other = (one["usage"]["kvmm"]["confidence"] for one in (answer, plain))
    assert text_of(answer) == text_of(plain) and found == pytest.approx(other, abs=1e-3)
