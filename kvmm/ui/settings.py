"""The settings of the sidebar."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, replace
from typing import Any

from kvmm.errors import KVMMError, unknown_name
from kvmm.models.sampling import Sampling
from kvmm.policy import KVPolicy, get_policy, policies

MODALITIES = ("text", "image", "audio")  # video is stored as images are
ALTERNATIVES = 3  # most likely tokens that are told beside each chosen one
MAX_EXACT_TOKENS = 4096  # most sinks or residual tokens one may ask for


@dataclass(frozen=True)
class Settings:
    """Model and policy of the next answer; None leaves a value to the model list or the policy.

    Attributes:
        model: one of the app's model names.
        policy: a preset.
        text, image, audio: presets; their specs replace the policy's for this modality.
        num_sink_tokens, residual_length: tokens kept in full precision at the start and at the end.
        compare: also answer in full precision.
        temperature, top_p, seed, stop: how tokens are chosen and which texts end an answer, as in
            :class:`kvmm.models.Sampling`; a comparison without a seed draws with the same one on both sides.
        max_tokens: most tokens of an answer; None for as many as the app allows.
        logprobs: also show the log-probabilities of the answer's tokens.
    """

    model: str | None = None
    policy: str = "balanced"
    text: str | None = None
    image: str | None = None
    audio: str | None = None
    num_sink_tokens: int | None = None
    residual_length: int | None = None
    compare: bool = False
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    max_tokens: int | None = None
    logprobs: bool = False

    def sampling(self) -> Sampling:
        """How the tokens of an answer are chosen, on both sides of a comparison.

        Raises:
            KVMMError: a value is out of range.
        """
        recorded = ALTERNATIVES if self.logprobs else None
        sampling = Sampling(self.temperature, self.top_p, self.seed, self.stop, recorded)
        return sampling if sampling.is_greedy or self.seed is not None else replace(sampling, seed=secrets.randbits(32))

    def answer_tokens(self, limit: int) -> int:
        """How many tokens an answer may have, where the app allows ``limit``.

        Raises:
            KVMMError: ``max_tokens`` is no whole number from 1 to ``limit``.
        """
        most = limit if self.max_tokens is None else self.max_tokens
        if isinstance(most, bool) or not isinstance(most, int) or not 1 <= most <= limit:
            raise KVMMError(f"Max. tokens must be a whole number from 1 to {limit}.")
        return most

    def kv_policy(self) -> KVPolicy:
        """The policy that these settings describe.

        Raises:
            KVMMError: a name is no preset (files are not read for visitors), or a number is out of range.
        """
        modalities = {name: value for name in MODALITIES if (value := getattr(self, name)) is not None}
        for name in (self.policy, *modalities.values()):
            if name not in policies():
                raise unknown_name("policy", name, policies())
        limits = {}
        for name in ("num_sink_tokens", "residual_length"):
            value = getattr(self, name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_EXACT_TOKENS:
                raise KVMMError(f"{name} must be a whole number from 0 to {MAX_EXACT_TOKENS}, not {value!r}.")
            limits[name] = value
        if not modalities:
            return get_policy(self.policy, **limits)
        if "image" in modalities:
            modalities["video"] = modalities["image"]
        return KVPolicy.from_dict({"base": self.policy, "name": self.label, **modalities, **limits})

    @property
    def label(self) -> str:
        """The policy in a few words: "balanced", "balanced · image kivi2 · 8 sinks"."""
        parts = [self.policy, *(f"{name} {value}" for name in MODALITIES if (value := getattr(self, name)) is not None)]
        if self.num_sink_tokens is not None:
            parts.append(f"{self.num_sink_tokens} sinks")
        if self.residual_length is not None:
            parts.append(f"residual {self.residual_length}")
        return " · ".join(parts)

    def answered_by(self, default_model: str, remote: bool = False) -> str:
        """Who answers, in a few words: the model, and the policy where it is not a server's."""
        model = self.model or default_model
        return model if remote else f"{model} · {self.label}"

    def cache_key(self, side: str, default_model: str) -> tuple[Any, ...]:
        """The settings that determine one side's cache; answers with an equal key share a conversation."""
        model = self.model or default_model
        if side == "full":
            return (model,)
        return (model, self.policy, self.text, self.image, self.audio, self.num_sink_tokens, self.residual_length)


__all__ = ["ALTERNATIVES", "MAX_EXACT_TOKENS", "MODALITIES", "Settings"]
