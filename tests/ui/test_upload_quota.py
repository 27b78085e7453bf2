"""What visitors may send and keep on the disk, on Gradio's own parser of uploads."""

from __future__ import annotations

import base64
import contextlib
import inspect
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from kvmm.errors import KVMMError
from kvmm.ui import Models, api, cookie, middleware, uploads
from kvmm.ui.session import Session
from kvmm.ui.visitors import Visitors

LARGEST = 2**20


@pytest.fixture
def app(tmp_path, monkeypatch) -> Starlette:
    monkeypatch.setattr(uploads, "QUOTA", uploads.Quota())
    monkeypatch.setattr(uploads, "FREE_BYTES", 0)
    monkeypatch.setattr(uploads, "visitor_key", lambda: b"key")
    app = Starlette(routes=uploads.upload_routes())
    visitors = Visitors(lambda desk: Session(Models({}), desk), 1 << 40, tmp_path / "uploads")
    blocks = SimpleNamespace(max_file_size=LARGEST, upload_file_set=set(), visitors=visitors)
    app.uploaded_file_dir, app.get_blocks = str(tmp_path / "uploads"), lambda: blocks
    return app


def visitor(app: Starlette, address: str = "testclient") -> TestClient:
    client = TestClient(app, client=(address, 50000))  # on port 80
    client.cookies.set(f"{cookie.NAME}-80", cookie.new_token(b"key"))
    return client


def send(client: TestClient, nbytes: int):
    return client.post(uploads.UPLOAD, files={"files": ("page.png", bytes(nbytes))})


def test_a_visitor_has_a_quota_that_deleted_files_give_back(app, monkeypatch):
    monkeypatch.setattr(uploads, "UPLOADS_OF_VISITOR", 2)
    one, other = visitor(app), visitor(app)
    first, second = send(one, LARGEST), send(one, LARGEST)
    assert first.status_code == second.status_code == 200
    refused = send(one, LARGEST)
    assert refused.status_code == 507 and "2 MiB that a visitor has" in refused.text
    assert send(other, LARGEST).status_code == 200 and send(TestClient(app), LARGEST).status_code == 200
    shutil.rmtree(first.json()[0].rpartition("/")[0])
    assert send(one, LARGEST).status_code == 200 and send(one, LARGEST).status_code == 507


def test_all_visitors_have_one_and_a_refused_upload_leaves_nothing(app, tmp_path, monkeypatch):
    monkeypatch.setattr(uploads, "UPLOADS_OF_ALL", 2)
    assert [send(visitor(app), LARGEST).status_code for _ in range(3)] == [200, 200, 507]
    assert len(list((tmp_path / "uploads").iterdir())) == 2


def test_an_address_has_one_whatever_the_cookies(app, monkeypatch):
    monkeypatch.setattr(uploads, "UPLOADS_OF_ADDRESS", 2)
    near, far = "2001:db8:0:1::", "2001:db8:0:2::1"
    assert [send(visitor(app, f"{near}{n}"), LARGEST).status_code for n in (1, 2)] == [200, 200]
    refused = send(visitor(app, f"{near}ffff"), LARGEST)  # of the same network
    assert refused.status_code == 507 and "from your address take the 2 MiB" in refused.text
    assert send(visitor(app, far), LARGEST).status_code == 200


@pytest.mark.parametrize("bound", ["UPLOADS_OF_VISITOR", "UPLOADS_OF_ADDRESS", "UPLOADS_OF_ALL"])
def test_what_gone_visitors_never_sent_makes_room_the_oldest_first(app, monkeypatch, bound):
    monkeypatch.setattr(uploads, bound, 4)
    clock, visitors = [1e9], app.get_blocks().visitors
    uploads.QUOTA.now = lambda: clock[0]
    one = visitor(app)
    paths = []
    for _ in range(4):
        paths.append(Path(send(one, LARGEST).json()[0]))
        clock[0] += 60
    asked, oldest, older, new = paths
    session = visitors.session("asked", "another page of the visitor")
    visitors.keep_until_left(session, [asked])
    visitors.closed("asked")  # in a conversation that its owner may come back to
    assert send(one, LARGEST).status_code == 507
    clock[0] += uploads.UNSENT_SECONDS - 90
    assert send(one, LARGEST).status_code == 200
    assert asked.is_file() and not oldest.exists() and older.is_file() and new.is_file()
    clock[0] += uploads.UNSENT_SECONDS
    token = one.cookies[f"{cookie.NAME}-80"]
    visitors.session("open", token)  # has a page with files in its box
    assert send(one, LARGEST).status_code == 507 and older.is_file()
    visitors.closed("open")
    assert send(one, LARGEST).status_code == 200 and not older.exists() and asked.is_file()


def test_an_upload_that_fails_counts_no_longer(app, monkeypatch):
    monkeypatch.setattr(uploads, "UPLOADS_OF_VISITOR", 1)
    one = visitor(app)
    headers = {"content-type": "multipart/form-data; boundary=x"}
    assert one.post(uploads.UPLOAD, content=bytes(LARGEST), headers=headers).status_code == 400
    assert send(one, LARGEST).status_code == 200


@pytest.mark.parametrize("name", ["page.png", "C:\\scans\\page.png", "/home/me/page.png", "../../page.png"])
def test_an_upload_keeps_its_own_name_without_folders(app, tmp_path, name):
    files = {"files": (name, b"x")}
    (path,) = visitor(app).post(uploads.UPLOAD, files=files).json()
    assert Path(path).name == "page.png" and Path(path).is_relative_to(tmp_path / "uploads")
    assert uploads.file_name(name) == "page.png"


def test_some_of_the_disk_stays_free(app, tmp_path, monkeypatch):
    monkeypatch.setattr(uploads, "FREE_BYTES", 2**30)
    free = [2**30 + LARGEST // 2]
    monkeypatch.setattr(uploads.shutil, "disk_usage", lambda path: SimpleNamespace(free=free[0]))
    one = visitor(app)
    refused = send(one, LARGEST)
    assert refused.status_code == 507 and "no room" in refused.text
    free[0] += LARGEST
    assert send(one, LARGEST).status_code == 200


def test_a_data_url_holds_what_fits_into_a_request(tmp_path):
    visitors = SimpleNamespace(folder=lambda session: tmp_path)
    assert len(base64.b64encode(bytes(api.DATA_URL_BYTES))) <= middleware.JSON_BYTES
    assert f"below {api.DATA_URL_BYTES // 2**20} MiB" in inspect.getsource(api.build_api)
    for size, is_taken in ((api.DATA_URL_BYTES, True), (api.DATA_URL_BYTES + 3, False)):
        name = "data:image/png;base64," + base64.b64encode(bytes(size)).decode()
        with contextlib.nullcontext() if is_taken else pytest.raises(KVMMError, match=r"6\.0 MiB: upload"):
            assert api._path_of(visitors, None, name).stat().st_size == size
