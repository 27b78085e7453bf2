"""Uploads: every one in a folder of its own, so that what one visitor sends and deletes is never another's.

Gradio names an upload by its content and keeps it beside the files that its pages show: whoever sends a copy of such a
file and deletes it takes it from everybody. Here nobody can guess the folder of somebody else, and an upload that
fails or is cut off leaves nothing behind.
"""

from __future__ import annotations

import os
import shutil
import uuid
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

from kvmm.ui.cookie import token_of_request, visitor_key
from kvmm.ui.middleware import UPLOAD, UPLOAD_EXTRA, too_large

MAX_FILES = 64  # of one upload
MAX_FIELD_BYTES = 64 * 2**10  # of a form's field that is no file
UPLOADS_OF_VISITOR = 20  # times the largest upload, that the files of one visitor may take
UPLOADS_OF_ALL = 200  # times it, that those of all take
FREE_BYTES = 2**28  # of the disk that no upload takes
PREFIX = "kvmm-"  # of the folders of visitors: their uploads, and what is made for them


def new_folder(upload_folder: Path) -> Path:
    """A new folder for files of one visitor, whose name cannot be guessed."""
    folder = upload_folder / f"{PREFIX}{uuid.uuid4().hex}"
    folder.mkdir(parents=True, mode=0o700)
    return folder


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


class Quota:
    """The bytes of uploads that exist, by sender: a visitor's token, or the address of a caller without one."""

    def __init__(self) -> None:
        self._files: dict[str, dict[Path, int]] = {}

    def refusal(self, sender: str, nbytes: int, largest: int | None, folder: Path) -> str:
        """Why ``sender`` may not upload ``nbytes`` more into ``folder``; empty if they may.

        Args:
            sender: whose they are.
            nbytes: of the upload.
            largest: bytes that one upload may have, None without a limit.
            folder: where uploads arrive.
        """
        self._forget_deleted()
        total = {name: sum(files.values()) for name, files in self._files.items()}
        if largest is not None and total.get(sender, 0) + nbytes > UPLOADS_OF_VISITOR * largest:
            most = UPLOADS_OF_VISITOR * largest / 2**20
            return f"Your files take the {most:,.0f} MiB that a visitor has: delete conversations, or wait an hour."
        is_full = largest is not None and sum(total.values()) + nbytes > UPLOADS_OF_ALL * largest
        if is_full or shutil.disk_usage(folder).free - self._arriving() - nbytes < FREE_BYTES:
            return "The app has no room for more files at the moment: try again in an hour."
        return ""

    def add(self, sender: str, sizes: dict[Path, int]) -> None:
        """Count files, or the folder of an upload that arrives."""
        self._files.setdefault(sender, {}).update(sizes)

    def remove(self, sender: str, path: Path) -> None:
        """An upload has arrived, or failed."""
        self._files.get(sender, {}).pop(path, None)

    def _arriving(self) -> int:
        return sum(size for files in self._files.values() for path, size in files.items() if path.is_dir())

    def _forget_deleted(self) -> None:
        self._files = {
            sender: there
            for sender, files in self._files.items()
            if (there := {path: size for path, size in files.items() if path.exists()})
        }


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
    sender = token_of_request(SimpleNamespace(request=request, headers=request.headers), visitor_key())
    sender = sender or (request.client.host if request.client else "")
    announced = request.headers.get("content-length", "")
    nbytes = int(announced) if announced.isdecimal() else blocks.max_file_size or 0
    if why := QUOTA.refusal(sender, max(0, nbytes - UPLOAD_EXTRA), blocks.max_file_size, uploads):
        return PlainTextResponse(why, status_code=507)
    folder = new_folder(uploads)
    QUOTA.add(sender, {folder: nbytes})
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
        QUOTA.remove(sender, folder)
        QUOTA.add(sender, {path: path.stat().st_size for path in map(Path, paths)})
        if not paths:  # refused, cut off or cancelled
            shutil.rmtree(folder, ignore_errors=True)
            if upload_id:
                file_upload_statuses.stop_tracking(upload_id)
    blocks.upload_file_set.update(paths)
    return JSONResponse(paths)


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
        name = strip_invalid_filename_characters(Path(one.filename or "").name) or "file"
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


__all__ = ["PREFIX", "delete_file", "is_visitors_own", "new_folder", "upload_routes"]
