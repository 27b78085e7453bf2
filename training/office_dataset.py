"""Training steps on pages as wide as an office, with the page's text beside them for a teacher.

    python -m training.train --base .base --dataset training.office_dataset --out runs/b

Every sequence of one page comes twice: the student's begins with the rendered page, the teacher's with its text; the
branches that follow are the same. Steps of kind `text` have texts only: they teach the text tower to answer from a page
that it can read already, which the towers then only have to show it. A text is the page's lines and, in words, what its
charts show.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np

from training import dataset
from training.dataset import SPECS as FIRST_SPECS
from training.model_config import UNTAUGHT
from training.office.document import KIND_ASKED, SUMMARISE, a_kind
from training.office.pages import make_office_document, make_office_page, own_questions
from training.office.passages import FOLDER as DOCUMENTS
from training.office.passages import WRITTEN, passages
from training.office.small_talk import DESCRIBE, HELD, about_any_page, about_any_recording, remark, thanks
from training.office.summaries import summary_of
from training.pages import Page, Rng, make_page
from training.pages.values import MissingAssets
from training.questions import ABSENT_SHARE, questions_about, transcription
from training.sequences import ANSWER, Sequence, turns_tokens
from training.tokenizer import BOS, encode
from training.utterances import FIRST_WORDS, QA, Utterance, utter
from training.utterances.aloud import read_aloud
from training.utterances.free import free_memo
from training.utterances.memos import FOLDER as MEMOS
from training.utterances.memos import memos, written_memo

CHART_SHARE = 0.12  # of pages: charts, beside those that the kinds' weights bring
CHARTS = "plot plot_series subject_chart series_chart chart chart_table small_charts figure_page".split()
OFFICE_SHARE = 0.65  # of the other pages; the rest are those of `training.pages`
ALOUD_SHARE, SHORT_ALOUD_SHARE = 0.34, 0.45  # of recordings, and of those up to six seconds: prose read aloud
WRITTEN_SHARE = 0.36  # of recordings longer than six seconds: memos of `training/utterances/texts`
FREE_SHARE = 0.5  # of the others longer than six seconds: memos of sentence patterns
READ_SHARE = 0.5  # of pages: transcribed before questions. Of the others what is left of a sequence is, from LEAST_TEXT
LEAST_TEXT, TURN = 60, 40  # tokens of a transcription, and around it
LATER_SHARE = 0.35  # of two pages: the second comes in a later turn, as where one document is dropped in after another
TRIES = 32  # pages drawn until one's text fits: most do at once
MOST_QUESTIONS = 28  # about a page, as far as there is room
WRITTEN_ABSENT_SHARE = 0.15  # questions without an answer for each with one, of written documents: near misses
PASSAGE_SHARE = 0.45  # of text steps' pages: written documents, in addition to those that `any_page` draws
SHORT_TEXT = 260  # tokens of most transcriptions
LONG_SHARE, LONG_PART = 0.3, 0.75  # of transcriptions, and which part of a sequence these may take
KIND_SHARE = 0.15  # of sequences: asked what the page is
SUMMARY_SHARE = 0.2  # of generated pages that do not tell themselves what they are about: asked for it
TALK_SHARE, ANY_PAGE_SHARE = 0.1, 0.25  # of sequences: a remark, and a question that fits any page or recording
THANKS_SHARE = 0.02  # of branches: they end with thanks
KIND_NAMES = {
    "bank_statement": "a bank statement", "form_hand": "a form", "merged_table": "a table", "news": "a newspaper page",
    "receipt_world": "a receipt", "prose": "a page of text", "program_window": "a screenshot of a program",
    "web_page": "a web page", "program": "a programme", "cv": "a CV", "lab_report": "a laboratory report",
    "email_thread": "an email conversation", "faq": "a page of questions and answers", "agenda": "a programme",
    "utility_bill": "an electricity bill", "spreadsheet": "a screenshot of a spreadsheet", "sign": "a sign",
    "settings": "a screenshot of settings", "plot": "a chart", "plot_series": "a chart", "subject_chart": "a chart",
    "series_chart": "a chart", "progress": "a chart", "gauge": "a picture of a gauge", "timeline": "a time line",
    "figure_page": "a page of a report", "chart_table": "a chart with a table", "small_charts": "a page of charts",
    "pictogram": "a pictogram", "pen_form": "a form", "unlabelled_letter": "a letter",
    "who_said": "minutes of a meeting", "name_badge": "a name badge", "group_chat": "a conversation in a group chat",
    "credits": "a page with names", "comparison": "a table", "tariff": "a table of prices",
    "shop_product": "a page of a web shop", "shop_basket": "the basket of a web shop",
    "shop_listing": "a page of a web shop", "terminal": "a screenshot of a terminal",
    "file_manager": "a screenshot of a file manager", "week_calendar": "a screenshot of a calendar",
    "messenger": "a screenshot of a messenger", "booking_page": "a web page with travel offers",
    "settings_dialog": "a screenshot of a settings dialog", "phone_notifications": "a phone's notifications",
}  # fmt: skip


@dataclass(frozen=True)
class OfficeSpec(dataset.Spec):
    """A spec of `training.dataset` with a teacher's sequences of ``teacher_len`` tokens, 0 for none."""

    teacher_len: int = 0


def _spec(name: str, sequences: int, height: int, width: int, seq_len: int, teacher_len: int) -> OfficeSpec:
    return OfficeSpec(name, sequences, 1, height, width, 0, 0, seq_len, teacher_len)


SPECS: list[tuple[OfficeSpec, float]] = [
    (_spec("page", 40, 560, 448, 896, 896), 0.11),
    (_spec("page", 28, 756, 532, 1152, 1024), 0.15),
    (_spec("page", 24, 812, 588, 1280, 1088), 0.11),
    (_spec("page", 12, 1008, 756, 2176, 2304), 0.13),  # A4 with small print, read whole
    (_spec("page", 40, 448, 560, 896, 896), 0.06),
    (_spec("page", 40, 784, 308, 896, 896), 0.05),
    (_spec("page", 28, 504, 784, 1088, 1024), 0.06),
    (OfficeSpec("text", 31, 0, 756, 532, 0, 0, 1152), 0.28),
    (OfficeSpec("pages", 8, 2, 924, 644, 0, 0, 2432), 0.03),
    *((OfficeSpec(*dataclasses.astuple(s)), 0.7 * share) for s, share in FIRST_SPECS if s.pages > 1 or s.clips > 1),
    *((OfficeSpec(*dataclasses.astuple(s)), 1.6 * share) for s, share in FIRST_SPECS if s.frames and not s.pages),
]


def any_page(r: Rng, height: int, width: int, held: bool) -> Page:
    if r.chance(CHART_SHARE):
        return make_office_page(r.getrandbits(48), height, width, held, r.pick(CHARTS))
    make = make_office_page if r.chance(OFFICE_SHARE) else make_page
    return make(r.getrandbits(48), height, width, held)


def absent_share(page: Page) -> float:
    """Questions without an answer for each with one, of those that a page is asked."""
    return WRITTEN_ABSENT_SHARE if page.kind == WRITTEN else ABSENT_SHARE


def text_page(r: Rng, spec: OfficeSpec, held: bool, kind: str | None = None) -> Page:
    """A page to be read as text, whole: questions about what is cut off would teach to make answers up.

    Written documents are drawn more often than for a page that is seen: they ask most of a reader. Held-out pages are
    documents that training never meets, if no ``kind`` is asked for: is it reading, or does it know them.
    """
    kind = WRITTEN if kind is None and (held or r.chance(PASSAGE_SHARE)) else kind
    for _ in range(TRIES):
        if kind is None:
            page = any_page(r, spec.height, spec.width, held)
        else:
            page = make_office_page(r.getrandbits(48), spec.height, spec.width, held, kind)
        pair = Pair(spec)
        pair.read_page(page, spec, seen=False)
        if pair.whole:
            break
    return page


def any_pages(r: Rng, count: int, height: int, width: int, held: bool) -> list[Page]:
    """Pages of different documents, and often one document that runs over several of them."""
    pages: list[Page] = []
    if count > 1 and r.chance(0.5):
        pages = make_office_document(r.getrandbits(48), min(count, r.pick((2, 2, 3, 4))), height, width, held)
    start = r.randint(0, count - len(pages))
    others = [any_page(r, height, width, held) for _ in range(count - len(pages))]
    return [*others[:start], *pages, *others[start:]]


def any_utterance(r: Rng, held: bool, frames: int) -> Utterance:
    """What a recording of ``frames`` says: prose, a memo where one fits, or a sentence with a fact."""
    kind, seconds = r.random(), frames / 100
    if kind < (ALOUD_SHARE if frames >= 600 else SHORT_ALOUD_SHARE):
        return read_aloud(r, held, seconds)
    if frames >= 600 and kind < ALOUD_SHARE + WRITTEN_SHARE:
        return written_memo(r, held, seconds)
    if r.chance(FREE_SHARE if frames >= 600 else 0.15):
        return free_memo(r, held, seconds)
    return utter(r, held, "memo" if frames > 600 and r.chance(0.7) else None)


def any_recording(r: Rng, held: bool, frames: int) -> Utterance:
    """What a recording says, and now and then what is said before anything is asked about it."""
    spoken, first = any_utterance(r, held, frames), []
    if not held and r.chance(TALK_SHARE):
        first.append(QA(FIRST_WORDS, *remark(r)))
    if not held and r.chance(ANY_PAGE_SHARE):
        first.append(QA(FIRST_WORDS, *about_any_recording(r)))
    return dataclasses.replace(spoken, qa=(*spoken.qa, *first)) if first else spoken


class Pair:
    """A student's sequence and, unless ``teacher_len`` is 0, the teacher's, with the same branches."""

    def __init__(self, spec: OfficeSpec) -> None:
        self.student = Sequence(spec.seq_len)
        self.teacher = Sequence(spec.teacher_len) if spec.teacher_len else None
        self.whole = True  # whether the teacher has all of the page's text

    def read_page(self, page: Page, spec: OfficeSpec, seen: bool) -> None:
        """Begins both with the page: the student sees it (or reads it too, if not ``seen``), the teacher reads it.

        Who reads it is told in words what its charts show: their questions would teach to make numbers up.
        """
        user, text = encode(["user\n", "\n".join((*page.lines, *page.charts)) + "\n\n"])
        reader = self.teacher if seen else self.student
        if seen:
            self.student.prefix_text([BOS, *user])
            self.student.prefix_image(spec.height, spec.width)
        if reader is not None:
            room = reader.room * 2 // 3
            self.whole = len(text) <= room
            reader.prefix_text([BOS, *user, *text[:room]])

    def branch(self, ids: list[int], weight: list[int]) -> bool:
        """Adds a branch to both, or to none."""
        if self.teacher is None:
            return self.student.branch(ids, weight)
        if len(ids) > min(self.student.room, self.teacher.room):
            return False
        known = weight if self.whole else [UNTAUGHT if w else 0 for w in weight]
        return self.student.branch(ids, weight) and self.teacher.branch(ids, known)

    @property
    def room(self) -> int:
        return min(s.room for s in (self.student, self.teacher) if s is not None)


def _fill(r: Rng, pair: Pair, page: Page, spec: OfficeSpec, held: bool, seen: bool) -> None:
    read = seen and r.chance(READ_SHARE)
    if read:
        limit = max(SHORT_TEXT, int(LONG_PART * pair.room)) if r.chance(LONG_SHARE) else SHORT_TEXT
        pair.branch(*turns_tokens(transcription(r, page, None), limit))
    first = []
    if page.kind == WRITTEN and held:  # batches of one page or text that runs are compared on: the documents' questions
        page = own_questions(page)
    elif page.kind != WRITTEN:  # written documents ask for what they are themselves
        name = KIND_NAMES.get(page.kind) or a_kind(page.kind.replace("_", " "))
        if r.chance(KIND_SHARE):
            first.append((r.pick(KIND_ASKED[:-1]), name))
        if not held and r.chance(SUMMARY_SHARE) and (told := summary_of(page, name)):
            first.append((r.pick((*SUMMARISE[:-1], *DESCRIBE[:-HELD])), told))
    if not held and r.chance(TALK_SHARE):
        first.append(remark(r))
    if not held and r.chance(ANY_PAGE_SHARE):
        first.append(about_any_page(r, page))
    own = {way.lower() for fact in (*page.facts, *(page.absent or ())) for way in fact.asks}
    for turn in first:
        if turn[0].lower() not in own:  # "thanks" asks for who is thanked where a document has such a part
            pair.branch(*turns_tokens([(*turn, ANSWER)]))
    questions = questions_about(r, [page], MOST_QUESTIONS, held, absent_share(page))
    while questions and pair.room > 24:
        turns = [questions.pop() for _ in range(min(len(questions), r.choices((1, 2, 3), (6, 3, 2))[0]))]
        if not held and r.chance(THANKS_SHARE) and (said := thanks(r))[0].lower() not in own:
            turns.append((*said, ANSWER))
        if not pair.branch(*turns_tokens(turns)) and len(turns) > 1:
            pair.branch(*turns_tokens(turns[:1]))
    if seen and not read and pair.room > LEAST_TEXT + TURN:
        pair.branch(*turns_tokens(transcription(r, page, None), pair.room - TURN))


def prepare() -> None:
    """Reads what `training.dataset.prepare` reads, and the written-out documents and memos.

    Raises:
        MissingAssets: something of it is missing.
    """
    dataset.prepare()
    for folder, texts in ((DOCUMENTS, passages()), (DOCUMENTS / "held", passages(held=True)), (MEMOS, memos())):
        if not texts:
            raise MissingAssets(f"no texts in {folder}: they are part of the repository")


def make_step(seed: int, spec: OfficeSpec, held: bool = False) -> dict[str, np.ndarray]:
    """One step's arrays: as `training.dataset.make_step`, and with a teacher also ``teacher_ids``, ``teacher_pos``,
    ``teacher_seg`` and ``teacher_weight`` of the same dtypes, ``[B, T]``.
    """
    if spec.pages > 1 or spec.frames:
        # What is asked aloud is phrased for the ear, by the wordings of `training.pages`.
        pages = None if spec.clips and spec.pages else any_pages
        return dataset.make_step(seed, spec, held, pages, any_recording, 0.0 if held else LATER_SHARE)
    r = Rng(seed)
    draw = (lambda: any_page(r, spec.height, spec.width, held)) if spec.pages else (lambda: text_page(r, spec, held))
    pages = [draw() for _ in range(spec.sequences)]
    step = make_tokens(r, spec, pages, held)
    if spec.pages:
        for name, array in (("pages", "ink"), ("shade", "shade"), ("chars", "chars")):
            step[name] = np.stack([getattr(page, array) for page in pages])
    return step


def make_tokens(r: Rng, spec: OfficeSpec, pages: list[Page], held: bool) -> dict[str, np.ndarray]:
    """The arrays of tokens of a step about ``pages``, one a sequence; ``held``: in wordings kept for evaluation."""
    pairs = []
    for page in pages:
        pair = Pair(spec)
        pair.read_page(page, spec, spec.pages > 0)
        _fill(r, pair, page, spec, held, spec.pages > 0)
        pairs.append(pair)
    arrays = ("ids", "pos", "seg", "weight")
    step = {name: np.stack([getattr(p.student, name) for p in pairs], int(name == "pos")) for name in arrays}
    if spec.teacher_len:
        taught = {name: [getattr(p.teacher, name) for p in pairs] for name in arrays}
        step |= {f"teacher_{name}": np.stack(taught[name], int(name == "pos")) for name in arrays}
    return step
