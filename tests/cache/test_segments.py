"""The packed pages of a layer, without a layer."""

from __future__ import annotations

import torch

from kvmm.cache.capacity import StaticCapacity
from kvmm.cache.plan import Cut
from kvmm.cache.segments import Segments
from kvmm.cache.tiers import TieredStore
from kvmm.codecs import build_codec
from kvmm.modality import AUDIO, IMAGE, TEXT
from kvmm.policy import RetentionSettings, spec


def segments(codec: str = "kivi", retention: RetentionSettings | None = None) -> Segments:
    kv = spec(codec, 0.875) if codec == "spherical" else spec(codec, 2, 32)
    pair = build_codec(kv, "key"), build_codec(spec("kivi", 2, 32), "value")
    found = Segments(dict.fromkeys((TEXT, IMAGE, AUDIO), pair), retention)
    found.exact_dtype = torch.bfloat16
    return found


def static(text_pages: int = 4, page_size: int = 32) -> StaticCapacity:
    found = StaticCapacity()
    found.text_pages, found.page_size, found.residual_tokens = text_pages, page_size, 40
    return found


def fill(found: Segments, modality: int, tokens: int, page_size: int = 32) -> None:
    x = torch.randn(1, 2, tokens, 64, generator=torch.Generator().manual_seed(tokens))
    for store in found.open(modality, page_size).stores:
        store.append(x)


def test_parts_are_in_order_of_modality():
    found = segments()
    for modality in (AUDIO, TEXT, IMAGE):
        fill(found, modality, 64)
    assert list(found.parts) == [TEXT, IMAGE, AUDIO]
    assert len(found.stores) == 6 and found.stores == found.allocated_stores
    assert found.open(IMAGE, 128) is found.parts[IMAGE]  # one page size a modality
    assert all(store.exact_dtype == torch.bfloat16 for store in found.stores)


def test_text_has_capacity_before_it_has_a_page():
    found, like = segments(), torch.zeros(1, 2, 1, 64)
    fill(found, IMAGE, 64)
    found.allocate(static(), 0, like)
    spare, addresses = found.spare, found.addresses()
    assert list(found.parts) == [IMAGE] and list(found.allocated) == [TEXT, IMAGE]
    found.allocate(static(), 0, like)
    assert found.spare is spare and found.addresses() == addresses
    fill(found, TEXT, 32)
    assert found.parts[TEXT] is spare and found.spare is None
    assert found.addresses() == addresses  # what a captured step reads has not moved


def test_pages_of_another_size_leave_the_spare_part():
    found = segments()
    found.allocate(static(), 0, torch.zeros(1, 2, 1, 64))
    spare = found.spare
    assert found.open(TEXT, 128) is not spare
    assert found.spare is None and found.parts[TEXT].key.page_size == 128


def test_a_crop_takes_appends_back():
    found = segments()
    for modality, appends in ((TEXT, 3), (IMAGE, 1)):
        for _ in range(appends):
            fill(found, modality, 32)
    found.crop(Cut(0, {TEXT: 2, IMAGE: 0}))
    assert list(found.parts) == [TEXT]
    assert found.parts[TEXT].key.packed.slots == 64


def test_a_fork_shares_pages_and_has_its_own_spare():
    found = segments()
    fill(found, IMAGE, 64)
    found.allocate(static(), 0, torch.zeros(1, 2, 1, 64))
    twin = found.fork()
    assert all(store.shared for store in twin.parts[IMAGE].stores)
    assert not set(twin.spare.key.addresses()[1::2]) & set(found.spare.key.addresses()[1::2])
    fill(twin, AUDIO, 32)
    assert AUDIO not in found.parts


def test_a_budget_makes_stores_of_tiers():
    found = segments("spherical", RetentionSettings(decay=0.5))
    fill(found, IMAGE, 64)
    key, value = found.parts[IMAGE].stores
    assert isinstance(key, TieredStore) and isinstance(value, TieredStore) and key.settings.decay == 0.5
