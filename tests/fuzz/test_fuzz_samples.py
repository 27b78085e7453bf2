"""A sample of every kind of broken file; ``python -m tests.fuzz --inputs 30000`` runs the rest."""

import pytest

from tests.fuzz import KINDS, runner
from tests.fuzz.runner import OUTCOMES, run


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_but_refusals(kind):
    """Inputs that no other run has: each is used or refused in a line, soon, within a gigabyte."""
    result = run((kind,), KINDS[kind] + 16, start=2 * 10**6)
    counts = result["kinds"][kind]
    assert result["clean"], counts
    assert counts["inputs"] == counts["accepted"] + counts["refused"]
    assert counts["accepted"] and counts["refused"]


def test_the_fuzzer_sees(monkeypatch):
    """An exception that is not the project's own, a crash, a long wait and much memory are counted as what they are."""
    monkeypatch.setattr(runner, "SECONDS", 1.0)  # how long the parent waits for an input, less ten
    result = run(("probes",), 6)
    counts = result["kinds"]["probes"]
    assert [counts[name] for name in ("accepted", "refused", *OUTCOMES[2:])] == [1, 1, 1, 1, 1, 1]
    assert not result["clean"] and len(counts["problems"]) == 4
