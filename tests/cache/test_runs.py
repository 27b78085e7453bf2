"""Columns that move into pages: runs of them are read where they are, and nothing stored holds on to them."""

import pytest
import torch

from kvmm.cache.pages import PageStore
from kvmm.cache.plan import run
from kvmm.cache.token_table import TokenTable
from kvmm.codecs import build_codec
from kvmm.modality import AUDIO, IMAGE, PADDING, TEXT
from kvmm.policy import CodecSpec, get_policy, spec


def testrun():
    assert run(torch.tensor([[3, 4, 5], [3, 4, 5]])) == 3
    assert run(torch.tensor([[0, 1]])) == 0
    assert run(torch.tensor([[3, 4, 6]])) is None
    assert run(torch.tensor([[3, 4, 5], [4, 5, 6]])) is None


def test_plan():
    """Sequences alike give runs; padding, and text on both sides of an image, do not."""
    policy = get_policy("rd2", residual_length=16, flush_length=32, num_sink_tokens=4)
    starts = {}
    for name, kinds in {
        "text": [[TEXT] * 100],
        "two": [[TEXT] * 100] * 2,
        "padded": [[PADDING] * 3 + [TEXT] * 97, [TEXT] * 100],
        "media": [[TEXT] * 30 + [IMAGE] * 40 + [TEXT] * 60 + [AUDIO] * 33],
    }.items():
        table = TokenTable(policy)
        table.append(torch.tensor(kinds, dtype=torch.int8))
        plan = table.plan()
        starts[name] = {move.modality: move.start for move in plan.moves}
        for move in plan.moves:
            if move.start is not None:
                run = torch.arange(move.start, move.start + move.index.shape[1])
                assert torch.equal(move.index, run.expand_as(move.index))
    assert starts == {
        "text": {TEXT: 4},
        "two": {TEXT: 4},
        "padded": {TEXT: None},
        "media": {TEXT: None, IMAGE: 30, AUDIO: 130},
    }


@pytest.mark.parametrize("kv", [CodecSpec(), spec("rd", 2), spec("kivi", 2, 32), spec("oscar", 2, 64)], ids=str)
@pytest.mark.parametrize("side", ["key", "value"])
def test_nothing_stored_holds_the_columns(kv, side):
    columns = torch.randn(1, 1, 140, 64)
    expected = PageStore.for_codec(build_codec(kv, side), 32)
    expected.append(columns[:, :, 4:132].clone())
    store = PageStore.for_codec(build_codec(kv, side), 32)
    store.append(columns[:, :, 4:132])
    own = columns.untyped_storage().data_ptr()
    assert all(tensor.untyped_storage().data_ptr() != own for tensor in store.buffers.values())
    columns.zero_()
    torch.testing.assert_close(store.decode(), expected.decode(), rtol=0, atol=0)
