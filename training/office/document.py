"""The content of a page: blocks in reading order, and questions that rest on parts of them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise

from training.pages.values import Rng

SUMMARISE = (
    "Summarise this.", "Summarise the document.", "Summarize this page.", "What is this about?", "Give me a summary.", "What is the page about?", "Tell me in one sentence what this is.",
    "Sum this up in a sentence.", "What is going on here?", "What is it all about?", "Short summary please.", "Describe this document in one sentence.", "What is this document about?",
)  # fmt: skip
KIND_ASKED = (
    "What kind of document is this?", "What is this?", "What type of document is it?", "What do I see here?", "What am I looking at?", "Which sort of document is it?", "What document is this?",
    "document type", "What is it?", "Tell me what this is.", "What have I got here?", "Name the kind of document.",
)  # fmt: skip
_HEAD = re.compile(
    r",| (?:about|after|against|and|at|before|between|by|for|from|in|inside|of|on|through|to|told|under|with) "
)
# what stands without an article: several things but for a summons, and what cannot be counted
_MANY = re.compile(
    r"(?<!summon)(?<![sui])s$|\b(?:news|advice|property|(?<!e-)mail|information|feedback|writing|music|homework|school work|data)$"
)
_VOWEL = re.compile(r"[AEIOaeio]|[Uu](?!n[it]|s[aeu]|ti)|hour|honour|[FHLMNRSX][A-Z]")
Part = int  # of a block: a line, a field, a row; what questions rest on


def a_kind(name: str) -> str:
    """The name of a kind of document as an answer: "an invoice", "minutes"."""
    if _MANY.search(_HEAD.split(name, maxsplit=1)[0]):
        return name
    return f"{'an' if _VOWEL.match(name) else 'a'} {name}"


def noun_of(kind: str) -> str:
    """The noun of a kind of document: "letter" of "letter of a bank", "slip" of "a repair slip"."""
    return _HEAD.split(kind, maxsplit=1)[0].split()[-1]


@dataclass
class Block:
    """One block. ``kind`` names the method of an engine that sets it; ``parts`` are set one by one or not at all."""

    kind: str
    parts: list[Part]
    texts: list[str] = field(default_factory=list)
    options: dict = field(default_factory=dict)
    inner: list[Document] = field(default_factory=list)


@dataclass(frozen=True)
class Ask:
    """A question in several wordings; ``answer`` is None where the page does not say."""

    questions: tuple[str, ...]
    answer: str | None
    needs: tuple[Part, ...] = ()


@dataclass
class Document:
    """A page being written.

    Attributes:
        r: the source of randomness.
        shape: (height, width) of the page in pixels, for kinds that fit their length to it.
        held: whether it is for evaluation, so that texts kept out of training are set.
    """

    r: Rng
    shape: tuple[int, int]
    held: bool = False
    blocks: list[Block] = field(default_factory=list)
    asks: list[Ask] = field(default_factory=list)
    told: set[int] = field(default_factory=set)  # sentences of `training.office.sentences` that it has
    _parts: list[int] = field(default_factory=lambda: [0])

    @property
    def length(self) -> int:
        """Characters of the document, those of columns and boxes among them."""
        own = sum(map(len, (text for block in self.blocks for text in block.texts)))
        cells = [
            c for b in self.blocks for row in (*b.options.get("entries", ()), *b.options.get("rows", ())) for c in row
        ]
        return own + sum(map(len, cells)) + sum(inner.length for block in self.blocks for inner in block.inner)

    def large_size(self) -> int | None:
        """A size of type that fills the page better, for two thirds of the documents of few words, or None."""
        height, width = self.shape
        largest = int(min((0.4 * height * width / max(self.length, 1)) ** 0.5, width / 16, 34))
        return self.r.randint(15, largest) if largest > 18 and self.r.chance(0.65) else None

    def _add(self, kind: str, count: int, texts: Sequence[str] = (), **options) -> list[Part]:
        parts = list(range(self._parts[0], self._parts[0] + count))
        self._parts[0] += count
        self.blocks.append(Block(kind, parts, list(texts), options))
        return parts

    def mark(self) -> Part:
        """A new part, of a block that is added later."""
        self._parts[0] += 1
        return self._parts[0] - 1

    def heading(self, text: str, level: int = 1, align: str | None = None) -> Part:
        """A title (level 1) or the heading of a section (level 2)."""
        return self._add("heading", 1, [text], level=level, align=align)[0]

    def lines(self, *texts: str, align: str = "l", small: bool = False, bold: bool = False) -> list[Part]:
        """Short lines, one part each."""
        return self._add("lines", len(texts), texts, align=align, small=small, bold=bold)

    def line(self, text: str, align: str = "l", small: bool = False, bold: bool = False) -> Part:
        return self.lines(text, align=align, small=small, bold=bold)[0]

    def paragraph(self, text: str) -> Part:
        """Wrapped text, set whole or not at all."""
        return self._add("paragraph", 1, [text])[0]

    def written(self, text: str) -> Part:
        """A paragraph by hand."""
        return self._add("written", 1, [text])[0]

    def items(self, texts: Sequence[str], marker: str = "-") -> list[Part]:
        """A list; ``marker`` is a bullet, or "1", "a" or "A" to count."""
        return self._add("items", len(texts), texts, marker=marker)

    def fields(self, entries: Sequence[tuple[str, str]], style: str | None = None, hand: bool = False) -> list[Part]:
        """Labelled values; ``hand``: the values are written by hand."""
        return self._add("fields", len(entries), entries=list(entries), style=style, hand=hand)

    def table(
        self, header: Sequence[str], rows: Sequence[Sequence[str]], numbers: int = 0, groups: Sequence[str] = (),
        weights: Sequence[float] | None = None, spans: Sequence[int] = (), merged: bool = False,
    ) -> list[Part]:  # fmt: skip
        """A table, one part a row.

        Args:
            header: column names, empty for none. rows: cells. numbers: how many last columns stand at the right.
            groups: a heading over the last columns, which it spans in equal shares, as merged cells do.
            weights: widths of the columns.
            spans: how many of the last columns each of ``groups`` spans, if their shares differ.
            merged: a cell of the first column holds for the rows below it as well whose own is empty.
        """
        if groups and not spans:
            spans = [(len(header) - 1) // len(groups)] * len(groups)
        return self._add(
            "table", len(rows), header=list(header), rows=[list(row) for row in rows], numbers=numbers,
            groups=list(groups), weights=weights, spans=list(spans),
            starts=[n for n, row in enumerate(rows) if row[0]] if merged else [],
        )  # fmt: skip

    def chart(self, form: str, labels: Sequence[str], values: Sequence[float], **options) -> Part:
        """A chart: ``printed`` are the values as shown, or None; ``told``, by series, those that its questions rest on.

        The other options are those of :func:`training.office.charts.draw_chart` and
        :func:`training.office.plots.draw_plot`.
        """
        return self._add("chart", 1, labels, form=form, values=list(values), **options)[0]

    def strip(self, *texts: str, dark: bool = False) -> Part:
        """Texts in one row of a bar, as menus and tabs have them."""
        return self._add("strip", 1, texts, dark=dark)[0]

    def hand_form(self, rows: Sequence[Sequence[dict]]) -> list[Part]:
        """Rows of printed entries filled in by hand, of `training.office.hand_forms`; one part an entry."""
        return self._add("hand_form", sum(map(len, rows)), rows=[list(row) for row in rows], entries=())

    def rule(self) -> None:
        self._add("rule", 0)

    def gap(self) -> None:
        self._add("gap", 0)

    def columns(self, count: int) -> list[Document]:
        """Side-by-side columns to be filled; their parts count with this document's."""
        inner = [
            Document(self.r, self.shape, self.held, asks=self.asks, told=self.told, _parts=self._parts)
            for _ in range(count)
        ]
        self._add("columns", 0)
        self.blocks[-1].inner = inner
        return inner

    def framed(self) -> Document:
        """A box to be filled."""
        inner = Document(self.r, self.shape, self.held, asks=self.asks, told=self.told, _parts=self._parts)
        self._add("framed", 0)
        self.blocks[-1].inner = [inner]
        return inner

    def ask(self, questions: Sequence[str], answer: str, *needs: Part | Iterable[Part]) -> None:
        """A question that holds if all of ``needs`` are drawn."""
        flat = tuple(p for need in needs for p in ([need] if isinstance(need, int) else need))
        self.asks.append(Ask(tuple(dict.fromkeys(questions)), answer, flat))

    def about(self, text: str, *needs: Part | Iterable[Part]) -> None:
        """What the page is about, in one sentence; it is what a request for a summary is answered with."""
        self.ask(SUMMARISE, text, *needs)

    def absent(self, *questions: str) -> None:
        """A question whose answer this page leaves out."""
        self.asks.append(Ask(questions, None))


def spanned(spans: Sequence[int], columns: int) -> list[range]:
    """The columns under each heading of a row that spans the last of ``columns``."""
    ends = list(accumulate(spans, initial=columns - sum(spans)))
    return [range(first, last) for first, last in pairwise(ends)]
