"""Text of a model as Markdown that shows text alone: emphasis, lists, tables, code; no HTML, links or pictures.

A page can hold instructions which a model repeats; what it writes must neither fetch a picture from another host, which
tells that host who reads, nor draw over the page. Everything that begins a tag, a link or a picture becomes a character
reference, and a plain address gets a backslash, without which it would be a link. Code is left as it is, because
references show as written there: blocks, whose bounds are written anew so that no reader of Markdown sees them end
elsewhere, and spans in a line, where no other markup of their paragraph can end within one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import chain

_FENCE = re.compile(r"^(?P<indent>[ \t]*)(?P<fence>`{3,}|~{3,})(?P<info>[^`\n]*)$")
_LANGUAGE = re.compile(r"[A-Za-z0-9+#.-]{1,20}")
_DRAWN = frozenset({"mermaid"})  # Gradio draws blocks of these languages instead of showing their text
_REFERRED = re.compile(
    r"[`<\[@]|:(?=//)|(?i:(?<=www)\.)|^[ \t](?=[ \t]*\S)|^[-+](?=[\s-]|$)|^=(?==*[ \t]*$)", re.MULTILINE
)
_NUMBER = re.compile(r"^(\d{1,9})([.)])(?=\s|$)", re.MULTILINE)  # of a list
_MARKS = frozenset("`<[@:. \t-+=)")  # of which literal_markdown makes references
_SPAN = re.compile(r"(?<![`\\~])(`{1,2})(?!`)([^`\n]+)\1(?!`)")  # code in a line; after "~" not all readers see it


_ENDS = re.compile(r"[*~|\\]|(?<!\w)_|_(?!\w)")  # in a span: emphasis or a table's cell may end there and part it
_ADDRESS = re.compile(r"(?i)(?<=[sp])(?=://)|(?<=www)(?=\.)|(?<=[a-z0-9._+-])(?=@[a-z0-9_-])")  # a backslash undoes it
_INDENTED = re.compile(r"(?: {4}| {0,3}\t)(?=.*\S)")  # a line of code, where it continues no list
_ITEM = re.compile(r" {0,3}(?:[-*+]|\d{1,9}[.)]|>)(?:\s|$)")


def safe_markdown(text: str) -> str:
    """``text`` so that a chat shows its emphasis, lists, tables and code, and all else as characters."""
    parts: list[str] = []
    plain: list[str] = []
    lines, in_list = iter(text.splitlines()), False
    while (line := next(lines, None)) is not None:
        is_first = not (plain and plain[-1].strip())  # of its paragraph
        if opening := _FENCE.match(line):
            block, in_list = _code_block(opening, lines), False
        elif is_first and not in_list and _INDENTED.match(line):
            block, after = _indented_block(line, lines)
            lines = chain(after, lines)
        else:
            in_list = bool(_ITEM.match(line)) or (in_list and not (is_first and line[:1].strip()))
            plain.append(line)
            continue
        parts += [_escaped("\n".join(plain)), block]
        plain = []
    parts.append(_escaped("\n".join(plain)))
    joined = "\n\n".join(part.strip("\n") for part in parts if part.strip())
    return joined + "\n" if text.endswith("\n") and joined else joined


def _code_block(opening: re.Match[str], lines: Iterator[str]) -> str:
    """The block that ``opening`` begins, up to its end or that of the text, at the start of the line."""
    fence, indent, content = opening["fence"], len(opening["indent"]), []
    for line in lines:
        stripped = line.strip()
        if len(stripped) >= len(fence) and set(stripped) == {fence[0]}:
            break
        content.append(line[min(indent, len(line) - len(line.lstrip())) :])
    language = opening["info"].strip()
    if not _LANGUAGE.fullmatch(language) or language.lower() in _DRAWN:
        language = ""
    return _fenced(content, language)


def _indented_block(first: str, lines: Iterator[str]) -> tuple[str, list[str]]:
    """An indented block of code from its first line, and the line that was read after the block."""
    content, after = [first], []
    for line in lines:
        if line.strip() and (_FENCE.match(line) or not _INDENTED.match(line)):
            after = [line]
            break
        content.append(line)
    return _fenced("\n".join(line.expandtabs(4)[4:] for line in content).rstrip("\n").split("\n")), after


def _fenced(content: Sequence[str], language: str = "") -> str:
    longest = max((len(run) for run in re.findall(r"`+", "\n".join(content))), default=0)
    ticks = "`" * max(3, longest + 1)
    return "\n".join((ticks + language, *content, ticks))


def _escaped(text: str) -> str:
    """Text outside blocks of code."""
    text = re.sub(r"`{3,}|~{3,}", lambda run: "".join(f"&#{ord(one)};" for one in run[0]), text)
    return "".join(map(_escaped_paragraph, re.split(r"(\n[^\S\n]*\n)", text)))


def _escaped_paragraph(text: str) -> str:
    """One paragraph, list or table. Its spans are its only backticks then, so that every reader sees the same ones.

    They stay whole if nothing in them ends what began outside, so that they may hold anything. In a span of any other
    paragraph a tag would not be safe, and a reference would show as it is written: it becomes plain text.
    """
    spans, parts, at = list(_SPAN.finditer(text)), [], 0
    are_whole = all(span[1] == "`" and not _ENDS.search(span[2]) for span in spans)
    for span in spans:
        if are_whole or not (re.search(r"[<\[]", span[2]) or _ADDRESS.search(span[2])):
            parts += [_plain(text[at : span.start()]), span[0]]
            at = span.end()
    return "".join((*parts, _plain(text[at:])))


def _plain(text: str) -> str:
    return _ADDRESS.sub(r"\\", _references(text))


def _references(text: str) -> str:
    """``text`` with its markup as character references; backslashes before markup are dropped."""
    return re.sub(r"(\\\\)|\\?([`<\[])", lambda one: one[1] or f"&#{ord(one[2])};", text)


__all__ = ["safe_markdown"]
