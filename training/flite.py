"""Speech of voices that were made from recordings of people: flite, called in the process.

``kal16`` joins pieces of recordings (0.5 ms per second of speech); ``slt``, ``awb`` and ``rms`` are statistical models
of a speaker (12 ms). A speaker becomes several by another pitch, and by speech played faster or slower, which moves the
formants too; libsonic then gives back the pace. ``rms`` is kept for evaluation.
"""

from __future__ import annotations

import ctypes
from functools import lru_cache
from pathlib import Path

import numpy as np

from training.pages.values import assets_dir

VOICES = ("slt", "awb", "kal16")
HELD_VOICES = ("rms",)
QUICK_VOICE = "kal16"
PACE = 15.0  # characters a second of the voices as they are


class _Wave(ctypes.Structure):
    """``cst_wave``."""

    _fields_ = (
        ("type", ctypes.c_char_p),
        ("rate", ctypes.c_int),
        ("count", ctypes.c_int),
        ("channels", ctypes.c_int),
        ("samples", ctypes.POINTER(ctypes.c_short)),
    )


class _Voice(ctypes.Structure):
    """The beginning of ``cst_voice``."""

    _fields_ = (("name", ctypes.c_char_p), ("features", ctypes.c_void_p))


class Flite:
    """The synthesiser with its voices, each loaded when it first speaks."""

    rate = 16_000

    def __init__(self, folder: Path, sonic: Path) -> None:
        """
        Args:
            folder: holds ``libflite.so.1``, its English and its voices. sonic: ``libsonic.so.0``.

        Raises:
            OSError: a library is missing.
        """
        self._folder = folder.resolve()
        for name in ("libasound.so.2", "libflite.so.1", "libflite_usenglish.so.1", "libflite_cmulex.so.1"):
            library = ctypes.CDLL(str(self._folder / name), mode=ctypes.RTLD_GLOBAL)  # the next ones need its names
            if name == "libflite.so.1":
                self._library = library
        self._library.flite_init()
        self._library.flite_text_to_wave.restype = ctypes.POINTER(_Wave)
        self._library.flite_text_to_wave.argtypes = (ctypes.c_char_p, ctypes.c_void_p)
        self._library.feat_set_float.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_float)
        self._library.delete_wave.argtypes = (ctypes.c_void_p,)
        number = ctypes.c_float
        self._pace = ctypes.CDLL(str(sonic.resolve())).sonicChangeFloatSpeed
        self._pace.argtypes = (ctypes.c_void_p, ctypes.c_int, *[number] * 4, *[ctypes.c_int] * 3)
        self._voices: dict[str, ctypes.POINTER(_Voice)] = {}

    def _voice(self, name: str):
        if name not in self._voices:
            if name not in (*VOICES, *HELD_VOICES):
                raise ValueError(f"flite has no voice {name!r}")
            library = ctypes.CDLL(str(self._folder / f"libflite_cmu_us_{name}.so.1"))
            register = getattr(library, f"register_cmu_us_{name}")
            register.restype, register.argtypes = ctypes.POINTER(_Voice), (ctypes.c_void_p,)
            self._voices[name] = register(None)
        return self._voices[name]

    def __call__(self, text: str, voice: str, *, pitch: float = 1.0) -> np.ndarray:
        """Speak ``text``.

        Args:
            text: one sentence, or several without pauses of their own.
            pitch: times the voice's own.

        Returns:
            float32 ``[n]`` at 16 kHz.

        Raises:
            ValueError: no such voice.
        """
        speaker = self._voice(voice)
        self._library.feat_set_float(speaker.contents.features, b"f0_shift", pitch)
        raw = text.encode("ascii", "ignore")
        spoken = self._library.flite_text_to_wave(raw, ctypes.cast(speaker, ctypes.c_void_p))
        count = spoken.contents.count
        samples = np.ctypeslib.as_array(spoken.contents.samples, (count,)).astype(np.float32) if count else np.zeros(0)
        self._library.delete_wave(spoken)
        return (samples / 32768).astype(np.float32)

    def at_pace(self, wave: np.ndarray, pace: float) -> np.ndarray:
        """``wave`` spoken ``pace`` times as fast at the same pitch. float32 ``[n] -> [about n / pace]``."""
        room = np.zeros(int(len(wave) * max(1.0, 1 / pace)) + self.rate // 4, np.float32)
        room[: len(wave)] = wave
        count = self._pace(room.ctypes.data, len(wave), pace, 1.0, 1.0, 1.0, 0, self.rate, 1)
        return room[:count]


@lru_cache(None)
def flite() -> Flite | None:
    """This process's synthesiser, ``None`` where the assets have none."""
    folder = assets_dir() / "flite"
    return Flite(folder, assets_dir() / "espeak" / "libsonic.so.0") if folder.is_dir() else None
