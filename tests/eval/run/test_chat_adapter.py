"""Chats of other evaluators are answered as ``kvmm eval`` answers samples. The embedded model in float32."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from kvmm.errors import KVMMError
from kvmm.eval.run.chat_adapter import Decoding, answer_chats, audio_source, image_source
from kvmm.eval.run.runner import answer_samples, documents
from kvmm.eval.tasks import get_task
from kvmm.media import load_audio, load_image
from kvmm.models.caches import resolve_policies
from kvmm.models.prompting import encode_messages, encode_question
from kvmm.policy import get_policy
from tests.encoded_pages import load_embedded
from tests.media.files import mp4

SAMPLES = Path(__file__).parents[3] / "assets" / "samples"
SHORT = Decoding(8)


@pytest.fixture(scope="module")
def loaded():
    return load_embedded()


def user(*parts) -> list[dict]:
    return [{"role": "user", "content": [{"type": kind, "text" if kind == "text" else "url": x} for kind, x in parts]}]


def test_answers_are_those_of_kvmm_eval(loaded):
    """Text and bytes; two questions of one page share its reading, and a chat that cannot be read costs only itself."""
    model, processor = loaded
    task = get_task("docvqa")
    pages = [page for page in documents(task.load("mini", limit=8).samples) if len(page) > 1]
    samples = [*pages[0][:2], pages[1][0]]
    rows = list(
        answer_samples(model, processor, task, samples, resolve_policies(["rd2"]), batch_size=1, max_new_tokens=8)
    )
    chats = [user(("image", s.load_images()[0]), ("text", s.question)) for s in samples]
    broken = user(("image", {"bytes": b"nothing"}), ("text", "What is it?"))
    called = []
    given = [lambda: called.append(0) or chats[0], chats[1], broken, chats[2]]
    readings = []
    hook = model.register_forward_pre_hook(
        lambda module, args, kwargs: readings.append(0) if kwargs.get("pixel_values") is not None else None,
        with_kwargs=True,
    )
    try:
        found = list(answer_chats(model, processor, get_policy("rd2"), given, SHORT))
    finally:
        hook.remove()
    assert len(readings) == 2 and called == [0]
    wrong = found.pop(2)
    assert wrong["filtered_resps"] == "" and "not an image" in wrong["error"]
    keys = ("filtered_resps", "token_counts", "kv_bytes", "kv_bytes_bf16", "tokens_by_modality", "error")
    assert [[row[key] for key in keys] for row in found] == [[row[key] for key in keys] for row in rows]
    together = list(answer_chats(model, processor, get_policy("rd2"), chats, SHORT, batch_size=3))
    assert [row["filtered_resps"] for row in together] == [row["filtered_resps"] for row in rows]


def test_messages_are_rendered_as_questions_are(loaded):
    model, processor = loaded
    image, sound = load_image(SAMPLES / "receipt.png"), load_audio(SAMPLES / "question.wav")
    parts = [{"type": "image"}, {"type": "audio"}, {"type": "text", "text": "Read it."}]
    messages = [{"role": "user", "content": parts}]
    found = encode_messages(model, processor, messages, [image], [sound])
    wanted = encode_question(model, processor, "Read it.", [image], sound)
    assert found.keys() == wanted.keys() and all(torch.equal(found[name], wanted[name]) for name in wanted)
    turns = [
        {"role": "system", "content": [{"type": "text", "text": "Be short."}]},
        {"role": "user", "content": [{"type": "text", "text": "One?"}, {"type": "text", "text": " Two?"}]},
    ]
    ids = encode_messages(model, processor.tokenizer, turns)["input_ids"][0]  # as of a text-only model
    assert torch.equal(ids, encode_messages(model, processor, turns)["input_ids"][0])
    text = processor.tokenizer.decode(ids)
    assert text.index("Be short.") < text.index("One? Two?")


@pytest.mark.parametrize(
    ("settings", "length", "until", "sampling"),
    [
        (None, 128, (), {}),
        ({"max_new_tokens": 16, "temperature": 0, "do_sample": True, "top_p": 0.9}, 16, (), {}),
        ({"max_gen_toks": 7, "temperature": 0.7, "do_sample": False}, 7, (), {}),
        ({"temperature": 0.7, "top_p": None, "until": "###"}, 128, ("###",), {"do_sample": True, "temperature": 0.7}),
        ({"do_sample": True, "top_k": 5, "until": ["a", ""]}, 128, ("a",), {"do_sample": True, "top_k": 5}),
    ],
)
def test_settings_of_tasks(settings, length, until, sampling):
    found = Decoding.of(settings, 128)
    assert (found.max_new_tokens, found.until, dict(found.sampling)) == (length, until, sampling)
    assert found.ignored == () and hash(found) == hash(Decoding.of(settings, 128))


def test_settings_that_cannot_be_met():
    assert Decoding.of({"image_aspect_ratio": "pad", "num_beams": 1}, 8).ignored == ("image_aspect_ratio",)
    with pytest.raises(KVMMError, match="num_beams=1"):
        Decoding.of({"num_beams": 4}, 8)
    for wrong in (0, "many", True):
        with pytest.raises(KVMMError, match="number of tokens"):
            Decoding.of({"max_new_tokens": wrong}, 8)
    assert Decoding(8, ("\nQ:", "###")).cut(" 12\n\nkm ### no \nQ: 3") == "12\n\nkm"


def test_sampling_samples(loaded):
    model, processor = loaded
    chat = [user(("text", "Tell me about the invoice."))]

    def answer(seed: int, **settings) -> str:
        torch.manual_seed(seed)
        (row,) = answer_chats(model, processor, get_policy("rd2"), chat, Decoding.of(settings, 8))
        assert row["error"] is None and "image" not in row["tokens_by_modality"]
        return row["filtered_resps"]

    hot = {"do_sample": True, "temperature": 5.0}
    assert len({answer(seed, **hot) for seed in range(3)}) > 1 and answer(1, **hot) == answer(1, **hot)
    assert answer(0) == answer(1)


def test_videos_are_read(loaded, tmp_path):
    model, processor = loaded
    path = tmp_path / "clip.mp4"
    path.write_bytes(mp4())
    chats = [user(("video", source), ("text", "What happens?")) for source in (str(path), str(tmp_path / "gone.mp4"))]
    row, failed = answer_chats(model, processor, get_policy("rd2"), chats, Decoding(2))
    assert row["error"] is None and row["tokens_by_modality"]["video"] == 512
    assert "gone.mp4" in failed["error"]


def test_what_a_model_cannot_read(loaded):
    model, processor = loaded
    chat = user(("hologram", "clip.mp4"), ("text", "What happens?"))
    with pytest.raises(KVMMError, match=r"reads text, image, audio, video, and the task shows hologram"):
        list(answer_chats(model, processor, get_policy("rd2"), [chat], SHORT))
    long = user(("text", "word " * 9000))
    (row,) = answer_chats(model, processor, get_policy("rd2"), [long], SHORT)
    assert row["filtered_resps"] == "" and "window holds 8192" in row["error"]


def test_sources_of_data_sets():
    path = SAMPLES / "question.wav"
    wanted = load_audio(path)
    decoded = SimpleNamespace(sample_rate=16_000, data=torch.tensor(np.stack([wanted, wanted])))
    for source in (
        str(path),
        {"path": str(path), "bytes": None},
        {"bytes": path.read_bytes(), "path": "elsewhere.wav"},
        {"array": wanted, "sampling_rate": 16_000, "path": None},
        {"array": np.stack([wanted, wanted]), "sampling_rate": 16_000},
        SimpleNamespace(get_all_samples=lambda: decoded),
    ):
        assert np.allclose(load_audio(audio_source(source)), wanted, atol=1e-6)
    picture = SAMPLES / "receipt.png"
    for source in (str(picture), {"bytes": picture.read_bytes()}, {"path": str(picture)}, Image.open(picture)):
        assert load_image(image_source(source)).tobytes() == load_image(picture).tobytes()
