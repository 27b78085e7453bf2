"""Keys, values and queries of one layer, channel by channel, as they come and as OScaR's codec makes them.

OScaR's figures (arXiv 2605.19660) show four stages of a key: *raw*; *rotated* (Hadamard: strong channels are spread
over all); *scaled* (each token divided by its norm, which alone makes outliers of tokens whose strong channels were
theirs alone); and *both*, in that order, which is what gets coded. Here every stage is what kvmm's own codec
``oscar`` does, with its options for the ablations, and the error is that of its codes, so the pictures cannot drift
from the code. As in the cache, the tokens of a quantisation group have one modality.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from kvmm.analysis.norms import QUANTILES, _plain
from kvmm.analysis.recording import Enough, Seen, kept_tokens, observe, token_strings
from kvmm.codecs import Site, build_codec
from kvmm.codecs.base import EncodeContext, page_size_for
from kvmm.codecs.oscar import OScaR
from kvmm.errors import KVMMError
from kvmm.kernels.quantize import DensePages
from kvmm.modality import MODALITY_NAMES, modality_of_ids
from kvmm.policy import spec

STAGES = ("raw", "rotated", "scaled", "both")
_SHARED_STAGES = ("raw", "rotated")  # values and queries are rotated, and have no norm divided out
BITS = 2
GROUP_SIZE = 128


@dataclass(frozen=True)
class StageSummary:
    """How hard one stage is to code, over all heads and quantisation groups.

    Attributes:
        stage: one of :data:`STAGES`.
        modality: whose tokens these are.
        tokens: how many.
        range: mean range (maximum minus minimum) of a channel within a group, over the root mean square of all numbers
            of the stage; the step of a code is proportional to it.
        kurtosis: of the numbers (3 for a normal distribution); heavy tails leave most codes unused.
        norm_variation: standard deviation of the token norms over their mean, mean over groups and heads.
        relative_error: ``sum |x - decoded|^2 / sum |x|^2`` of the codec's codes, in the model's own basis.
        token_error: the mean over the tokens of ``|x - decoded|^2 / |x|^2``, in which tokens of low norm count too.
    """

    stage: str
    modality: str
    tokens: int
    range: float
    kurtosis: float
    norm_variation: float
    relative_error: float
    token_error: float

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return dict(vars(self))


@dataclass(frozen=True)
class ChannelReport:
    """One layer of one sequence, padding left out. Arrays are float32.

    Attributes:
        layer: index in the decoder.
        key, value: ``[H_kv, T, D]``, keys after RoPE.
        query: ``[H_q, T, D]`` after RoPE.
        modality: int8 ``[T]``, the codes of :mod:`kvmm.modality`.
        bits, group_size: of the codes whose error the summary tells; groups are ``group_size`` tokens of a channel for
            keys, as many channels of a token for values.
        tokens: ``T`` short strings to show, or empty.
    """

    layer: int
    key: np.ndarray = field(repr=False)
    value: np.ndarray = field(repr=False)
    query: np.ndarray = field(repr=False)
    modality: np.ndarray = field(repr=False)
    bits: int = BITS
    group_size: int = GROUP_SIZE
    tokens: tuple[str, ...] = field(default=(), repr=False)

    def states(self, kind: str = "key") -> np.ndarray:
        """``[H, T, D]`` of ``kind`` ("key", "value" or "query")."""
        if kind not in ("key", "value", "query"):
            raise KVMMError(f"unknown kind of states {kind!r}: use one of key, value, query")
        return getattr(self, kind)

    def modalities(self) -> list[str]:
        """Names of the modalities present, in the order of their codes."""
        return [MODALITY_NAMES[code] for code in np.unique(self.modality)]

    def stages(self, kind: str = "key") -> tuple[str, ...]:
        """The stages that ``kind`` has in the codec: keys all four, values and queries "raw" and "rotated"."""
        return STAGES if kind == "key" else _SHARED_STAGES

    def stage(self, kind: str = "key", name: str = "raw") -> np.ndarray:
        """``[H, T, D]``: the states as they are at a stage. Raises :class:`KVMMError` if ``kind`` has no such stage."""
        self._check_stage(kind, name)
        states = torch.from_numpy(self.states(kind))[None]
        if name == "raw":
            return states[0].numpy()
        pages = _at_stage(self._codec(kind, name), DensePages.cut(states, page_size_for(states.shape[2])))
        return pages.values.flatten(2, 3)[0, :, : states.shape[2]].numpy()

    def token_norms(self, kind: str = "key", stage: str = "raw") -> np.ndarray:
        """``[H, T]``: L2 norms of the vectors at a stage; all 1 where they are scaled."""
        return np.linalg.norm(self.stage(kind, stage), axis=-1)

    def group_ranges(self, stage: str, modality: str) -> np.ndarray:
        """``[H, G * D]``: the range of every channel and group of the keys of one modality.

        In units of the root mean square of all the modality's numbers at that stage, so that stages compare: the step
        of a code is this over ``2^bits - 1``.
        """
        self._check_stage("key", stage)
        pages, codec = self._pages("key", stage, modality)
        low, high = pages.channel_ranges(pages.groups(codec.spec.group_size))  # [1, H, G, D]
        rms = float(pages.values.square().mean().sqrt())
        return ((high - low) / max(rms, 1e-12)).flatten(2)[0].numpy()

    def quantiles(self, stage: str, modality: str, measure: str = "norm", kind: str = "key") -> np.ndarray:
        """``[H, 5]``: the 5, 25, 50, 75 and 95 % quantiles of each head.

        Args:
            measure: ``norm`` (of the modality's tokens) or ``range`` (:meth:`group_ranges`, keys only).
        """
        if measure not in ("norm", "range"):
            raise KVMMError(f"unknown measure {measure!r}: use norm or range")
        if measure == "range":
            values = self.group_ranges(stage, modality)
        else:
            values = self.token_norms(kind, stage)[:, self._mask(modality)]
        return np.quantile(values, QUANTILES, axis=1).T

    def summary(self, kind: str = "key") -> list[StageSummary]:
        """A row a modality and stage, for keys and values (queries are not coded)."""
        if kind == "query":
            raise KVMMError("queries are not coded: ask for the summary of keys or values")
        return [self._summary(kind, name, modality) for modality in self.modalities() for name in self.stages(kind)]

    def to_dict(self) -> dict[str, Any]:
        """Plain lists and numbers for JSON: summaries and quantiles, not the states."""
        stages = {
            name: {
                modality: {
                    "norm": _plain(self.quantiles(name, modality)),
                    "range": _plain(self.quantiles(name, modality, "range")),
                }
                for modality in self.modalities()
            }
            for name in STAGES
        }
        return {
            "format": "kvmm channel report",
            "format_version": 1,
            "layer": self.layer,
            "tokens": int(self.modality.size),
            "bits": self.bits,
            "group_size": self.group_size,
            "heads": int(self.key.shape[0]),
            "head_dim": int(self.key.shape[2]),
            "key": [row.to_dict() for row in self.summary("key")],
            "value": [row.to_dict() for row in self.summary("value")],
            "quantiles": list(QUANTILES),
            "key_by_head": stages,
        }

    # -- what the codec does ----------------------------------------------------------------------------------------

    def _check_stage(self, kind: str, name: str) -> None:
        if name not in self.stages(kind):
            raise KVMMError(f"{kind} has no stage {name!r}: use one of {', '.join(self.stages(kind))}")

    def _mask(self, modality: str) -> np.ndarray:
        if modality not in self.modalities():
            raise KVMMError(f"the prompt holds no {modality} tokens")
        return self.modality == MODALITY_NAMES.index(modality)

    def _codec(self, kind: str, name: str) -> OScaR:
        options = {"rotation": name in ("rotated", "both"), "norm": "l2" if name in ("scaled", "both") else "none"}
        side = "value" if kind == "value" else "key"  # queries are rotated as keys are
        return build_codec(spec("oscar", self.bits, self.group_size, **options), side, Site(self.layer))

    def _pages(self, kind: str, name: str, modality: str) -> tuple[DensePages, OScaR]:
        states = torch.from_numpy(self.states(kind)[:, self._mask(modality)])[None]
        codec = self._codec(kind, name)
        return _at_stage(codec, DensePages.cut(states, page_size_for(states.shape[2]))), codec

    def _summary(self, kind: str, name: str, modality: str) -> StageSummary:
        states = torch.from_numpy(self.states(kind)[:, self._mask(modality)])[None]
        pages, codec = self._pages(kind, name, modality)
        tokens, size = states.shape[2], pages.page_size
        numbers = pages.values.flatten(2, 3)[:, :, :tokens].double()
        if kind == "key":
            low, high = pages.channel_ranges(pages.groups(codec.spec.group_size))
        else:
            low, high = pages.token_ranges(codec.channel_groups(states.shape[3]))
        # fill is copies of the last token: leave it out of what is not a range
        norms = numbers.norm(dim=-1)[0]  # [H, T]
        groups = norms.split(self.group_size, dim=1) if kind == "key" else (norms,)
        variation = [group.std(1, correction=0) / group.mean(1).clamp_min(1e-12) for group in groups]
        decoded = codec.decode(codec.encode(states, EncodeContext(size)))[:, :, :tokens]
        error, energy = (x.double().square().sum(-1) for x in (states - decoded, states))
        centred = numbers - numbers.mean()
        square = centred.square().mean()
        return StageSummary(
            stage=name,
            modality=modality,
            tokens=tokens,
            range=float((high - low).mean() / numbers.square().mean().sqrt().clamp_min(1e-12)),
            kurtosis=float(centred.pow(4).mean() / square.square().clamp_min(1e-24)),
            norm_variation=float(torch.stack(variation).mean()),
            relative_error=float(error.sum() / energy.sum().clamp_min(1e-24)),
            token_error=float((error / energy.clamp_min(1e-24)).mean()),
        )


def _at_stage(codec: OScaR, pages: DensePages) -> DensePages:
    """What the codec codes: the chain of :meth:`OScaR.encode`."""
    pages = codec.rotated(pages)
    return pages if codec.norm == "none" else pages.divide(codec.token_norm(pages))


def record_channels(
    model: torch.nn.Module,
    inputs: Mapping[str, Any],
    layer: int,
    *,
    tokenizer: Any = None,
    row: int = 0,
    bits: int = BITS,
    group_size: int = GROUP_SIZE,
) -> ChannelReport:
    """Run an exact prefill of ``inputs`` up to one layer and keep that layer's keys, values and queries.

    Other layers' are not kept, and layers behind it are not computed. The model is left as it was.

    Args:
        model, inputs: as for :func:`kvmm.analysis.norms.record_norms`.
        layer: index in the decoder, of a layer with a KV cache of its own.
        tokenizer: decodes the tokens; optional.
        row: which sequence of the batch to report.
        bits, group_size: of the codes to measure the error of.

    Raises:
        KVMMError: there are no ``input_ids``, no such row or layer, or the codec has no such codes.
    """
    if inputs.get("input_ids") is None:
        raise KVMMError("record_channels needs input_ids: pass what the processor returned")
    OScaR.check(spec("oscar", bits, group_size))
    input_ids, keep = inputs["input_ids"], kept_tokens(inputs, row)
    found: dict[str, np.ndarray] = {}
    known: list[int] = []

    def observer(seen: Seen) -> None:
        if not seen.owns_cache:
            return
        known.append(seen.layer)
        if seen.layer == layer:
            for kind in ("key", "value", "query"):
                found[kind] = getattr(seen, kind)[row].float().cpu()[:, keep].contiguous().numpy()
            raise Enough

    observe(model, inputs, observer)
    if not found:
        layers = f"layers {known[0]} to {known[-1]}" if known else "no layers"
        raise KVMMError(f"There is no layer {layer} with keys of its own: this model has {layers}.")
    ids = input_ids[row].cpu()[keep]
    modality = modality_of_ids(input_ids, model.config)[row].cpu()[keep].numpy()
    strings = token_strings(ids, tokenizer)
    return ChannelReport(layer=layer, **found, modality=modality, bits=bits, group_size=group_size, tokens=strings)


__all__ = ["STAGES", "ChannelReport", "StageSummary", "record_channels"]
