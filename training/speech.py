"""Speech from text: espeak-ng called in the process (about 3 ms a clip), degraded, and its log-mel spectrogram.

Everything is numpy; a clip is float32 ``[n]`` in [-1, 1], mono, 16 kHz. The synthesiser comes from the assets folder
(``training/assets.py``) when it holds one, otherwise from the system. Where the assets also have flite, some of the
clips are spoken by its voices, which were made from recordings (``training/flite.py``).
"""

from __future__ import annotations

import ctypes
import math
import re
from functools import lru_cache
from pathlib import Path

import numpy as np

from training import flite
from training.pages.values import Rng, assets_dir
from training.rooms import anywhere

SAMPLE_RATE = 16_000
HOP = 160  # samples between two frames of the spectrogram
WINDOW = 400
MEL_BINS = 128
LONGEST = 30 * SAMPLE_RATE  # the feature extractor's window
SLOWEST, FASTEST = 120, 230  # words a minute
RECORDED = 0.25  # of clips in training: voices of flite
RECORDED_LONGEST = (
    110  # characters that they say; longer texts only the quick one, so that a clip costs less than 120 ms
)
SLOWER = 1.14  # the most that `degrade` shortens a recording by playing it faster

ACCENTS = ("en-us", "en", "en-gb-x-rp", "en-gb-scotland", "en-029", "en-gb-x-gbclan", "en-us-nyc")
HELD_ACCENT = "en-gb-x-gbcwmd"
VARIANTS = (
    "",
    *("m1", "m2", "m3", "m4", "m5", "m7", "f1", "f2", "f3", "f4", "Alex", "Alicia", "Andy", "Annie", "Denis", "Diogo"),
    *("Gene", "Hugo", "Jacky", "Lee", "Marco", "Mario", "Michael", "Mike", "Nguyen", "antonio", "aunty", "belinda"),
    *("benjamin", "david", "ed", "edward", "grandpa", "klatt2", "linda", "max", "michel", "miguel", "paul", "pedro"),
    *("quincy", "rob", "robert", "shelby", "steph", "Tweaky", "victor", "zac", "AnxiousAndy", "Gene2", "Henrique"),
    *("Mr serious", "RicishayMax", "RicishayMax2", "RicishayMax3", "Storm", "announcer", "boris", "gustave", "iven"),
    *("iven2", "iven3", "iven4", "kaukovalta", "klatt", "klatt3", "marcelo", "pablo", "robosoft4", "robosoft6"),
    *("robosoft7", "sandro", "steph2", "steph3", "whisper", "whisperf"),
)
# klatt4, klatt5 and klatt6 sound as caleb and adam, anikaRobot as anika: they are held out with them
HELD_VARIANTS = ("m6", "m8", "f5", "anika", "john", "caleb", "adam", "grandma", "Andrea", "travis", "norbert")


def _voice(accent: str, variant: str) -> str:
    return f"{accent}+{variant}" if variant else accent


TRAIN_VOICES = tuple(_voice(accent, variant) for accent in ACCENTS for variant in VARIANTS)
HELD_VOICES = tuple(_voice(accent, variant) for accent in (*ACCENTS, HELD_ACCENT) for variant in HELD_VARIANTS)

BACKGROUND = (
    "and the other one is over there behind the door", "no I have not seen it, ask at the counter",
    "two coffees please", "well it was raining all day long and nobody came",
    "could you pass me that, thank you very much", "mind the step, the lift is out of order again",
    "he said he would ring before lunch but you know what he is like", "anybody sitting here, no, go ahead",
    "and now the news, the strike of the bus drivers goes into its second week",
    "did you lock the car, I thought you did",
    "next please, do you have a card for the points", "stop it both of you and put your shoes on",
    "I told her twice, the invoice never arrived", "goal, what a shot from the left, nobody saw that coming",
)  # fmt: skip

_CALLBACK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.c_void_p)
# names of speak_lib.h: AUDIO_OUTPUT_..., espeakINITIALIZE_..., espeakCHARS_..., espeakSSML
_SYNCHRONOUS, _DONT_EXIT, _UTF8, _SSML = 2, 0x8000, 1, 0x10
_RATE, _PITCH, _RANGE, _WORD_GAP = 1, 3, 4, 7


class Espeak:
    """One synthesiser; espeak-ng keeps its state in the library, so there is one a process (``espeak()``)."""

    def __init__(self, folder: Path | None = None) -> None:
        """
        Args:
            folder: holds ``libespeak-ng.so`` and ``espeak-ng-data``; without it the system's library is loaded.

        Raises:
            OSError: there is no library, or it finds no data.
        """
        data = None
        if folder is not None and (folder / "libespeak-ng.so").exists():
            folder = folder.resolve()
            for name in ("libpcaudio.so.0", "libsonic.so.0"):  # found by name once they are loaded
                ctypes.CDLL(str(folder / name), mode=ctypes.RTLD_GLOBAL)
            self._library = ctypes.CDLL(str(folder / "libespeak-ng.so"))
            data = str(folder).encode()
        else:
            self._library = ctypes.CDLL("libespeak-ng.so.1")
        self.rate = self._library.espeak_Initialize(_SYNCHRONOUS, 0, data, _DONT_EXIT)
        if self.rate <= 0:
            raise OSError(f"espeak-ng finds no data in {folder or 'the system folders'}")
        self._chunks: list[np.ndarray] = []
        self._callback = _CALLBACK(self._receive)  # kept: the library holds only the pointer
        self._library.espeak_SetSynthCallback(self._callback)

    def _receive(self, samples, count: int, events) -> int:
        if samples and count > 0:
            self._chunks.append(np.ctypeslib.as_array(samples, (count,)).copy())
        return 0

    def __call__(
        self,
        text: str,
        voice: str,
        *,
        rate: int = 170,
        pitch: int = 50,
        pitch_range: int = 50,
        word_gap: int = 0,
        ssml: bool = False,
    ) -> np.ndarray:
        """Speak ``text``.

        Args:
            voice: ``accent`` or ``accent+variant``.
            rate: words a minute. pitch, pitch_range: 0-99. word_gap: pause between words, in units of 10 ms.
            ssml: ``text`` is SSML.

        Returns:
            float32 ``[n]`` at 16 kHz.

        Raises:
            ValueError: no such voice.
        """
        if self._library.espeak_SetVoiceByName(voice.encode()) != 0:
            raise ValueError(f"espeak-ng has no voice {voice!r}")
        for parameter, value in ((_RATE, rate), (_PITCH, pitch), (_RANGE, pitch_range), (_WORD_GAP, word_gap)):
            self._library.espeak_SetParameter(parameter, int(value), 0)
        self._chunks.clear()
        raw = text.encode() + b"\0"
        self._library.espeak_Synth(raw, ctypes.c_size_t(len(raw)), 0, 1, 0, _UTF8 | (_SSML * ssml), None, None)
        if not self._chunks:
            return np.zeros(HOP, np.float32)
        return resample(np.concatenate(self._chunks).astype(np.float32) / 32768, self.rate, SAMPLE_RATE)


@lru_cache(None)
def espeak() -> Espeak:
    """This process's synthesiser."""
    return Espeak(assets_dir() / "espeak")


def _smooth(n: int) -> int:
    """The smallest 2^a 3^b 5^c >= n: a length whose FFT is quick."""
    best = 1 << (n - 1).bit_length()
    for fives in range(3):
        for threes in range(4):
            base = 5**fives * 3**threes
            if base < best:
                best = min(best, base << max(0, (-(-n // base) - 1).bit_length()))
    return best


def resample(wave: np.ndarray, rate: int, new_rate: int) -> np.ndarray:
    """Band-limited resampling by cutting or padding the spectrum. ``[n] -> [round(n * new_rate / rate)]``, float32."""
    if rate == new_rate or not len(wave):
        return wave.astype(np.float32, copy=False)
    common = math.gcd(rate, new_rate)
    up, down = new_rate // common, rate // common
    periods = _smooth(-(-(len(wave) + 64) // down))  # both lengths are whole numbers of periods: the ratio is exact
    length, new_length = periods * down, periods * up
    spectrum = np.fft.rfft(wave, length)
    bins = new_length // 2 + 1
    spectrum = spectrum[:bins] if bins <= len(spectrum) else np.pad(spectrum, (0, bins - len(spectrum)))
    out = np.fft.irfft(spectrum, new_length) * (new_length / length)
    return out[: round(len(wave) * up / down)].astype(np.float32)


def trim(wave: np.ndarray, threshold: float = 0.004) -> np.ndarray:
    """Without the silence at both ends (25 ms of it is kept)."""
    loud = np.flatnonzero(np.abs(wave) > threshold)
    return wave[max(loud[0] - WINDOW, 0) : loud[-1] + WINDOW] if len(loud) else wave[:0]


def hesitant(rng: Rng, text: str) -> str:
    """``text`` as SSML in which sentences differ in pace and pitch and the speaker pauses, also between words."""
    clean = text.replace("&", "and").replace("<", " ").replace(">", " ")
    parts = []
    for sentence in re.split(r"(?<=[.!?]) ", clean):
        words = sentence.split()
        for i in range(1, len(words)):
            if rng.chance(0.25 if words[i - 1][-1] in ",;:" else 0.03):
                words[i] = f'<break time="{rng.randint(15, 70)}0ms"/>{words[i]}'
        pace, pitch = rng.randint(85, 118), rng.randint(-12, 12)
        parts.append(f'<prosody rate="{pace}%" pitch="{pitch:+d}%">{" ".join(words)}</prosody>')
    return f"<speak>{' '.join(parts)}</speak>"


def speak_recorded(rng: Rng, text: str, held: bool = False, seconds: float = 0.0) -> np.ndarray | None:
    """``text`` in a voice of flite at a random pitch, pace and size of the speaker, with pauses, silence trimmed.

    Args:
        held: take a voice that training never hears.
        seconds: speak fast enough to end in about that time, 0 for any pace.

    Returns:
        float32 ``[n]`` at 16 kHz, or ``None`` if there is no flite or the text cannot be said in that time.
    """
    speaker, pauses = flite.flite(), rng.chance(0.5)
    # the pace that leaves an eighth of the time for pauses, more if there are many
    slowest = len(text) / flite.PACE / seconds * (1.4 if pauses else 1.15) if seconds else 0.0
    if speaker is None or slowest > 1.4:
        return None
    quick = len(text) > RECORDED_LONGEST and not held
    voice = flite.QUICK_VOICE if quick else rng.pick(flite.HELD_VOICES if held else flite.VOICES)
    size, pitch = rng.uniform(0.86, 1.18), rng.uniform(0.85, 1.2)
    pace = rng.uniform(max(0.75, min(slowest, 1.3)), max(1.3, slowest))
    parts: list[np.ndarray] = []
    for part in re.split(r"(?<=[.!?,;]) " if pauses else r"(?<=[.!?]) ", text):
        if parts and (part[:1].isupper() or rng.chance(0.5)):
            parts.append(np.zeros(int(SAMPLE_RATE * rng.uniform(0.05, 0.6 if pauses else 0.3)), np.float32))
        parts.append(trim(speaker.at_pace(speaker(part, voice, pitch=pitch * rng.uniform(0.95, 1.05)), pace / size)))
    return trim(change_speed(np.concatenate(parts), size)) * np.float32(rng.uniform(0.5, 1.0))


def speak(rng: Rng, text: str, held: bool = False, seconds: float = 0.0) -> np.ndarray:
    """``text`` in a random voice, rate and pitch, half of the texts hesitantly, silence trimmed.

    In training some texts are said by :func:`speak_recorded`; held-out voices are those of espeak-ng.

    Args:
        held: take a voice that training never hears (a variant of its own, and sometimes an accent of its own).
        seconds: speak fast enough to end in about that time, 0 for any rate.

    Returns:
        float32 ``[n]`` at 16 kHz.
    """
    if not held and flite.flite() is not None and rng.chance(RECORDED):
        wave = speak_recorded(rng, text, seconds=seconds)
        if wave is not None and 0 < len(wave) <= (seconds * SAMPLE_RATE or LONGEST):
            return wave
    halting = rng.chance(0.5)
    # at R words a minute a voice says about R / 10 characters a second, less when it pauses
    needed = (12.5 if halting else 10.5) * len(text) / seconds if seconds else 0
    slowest = max(SLOWEST, min(int(needed), FASTEST))
    wave = espeak()(
        hesitant(rng, text) if halting else text,
        rng.pick(HELD_VOICES if held else TRAIN_VOICES),
        rate=rng.randint(slowest, FASTEST),
        pitch=rng.randint(15, 90),
        pitch_range=rng.randint(15, 90),
        word_gap=0 if halting else rng.pick((0, 0, 0, 1, 2, 4)),
        ssml=halting,
    )
    return trim(wave)


def _noise(rng: Rng, n: int) -> np.ndarray:
    """White, pink or mains-hum noise of unit power, ``[n]``."""
    kind = rng.pick(("white", "pink", "hum"))
    if kind == "hum":
        t = np.arange(n, dtype=np.float32) / SAMPLE_RATE
        base = rng.pick((50.0, 60.0))
        phases = [rng.uniform(0, 2 * math.pi) for _ in range(4)]
        noise = sum(
            np.sin(2 * math.pi * base * k * t + phase) / k for k, phase in zip((1, 2, 3, 5), phases, strict=True)
        )
    else:
        noise = np.random.default_rng(rng.getrandbits(63)).standard_normal(n, dtype=np.float32)
        if kind == "pink":
            length = _smooth(n)
            spectrum = np.fft.rfft(noise, length)
            spectrum /= np.sqrt(np.arange(1, len(spectrum) + 1))
            noise = np.fft.irfft(spectrum, length)[:n]
    return (noise / np.sqrt(np.mean(noise**2) + 1e-12)).astype(np.float32)


def _reverberate(rng: Rng, wave: np.ndarray) -> np.ndarray:
    """A small room: the direct sound and an exponentially decaying tail of random echoes."""
    decay = rng.uniform(0.02, 0.12) * SAMPLE_RATE
    n = int(4 * decay)
    tail = np.random.default_rng(rng.getrandbits(63)).standard_normal(n, dtype=np.float32)
    tail *= np.exp(-np.arange(n, dtype=np.float32) / decay)
    tail *= rng.uniform(0.1, 0.5) / np.sqrt(np.sum(tail**2))
    tail[0] = 1
    length = _smooth(len(wave) + n)
    mixed = np.fft.irfft(np.fft.rfft(wave, length) * np.fft.rfft(tail, length), length)
    return mixed[: len(wave) + n // 2].astype(np.float32)


def change_speed(wave: np.ndarray, speed: float) -> np.ndarray:
    """Played ``speed`` times as fast, pitch and all. ``[n] -> [round(n / speed)]``."""
    length = _smooth(len(wave) + 64)
    new_length = round(length / speed)
    spectrum = np.fft.rfft(wave, length)
    bins = new_length // 2 + 1
    spectrum = spectrum[:bins] if bins <= len(spectrum) else np.pad(spectrum, (0, bins - len(spectrum)))
    out = np.fft.irfft(spectrum, new_length) * (new_length / length)
    return out[: round(len(wave) / speed)].astype(np.float32)


def degrade(
    rng: Rng,
    wave: np.ndarray,
    *,
    speed: tuple[float, float] = (0.88, SLOWER),
    reverb: float = 0.25,
    noise: float = 0.65,
    snr_db: tuple[float, float] = (8.0, 40.0),
    gain_db: tuple[float, float] = (-24.0, 2.0),
) -> np.ndarray:
    """A less clean recording of ``wave``.

    Args:
        speed: range of playback speeds. reverb, noise: probabilities of a room and of noise.
        snr_db: speech power over noise power. gain_db: loudness against the synthesiser's.

    Returns:
        float32 ``[m]`` within [-1, 1]; ``m`` differs from ``n`` by the speed and the room's tail.
    """
    if not len(wave):
        return wave
    if rng.chance(0.5):
        wave = change_speed(wave, rng.uniform(*speed))
    if rng.chance(reverb):
        wave = _reverberate(rng, wave)
    if rng.chance(noise):
        level = np.sqrt(np.mean(wave**2)) * 10 ** (-rng.uniform(*snr_db) / 20)
        wave = wave + _noise(rng, len(wave)) * np.float32(level)
    return np.clip(wave * np.float32(10 ** (rng.uniform(*gain_db) / 20)), -1, 1)


def telephone(rng: Rng, wave: np.ndarray) -> np.ndarray:
    """``wave`` as a telephone line carries it: 300 to 3400 Hz, 8 bits on a logarithmic scale. ``[n] -> [n]``."""
    length = _smooth(len(wave) + 64)
    spectrum = np.fft.rfft(wave, length)
    hertz = np.arange(len(spectrum)) * (SAMPLE_RATE / length)
    low, high = rng.uniform(150, 400), rng.uniform(2800, 3800)
    spectrum /= (1 + (low / np.maximum(hertz, 1)) ** 6) * (1 + (hertz / high) ** 12)
    narrow = np.fft.irfft(spectrum, length)[: len(wave)]
    loud = np.abs(narrow).max() + 1e-9
    mu = np.sign(narrow) * np.log1p(255 * np.abs(narrow) / loud) / math.log(256)
    mu = np.round(mu * 127) / 127
    return (np.sign(mu) * (np.expm1(np.abs(mu) * math.log(256)) / 255) * loud).astype(np.float32)


def microphone(rng: Rng, wave: np.ndarray) -> np.ndarray:
    """``wave`` through a microphone that hears some frequencies up to 10 dB better than others. ``[n] -> [n]``."""
    length = _smooth(len(wave) + 64)
    spectrum = np.fft.rfft(wave, length)
    octaves = np.log2(np.maximum(np.arange(len(spectrum)) * (SAMPLE_RATE / length), 60) / 60)  # 0 to 7
    decibels = np.interp(octaves, np.arange(0, 8), [rng.uniform(-10, 10) for _ in range(8)])
    return np.fft.irfft(spectrum * 10 ** (decibels / 20), length)[: len(wave)].astype(np.float32)


def overdrive(rng: Rng, wave: np.ndarray) -> np.ndarray:
    """Recorded too loudly: peaks are cut off. ``[n] -> [n]``."""
    peak = np.abs(wave).max() + 1e-9
    limit = peak * rng.uniform(0.25, 0.7)
    return np.clip(wave, -limit, limit) * np.float32(peak / limit)


def beside(rng: Rng, wave: np.ndarray, other: np.ndarray, snr_db: tuple[float, float] = (6.0, 22.0)) -> np.ndarray:
    """``wave`` while somebody else speaks in the background. ``[n] -> [n]``."""
    if not len(wave) or not len(other):
        return wave
    heard = np.resize(np.roll(other, rng.randint(0, len(other) - 1)), len(wave))
    power = lambda x: float(np.sqrt(np.mean(x**2)) + 1e-9)  # noqa: E731
    scale = power(wave) / power(heard) * 10 ** (-rng.uniform(*snr_db) / 20)
    return np.clip(wave + heard * np.float32(scale), -1, 1).astype(np.float32)


def spoil(rng: Rng, wave: np.ndarray, held: bool = False) -> np.ndarray:
    """What phones and rooms do beyond :func:`degrade`: a voice behind, a place, a microphone, a line, cut peaks."""
    if rng.chance(0.3):
        wave = beside(rng, wave, speak(rng, rng.pick(BACKGROUND), held))
    if rng.chance(0.5):
        wave = anywhere(rng, wave)
    if rng.chance(0.4):
        wave = microphone(rng, wave)
    if rng.chance(0.45):
        wave = telephone(rng, wave)
    return overdrive(rng, wave) if rng.chance(0.3) else wave


def place(rng: Rng, wave: np.ndarray, n: int) -> np.ndarray:
    """``wave`` at a random place of a clip of ``n`` samples, over a faint floor of noise; cut when it is longer.

    Returns:
        float32 ``[n]``.
    """
    clip = np.zeros(n, np.float32)
    if rng.chance(0.5):
        clip += _noise(rng, n) * np.float32(10 ** rng.uniform(-5.0, -3.2))
    size = min(len(wave), n)
    start = rng.randint(0, n - size)
    clip[start : start + size] += wave[:size]
    return np.clip(clip, -1, 1)


@lru_cache(None)
def _mel_filters() -> tuple[np.ndarray, np.ndarray]:
    """Slaney mel filters ``[201, 128]`` and the periodic Hann window ``[400]``, float64."""

    def to_mel(hz: np.ndarray) -> np.ndarray:
        return np.where(hz < 1000, 3 * hz / 200, 15 + 27 * np.log(np.maximum(hz, 1e-9) / 1000) / math.log(6.4))

    def to_hz(mel: np.ndarray) -> np.ndarray:
        return np.where(mel < 15, 200 * mel / 3, 1000 * np.exp(math.log(6.4) * (mel - 15) / 27))

    edges = to_hz(np.linspace(to_mel(np.float64(0)), to_mel(np.float64(SAMPLE_RATE / 2)), MEL_BINS + 2))
    bins = np.linspace(0, SAMPLE_RATE / 2, WINDOW // 2 + 1)
    rising = (bins[:, None] - edges[None, :-2]) / (edges[1:-1] - edges[:-2])
    falling = (edges[None, 2:] - bins[:, None]) / (edges[2:] - edges[1:-1])
    filters = np.maximum(0, np.minimum(rising, falling)) * (2 / (edges[2:] - edges[:-2]))
    return filters, np.hanning(WINDOW + 1)[:-1]


def log_mel(wave: np.ndarray) -> np.ndarray:
    """The unmasked frames of ``WhisperFeatureExtractor(feature_size=128)`` on this clip, without padding it to 30 s.

    Args:
        wave: float32 ``[n]`` at 16 kHz, ``0 < n <= 480000``.

    Returns:
        float32 ``[ceil(n / 160), 128]``.

    Raises:
        ValueError: the clip is empty or longer than 30 s.
    """
    n = len(wave)
    if not 0 < n <= LONGEST:
        raise ValueError(f"a clip has 1 to {LONGEST} samples, this one {n}")
    filters, window = _mel_filters()
    # Frames past the clip still see its last samples and enter the maximum below; all later ones are silent.
    frames = min(-(-(n + WINDOW // 2) // HOP), LONGEST // HOP)
    padded = np.pad(wave, (0, min(5 * HOP, LONGEST - n)))
    if len(padded) <= WINDOW // 2:
        padded = np.pad(padded, (0, WINDOW))
    padded = np.pad(padded, WINDOW // 2, mode="reflect")
    pieces = np.lib.stride_tricks.sliding_window_view(padded, WINDOW)[::HOP][:frames] * window
    power = np.abs(np.fft.rfft(pieces, axis=1)) ** 2
    mel = np.log10(np.maximum(power @ filters, 1e-10))
    mel = np.maximum(mel, mel.max() - 8.0)
    return ((mel + 4.0) / 4.0)[: -(-n // HOP)].astype(np.float32)
