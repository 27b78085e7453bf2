"""Several models in one app: what is shown follows the chosen one, and figures of another are not its own."""

from __future__ import annotations

import copy
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.model_figures import gather
from kvmm.errors import KVMMError
from kvmm.models.loading import EMBEDDED_MODELS, OFFICE_MODEL, TINY_MODEL, assets_folder
from kvmm.policy.costs import plain_cost, short_cost
from kvmm.ui import Models, build_demo, launch_options
from kvmm.ui.chat.session import Session, UserMessage
from kvmm.ui.parts import model_notes
from kvmm.ui.parts.model_notes import FIGURES_PATH, NOT_MEASURED, has_policy_figures, model_html, scope_html
from kvmm.ui.parts.sidebar import policy_choices, policy_html, policy_legend
from kvmm.ui.settings import Settings

expect = pytest.importorskip("playwright.sync_api").expect

OTHER = "three layers"  # nothing was measured of it
LAYERS = 3


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_the_figures_are_those_of_the_results(dtype, monkeypatch):
    """The seconds are those of the dtype that the processor suits."""
    monkeypatch.setattr(model_notes, "cpu_multiplies_bfloat16", lambda: dtype == "bfloat16")
    written = json.loads(FIGURES_PATH.read_text(encoding="utf-8"))
    assert written == gather() and written["models"].keys() == set(EMBEDDED_MODELS)
    for name, found in written["models"].items():
        assert f"{found['anls']:.2f} of 1" in model_html(name) and NOT_MEASURED not in model_html(name)
        assert f"{found['first_token_seconds'][dtype]['4']:.1f} s after four" in model_html(name)
        assert f"seconds on two cores in {dtype}, policy" in model_html(name)
        for policy in ("balanced", "small"):
            one = found["packed"][policy]
            assert f"{policy} {one['anls']:.2f} ({one['bits_per_value']:.1f} bits)" in model_html(name)


@pytest.mark.parametrize(
    ("name", "remote"), [("owner/name", False), (OTHER, False), (OFFICE_MODEL, True), (TINY_MODEL, True), (None, False)]
)
def test_of_other_models_nothing_is_claimed(name, remote):
    assert model_html(name, remote=remote) == f'<div class="policy-line">Accuracy and speed: {NOT_MEASURED}.</div>'


def test_bits_and_answers_stand_beside_the_models_that_come_along():
    assert all(has_policy_figures(name) for name in EMBEDDED_MODELS)
    assert not any(has_policy_figures(name) for name in (OTHER, "owner/name", None))
    assert policy_choices(OFFICE_MODEL) == policy_choices(TINY_MODEL)
    assert "Both with tiny-omni." in policy_html("kivi2", OFFICE_MODEL)  # not with the chosen one
    assert policy_legend(OFFICE_MODEL) == f"{policy_legend(TINY_MODEL)}, with tiny-omni"
    assert dict(policy_choices(TINY_MODEL))[f"kivi2 · {short_cost('kivi2')}"] == "kivi2"
    assert all(label == name for label, name in policy_choices(OTHER)) and policy_legend(OTHER) == ""
    shown = policy_html("kivi2", OTHER)
    assert plain_cost("kivi2") in policy_html("kivi2", TINY_MODEL) and plain_cost("kivi2") not in shown
    assert f"Bits and right answers kept: {NOT_MEASURED}." in shown and "%" not in shown and "421" not in shown


def test_the_scope_says_whether_doubt_is_marked(tmp_path, monkeypatch):
    assert "does not say when it is unsure" not in scope_html(TINY_MODEL)
    (tmp_path / OFFICE_MODEL).mkdir()
    monkeypatch.setattr("kvmm.ui.parts.model_notes.assets_folder", lambda: tmp_path)
    assert "does not say when it is unsure" in scope_html(OFFICE_MODEL)
    (tmp_path / OFFICE_MODEL / "kvmm_confidence.json").touch()
    assert scope_html(OFFICE_MODEL) and "does not say when it is unsure" not in scope_html(OFFICE_MODEL)
    assert scope_html("owner/name") == scope_html(OTHER) == scope_html(None) == ""


def test_the_small_model_says_which_other_one_reads_more(models, samples_folder):
    assert f"choose {OFFICE_MODEL} under Model" in scope_html(TINY_MODEL, [TINY_MODEL, OFFICE_MODEL])
    assert not any(OFFICE_MODEL in scope_html(TINY_MODEL, names) for names in ([], [TINY_MODEL, OTHER]))
    both = Models({name: lambda: models.get(TINY_MODEL) for name in (TINY_MODEL, OFFICE_MODEL)})
    demo = build_demo(both, samples_folder=samples_folder)
    scope = next(one for one in demo.blocks.values() if getattr(one, "elem_id", None) == "scope")
    assert scope.value == scope_html(TINY_MODEL, both.names) != scope_html(TINY_MODEL)
    demo.close()


def test_names_of_the_apps_models_are_theirs_alone(tmp_path, monkeypatch):
    """A folder of the same name elsewhere is another model, and KVMM_DEFAULT_MODEL is not the embedded one."""
    mine = tmp_path / OFFICE_MODEL
    mine.mkdir()
    assets = assets_folder()
    assert Models.named([str(mine), str(assets / OFFICE_MODEL)]).names == [str(mine), OFFICE_MODEL]
    assert Models.named([str(assets / "tiny-omni")]).names == [TINY_MODEL] == Models.named([None]).names
    monkeypatch.setenv("KVMM_DEFAULT_MODEL", str(tmp_path))
    assert Models.named([None]).names == [tmp_path.name]


@pytest.mark.parametrize(
    ("default", "names"),
    [
        ("assets/tiny-omni", [TINY_MODEL, OFFICE_MODEL]),
        ("tiny-omni", [TINY_MODEL, OFFICE_MODEL]),
        ("./assets/office-omni/", [OFFICE_MODEL, TINY_MODEL]),
        ("", [OFFICE_MODEL, TINY_MODEL]),
    ],
)
def test_a_model_is_offered_once_however_the_default_is_named(default, names, monkeypatch):
    monkeypatch.chdir(assets_folder().parent)
    monkeypatch.setenv("KVMM_DEFAULT_MODEL", default)
    assert Models.named([None, *EMBEDDED_MODELS]).names == names
    assert Models.named([*EMBEDDED_MODELS, None]).names == list(EMBEDDED_MODELS)


def test_a_loaded_model_has_its_own_name(models):
    model, processor = models.get(TINY_MODEL)
    assert Models.of(model, processor).names == [TINY_MODEL]
    assert Models.of(*models.get(OTHER)).names == [type(model).__name__]  # of no folder


@pytest.fixture(scope="module")
def models(model_and_processor) -> Models:
    """The smaller embedded model, and one that has three of its layers."""
    model, processor = model_and_processor
    small = copy.deepcopy(model)
    decoder = small.get_decoder()
    decoder.layers = decoder.layers[:LAYERS]
    text_config = small.config.get_text_config(decoder=True)
    text_config.num_hidden_layers = LAYERS
    if getattr(text_config, "layer_types", None):
        text_config.layer_types = text_config.layer_types[:LAYERS]
    small.name_or_path = small.config.name_or_path = ""
    return Models({TINY_MODEL: lambda: (model, processor), OTHER: lambda: (small, processor)})


def test_the_curve_of_memory_is_of_one_model(models, invoice):
    session = Session(models, max_new_tokens=4)
    list(session.ask(UserMessage("What is the total?", (str(invoice),)), Settings()))
    first = session.talk.growth
    assert first and session.talk.answered_by == f"{TINY_MODEL} · balanced"
    updates = session.ask(UserMessage("And the tax?"), Settings(OTHER, "kivi2"))
    next(update for update in updates if update.progress.memory is not None)
    updates.close()
    assert session.talk.growth == first and session.talk.answered_by == f"{TINY_MODEL} · balanced", "it was stopped"
    list(session.ask(UserMessage("And the tax?"), Settings(OTHER, "kivi2")))
    assert session.talk.answered_by == f"{OTHER} · kivi2"
    per_token = {memory.nbytes_dense / memory.tokens for _, memory in session.talk.growth}
    layers = models.get(TINY_MODEL)[0].config.get_text_config(decoder=True).num_hidden_layers
    assert per_token == {first[0][1].nbytes_dense / first[0][1].tokens * LAYERS / layers}
    assert session.talk.growth[0][0] <= 2, "it counts from the model's own first token"


def test_a_saved_conversation_is_opened_with_its_own_model(models, invoice, tmp_path):
    session = Session(models, max_new_tokens=4)
    list(session.ask(UserMessage("What is the total?", (str(invoice),)), Settings(OTHER, "kivi2")))
    path = tmp_path / "saved.kvmm"
    session.save(path)
    for chosen in (TINY_MODEL, OTHER, None):
        opened = Session(models, max_new_tokens=4)
        settings = opened.load(path, chosen)
        assert (settings.model, settings.policy) == (OTHER, "kivi2")
        assert opened.talk.answered_by == f"{OTHER} · kivi2"
        assert opened.conversation.model is models.get(OTHER)[0]
    list(opened.ask(UserMessage("And the tax?"), settings))
    assert opened.talk.chats["kvmm"][-3:] and "read again" not in str(opened.talk.chats["kvmm"])
    alone = Session(Models.of(*models.get(TINY_MODEL)), max_new_tokens=4)
    with pytest.raises(KVMMError, match=r"^saved.kvmm was saved with another model than this app has: start the app"):
        alone.load(path, None)


@pytest.fixture(scope="module")
def url(models, samples_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    before = os.environ.get("GRADIO_TEMP_DIR")
    os.environ["GRADIO_TEMP_DIR"] = str(tmp_path_factory.mktemp("uploads"))
    demo = build_demo(models, samples_folder=samples_folder, max_new_tokens=8)
    _, local, _ = demo.launch(prevent_thread_lock=True, quiet=True, **launch_options(samples_folder))
    yield local
    demo.close()
    if before is None:
        del os.environ["GRADIO_TEMP_DIR"]
    else:
        os.environ["GRADIO_TEMP_DIR"] = before


def shows(page, model: str, measured: bool) -> None:
    chip = page.locator("#kvmm-header .chip").first
    expect(chip).to_have_text(model)
    expect(page.locator("#model input")).to_have_value(model)
    label = f"balanced · {short_cost('balanced')}" if measured else "balanced"
    expect(page.locator("#policy input")).to_have_value(label)
    line = plain_cost("balanced") if measured else NOT_MEASURED
    expect(page.locator("#policy-line")).to_contain_text(line)
    scope = "tiny-omni is the smallest model.*" if measured else ""
    expect(page.locator("#scope")).to_have_text(re.compile(rf"^\s*{scope}\s*$"))


@pytest.mark.parametrize("options", [{}, {"viewport": {"width": 390, "height": 844}, "is_mobile": True}])
def test_what_is_shown_follows_the_model(visit, screenshot, options):
    page = visit(**options)
    if options:
        expect(page.locator("#chat-kvmm")).to_be_visible()
        page.wait_for_timeout(1500)  # the page closes the sidebar once
        page.locator("#sidebar .toggle-button").click()
    shows(page, TINY_MODEL, measured=True)
    page.locator("#model input").focus()  # by the keyboard alone
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    shows(page, OTHER, measured=False)
    page.locator("#policy input").click()
    expect(page.get_by_role("option", name="rd1", exact=True)).to_be_visible()
    heading = page.get_by_role("option", name="rd1", exact=True).evaluate(
        "e => getComputedStyle(e, '::before').content"
    )
    assert heading == '"kvmm\'s own"'
    page.keyboard.press("Escape")
    screenshot(page, f"other-model-{'phone-390' if options else '1280'}")
    width = page.evaluate("[document.documentElement.scrollWidth, window.innerWidth]")
    assert width[0] <= width[1], "the page scrolls sideways"
    if options:
        page.locator("#sidebar .toggle-button").click()
    page.get_by_text("Invoice: the total").click()
    expect(page.locator("[data-stat=by]")).to_have_text(f"{OTHER} · balanced")
    expect(page.locator("#chat-kvmm .thought-group .title", has_text="KV ")).to_have_count(1)
    visit.reload(page)
    shows(page, OTHER, measured=False)
    expect(page.locator("[data-stat=by]")).to_have_text(f"{OTHER} · balanced")


def test_an_opened_conversation_brings_its_model(visit, tmp_path):
    page = visit()
    page.locator("#model input").click()
    page.get_by_role("option", name=OTHER).click()
    page.get_by_text("Invoice: the total").click()
    expect(page.locator("#chat-kvmm .thought-group .title", has_text="KV ")).to_have_count(1)
    with page.expect_download() as download:
        page.locator("#save").click()
    download.value.save_as(tmp_path / "saved.kvmm")
    other = visit()
    shows(other, TINY_MODEL, measured=True)
    with other.expect_file_chooser() as chooser:
        other.locator("#load").click()
    chooser.value.set_files(str(tmp_path / "saved.kvmm"))
    shows(other, OTHER, measured=False)
    expect(other.locator("[data-stat=by]")).to_have_text(f"{OTHER} · balanced")


def test_the_tabs_are_of_the_conversations_model(visit):
    page = visit()
    page.locator("#model input").click()
    page.get_by_role("option", name=OTHER).click()
    page.get_by_text("Invoice: the total").click()
    expect(page.locator("#chat-kvmm .thought-group .title", has_text="KV ")).to_have_count(1)
    page.get_by_role("tab", name="Token norms").click()
    expect(page.locator("#norm-layer input[type=range]")).to_have_attribute("max", str(LAYERS - 1))
    expect(page.locator("#norm-summary")).to_contain_text("image")
    page.get_by_role("tab", name="Methods").click()
    expect(page.locator("#methods-told")).to_contain_text(NOT_MEASURED)
    expect(page.get_by_label("rd1", exact=True)).to_be_checked()
    page.get_by_role("tab", name="Planner").click()
    page.locator("#plan-model input").click()
    page.get_by_role("option", name=f"This app's: {OTHER}").click()
    expect(page.locator("#plan-shape")).to_contain_text(re.compile(rf"{OTHER}: {LAYERS} layers"))
