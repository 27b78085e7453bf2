"""Videos: their frames, sampled over the whole length, decoded by PyAV.

Which frames a model sees follows qwen-vl-utils (``smart_nframes``): ``fps`` frames a second of the video, an even
number of them, evenly spread from the first to the last. A video is counted first, which reads its packets and decodes
nothing, and then decoded up to the last frame that is wanted; no more than the wanted frames are held.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from fractions import Fraction
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from PIL import Image

from kvmm.decoding import limits
from kvmm.decoding.files import Source, name_of, open_file
from kvmm.errors import KVMMError

if TYPE_CHECKING:
    import av

MAX_VIDEO_BYTES = 500 * 2**20
FPS = 2.0  # of the frames that a model sees, qwen-vl-utils' default
MAX_FRAMES = 32  # of one video; lmms-eval's default for Qwen-VL, and 4096 tokens of the smallest frames
MIN_FRAMES = 4
FRAME_FACTOR = 2  # models read frames in pairs
TOTAL_PIXELS = 128_000 * 28 * 28 * 9 // 10  # of all frames handed over: qwen-vl-utils' VIDEO_TOTAL_PIXELS


class Frames(NamedTuple):
    """The frames of a video that a model sees.

    Attributes:
        pixels: uint8 RGB ``[T, H, W, 3]``.
        indices: which frames of the video they are, from 0, ascending.
        total: frames of the video.
        fps: frames a second of the video.
    """

    pixels: np.ndarray
    indices: tuple[int, ...]
    total: int
    fps: float

    @property
    def sampled_fps(self) -> float:
        """How many of the frames there are a second."""
        return len(self.indices) / self.total * self.fps

    def metadata(self) -> dict[str, Any]:
        """``VideoMetadata`` of transformers, as a dictionary."""
        height, width = self.pixels.shape[1:3]
        return {
            "total_num_frames": self.total,
            "fps": self.fps,
            "frames_indices": list(self.indices),
            "duration": self.total / self.fps,
            "height": height,
            "width": width,
        }


def sample_indices(total: int, fps: float, wanted_fps: float = FPS, max_frames: int = MAX_FRAMES) -> list[int]:
    """Which frames of a video a model sees: qwen-vl-utils' rule; a video of one frame has that.

    Args:
        total: frames of the video, 1 or more.
        fps: frames a second of the video.
        wanted_fps: frames a second that are wanted.
        max_frames: at most so many, 2 or more.
    """
    most = min(max_frames, total) // FRAME_FACTOR * FRAME_FACTOR
    count = min(max(total / fps * wanted_fps, MIN_FRAMES), most, total)
    count = max(int(count) // FRAME_FACTOR * FRAME_FACTOR, min(total, FRAME_FACTOR))
    # np.rint rounds halves to even numbers, as torch.round does
    return np.rint(np.linspace(0, total - 1, count, dtype=np.float32)).astype(int).tolist()


def check_video(source: Source) -> None:
    """Decode the first frame of a video and count the others.

    Raises:
        KVMMError: it has no frames, or frames of more pixels in all than ``limits.VIDEO_PIXELS``.
    """
    with _opened(source) as (container, track):
        _count(container, track, name_of(source))
        container.seek(0)
        with contextlib.suppress(_ffmpeg_error(), StopIteration):
            next(container.decode(track))
            return
    raise _no_frames(name_of(source))


def read_frames(source: Source, *, fps: float = FPS, max_frames: int = MAX_FRAMES) -> Frames:
    """The sampled frames of a video, upright; larger ones are shrunk until all of them have ``TOTAL_PIXELS``.

    Damage ends a video early: then the frames before it are returned.

    Raises:
        KVMMError: as :func:`check_video`.
    """
    name = name_of(source)
    with _opened(source) as (container, track):
        total = _count(container, track, name)
        rate = float(track.average_rate or track.guessed_rate or Fraction(24))
        wanted = sample_indices(total, rate, fps, max_frames)
        container.seek(0)
        frames = _stacked(_pick(container, track, wanted, name), len(wanted))
    if not len(frames):
        raise _no_frames(name)
    return Frames(frames, tuple(wanted[: len(frames)]), total, rate)


def _stacked(pictures: Iterator[np.ndarray], most: int) -> np.ndarray:
    """uint8 ``[T, H, W, 3]`` of the first one's size, filled as they come, so that none is held twice."""
    frames = np.empty((0, 1, 1, 3), np.uint8)
    count = 0
    for picture in pictures:
        if not count:
            frames = np.empty((most, *picture.shape), np.uint8)
        height, width = frames.shape[1:3]  # a stream may change its size on the way
        frames[count] = picture if picture.shape == frames.shape[1:] else _resized(picture, width, height)
        count += 1
    return frames[:count]


def _pick(
    container: av.container.InputContainer, track: av.VideoStream, wanted: list[int], name: str
) -> Iterator[np.ndarray]:
    """The frames at ``wanted``, which ascend, up to the end or to what cannot be decoded."""
    most, at, pixels = TOTAL_PIXELS // len(wanted), 0, 0
    with contextlib.suppress(_ffmpeg_error()):
        for index, frame in enumerate(container.decode(track)):
            pixels += frame.width * frame.height
            _check_pixels(name, index + 1, pixels)
            if index == wanted[at]:
                yield _upright(frame, most)
                at += 1
            if at == len(wanted):
                return


def _upright(frame: av.VideoFrame, max_pixels: int) -> np.ndarray:
    """uint8 ``[H, W, 3]`` of at most ``max_pixels``, turned as the file says."""
    width, height = frame.width, frame.height
    if width * height > max_pixels:
        scale = (max_pixels / (width * height)) ** 0.5
        width, height = max(int(width * scale), 1), max(int(height * scale), 1)
    picture = frame.to_ndarray(format="rgb24")
    if picture.shape[:2] != (height, width):
        picture = _resized(picture, width, height)
    turns = round(getattr(frame, "rotation", 0) / 90) % 4  # counter-clockwise, as np.rot90
    return np.ascontiguousarray(np.rot90(picture, turns)) if turns else picture


def _resized(picture: np.ndarray, width: int, height: int) -> np.ndarray:
    return np.asarray(Image.fromarray(picture).resize((width, height), Image.Resampling.BICUBIC))


@contextlib.contextmanager
def _opened(source: Source) -> Iterator[tuple[av.container.InputContainer, av.VideoStream]]:
    import av  # who reads no video needs no FFmpeg

    name = name_of(source)
    try:
        with open_file(source, MAX_VIDEO_BYTES) as stream, av.open(stream) as container:
            track = _moving(container)
            track.thread_type, track.codec_context.thread_count = "NONE", 1
            yield container, track
    except (av.FFmpegError, ValueError) as error:
        if isinstance(error, KVMMError):
            raise
        raise KVMMError(f"{name} is damaged or cut off: save or download the video again.") from error


def _moving(container: av.container.InputContainer) -> av.VideoStream:
    """The first track of moving pictures; the picture of an album's cover is none."""
    import av

    cover = av.stream.Disposition.attached_pic
    return next(track for track in container.streams.video if not track.disposition & cover)


def _count(container: av.container.InputContainer, track: av.VideoStream, name: str) -> int:
    """How many frames there are, from the packets; what the header says is not believed, only refused."""
    _check_pixels(name, track.frames, track.frames * track.width * track.height)
    count = 0
    with contextlib.suppress(_ffmpeg_error()):  # what comes before the damage counts
        for packet in container.demux(track):
            count += packet.size > 0
            _check_pixels(name, count, count * track.width * track.height)
    if not count:
        raise _no_frames(name)
    return count


def _ffmpeg_error() -> type[Exception]:
    import av

    return av.FFmpegError


def _no_frames(name: str) -> KVMMError:
    return KVMMError(f"{name} has no frames that can be decoded: save it as MP4 (H.264).")


def _check_pixels(name: str, frames: int, pixels: int) -> None:
    if pixels > limits.VIDEO_PIXELS:
        raise KVMMError(
            f"{name} has {frames:,} frames or more, of {pixels // frames:,} pixels each, and a video may have "
            f"{limits.VIDEO_PIXELS:,} pixels in all: shorten it, or save it smaller or with fewer frames a second."
        )


__all__ = [
    "FPS",
    "MAX_FRAMES",
    "MAX_VIDEO_BYTES",
    "Frames",
    "check_video",
    "read_frames",
    "sample_indices",
]
