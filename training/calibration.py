"""Data for ``kvmm calibrate``: pages, documents and recordings of the training generators, with questions.

    python -m training.calibration --out runs/calibration
    python -m kvmm calibrate --data runs/calibration/questions.jsonl --out assets/tiny-omni/kvmm_calibration.safetensors

Fonts, voices and wordings are those of training: nothing of the held-out set is seen.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from training import wordings
from training.heldout.pages import DOCUMENT_SHAPES, pick_facts
from training.heldout.writer import Writer, turn
from training.office_dataset import any_page, any_pages, any_utterance
from training.pages import PAGE_SHAPES, Page, Rng, make_page
from training.questions import absent_facts
from training.speech import SAMPLE_RATE, degrade, place, speak
from training.utterances.reading import spoken_question

SEED = 7001
CLIP_FRAMES = (320, 1000, 1000, 2200)  # of 10 ms, the longest a recording may be
SECONDS, WINDOW = 22, 30  # of the longest clip, and of what the model hears
KINDS = ("invoice", "receipt", "form", "letter", "table", "text", "program", "sheet")


def _page(r: Rng) -> Page:
    return any_page(r, *r.pick(PAGE_SHAPES), held=False)


def _document(r: Rng, count: int) -> list[Page]:
    """So many pages; a third of the documents all of different kinds, so that few questions name their page."""
    shape = DOCUMENT_SHAPES[count]
    if r.chance(0.33):
        return [make_page(r.getrandbits(48), *shape, held_fonts=False, kind=kind) for kind in r.sample(KINDS, count)]
    return any_pages(r, count, *shape, held=False)


def _questions(r: Rng, pages: list[Page]) -> list[dict]:
    chosen = pick_facts(r, pages, 4) + [(fact, None) for fact in absent_facts(r, pages, 1) if r.chance(0.3)]
    asked = [(fact.key, *wordings.ask(r, fact, False, number)) for fact, number in chosen]
    return [turn(question, answer, key) for key, question, answer in asked]


def _recording(writer: Writer, r: Rng, name: str, text: str) -> str:
    clip = None
    while clip is None or len(clip) > (WINDOW - 1) * SAMPLE_RATE:
        clip = speak(r, text, held=False, seconds=SECONDS)
        clip = degrade(r, clip) if r.chance(0.5) else clip
    return writer.recording(name, place(r, clip, len(clip) + SAMPLE_RATE // 2))


def write(writer: Writer, pages: int, documents: int, recordings: int, spoken: int) -> None:
    """Fill a folder: so many single pages, documents of two to eight pages, recordings, spoken questions.

    Documents are many and long because finding the right page takes layers that a single page hardly uses: where few of
    them were seen, these layers get no bits. What an error costs is a mean over questions of which few cost much, so
    every kind needs many.
    """
    r = Rng(SEED)
    for i in range(pages):
        page = _page(r)
        path = writer.image(f"page-{i:03d}", page.rgb())
        for asked in _questions(r, [page]):
            writer.add("page", page.kind, [path], None, [asked])
        if i % 4 == 0:
            read = turn(wordings.TRANSCRIBE[0], "\n".join(page.lines), "transcription")
            writer.add("page", page.kind, [path], None, [read])
    for i in range(documents):
        several = _document(r, 2 + i % 7)
        paths = [writer.image(f"document-{i:03d}-{n}", page.rgb()) for n, page in enumerate(several, 1)]
        for asked in _questions(r, several):
            writer.add("document", f"{len(several)} pages", paths, None, [asked])
    for i in range(recordings):
        said = any_utterance(r, False, r.pick(CLIP_FRAMES))
        path = _recording(writer, r, f"recording-{i:03d}", said.text)
        for key, question, answer in r.sample(said.qa, min(3, len(said.qa))):
            writer.add("recording", said.kind, [], path, [turn(question, answer, key)])
    for i in range(spoken):
        page = _page(r)
        while not (facts := pick_facts(r, [page], 1)):  # a chart or a sign without a value to ask for
            page = _page(r)
        image = writer.image(f"spoken-{i:03d}", page.rgb())
        fact = facts[0][0]
        asked = spoken_question(r, wordings.phrase_question(r, fact))
        path = _recording(writer, r, f"spoken-{i:03d}", asked)
        writer.add("spoken", page.kind, [image], path, [turn("", fact.value, fact.key)])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m training.calibration", description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("runs/calibration"))
    parser.add_argument("--pages", type=int, default=144)
    parser.add_argument("--documents", type=int, default=168)
    parser.add_argument("--recordings", type=int, default=72)
    parser.add_argument("--spoken", type=int, default=180)
    args = parser.parse_args()
    writer = Writer(args.out)
    write(writer, args.pages, args.documents, args.recordings, args.spoken)
    path = writer.save("questions.jsonl")
    print(f"{path}: {len(writer.lines)} questions")


if __name__ == "__main__":
    main()
