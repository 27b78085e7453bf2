"""Several sessions on one model: the bytes of their caches, their files, saved conversations and their marks."""

from __future__ import annotations

import time

import pytest

from kvmm.errors import KVMMError
from kvmm.models.conversation import Conversation
from kvmm.models.loading import TINY_MODEL
from kvmm.policy import get_policy
from kvmm.ui import Models
from kvmm.ui.chat.session import MAX_TALKS, Session, UserMessage
from kvmm.ui.parts.talk_list import save_file, too_large
from kvmm.ui.server.signing import app_key, check_signature, sign
from kvmm.ui.server.uploads import new_folder
from kvmm.ui.server.visitors import FILE_SECONDS, Visitors
from kvmm.ui.settings import Settings

QUESTION = "What is the total?"


@pytest.fixture
def visitors(model_and_processor, tmp_path) -> Visitors:
    models = Models.of(*model_and_processor)
    (tmp_path / "uploads").mkdir()
    return Visitors(lambda desk: Session(models, desk, max_new_tokens=24), 1 << 40, tmp_path / "uploads")


def ask(session: Session, *files, **settings):
    return list(session.ask(UserMessage(QUESTION, tuple(map(str, files))), Settings(**{"policy": "kivi4"} | settings)))


def test_caches_used_longest_ago_make_room_and_are_filled_again(visitors, invoice):
    first, second = visitors.session("a"), visitors.session("b")
    ask(first, invoice)
    ask(second, invoice)
    sizes = [session.conversation.cache_nbytes() for session in (first, second)]
    assert visitors.cache_nbytes() == sum(sizes) and min(sizes) > 0
    assert 0 < visitors.media_nbytes() <= 2 * invoice.stat().st_size  # the files, not their pixels
    visitors.cache_budget = sum(sizes) + visitors.media_nbytes()
    assert visitors.keep_budget() == 0
    visitors.cache_budget -= 1
    assert visitors.keep_budget() == 1
    assert first.conversation.cache is None and second.conversation.cache is not None
    assert visitors.media_nbytes() <= invoice.stat().st_size  # of the other one; this one's is on disk
    steps = ask(first)
    assert "made room" in steps[-1].reread and steps[-1].progress.text == "$1,274.94"
    visitors.cache_budget = visitors.cache_nbytes() + visitors.media_nbytes() - 1
    assert visitors.keep_budget() == 1 and second.conversation.cache is None
    assert visitors.media_nbytes() == 0


def test_a_cache_that_is_being_written_to_is_neither_measured_nor_dropped(visitors, invoice, monkeypatch):
    session, idle = visitors.session("a"), visitors.session("b")
    ask(session, invoice)
    ask(idle, invoice)
    visitors.cache_budget = 0
    answer = session.ask(UserMessage(QUESTION), Settings(policy="kivi4"))
    next(answer)
    measured, measure = [], Conversation.cache_nbytes
    monkeypatch.setattr(Conversation, "cache_nbytes", lambda self: (measured.append(self), measure(self))[1])
    assert visitors.keep_budget() == 1 and measured == [idle.conversation]
    assert list(answer)[-1].progress.text == "$1,274.94"
    assert visitors.keep_budget() == 1 and visitors.cache_nbytes() == 0


def test_files_go_with_the_last_visitor_who_sent_them(visitors, tmp_path):
    first, second = visitors.session("a"), visitors.session("b")
    sent = new_folder(visitors.upload_folder)
    shared, own, again, sample = sent / "x.png", sent / "y.png", sent / "z.png", tmp_path / "sample.png"
    of_all = visitors.upload_folder / "0123abcd" / "sample.png"  # as Gradio keeps what its pages show
    of_all.parent.mkdir()
    for path in (shared, own, sample, again, of_all):
        path.write_bytes(b"x")
    visitors.keep_until_left(first, [shared, own, sample, again, of_all])
    again.chmod(0o600)  # sent again, by somebody who has not asked yet
    visitors.keep_until_left(second, [shared])
    folder = visitors.folder(first)
    (folder / "talk.kvmm").write_bytes(b"x")
    visitors.leave(visitors.find("a"))
    assert shared.exists() and sample.exists() and again.exists() and not own.exists() and not folder.exists()
    visitors.discard_upload(shared)  # another conversation shows it
    visitors.leave(second)
    assert not shared.exists() and sample.exists() and sent.exists()
    for path in (of_all, sample, again):
        visitors.discard_upload(path)
    visitors.now = lambda: time.time() + 2 * FILE_SECONDS
    visitors.clean_up([of_all, sample])
    assert of_all.exists() and sample.exists() and not sent.exists()


def test_a_fork_and_a_saved_conversation_go_on_and_the_list_stays_short(visitors, invoice, tmp_path):
    session = visitors.session("a")
    with pytest.raises(KVMMError, match="ask a question"):
        session.fork()
    with pytest.raises(KVMMError, match="ask a question"):
        session.save(tmp_path / "none.kvmm")
    settings = {"policy": "kivi4", "image": "oscar4-2", "num_sink_tokens": 8, "max_tokens": 20, "logprobs": True}
    ask(session, invoice, **settings)
    session.fork()
    assert not ask(session, **settings)[-1].reread
    session.open(session.talks[0].id)
    assert len(session.conversation.messages) == 2 and len(session.talks[1].conversation.messages) == 4
    session.save(tmp_path / "talk.kvmm")

    other = visitors.session("b")
    loaded = other.load(tmp_path / "talk.kvmm", None)
    assert loaded == Settings(**settings) and other.last.text == "$1,274.94" and len(other.talk.media) == 1
    assert other.prompt_inputs()["input_ids"].shape == session.prompt_inputs()["input_ids"].shape
    assert not ask(other, **settings)[-1].reread
    assert "Another policy" in ask(other, policy="bf16")[-1].reread  # the page itself is in the file, too
    shorter = Session(visitors.session("c").models, max_new_tokens=9)  # an app that allows fewer tokens
    assert shorter.load(tmp_path / "talk.kvmm", None) == Settings(**settings | {"max_tokens": None})
    for _ in range(MAX_TALKS + 2):
        session.fork()
    assert len(session.talks) == MAX_TALKS


def test_only_files_that_this_app_wrote_are_opened(visitors, invoice, tmp_path):
    session, key = visitors.session("a"), app_key(tmp_path / "state")
    assert app_key(tmp_path / "state") == key and (tmp_path / "state" / "app.key").stat().st_mode & 0o077 == 0
    ask(session, invoice)
    path = tmp_path / "talk.kvmm"
    session.save(path)
    with pytest.raises(KVMMError, match="not saved by this app"):
        check_signature(path, key)
    sign(path, key)
    check_signature(path, key)
    assert session.load(path, None).policy == "kivi4"  # it is still an ordinary file
    data = bytearray(path.read_bytes())
    for at in (-1, len(data) // 2, 200):
        changed = data.copy()
        changed[at] ^= 1
        (tmp_path / "changed.kvmm").write_bytes(changed)
        with pytest.raises(KVMMError, match=r"not saved by this app|not a saved conversation"):
            check_signature(tmp_path / "changed.kvmm", key)
    for text in (b"", b"\xff" * 64, (4).to_bytes(8, "little") + b"null", b"PK\x03\x04 not ours"):
        (tmp_path / "changed.kvmm").write_bytes(text)
        with pytest.raises(KVMMError, match="not a saved conversation"):
            check_signature(tmp_path / "changed.kvmm", key)


def test_a_visitor_has_one_saved_file_and_hears_when_it_is_too_large_to_open(visitors, invoice, tmp_path):
    session, other, key = visitors.session("a"), visitors.session("b"), app_key(tmp_path / "state")
    with pytest.raises(KVMMError, match="nothing to save"):
        save_file(visitors, session, key)
    ask(session, invoice)
    ask(other)
    theirs, first = save_file(visitors, other, key), save_file(visitors, session, key)
    second = save_file(visitors, session, key)
    assert not first.exists() and not first.parent.exists() and theirs.exists()
    check_signature(second, key)
    size = second.stat().st_size
    assert too_large(second, None) == too_large(second, size) == ""
    assert f"--max-upload {size // 2**20 + 1} " in too_large(second, size - 1)
    visitors.leave(session)
    assert not second.exists()


def test_settings_describe_a_policy_and_name_no_files():
    policy = Settings(policy="balanced", image="kivi2", residual_length=64).kv_policy()
    assert policy.image == policy.video == get_policy("kivi2").image and policy.text == get_policy("balanced").text
    assert policy.residual_length == 64 and policy.num_sink_tokens == get_policy("balanced").num_sink_tokens
    assert policy.name == "balanced · image kivi2 · residual 64"
    for wrong in ({"policy": "x.yaml"}, {"image": "/etc/passwd.yaml"}, {"residual_length": -1}, {"policy": "kivi9"}):
        with pytest.raises(KVMMError):
            Settings(**wrong).kv_policy()


def test_folders_of_models_are_shown_by_their_names(tmp_path):
    folders = [tmp_path / "a" / "tiny", tmp_path / "b" / "tiny", tmp_path / "b" / "large"]
    for folder in folders:
        folder.mkdir(parents=True)
    names = [None, "owner/name", *map(str, folders)]
    assert Models.named(names).names == [TINY_MODEL, "owner/name", str(folders[0]), str(folders[1]), "large"]
    assert Models.named([]).names == [TINY_MODEL]


def test_models_are_loaded_once_and_only_those_that_were_named():
    loaded = []
    models = Models({"small": lambda: loaded.append("small") or ("m", "p"), "large": lambda: loaded.append("large")})
    assert models.default == "small" and not models.is_loaded("small")
    assert models.get() == models.get("small") == ("m", "p") and loaded == ["small"]
    with pytest.raises(KVMMError, match="choose one of: small, large"):
        models.get("/some/folder")
