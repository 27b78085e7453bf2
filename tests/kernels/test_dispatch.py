"""A segment that no fast backend reads costs only itself: who reads what, and how the results join."""

import os

import pytest
import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

from kvmm.cache.part import Part
from kvmm.cache.tiers import TieredStore
from kvmm.codecs import build_codec
from kvmm.kernels.attention import dispatch
from kvmm.kernels.attention.backends.cpu import kernel as cpu
from kvmm.kernels.attention.backends.torch import reference
from kvmm.kernels.attention.call import AttentionCall
from kvmm.kernels.attention.merge import AttentionState, merge_states
from kvmm.policy import RetentionSettings, spec
from tests.kernels.test_attention_cpu import distance, exact, inputs, make_part

FAST = {"oscar": spec("oscar", 2, 128), "calibquant": spec("calibquant", 1, None, levels="mean", calibration=(1, 2))}
SLOW = {
    "turboquant2.5": spec("turboquant", 2.5),
    "turboquant": spec("turboquant", 2),
    "rd": spec("rd", 2, fit="prompt"),
}
MIXED = [FAST["oscar"], SLOW["turboquant2.5"], FAST["calibquant"], SLOW["turboquant"], SLOW["rd"]]
needs_library = pytest.mark.skipif(not cpu.available(), reason="no C compiler")


class Spy:
    """A backend that remembers the segments it was given."""

    def __init__(self, backend):
        self.backend = backend
        self.read = []

    def __getattr__(self, name):
        return getattr(self.backend, name)

    def attend(self, call, segments):
        self.read.append(("attend", list(segments)))
        return self.backend.attend(call, segments)

    def partial(self, call, segments):
        self.read.append(("partial", list(segments)))
        return self.backend.partial(call, segments)


@pytest.fixture
def torch_read(monkeypatch):
    spy = Spy(reference)
    monkeypatch.setattr(dispatch, "reference", spy)
    return spy.read


def fast_backend(name):
    if name == "cpu":
        if not cpu.available():
            pytest.skip("no C compiler")
        return cpu
    gpu = pytest.importorskip("kvmm.kernels.attention.gpu")
    from kvmm.kernels.attention.backends.triton.query import interpreted

    if not torch.cuda.is_available() and not interpreted():
        pytest.skip("Triton was imported without its interpreter")
    return gpu


@pytest.mark.parametrize("holes", [0.0, 0.2])
@pytest.mark.parametrize(("name", "error"), [("cpu", 1e-5), ("gpu", 2e-3)])
def test_every_segment_is_read_where_it_can_be(torch_read, name, error, holes):
    device = "cuda" if name == "gpu" and torch.cuda.is_available() else "cpu"
    spy = Spy(fast_backend(name))
    parts = [make_part(kv, 100 + 30 * i, batch=2, page_size=32) for i, kv in enumerate(MIXED)]
    query, _, *rest = inputs(parts, batch=2, holes=holes)
    expected = exact(query, parts, *rest)
    for part in parts:
        for store in part.stores:
            store.to(device)
    rest = [x.to(device) if isinstance(x, torch.Tensor) else x for x in rest]
    found = dispatch.run(AttentionCall(query.to(device), *rest), parts, spy)
    assert distance(found.cpu(), expected) < error
    assert spy.read == [("partial", parts[0:3:2])]
    assert torch_read == [("partial", [parts[1], *parts[3:]])]


@needs_library
def test_one_backend_is_not_asked_for_parts(torch_read):
    spy = Spy(cpu)
    for kinds, read, by_torch in (((FAST, FAST), 1, 0), ((SLOW, SLOW), 1, 1)):
        parts = [make_part(next(iter(kind.values())), 100) for kind in kinds]
        query, _, *rest = inputs(parts)
        dispatch.run(AttentionCall(query, *rest), parts, spy)
        assert len(spy.read) == read and len(torch_read) == by_torch
    assert {way for way, _ in spy.read + torch_read} == {"attend"}


@needs_library
def test_calls_that_the_library_does_not_take(torch_read):
    """Many rows of queries, autograd, doubles: torch reads all, as one softmax."""
    parts = [make_part(kv, 100) for kv in (FAST["oscar"], SLOW["turboquant2.5"])]
    query, _, *rest = inputs(parts, length=20)
    for asked in (query, query[:, :, :1].clone().requires_grad_(), query[:, :, :1].double()):
        dispatch.run(AttentionCall(asked, *rest), parts, cpu)
    assert [way for way, _ in torch_read] == ["attend"] * 3


def tiered(tokens, gated):
    generator = torch.Generator().manual_seed(tokens)
    stores = []
    for side, kv in (("key", spec("spherical", 0.875)), ("value", spec("kivi", 2, 32))):
        stores.append(TieredStore(build_codec(kv, side), 32, RetentionSettings(margin_gate=gated)))
        stores[-1].append(torch.randn(1, 2, tokens, 64, generator=generator))
    return Part(*stores)


@needs_library
@pytest.mark.parametrize("gated", [False, True])
def test_who_observes_is_told(torch_read, gated):
    """The probabilities of its own slots, wherever the others are read; for who compares all slots torch reads all."""
    other, found = make_part(FAST["oscar"], 200), []
    for way in (lambda call, parts: dispatch.run(call, parts, cpu), lambda call, parts: reference.attend(call, parts)):
        part = tiered(130, gated)
        query, _, *rest = inputs([other, part])
        output = way(AttentionCall(query, *rest), [other, part])
        found.append((output, part.key.importance, part.key.energy))
    for mine, expected in zip(*found, strict=True):
        assert distance(mine, expected.double()) < 1e-5
    assert [name for name, _ in torch_read] == ["attend" if gated else "partial"]


def test_states_join_to_the_attention_over_all():
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(3, 2, 1, 4, 50, generator=generator).double() * 4
    values = torch.randn(3, 2, 1, 50, 8, generator=generator).double()
    told = []
    states = [
        AttentionState(x.softmax(-1) @ v, x.logsumexp(-1), (told.append,)) for x, v in zip(scores, values, strict=True)
    ]
    merged = merge_states(states)
    every = torch.cat(tuple(scores), -1)
    torch.testing.assert_close(merged.out, every.softmax(-1) @ torch.cat(tuple(values), -2))
    torch.testing.assert_close(merged.lse, every.logsumexp(-1))
    assert len(told) == 3 and all(lse is merged.lse for lse in told)


def test_a_state_without_tokens_counts_for_nothing():
    state = AttentionState(torch.ones(1, 1, 2, 4), torch.tensor([[[3.0, -torch.inf]]]))
    empty = AttentionState(torch.zeros(1, 1, 2, 4), torch.full((1, 1, 2), -torch.inf))
    merged = merge_states([state, empty])
    assert torch.equal(merged.out[0, 0, 0], torch.ones(4)) and merged.lse[0, 0, 0] == 3
    assert merged.lse[0, 0, 1] == -torch.inf and not merged.out[0, 0, 1].any()
