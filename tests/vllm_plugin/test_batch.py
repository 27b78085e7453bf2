"""What kernels are told of a batch, and vLLM of a cache, without vLLM."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch

from kvmm.vllm.batch import has_drafter, once, prompts, sized


@dataclass(frozen=True)
class OldSpec:
    """The fields of vLLM 0.26 that decide a page's bytes."""

    block_size: int
    num_kv_heads: int
    head_size: int
    head_size_v: int

    @property
    def page(self) -> int:
        """Of uint8."""
        return self.block_size * self.num_kv_heads * (self.head_size + self.head_size_v)


@dataclass(frozen=True)
class NewSpec(OldSpec):
    """Those of 0.32."""

    state_content_bytes: int | None = None


def test_a_page_has_the_bytes_of_its_slots():
    assert sized(OldSpec(128, 8, 64, 64), 84).page == 128 * 8 * 84
    given = NewSpec(128, 8, 64, 64)
    assert sized(given, 84) == NewSpec(128, 8, 64, 64, state_content_bytes=84)


def test_a_batch_is_described_once():
    given = SimpleNamespace(
        block_table_tensor=torch.zeros(2, 3), query_start_loc=torch.arange(3), seq_lens=torch.ones(2)
    )
    given.num_reqs, given.num_actual_tokens, given.max_query_len = 2, 2, 1
    made = once(given, lambda _: object())
    assert once(given, lambda _: object()) is made and once(copy(given), lambda _: object()) is made


@pytest.mark.parametrize(
    "name",
    ["block_table_tensor", "query_start_loc", "seq_lens", "num_reqs", "num_actual_tokens", "max_query_len"],
)
def test_a_batch_that_changed_is_described_again(name):
    """Whatever of it is another one, though the object is the same."""
    given = SimpleNamespace(
        block_table_tensor=torch.zeros(2, 3), query_start_loc=torch.arange(3), seq_lens=torch.ones(2)
    )
    given.num_reqs, given.num_actual_tokens, given.max_query_len = 2, 2, 1
    made = once(given, lambda _: object())
    setattr(given, name, getattr(given, name) + 1)
    again = once(given, lambda _: object())
    assert again is not made and once(given, lambda _: object()) is again


@pytest.mark.parametrize(
    ("method", "found"), [("ngram", False), ("suffix", False), ("eagle3", True), ("draft_model", True), (None, True)]
)
def test_drafts_of_a_model_are_known(method, found):
    assert has_drafter(SimpleNamespace(speculative_config=SimpleNamespace(method=method))) is found
    assert not has_drafter(SimpleNamespace(speculative_config=None))


@pytest.mark.parametrize("first", [0, 2])
@pytest.mark.parametrize("limit", [1, 300, 10000])
def test_prompts_take_the_right_rows(first, limit):
    """Every token of every sequence goes through the plan, and comes out where its sequence has it."""
    news = [1, 1, 5, 40, 7, 100, 3]
    past = [30, 200, 0, 0, 129, 64, 257]
    starts = [0, *torch.tensor(news).cumsum(0).tolist()]
    lengths = [a + b for a, b in zip(news, past, strict=True)]
    found = prompts(
        starts, lengths, torch.tensor(starts, dtype=torch.int32), torch.tensor(lengths, dtype=torch.int32), first, limit
    )
    assert [row for part in found for row in range(part.rows.start, part.rows.stop)] == list(range(first, 7))
    for part in found:
        rows = range(part.rows.start, part.rows.stop)
        assert part.size <= limit or len(rows) == 1
        assert part.size == sum(lengths[row] for row in rows)
        assert part.tokens == slice(starts[rows[0]], starts[rows[-1] + 1])
        assert part.max_query == max(news[row] for row in rows)
        assert part.max_length == max(lengths[row] for row in rows)
        assert part.max_past == max(past[row] for row in rows)
        assert part.query_starts.dtype == part.key_starts.dtype == part.past.dtype == torch.int32
        assert part.query_starts.tolist() == [starts[row] - starts[rows[0]] for row in (*rows, rows[-1] + 1)]
        assert part.past.tolist() == [past[row] for row in rows]
        space = torch.full((part.size,), -1)
        for number, row in enumerate(rows):  # what is in slots goes where each sequence begins
            begin = int(part.key_starts[number])
            space[begin : begin + past[row]] = torch.arange(past[row]) + 1000 * row
        tokens = torch.cat([torch.arange(past[row], lengths[row]) + 1000 * row for row in rows])
        if part.places is None:
            assert part.max_past == 0 and torch.equal(part.query_starts, part.key_starts)
            space = tokens
        else:
            space[part.places] = tokens
        wanted = torch.cat([torch.arange(lengths[row]) + 1000 * row for row in rows])
        assert torch.equal(space, wanted)
        assert part.key_starts[-1] == part.size


def test_lengths_of_the_host_may_be_too_large():
    """After speculative decoding the host knows only a bound; rows are those of the exact lengths."""
    starts, exact, known = [0, 4, 8], [20, 30], [22, 33]
    (part,) = prompts(
        starts, known, torch.tensor(starts, dtype=torch.int32), torch.tensor(exact, dtype=torch.int32), 0, 1000
    )
    assert part.key_starts.tolist() == [0, 20, 50] and part.past.tolist() == [16, 26]
    assert part.places.tolist() == [16, 17, 18, 19, 46, 47, 48, 49]
    assert part.size >= 50 and part.max_length >= 30 and part.max_past >= 26
