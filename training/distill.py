"""Modality distillation: the teacher reads a page's text, the student sees the page.

Both answer the same questions, so every target of the student's sequence has its place in the teacher's. The student
learns the teacher's distribution over the vocabulary there (Hinton et al., 2015, "Distilling the Knowledge in a Neural
Network", temperature 1), weighted by the probability that the teacher gives to the right token: where the teacher is
wrong about the page, its opinion does not count.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

CHUNK = 4096  # targets at a time: a step has up to 2e4, times a vocabulary of 2e4 in float32


@torch.no_grad()
def teacher_logits(teacher: nn.Module | None, batch: dict[str, Tensor]) -> Tensor | None:
    """The teacher's logits at the student's targets, `[n, vocab_size]`, or None for a step without texts.

    Args:
        teacher: a frozen text tower. batch: with `teacher_ids`, `teacher_seg` `[B, T]`, `teacher_pos` `[3, B, T]` and
            `teacher_index` int64 `[n]`, rows of the flattened teacher sequences, in the order of `target_index`.
    """
    if teacher is None or "teacher_ids" not in batch:
        return None
    hidden = teacher.hidden_states(batch["teacher_ids"], batch["teacher_pos"], batch["teacher_seg"])
    return teacher.logits(hidden.index_select(0, batch["teacher_index"]))


def distillation_loss(student: Tensor, teacher: Tensor, targets: Tensor, weight: Tensor) -> Tensor:
    """Mean of KL(teacher, student) over targets, weighted by `weight` and the teacher's probability of the target.

    Args:
        student, teacher: logits `[n, V]`. targets: int64 `[n]`. weight: float `[n]`, 0 where there is no teacher.
    """
    total, count = student.new_zeros(()), weight.new_zeros(())
    for i in range(0, len(targets), CHUNK):
        part = slice(i, i + CHUNK)
        known = teacher[part].float().log_softmax(-1)
        trust = known.gather(1, targets[part, None])[:, 0].exp() * weight[part]
        kl = F.kl_div(student[part].float().log_softmax(-1), known, log_target=True, reduction="none").sum(-1)
        total, count = total + (kl * trust).sum(), count + trust.sum()
    return total / count.clamp(min=1.0)
