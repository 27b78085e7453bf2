"""The one exception type a user of kvmm is meant to see."""

import difflib
from collections.abc import Collection

_LONGEST = 400


def one_line(error: BaseException | str) -> str:
    """A message as one line of at most 400 characters: what it quotes may come from a file that anybody wrote."""
    words = " ".join(str(error).split())
    return words if len(words) <= _LONGEST else f"{words[:_LONGEST]} ..."


class KVMMError(ValueError):
    """Something the user can put right.

    The message is one line that says what is wrong and what to do. The command line prints it and exits with code 2,
    the browser app shows it and keeps the conversation; library code may catch it as a ``ValueError``.
    """


def unknown_name(kind: str, name: str, names: Collection[str], more: str = "") -> KVMMError:
    """The error of a name that is not one of ``names``: with those that are like it, or with all of them.

    Args:
        kind: what is named, such as "policy".
        more: what else could have been given, behind the list of all.
    """
    if near := difflib.get_close_matches(name[:_LONGEST], names):
        return KVMMError(f"Unknown {kind} {name!r}; did you mean {' or '.join(near)}?")
    return KVMMError(f"Unknown {kind} {name!r}; choose one of: {', '.join(names)}{more}.")
