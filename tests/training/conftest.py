"""Assets for the page generator: the real ones if they were collected, else fonts of this system and a few words."""

import os
import shutil
from pathlib import Path

import pytest
import torch
from PIL import ImageFont

from training.model import OmniModel
from training.model_config import ModelConfig
from training.smollm2.folder import write_base
from training.tokenizer import PATH, use_tokenizer

SMALL = ModelConfig(
    vocab_size=2048, hidden_size=64, num_layers=2, num_heads=1, num_kv_heads=1, intermediate_size=96, vision_size=64,
    vision_layers=1, vision_intermediate_size=64, audio_size=64, audio_layers=1, audio_intermediate_size=64,
)  # fmt: skip
REAL = Path(os.environ.get("KVMM_TRAIN_ASSETS", ".train-assets"))


def holds_all(path: Path) -> bool:
    """Whether a face has all characters of pages, small letters of their own among them, as ``latin.txt`` lists."""
    from training.assets import has_lower_case
    from training.pages.canvas import CHARACTERS

    font = ImageFont.truetype(str(path), 20, layout_engine=ImageFont.Layout.BASIC)
    missing = bytes(font.getmask("\uffff"))
    shown = (c for c in CHARACTERS if c.strip() and c != "\xad")  # neither blanks nor the soft hyphen
    return has_lower_case(path) and all(bytes(font.getmask(c)) != missing for c in shown)


@pytest.fixture(scope="session")
def train_assets(tmp_path_factory):
    """Sets ``KVMM_TRAIN_ASSETS`` for the session and returns the folder."""
    if (REAL / "words.txt").exists():
        yield REAL
        return
    files = sorted(Path("/usr/share/fonts").rglob("*.ttf"))
    first, last = next(filter(holds_all, files), None), next(filter(holds_all, reversed(files)), None)
    if first == last:
        pytest.skip("fewer than two Latin TrueType fonts on this system; install a package such as fonts-dejavu-core")
    folder = tmp_path_factory.mktemp("assets")
    for split, path in (("train", first), ("held", last)):
        (folder / "fonts" / split).mkdir(parents=True)
        (folder / "fonts" / split / path.name).symlink_to(path)
    (folder / "words.txt").write_text(
        "apple river table garden window yellow quiet bridge little morning paper stone" * 1
    )
    os.environ["KVMM_TRAIN_ASSETS"] = str(folder)
    yield folder
    del os.environ["KVMM_TRAIN_ASSETS"]


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> Path:
    """A base folder with a small random text tower and the committed tokenizer."""
    folder = tmp_path_factory.mktemp("base")
    torch.manual_seed(0)
    weights = OmniModel(SMALL).export_weights()
    write_base(folder, SMALL, {n: t for n, t in weights.items() if n.startswith("model.")}, 8, 32)
    shutil.copy(PATH, folder / "tokenizer.json")
    yield folder
    use_tokenizer(PATH)
