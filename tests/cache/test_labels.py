"""Modalities of ``inputs_embeds``: from token types, placeholders' rows, or positions; else one clear error."""

import pytest
import torch

from kvmm import KVMMCache, KVMMError
from kvmm.cache.labels import label_call
from kvmm.modality import AUDIO, IMAGE, PADDING, TEXT, VIDEO, modality_of_ids
from tests.tiny_models import build, generate, inputs, video_inputs

FAMILIES = ["qwen2_5_vl", "qwen3_vl", "llava", "internvl", "qwen2_audio", "qwen2_5_omni"]
PAIRS = ((120, IMAGE), (121, VIDEO))


def embedded(model, arguments):
    """``arguments`` with embeddings in place of ids; media are still to be put in by the model."""
    rest = {name: value for name, value in arguments.items() if name != "input_ids"}
    return {**rest, "inputs_embeds": model.get_input_embeddings()(arguments["input_ids"]).detach()}


@pytest.mark.parametrize("policy", ["bf16", "calibquant2"])
@pytest.mark.parametrize("family", FAMILIES)
def test_embeddings_are_labelled_as_their_ids_are(family, policy):
    """Placeholders are found where the model finds them, padding included; lossless pages give the same tokens."""
    model, arguments = build(family), inputs(family, 2)
    ids, mask = arguments["input_ids"], arguments["attention_mask"]
    cache = KVMMCache.for_model(model, policy, residual_length=0, flush_length=32, exact_dtype="model")
    found = generate(model, embedded(model, arguments), past_key_values=cache)
    expected = modality_of_ids(ids, model.config).masked_fill(mask == 0, PADDING)
    assert torch.equal(cache.table.modality[:, : ids.shape[1]], expected)
    assert set(cache.memory().by_modality) > {"text"}
    if policy == "bf16":  # Qwen's models need ids to place pictures, with any cache
        assert torch.equal(found, generate(model, embedded(model, arguments)))


def test_merged_embeddings_of_a_policy_that_stores_all_alike():
    model, arguments = build("llava"), inputs("llava", 1)
    embeds = torch.randn(1, arguments["input_ids"].shape[1], 64)
    cache = KVMMCache.for_model(model, "bf16")
    with torch.no_grad():
        model(inputs_embeds=embeds, past_key_values=cache)
    assert cache.table.modality.eq(TEXT).all()


def test_merged_embeddings_without_a_word_of_where_media_are():
    model, length = build("qwen2_5_vl"), 30
    embeds = torch.randn(1, length, 64)
    cache = KVMMCache.for_model(model, "calibquant2")
    assert cache.policy.specs(TEXT) != cache.policy.specs(IMAGE)
    with torch.no_grad(), pytest.raises(KVMMError, match="mm_token_type_ids or three-axis position_ids"):
        model(inputs_embeds=embeds, past_key_values=cache)
    codes = torch.zeros(1, length, dtype=torch.long)
    codes[:, 5:20] = IMAGE
    with torch.no_grad():
        model(inputs_embeds=embeds, past_key_values=cache, mm_token_type_ids=codes)
    assert torch.equal(cache.table.modality.long(), codes)


@pytest.mark.parametrize("make", [inputs, video_inputs])
@pytest.mark.parametrize("family", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl"])
def test_positions_on_three_axes_tell_pictures_and_videos(family, make):
    """Of a whole prompt, from the positions that the model itself computes."""
    model = build(family)
    arguments = make(family)
    ids = arguments["input_ids"]
    types = modality_of_ids(ids, model.config)
    grids = {name: value for name, value in arguments.items() if name.endswith(("grid_thw", "per_grid_ts"))}
    mask = arguments["attention_mask"]
    positions, _ = model.model.get_rope_index(ids, mm_token_type_ids=types.int(), attention_mask=mask, **grids)
    call = {"inputs_embeds": torch.randn(*ids.shape, 64), "position_ids": positions, "attention_mask": mask}
    found = label_call(call, PAIRS)
    expected = types.masked_fill(mask == 0, PADDING)
    if family == "qwen3_vl":  # gives each frame its own timestamps in text: a picture by its positions
        found, expected = (torch.where(x == VIDEO, IMAGE, x) for x in (found, expected))
    assert (expected > 0).any()
    assert torch.equal(found, expected)


def test_positions_say_nothing_of_audio():
    positions = torch.arange(8).expand(3, 1, -1)
    call = {"inputs_embeds": torch.randn(1, 8, 4), "position_ids": positions}
    assert label_call(call, PAIRS).eq(TEXT).all()
    with pytest.raises(KVMMError, match="cannot tell"):
        label_call(call, (*PAIRS, (122, AUDIO)))


def test_types_of_the_whole_sequence_and_strange_ones():
    types = torch.tensor([[0, 1, 1, 0, 2, 3]])
    call = {"inputs_embeds": torch.randn(1, 4, 4), "mm_token_type_ids": types}
    assert label_call(call, PAIRS).tolist() == [[1, 0, 2, 3]]
    with pytest.raises(KVMMError):
        label_call({**call, "mm_token_type_ids": types + 7}, PAIRS)
    with pytest.raises(KVMMError):
        label_call({**call, "mm_token_type_ids": types[:, :2]}, PAIRS)
