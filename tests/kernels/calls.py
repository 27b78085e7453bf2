"""Calls of decode attention by one backend."""

from kvmm.kernels.attention.backends.torch import reference
from kvmm.kernels.attention.call import AttentionCall


def attend_with(backend, query, segments, *rest):
    """``attend`` by one backend alone, or None where it does not take the call or a segment; arguments as of it."""
    call = AttentionCall(query, *rest)
    if backend is not reference and not (backend.takes(call) and all(backend.supports(s, call) for s in segments)):
        return None
    return backend.attend(call, segments)
