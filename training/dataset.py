"""Training steps: pages, recordings and packed conversations as arrays, from seeds.

A sequence is a shared prefix (the pages or the recording) followed by independent *branches*: a transcription, one or
more turns of questions, a spoken question. A block mask lets each branch see the prefix and itself only, so one page
trains about ten conversations. Positions restart in every branch, as they would stand after the prefix alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from training import wordings
from training.pages import Fact, Page, Rng, make_page
from training.pages import values as v
from training.pages.canvas import font_files
from training.questions import ABSENT_SHARE, absent_facts, document_facts, questions_about, transcription
from training.sequences import ANSWER, MEDIA_CELL, Sequence, audio_tokens, turns_tokens
from training.tokenizer import BOS, encode
from training.utterances import FIRST_WORDS, utter
from training.utterances.reading import spoken_question

NOTHING_ADDED = "Please add a page, a picture or a recording."
# other ways of asking for a recording's words
TRANSCRIBE_AUDIO = (
    "What is being said?", "Transcribe this.", "Read it to me.", "Transcribe.", "transcribe",
    "Please transcribe this recording.", "Can you transcribe it?", "Give me a transcript.",
    "I need a transcript of this.", "transcript please", "Make a transcript.", "What does the person say?",
    "What does he or she say?", "What is the person saying, word for word?", "Word for word, please.",
    "Give me the exact words.", "What are the exact words?", "Repeat what was said.", "Repeat it word by word.",
    "Write it down.", "Write it down for me.", "Please write down the whole recording.", "Take this down.",
    "Type what you hear.", "Put it in writing.", "Turn the speech into text.", "Speech to text.",
    "Convert the recording to text.", "What can be heard?", "What did they say?", "What's being said here?",
    "Tell me everything that is said.", "Which words are spoken?", "I can't listen now, what does it say?",
    "Listen to this and tell me what is said.", "What does the voice say?", "What does the message say?",
    "Take dictation.",
)  # fmt: skip
UNASKED = 0.35  # of these: nothing is asked, and a recording without any question is transcribed
MOST_SAID = 160  # characters of an answer that stands before a later page
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


def _fill_with_questions(r: Rng, sequence: Sequence, questions: list[tuple[str, str, int]]) -> None:
    """Branches of one to three turns until the sequence is full."""
    while questions and sequence.room > 24:
        turns = [questions.pop() for _ in range(min(len(questions), r.choices((1, 2, 3), (6, 3, 2))[0]))]
        if not sequence.branch(*turns_tokens(turns)) and len(turns) > 1:
            sequence.branch(*turns_tokens(turns[:1]))


def document(r: Rng, spec: Spec, held: bool, any_pages: Callable | None = None) -> list[Page]:
    """The pages of one sequence; ``any_pages(r, count, height, width, held)`` draws most where it is given."""
    kinds: list[str | None] = [None] * spec.pages
    if spec.pages > 1 and r.chance(0.6):  # different kinds, so that questions need no page number
        kinds = r.sample(
            ["invoice", "receipt", "form", "letter", "table", "text", "program", "sheet"], min(spec.pages, 8)
        )
        kinds += [r.pick(("text", "form", "table", "letter")) for _ in range(spec.pages - len(kinds))]
        r.shuffle(kinds)
    if any_pages is not None and r.chance(0.6):
        return any_pages(r, spec.pages, spec.height, spec.width, held)
    return [make_page(r.getrandbits(48), spec.height, spec.width, held, kind) for kind in kinds]


def _pages_prefix(r: Rng, sequence: Sequence, spec: Spec) -> None:
    newline_user = encode(["user\n"])[0]
    sequence.prefix_text([BOS, *newline_user])
    labelled = spec.pages > 1 and r.chance(0.7)
    for number in range(1, spec.pages + 1):
        if labelled:
            sequence.prefix_text(encode([f"Page {number}\n"])[0])
        sequence.prefix_image(spec.height, spec.width)


def _later_page(r: Rng, sequence: Sequence, spec: Spec, pages: list[Page], held: bool) -> Page:
    """Begins with an answer about one page and, in the next turn, another page; returns that, which is asked about."""
    first, second = pages
    question, answer, _ = (questions_about(r, [first], 1, held) or transcription(r, first, None))[0]
    user, newline = encode(["user\n", "\n"])
    turn, _ = turns_tokens([(question, answer[:MOST_SAID], ANSWER)])
    sequence.prefix_text([BOS, *user])
    sequence.prefix_image(spec.height, spec.width)
    sequence.prefix_text([*turn, *newline, BOS, *user])
    sequence.prefix_image(spec.height, spec.width)
    return second


def _clip(r: Rng, text: str, frames: int, held: bool) -> np.ndarray | None:
    """Log-mel ``[frames, 128]`` of a text spoken by a random voice, or ``None`` if it is too long."""
    from training.speech import SLOWER, degrade, log_mel, place, speak, spoil, trim

    wave = trim(speak(r, text, held, frames / 100))
    if len(wave) > SLOWER * frames * 160:
        return None
    if r.chance(0.75):
        wave = degrade(r, wave)
        if r.chance(0.3):
            wave = spoil(r, wave, held)
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


def _add_spoken_questions(
    r: Rng, sequence: Sequence, spec: Spec, pages: list[Page], held: bool
) -> list[tuple[np.ndarray, str]]:
    """Branches with a spoken question each; returns their log-mels and what is said."""
    clips: list[tuple[np.ndarray, str]] = []
    while len(clips) < spec.clips:
        fact, _ = r.pick(document_facts(pages) or [(Fact("kind", pages[0].kind), None)])
        if r.chance(0.08):
            fact = (absent_facts(r, pages, 1) or [fact])[0]
        if len(fact.subject) > 24 or len(fact.label) > 24 or fact.key in ("line_start", "numbered_line"):
            continue
        question = wordings.phrase_question(r, fact, held)
        said = spoken_question(r, question)
        mel = _clip(r, said, spec.frames, held)
        if mel is None:
            continue
        ids, weight = turns_tokens([("", fact.value, ANSWER)])
        audio = audio_tokens(spec.frames)
        if not sequence.branch(audio + ids, [0] * len(audio) + weight):
            raise ValueError(f"seq_len {spec.seq_len} of {spec.name} is too short for {spec.clips} spoken questions")
        clips.append((mel, said))
    return clips


def _add_recording(
    r: Rng, sequence: Sequence, spec: Spec, held: bool, any_utterance: Callable | None = None
) -> tuple[np.ndarray, str]:
    """A recording as the prefix and questions about it; returns its log-mel and what is said."""
    mel = None
    while mel is None:
        if any_utterance is not None:
            spoken = any_utterance(r, held, spec.frames)
        else:
            spoken = utter(r, held, "memo" if spec.frames > 600 and r.chance(0.7) else None)
        if len(spoken.text) < CHARACTERS_A_FRAME * spec.frames:
            mel = _clip(r, spoken.text, spec.frames, held)
    sequence.prefix_text([BOS, *encode(["user\n"])[0]])
    sequence.prefix_audio(spec.frames)
    missing = spoken.unanswerable[: r.chance(0.5)]  # more of them teach to refuse whenever in doubt
    questions = [(question, answer, ANSWER) for _, question, answer in (*spoken.qa, *missing)]
    own = [qa for qa in spoken.qa if qa.key != FIRST_WORDS]
    for _ in range(2 if len(own) == 1 else r.chance(0.5)):
        questions.append(("" if r.chance(UNASKED) else r.pick(TRANSCRIBE_AUDIO), spoken.transcript, ANSWER))
    r.shuffle(questions)
    _fill_with_questions(r, sequence, questions)
    return mel, spoken.transcript


def _add_greeting(r: Rng, sequence: Sequence) -> None:
    """A conversation of its own, without pages or recordings."""
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


def prepare() -> None:
    """Reads what steps are made of, before processes that make them are started.

    Raises:
        MissingAssets: words or fonts are missing; the message says what to run.
    """
    v.words()
    for held in (False, True):
        font_files(held)


def make_step(
    seed: int,
    spec: Spec,
    held: bool = False,
    any_pages: Callable | None = None,
    any_utterance: Callable | None = None,
    later_share: float = 0.0,
) -> dict[str, np.ndarray]:
    """One step's arrays.

    Args:
        seed: any integer; the same seed gives the same arrays.
        spec: the shapes.
        held: fonts, voices and wordings kept out of training.
        any_pages: see :func:`document`.
        any_utterance: ``any_utterance(r, held, frames)`` says what is recorded, in place of :func:`utter`.
        later_share: of the sequences with two pages, those whose second page comes after an answer about the first.

    Returns:
        ``ids`` int16 [B, S], ``pos`` int16 [3, B, S], ``seg`` and ``weight`` uint8 [B, S]; with pages also ``pages``
        uint8 [N, H, W], ``shade`` uint8 [N, 6], ``chars`` uint8 [N, H // 14, W // 7]; with recordings ``mel`` float16
        [M, F, 128] and ``spoken`` uint8 [M, L], the classes of :func:`spoken_classes`.
    """
    r = Rng(seed)
    sequences, pages_all, clips = [], [], []
    for _ in range(spec.sequences):
        sequence = Sequence(spec.seq_len)
        if spec.pages:
            pages = document(r, spec, held, any_pages)
            pages_all += pages
            absent_share = ABSENT_SHARE
            if later_share and len(pages) == 2 and r.chance(later_share):
                pages, absent_share = [_later_page(r, sequence, spec, pages, held)], 0.0  # the other one may say it
            else:
                _pages_prefix(r, sequence, spec)
            clips += _add_spoken_questions(r, sequence, spec, pages, held)
            if r.chance(0.8) and not spec.clips:
                at = r.randint(0, len(pages) - 1)
                sequence.branch(*turns_tokens(transcription(r, pages[at], at + 1 if len(pages) > 1 else None)))
            count = 6 if spec.clips else 9 + 5 * spec.pages
            _fill_with_questions(r, sequence, questions_about(r, pages, count, held, absent_share))
        else:
            clips.append(_add_recording(r, sequence, spec, held, any_utterance))
        if r.chance(0.04):
            _add_greeting(r, sequence)
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
    if clips:
        step["mel"] = np.stack([mel for mel, _ in clips])
        step["spoken"] = spoken_classes([said for _, said in clips])
    return step
