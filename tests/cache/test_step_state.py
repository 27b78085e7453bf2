"""What a cache knows of the call that runs."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch

from kvmm.cache.step_state import StepState


def test_a_deferred_map_is_made_once_and_only_if_asked_for():
    asked = []

    def label(inputs):
        asked.append(inputs)
        return torch.zeros(1, 1, dtype=torch.int8)

    step = StepState(modality=torch.ones(1, 3, dtype=torch.int8))
    step.defer({"input_ids": 5})
    assert step.modality is None  # of an announced call that never came
    step.forget_inputs()
    assert step.take_modality(label) is None
    assert not asked
    step.defer({"input_ids": 7})
    assert step.take_modality(label).shape == (1, 1)
    assert step.take_modality(label) is None
    assert asked == [{"input_ids": 7}]


def test_inputs_that_cannot_be_labelled_are_not_tried_again():
    def refuse(inputs):
        raise ValueError

    step = StepState()
    step.defer({})
    with pytest.raises(ValueError):
        step.take_modality(refuse)
    assert step.take_modality(refuse) is None


def test_a_given_map_serves_one_call():
    step = StepState(given_modality=torch.ones(1, 2))
    assert step.take_given_modality() is not None
    assert step.take_given_modality() is None


def test_blocks_end_as_they_began():
    step = StepState(reads_decoded=True)
    with pytest.raises(ValueError), step.read_decoded(), step.replay():
        raise ValueError
    assert step.reads_decoded and not step.replaying


@pytest.mark.parametrize("way", [copy.copy, copy.deepcopy, lambda step: pickle.loads(pickle.dumps(step))])
def test_copies_are_told_what_comes_and_not_what_runs(way):
    step = StepState(given_modality=torch.ones(1, 2), cropped=True, decoding=True)
    with step.read_decoded(), step.replay():
        twin = way(step)
    assert torch.equal(twin.given_modality, step.given_modality) and twin.cropped and twin.decoding
    assert not twin.reads_decoded and not twin.replaying
    twin.clear()
    assert step.given_modality is not None and twin.given_modality is None and not twin.cropped
