"""What the log of a run shows of its steps, and how."""

from __future__ import annotations

import torch

STATISTICS = (
    "transcription",
    "transcription tokens",
    "answer",
    "answer tokens",
    "answer hits",
    "characters hit",
    "characters",
    "distillation",
    "batches",
)


def step_statistics(out: dict[str, torch.Tensor], weight: torch.Tensor) -> torch.Tensor:
    """Sums in the order of STATISTICS, float32 `[9]`, left on the device."""
    transcription, answer = weight == 1, weight >= 2
    sums = [(out["ce"] * transcription).sum(), transcription.sum(), (out["ce"] * answer).sum(), answer.sum()]
    sums += [(out["hit"] & answer).sum(), out["aux_hits"], out["aux_count"]]
    sums += [out["distill"], weight.new_ones(())]
    return torch.stack([s.float().to(weight.device) for s in sums])


def describe(values: torch.Tensor) -> dict[str, float]:
    """Means from the sums of STATISTICS."""
    tr, tr_n, answer, answer_n, hits, chars_hit, chars, distill, batches = values.tolist()
    means = dict(transcription=tr / max(tr_n, 1), answer=answer / max(answer_n, 1), accuracy=hits / max(answer_n, 1))
    if chars:
        means["characters"] = chars_hit / chars
    if distill:
        means["distillation"] = distill / batches
    return {k: round(v, 4) for k, v in means.items()}


def line(means: dict[str, float]) -> str:
    """Means as the log has them, with short names."""
    short = dict(
        transcription="tr", answer="an", accuracy="acc", characters="aux", distillation="kl", exact="em", branches="n"
    )
    return " ".join(f"{short[k]} {v:.3f}" if isinstance(v, float) else f"{short[k]} {v}" for k, v in means.items())
