"""Which questions a part of the confidence's answers has."""

from training.confidence import by_document, every


def lines():
    pages = [f"images/{number % 7}.png" for number in range(20)]
    shown = [{"id": str(n), "images": [page], "audio": None} for n, page in enumerate(pages)]
    return [*shown, {"id": "spoken", "images": [], "audio": "audio/1.wav"}]


def test_parts_are_whole_documents_and_everything_together():
    parts = [every(lines(), 3, first) for first in range(3)]
    assert sorted(line["id"] for part in parts for line in part) == sorted(line["id"] for line in lines())
    pages = [{(*line["images"], line["audio"]) for line in part} for part in parts]
    assert not pages[0] & pages[1] and not pages[1] & pages[2] and not pages[0] & pages[2]
    assert [len(by_document(part)) for part in parts] == [3, 3, 2]


def test_every_document():
    assert len(every(lines(), 1)) == len(lines())
