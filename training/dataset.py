"""Training steps: pages, recordings and packed conversations as arrays, from seeds.

A sequence is a shared prefix (the pages or the recording) followed by independent *branches*: a transcription, one or
more turns of questions, a spoken question. A block mask lets each branch see the prefix and itself only, so one page
trains about ten conversations. Positions restart in every branch, as they would stand after the prefix alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from training import wordings
from training.pages import Fact, Page, Rng, make_page
from training.pages import values as v
from training.pages.fields import FIELDS
from training.tokenizer import AUDIO, AUDIO_BOS, AUDIO_EOS, BOS, EOS, IMAGE, VISION_BOS, VISION_EOS, encode

PREFIX, STANDALONE, PADDING = 0, 254, 255  # values of ``seg``; other numbers are branches
TRANSCRIPT, ANSWER = 1, 2  # values of ``weight``
MEDIA_CELL = 28  # pixels a side of one visual token
FRAMES_PER_TOKEN = 4  # mel frames of one audio token
NOTHING_ADDED = "Please add a page, a picture or a recording."
# other ways of asking for a recording's words; a recording sent without any question is transcribed
TRANSCRIBE_AUDIO = ("", "", "", "What is being said?", "Transcribe this.", "Read it to me.", "Transcribe.")
CHARACTERS_A_FRAME = 0.2  # faster speech than any voice's: longer texts need not be tried


@dataclass(frozen=True)
class Spec:
    """Shape of a step.

    Attributes:
        name: for the log.
        sequences: B.
        pages: pages a sequence, 0 for recordings alone.
        height, width: of every page, pixels.
        clips: recordings a sequence (spoken questions if there are pages).
        frames: mel frames a recording, 10 ms each.
        seq_len: S, tokens a sequence.
    """

    name: str
    sequences: int
    pages: int
    height: int
    width: int
    clips: int
    frames: int
    seq_len: int

    @property
    def page_tokens(self) -> int:
        return (self.height // MEDIA_CELL) * (self.width // MEDIA_CELL)


SPECS: list[tuple[Spec, float]] = [
    (Spec("page", 56, 1, 560, 448, 0, 0, 832), 0.14),
    (Spec("page", 40, 1, 756, 532, 0, 0, 1088), 0.13),
    (Spec("page", 32, 1, 812, 588, 0, 0, 1216), 0.11),
    (Spec("page", 56, 1, 448, 560, 0, 0, 832), 0.05),
    (Spec("page", 56, 1, 784, 308, 0, 0, 832), 0.04),
    (Spec("page", 40, 1, 504, 784, 0, 0, 1024), 0.05),
    (Spec("pages", 24, 2, 616, 560, 0, 0, 1408), 0.05),
    (Spec("pages", 12, 4, 616, 476, 0, 0, 2112), 0.07),
    (Spec("pages", 8, 8, 560, 448, 0, 0, 3136), 0.06),
    (Spec("pages", 5, 8, 672, 504, 0, 0, 3968), 0.03),
    (Spec("speech", 64, 0, 0, 0, 1, 320, 256), 0.05),
    (Spec("speech", 48, 0, 0, 0, 1, 1000, 512), 0.06),
    (Spec("speech", 24, 0, 0, 0, 1, 2200, 832), 0.03),
    (Spec("spoken", 24, 1, 560, 448, 5, 360, 1088), 0.13),
]  # fmt: skip


class Sequence:
    """One packed sequence being filled."""

    def __init__(self, length: int):
        self.ids = np.zeros(length, np.int16)
        self.pos = np.zeros((3, length), np.int16)
        self.seg = np.full(length, PADDING, np.uint8)
        self.weight = np.zeros(length, np.uint8)
        self.used, self.branches, self.start = 0, 0, 0

    @property
    def room(self) -> int:
        return len(self.ids) - self.used

    def _write(self, ids: list[int], pos: np.ndarray, seg: int, weight: list[int] | int = 0) -> None:
        end = self.used + len(ids)
        self.ids[self.used : end] = ids
        self.pos[:, self.used : end] = pos
        self.seg[self.used : end] = seg
        self.weight[self.used : end] = weight
        self.used = end

    def _write_text(self, ids: list[int], seg: int, weight: list[int] | int, at: int) -> int:
        self._write(ids, np.arange(at, at + len(ids)), seg, weight)
        return at + len(ids)

    def prefix_text(self, ids: list[int]) -> None:
        self.start = self._write_text(ids, PREFIX, 0, self.start)

    def prefix_image(self, height: int, width: int) -> None:
        """Image tokens in raster order with (time, row, column) positions."""
        self.prefix_text([VISION_BOS])
        rows, cols = height // MEDIA_CELL, width // MEDIA_CELL
        grid = np.stack([np.zeros((rows, cols), int), *np.mgrid[:rows, :cols]]).reshape(3, -1)
        self._write([IMAGE] * (rows * cols), grid + self.start, PREFIX)
        self.start += max(rows, cols)
        self.prefix_text([VISION_EOS])

    def prefix_audio(self, frames: int) -> None:
        self.prefix_text(_audio(frames))

    def branch(self, ids: list[int], weight: list[int], standalone: bool = False) -> bool:
        """Add a branch if it fits."""
        if len(ids) > self.room or self.branches >= STANDALONE - 1:
            return False
        self.branches += not standalone
        self._write_text(ids, STANDALONE if standalone else self.branches, weight, 0 if standalone else self.start)
        return True


def _audio(frames: int) -> list[int]:
    return [AUDIO_BOS] + [AUDIO] * (frames // FRAMES_PER_TOKEN) + [AUDIO_EOS]


def turns_tokens(turns: list[tuple[str, str, int]], limit: int = 200) -> tuple[list[int], list[int]]:
    """Ids and weights of a conversation that continues an open user turn: (question, answer, weight) each.

    A transcription longer than ``limit`` tokens is cut, without its end token; nothing may follow it then.
    """
    user, assistant, newline = encode(["user\n", "assistant\n", "\n"])
    texts = encode([text for question, answer, _ in turns for text in (question, answer)])
    ids: list[int] = []
    weights: list[int] = []
    for i, (_, _, weight) in enumerate(turns):
        answer = [*texts[2 * i + 1], EOS]
        head = texts[2 * i] + [EOS, *newline, BOS, *assistant]
        if i:
            head = [*newline, BOS, *user, *head]
        if len(answer) > limit:
            answer = answer[:limit]
        ids += head + answer
        weights += [0] * len(head) + [weight] * len(answer)
        if answer[-1] != EOS:
            break
    return ids, weights


def absent_facts(r: Rng, pages: list[Page], n: int) -> list[Fact]:
    """Facts that none of the pages states, plausible enough to be asked for; their value is the fixed answer."""
    text = "\n".join(line for page in pages for line in page.lines).lower()
    tokens = set("".join(c if c.isalnum() else " " for c in text).split())
    tokens |= {word for page in pages for fact in page.facts if fact.key == "entry" for word in fact.label.split()}
    keys = {fact.key for page in pages for fact in page.facts}
    kinds = {page.kind for page in pages}
    found: list[Fact] = []
    for _ in range(6 * n):
        if len(found) == n:
            break
        style = r.random()
        if style < 0.4:
            key = r.pick(ABSENT_KEYS)
            rivals = next((rivals for names, rivals in RIVALS if key in names), ())
            nouns = {word for noun in wordings.WORDINGS[key].nouns for word in noun.lower().split()} - COMMON_WORDS
            if key in keys or keys & set(rivals) or nouns & tokens or (key in MONEY_KEYS and "text" in kinds):
                continue
            found.append(Fact(key, wordings.NOT_STATED))
        elif style < 0.65:
            labels = r.pick(FIELDS)[0]
            if any(set(label.lower().replace("-", " ").split()) & tokens for label in labels):
                continue
            found.append(Fact("field", wordings.NOT_STATED, r.pick(labels)))
        elif style < 0.8 and "item_amount" in keys:
            name = v.item(r)
            if set(name.lower().split()) & tokens:
                continue
            key = r.pick([k for k in ("item_amount", "item_quantity", "item_price") if k in keys])
            found.append(Fact(key, wordings.NOT_STATED, subject=name))
        elif "cell" in keys:
            cell = r.pick([fact for page in pages for fact in page.facts if fact.key == "cell"])
            row = r.pick((v.city, v.first_name, v.name_word, v.country, lambda r: r.pick(v.PRODUCTS)))(r)
            if set(row.lower().split()) & tokens:
                continue
            found.append(Fact("cell", wordings.NOT_STATED, cell.label, row))
    return found


# facts a page may lack; rivals are facts whose presence would make "it does not say" wrong or debatable
ABSENT_KEYS = (
    "total subtotal tax shipping discount invoice_number receipt_number order_number customer_number date "
    "due_date terms customer store time cashier table_number contact phone email website meeting_date "
    "meeting_place meeting_time reference train_time office project rent password interview deadline "
    "speaker budget hotel flight delivery_date contract salary dinner recipient sender subject change "
    "guest_count box_count warranty deposit start_date winner venue host weight fee degree university manager "
    "valid_until made_in"
).split()
_DATES = "date due_date meeting_date interview deadline delivery_date sign_date start_date valid_until period".split()
_TIMES = ("time", "meeting_time", "train_time", "dinner", "sign_time")
RIVALS: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = (
    (("date",), _DATES),
    (("due_date",), ("due_date", "deadline")),
    (("deadline",), ("deadline", "due_date")),
    (("delivery_date",), ("delivery_date", "sign_date")),
    (("meeting_date", "interview"), ("meeting_date", "interview", "sign_date")),
    (("time", "meeting_time", "train_time", "dinner"), _TIMES),
    (("customer", "recipient"), ("customer", "recipient", "guest_count")),
    (("store", "sender"), ("store", "sender", "issuer")),
    (("contact",), ("contact", "sender", "issuer", "replacement", "store", "manager", "host")),
    (
        ("total", "subtotal"),
        ("total", "subtotal", "item_amount", "payment", "rent", "sign_price", "budget", "salary", "fee", "deposit"),
    ),
    (("fee", "deposit"), ("fee", "deposit", "total", "payment", "shipping", "rent", "sign_price")),
    (("weight",), ("weight", "item_quantity")),
    (("host", "speaker", "manager"), ("host", "speaker", "manager", "sign_guest", "entry")),
    (("degree", "university"), ("degree", "university", "entry")),
    (("venue",), ("venue", "meeting_place", "sign_city", "office", "hotel", "entry", "address", "room", "title")),
    (("start_date", "valid_until"), ("start_date", "valid_until", "date", "deadline", "due_date", "entry")),
    (("warranty",), ("warranty", "notice", "work_time")),
    (("discount",), ("discount", "discount_offer")),
    (("change",), ("change",)),
    (("reference",), ("reference", "invoice_number", "order_number", "customer_number", "receipt_number", "contract")),
    (("invoice_number", "receipt_number", "order_number", "customer_number", "contract"), ("reference", "contract")),
    (("store",), ("title", "sign_city", "venue")),
    (("office", "meeting_place", "hotel"), ("office", "meeting_place", "sign_city", "hotel", "venue", "address")),
    (("subject",), ("subject", "title")),
    (("box_count", "guest_count"), ("box_count", "guest_count", "item_quantity")),
    (("email", "website"), ("email", "website")),
)
MONEY_KEYS = ("total", "subtotal", "tax", "shipping", "discount", "change", "rent", "budget", "salary")
COMMON_WORDS = {
    "of",
    "the",
    "to",
    "a",
    "number",
    "name",
    "date",
    "amount",
    "before",
    "for",
    "new",
    "no",
    "id",
    "day",
    "last",
    "code",
    "price",
    "cost",
}


# facts every page has: in a document they need the page's number
LOCAL_KEYS = frozenset(
    (
        "title kind first_line last_line numbered_line line_start next_word first_item last_item item_count "
        "row_count first_row last_row dearest_item"
    ).split()
)


def document_facts(pages: list[Page]) -> list[tuple[Fact, int | None]]:
    """Facts of a document with the page to name in the question, ``None`` where the question is clear without it."""
    values: dict[tuple, set[str]] = {}
    holders: dict[tuple, int] = {}
    for page in pages:
        for fact in page.facts:
            values.setdefault(fact.identity, set()).add(fact.value)
        for identity in {fact.identity for fact in page.facts}:
            holders[identity] = holders.get(identity, 0) + 1
    pairs = []
    for number, page in enumerate(pages, 1):
        for fact in page.facts:
            shared = len(values[fact.identity]) > 1 or holders[fact.identity] > 1 or fact.key in LOCAL_KEYS
            pairs.append((fact, number if shared and len(pages) > 1 else None))
    return pairs


def _page_facts(r: Rng, pages: list[Page]) -> list[Fact]:
    """Questions about the document as a whole."""
    facts = [Fact("page_count", str(len(pages)))]
    kinds = [page.kind for page in pages]
    names = {
        "form": "form",
        "invoice": "invoice",
        "receipt": "receipt",
        "letter": "letter",
        "table": "table",
        "sign": "sign",
    }
    for number, kind in enumerate(kinds, 1):
        if kinds.count(kind) == 1 and kind in names:
            facts.append(Fact("page_of", f"Page {number}", subject=names[kind]))
    return facts


def _questions(r: Rng, pages: list[Page], n: int, held: bool) -> list[tuple[str, str, int]]:
    """About ``n`` questions on the pages: mostly answerable, about one in eight not."""
    pairs = document_facts(pages)
    # tables have many facts: weigh kinds of facts rather than facts
    by_key: dict[str, list[tuple[Fact, int | None]]] = {}
    for fact, page in pairs:
        by_key.setdefault(fact.key, []).append((fact, page))
    weights = {key: min(len(group), 7) for key, group in by_key.items()}
    for key in ("next_word", "kind", "title", "first_line", "last_line", "line_start", "numbered_line"):
        if key in weights:
            weights[key] *= 0.45
    chosen = []
    keys = list(by_key)
    if keys:
        for key in r.choices(keys, [weights[k] for k in keys], k=2 * n):
            if by_key[key] and len(chosen) < n:
                chosen.append(by_key[key].pop(r.randint(0, len(by_key[key]) - 1)))
    if len(pages) > 1 and r.chance(0.7):
        chosen.append((r.pick(_page_facts(r, pages)), None))
    absent = absent_facts(r, pages, max(1, n // 7))
    chosen += [(fact, r.randint(1, len(pages)) if len(pages) > 1 and r.chance(0.15) else None) for fact in absent]
    r.shuffle(chosen)
    return [(*wordings.ask(r, fact, held, page), ANSWER) for fact, page in chosen]


def _fill_with_questions(r: Rng, sequence: Sequence, questions: list[tuple[str, str, int]]) -> None:
    """Branches of one to three turns until the sequence is full."""
    while questions and sequence.room > 24:
        turns = [questions.pop() for _ in range(min(len(questions), r.choices((1, 2, 3), (6, 3, 2))[0]))]
        if not sequence.branch(*turns_tokens(turns)) and len(turns) > 1:
            sequence.branch(*turns_tokens(turns[:1]))


def _transcription(r: Rng, page: Page, number: int | None) -> list[tuple[str, str, int]]:
    question = r.pick(wordings.TRANSCRIBE)
    if number is not None:
        question = r.pick((f"Transcribe page {number}.", f"Read page {number}.", f"What does page {number} say?"))
    lines = page.lines
    if number is None and lines and r.chance(0.3):
        at = r.randint(0, len(lines) - 1)
        question = f"Continue from: {' '.join(lines[at].split()[:2])}"
        lines = lines[at:]
    return [(question, "\n".join(lines), TRANSCRIPT)]


def document(r: Rng, spec: Spec, held: bool) -> list[Page]:
    """The pages of one sequence."""
    kinds: list[str | None] = [None] * spec.pages
    if spec.pages > 1 and r.chance(0.6):  # different kinds, so that questions need no page number
        kinds = r.sample(
            ["invoice", "receipt", "form", "letter", "table", "text", "program", "sheet"], min(spec.pages, 8)
        )
        kinds += [r.pick(("text", "form", "table", "letter")) for _ in range(spec.pages - len(kinds))]
        r.shuffle(kinds)
    return [make_page(r.getrandbits(48), spec.height, spec.width, held, kind) for kind in kinds]


def _pages_prefix(r: Rng, sequence: Sequence, spec: Spec) -> None:
    newline_user = encode(["user\n"])[0]
    sequence.prefix_text([BOS, *newline_user])
    labelled = spec.pages > 1 and r.chance(0.7)
    for number in range(1, spec.pages + 1):
        if labelled:
            sequence.prefix_text(encode([f"Page {number}\n"])[0])
        sequence.prefix_image(spec.height, spec.width)


def _clip(r: Rng, text: str, frames: int, held: bool) -> np.ndarray | None:
    """Log-mel ``[frames, 128]`` of a text spoken by a random voice, or ``None`` if it is too long."""
    from training.speech import degrade, log_mel, place, speak, trim

    wave = trim(speak(r, text, held))
    if r.chance(0.75):
        wave = degrade(r, wave)
    if len(wave) > frames * 160:
        return None
    return log_mel(place(r, wave, frames * 160)).astype(np.float16)


def spoken_classes(texts: list[str]) -> np.ndarray:
    """What is said as classes 1-26 (letters), 27 (space), 28 (apostrophe), 0 after the end: uint8 ``[M, L]``."""
    table = {letter: i for i, letter in enumerate("abcdefghijklmnopqrstuvwxyz '", 1)}
    rows = [[table[c] for c in " ".join(text.lower().replace("-", " ").split()) if c in table] for text in texts]
    out = np.zeros((len(rows), max(map(len, rows))), np.uint8)
    for i, row in enumerate(rows):
        out[i, : len(row)] = row
    return out


def make_step(seed: int, spec: Spec, held: bool = False) -> dict[str, np.ndarray]:
    """One step's arrays.

    Args:
        seed: any integer; the same seed gives the same arrays.
        spec: the shapes.
        held: fonts, voices and wordings kept out of training.

    Returns:
        ``ids`` int16 [B, S], ``pos`` int16 [3, B, S], ``seg`` and ``weight`` uint8 [B, S]; with pages also ``pages``
        uint8 [N, H, W], ``shade`` uint8 [N, 6], ``chars`` uint8 [N, H // 14, W // 7]; with recordings ``mel`` float16
        [M, F, 128] and ``spoken`` uint8 [M, L], the classes of :func:`spoken_classes`.
    """
    from training.utterances import spoken_question, utter

    r = Rng(seed)
    sequences, pages_all, mels, spoken_texts = [], [], [], []
    for _ in range(spec.sequences):
        sequence = Sequence(spec.seq_len)
        if spec.pages:
            pages = document(r, spec, held)
            pages_all += pages
            _pages_prefix(r, sequence, spec)
            clips = 0
            while clips < spec.clips:
                fact, _ = r.pick(document_facts(pages) or [(Fact("kind", pages[0].kind), None)])
                if r.chance(0.12):
                    fact = (absent_facts(r, pages, 1) or [fact])[0]
                if len(fact.subject) > 24 or len(fact.label) > 24 or fact.key in ("line_start", "numbered_line"):
                    continue
                question = wordings.phrase_question(r, fact, held)
                said = spoken_question(r, question)
                mel = _clip(r, said, spec.frames, held)
                if mel is None:
                    continue
                ids, weight = turns_tokens([("", fact.value, ANSWER)])
                audio = _audio(spec.frames)
                if sequence.branch(audio + ids, [0] * len(audio) + weight):
                    mels.append(mel)
                    spoken_texts.append(said)
                    clips += 1
                else:
                    raise ValueError(
                        f"seq_len {spec.seq_len} of {spec.name} is too short for {spec.clips} spoken questions"
                    )
            if r.chance(0.8) and not spec.clips:
                at = r.randint(0, len(pages) - 1)
                sequence.branch(*turns_tokens(_transcription(r, pages[at], at + 1 if len(pages) > 1 else None)))
            _fill_with_questions(r, sequence, _questions(r, pages, 6 if spec.clips else 9 + 5 * spec.pages, held))
        else:
            mel = None
            while mel is None:
                spoken = utter(r, held, "memo" if spec.frames > 600 and r.chance(0.7) else None)
                if len(spoken.text) < CHARACTERS_A_FRAME * spec.frames:
                    mel = _clip(r, spoken.text, spec.frames, held)
            mels.append(mel)
            spoken_texts.append(spoken.transcript)
            sequence.prefix_text([BOS, *encode(["user\n"])[0]])
            sequence.prefix_audio(spec.frames)
            questions = [(question, answer, ANSWER) for _, question, answer in (*spoken.qa, *spoken.unanswerable[:1])]
            if r.chance(0.5):
                questions.append((r.pick(TRANSCRIBE_AUDIO), spoken.transcript, ANSWER))
            r.shuffle(questions)
            _fill_with_questions(r, sequence, questions)
        if r.chance(0.04):
            opening = [BOS, *encode(["user\n"])[0]]
            text = r.pick(
                (
                    "Hi",
                    "Hello",
                    "What can you do?",
                    v.sentence(r),
                    "Who are you?",
                    "Help",
                    wordings.phrase_question(r, Fact("total", "")),
                )
            )
            ids, weight = turns_tokens([(text, NOTHING_ADDED, ANSWER)])
            sequence.branch(opening + ids, [0] * len(opening) + weight, standalone=True)
        sequences.append(sequence)
    step = {
        "ids": np.stack([s.ids for s in sequences]),
        "pos": np.stack([s.pos for s in sequences], 1),
        "seg": np.stack([s.seg for s in sequences]),
        "weight": np.stack([s.weight for s in sequences]),
    }
    if pages_all:
        step["pages"] = np.stack([page.ink for page in pages_all])
        step["shade"] = np.stack([page.shade for page in pages_all])
        step["chars"] = np.stack([page.chars for page in pages_all])
    if mels:
        step["mel"] = np.stack(mels)
        step["spoken"] = spoken_classes(spoken_texts)
    return step
