"""Prompts read in pieces: the same tokens as in one, told page by page, stopped within a second."""

from __future__ import annotations

import threading
import time

import pytest
import torch

from kvmm.analysis import record_norms
from kvmm.cache import KVMMCache
from kvmm.errors import KVMMError
from kvmm.media import Media
from kvmm.models import FAMILIES, Conversation, load_model
from kvmm.models.documents import Document
from kvmm.models.generation import Stopped, stoppable, unless_stopped
from kvmm.models.pieces import Piece, divide
from kvmm.models.positions import all_position_ids
from kvmm.models.prompting import Prompt
from kvmm.models.question import PIECE_TOKENS
from kvmm.models.reading import read_piece, read_pieces
from tests import tiny_models as tiny
from tests.models import checkpoints
from tests.models.conftest import draw_page
from tests.models.test_conversation import LENGTH, CountForwardedTokens, last
from tests.models.test_families import picture, sound


def pieces_of(monkeypatch, tokens: int) -> None:
    monkeypatch.setitem(PIECE_TOKENS, "cpu", tokens)


ONE_PIECE = {"llava_onevision"}  # with several pictures its tensors do not say which is cut into tiles


def keys(cache) -> list[torch.Tensor]:
    """``[H, T, D]`` by layer: the keys of a cache that packs nothing."""
    return [layer.keys[0] for layer in cache.layers]


@pytest.fixture(scope="module")
def omni():
    """The embedded model, which reads every page, however often it saw that before."""
    return load_model(device="cpu", dtype=torch.float32)


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_pieces_give_what_one_piece_gives(family, tmp_path, monkeypatch):
    model, processor = load_model(checkpoints.save(family, tmp_path), device="cpu", dtype=torch.float32)
    input_modalities = FAMILIES[model.config.model_type].modalities
    media = [picture(0, (40, 24)), picture(1, (24, 40)), picture(2, (32, 32))] if "image" in input_modalities else []
    media += [sound(3), sound(4, 12_000)] if "audio" in input_modalities else []
    for policy in ("dynamic", "bf16"):
        outcomes = []
        for size in (10_000, 8):
            pieces_of(monkeypatch, size)
            talk = Conversation(model, processor, policy)
            with CountForwardedTokens(model) as lengths:
                answers = [last(talk.ask("What is in all of them?", media, max_new_tokens=LENGTH))]
                answers.append(last(talk.ask("And which one comes first?", media[:1], max_new_tokens=LENGTH)))
            many = [count for count in lengths if count > 1]
            assert len(many) == 2 if size > 8 or family in ONE_PIECE else len(many) > 4
            outcomes.append((answers, talk))
        (one, whole), (some, divided) = outcomes
        assert [answer.token_ids for answer in one] == [answer.token_ids for answer in some], policy
        if policy == "dynamic":
            torch.testing.assert_close(keys(divided.cache), keys(whole.cache), atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("shortens", [True, False])
def test_pieces_of_several_prompts_give_the_logits_behind_each(shortens, monkeypatch):
    """Whether or not the model's forward takes how many logits to make: it never makes those of other tokens."""
    model, generator = tiny.build("qwen2_vl"), torch.Generator().manual_seed(0)
    ids = [torch.randint(40, 60, (1, length), generator=generator) for length in (30, 12, 45)]
    prompts = [Prompt({"input_ids": row, "attention_mask": torch.ones_like(row)}, {}, row, {}) for row in ids]
    ends = [[20, 30], [5, 12], [43, 45]]
    positions = [all_position_ids(model, prompt.inputs) for prompt in prompts]
    if not shortens:
        whole = model.forward

        def forward(input_ids, position_ids, past_key_values, use_cache, return_dict, attention_mask=None):
            return whole(input_ids, attention_mask, position_ids, past_key_values, use_cache=True, return_dict=True)

        monkeypatch.setattr(model, "forward", forward)
    alone, together = ([KVMMCache.for_model(model, "bf16") for _ in ids] for _ in range(2))
    made = []
    model.get_output_embeddings().register_forward_hook(lambda head, inputs, logits: made.append(logits.shape[1]))
    with torch.no_grad():
        for k in range(2):
            pieces = [Piece(end[k - 1] if k else 0, end[k]) for end in ends]
            places = [{"position_ids": place} for place in positions]
            each = zip(alone, prompts, pieces, places, strict=True)
            expected = torch.cat([read_piece(model, *one)[:, -1] for one in each])
            found = read_pieces(model, together, prompts, pieces, positions)
            torch.testing.assert_close(found, expected, atol=0.02, rtol=0)
    assert made == [1, 1, 1, 3] * 2
    assert not model.get_output_embeddings()._forward_pre_hooks


def test_no_medium_is_in_two_pieces_and_none_has_a_single_token():
    pictures = [{"pixel_values": torch.zeros(1, 1)}] * 2
    pieces = divide(0, 100, [(10, 40), (41, 61)], pictures, 16)
    assert [(piece.start, piece.end, piece.pages) for piece in pieces] == [
        (0, 40, 1),
        (40, 61, 1),
        (61, 77, 0),
        (77, 93, 0),
        (93, 100, 0),
    ]
    assert [(p.start, p.end) for p in divide(0, 33, [], [], 16)] == [(0, 16), (16, 33)]  # not 32 to 33
    assert [(p.start, p.end) for p in divide(5, 62, [(10, 61)], pictures[:1], 16)] == [(5, 62)]
    assert [(p.start, p.end) for p in divide(7, 9, [], [], 16)] == [(7, 9)]


def test_pages_are_told_and_read_one_by_one(omni, invoice, receipt, tone, monkeypatch):
    model, processor = omni
    talk = Conversation(model, processor, "bf16")
    pages = [Media("image", item.data, "a.pdf", page) for page, item in enumerate([invoice, receipt, invoice], 1)]
    pieces_of(monkeypatch, 64)
    seen = list(talk.ask("What is the receipt number?", pages, max_new_tokens=LENGTH))
    later = list(talk.ask("What is the date?", [tone], max_new_tokens=LENGTH))
    told = [progress.reading for progress in seen if progress.reading]
    assert [(reading.page, reading.pages) for reading in told][:3] == [(1, 3), (2, 3), (3, 3)]
    shares = [reading.share for reading in told]
    assert shares == sorted(shares) and shares[0] == 0 and shares[-1] > 0.6
    assert seen[-1].reading is None and seen[-1].text
    assert {reading.pages for progress in later if (reading := progress.reading)} == {0}


def test_a_prompt_makes_logits_of_its_last_token_alone(omni, tone):
    """Also with a Qwen-Omni, whose forward has no argument for it."""
    model, processor = omni
    made, head = [], model.get_output_embeddings()
    hook = head.register_forward_hook(lambda head, inputs, logits: made.append(logits.shape[1]))
    try:
        talk = Conversation(model, processor, "bf16")
        *_, last = talk.ask("What is said?", [tone], max_new_tokens=4)
        assert made == [1] * last.tokens
        made.clear()
        inputs = talk.prompt_inputs()
        record_norms(model, inputs)
        Document(model, {name: value for name, value in inputs.items() if name != "position_ids"})
    finally:
        hook.remove()
    assert made == [1, 1] and not head._forward_pre_hooks


@pytest.fixture
def document(omni) -> list[Media]:
    """A document of eight dense pages, as large as those of a PDF."""
    lines = [f"Item {i}: {i * 37 % 91}.50 paid on {i % 28 + 1} March" for i in range(20)]
    image = draw_page(lines, (876, 1225), 24)
    return [Media("image", image, "report.pdf", page) for page in range(1, 9)]


@pytest.mark.parametrize("policy", ["balanced", "dynamic"])
@pytest.mark.parametrize("page", [0, 1, 3])
def test_stop_takes_effect_within_a_second_while_pages_are_read(omni, document, policy, page):
    """0: while pixels are prepared; else while that page is being read."""
    model, processor = omni
    talk, stop = Conversation(model, processor, policy), threading.Event()
    pressed: list[float] = []

    def press() -> None:
        pressed.append(time.perf_counter())
        stop.set()

    timer = threading.Timer(0.2, press)
    if page == 0:
        timer.start()
    for progress in talk.ask("What was paid?", document, stop=stop):
        reading = progress.reading
        if page and reading and reading.page == page and not timer.is_alive() and not pressed:
            timer.start()
        assert not progress.text
    assert progress.done and progress.stopped and time.perf_counter() - pressed[0] < 1.0
    assert talk.messages == [] and talk.cache is None
    assert "pre_hook" not in str([m._forward_pre_hooks for m in model.modules() if m._forward_pre_hooks])


def test_a_document_stopped_in_a_later_turn_leaves_the_cache_of_the_first(omni, invoice, document):
    model, processor = omni
    for policy in ("bf16", "dynamic"):
        talk, stop = Conversation(model, processor, policy), threading.Event()
        first = last(talk.ask("What is the total?", [invoice], max_new_tokens=LENGTH))
        expected = last(talk.fork().ask("What is the date?", max_new_tokens=LENGTH))
        for progress in talk.ask("What was paid?", document[:2], stop=stop):
            if progress.reading and progress.reading.page == 2:
                stop.set()
        assert progress.stopped and talk.is_current
        talk.forget_stopped()
        with CountForwardedTokens(model) as lengths:
            again = last(talk.ask("What is the date?", max_new_tokens=LENGTH))
        assert first.text == "$42.50" and again.token_ids == expected.token_ids and lengths[0] < 40


def test_work_that_is_stopped_is_left_alone():
    stop = threading.Event()
    assert unless_stopped(lambda: 3, stop) == 3
    with pytest.raises(KVMMError, match="no"):
        unless_stopped(lambda: (_ for _ in ()).throw(KVMMError("no")), stop)
    end = threading.Event()
    threading.Timer(0.1, stop.set).start()
    begin = time.perf_counter()
    with pytest.raises(Stopped):
        unless_stopped(lambda: end.wait(30), stop)
    assert time.perf_counter() - begin < 5
    end.set()


def test_a_pass_is_stopped_between_blocks():
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = torch.nn.ModuleList(torch.nn.Linear(2, 2) for _ in range(3))
            self.calls = 0

        def forward(self, x):
            for block in self.blocks:
                x = block(x)
                self.calls += 1
                if self.calls == 2:
                    stop.set()
            return x

    stop, model = threading.Event(), Model()
    with stoppable(model, stop.is_set) as end:
        with pytest.raises(Stopped):
            model(torch.zeros(1, 2))
        assert model.calls == 2
        end()
        model(torch.zeros(1, 2))
    assert model.calls == 5 and not any(block._forward_pre_hooks for block in model.blocks)
