"""Which patch, second or word a token is: checked against what the embedded model's processor makes of real pixels."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image, ImageDraw

from kvmm.analysis.norms.token_location import (
    audio_moment,
    image_index,
    image_patch,
    marked_page,
    patch_crop,
    text_word,
)
from kvmm.errors import KVMMError
from kvmm.modality import AUDIO, IMAGE, TEXT, modality_of_ids


@pytest.fixture(scope="module")
def loaded():
    from kvmm import load_model

    return load_model()


def test_the_patch_of_a_token_is_where_its_pixels_are(loaded):
    """A dot is drawn on one of two pages; the token whose pixels differ from a page without it is the one found."""
    model, processor = loaded
    plain = Image.new("RGB", (700, 500), "white")
    dotted = plain.copy()
    ImageDraw.Draw(dotted).ellipse((590, 120, 600, 130), fill="black")

    def encode(pages):
        text = processor.apply_chat_template(
            [{"role": "user", "content": [{"type": "image"}, {"type": "image"}, {"type": "text", "text": "?"}]}],
            tokenize=False,
            add_generation_prompt=True,
        )
        return processor(text=[text], images=pages, return_tensors="pt")

    before, after = encode([plain, plain]), encode([plain, dotted])
    merge = processor.image_processor.merge_size
    # pixel rows are grouped so that merge * merge neighbours make one token
    rows = (before["pixel_values"] != after["pixel_values"]).any(1).nonzero()[:, 0] // merge**2
    (changed,) = set(rows.tolist())
    modality = modality_of_ids(after["input_ids"], model.config)[0].numpy()
    position = int(np.flatnonzero(modality == IMAGE)[changed])
    patch = image_patch(modality, position, after["image_grid_thw"].tolist(), merge)
    assert patch.image == 1 and image_index(modality, position) == 1
    left, top, right, bottom = patch.box
    assert left <= 590 / 700 and right >= 600 / 700 and top <= 120 / 500 and bottom >= 130 / 500
    assert np.asarray(patch_crop(dotted, patch.box)).min() < 60  # the dot is on the crop
    marked = np.asarray(marked_page(dotted, patch.box)).astype(int)
    orange = (abs(marked - [0xD5, 0x5E, 0]).sum(2) < 30).nonzero()
    assert abs(orange[1].mean() / marked.shape[1] - (left + right) / 2) < 0.02
    assert abs(orange[0].mean() / marked.shape[0] - (top + bottom) / 2) < 0.02


def test_seconds_of_recordings():
    modality = np.array([TEXT, AUDIO, AUDIO, AUDIO, AUDIO, TEXT, AUDIO, AUDIO])
    moment = audio_moment(modality, 2, [2.0, 3.0])
    assert (moment.recording, moment.start, moment.end) == (0, 0.5, 1.0)
    assert audio_moment(modality, 7, [2.0, 3.0]).end == 3.0
    with pytest.raises(KVMMError, match="Token 0 is text, not audio"):
        audio_moment(modality, 0, [2.0, 3.0])


def test_a_word_is_put_together_from_its_tokens():
    tokens = ["<|im_start|>", "user", "\n", "What", " is", " due", "-", "date", "?", "<|im_end|>", "\n"]
    modality = np.zeros(len(tokens), dtype=int)
    word = text_word(modality, 6, tokens)
    assert (word.before, word.word, word.after) == ("user\nWhat is", " due-date?", "")
    assert text_word(modality, 9, tokens).word == "<|im_end|>"
    with pytest.raises(KVMMError, match="There is no token 99"):
        text_word(modality, 99, tokens)


def test_grids_that_are_of_another_prompt():
    with pytest.raises(KVMMError, match="image_grid_thw"):
        image_patch(np.array([IMAGE] * 4), 1, [[1, 4, 8]], 2)
