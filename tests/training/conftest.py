"""Assets for the page generator: the real ones if they were collected, else fonts of this system and a few words."""

import os
from pathlib import Path

import pytest
from PIL import ImageFont

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
