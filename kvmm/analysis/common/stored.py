"""One layer's keys or values as a cache of some policy would store them: its own plan, pages and decoders."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from kvmm.cache import KVMMCache
from kvmm.cache.pages import PageStore
from kvmm.cache.plan import Plan
from kvmm.cache.token_table import TokenTable
from kvmm.calibration.heads import num_layers
from kvmm.codecs import Codec, Side, Site, build_codec
from kvmm.errors import KVMMError
from kvmm.kernels.exact import exact_dtype
from kvmm.policy import KVPolicy, get_policy


@dataclass(frozen=True)
class Pages:
    """The stored tensors of one modality.

    Attributes:
        modality: its code.
        positions: int64 ``[n]``, which tokens of the sequence.
        decoded: float32 ``[H, n, D]``, what the pages hold of them.
        codec: which stored them.
    """

    modality: int
    positions: torch.Tensor
    decoded: torch.Tensor
    codec: Codec


class LayerStorage:
    """Stores single layers of a prompt as :class:`kvmm.KVMMCache` does when it packs, without a cache of all layers.

    Args:
        model: as ``load_model`` returns it; its calibration file counts.
        policy: a preset's name, a YAML file, or a :class:`KVPolicy`.

    Attributes:
        name: the policy's.
        stored_as: what a policy that needs a calibration file stores instead where there is none, else the same name.
        policy: the policy for this model; ``policy.uncalibrated`` if the model has no calibration.

    Raises:
        KVMMError: for an unknown policy, one that the model cannot have, or one with a budget, whose pages depend on
            all layers together.
    """

    def __init__(self, model: Any, policy: str | KVPolicy):
        asked = get_policy(policy)
        if asked.budget is not None:
            raise KVMMError(f"Policy {asked.name!r} has a budget, by which pages change later: measure it without.")
        cache = KVMMCache.for_model(model, asked)
        self.name, self.policy, self.calibration = asked.name, cache.policy, cache.calibration
        fallen_back = asked.uncalibrated is not None and cache.policy != replace(asked, uncalibrated=None)
        self.stored_as = asked.uncalibrated if fallen_back else asked.name
        self.num_layers = num_layers(model)

    def plan(self, modality: torch.Tensor) -> Plan:
        """The packed tokens of a prompt: ``modality`` int8 ``[T]``, ``kvmm.modality.PADDING`` where one is left out.

        ``plan.stay`` are the tokens that stay in full precision.
        """
        table = TokenTable(self.policy)
        table.append(modality[None])
        return table.plan()

    def codec(self, layer: int, side: Side, modality: int) -> Codec:
        """The codec of the keys or the values of a layer and modality."""
        kv = self.policy.specs(modality, layer, self.num_layers)
        spec, sibling = (kv.key, kv.value) if side == "key" else (kv.value, kv.key)
        return build_codec(spec, side, Site(layer, modality, self.calibration, sibling))

    def pages(
        self, layer: int, side: Side, x: torch.Tensor, plan: Plan, query: torch.Tensor | None = None
    ) -> Iterator[Pages]:
        """Store what a plan moves, a modality at a time, and decode it.

        Args:
            layer: index in the decoder.
            side: "key" or "value".
            x: ``[1, H, T, D]``, all tokens.
            plan: from :meth:`plan`.
            query: ``[1, H_q, T, D]``, for codecs that weigh by the prompt's queries.
        """
        moment = None
        for move in plan.to(x.device).moves:
            codec = self.codec(layer, side, move.modality)
            sibling = self.codec(layer, "value" if side == "key" else "key", move.modality)
            if moment is None and (codec.needs_queries or sibling.needs_queries):
                moment = query_moment(query, x.shape[1])
            store = PageStore.for_codec(codec, move.page_size)
            store.exact_dtype = exact_dtype(self.policy.exact_dtype, x.dtype)
            index = move.index[0]
            store.append(x.index_select(2, index), move.valid, moment)
            yield Pages(move.modality, index, store.decode()[0, :, : len(index)], codec)


def query_moment(query: torch.Tensor, heads: int) -> torch.Tensor:
    """float32 ``[1, heads, D, D]``: the mean of ``q q^T`` over queries ``[1, H_q, T, D]`` of each KV head."""
    grouped = query.float().reshape(1, heads, -1, query.shape[-1])
    return grouped.transpose(-1, -2) @ grouped / grouped.shape[2]


__all__ = ["LayerStorage", "Pages", "query_moment"]


def layer_storages(model: Any, policies: Sequence[str | KVPolicy]) -> list[LayerStorage]:
    """A :class:`LayerStorage` for every policy, in order. Raises :class:`KVMMError` for none, or for one twice."""
    storages = [LayerStorage(model, policy) for policy in policies]
    names = {storage.name for storage in storages}
    if not names or len(names) < len(storages):
        raise KVMMError("Name the policies to measure, each once.")
    return storages
