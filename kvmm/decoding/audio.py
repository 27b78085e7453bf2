"""Recordings in: mono at 16 kHz, block by block, so that a file takes little more memory than its result."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from kvmm.decoding.files import Source, kind_of, name_of, open_file, what_else
from kvmm.errors import KVMMError

SAMPLE_RATE = 16_000  # what every supported audio tower expects
MAX_AUDIO_SECONDS = 30 * 60
MAX_AUDIO_VALUES = MAX_AUDIO_SECONDS * 96_000 * 2  # samples of all channels
MIN_AUDIO_SECONDS = 0.1
SILENCE_PEAK = 1e-3  # of full scale, -60 dB: below this there is nothing to hear
MIN_SOURCE_RATE, MAX_SOURCE_RATE = 1_000, 768_000
MAX_AUDIO_CHANNELS = 8
AUDIO_BLOCK = 2**16  # frames that are mixed and resampled at a time


def read_audio(source: Source) -> np.ndarray:
    """The recording in a file, decoded in this process; see :func:`kvmm.media.load_audio`."""
    name = name_of(source)
    if kind_of(source) != "audio":
        raise KVMMError(f"{name} {what_else(source)}, not a recording: give a WAV, FLAC, OGG, MP3 or M4A file.")
    rate, blocks = _decode_soundfile(source, name) or _decode_container(source, name)
    return _finish_audio(rate, blocks, name)


def _decode_soundfile(source: Source, name: str) -> tuple[int, Iterator[np.ndarray]] | None:
    """The rate and blocks ``[n, channels]`` of what libsndfile knows (WAV, FLAC, OGG, MP3 ...), else None."""
    import soundfile

    stream = open_file(source, None)
    try:
        file = soundfile.SoundFile(stream)
    except (soundfile.LibsndfileError, TypeError):
        stream.close()
        return None
    if not file.seekable() or file.frames < 0:
        file.close()
        stream.close()
        return None  # a coding that libsndfile reads only as a stream, such as GSM 6.10 in a WAV

    def blocks() -> Iterator[np.ndarray]:
        with stream, file:
            _check_duration(file.frames / file.samplerate, name)
            _check_rate(file.samplerate, file.channels, name)
            _check_values(file.frames * file.channels, name)
            try:
                while len(block := file.read(AUDIO_BLOCK, dtype="float32", always_2d=True)):
                    yield block
            except (soundfile.LibsndfileError, MemoryError, ValueError, RuntimeError) as error:
                raise KVMMError(f"{name} is damaged or cut off: record or download it again.") from error

    return file.samplerate, blocks()


def _decode_container(source: Source, name: str) -> tuple[int, Iterator[np.ndarray]]:
    """The same of what FFmpeg's libraries know beside: M4A and WebM from phones and browsers."""
    blocks = _container_blocks(source, name)
    return int(next(blocks)), blocks


def _container_blocks(source: Source, name: str) -> Iterator[Any]:
    """The rate, then blocks ``[n]``."""
    import av

    damaged = f"{name} is damaged or coded in a way that cannot be read: save it as WAV (PCM), FLAC, OGG, MP3 or M4A."
    try:
        with open_file(source, None) as stream, av.open(stream) as container:
            track = container.streams.audio[0]
            if container.duration is not None:
                _check_duration(container.duration / av.time_base, name)
            _check_rate(track.rate, track.channels, name)
            if container.duration is not None:
                _check_values(container.duration / av.time_base * track.rate * track.channels, name)
            yield track.rate
            length = 0
            resampler = av.AudioResampler(format="flt", layout="mono", rate=track.rate)
            for frame in container.decode(track):
                for part in resampler.resample(frame):
                    yield part.to_ndarray().reshape(-1)
                # Containers written while recording do not know their length.
                length += frame.samples
                _check_values(length * track.channels, name)
    except (av.FFmpegError, IndexError, ValueError, AttributeError, TypeError, RuntimeError, OSError) as error:
        # AttributeError: a track of a coding that FFmpeg has no decoder for has no rate
        if isinstance(error, KVMMError):
            raise
        raise KVMMError(damaged) from error
    if not length:
        raise KVMMError(damaged)


def _to_float(samples: np.ndarray) -> np.ndarray:
    if samples.dtype.kind == "u":
        middle = (np.iinfo(samples.dtype).max + 1) / 2
        return ((samples - middle) / middle).astype(np.float32)
    if samples.dtype.kind == "i":
        return (samples / -float(np.iinfo(samples.dtype).min)).astype(np.float32)
    if samples.dtype.kind == "f":
        return samples.astype(np.float32)
    raise KVMMError(f"The recording holds {samples.dtype} values: give integer or float samples.")


def finish_array(rate: int, samples: np.ndarray, name: str) -> np.ndarray:
    """Samples of any type, ``[n]``, ``[n, channels]`` or ``[channels, n]``, to what :func:`load_audio` returns."""
    if samples.ndim not in (1, 2) or samples.size == 0:
        raise KVMMError(f"{name} has no samples: record it again.")
    if samples.ndim == 1:
        samples = samples[:, None]
    elif samples.shape[0] <= MAX_AUDIO_CHANNELS < samples.shape[1]:
        samples = samples.T  # [n, channels] is the convention; [channels, n] is recognised by its shape
    _check_rate(rate, samples.shape[1], name)
    _check_duration(len(samples) / rate, name)
    return _finish_audio(
        rate, (_to_float(samples[k : k + AUDIO_BLOCK]) for k in range(0, len(samples), AUDIO_BLOCK)), name
    )


def _finish_audio(rate: int, blocks: Iterator[np.ndarray], name: str) -> np.ndarray:
    """Blocks ``[n]`` or ``[n, channels]``, float32, mixed to mono and resampled one after another."""
    stream, parts, length, peak = None, [], 0, 0.0
    for block in blocks:
        block = block.mean(axis=1) if block.ndim == 2 else block
        if not length:
            _check_rate(rate, 1, name)
            stream = _resampler(rate)
        length += block.size
        _check_duration(length / rate, name)
        if not np.isfinite(block).all():
            raise KVMMError(f"{name} holds values that are not numbers: record or export it again.")
        peak = max(peak, float(np.abs(block).max(initial=0.0)))
        parts.append(np.clip(block if stream is None else stream.resample_chunk(block), -1.0, 1.0))
    if not length:
        raise KVMMError(f"{name} has no samples: record it again.")
    if length < MIN_AUDIO_SECONDS * rate:
        raise KVMMError(f"{name} is shorter than {MIN_AUDIO_SECONDS} seconds: record it again.")
    if peak < SILENCE_PEAK:
        raise KVMMError(f"{name} is silent: check the microphone and record it again.")
    if stream is not None:
        parts.append(np.clip(stream.resample_chunk(np.empty(0, np.float32), last=True), -1.0, 1.0))
    samples = np.zeros(math.ceil(length * SAMPLE_RATE / rate), np.float32)
    whole = np.concatenate(parts)[: samples.size]
    samples[: whole.size] = whole
    return samples


def _resampler(rate: int) -> Any:
    """What turns blocks of float32 at ``rate`` into those at 16 kHz; None where they are that already."""
    if rate == SAMPLE_RATE:
        return None
    import soxr

    return soxr.ResampleStream(rate, SAMPLE_RATE, 1, dtype="float32", quality="HQ")


def _check_duration(seconds: float, name: str) -> None:
    if seconds > MAX_AUDIO_SECONDS:
        raise KVMMError(
            f"{name} is {seconds / 60:.0f} minutes long and may be {MAX_AUDIO_SECONDS // 60}: cut it into parts."
        )


def _check_values(count: float, name: str) -> None:
    if count > MAX_AUDIO_VALUES:
        raise KVMMError(
            f"{name} has {count / 1e6:.0f} million samples and may have {MAX_AUDIO_VALUES / 1e6:.0f}: save it in mono, "
            "or with 16000 samples a second."
        )


def _check_rate(rate: int, channels: int, name: str) -> None:
    if not MIN_SOURCE_RATE <= rate <= MAX_SOURCE_RATE:
        raise KVMMError(f"{name} has {rate} samples a second: save it with 8000 to 48000.")
    if not 1 <= channels <= MAX_AUDIO_CHANNELS:
        raise KVMMError(f"{name} has {channels} channels and may have {MAX_AUDIO_CHANNELS}: mix it down to mono.")


__all__ = ["MAX_AUDIO_SECONDS", "MAX_AUDIO_VALUES", "SAMPLE_RATE", "finish_array", "read_audio"]
