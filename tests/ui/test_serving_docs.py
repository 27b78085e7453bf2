"""The numbers of docs/serving-others.md are those of the code."""

from __future__ import annotations

import re
from pathlib import Path

from kvmm import media
from kvmm.decoding import limits
from kvmm.ui import demo, middleware, session, states, uploads, visitors

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "serving-others.md").read_text(encoding="utf-8")
MIB, MINUTE, HOUR = 2**20, 60, 3600


def row(start: str) -> str:
    """The right cell of the table row that begins so."""
    return re.search(rf"^\| {re.escape(start)}[^|]*\| (.*) \|$", PAGE, re.MULTILINE)[1]


def test_limits_are_those_of_the_code():
    assert row("one upload") == f"`--max-upload` MiB ({demo.MAX_FILE_MIB}), {uploads.MAX_FILES} files"
    most = uploads.UPLOADS_OF_VISITOR * demo.MAX_FILE_MIB
    assert row("uploads of a visitor") == f"{uploads.UPLOADS_OF_VISITOR} times `--max-upload` ({most:,} MiB)"
    assert row("uploads from one address") == f"{uploads.UPLOADS_OF_ADDRESS} times `--max-upload`"
    assert f"are {uploads.UNSENT_SECONDS // MINUTE} minutes old, were never sent" in " ".join(PAGE.split())
    assert row("pages that one address") == f"{states.NEW_PER_SECOND} a second, {states.NEW_AT_ONCE} at once; then 429"
    assert row("uploads of all").startswith(f"{uploads.UPLOADS_OF_ALL} times `--max-upload`; ")
    assert f"{uploads.FREE_BYTES // MIB} MiB of the disk" in row("uploads of all")
    assert row("any other body").startswith(f"{middleware.JSON_BYTES // MIB} MiB or a third more than `--max-upload`")
    assert row("any other body").endswith(f"{middleware.JSON_ITEMS:,} items of JSON")
    assert row("bodies of all") == (
        f"{middleware.JSON_IN_FLIGHT // MIB} MiB, {middleware.JSON_OF_CLIENT // MIB} MiB from one address"
    )
    assert f"{middleware.LEAST_RATE // 1024} KiB a second" in row("a body that arrives slowly")
    assert row("a body that stops") == f"{middleware.STALL_SECONDS:.0f} seconds"
    assert row("the form of the login") == f"{middleware.LOGIN_BYTES // 1024} KiB"
    assert row("a question") == f"{session.MAX_QUESTION:,} characters, {session.MAX_FILES} files"
    assert row("conversations of a visitor") == str(session.MAX_TALKS)
    assert row("pages of a PDF") == f"`--max-pages` ({media.MAX_PDF_PAGES})"
    assert row("a recording") == f"{media.MAX_AUDIO_SECONDS // MINUTE} minutes"
    seconds = limits.VIDEO_PIXELS / (1280 * 720 * 30)
    assert row("a video") == f"{limits.VIDEO_PIXELS:,} pixels in all its frames: {seconds:.0f} seconds of 720p at 30 Hz"
    assert f"{demo.QUEUE_SIZE} wait" in PAGE


def test_times_are_those_of_the_code():
    assert f"and {visitors.GRACE_SECONDS // MINUTE} minutes after" in row("a conversation, its files")
    assert row("a page that is open") == f"{visitors.PAGE_SECONDS // HOUR} hours"
    assert row("the cache of").startswith(f"{visitors.IDLE_SECONDS // MINUTE} minutes without")
    assert visitors.FILE_SECONDS == HOUR and row("an upload that was never sent") == "1 hour"
    spare, minutes = states.MAX_SPARE_STATES, states.UNUSED_SECONDS // MINUTE
    assert row("Gradio's state") == f"{minutes} minutes; the newest {spare} are kept"
    assert f"when {states.MAX_STATES:,} of them are open" in PAGE
