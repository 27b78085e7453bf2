"""Files that take long or much: their owner is told, others do not wait, and what is kept is the file."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from gradio_client import Client, handle_file

from kvmm import media
from kvmm.errors import KVMMError
from kvmm.media import Media, load_media, media_nbytes
from kvmm.samples import SAMPLES
from kvmm.ui.chat.session import Session, UserMessage
from kvmm.ui.models import Models
from kvmm.ui.parts.previews import previews_html
from kvmm.ui.server.heartbeats import Heartbeats
from kvmm.ui.server.visitors import GRACE_SECONDS, Visitors
from kvmm.ui.settings import Settings
from kvmm.ui.tabs.common import LongWork
from tests.decoding import hostile
from tests.decoding.processes import rss
from tests.ui import event_loop

pytestmark = pytest.mark.alone

QUESTION, ANSWER = "What is the total?", "$1,274.94"
FAST = Settings(policy="kivi4")


@pytest.fixture(scope="module")
def strokes(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("heavy") / "strokes.pdf"
    path.write_bytes(hostile.strokes())
    return path


class House:
    """Visitors, and the time that passes for them."""

    def __init__(self, models: Models, folder: Path) -> None:
        self.now = 1e9
        folder.mkdir()
        options = {"max_new_tokens": 24, "now": lambda: self.now}
        self.visitors = Visitors(lambda desk: Session(models, desk, **options), 1 << 40, folder, lambda: self.now)

    def wait(self, minutes: float) -> None:
        """Let time pass, with the clean-ups that belong to it."""
        until = self.now + 60 * minutes
        while self.now < until:
            self.now = min(self.now + 600, until)
            self.visitors.clean_up()


@pytest.fixture
def house(model_and_processor, tmp_path) -> House:
    return House(Models.of(*model_and_processor), tmp_path / "uploads")


def ask(session: Session, path: Path) -> float:
    """Seconds until the answer, which must be right."""
    begin = time.monotonic()
    answer = session.begin(UserMessage(QUESTION, (str(path),)), FAST)
    answer.prepare()
    answer.start()
    for _ in answer.watch():
        pass
    assert answer.error is None and answer.last["kvmm"].text == ANSWER
    return time.monotonic() - begin


def test_others_are_answered_while_a_file_is_read_and_stop_ends_it(house, strokes, invoice):
    heavy, other = house.visitors.session("a"), house.visitors.session("b")
    alone = min(ask(other, invoice) for _ in range(2))
    answer = heavy.begin(UserMessage(QUESTION, (str(strokes),)), FAST)
    reading = threading.Thread(target=answer.prepare)
    reading.start()
    time.sleep(0.3)
    beside = min(ask(other, invoice) for _ in range(2))
    assert reading.is_alive() and not answer.done, "it is still read"
    assert beside < 2 * alone
    asked = time.monotonic()
    heavy.stop()
    reading.join(5)
    assert time.monotonic() - asked < 1.0 and answer.done and answer.stopped
    assert "stopped" in str(heavy.chats["kvmm"]) and not heavy.is_busy


def test_an_answer_that_has_begun_stops_while_it_reads(house, strokes):
    session = house.visitors.session("a")
    answer = session.begin(UserMessage(QUESTION, (str(strokes),)), FAST)
    answer.start()
    time.sleep(1)
    asked = time.monotonic()
    session.stop()
    for _ in answer.watch():
        pass
    assert time.monotonic() - asked < 1.5 and answer.stopped and answer.error is None


def test_what_is_wrong_with_a_file_is_said_once_it_is_its_turn(house, invoice, tmp_path):
    (tmp_path / "square.pdf").write_bytes(hostile.square_pages())
    session = house.visitors.session("a")
    answer = session.begin(UserMessage(QUESTION, (str(invoice), str(tmp_path / "square.pdf"))), FAST)
    answer.prepare()
    assert not answer.done and session.is_busy
    with pytest.raises(KVMMError, match="64 pages of square"):
        list(answer.updates())
    assert "64 pages of square.pdf" in str(session.chats["kvmm"]) and not session.is_busy
    assert ask(session, invoice) > 0


def test_a_file_that_is_gone_is_named_without_its_folder(house, tmp_path):
    session = house.visitors.session("a")
    answer = session.begin(UserMessage(QUESTION, (str(tmp_path / "page.png"),)), FAST)
    answer.prepare()
    with pytest.raises(KVMMError, match=r"^page\.png is gone: upload it again\.$"):
        list(answer.updates())
    assert str(tmp_path) not in str(session.chats["kvmm"][-1])


def test_a_recording_that_was_refused_is_not_held(house, tmp_path):
    (tmp_path / "long.flac").write_bytes(hostile.flac(minutes=2, rate=16_000, channels=1))
    session = house.visitors.session("a")
    answer = session.begin(UserMessage(QUESTION, (str(tmp_path / "long.flac"),)), FAST)
    answer.prepare()
    with pytest.raises(KVMMError, match="cut it into parts"):
        list(answer.updates())
    (item,) = answer.exchange.media
    assert item.nbytes == 0 and media_nbytes([item]) == 0
    assert len(item.data) == 2 * 60 * 16_000, "it is read again for who asks for it"
    gone = weakref.ref(answer)
    del answer, item
    session.delete()
    gc.collect()
    assert gone() is None


def test_a_caller_of_the_endpoints_holds_nobody(app, strokes, invoice):
    first, second = (Client(app.url, verbose=False, download_files=False) for _ in range(2))

    def seconds() -> float:
        begin = time.monotonic()
        found = second.predict([handle_file(invoice)], QUESTION, "kivi4", api_name="/ask")
        assert found["answer"] == ANSWER
        return time.monotonic() - begin

    alone = min(seconds() for _ in range(2))
    job = first.submit([handle_file(strokes)], QUESTION, "kivi4", api_name="/ask")
    time.sleep(0.5)
    beside = min(seconds() for _ in range(2))
    assert not job.done() and beside < 2 * alone
    with pytest.raises(Exception, match=r"Page 1 of strokes\.pdf takes too long to read"):
        job.result(timeout=60)


def test_a_heavy_file_has_no_preview(strokes, monkeypatch):
    monkeypatch.setattr("kvmm.ui.parts.previews.SECONDS", 1)
    begin = time.monotonic()
    with pytest.raises(KVMMError, match="was stopped"):
        previews_html([str(strokes)])
    assert time.monotonic() - begin < 3


# -- what is kept ----------------------------------------------------------------------------------------------------


@pytest.fixture
def pages(tmp_path) -> list[Media]:
    from reportlab.pdfgen import canvas

    document = canvas.Canvas(str(tmp_path / "two.pdf"))
    for word in ("first", "second"):
        document.drawString(100, 500, f"The {word} page")
        document.showPage()
    document.save()
    return load_media(tmp_path / "two.pdf", keep=True)


def test_released_pixels_are_decoded_again(pages, invoice):
    for item in [*pages, *load_media(invoice, keep=True)]:
        before = np.asarray(item.data)
        size = item.nbytes
        item.release()
        assert item.content and item.nbytes == 0 and size == 4 * before.shape[0] * before.shape[1]
        assert np.array_equal(np.asarray(item.data), before) and item.nbytes == 0, "for the one who asked"
    assert media_nbytes([*pages, *pages]) == len(pages[0].content), "pages share their file"
    for item in pages:
        before = np.asarray(item.data)
        item.put_away()
        assert media_nbytes([item]) == 0 and np.array_equal(np.asarray(item.data), before)
        item.hold()
        assert item.nbytes
        item.release()
        assert item.nbytes == 0
    stored = Media("image", None, "two.pdf", 2, content=invoice.read_bytes(), max_pixels=None)
    assert np.array_equal(np.asarray(stored.data), np.asarray(load_media(invoice)[0].data)), "a page that was saved"
    (kept,) = load_media(invoice)
    kept.release()
    assert kept.nbytes > 0, "nothing to decode it from"


def test_a_recording_that_was_put_away_is_read_again(tmp_path):
    path = tmp_path / "memo.wav"
    path.write_bytes((SAMPLES / "memo.wav").read_bytes())
    (memo,) = load_media(path, keep=True)
    before = memo.data
    memo.release()
    assert memo.nbytes == before.nbytes > 0, "recordings stay until they are put away"
    memo.put_away()
    assert memo.nbytes == 0 and np.array_equal(memo.data, before)
    path.unlink()
    with pytest.raises(KVMMError, match=r"memo\.wav"):
        memo.data  # noqa: B018


def test_large_pictures_take_the_bytes_of_their_files(house, tmp_path):
    session = house.visitors.session("a")
    paths = []
    for k in range(2):
        paths.append(tmp_path / f"{k}.png")
        paths[-1].write_bytes(hostile.wide_png(4_200 + k))
    (tmp_path / "small.png").write_bytes(hostile.wide_png(400))
    list(session.ask(UserMessage(QUESTION, (str(tmp_path / "small.png"),)), FAST))
    gc.collect()
    before = rss("self")
    list(session.ask(UserMessage(QUESTION, tuple(map(str, paths))), FAST))
    gc.collect()
    assert all(item.nbytes == 0 for item in session.talk.media)
    files = sum(path.stat().st_size for path in [*paths, tmp_path / "small.png"])
    assert house.visitors.media_nbytes() == files < 2 * 2**20
    assert rss("self") - before < 0.1 * before
    house.visitors.cache_budget = session.conversation.cache_nbytes() + files
    assert house.visitors.keep_budget() == 0
    house.visitors.cache_budget -= 1
    assert house.visitors.keep_budget() == 1 and house.visitors.media_nbytes() == 0
    assert session.talk.media[0].data.size == (400, 400), "read from its file"


def test_a_question_that_waits_holds_few_pixels(house, invoice, tmp_path, monkeypatch):
    monkeypatch.setattr("kvmm.ui.chat.streaming.WAITING_NBYTES", 4 * 560 * 616)
    (tmp_path / "other.png").write_bytes(invoice.read_bytes())
    one, other = house.visitors.session("a"), house.visitors.session("b")
    message = UserMessage(QUESTION, (str(invoice), str(tmp_path / "other.png")))
    answers = [session.begin(message, FAST) for session in (one, other)]
    for answer in answers:
        answer.prepare()
    held = [[item.nbytes > 0 for item in answer.message.media] for answer in answers]
    assert held == [[True, False], [False, False]], "all that wait share it"
    assert list(answers[0].updates())[-1].progress.done
    other.stop()
    assert answers[1].message.media is None


def test_earlier_pictures_are_decoded_before_the_turn(house, invoice, monkeypatch):
    """Where a cache was dropped, all is read again: the pictures are there when the model is."""
    session = house.visitors.session("a")
    list(session.ask(UserMessage(QUESTION, (str(invoice),)), FAST))
    (item,) = session.talk.media
    plain = session.begin(UserMessage("And why?"), FAST)
    plain.prepare()
    assert item.nbytes == 0, "the cache has it"
    list(plain.updates())
    session.conversation.free_cache()
    decoded, own = [], media._items
    monkeypatch.setattr(media, "_items", lambda what, *rest, **more: decoded.append(what) or own(what, *rest, **more))
    answer = session.begin(UserMessage("And why?"), FAST)
    answer.prepare()
    assert item.nbytes > 0 and decoded == ["image"]
    assert list(answer.updates())[-1].progress.done
    assert decoded == ["image"] and item.nbytes == 0

    session.conversation.free_cache()
    waiting = session.begin(UserMessage("And now?"), FAST)
    waiting.prepare()
    assert item.nbytes > 0
    session.stop()
    assert item.nbytes == 0, "it is over before its turn"
    monkeypatch.setattr("kvmm.ui.chat.streaming.WAITING_NBYTES", 100)
    small = session.begin(UserMessage("And now?"), FAST)
    small.prepare()
    assert item.nbytes == 0
    assert list(small.updates())[-1].progress.done


# -- what is worked on is needed -------------------------------------------------------------------------------------


def test_long_work_outlives_a_connection_and_the_idle_time(house):
    """An evaluation of hours, whose page lost its connection; nothing but the work is heard of."""
    session, work = house.visitors.session("page", "token"), LongWork()
    answers = house.visitors.folder(session) / "answers.jsonl"
    answers.write_text("{}\n")
    assert work.wait(session)
    event = work.begin(session)
    house.visitors.closed("page")
    house.wait(25 * 60)
    assert answers.is_file() and not event.is_set() and house.visitors.find("page") is session
    work.end(session)
    house.wait(GRACE_SECONDS / 60 - 10)
    assert answers.is_file(), "as long again as after any visit"
    house.wait(20)
    assert not answers.exists() and house.visitors.find("page") is None


def test_an_open_page_is_heard_of(house):
    """A page that only listens for days stays, and one whose connection came back is open again."""
    session = house.visitors.session("page", "token")
    answers = house.visitors.folder(session) / "answers.jsonl"
    answers.write_text("{}\n")

    async def beat(path: str, root: str = "") -> None:
        async def gradio(scope, receive, send):
            await send({"type": "http.response.start", "status": 200})
            await send({"type": "http.response.body", "body": b"data: ALIVE\n\n", "more_body": True})

        async def send(message):
            sent.append(message)

        app = SimpleNamespace(get_blocks=lambda: SimpleNamespace(visitors=house.visitors))
        scope = {"type": "http", "path": path, "root_path": root, "app": app}
        await Heartbeats(gradio)(scope, None, send)

    for _ in range(2):
        house.wait(15 * 60)
        sent: list[dict] = []
        event_loop.run(beat("/gradio_api/heartbeat/page"))
        assert [message["type"] for message in sent] == ["http.response.start", "http.response.body"]
    house.visitors.closed("page")
    house.wait(20)
    event_loop.run(beat("/gradio_api/heartbeat/page"))
    house.wait(60)
    assert answers.is_file() and session in house.visitors.sessions
    # below a path of a proxy, which may take that path away, and Gradio's own root may be a URL
    for path, root in (
        ("/kvmm/gradio_api/heartbeat/page", "/kvmm"),
        ("/gradio_api/heartbeat/page", "/kvmm/"),
        ("/kvmm/gradio_api/heartbeat/page", "https://host.invalid/kvmm"),
        ("/gradio_api/heartbeat/page", "/"),
    ):
        house.visitors.closed("page")
        event_loop.run(beat(path, root))
        assert session in house.visitors.sessions, root
    event_loop.run(beat("/gradio_api/heartbeat/nobody"))
    house.visitors.closed("page")
    house.wait(60)
    assert not answers.exists()
