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
PACKED = ", packed"  # behind the name of a group whose answers read codes


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


class Figures:
    """Sums over held-out batches by group, and which branches are exact: every token of it the most likely one."""

    def __init__(self) -> None:
        self.sums: dict[str, torch.Tensor] = {}
        self.exact: dict[str, tuple[int, int]] = {}  # right and all branches

    def add(self, group: str, out: dict[str, torch.Tensor], weight: torch.Tensor, branch: torch.Tensor) -> None:
        """Adds a batch: `out` of `OmniModel.forward`, its targets' weights and branches (int64, -1: none), `[n]`."""
        self.sums[group] = self.sums.get(group, 0) + step_statistics(out, weight)
        wrong = torch.zeros(int(branch.max()) + 1, device=branch.device)
        wrong.index_add_(0, branch[branch >= 0], (~out["hit"][branch >= 0]).float())
        right, count = self.exact.get(group, (0, 0))
        self.exact[group] = right + int((wrong == 0).sum()), count + len(wrong)

    def describe(self) -> dict[str, dict[str, float]]:
        """Means by group, with the share of exact branches and their number."""
        found = {}
        for group, values in self.sums.items():
            right, count = self.exact[group]
            found[group] = {**describe(values), "exact": round(right / max(count, 1), 4), "branches": count}
        return found


def answer_loss(found: dict[str, dict[str, float]]) -> float:
    """The mean loss of answers over groups, each counted once: what is read from codes as well is left out."""
    losses = [figures["answer"] for group, figures in found.items() if not group.endswith(PACKED)]
    return sum(losses) / max(len(losses), 1)


def line(means: dict[str, float]) -> str:
    """Means as the log has them, with short names."""
    short = dict(
        transcription="tr", answer="an", accuracy="acc", characters="aux", distillation="kl", exact="em", branches="n"
    )
    return " ".join(f"{short[k]} {v:.3f}" if isinstance(v, float) else f"{short[k]} {v}" for k, v in means.items())
