"""Sets made with the page generator: unseen fonts, values and layout seeds; unseen wordings; documents; turns."""

from __future__ import annotations

from collections.abc import Collection

from training import wordings
from training.heldout.writer import Writer, turn
from training.office.document import KIND_ASKED, a_kind, noun_of
from training.office.pages import make_office_page, own_questions
from training.office.passages import WRITTEN
from training.office.registry import kinds
from training.office.small_talk import about_any_page, remark
from training.pages import PAGE_SHAPES, Fact, Page, Rng, make_page
from training.questions import absent_facts, document_facts, questions_about

DOCUMENT_SHAPES = {
    2: (616, 560),
    3: (616, 560),
    4: (616, 476),
    5: (616, 476),
    6: (560, 448),
    7: (560, 448),
    8: (560, 448),
}
VAGUE = ("page", "screen", "piece", "power")  # last nouns of kinds that name no document
READING = ("next_word", "kind", "title", "first_line", "last_line", "line_start", "numbered_line")  # of every page


def _page(r: Rng, shape: tuple[int, int] | None = None, kind: str | None = None) -> Page:
    height, width = shape or r.pick(PAGE_SHAPES)
    return make_page(r.getrandbits(48), height, width, held_fonts=True, kind=kind)


def pick_facts(r: Rng, pages: list[Page], n: int) -> list[tuple[Fact, int | None]]:
    """Up to ``n`` facts of different kinds with the page to name; reading tasks are rarer than others."""
    groups: dict[str, list[tuple[Fact, int | None]]] = {}
    for fact, number in document_facts(pages):
        groups.setdefault(fact.key, []).append((fact, number))
    chosen: list[tuple[Fact, int | None]] = []
    while groups and len(chosen) < n:
        keys = list(groups)
        weights = [min(len(groups[key]), 5) * (0.3 if key in READING else 1.0) for key in keys]
        key = r.choices(keys, weights)[0]
        chosen.append(groups[key].pop(r.randint(0, len(groups[key]) - 1)))
        if not groups[key] or key not in ("field", "cell"):
            del groups[key]
    return chosen


def _ask(r: Rng, fact: Fact, held: bool, number: int | None = None) -> dict:
    question, answer = wordings.ask(r, fact, held, number)
    return turn(question, answer, "absent" if answer == wordings.NOT_STATED else fact.key)


def single_pages(writer: Writer, name: str, seed: int, pages: int, held_wordings: bool, questions: int = 4) -> None:
    """Questions about one page each, every one its own conversation."""
    r = Rng(seed)
    for number in range(pages):
        page = _page(r)
        path = writer.image(f"{name}-{number:03d}", page.rgb())
        for fact, _ in pick_facts(r, [page], questions):
            writer.add(name, page.kind, [path], None, [_ask(r, fact, held_wordings)])


def tables(writer: Writer, seed: int, pages: int) -> None:
    """Look-ups in tables: a cell by its row and column."""
    r = Rng(seed)
    for number in range(pages):
        page = _page(r, kind="table")
        path = writer.image(f"tables-{number:03d}", page.rgb())
        cells = [fact for fact in page.facts if fact.key == "cell"]
        for fact in r.sample(cells, min(5, len(cells))):
            writer.add("tables", page.kind, [path], None, [_ask(r, fact, False)])


def transcriptions(writer: Writer, seed: int, pages: int) -> None:
    """All text of a page."""
    r = Rng(seed)
    for number in range(pages):
        page = _page(r)
        path = writer.image(f"transcription-{number:03d}", page.rgb())
        question = turn(r.pick(wordings.TRANSCRIBE), "\n".join(page.lines), "transcription", metric="cer")
        writer.add("transcription", page.kind, [path], None, [question])


def unanswerable(writer: Writer, seed: int, pages: int) -> None:
    """Plausible questions whose answer the page does not hold, in wordings of training."""
    r = Rng(seed)
    for number in range(pages):
        page = _page(r, kind=r.pick(("invoice", "receipt", "form", "letter", "table")))
        path = writer.image(f"unanswerable-{number:03d}", page.rgb())
        for fact in absent_facts(r, [page], 3):
            writer.add("unanswerable", page.kind, [path], None, [_ask(r, fact, False)])


def documents(writer: Writer, name: str, seed: int, counts: list[int], questions: int) -> None:
    """Documents of several pages; a question names its page only where it would be ambiguous without."""
    r = Rng(seed)
    kinds = ["invoice", "receipt", "form", "letter", "table", "text"]
    for number, count in enumerate(counts):
        chosen = r.sample(kinds, min(count, 6)) + [
            r.pick(("text", "form", "table", "letter")) for _ in range(count - 6)
        ]
        r.shuffle(chosen)
        pages = [_page(r, DOCUMENT_SHAPES[count], kind) for kind in chosen]
        paths = [writer.image(f"{name}-{number:03d}-{i}", page.rgb()) for i, page in enumerate(pages, 1)]
        for fact, page_number in pick_facts(r, pages, questions):
            writer.add(name, f"{count} pages", paths, None, [_ask(r, fact, False, page_number)])


def office(writer: Writer, seed: int, each: int, name: str = "office", only: Collection[str] | None = None) -> None:
    """Questions about ``each`` pages of every kind of office document: unseen fonts, values and wordings.

    Args:
        writer, seed: of the set. name: of it. only: these kinds, not all.
    """
    r = Rng(seed)
    for kind in sorted(kinds() if only is None else only):
        for number in range(each):
            page = make_office_page(r.getrandbits(48), *r.pick(PAGE_SHAPES), held=True, kind=kind)
            path = writer.image(f"{name}-{kind}-{number}", page.rgb())
            for question, answer, _ in questions_about(r, [page], 4, held=True):
                key = "absent" if answer == wordings.NOT_STATED else "number" if answer[:1].isdigit() else "stated"
                writer.add(name, kind, [path], None, [turn(question, answer, key)])


def unseen(writer: Writer, seed: int, count: int) -> None:
    """Questions about pages of written-out documents that are kept out of training, as their writers worded them."""
    r = Rng(seed)
    for number in range(count):
        page = make_office_page(r.getrandbits(48), *r.pick(PAGE_SHAPES), held=True, kind=WRITTEN)
        path = writer.image(f"unseen-{number:03d}", page.rgb())
        for question, answer, _ in questions_about(r, [own_questions(page)], 5, held=False):
            key = "absent" if answer == wordings.NOT_STATED else "stated"
            writer.add("unseen", WRITTEN, [path], None, [turn(question, answer, key)])


def first_words(writer: Writer, seed: int, count: int) -> None:
    """What people say before they ask, about written-out documents kept out of training, in wordings kept out, too.

    What a document is may be answered with its kind or with the noun of that, if it names a document: "a letter" for "a
    letter of a bank". The documents have no summaries, so none is asked for.
    """
    r = Rng(seed)
    for number in range(count):
        page = make_office_page(r.getrandbits(48), *r.pick(PAGE_SHAPES), held=True, kind=WRITTEN)
        path = writer.image(f"first-words-{number:03d}", page.rgb())
        kind = next(fact.value for fact in page.facts if fact.asks == KIND_ASKED)
        what = turn(KIND_ASKED[-1], kind, "kind")
        if (noun := noun_of(kind)) not in VAGUE and a_kind(noun) != kind:
            what["answers"].append(a_kind(noun))
        said, fitting = turn(*remark(r, True), "talk"), turn(*about_any_page(r, page, True), "any")
        for one in (what, said, fitting):
            writer.add("first-words", WRITTEN, [path], None, [one])


def conversations(writer: Writer, seed: int, count: int) -> None:
    """Three questions in one conversation, any kind of fact at any turn."""
    r = Rng(seed)
    for number in range(count):
        page = _page(r)
        facts = pick_facts(r, [page], 3)
        if len(facts) < 3:
            continue
        r.shuffle(facts)
        path = writer.image(f"turns-{number:03d}", page.rgb())
        writer.add("turns", page.kind, [path], None, [_ask(r, fact, False) for fact, _ in facts])
