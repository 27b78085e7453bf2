"""A stand-in for `training.dataset` with its batch contract: tiny pages and clips of noise, random ids."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Spec:
    name: str
    sequences: int
    pages: int
    height: int
    width: int
    clips: int
    frames: int
    seq_len: int


SPECS = [
    (Spec("page", 2, 1, 84, 56, 0, 0, 72), 0.4),
    (Spec("pages", 1, 3, 56, 56, 0, 0, 90), 0.1),
    (Spec("audio", 2, 0, 0, 0, 1, 40, 64), 0.3),
    (Spec("spoken", 1, 1, 56, 56, 1, 24, 60), 0.2),
]


def make_step(seed: int, spec: Spec, held: bool = False) -> dict[str, np.ndarray]:
    """One step: prefix with media, then two branches whose last tokens are targets."""
    rng = np.random.default_rng([seed, held])
    b, s = spec.sequences, spec.seq_len
    row = [1]
    if spec.frames:
        row += [4, *[3] * (spec.frames // 4), 5]
    for _ in range(spec.pages):
        row += [6, *[9] * (spec.height * spec.width // 784), 7]
    prefix = len(row)
    ids = np.zeros((b, s), np.int16)
    ids[:, :prefix] = row
    seg, weight = np.full((b, s), 255, np.uint8), np.zeros((b, s), np.uint8)
    seg[:, :prefix] = 0
    for branch, (start, kind) in enumerate(((prefix, 1), (prefix + 8, 2)), 1):
        ids[:, start : start + 8] = rng.integers(16, 80, (b, 8))
        seg[:, start : start + 8] = branch
        weight[:, start + 3 : start + 8] = kind
    pos = np.broadcast_to(np.arange(s, dtype=np.int16), (3, b, s)).copy()
    step = dict(ids=ids, pos=pos, seg=seg, weight=weight)
    if spec.pages:
        shape = (b * spec.pages, spec.height, spec.width)
        step["pages"] = (rng.random(shape) < 0.2).astype(np.uint8) * 255
        step["shade"] = np.tile(np.array([250, 250, 245, 10, 10, 20], np.uint8), (shape[0], 1))
        step["chars"] = rng.integers(0, 95, (shape[0], spec.height // 14, spec.width // 7)).astype(np.uint8)
    if spec.frames:
        step["mel"] = rng.standard_normal((b, spec.frames, 128)).astype(np.float16)
        step["spoken"] = rng.integers(1, 29, (b, 4)).astype(np.uint8)
    return step
