"""Tiny random models of every supported family, and inputs for them; shared by the tests.

``build(family)`` gives the model, ``inputs(family, batch)`` the arguments of ``generate`` for one sequence, or for a
left-padded batch of two. Nothing is downloaded and no processor is needed: pixel and mel tensors are random, and their
placeholders are counted here.
"""

from tests.tiny_models.arguments import (
    VIDEO_FAMILIES,
    gemma4_inputs,
    generate,
    inputs,
    token_types,
    turn_inputs,
    video_inputs,
)
from tests.tiny_models.families import (
    AUDIO,
    AUDIO_END,
    AUDIO_START,
    FAMILIES,
    IMAGE,
    NEW_TOKENS,
    PAD,
    VIDEO,
    VISION_END,
    VISION_START,
    VOCAB,
    build,
    gemma4,
    rope_deltas_holder,
)

__all__ = [
    "AUDIO",
    "AUDIO_END",
    "AUDIO_START",
    "FAMILIES",
    "IMAGE",
    "NEW_TOKENS",
    "PAD",
    "VIDEO",
    "VIDEO_FAMILIES",
    "VISION_END",
    "VISION_START",
    "VOCAB",
    "build",
    "gemma4",
    "gemma4_inputs",
    "generate",
    "inputs",
    "rope_deltas_holder",
    "token_types",
    "turn_inputs",
    "video_inputs",
]
