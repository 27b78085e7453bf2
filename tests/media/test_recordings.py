"""Every recording a user may send, good and bad. The bad ones end in one line that says what to do."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import soundfile

from kvmm.media import load_audio, load_media
from tests.media.files import aac_in_mp4, refused, sine, wav


def assert_is_the_sine(samples: np.ndarray, tolerance: float = 0.02):
    assert samples.dtype == np.float32 and samples.ndim == 1 and abs(samples.size - 16_000) <= 16
    inner = slice(1000, 15_000)  # resamplers ring at the ends
    assert np.abs(samples[inner] - sine(16_000)[inner]).max() < tolerance


@pytest.mark.parametrize("rate", [8_000, 11_025, 16_000, 22_050, 44_100, 48_000, 96_000])
def test_any_rate_becomes_16_kilohertz(rate: int):
    assert_is_the_sine(load_audio(wav(sine(rate), rate)))


@pytest.mark.parametrize("form, tolerance", [("FLAC", 0.02), ("OGG", 0.05), ("AIFF", 0.02), ("MP3", None)])
def test_audio_formats(tmp_path: Path, form: str, tolerance: float | None):
    path = tmp_path / "recording.bin"
    path.write_bytes(wav(sine(16_000), 16_000, form))
    (item,) = load_media(path)
    assert item.kind == "audio"
    if tolerance is not None:
        assert_is_the_sine(item.data, tolerance)
    else:  # MP3 shifts the samples
        assert abs(item.data.std() - sine(16_000).std()) < 0.02


def test_m4a_from_a_phone():
    samples = load_audio(aac_in_mp4(sine(44_100), 44_100))
    assert abs(samples.size - 16_000) < 2_000 and abs(samples[2000:14_000].std() - sine(16_000).std()) < 0.03


def test_stereo_becomes_mono():
    left, right = sine(16_000), sine(16_000, hertz=880)
    both = load_audio(wav(np.stack([left, right], axis=1), 16_000))
    assert np.abs(both - (left + right) / 2).max() < 1e-3


@pytest.mark.parametrize("kind", [np.int16, np.int32, np.uint8, np.float64])
def test_arrays_of_any_type(kind):
    samples = sine(48_000)
    if kind is np.uint8:
        samples = (samples * 127 + 128).astype(kind)
    elif np.issubdtype(kind, np.integer):
        samples = (samples * np.iinfo(kind).max).astype(kind)
    assert_is_the_sine(load_audio((48_000, samples.astype(kind))))
    assert_is_the_sine(load_audio((48_000, np.stack([samples, samples], axis=1).astype(kind))))
    assert_is_the_sine(load_audio((48_000, np.stack([samples, samples], axis=0).astype(kind))))


def test_silence():
    refused(load_audio, wav(np.zeros(16_000, np.float32), 16_000), match="is silent: check the microphone")
    refused(load_audio, (16_000, np.zeros(16_000, np.int16)), match="is silent")
    assert load_audio((16_000, sine(16_000) * 0.01)).size == 16_000, "quiet is not silent"


def test_three_hours_are_refused_before_decoding(tmp_path: Path, monkeypatch):
    path = tmp_path / "meeting.flac"
    with soundfile.SoundFile(path, "w", 8_000, 1, format="FLAC") as file:
        block = np.zeros(8_000 * 600, np.int16)
        for _ in range(18):
            file.write(block)
    monkeypatch.setattr(soundfile.SoundFile, "read", lambda *a, **k: pytest.fail("it was decoded"))
    refused(load_audio, path, match="is 180 minutes long and may be 30")
    refused(load_media, path, match="is 180 minutes long")
    refused(load_audio, (8_000, np.ones(8_000 * 3 * 3600, np.int8)), match="is 180 minutes long")


def test_recordings_that_cannot_be_used():
    refused(load_audio, wav(sine(16_000, 0.01), 16_000), match="shorter than 0.1 seconds")
    refused(load_audio, (16_000, np.zeros(0, np.float32)), match="no samples")
    refused(load_audio, (16_000, np.full(16_000, np.nan, np.float32)), match="not numbers")
    refused(load_audio, (0, sine(16_000)), match="samples a second")
    refused(load_audio, (16_000, np.ones((16_000, 20), np.float32)), match="20 channels")
    refused(load_audio, (16_000, np.array(["a"] * 16_000)), match="give integer or float samples")


def test_damaged_recordings():
    for form in ("FLAC", "OGG"):
        data = bytearray(wav(np.random.default_rng(0).normal(0, 0.2, 32_000).astype(np.float32), 16_000, form))
        refused(load_audio, bytes(data[:120]), match="damaged|no samples|shorter")
    refused(load_audio, b"RIFF\x24\0\0\0WAVEfmt " + b"\0" * 8, match="damaged")
    refused(load_audio, aac_in_mp4(sine(44_100), 44_100)[:300], match="damaged")
    refused(load_audio, b"ID3" + bytes(500), match="damaged")
