"""A video in the app: uploaded, asked about twice, and a damaged one."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvmm.errors import KVMMError
from kvmm.ui.chat.session import Session
from kvmm.ui.chat.talk import UserMessage
from kvmm.ui.models import Models
from kvmm.ui.settings import Settings
from kvmm.ui.tabs.ask import FILE_TYPES
from tests.media.files import mp4


def run(session: Session, question: str, *files: Path) -> None:
    for _ in session.ask(UserMessage(question, tuple(map(str, files))), Settings(policy="kivi4")):
        pass


def test_a_video_is_asked_about_twice(model_and_processor, tmp_path: Path):
    session, path = Session(Models.of(*model_and_processor), max_new_tokens=4), tmp_path / "clip.mp4"
    path.write_bytes(mp4(2))
    run(session, "What moves?", path)
    run(session, "And why?")
    assert "video" in FILE_TYPES and [item.kind for item in session.talk.media] == ["video"]
    assert [each.answered for each in session.talk.exchanges] == [True] * 2
    counted = session.talk._conversations["kvmm"].cache.memory().by_modality
    assert counted["video"]["tokens"] == 256 and "image" not in counted  # two frames, one grid
    path.write_bytes(b"\x00\x00\x00\x18ftypmp42" + bytes(200))
    with pytest.raises(KVMMError, match="damaged or cut off: save or download it again"):
        run(session, "And this?", path)
    assert len(session.talk.media) == 1
