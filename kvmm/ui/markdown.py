"""Text of a model as Markdown that shows text alone: emphasis, lists, tables, code; no HTML, links or pictures.

A page can hold instructions which a model repeats; what it writes must neither fetch a picture from another host, which
tells that host who reads, nor draw over the page. Everything that begins a tag, a link or a picture becomes a character
reference. Only blocks of code are left as they are, because references show as written there. Their bounds are written
anew, so that no reader of Markdown sees them end elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_FENCE = re.compile(r"^(?P<indent>[ \t]*)(?P<fence>`{3,}|~{3,})(?P<info>[^`\n]*)$")
_LANGUAGE = re.compile(r"[A-Za-z0-9+#.-]{1,20}")
_DRAWN = frozenset({"mermaid"})  # languages whose blocks Gradio draws instead of showing them
_SPAN = re.compile(r"(?<![`\\])(`{1,2})(?!`)([^`\n]+)\1(?!`)")  # code within a line


def safe_markdown(text: str) -> str:
    """``text`` so that a chat shows its emphasis, lists, tables and code, and all else as characters."""
    parts: list[str] = []
    plain: list[str] = []
    lines = iter(text.splitlines())
    for line in lines:
        opening = _FENCE.match(line)
        if opening is None:
            plain.append(line)
            continue
        parts += [_escaped("\n".join(plain)), _code_block(opening, lines)]
        plain = []
    parts.append(_escaped("\n".join(plain)))
    joined = "\n\n".join(part.strip("\n") for part in parts if part.strip())
    return joined + "\n" if text.endswith("\n") and joined else joined


def literal_markdown(text: str) -> str:
    """``text`` so that a chat shows every character of it as it is: names and messages are data, not markup."""
    return re.sub(r"[\\`*_{}\[\]<>#|~$&]", lambda one: f"&#{ord(one[0])};", text)


def _code_block(opening: re.Match[str], lines: Iterator[str]) -> str:
    """The block that ``opening`` begins, up to its end or that of the text, at the start of the line."""
    fence, indent, content = opening["fence"], len(opening["indent"]), []
    for line in lines:
        stripped = line.strip()
        if len(stripped) >= len(fence) and set(stripped) == {fence[0]}:
            break
        content.append(line[min(indent, len(line) - len(line.lstrip())) :])
    longest = max((len(run) for run in re.findall(r"`+", "\n".join(content))), default=0)
    ticks = "`" * max(3, longest + 1)
    language = opening["info"].strip()
    if not _LANGUAGE.fullmatch(language) or language.lower() in _DRAWN:
        language = ""
    return "\n".join((ticks + language, *content, ticks))


def _escaped(text: str) -> str:
    """Text outside blocks of code."""
    text = re.sub(r"`{3,}|~{3,}", lambda run: _references(run[0]), text)
    # in a span of code a reference would show as it is written, so one that needs any becomes plain text
    text = _SPAN.sub(lambda span: _references(span[0]) if re.search(r"[<\[]", span[2]) else span[0], text)
    return re.sub(r"[<\[]", lambda one: _references(one[0]), text)


def _references(text: str) -> str:
    return re.sub(r"[`~<\[]", lambda one: f"&#{ord(one[0])};", text)


__all__ = ["literal_markdown", "safe_markdown"]
