"""The app as a newcomer starts it, with the model that a checkout has for ordinary documents."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from kvmm.models.loading import DEFAULT_MODEL_ENV, OFFICE_MODEL

expect = pytest.importorskip("playwright.sync_api").expect

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 180_000


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    environment = {name: value for name, value in os.environ.items() if name != DEFAULT_MODEL_ENV}
    environment["GRADIO_TEMP_DIR"] = str(tmp_path_factory.mktemp("uploads"))
    command = [sys.executable, "app.py", "--port", str(port)]
    app = subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        ready = next((line for line in app.stdout if line.startswith("kvmm is at ")), None)
        assert ready is not None, app.wait()
        yield f"http://127.0.0.1:{port}"
        app.send_signal(signal.SIGTERM)
        app.wait(60)
    finally:
        app.kill()


def test_a_newcomer_asks_about_a_sample_and_about_a_page_of_their_own(visit, screenshot, invoice):
    page = visit()
    expect(page.locator("#model input")).to_have_value(OFFICE_MODEL)
    expect(page.locator("#scope")).to_contain_text("letters, minutes, receipts")
    page.get_by_text("Invoice: what is due").click()
    expect(page.locator("#chat-kvmm")).to_contain_text("$364.08", timeout=SECONDS)
    expect(page.locator("[data-stat=by]")).to_have_text(f"{OFFICE_MODEL} · balanced")
    page.locator("#new-conversation").click()
    box = page.locator("#ask-box")
    with page.expect_file_chooser() as chooser:
        box.get_by_test_id("upload-button").click()
    chooser.value.set_files(str(invoice))
    expect(box.locator(".thumbnail-item")).to_have_count(1)
    box.get_by_test_id("textbox").fill("What is the total?")
    box.get_by_test_id("submit-button").click()
    expect(page.locator("#chat-kvmm")).to_contain_text("1,274.94", timeout=SECONDS)
    screenshot(page, "default-model")
