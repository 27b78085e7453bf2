"""Uploads: every one in a folder of its own, so that what one visitor sends and deletes is never another's.

Gradio names an upload by its content and keeps it beside the files that its pages show: whoever sends a copy of such a
file and deletes it takes it from everybody. Here nobody can guess the folder of somebody else, and an upload that
fails or is cut off leaves nothing behind.
"""

from __future__ import annotations

import os
import shutil
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from gradio.route_utils import GradioMultiPartParser, MultiPartException
from gradio.routes import file_upload_statuses
from gradio_client.utils import strip_invalid_filename_characters
from python_multipart.multipart import parse_options_header
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from kvmm.ui.clients import address_of
from kvmm.ui.cookie import token_of_request, visitor_key
from kvmm.ui.middleware import UPLOAD, UPLOAD_EXTRA, too_large

MAX_FILES = 64  # of one upload
MAX_FIELD_BYTES = 64 * 2**10  # of a form's field that is no file
UPLOADS_OF_VISITOR = 20  # times the largest upload, that the files of one visitor may take
UPLOADS_OF_ADDRESS = 60  # times it, that those from one address take, whatever their visitors' cookies
UPLOADS_OF_ALL = 200  # times it, that those of all take
UNSENT_SECONDS = 15 * 60  # after which an upload that no conversation shows and no open page has makes room for others
FREE_BYTES = 2**28  # of the disk that no upload takes
PREFIX = "kvmm-"  # of the folders of visitors: their uploads, and what is made for them


def new_folder(upload_folder: Path) -> Path:
    """A new folder for files of one visitor, whose name cannot be guessed."""
    folder = upload_folder / f"{PREFIX}{uuid.uuid4().hex}"
    folder.mkdir(parents=True, mode=0o700)
    return folder


def file_name(name: str) -> str:
    """A file's own name, without the folders that its sender's system or a saved file puts before it."""
    return Path(name.replace("\\", "/").replace("\0", "")).name


def is_visitors_own(path: Path, upload_folder: Path) -> bool:
    """Whether a resolved path is in the folder of a visitor, or is one; what all visitors see is elsewhere."""
    return path.is_relative_to(upload_folder) and any(
        part.startswith(PREFIX) for part in path.relative_to(upload_folder).parts[:1]
    )


def delete_file(path: Path, upload_folder: Path) -> None:
    """Delete a visitor's file, and the folders around it that are empty then.

    Raises:
        OSError: the file system refuses.
    """
    path.unlink(missing_ok=True)
    for folder in path.parents:
        if not is_visitors_own(folder, upload_folder):
            return
        try:
            folder.rmdir()
        except OSError:  # others are in it
            return


@dataclass(frozen=True)
class Upload:
    """A file that was uploaded, or the folder of one that arrives.

    ``sender``: a visitor's token, or the address of a caller without one; ``when``: in seconds since the epoch.
    """

    sender: str
    address: str
    nbytes: int
    when: float


class Quota:
    """The uploads that exist, and how many bytes of them a visitor, an address and all together may have.

    A visitor who drops his cookie is another one to the server; his address stays.
    """

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self.now = now
        self._held: dict[Path, Upload] = {}

    def refusal(self, new: Upload, largest: int | None, folder: Path) -> tuple[str, list[tuple[Path, str]], int]:
        """Why an upload is refused; an empty line if it is not.

        Args:
            new: the upload.
            largest: bytes that one upload may have, None without a limit.
            folder: where uploads arrive.

        Returns:
            The line, and what would make room for it: the uploads, with their senders, of which some have to go, the
            oldest first, and the bytes that are missing.
        """
        self._held = {path: one for path, one in self._held.items() if path.exists()}
        of_sender = {path: one for path, one in self._held.items() if one.sender == new.sender}
        of_address = {path: one for path, one in self._held.items() if one.address == new.address}
        if largest is not None:
            for held, times, whose in (
                (of_sender, UPLOADS_OF_VISITOR, "Your files take the {:,.0f} MiB that a visitor has"),
                (of_address, UPLOADS_OF_ADDRESS, "Files from your address take the {:,.0f} MiB that one has"),
            ):
                missing = sum(one.nbytes for one in held.values()) + new.nbytes - times * largest
                if missing > 0:
                    line = whose.format(times * largest / 2**20)
                    return f"{line}: delete conversations, or wait an hour.", self._old(held), missing
        missing = new.nbytes + FREE_BYTES + self._arriving() - shutil.disk_usage(folder).free
        if largest is not None:
            total = sum(one.nbytes for one in self._held.values())
            missing = max(missing, total + new.nbytes - UPLOADS_OF_ALL * largest)
        if missing > 0:
            line = "The app has no room for more files at the moment: try again in an hour."
            return line, self._old(self._held), missing
        return "", [], 0

    def add(self, path: Path, upload: Upload) -> None:
        """Count a file, or the folder of an upload that arrives."""
        self._held[path] = upload

    def remove(self, path: Path) -> None:
        """An upload has arrived, or failed."""
        self._held.pop(path, None)

    def _arriving(self) -> int:
        return sum(one.nbytes for path, one in self._held.items() if path.is_dir())

    def _old(self, held: dict[Path, Upload]) -> list[tuple[Path, str]]:
        until = self.now() - UNSENT_SECONDS
        old = [(one.when, path, one.sender) for path, one in held.items() if one.when < until and path.is_file()]
        return [(path, sender) for _, path, sender in sorted(old)]


QUOTA = Quota()


class _Parts(GradioMultiPartParser):
    """Gradio's parser, which writes files as they arrive; it would hold any other field in memory."""

    def on_part_data(self, data: bytes, start: int, end: int) -> None:
        if self._current_part.file is not None:
            super().on_part_data(data, start, end)
        elif len(self._current_part.data) + end - start > MAX_FIELD_BYTES:
            raise MultiPartException("This is no upload of files.")
        else:
            self._current_part.data += data[start:end]


async def upload(request: Request) -> Response:
    """What Gradio's own route does, into a new folder; answers with the paths of the files."""
    app, upload_id = request.app, request.query_params.get("upload_id")
    blocks = app.get_blocks()
    uploads = Path(app.uploaded_file_dir).resolve()
    uploads.mkdir(parents=True, exist_ok=True)
    address = address_of(request.scope)
    sender = token_of_request(SimpleNamespace(request=request, headers=request.headers), visitor_key()) or address
    announced = request.headers.get("content-length", "")
    nbytes = int(announced) if announced.isdecimal() else blocks.max_file_size or 0
    if why := _refusal(Upload(sender, address, max(0, nbytes - UPLOAD_EXTRA), QUOTA.now()), blocks, uploads):
        return PlainTextResponse(why, status_code=507)
    folder = new_folder(uploads)
    QUOTA.add(folder, Upload(sender, address, nbytes, QUOTA.now()))
    paths: list[str] = []
    try:
        paths = await _receive(request, folder, blocks.max_file_size, upload_id)
    except MultiPartException as error:
        return PlainTextResponse(error.message, status_code=413 if "maximum allowed size" in error.message else 400)
    except ClientDisconnect:
        if request.scope.get("kvmm.too_large"):
            return PlainTextResponse(too_large(UPLOAD, blocks.max_file_size), status_code=413)
        return Response(status_code=400)  # nobody reads it
    except (OSError, ValueError):  # a name or a text that cannot be, or a full disk
        return PlainTextResponse("This upload cannot be kept.", status_code=400)
    finally:
        QUOTA.remove(folder)
        for path in map(Path, paths):
            QUOTA.add(path, Upload(sender, address, path.stat().st_size, QUOTA.now()))
        if not paths:  # refused, cut off or cancelled
            shutil.rmtree(folder, ignore_errors=True)
            if upload_id:
                file_upload_statuses.stop_tracking(upload_id)
    blocks.upload_file_set.update(paths)
    return JSONResponse(paths)


def _refusal(new: Upload, blocks: Any, folder: Path) -> str:
    """Why an upload is refused, if uploads that nobody sent and whose visitors are gone do not make room for it."""
    why, old, missing = QUOTA.refusal(new, blocks.max_file_size, folder)
    if why and blocks.visitors.free_unsent(old, missing):
        why, _, _ = QUOTA.refusal(new, blocks.max_file_size, folder)
    return why


async def _receive(request: Request, folder: Path, max_file_size: int | None, upload_id: str | None) -> list[str]:
    """Write the files of a request, each named as its sender calls it, and return their paths.

    Raises:
        MultiPartException: it holds no files, or one is too large.
        ClientDisconnect: it was cut off.
        OSError, ValueError: a file cannot be written.
    """
    kind, parameters = parse_options_header(request.headers.get("content-type", ""))
    if kind != b"multipart/form-data" or b"boundary" not in parameters:
        raise MultiPartException("This is no upload of files.")
    if upload_id:
        file_upload_statuses.track(upload_id)
    parser = _Parts(
        request.headers,
        request.stream(),
        max_files=MAX_FILES,
        max_fields=MAX_FILES,
        upload_dir=folder,
        upload_id=upload_id,
        upload_progress=file_upload_statuses if upload_id else None,
        max_file_size=float("inf") if max_file_size is None else max_file_size,
    )
    form = await parser.parse()
    paths, received = [], [one for one in form.getlist("files") if not isinstance(one, str)]
    for index, one in enumerate(received):
        one.file.close()
        name = strip_invalid_filename_characters(file_name(one.filename or "")) or "file"
        target = folder / str(index) / name
        target.parent.mkdir()
        os.rename(one.file.name, target)
        paths.append(str(target))
    for left in folder.iterdir():  # parts of other names, or without an end
        if left.is_file():
            left.unlink()
    if not paths:
        raise MultiPartException("This upload holds no whole file.")
    return paths


def upload_routes() -> list[Any]:
    """Routes that come before Gradio's own."""
    return [Route(path, upload, methods=["POST"]) for path in (UPLOAD, f"{UPLOAD}/")]


__all__ = ["PREFIX", "delete_file", "file_name", "is_visitors_own", "new_folder", "upload_routes"]
