"""Small steps of pages with a teacher's sequences beside them: noise and random ids, as `training.office_dataset` lays
them out.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from tests.training import fake_data


@dataclasses.dataclass(frozen=True)
class Spec(fake_data.Spec):
    teacher_len: int = 0


SPECS = [(Spec("page", 2, 1, 84, 56, 0, 0, 72, 48), 0.95), (Spec("text", 2, 0, 0, 0, 0, 0, 48), 0.05)]


def make_step(seed: int, spec: Spec, held: bool = False) -> dict[str, np.ndarray]:
    """The fake step; its teacher reads a text of ten tokens before the same branches."""
    step = fake_data.make_step(seed, spec, held)
    if not spec.teacher_len:
        return step
    branches = (step["seg"] > 0) & (step["seg"] < 254)
    count = int(branches[0].sum())
    shape = (spec.sequences, spec.teacher_len)
    teacher = {
        "ids": np.zeros(shape, np.int16),
        "seg": np.full(shape, 255, np.uint8),
        "weight": np.zeros(shape, np.uint8),
    }
    for name, array in teacher.items():
        array[:, :10] = {"ids": 30, "seg": 0, "weight": 0}[name]
        array[:, 10 : 10 + count] = step[name][branches].reshape(spec.sequences, count)
    teacher["pos"] = np.broadcast_to(np.arange(spec.teacher_len, dtype=np.int16), (3, *shape)).copy()
    return step | {f"teacher_{name}": array for name, array in teacher.items()}
