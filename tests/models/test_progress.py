"""What a worker's times say: the first step, which packs, and the rate of the others."""

import pytest

from kvmm.models.progress import step_times


@pytest.mark.parametrize(
    ("times", "first", "rate"),
    [
        ([], None, 0.0),
        ([5.0], None, 0.0),
        ([5.0, 7.0], 2.0, 0.5),
        ([5.0, 7.0, 7.5, 8.0], 2.0, 2.0),
        # drafts: several tokens a step
        ([5.0, 7.0, 7.0, 7.0], 2.0, 1.5),
        ([5.0, 7.0, 7.0, 8.0, 8.0, 9.0], 2.0, 1.5),
        ([5.0, 5.0, 7.0, 9.0], 2.0, 0.5),
    ],
)
def test_the_first_step_is_apart(times, first, rate):
    assert step_times(times) == (first, rate)


@pytest.mark.parametrize(
    ("times", "count", "first", "rate"),
    [
        ([5.0], 4, None, 0.0),
        ([5.0, 7.0], 5, 2.0, 2.0),
        ([5.0, 7.0, 8.0, 9.0], 6, 2.0, 2.0),
        ([5.0, 7.0, 8.0, 9.0], 1, 2.0, 0.0),
    ],
)
def test_tokens_without_a_time_are_among_the_last(times, count, first, rate):
    assert step_times(times, count) == (first, rate)
