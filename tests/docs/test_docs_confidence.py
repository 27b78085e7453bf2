"""What docs say of confidence and of the text of PDFs stands in the committed files."""

from __future__ import annotations

from benchmarks import blind_confidence
from kvmm.decoding.files import MAX_PAGE_TEXT
from tests.docs.pages import results, text_of


def test_what_is_said_of_confidence():
    said, found = " ".join(text_of("docs/python.md").split()), results("confidence/heldout")["test"]["bf16"]
    marked = found["unsure"]
    assert f"On {found['n']} questions about held-out pages" in said
    assert f"of which `tiny-omni` answers {found['right']:.0%} right".replace("%", " %") in said
    assert f"calibration error is {found['ece']:.3f}".replace("0.", ".") in said
    assert f"wrong answers {found['auroc']:.3f}".replace("0.", ".") in said
    assert f"of the {marked['n']} answers that were marked {marked['right']:.0%} were".replace("%", " %") in said


def test_what_is_said_of_confidence_on_ordinary_documents():
    page, found = text_of("docs/python.md"), results("confidence/blind")
    assert blind_confidence.marked(page, blind_confidence.BEGIN) == blind_confidence.committed_table()
    said, told = " ".join(page.split()), found["test"]["bf16"]["text_layer"]
    assert f"Of the {told['n']} answers in full precision to questions about the blind set's PDFs" in said
    assert told["not_supported"]["exact"] == 0 and found["own_answers"]["not_supported"] == 0
    only = told["unsure"]["n"] - told["unsure_by_logits"]["n"]
    assert f"{told['not_supported']['n']} are marked for that, {only} of them by nothing else" in said
    assert f"more than {MAX_PAGE_TEXT:,} characters" in said
    assert found["fingerprint"] == results("confidence/heldout")["fingerprint"]


def test_what_is_said_of_the_nearest_passages():
    said, found = " ".join(text_of("docs/python.md").split()), results("confidence/nearest_text")
    told = found["policies"]["bf16"]
    assert found["fingerprint"] == results("blind_office/results")["config"]["model_fingerprint"]
    assert f"Of the {told['n']} answers of `office-omni` about the blind set's PDFs" in said
    wrong = told["proposed"] - told["answers_right"]
    assert f"support {told['not_supported']}; it has a passage for {told['proposed']}, {wrong} of them wrong" in said
    assert f"{told['passages_right']} of the passages are the right ones" in said
