"""Videos: what decoding one gives is measured where it does no harm, before the model's own reader takes it whole.

Which frames a model sees, and how they are resized, is the matter of its family's reader (qwen-vl-utils), which decodes
in the process of the model, all frames of a file in some builds. So a video is decoded here first, in a process with
limits of memory and time, and dropped frame by frame: one that ends the decoder, never ends, or unpacks to more pixels
than :data:`kvmm.decoding.limits.VIDEO_PIXELS` is refused with a line.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from kvmm.decoding import limits
from kvmm.decoding.files import Source, name_of, open_file
from kvmm.errors import KVMMError

if TYPE_CHECKING:
    import av

MAX_VIDEO_BYTES = 500 * 2**20


def check_video(source: Source) -> None:
    """Decode a video, keeping nothing.

    Raises:
        KVMMError: it has no frames, or frames of more pixels in all than ``limits.VIDEO_PIXELS``.
    """
    import av  # who reads no video needs no FFmpeg

    name, frames, pixels = name_of(source), 0, 0
    try:
        with open_file(source, MAX_VIDEO_BYTES) as stream, av.open(stream) as container:
            track = _moving(container)
            track.thread_type, track.codec_context.thread_count = "NONE", 1
            _check_pixels(name, track.frames, track.frames * track.width * track.height)  # what it says of itself
            with contextlib.suppress(av.FFmpegError):  # readers take what comes before the damage
                for frame in container.decode(track):
                    frames, pixels = frames + 1, pixels + frame.width * frame.height
                    _check_pixels(name, frames, pixels)
    except (av.FFmpegError, ValueError) as error:
        if isinstance(error, KVMMError):
            raise
        raise KVMMError(f"{name} is damaged or cut off: save or download the video again.") from error
    if not frames:
        raise KVMMError(f"{name} has no frames that can be decoded: save it as MP4 (H.264).")


def _moving(container: av.container.InputContainer) -> av.VideoStream:
    """The first track of moving pictures; the picture of an album's cover is none."""
    import av

    cover = av.stream.Disposition.attached_pic
    return next(track for track in container.streams.video if not track.disposition & cover)


def _check_pixels(name: str, frames: int, pixels: int) -> None:
    if pixels > limits.VIDEO_PIXELS:
        raise KVMMError(
            f"{name} has {frames:,} frames or more, of {pixels // frames:,} pixels each, and a video may have "
            f"{limits.VIDEO_PIXELS:,} pixels in all: shorten it, or save it smaller or with fewer frames a second."
        )


__all__ = ["MAX_VIDEO_BYTES", "check_video"]
