"""Images in all formats that are read."""

from pathlib import Path

from kvmm.media import load_image, preview
from tests.fuzz.media import MediaFuzzer
from tests.fuzz.samples import image_files


class Fuzzer(MediaFuzzer):
    """Pictures, as a question and as a preview."""

    suffix = ".png"

    def seeds(self) -> list[bytes]:
        return image_files()

    def load(self, path: Path) -> None:
        load_image(path)
        preview(path, 2, 96)
