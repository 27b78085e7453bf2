"""Names of people and towns: those of many countries where the assets folder has them, common ones beside."""

from __future__ import annotations

import re

import pytest

KINDS = ("first_names", "last_names", "towns", "jobs")


@pytest.fixture
def values(train_assets, tmp_path, monkeypatch):
    """The module of values, and an assets folder with no names yet."""
    from training.pages import values

    (tmp_path / "words.txt").write_text("stone\nriver\n")
    monkeypatch.setattr(values, "assets_dir", lambda: tmp_path)
    for found in (values.names, values.words):
        found.cache_clear()
    yield values
    for found in (values.names, values.words):
        found.cache_clear()


def drawn(values, count: int = 400) -> list[str]:
    from training.office.values import person, town

    r = values.Rng(3)
    return [*(person(r) for _ in range(count)), *(town(r) for _ in range(count))]


def test_without_lists_names_are_common_ones_and_words(values):
    parts = {part for name in drawn(values) for part in name.split()}
    assert {"Stone", "River"} < parts and values.jobs() == tuple(values.JOBS)
    assert not any(values.names(kind) for kind in KINDS)


def test_with_lists_half_are_of_many_countries(values, tmp_path):
    before = drawn(values)
    folder = tmp_path / "names"
    folder.mkdir()
    for kind in KINDS:
        (folder / f"{kind}.txt").write_text(f"Plain{kind}\nÄrmel{kind}\n", encoding="utf-8")
    values.names.cache_clear()
    after = drawn(values)
    plain, accented = (sum(start in name for name in after) for start in ("Plain", "Ärmel"))
    assert 0.4 * len(after) < plain < 0.8 * len(after) and 0 < accented < 0.1 * len(after)
    assert values.jobs()[-1] == "Plainjobs" and not any("jobs" in name for name in after)
    # pages whose faces have no accents draw plain names
    r = values.Rng(1)
    assert all(
        name.isascii() for _ in range(300) for name in (values.first_name(r), values.last_name(r), values.city(r))
    )
    assert sum(a == b for a, b in zip(before, after, strict=True)) < 0.6 * len(after)


def test_one_heads_a_department_and_no_profession(values, tmp_path):
    from training.office.document import Document
    from training.office.registry import kinds

    (tmp_path / "names").mkdir()
    (tmp_path / "names/jobs.txt").write_text("Gaffer\nSub\n")
    values.names.cache_clear()
    behind = {"Head of": set(), "Senior": set(), "Junior": set()}
    for seed in range(300):
        card = Document(values.Rng(seed), (756, 532))
        kinds()["business_card"][0](card)
        (position,) = (ask.answer for ask in card.asks if "What is the position?" in ask.questions)
        for rank, found in behind.items():
            if position.startswith(f"{rank} "):
                found.add(position.removeprefix(f"{rank} "))
    assert behind["Head of"] and behind["Head of"] <= set(values.DEPARTMENTS)
    assert behind["Senior"] | behind["Junior"] == set(values.jobs())


def test_lists_are_collected_from_faker(train_assets, tmp_path):
    pytest.importorskip("faker")
    from training.asset_names import LETTERS, collect_names
    from training.pages.canvas import CHARACTERS

    count = collect_names(tmp_path, re.compile("smith"))
    lists = {kind: (tmp_path / f"{kind}.txt").read_text(encoding="utf-8").splitlines() for kind in KINDS}
    assert count == sum(map(len, lists.values())) > 20_000
    for kind, names in lists.items():
        assert names == sorted(set(names)) and len(names) > 100, kind
        assert set("".join(names)) <= set(CHARACTERS) and not any("smith" in name.lower() for name in names)
    people = lists["first_names"] + lists["last_names"] + lists["towns"]
    assert all(LETTERS[0] <= len(name) <= LETTERS[1] and " " not in name for name in people)
    assert {"Müller", "García"} <= set(lists["last_names"])
