"""Where recordings are made: halls, wind, a hand on the phone, a speaker who turns away, a poor line.

A clip is float32 ``[n]`` in [-1, 1], mono, 16 kHz; every function returns ``[n]`` again.
"""

from __future__ import annotations

import numpy as np

from training.pages.values import Rng

SAMPLE_RATE = 16_000


def _noise(rng: Rng, n: int) -> np.ndarray:
    return np.random.default_rng(rng.getrandbits(63)).standard_normal(n, dtype=np.float32)


def _power(wave: np.ndarray) -> float:
    return float(np.sqrt(np.mean(wave**2)) + 1e-9)


def _curve(rng: Rng, n: int, low: float, high: float, seconds: float) -> np.ndarray:
    """A smooth curve between ``low`` and ``high`` with a new value about every ``seconds``, ``[n]``."""
    knots = max(2, round(n / SAMPLE_RATE / seconds) + 1)
    values = [rng.uniform(low, high) for _ in range(knots)]
    return np.interp(np.linspace(0, knots - 1, n), np.arange(knots), values).astype(np.float32)


def hall(rng: Rng, wave: np.ndarray) -> np.ndarray:
    """Single echoes off the walls within 70 ms, then a dull tail that decays by 60 dB in 0.4 to 1.4 s."""
    decay = rng.uniform(0.06, 0.2) * SAMPLE_RATE  # to 1/e
    n = int(4 * decay)
    tail = _noise(rng, n) * np.exp(-np.arange(n, dtype=np.float32) / decay)
    tail[1:] = 0.5 * (tail[1:] + tail[:-1])  # walls swallow what is high
    tail *= rng.uniform(0.2, 0.7) / np.sqrt(np.sum(tail**2))
    tail[0] = 1
    for _ in range(rng.randint(2, 6)):
        tail[rng.randint(60, 1100) % n] += rng.uniform(-0.4, 0.4)
    length = 1 << (len(wave) + n - 1).bit_length()
    mixed = np.fft.irfft(np.fft.rfft(wave, length) * np.fft.rfft(tail, length), length)[: len(wave)]
    return (mixed * (_power(wave) / _power(mixed))).astype(np.float32)


def wind(rng: Rng, wave: np.ndarray) -> np.ndarray:
    """Gusts on the microphone: noise below about 200 Hz, 0 to 20 dB weaker than the speech."""
    coarse = _noise(rng, len(wave) // 40 + 2)  # 400 values a second, drawn through by lines
    gusts = np.interp(np.arange(len(wave)) / 40, np.arange(len(coarse)), coarse).astype(np.float32)
    gusts *= _curve(rng, len(wave), 0.0, 1.0, 0.7)
    level = _power(wave) / _power(gusts) * 10 ** (-rng.uniform(0, 20) / 20)
    return np.clip(wave + gusts * np.float32(level), -1, 1)


def knocks(rng: Rng, wave: np.ndarray) -> np.ndarray:
    """A hand on the phone, keys, a cup: up to eight short noises, as loud as the speech at most."""
    out = wave.copy()
    for _ in range(rng.randint(1, 8)):
        n = min(int(SAMPLE_RATE * rng.uniform(0.003, 0.05)), len(out))
        knock = _noise(rng, n) * np.exp(-np.arange(n, dtype=np.float32) * np.float32(5 / n))
        start = rng.randint(0, len(out) - n)
        out[start : start + n] += knock * np.float32(_power(wave) * rng.uniform(0.3, 2.0))
    return np.clip(out, -1, 1)


def turning(rng: Rng, wave: np.ndarray) -> np.ndarray:
    """A speaker who turns away and back: up to 12 dB weaker within about a second."""
    return wave * 10 ** (_curve(rng, len(wave), -12, 0, 1.2) / 20)


def gaps(rng: Rng, wave: np.ndarray) -> np.ndarray:
    """A poor line: up to two gaps a second of 10 to 40 ms, shorter than most sounds."""
    out = wave.copy()
    for _ in range(rng.randint(1, 1 + 2 * len(wave) // SAMPLE_RATE)):
        n = min(int(SAMPLE_RATE * rng.uniform(0.01, 0.04)), len(out))
        start = rng.randint(0, len(out) - n)
        out[start : start + n] *= np.float32(rng.pick((0.0, 0.0, 0.1)))
    return out


def anywhere(rng: Rng, wave: np.ndarray) -> np.ndarray:
    """One or two of these, or none."""
    if len(wave) < SAMPLE_RATE // 10:
        return wave
    for change in rng.sample((hall, wind, knocks, turning, gaps), rng.pick((0, 1, 1, 2))):
        wave = change(rng, wave)
    return wave.astype(np.float32, copy=False)
