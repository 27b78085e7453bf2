"""kvmm in vLLM: ``vllm serve MODEL --attention-backend CUSTOM --kv-cache-dtype kvmm_rd4``.

vLLM calls :func:`register` in each of its processes (entry point ``vllm.general_plugins``). It adds the names of cache
dtypes and an attention backend, which are used only where one of these names is asked for; see docs/vllm.md.
"""

from __future__ import annotations

from kvmm.vllm.dtypes import DTYPES, dtype_codec


def register() -> None:
    """Add kvmm's cache dtypes and its attention backend to vLLM; a second call changes nothing.

    Raises:
        KVMMError: vLLM has other interfaces than those that kvmm knows.
    """
    from kvmm.vllm.names import register_names

    register_names(DTYPES)


__all__ = ["DTYPES", "dtype_codec", "register"]
