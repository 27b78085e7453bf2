"""What a model writes shows as text: markdown-it, which reads HTML, links and pictures, finds none."""

from __future__ import annotations

import html
import random
import re

import pytest
from markdown_it import MarkdownIt

from kvmm.markdown_text import literal_markdown, literal_text
from kvmm.ui.chat.talk_file import _safe
from kvmm.ui.parts.bubbles import bubble, note, user_messages
from kvmm.ui.parts.compare import MARK
from kvmm.ui.parts.markdown import safe_markdown
from kvmm.ui.tabs.ask import edited_text

READER = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
HOSTILE = ("html_block", "html_inline", "image", "link_open")
ATTACKS = [
    "<img src=http://host/x.png>",
    "a <style>body{display:none}</style> b",
    '<div style="position:fixed;inset:0">x</div>',
    "![x](http://host/x.png)",
    "![x][a]\n\n[a]: http://host/x.png",
    "[click](javascript:alert(1))",
    "[click](http://host)",
    "<http://host>",
    "<svg onload=alert(1)>",
    "<!-- x -->",
    r"\\<img src=x>",
    r"\<img src=x>",
    "`a` <img src=x> `b`",
    "`|<img src=x>|`\n",
    "| a |\n|---|\n| `|<img src=x>|` |",
    "https://host/`<img src=x>`",
    '[foo]: x "\n```\n"\n<img src=x>\n```\n',
    "[foo]:\n```\n<img src=x>\n```",
    "~~~\n```\n~~~\n<img src=x>\n```\n",
    "1. a\n   ```\n   x\n<img src=x>\n",
    "> ```\n<img src=x>\n> ```",
    "- ```\n<img src=x>\n",
    "```\n<img src=x>",
    "````\n```\n<img src=x>\n````\n<img src=y>",
    "```a`b\n<img src=x>\n```",
    "    ```\n<img src=x>\n    ```",
    "<pre>\n```\n</pre><img src=x>\n```",
    "```mermaid\ngraph TD\n```",
    "```\x0c```\n<img src=x>\u2028```\u2028<img src=x>",
    "~~a `<img src=x>~~ b`",
    "*a ``<img src=x>* c``",
    "~`<img src=x>` http://host",
    "| a |\n|---|\n| `a|b` c `<img src=x>` |",
    "`a\\` <img src=x> `b`",
    "    a\n\n<img src=x>\n\n    b",
    "- a\n\n    <img src=x>",
    "see http://host, HTTPS://host/a?b, ftp://host and xhttp://host",
    "www.host.com, WWW.host, www.www.host",
    "write to a.b+c@host.com, x@y.z",
    r"http\://host \http://host a\@host.com \\www.host",
    "~~a `x~~ b` www.host `c`",
]
# what GitHub's Markdown, and with it the chat, makes a link of outside code
ADDRESS = re.compile(r"(?i)(?:https?|ftp)://|www\.|[a-z0-9._+-]@[a-z0-9_-]")
CODE = re.compile(r"(?<!`)(`+)(?!`).+?(?<!`)\1(?!`)", re.DOTALL)


def addresses(text: str) -> list[str]:
    """Plain addresses in the source of all that is no code."""
    sources = (CODE.sub("", token.content) for token in READER.parse(text) if token.type == "inline")
    return [found for source in sources for found in ADDRESS.findall(source)]


def kinds(text: str) -> set[str]:
    found = set()
    for token in READER.parse(text):
        found |= {token.type, *(child.type for child in token.children or ())}
    return found


@pytest.mark.parametrize("text", ATTACKS)
def test_nothing_but_text_comes_of_an_attack(text):
    assert not kinds(safe_markdown(text)) & set(HOSTILE)
    assert not addresses(safe_markdown(text))
    assert safe_markdown(safe_markdown(text)) == safe_markdown(text)


def test_nothing_but_text_comes_of_random_markup():
    pieces = [
        "```",
        "~~~",
        "````",
        "`",
        "``",
        "<img src=x>",
        "<b>",
        "[a]",
        "](x)",
        "![",
        "[a]: x ",
        '"',
        "\n",
        "\n",
        "\n\n",
    ]
    pieces += [
        "> ",
        "- ",
        "1. ",
        "   ",
        "    ",
        "\t",
        "|",
        "---",
        "\\",
        "x",
        "https://host/",
        "<",
        "&lt;",
        "\r",
        "\x0b",
        "#",
        "*",
        "~~",
        "_",
        "www.host",
        "a@b.c",
    ]
    generator, hostile = random.Random(0), 0
    for _ in range(1500):
        text = "".join(generator.choice(pieces) for _ in range(generator.randrange(3, 25)))
        hostile += bool(kinds(text) & set(HOSTILE))
        safe = safe_markdown(text)
        assert not kinds(safe) & set(HOSTILE) and not addresses(safe), (text, safe)
        assert safe_markdown(safe) == safe
    assert hostile > 100  # what was tried does something where it is not made safe


def test_markdown_stays():
    text = "# Total\n\n**$1,274.94** and *tax*, `x = 1`:\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n- one\n- two\n"
    assert safe_markdown(text).strip() == text.strip()
    assert {"heading_open", "strong_open", "em_open", "code_inline", "table_open", "list_item_open"} <= kinds(text)
    code = "Look:\n\n```python\nif a < b[0]:\n    print('<b>')\n```\n\nDone."
    assert safe_markdown(code) == code
    rendered = READER.render(safe_markdown("a < b, List<int>, x[0], `a<b_c[0]`, ```` ``` ````"))
    assert "a &lt; b, List&lt;int&gt;, x[0], <code>a&lt;b_c[0]</code>" in rendered
    assert (
        safe_markdown("1. run\n   ```sh\n   ls\n     -l\n   ```\n2. done")
        == "1. run\n\n```sh\nls\n  -l\n```\n\n2. done"
    )
    assert safe_markdown("") == "" and safe_markdown("$1,274.94") == "$1,274.94"


def test_addresses_and_code_show_as_they_were_written():
    text = "Pay at https://host/x?a=b, www.host.com or a.b@host.com: `http://host a@b.c www.x`. 1:2 @ x://y \\\\ `a|b`"
    shown = READER.renderInline(safe_markdown(text))
    assert shown.replace("<code>", "`").replace("</code>", "`") == text.replace("\\\\", "\\")
    for code in ("a[0] < b['c']\n\nd = '<b>'", "x\n    y"):
        block = "".join(f"    {line}\n" if line else "\n" for line in code.split("\n"))
        for before in ("", "Look:\n\n"):
            safe = safe_markdown(f"{before}{block}\nDone <b>.")
            (found,) = (token for token in READER.parse(safe) if token.type == "fence")
            assert found.content == f"{code}\n" and "Done &lt;b&gt;." in READER.render(safe)
    for kept in ("- a\n\n    *more*", "1. a\n\n    b\n\n    c", "a\n    b", "> a\n\n- b\n\n    c"):
        assert safe_markdown(kept) == kept
    assert READER.renderInline(safe_markdown(r"\<b> \[a]")) == "&lt;b&gt; [a]"


@pytest.mark.parametrize(
    "text",
    [
        "~`<b>`",
        "~~a `<b>~~ b`",
        "*a ``<b>* c``",
        "_a `<b>_ b`",
        "| a |\n|---|\n| `a|b` c `<b>` |",
        "`a\\` `<b>`",
    ],
)
def test_a_span_that_another_reader_may_part_holds_no_tag(text):  # "marked", which the chat uses, differs in these
    assert "<" not in safe_markdown(text)


LITERAL = [
    *ATTACKS,
    "[1] <b>*x*</b> | `a` & ~b~ $c$ #d_e http://host www.host a@b.c",
    "[a](b) <i> *c* &#60; &amp; \\& \\\\ \\&#60;",
    "- a\n+ b\n* c\n\n1. d\n2) e\n\n---\n- - -\n",
    "heading\n===\n\nother\n---\n\n# third\n> quoted",
    "    code\n\n\tcode\n  - item\n   1. item",
    "| a | b |\n|---|---|\n| 1 | 2 |",
    "-5 and 1.5 and (2) = 7 - 3 + 1",
    "~~~\ncode\n~~~\n\n```py\ncode\n```",
]


@pytest.mark.parametrize("text", LITERAL)
def test_literal_text_shows_every_character(text):
    literal = literal_markdown(text)
    assert not addresses(literal)
    assert kinds(literal) <= {"paragraph_open", "paragraph_close", "inline", "text", "text_special", "softbreak"}
    shown = html.unescape(re.sub(r"</?p>", "", READER.render(literal)))
    assert shown.split() == text.split()
    assert literal_text(literal) == text
    assert safe_markdown(literal).split() == literal.split()


@pytest.mark.parametrize("text", LITERAL)
def test_a_question_shows_as_it_was_written(text):
    """Questions come from whoever writes them, and from conversations that others saved: no links, no markup."""
    (message,) = user_messages(text, ())
    assert message["content"][0]["text"] == literal_markdown(text)
    assert edited_text(message["content"]) == text


def test_what_an_author_writes_while_editing_stays():
    for text in (r"\d+\.", "&#169; &#8364;", "5 < 6 [x]"):
        assert literal_text(text) == text


def test_a_saved_answer_of_an_earlier_version_is_made_safe_and_keeps_its_marks():
    marked = f"a {MARK[0]}word{MARK[1]} <img src=x> ![x](http://host)"
    shown = _safe(bubble(marked))["content"][0]["text"]
    assert kinds(shown.replace(MARK[0], "").replace(MARK[1], "")).isdisjoint(HOSTILE)
    assert f"{MARK[0]}word{MARK[1]}" in shown and _safe(bubble(shown)) == bubble(shown)
    table = note("KV 1 -> 2", "| a |\n| --- |\n| 2 |")  # the app's own
    assert _safe(table) == table
