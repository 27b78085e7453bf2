"""kvmm in vLLM: ``vllm serve MODEL --attention-backend CUSTOM --kv-cache-dtype kvmm_rd4``.

vLLM calls :func:`register` in each of its processes (entry point ``vllm.general_plugins``). It adds the names of cache
dtypes and an attention backend, which are used only where one of these names is asked for; see docs/vllm.md.
"""

from __future__ import annotations

DTYPES = tuple(f"kvmm_rd{bits}" for bits in ("1", "1.5", "2", "2.5", "3", "4", "6", "8"))


def dtype_bits(name: str) -> float | None:
    """Average bits a channel of a cache dtype, or None for one that is not kvmm's."""
    return float(name.removeprefix("kvmm_rd")) if name in DTYPES else None


def register() -> None:
    """Add kvmm's cache dtypes and its attention backend to vLLM; a second call changes nothing.

    Raises:
        KVMMError: vLLM has other interfaces than those that kvmm knows.
    """
    from kvmm.vllm.names import register_names

    register_names(DTYPES)


__all__ = ["DTYPES", "dtype_bits", "register"]
