"""The page generator and the packed sequences: what a question asks for is on the page, and nothing leaks."""

import re
from dataclasses import replace

import numpy as np
import pytest

pytestmark = pytest.mark.usefixtures("train_assets")

NOT_PRINTED = {
    "kind",
    "item_count",
    "row_count",
    "section_count",
    "numbered_line",
    "dearest_item",
}  # counted, named or chosen, not read


@pytest.fixture(scope="module")
def pages(train_assets):
    from training.pages import PAGE_SHAPES, make_page

    return [make_page(seed, *PAGE_SHAPES[seed % len(PAGE_SHAPES)]) for seed in range(48)]


def test_pages_are_reproducible(pages):
    from training.pages import PAGE_SHAPES, make_page

    again = make_page(7, *PAGE_SHAPES[7])
    assert np.array_equal(again.ink, pages[7].ink) and again.facts == pages[7].facts
    other = make_page(8, *PAGE_SHAPES[7])
    assert not np.array_equal(other.ink, pages[7].ink)


def test_facts_are_printed_and_unambiguous(pages):
    for page in pages:
        printed = " ".join(page.lines)  # a value may be wrapped
        identities = [fact.identity for fact in page.facts]
        assert len(identities) == len(set(identities))
        for fact in page.facts:
            if fact.key not in NOT_PRINTED:
                # between columns, lines of a wrapped value are apart
                parts = fact.value.split() if page.kind == "sheet" else [fact.value]
                assert all(part in printed for part in parts), (page.kind, fact)
            if fact.key in ("field", "cell"):
                assert fact.label in printed, (page.kind, fact)


def test_panels_keep_what_is_drawn(pages):
    from training.pages.canvas import Canvas, face, font_files

    canvas = Canvas(56, 140)
    canvas.text(10, 30, "Total", face(font_files(False)[0], 20))
    before = canvas.ink().astype(int)
    canvas.panel(0, 0, 139, 55, 200, inverted=True)
    assert np.abs(canvas.ink().astype(int) - (200 - before * 200 // 255)).max() <= 1
    assert canvas.lines() == ["Total"]
    canvas.panel(0, 0, 139, 10, 230)
    assert canvas.ink()[:11].min() == 230 and canvas.ink()[11:].min() == 0


def test_sheets_state_facts_without_labels(train_assets):
    from training.pages import make_page

    sheets = [make_page(seed, 756, 532, kind="sheet") for seed in range(60)]
    keys = {fact.key for page in sheets for fact in page.facts}
    assert {"issuer", "customer", "total", "due_date", "venue", "doc_number", "entry"} <= keys
    assert sum(len(page.facts) for page in sheets) > 8 * len(sheets)
    assert any((page.ink > 150).mean() > 0.2 for page in sheets), "no dark panels"


def test_character_map_matches_the_ink(pages):
    """Cells that hold a character hold ink, and the map spells what the transcription does."""
    for page in pages[:12]:
        rows, columns = np.nonzero(page.chars)
        assert len(rows) > 0
        contrast = [
            np.ptp(page.ink[14 * y : 14 * y + 14, 7 * x : 7 * x + 7]) for y, x in zip(rows, columns, strict=True)
        ]
        assert np.mean(np.array(contrast) > 60) > 0.9
        letters = {chr(c + 32) for c in np.unique(page.chars[page.chars > 0])}
        assert letters <= set("".join(page.lines))


def test_held_out_wordings_never_occur_in_training():
    from training.pages import Fact, Rng
    from training.wordings import FRAMES, HELD_FRAMES, WORDINGS, phrase_question

    assert not set(FRAMES) & set(HELD_FRAMES)
    r = Rng(0)
    for key, wording in WORDINGS.items():
        assert not set(wording.direct) & set(wording.held), key
        fact = Fact(key, "x", "Label", "Subject")
        seen = {phrase_question(r, fact).lower() for _ in range(300)}
        held = {phrase_question(r, fact, held=True).lower() for _ in range(60)}
        assert not seen & held, (key, seen & held)


def test_absent_facts_are_absent(pages):
    from training.pages import Rng
    from training.questions import absent_facts
    from training.wordings import NOT_STATED

    r, n = Rng(3), 0
    for page in pages:
        for fact in absent_facts(r, [page], 6):
            n += 1
            assert fact.value == NOT_STATED
            assert fact.identity not in {known.identity for known in page.facts}
            if fact.subject:
                assert fact.subject not in "\n".join(page.lines)
    assert n > 100


def test_a_document_names_the_page_only_where_it_must(pages):
    from training.questions import document_facts

    first, second = pages[0], pages[1]
    assert all(number is None for _, number in document_facts([first]))
    for fact, number in document_facts([first, second]):
        if number is None:
            assert sum(fact.identity in {f.identity for f in page.facts} for page in (first, second)) == 1
    assert {number for _, number in document_facts([first, first])} == {1, 2}


def test_sequences_hold_what_the_mask_needs(pages):
    from training.dataset import SPECS, make_step
    from training.sequences import ANSWER, PADDING, PREFIX
    from training.tokenizer import EOS, IMAGE

    spec = replace(next(s for s, _ in SPECS if s.pages == 2), sequences=2)
    step = make_step(11, spec)
    assert step["ids"].shape == step["seg"].shape == step["weight"].shape == (2, spec.seq_len)
    assert (step["ids"] == IMAGE).sum() == 2 * 2 * spec.page_tokens
    for ids, seg, weight, pos in zip(
        step["ids"], step["seg"], step["weight"], step["pos"].transpose(1, 0, 2), strict=True
    ):
        starts = set()
        for branch in sorted(set(seg.tolist()) - {PREFIX, PADDING}):
            own = seg == branch
            assert weight[own].max() > 0 and np.all(np.diff(np.flatnonzero(own)) == 1)
            assert np.all(np.diff(pos[0, own]) == 1)
            starts.add(int(pos[0, own][0]))
            if ANSWER in weight[own]:
                assert ids[own][-1] == EOS
        assert len(starts - {0}) == 1  # every branch continues the same prefix
        assert weight[seg == PADDING].max(initial=0) == 0


def test_a_later_page_stands_in_a_turn_of_its_own():
    """As a chat template writes a conversation in which a second document is dropped in."""
    from transformers import PreTrainedTokenizerFast

    from training.dataset import SPECS, make_step
    from training.sequences import PREFIX
    from training.wordings import NOT_STATED

    tokenizer = PreTrainedTokenizerFast.from_pretrained("assets/tiny-omni")
    spec = replace(next(s for s, _ in SPECS if s.pages == 2), sequences=4)
    step = make_step(5, spec, later_share=1.0)
    turn = r"<\|vision_bos\|>(?:<\|IMAGE\|>)+<\|vision_eos\|>"
    for ids, seg in zip(step["ids"], step["seg"], strict=True):
        said = tokenizer.decode(ids[seg == PREFIX])
        found = re.fullmatch(
            rf"<\|im_start\|>user\n{turn}(.+?)<\|im_end\|>\n<\|im_start\|>assistant\n(.+?)<\|im_end\|>\n"
            rf"<\|im_start\|>user\n{turn}",
            said,
            re.DOTALL,
        )
        page = {"type": "image"}
        conversation = [
            {"role": "user", "content": [page, {"type": "text", "text": found[1]}]},
            {"role": "assistant", "content": [{"type": "text", "text": found[2]}]},
            {"role": "user", "content": [page, {"type": "text", "text": "What is the total?"}]},
        ]
        prompt = tokenizer.apply_chat_template(conversation, tokenize=False, add_generation_prompt=True)
        assert prompt.startswith(re.sub(r"(<\|IMAGE\|>)+", "<|IMAGE|>", said))
        assert NOT_STATED not in tokenizer.decode(ids[seg != PREFIX])  # the first page may state it
