"""PDFs."""

from pathlib import Path

from kvmm.media import load_document
from tests.fuzz.media import MediaFuzzer
from tests.fuzz.samples import pdf_files


class Fuzzer(MediaFuzzer):
    """Documents with streams, forms that draw themselves, and odd page boxes."""

    suffix = ".pdf"

    def seeds(self) -> list[bytes]:
        return pdf_files()

    def whole(self) -> list[bytes]:
        return [self.files[0], self.files[-1]]

    def load(self, path: Path) -> None:
        load_document(path)
