"""What mkdocs does beside its plugins: Sphinx roles in docstrings become plain code."""

from __future__ import annotations

import re
from typing import Any

_ROLE = re.compile(r":(?:class|func|meth|mod|attr|data|exc):(<code>)~?")


def on_page_content(html: str, **_: Any) -> str:
    """``:class:`KVPolicy``` as Markdown leaves it, without the role."""
    return _ROLE.sub(r"\1", html)
