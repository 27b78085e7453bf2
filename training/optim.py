"""Muon for matrices, AdamW for everything else, behind one small interface that saves to plain named tensors."""

from __future__ import annotations

from collections import defaultdict

import torch
from torch import Tensor, nn

# Coefficients of the quintic Newton-Schulz iteration (Jordan et al. 2024, "Muon").
NS_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
NS_STEPS = 5


def orthogonalise(g: Tensor) -> Tensor:
    """Approximates `U V^T` of every matrix in a stack `[n, rows, columns]`: Newton-Schulz, float32 result.

    In bf16 on an accelerator; many CPUs have no instructions for that, and float32 is several times as fast there.
    """
    a, b, c = NS_COEFFICIENTS
    x = g.float() if g.device.type == "cpu" else g.bfloat16()
    tall = x.shape[1] > x.shape[2]
    if tall:
        x = x.mT
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(NS_STEPS):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return (x.mT if tall else x).float()


class Muon:
    """Momentum orthogonalised by Newton-Schulz, batched over matrices of one shape and tower.

    Updates have RMS about 0.2 ("Muon is scalable", Liu et al. 2025: factor `0.2 * sqrt(max(rows, columns))`), so
    AdamW's learning rate fits both.
    """

    def __init__(self, named: dict[str, nn.Parameter], weight_decay: float = 0.02, momentum: float = 0.95) -> None:
        self.weight_decay, self.momentum = weight_decay, momentum
        groups = defaultdict(dict)
        for name, p in named.items():
            groups[name.split(".")[0], tuple(p.shape)][name] = p
        self.groups = list(groups.values())
        self.buffers = [
            torch.zeros(len(g), *next(iter(g.values())).shape, device=next(iter(g.values())).device)
            for g in self.groups
        ]

    @torch.no_grad()
    def step(self, lr: float, shares: dict[str, float] | None = None) -> None:
        base = lr
        for group, buffer in zip(self.groups, self.buffers, strict=True):
            parameters = list(group.values())
            lr = base * (shares or {}).get(next(iter(group)).split(".")[0] + ".", 1.0)
            if all(p.grad is None for p in parameters):  # a tower that took no part in this update
                continue
            g = torch.stack([torch.zeros_like(p) if p.grad is None else p.grad for p in parameters])
            buffer.lerp_(g, 1 - self.momentum)
            update = orthogonalise(g.lerp(buffer, self.momentum))
            update *= 0.2 * max(update.shape[1:]) ** 0.5 * lr
            torch._foreach_mul_(parameters, 1 - lr * self.weight_decay)
            torch._foreach_sub_(parameters, list(update.unbind(0)))

    def tensors(self) -> dict[str, Tensor]:
        return {f"momentum.{n}": b[i] for g, b in zip(self.groups, self.buffers, strict=True) for i, n in enumerate(g)}


class Optimizer:
    """Both optimisers over one model. `tensors()` are live views: copy into them to restore a saved state."""

    def __init__(
        self, model: nn.Module, lr: float, weight_decay: float = 0.02, clip: float = 1.0, adamw: tuple[str, ...] = ()
    ) -> None:
        """`adamw`: first parts of names of matrices that are left to AdamW as well, such as a pretrained tower's."""
        named = dict(model.named_parameters())
        others = ("embed_tokens", "_head", "audio_bos_eos")
        matrices = {
            n: p
            for n, p in named.items()
            if p.ndim == 2 and not any(k in n for k in others) and not n.startswith(adamw)
        }
        self.rest = {n: p for n, p in named.items() if n not in matrices}
        self.parameters, self.clip, self.updates = list(named.values()), clip, 0
        self.muon = Muon(matrices, weight_decay)
        groups = defaultdict(list)
        for n, p in self.rest.items():
            groups[n.split(".")[0] + ".", p.ndim > 1].append(p)
        self.adamw = torch.optim.AdamW(
            [
                dict(params=ps, weight_decay=weight_decay if wide else 0.0, tower=tower)
                for (tower, wide), ps in groups.items()
            ],
            lr=lr, betas=(0.9, 0.95), eps=1e-9, fused=self.parameters[0].is_cuda,
        )  # fmt: skip
        for p in self.rest.values():  # made now rather than at the first step, so that a saved state can be copied in
            self.adamw.state[p] = dict(
                step=torch.zeros((), dtype=torch.float32, device=p.device if p.is_cuda else "cpu"),
                exp_avg=torch.zeros_like(p),
                exp_avg_sq=torch.zeros_like(p),
            )

    def step(self, lr: float, shares: dict[str, float] | None = None) -> None:
        """Clips the joint gradient norm, updates, clears the gradients.

        Args:
            lr: learning rate. shares: by first part of parameter names with its dot, what a tower gets of `lr`.
        """
        torch.nn.utils.clip_grad_norm_(self.parameters, self.clip, foreach=True)
        for group in self.adamw.param_groups:
            group["lr"] = lr * (shares or {}).get(group["tower"], 1.0)
        self.adamw.step()
        self.muon.step(lr, shares)
        self.updates += 1
        for p in self.parameters:
            p.grad = None

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor of the state by name, none of them copied."""
        state = {f"{key}.{n}": t for n, p in self.rest.items() for key, t in self.adamw.state[p].items()}
        return state | self.muon.tensors()
