"""transformers' own quantised caches, as peers to compare with under the same prompts.

They store all tokens alike, of any modality. Both keep up to 128 newest tokens in full precision and quantise the
whole past anew when there are more, and both read it by rebuilding dense keys and values at every step.
"""

from __future__ import annotations

import copy
import importlib.util
from typing import Any

import torch
from transformers.cache_utils import Cache, QuantizedCache

from kvmm.errors import KVMMError

# name -> (backend of transformers, module, package, settings)
PEERS: dict[str, tuple[str, str, str, dict[str, int]]] = {
    "hf-quanto": ("quanto", "optimum.quanto", "optimum-quanto", {"nbits": 2, "q_group_size": 64}),
    "hf-quanto4": ("quanto", "optimum.quanto", "optimum-quanto", {"nbits": 4, "q_group_size": 64}),
    "hf-hqq": ("hqq", "hqq", "hqq", {"nbits": 2, "q_group_size": 64, "axis_key": 1, "axis_value": 1}),
    "hf-hqq4": ("hqq", "hqq", "hqq", {"nbits": 4, "q_group_size": 64, "axis_key": 1, "axis_value": 1}),
}


def is_peer(policy: Any) -> bool:
    """Whether a policy is the name of one of :data:`PEERS`."""
    return isinstance(policy, str) and policy in PEERS


def check_peer(name: str) -> None:
    """Raise :class:`KVMMError` if there is no such peer or its package is not installed."""
    if name not in PEERS:
        raise KVMMError(f"There is no cache {name!r} to compare with: choose one of {', '.join(PEERS)}.")
    _, module, package, _ = PEERS[name]
    if importlib.util.find_spec(module.partition(".")[0]) is None or importlib.util.find_spec(module) is None:
        raise KVMMError(f"{name} needs {package}, which is not installed: pip install {package}.")


def peer_config(name: str) -> dict[str, Any]:
    """The settings of a peer, for the results file."""
    backend, _, package, settings = PEERS[name]
    return {"name": name, "cache": "transformers.QuantizedCache", "backend": backend, "package": package, **settings}


def new_peer_cache(model: Any, name: str) -> Cache:
    """An empty quantised cache of transformers for a model.

    Raises:
        KVMMError: the package is missing, or the model has layers that this cache does not serve.
    """
    check_peer(name)
    backend, _, package, settings = PEERS[name]
    try:
        return QuantizedCache(backend=backend, config=model.config.get_text_config(decoder=True), **settings)
    except (ImportError, ValueError) as error:
        raise KVMMError(f"{name} cannot be used ({' '.join(str(error).split())}): check {package}.") from None


def copy_peer_cache(cache: QuantizedCache) -> QuantizedCache:
    """A cache that goes on by itself. Its layers replace their tensors and never write into them, so that the tensors
    can be shared; those of quanto cannot be copied deeply.
    """
    twin = copy.copy(cache)
    twin.layers = [copy.copy(layer) for layer in cache.layers]
    return twin


def batch_cache_nbytes(cache: Cache, batch: int, documents: int) -> int:
    """Bytes of one of transformers' caches that answers ``batch`` prompts over ``documents`` documents.

    A quantised layer repeats its documents only when it next quantises; until then the bytes are those of a cache that
    has, so that a prompt counts its whole document.
    """
    total = 0
    for layer in cache.layers:
        pending = getattr(layer, "_pending_beam_idx", None) is not None
        dense = tensor_nbytes([getattr(layer, "keys", None), getattr(layer, "values", None)])
        rest = tensor_nbytes(layer) - dense
        total += dense + (rest * batch // documents if pending else rest)
    return total


def tensor_nbytes(value: Any) -> int:
    """Bytes of all tensors that an object holds, also inside tensor subclasses, lists, dicts and attributes.

    A storage counts once, however many tensors look at it.
    """
    seen: set[int] = set()
    storages: dict[int, int] = {}

    def visit(one: Any) -> None:
        if id(one) in seen:
            return
        seen.add(id(one))
        if isinstance(one, torch.Tensor):
            if type(one) is not torch.Tensor and hasattr(one, "__tensor_flatten__"):
                for name in one.__tensor_flatten__()[0]:
                    visit(getattr(one, name))
            else:
                storage = one.untyped_storage()
                storages[storage.data_ptr()] = storage.nbytes()
        elif isinstance(one, (list, tuple)):
            for item in one:
                visit(item)
        elif isinstance(one, dict):
            for item in one.values():
                visit(item)
        elif hasattr(one, "__dict__") and not isinstance(one, type):
            visit(vars(one))

    visit(value)
    return sum(storages.values())


__all__ = [
    "PEERS",
    "batch_cache_nbytes",
    "check_peer",
    "copy_peer_cache",
    "is_peer",
    "new_peer_cache",
    "peer_config",
    "tensor_nbytes",
]
