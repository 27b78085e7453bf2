"""The default model: its card and docs/models.md say what the committed results say."""

from __future__ import annotations

import hashlib
import json
import re

import pytest

from kvmm.models import load_model
from kvmm.models.loading import EMBEDDED_MODELS, assets_folder, embedded_models
from kvmm.models.packed_weights import PACKED_FILE
from kvmm.ui.parts.model_notes import scope_html
from tests.docs.pages import ROOT, text_of

FOLDER = ROOT / "assets/office-omni"
CARD = (FOLDER / "README.md").read_text(encoding="utf-8")
BLIND = {
    "all about pages: ANLS": "anls",
    "receipts": "anls/receipt",
    "a value beside its label": "anls/labelled value",
    "a cell by row and column": "anls/column lookup",
    "facts in prose": "anls/prose",
    "names without a label": "anls/unlabelled name",
    "charts": "anls/chart",
    "forms filled in by hand": "anls/form",
    "what the page does not say": "anls/unanswerable",
    "voice memos: exact match": "memo_exact_match",
    "transcription of a page: median character error rate": "cer_median",
    "word error rate of memos": "wer",
}
HELD_SETS = ROOT / "training/results/held_sets.json"
SETS = {
    "unseen fonts and values": "fonts",
    "unseen question wordings": "wordings",
    "table lookups": "tables",
    "the page does not say": "unanswerable",
    "conversations of three questions": "turns",
    "speech": "speech",
    "speech, unseen question wordings": "speech-wordings",
    "spoken question about a page": "spoken",
}


def blind(folder: str) -> dict:
    found = json.loads((ROOT / "benchmarks/results" / folder / "results.json").read_text(encoding="utf-8"))
    return found["results"]["blind_bf16"] | {"model": found["model_name"]}


def evaluation() -> dict:
    return json.loads((FOLDER / "evaluation.json").read_text(encoding="utf-8"))


def cells(label: str) -> list[str]:
    """What the card's tables have beside a label."""
    return re.search(rf"^\| {re.escape(label)} \| (.+) \|$", CARD, re.M).group(1).split(" | ")


def short(value: float) -> str:
    return f"{value:.3f}".removeprefix("0")


@pytest.mark.parametrize("label", BLIND)
def test_the_blind_scores_of_the_card(label):
    models = blind("blind_office"), blind("blind")
    assert [one["model"] for one in models] == ["office-omni", "tiny-omni"]
    assert cells(label) == [short(one[f"{BLIND[label]},none"]) for one in models]


def test_its_blind_scores_over_packed_caches():
    path = ROOT / "benchmarks/results/blind_office_packed/results.json"
    found, said = json.loads(path.read_text(encoding="utf-8")), " ".join(CARD.split())
    balanced, small = (found["results"][f"blind_{policy}"] for policy in ("balanced", "small"))
    for metric, text in (
        ("anls", "`balanced` has an ANLS of {} and `small` of {};"),
        ("memo_exact_match", "memos, exact match, {} and {},"),
        ("wer", "with a word error rate of {} and {}."),
    ):
        assert text.format(*(short(one[f"{metric},none"]) for one in (balanced, small))) in said
    full = json.loads((ROOT / "benchmarks/results/blind_office/results.json").read_text(encoding="utf-8"))
    assert found["config"]["model_fingerprint"] == full["config"]["model_fingerprint"]


def test_how_often_both_models_are_exactly_right():
    ours, other = (short(blind(folder)["exact_match,none"]) for folder in ("blind_office", "blind"))
    said = f"answers {float(ours) / float(other):.1f} times as many questions about ordinary documents exactly as"
    assert f"{said} `tiny-omni` ({ours} and {other})" in " ".join(CARD.split())


def test_its_refusals():
    scores = blind("blind_office")
    precision, recall = (scores[f"refusal_{name},none"] for name in ("precision", "recall"))
    assert f"Of its refusals {precision:.0%} are right, and it refuses {recall:.0%}".replace("%", " %") in CARD


@pytest.mark.parametrize("label", SETS)
def test_the_held_out_scores_of_the_card(label):
    models, name = json.loads(HELD_SETS.read_text(encoding="utf-8"))["models"], SETS[label]
    ours, today = (models[model]["sets"][name] for model in ("office-omni", "tiny-omni"))
    earlier = json.loads((ROOT / "assets/tiny-omni/evaluation.json").read_text(encoding="utf-8"))["sets"][name]
    scores = [short(one["exact_match"]) for one in (ours, today, earlier)]
    assert ours["n"] == today["n"] and cells(label) == [str(ours["n"]), *scores]


def test_the_held_out_scores_are_of_the_weights_that_ship():
    ships = hashlib.sha256((FOLDER / PACKED_FILE).read_bytes()).hexdigest()
    found = json.loads(HELD_SETS.read_text(encoding="utf-8"))["models"]["office-omni"], evaluation()
    assert [one["model_sha256"] for one in found] == [ships, ships]


def test_what_the_card_says_beside_its_tables():
    sets, said = evaluation()["sets"], " ".join(CARD.split())
    exact = {name: short(sets[name]["exact_match"]) for name in ("pages2-8", "unseen", "office")}
    asked = {name: sets[name]["n"] for name in exact}
    assert (
        f"Of {asked['pages2-8']} questions about documents of 2-8 pages it answers {exact['pages2-8']} exactly" in said
    )
    assert f"of 32 pages have a median character error rate of {short(sets['transcription']['cer_median'])}." in said
    assert f"Of {asked['unseen']} questions about written-out documents that training never meets" in said
    assert f"(the set `unseen`) it answers {exact['unseen']} exactly" in said
    assert f"of {asked['office']} about generated pages of an office {exact['office']}, ANLS" in said
    mean, median = (short(blind("blind_office")[f"{name},none"]) for name in ("cer", "cer_median"))
    assert f"a mean character error rate of {mean} beside the median of {median}" in said
    charts = json.loads((ROOT / "training/results/held_charts.json").read_text(encoding="utf-8"))["charts"]
    number, stated, absent = (short(charts["by_key"][key]["exact_match"]) for key in ("number", "stated", "absent"))
    assert f"it answers {short(charts['exact_match'])} exactly: {number} where the answer is a number, {stated}" in said
    assert f"where it is a word, {absent} where the chart does not say" in said


def test_what_the_page_of_models_says():
    said, scores = " ".join(text_of("docs/models.md").split()), (blind("blind_office"), blind("blind"))
    ours, other = (short(one["anls,none"]) for one in scores)
    assert f"an ANLS of {ours} where `tiny-omni` reaches {other}" in said
    assert abs(scores[0]["exact_match,none"] - 0.75) < 0.02
    for page in (said, " ".join(text_of("README.md").split()), scope_html("office-omni")):
        assert "gets one answer in four wrong" in page
    heard, unheard = (short(one["wer,none"]) for one in scores)
    assert f"word error rate of {heard} (`tiny-omni`: {unheard})" in said
    rows = json.loads((ROOT / "benchmarks/results/embedded_models.json").read_text())["results"]
    office, tiny = (
        [
            f"{next(row for row in rows if row['name'] == name)[f'{pages}_first_token_seconds']:.1f}"
            for pages in ("1_page", "4_pages")
        ]
        for name in EMBEDDED_MODELS
    )
    assert f"({tiny[0]} seconds until the first token of a page on two cores and {tiny[1]} of four pages" in said
    assert f"where `office-omni` takes {office[0]} and {office[1]})" in said
    card = " ".join(CARD.split())
    assert f"the first token comes {office[0]} seconds after a page, {office[1]} after four pages" in card
    for file in ("embedded_models_epyc", "embedded_models_float32"):
        rows = json.loads((ROOT / f"benchmarks/results/{file}.json").read_text())["results"]
        slow = next(row for row in rows if row["name"] == "office-omni")
        times = [f"{slow[f'{pages}_first_token_seconds']:.1f}" for pages in ("1_page", "4_pages")]
        assert f"{times[0]} and {times[1]} (`benchmarks/results/{file}.json`)" in card


def test_it_is_found_by_its_name(monkeypatch, tmp_path):
    assert embedded_models() == list(EMBEDDED_MODELS)
    model, processor = load_model("office-omni", device="cpu", dtype="bfloat16")
    assert model.name_or_path == str(assets_folder() / "office-omni")
    assert model.config.text_config.num_hidden_layers == 30 and model.dtype.is_floating_point
    assert processor.image_processor.size["longest_edge"] == 1000 * 28 * 28
    monkeypatch.setattr("kvmm.models.loading.assets_folder", lambda: tmp_path)
    assert embedded_models() == []  # as in a wheel


def test_what_it_makes_of_first_words_is_the_measured_one():
    found = json.loads((ROOT / "training/results/first_words.json").read_text(encoding="utf-8"))
    said = " ".join(CARD.split())
    kinds, others = found["said_to_be_a_passage"], found["refused"]
    right = {key: round(one["n"] * one["exact_match"]) for key, one in found["sets"]["first-words"]["by_key"].items()}
    assert f"{kinds['n']} pages of documents never met" in said and kinds["count"] == 0
    assert f"names the kind of document as its maker would on {right['kind']} of them" in said
    assert f"answers {right['any']} of 60 questions that fit any page" in said
    assert f"{right['talk']} of 60 greetings, thanks and requests; to {others['count']} of these {others['n']}" in said
    assert found["model_sha256"] == hashlib.sha256((FOLDER / PACKED_FILE).read_bytes()).hexdigest()
    exact = short(found["sets"]["first-words"]["exact_match"])
    text = " ".join(text_of("training/README.md").split())
    before = short(found["before"]["sets"]["first-words"]["exact_match"])
    assert f"answer {exact} of the held-out set `first-words` exactly, those before them {before}" in text
