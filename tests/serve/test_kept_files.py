"""Files that came before: decoded once, made into tensors once, for who sent them and within a budget."""

from __future__ import annotations

import hashlib
import sys
import threading
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from PIL import Image
from transformers import BatchFeature

from kvmm.media import Media
from kvmm.models import load_model
from kvmm.serve import http, prompts
from kvmm.serve.files import ENTRY_NBYTES, HeldMemory, KeptFiles
from kvmm.serve.prompts import PromptMaker, ServedPrompt
from kvmm.serve.protocol import parse_request
from tests.models import checkpoints
from tests.serve.running import audio, chat, image, pdf, serving


def page(side: int) -> Media:
    return Media("image", Image.new("RGB", (side, side)), "page.png")


# of a file that is a picture of 10 by 10
ONE = ENTRY_NBYTES + 4 * 10 * 10


def made(maker: PromptMaker, question: str, *files: Any, owner: str = "one") -> ServedPrompt:
    return maker.make(parse_request(chat(question, *files)), owner, threading.Event())


@pytest.fixture
def counted(omni: Any, monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """How often files were decoded and the processor's parts were called."""
    counts = {"load_media": 0, "image_processor": 0, "feature_extractor": 0}

    def count(where: Any, attribute: str, name: str) -> None:
        call = getattr(where, attribute)

        def counting(*args: Any, **options: Any) -> Any:
            counts[name] += 1
            return call(*args, **options)

        monkeypatch.setattr(where, attribute, counting)

    count(prompts, "load_media", "load_media")
    for name in ("image_processor", "feature_extractor"):
        count(type(getattr(omni[1], name)), "__call__", name)
    return counts


@pytest.mark.parametrize(
    "files", [(image(),), (pdf(),), (audio(),), (image(), audio()), (image(), image("receipt.png"))]
)
def test_a_file_that_came_before_is_not_made_again(omni: Any, counted: dict[str, int], files: Any) -> None:
    maker = PromptMaker(*omni, b"")
    first = made(maker, "What is it?", *files)
    expected = dict(counted)
    assert expected["load_media"] == len(files) and maker.files.nbytes > 0
    for _ in range(2):
        second = made(maker, "What is the total?", *files)
        assert counted == expected
    fresh = made(PromptMaker(*omni, b""), "What is the total?", *files)
    assert counted["load_media"] == 2 * len(files)
    assert torch.equal(second.prompt.ids, fresh.prompt.ids) and second.prompt.ids.shape[1] != first.prompt.ids.shape[1]
    for mine, theirs in zip(second.media, fresh.media, strict=True):
        assert mine.keys() == theirs.keys() and all(torch.equal(mine[name], theirs[name]) for name in mine)


@pytest.mark.parametrize("family", ["qwen2_vl", "qwen3_vl", "llava", "llava_next", "internvl", "gemma3"])
def test_every_family_of_processors_finds_its_tensors(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prompts, "window_of", lambda model: 10**6)  # those of tiny models hold no page
    model, processor = load_model(checkpoints.save(family, tmp_path), device="cpu", dtype=torch.float32)
    maker, kind, calls = PromptMaker(model, processor, b""), type(processor.image_processor), []
    call = kind.__call__
    monkeypatch.setattr(
        kind, "__call__", lambda part, *args, **options: calls.append(0) or call(part, *args, **options)
    )
    first, second = (made(maker, "What is it?", image()) for _ in range(2))
    assert len(calls) == 1 and first.media and torch.equal(first.prompt.ids, second.prompt.ids)
    for mine, theirs in zip(second.media, first.media, strict=True):
        assert mine.keys() == theirs.keys() and all(torch.equal(mine[name], theirs[name]) for name in mine)


def test_nobody_finds_what_others_sent(omni: Any, counted: dict[str, int]) -> None:
    maker = PromptMaker(*omni, b"")
    for owner in ("one", "other", "one", "other"):
        made(maker, "What is it?", image(), owner=owner)
    assert counted["load_media"] == counted["image_processor"] == 2


def test_media_in_another_order_are_made_for_it(omni: Any) -> None:
    maker, files = PromptMaker(*omni, b""), [image(), image("receipt.png")]
    made(maker, "What is it?", *files)
    turned, fresh = (made(one, "What is it?", *files[::-1]) for one in (maker, PromptMaker(*omni, b"")))
    for mine, theirs in zip(turned.media, fresh.media, strict=True):
        assert all(torch.equal(mine[name], theirs[name]) for name in theirs)


def test_the_least_recently_used_goes_beyond_the_budget() -> None:
    no_text = sys.getsizeof("")  # one object for all
    kept, decoded = KeptFiles(budget=3 * ONE + no_text), []

    def find(name: bytes, side: int = 10) -> list[Media]:
        def decode() -> list[Media]:
            decoded.append(name)
            return [page(side)]

        return kept.media("", name, decode)[1]

    found = [find(name)[0] for name in (b"a", b"b", b"c")]
    assert kept.nbytes == kept.budget and find(b"a")[0] is found[0]
    find(b"d")
    assert kept.nbytes == kept.budget and find(b"a")[0] is found[0] and find(b"c")[0] is found[2]
    assert find(b"b")[0] is not found[1]
    for _ in range(2):
        find(b"larger than all", 50)
    assert decoded == [b"a", b"b", b"c", b"d", b"b", b"larger than all", b"larger than all"]
    assert kept.nbytes == kept.budget


def test_texts_and_small_pictures_count_with_what_is_around_them() -> None:
    kept = KeptFiles(budget=10 * ENTRY_NBYTES)

    def number_kept() -> int:
        return sum(kept.get(("", hashlib.sha256(bytes([k])).digest())) is not None for k in range(20))

    for k in range(20):
        kept.media("", bytes([k]), lambda: [page(1)])
    assert number_kept() == 9 and kept.nbytes <= kept.budget
    text = "a" * 2 * ENTRY_NBYTES
    kept.media("", b"text", lambda: [Media("image", Image.new("RGB", (1, 1)), "a.pdf", 1, text)])
    assert number_kept() == 6 and kept.nbytes <= kept.budget


def test_a_picture_counts_once_and_stays_where_its_tensors_are_too_large() -> None:
    tensors = ENTRY_NBYTES + Part.NBYTES
    for budget, calls in ((2 * ONE + tensors, 1), (ONE + tensors, 2)):
        kept = KeptFiles(budget)
        processor = kept.processor(Processor())
        for _ in range(2):
            _, (media,) = kept.media("", b"a", lambda: [page(10)])
            processor.image_processor([media.data])
        assert processor.image_processor.calls == calls
    kept = KeptFiles()
    _, (media,) = kept.media("", b"a", lambda: [page(10)])
    before = kept.nbytes
    kept.processor(Processor()).image_processor([media.data])
    assert kept.nbytes == before + tensors


def test_the_first_of_two_that_decode_at_once_is_for_both() -> None:
    kept, early = KeptFiles(), [page(10)]

    def decode() -> list[Media]:
        kept.media("", b"a", lambda: early)  # another thread was faster
        return [page(10)]

    assert kept.media("", b"a", decode)[1] is early and kept.nbytes == ONE + sys.getsizeof("")


class Part:
    """An image processor whose results show how often it was called."""

    size = 3
    NBYTES = 2 * 100 * 4  # of all of what is kept of a result

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, images: Any, **options: Any) -> BatchFeature:
        self.calls += 1
        whole = torch.full((2, 100), self.calls, dtype=torch.int32)
        return BatchFeature({"pixel_values": whole[:, ::50], "other": 1})


class Processor:
    def __init__(self) -> None:
        self.image_processor, self.tokenizer = Part(), object()


def test_calls_of_a_part_are_told_apart() -> None:
    processor = Processor()
    twin = KeptFiles().processor(processor)
    part, pictures = twin.image_processor, [Image.new("RGB", (4, 4)) for _ in range(2)]
    assert part.size == 3 and twin.tokenizer is processor.tokenizer and isinstance(processor.image_processor, Part)

    def number(images: Any, **options: Any) -> int:
        result = part(images, **options)
        result.pop("other")  # as processors do with what they have used
        return int(result["pixel_values"][0, 0])

    asked = [([pictures[0]], {}), ([pictures[1]], {}), (pictures, {}), ([[pictures[0]]], {}), ([pictures[0]], {"a": 1})]
    asked += [([pictures[0]], {"a": True}), ([np.zeros(3, np.float32)], {}), ([pictures[0]], {"a": {"b": None}})]
    for _ in range(2):
        assert [number(images, **options) for images, options in asked] == list(range(1, len(asked) + 1))
    before = processor.image_processor.calls
    assert [number(pictures, a=object()) for _ in range(2)] == [before + 1, before + 2]  # nobody knows what that is


def test_a_picture_in_the_place_of_another_is_not_taken_for_it() -> None:
    """Objects get the addresses of those that are gone."""
    part = KeptFiles().processor(Processor()).image_processor
    numbers = [int(part([Image.new("RGB", (4, 4))])["pixel_values"][0, 0]) for _ in range(20)]
    assert numbers == list(range(1, 21))


def test_memory_that_is_used_again_before_its_release_is_counted_out_as_it_was_in(monkeypatch) -> None:
    monkeypatch.setattr("kvmm.serve.files._memory", lambda part: part)
    memory = HeldMemory()
    first, larger, smaller = memory.hold([(1, 100)]), memory.hold([(1, 300)]), memory.hold([(1, 50), (2, 7)])
    assert memory.nbytes == 307
    for one in (first, smaller, larger):
        memory.release(one)
    assert memory.nbytes == 0


def test_requests_about_one_document_hold_its_tensors_once(omni: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(omni) as running:
        prepared, maker = running.service.prepared, running.service.maker
        scope = running.service.scope_of("")
        running.ask("What is the total?", image(), max_tokens=1)
        mine = made(maker, "What is the date?", image(), owner=scope)
        monkeypatch.setattr(http, "MAX_PREPARED", 1)
        held = prepared.hold(mine.tensors)
        assert prepared.nbytes >= sum(tensor.nbytes for tensor in mine.tensors) > 1
        before = prepared.nbytes
        running.ask("Who sent it?", image(), max_tokens=1)
        assert running.post(chat("What is the total?", image("receipt.png"))).status_code == 503
        running.ask("What is two and two?", max_tokens=1)
        running.wait_for(lambda: running.service.places == 0)
        assert prepared.nbytes == before
        prepared.release(held)
        assert prepared.nbytes == 0
        running.ask("What is the total?", image("receipt.png"), max_tokens=1)


def test_what_an_answer_has_read_is_not_held_until_its_end(omni: Any) -> None:
    with serving(omni) as running:
        running.service.engine.ends = frozenset()  # no answer ends before it is as long as it may be
        body = chat("What is the total?", image(), max_tokens=400, stream=True)
        with httpx.stream("POST", f"{running.url}/v1/chat/completions", json=body, timeout=600) as answer:
            lines = answer.iter_lines()  # its end would be that of the connection
            next(line for line in lines if '"content":"' in line.replace(" ", ""))
            running.wait_for(lambda: running.service.prepared.nbytes == 0)
            assert running.service.places == 1
