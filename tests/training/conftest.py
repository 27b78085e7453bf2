"""Assets for the page generator: the real ones if they were collected, else fonts of this system and a few words."""

import os
from pathlib import Path

import pytest

REAL = Path(os.environ.get("KVMM_TRAIN_ASSETS", ".train-assets"))


@pytest.fixture(scope="session")
def train_assets(tmp_path_factory):
    """Sets ``KVMM_TRAIN_ASSETS`` for the session and returns the folder."""
    if (REAL / "words.txt").exists():
        yield REAL
        return
    fonts = sorted(Path("/usr/share/fonts").rglob("*.ttf"))
    if len(fonts) < 2:
        pytest.skip("no TrueType fonts on this system; install a font package such as fonts-dejavu-core")
    folder = tmp_path_factory.mktemp("assets")
    for split, path in (("train", fonts[0]), ("held", fonts[-1])):
        (folder / "fonts" / split).mkdir(parents=True)
        (folder / "fonts" / split / path.name).symlink_to(path)
    (folder / "words.txt").write_text(
        "apple river table garden window yellow quiet bridge little morning paper stone" * 1
    )
    os.environ["KVMM_TRAIN_ASSETS"] = str(folder)
    yield folder
    del os.environ["KVMM_TRAIN_ASSETS"]
