"""What decoding one file may take. A file that takes more is refused with a line; nothing else comes to harm.

CPU time decides, so that the same file meets the same answer on a busy machine. The process that asks sends these
values with each request (:func:`sent`); the one that decodes takes them over (:func:`adopt`).
"""

from __future__ import annotations

from typing import Any

MEMORY = 2**30  # bytes of private memory: 100 million pixels with alpha take 400 MB, WebP decodes them in twice as much
IMAGE_SECONDS = 20  # of CPU: 100 million pixels of PNG take 3
PAGE_SECONDS = 10  # of CPU, each page of a PDF: a page of print takes 0.1, a dense map 2
AUDIO_SECONDS = 60  # of CPU: half an hour takes 5
VIDEO_SECONDS = 110  # of CPU: VIDEO_PIXELS of H.264 take 30 to 80
VIDEO_PIXELS = 2**33  # of all frames of a video together, of which few are held: 311 seconds of 720p at 30 Hz
FILE_SECONDS = 120  # of CPU, all pages together
WALL_SECONDS = 1200  # of time, each page or file: ends what hangs without using CPU, such as a read from a lost server
PROCESSES = 4  # files that are decoded at the same time; others wait
PROCESSES_PER_OWNER = 2  # of them of one visitor
RESERVED_PROCESSES = 1  # of them for what no visitor's files may keep waiting
STOP_SECONDS = 0.1  # between two looks at whether it should stop

_SENT = (
    *("MEMORY", "IMAGE_SECONDS", "PAGE_SECONDS", "AUDIO_SECONDS", "VIDEO_SECONDS", "VIDEO_PIXELS"),
    *("FILE_SECONDS", "WALL_SECONDS"),
)


def sent() -> dict[str, int]:
    """The limits of one process that decodes, for its request."""
    return {name: globals()[name] for name in _SENT}


def adopt(values: dict[str, Any]) -> None:
    """Set the limits of a request in the process that decodes for it."""
    globals().update({name: int(values[name]) for name in _SENT})
