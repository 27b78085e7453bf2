"""A policy on one model: the calibration it reads there, and what it stores without one."""

from __future__ import annotations

from dataclasses import replace

from torch import nn

from kvmm.calibration import Calibration, calibration_of
from kvmm.codecs import codec_class
from kvmm.modality import MODALITY_NAMES
from kvmm.policy.policy import KVPolicy, get_policy
from kvmm.policy.settings import KVSpec


def load_calibration(model: nn.Module, policy: KVPolicy) -> Calibration | None:
    """The calibration of a policy for a model: the file it names, else the one in the model's folder, else None.

    Raises:
        KVMMError: if the file is damaged, or the one that the policy names was fitted to another model.
    """
    return calibration_of(model, policy.calibration)


def without_fit(policy: KVPolicy, calibration: Calibration | None) -> KVPolicy:
    """The policy for a model with this calibration: modalities that their codec was not fitted to are stored as the
    preset ``policy.uncalibrated`` says, in all layers.
    """
    if policy.uncalibrated is None:
        return policy
    other, changes = get_policy(policy.uncalibrated), {}
    for modality, name in enumerate(MODALITY_NAMES):
        kv = getattr(policy, name)
        if any(calibration is None or not calibration.sites(codec, modality) for codec in _fitted_codecs(kv)):
            changes[name] = getattr(other, name)
    return replace(policy, uncalibrated=None, **changes)


def wants_fit(policy: KVPolicy, calibration: Calibration | None) -> bool:
    """Whether some modality's codec is fitted to a model and this calibration (None: there is none) has no fit."""
    return any(
        calibration is None or not calibration.sites(codec, modality)
        for modality, name in enumerate(MODALITY_NAMES)
        for codec in _fitted_codecs(getattr(policy, name))
    )


def fit_digest(policy: KVPolicy, calibration: Calibration | None) -> str | None:
    """What tells the fit that a policy's codecs read from another one; None where they read none."""
    tiers = policy.retention.tiers or ()
    specs = (*policy.all_specs(), *(one for kv in tiers for one in (kv.key, kv.value)))
    reads = any(codec_class(one.codec).reads_calibration(one) for one in specs)
    return calibration.digest if calibration is not None and reads else None


def _fitted_codecs(kv: KVSpec) -> set[str]:
    return {one.codec for one in (kv.key, kv.value) if codec_class(one.codec).wants_calibration}


__all__ = ["fit_digest", "load_calibration", "wants_fit", "without_fit"]
