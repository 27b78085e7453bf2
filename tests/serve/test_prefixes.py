"""Kept prefixes: their keys, their budget, their files, and whose they are."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import pytest
import torch

from kvmm.cache import KVMMCache
from kvmm.cache.memory import storages
from kvmm.errors import KVMMError
from kvmm.serve.disk import DiskPrefixes
from kvmm.serve.prefixes import PrefixStore
from kvmm.serve.prompts import PrefixKeys, boundaries_of

SCOPE, OTHER = "0" * 32, "1" * 32
IDS = torch.arange(100, 300)[None]
RUNS = [(20, 40), (60, 90)]
DIGESTS = [b"a" * 32, b"b" * 32]


def keys(ids: torch.Tensor = IDS, digests: list[bytes] = DIGESTS, fingerprint: bytes = b"f") -> PrefixKeys:
    return PrefixKeys(fingerprint, ids, RUNS, digests)


def test_a_key_is_of_all_tokens_and_media_before_it() -> None:
    lengths = [10, 41, 95, 200]
    found = keys().at(lengths)
    assert sorted(found) == lengths and len(set(found.values())) == 4
    assert keys().at([95]) == {95: found[95]}  # whatever other lengths are asked for
    changed = IDS.clone()
    changed[0, 50] += 1
    assert [keys(changed).at(lengths)[n] == found[n] for n in lengths] == [True, True, False, False]
    other = keys(digests=[DIGESTS[0], b"c" * 32]).at(lengths)
    assert [other[n] == found[n] for n in lengths] == [True, True, False, False]
    assert not set(keys(fingerprint=b"g").at(lengths).values()) & set(found.values())
    # placeholders of a medium are not compared as tokens, and another number of them is another medium
    runs = PrefixKeys(b"f", IDS, [(20, 39), (60, 90)], DIGESTS)
    assert runs.at([41])[41] != found[41]


def test_no_key_ends_within_a_medium_or_behind_the_prompt() -> None:
    assert sorted(keys().at([20, 21, 39, 40, 61, 200, 201])) == [20, 40, 200]


def test_an_answer_extends_the_keys_of_its_prompt() -> None:
    longer = torch.cat([IDS, torch.tensor([[7, 8, 9]])], 1)
    assert keys().extended([7, 8, 9]).at([200, 202]) == keys(longer).at([200, 202])


@pytest.mark.parametrize(
    ("ends", "runs", "total", "expected"),
    [
        ([], [], 300, []),
        ([100, 200], [], 300, [100, 200]),
        ([100, 130, 200], [], 300, [100, 200]),  # too near
        ([10, 299], [], 300, []),  # too short, and nothing would be left to read
        ([298], [], 300, [298]),
        ([], [], 3000, [1024, 2048]),
        ([100], [], 3000, [100, 1124, 2148]),
        ([1500], [(20, 1490)], 3000, [1500, 2524]),  # never within a document
        ([2100], [(1200, 2090)], 2200, [2100]),
    ],
)
def test_boundaries(ends: list[int], runs: list[tuple[int, int]], total: int, expected: list[int]) -> None:
    assert list(boundaries_of(ends, runs, total)) == expected


@pytest.fixture(scope="module")
def filled(omni: Any) -> KVMMCache:
    """A packed cache of 200 tokens of text."""
    model, _ = omni
    cache = KVMMCache.for_model(model, "balanced", graph=False)
    with torch.no_grad():
        model(input_ids=IDS, past_key_values=cache, use_cache=True, logits_to_keep=1)
    return cache.pack()


def put(store: PrefixStore, cache: KVMMCache, name: PrefixKeys, scope: str = SCOPE, **options: Any) -> str:
    key = name.at([200])[200]
    store.add(scope, key, 200, cache.fork(), **options)
    return key


def test_a_prefix_is_found_in_its_own_scope_alone(filled: KVMMCache) -> None:
    store = PrefixStore(2**30)
    put(store, filled, keys())
    longer = keys().extended([1, 2, 3])
    assert store.find(OTHER, longer, 201) is None
    assert store.find(SCOPE, longer, 199) is None  # at least one token has to be read
    assert store.find(SCOPE, keys(fingerprint=b"g"), 200) is None
    looked = [(OTHER, longer, 201), (SCOPE, longer, 199), (SCOPE, keys(fingerprint=b"g"), 200), (SCOPE, longer, 201)]
    assert [store.longest(*one) for one in looked] == [0, 0, 0, 200]  # which counts nothing
    assert [store.longest(SCOPE, longer, 201, least) for least in (200, 201)] == [200, 0]
    cache, length = store.find(SCOPE, longer, 201)
    assert length == 200 and cache.get_seq_length() == 200
    assert (store.counts.hits, store.counts.misses) == (1, 3)


def test_what_is_found_shares_pages_and_is_written_to_alone(filled: KVMMCache, omni: Any) -> None:
    model, _ = omni
    store = PrefixStore(2**30)
    put(store, filled, keys())
    before = [layer.keys.clone() for layer in filled.layers]
    cache, _ = store.find(SCOPE, keys(), 200)
    assert cache.memory().shared_nbytes > 0
    with torch.no_grad():
        for k in range(70):  # enough to pack a page more
            model(input_ids=torch.tensor([[k + 50]]), past_key_values=cache, use_cache=True)
    again, _ = store.find(SCOPE, keys(), 200)
    assert again.get_seq_length() == 200
    assert all(torch.equal(layer.keys, keys_) for layer, keys_ in zip(again.layers, before, strict=True))


def test_a_budget_counts_shared_memory_once_and_drops_the_least_recently_used(filled: KVMMCache) -> None:
    one = sum(storages(filled.fork()).values())
    names = [keys(fingerprint=bytes([k])) for k in range(4)]
    store = PrefixStore(2**30)
    found = [put(store, filled, name) for name in names[:3]]
    # three forks of one cache share its pages
    assert len(store) == 3 and one < store.nbytes < 3 * one
    loaded = PrefixStore(store.nbytes)
    for name in names[:3]:
        put(loaded, filled, name)
    assert loaded.find(SCOPE, names[0], 200) is not None
    put(loaded, filled, names[3])
    assert len(loaded) == 3 and loaded.nbytes <= loaded.budget and loaded.counts.evictions == 1
    assert loaded.find(SCOPE, names[1], 200) is None  # the least recently used
    assert loaded.find(SCOPE, names[0], 200) is not None and loaded.find(SCOPE, names[3], 200) is not None
    tiny = PrefixStore(10)
    put(tiny, filled, names[0])
    assert len(tiny) == 0 and tiny.nbytes == 0 and found[0]


# --------------------------------------------------------------------------------------------------------------------
# On disk


def on_disk(folder: Path, fingerprint: bytes = b"f", budget: int = 2**30) -> DiskPrefixes:
    return DiskPrefixes(folder, fingerprint, budget)


def reopened(folder: Path, model: Any, **options: Any) -> PrefixStore:
    disk = on_disk(folder, **options)
    return PrefixStore(2**30, disk, lambda name: disk.load(name, model))


def test_prefixes_are_found_after_a_restart(filled: KVMMCache, omni: Any, tmp_path: Path) -> None:
    store = reopened(tmp_path / "new" / "cache", omni[0])
    put(store, filled, keys(), write=True)
    store.close()
    (file,) = (tmp_path / "new" / "cache").glob("*/*.kvmmcache")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600 and SCOPE in file.name

    again = reopened(tmp_path / "new" / "cache", omni[0])
    assert len(again) == 0 and again.find(OTHER, keys(), 200) is None
    assert again.longest(SCOPE, keys(), 200) == 200 and len(again) == 0  # which loads nothing
    cache, length = again.find(SCOPE, keys(), 200)
    assert length == 200 and again.counts.disk_hits == 1 and len(again) == 1
    for mine, theirs in zip(cache.layers, filled.layers, strict=True):
        assert torch.equal(mine.keys, theirs.keys) and torch.equal(mine.values, theirs.values)
    again.close()
    other = reopened(tmp_path / "new" / "cache", omni[0], fingerprint=b"another model")
    assert other.find(SCOPE, keys(), 200) is None
    other.close()
    assert file.exists()


def test_a_prompt_that_is_read_again_counts_its_file_once(filled: KVMMCache, omni: Any, tmp_path: Path) -> None:
    disk = on_disk(tmp_path)
    store = PrefixStore(1, disk, lambda name: disk.load(name, omni[0]))  # nothing stays in memory
    put(store, filled, keys(), write=True)
    store.close()
    again = PrefixStore(1, on_disk(tmp_path), lambda name: disk.load(name, omni[0]))
    for counted in (True, False):
        assert again.find(SCOPE, keys(), 200, counted=counted) is not None
        assert (again.counts.hits, again.counts.disk_hits) == (1, 1)
    again.close()


def test_a_stop_says_what_it_writes_first(filled: KVMMCache, omni: Any, tmp_path: Path, caplog: Any) -> None:
    store = reopened(tmp_path, omni[0])
    put(store, filled, keys())
    store.close()
    assert [one.getMessage() for one in caplog.records] == [f"Stopping: 1 prefix is written to {tmp_path} first."]
    assert len(list(tmp_path.glob("*/*.kvmmcache"))) == 1
    reopened(tmp_path, omni[0]).close()
    assert len(caplog.records) == 1


def test_what_a_killed_server_left_unfinished_is_removed(tmp_path: Path) -> None:
    own = tmp_path / "0123456789abcdef"
    own.mkdir()
    old, new, other = (own / name for name in (".a.kvmmcache.12.tmp", ".b.kvmmcache.13.tmp", ".notes.tmp"))
    for path in (old, new, other):
        path.write_bytes(b"x")
    for path in (old, other):
        os.utime(path, (0, 0))
    on_disk(tmp_path).close()
    assert [path.exists() for path in (old, new, other)] == [False, True, True]


def test_what_has_to_go_from_memory_is_written(filled: KVMMCache, omni: Any, tmp_path: Path) -> None:
    disk = on_disk(tmp_path)
    store = PrefixStore(1, disk, lambda name: disk.load(name, omni[0]))
    put(store, filled, keys())
    store.close()
    assert len(store) == 0 and len(on_disk(tmp_path)) == 1


@pytest.mark.parametrize("how", ["cut", "changed", "renamed", "empty", "gone"])
def test_a_damaged_file_costs_itself_only(filled: KVMMCache, omni: Any, tmp_path: Path, how: str) -> None:
    store = reopened(tmp_path, omni[0])
    put(store, filled, keys(), write=True)
    store.close()
    again = reopened(tmp_path, omni[0])
    (file,) = tmp_path.glob("*/*.kvmmcache")
    content = bytearray(file.read_bytes())
    wanted = keys()
    if how == "cut":
        file.write_bytes(content[: len(content) // 2])
    elif how == "changed":
        content[-100] ^= 1
        file.write_bytes(content)
    elif how == "renamed":  # a file of somebody else under the name of this one
        wanted = keys(fingerprint=b"g")
        file = file.rename(file.with_name(file.name.replace(keys().at([200])[200], wanted.at([200])[200])))
        again.close()
        again = reopened(tmp_path, omni[0])
    elif how == "empty":
        file.write_bytes(b"")
    else:
        file.unlink()
    assert again.find(SCOPE, wanted, 200) is None and again.counts.disk_hits == 0
    assert not file.exists()
    put(again, filled, wanted, write=True)  # it can be written again
    again.close()
    assert file.exists() and reopened(tmp_path, omni[0]).find(SCOPE, wanted, 200) is not None


def test_a_full_disk_costs_no_answer(filled: KVMMCache, omni: Any, tmp_path: Path, monkeypatch: Any) -> None:
    store = reopened(tmp_path, omni[0])

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("kvmm.cache.file.save_file", full)
    put(store, filled, keys(), write=True)
    assert store.find(SCOPE, keys(), 200) is not None
    store.close()
    assert store.disk.failures >= 1 and not list(tmp_path.rglob("*.kvmmcache")) and not list(tmp_path.rglob("*.tmp"))


def test_the_oldest_files_go_beyond_the_disk_budget(filled: KVMMCache, omni: Any, tmp_path: Path) -> None:
    filled.save(tmp_path / "one")
    size = (tmp_path / "one").stat().st_size
    store = reopened(tmp_path / "caches", omni[0], budget=int(2.5 * size))
    for k in range(4):
        put(store, filled, keys(fingerprint=bytes([k])))
    store.close()
    left = list(tmp_path.glob("caches/*/*.kvmmcache"))
    assert 1 <= len(left) <= 2 and len(store.disk) == len(left)
    small = reopened(tmp_path / "caches", omni[0], budget=size // 2, fingerprint=b"g")
    put(small, filled, keys(), write=True)
    small.close()
    assert small.disk.failures >= 1 and len(small.disk) == 0


def test_folders_that_cannot_be_used_are_one_line(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("x")
    with pytest.raises(KVMMError, match="--cache-dir"):
        on_disk(file)
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    with pytest.raises(KVMMError, match="Other users can write"):
        on_disk(shared)
    mine = tmp_path / "mine"
    mine.mkdir(mode=0o700)
    (mine / "secret").write_bytes(b"short")
    with pytest.raises(KVMMError, match="damaged"):
        on_disk(mine)


def test_names_give_no_way_to_try_api_keys(tmp_path: Path) -> None:
    first, again, other = on_disk(tmp_path / "a"), on_disk(tmp_path / "a"), on_disk(tmp_path / "b")
    assert first.scope("key") == again.scope("key") != other.scope("key")
    assert first.scope("key") != first.scope("") != first.scope("kez")
