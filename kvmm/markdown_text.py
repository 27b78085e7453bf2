"""Text that Markdown shows as it is: names, answers and messages are data, not markup."""

from __future__ import annotations

import re

_LITERAL = re.compile(r"[\\*_{}\]>#|~$&]")
# tags, links, code, addresses; at the start of a line: code, lists, headings that are underlined
_REFERRED = re.compile(
    r"[`<\[@]|:(?=//)|(?i:(?<=www)\.)|^[ \t](?=[ \t]*\S)|^[-+](?=[\s-]|$)|^=(?==*[ \t]*$)", re.MULTILINE
)
_NUMBER = re.compile(r"^(\d{1,9})([.)])(?=\s|$)", re.MULTILINE)  # of a list
_MARKS = frozenset("`<[@:. \t-+=)")  # of which literal_markdown makes references
# literal, without meaning inside of a line: numbers in brackets that begin no link, and "_" within a word
_INTERVAL = re.compile(r"&#91;([-+0-9., ]+)\\\](?![(:]|&#91;|&#58;)")
_IN_WORD = re.compile(r"(?<=[0-9A-Za-z])\\_(?=[0-9A-Za-z])")


def literal_markdown(text: str) -> str:
    """``text`` so that a chat shows every character of it as it is: names and messages are data, not markup.

    What is rare in plain text, or would be taken for an answer's markup, becomes a reference; the rest gets a
    backslash, which its author reads more easily when editing it. :func:`literal_text` takes both back.
    """
    text = _NUMBER.sub(lambda one: f"{one[1]}&#{ord(one[2])};", _LITERAL.sub(r"\\\g<0>", text))
    return _REFERRED.sub(lambda one: f"&#{ord(one[0])};", text)


def literal_text(markdown: str) -> str:
    """The text that :func:`literal_markdown` was given."""

    def mark(one: re.Match[str]) -> str:
        character = one[1] or chr(int(one[2]))
        return character if one[1] or character in _MARKS else one[0]

    return re.sub(rf"\\({_LITERAL.pattern})|&#(\d{{1,3}});", mark, markdown)


def literal_line(text: str) -> str:
    """``text`` as one line of literal Markdown, for a table's cell, a heading or a paragraph.

    What means nothing there stays readable in the source: intervals in brackets and names with ``_``.
    """
    literal = literal_markdown(" ".join(text.split()))
    return _IN_WORD.sub("_", _INTERVAL.sub(r"[\1]", literal))


__all__ = ["literal_line", "literal_markdown", "literal_text"]
