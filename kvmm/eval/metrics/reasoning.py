"""Final answers of worked solutions: numbers of GSM8K, expressions of MATH, integers of AIME.

GSM8K's numbers are found and compared as lm-evaluation-harness does (``tasks/gsm8k/gsm8k.yaml``: the filters
``strict-match`` and ``flexible-extract``). MATH's expressions are compared as its authors' ``math_equivalence.py`` does
(Hendrycks et al. 2021): by the same text after the notations that mean the same are made one.
"""

from __future__ import annotations

import re

MAX_ANSWER = 10_000  # characters of an expression; longer ones are no answers
_STRICT = re.compile(r"#### (-?[0-9.,]+)")
_NUMBER = re.compile(r"-?[$0-9.,]{2,}|-?[0-9]+")
_WHOLE = re.compile(r"(?:[A-Za-z ]+:? )?\{?(-?\d[\d,]*(?:\.0*)?)\}?(?: [A-Za-z ]+(?:\^\{?[23]\}?)?)?")
_BOX = re.compile(r"\\(?:boxed|fbox)(?![A-Za-z])\s*")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)  # those after a backslash are signs of the expression
_DECIMAL = re.compile(r"(-?\d[\d,]*)(?:\.(\d+))?")


def strict_number(text: str) -> str | None:
    """The first number after "#### ", as the data set writes its answers; None without one."""
    found = _STRICT.search(text)
    return found[1] if found else None


def last_number(text: str) -> str | None:
    """The last number in a text, with its commas and dollars; None without one."""
    found = _NUMBER.findall(text)
    return found[-1] if found else None


def same_number(prediction: str | None, answer: str) -> bool:
    """Whether two numbers are the same text without commas, dollars, a final point, and what stands before "#### "."""
    return prediction is not None and _bare_number(prediction) == _bare_number(answer)


def _bare_number(text: str) -> str:
    text = re.sub(r"(?s).*#### ", "", re.sub(r"[,$]", "", text))
    return re.sub(r"\.$", "", text).lower().strip()


def boxed(text: str) -> str | None:
    r"""What the last ``\boxed`` or ``\fbox`` holds; None without one or where it is cut off.

    Braces in braces are read to their own end. Without braces (``\boxed 5``) the box holds the rest of its formula, as
    lm-evaluation-harness reads it, and outside of a formula one word.
    """
    box = next(reversed(list(_BOX.finditer(text))), None)
    if box is None:
        return None
    if not text.startswith("{", box.end()):
        rest = re.split(r"\$|\\[)\]]|\n", text[box.end() :], maxsplit=1)[0]
        words = [rest] if _in_formula(text[: box.start()]) else rest.split()[:1]
        return next((word.strip().rstrip(".,;") for word in words), "") or None
    depth = 0
    for brace in _BRACE.finditer(text, box.end()):
        depth += (brace[0] == "{") - (brace[0] == "}")
        if depth == 0:
            return text[box.end() + 1 : brace.start()]
    return None


def _in_formula(before: str) -> bool:
    """Whether a formula is open at the end of a text."""
    ends = ((r"\(", r"\)"), (r"\[", r"\]"))
    return before.count("$") % 2 == 1 or any(before.rfind(start) > before.rfind(end) for start, end in ends)


def same_expression(prediction: str | None, answer: str) -> bool:
    """Whether two expressions of LaTeX are the same text once their notation is unified."""
    if prediction is None:
        return False
    try:
        return unified(prediction) == unified(answer)
    except ValueError:
        return prediction == answer


_SAME = (
    ("\n", ""),
    (r"\!", ""),
    (r"\\", "\\"),
    ("tfrac", "frac"),
    ("dfrac", "frac"),
    (r"\left", ""),
    (r"\right", ""),
    (r"^{\circ}", ""),
    (r"^\circ", ""),
    (r"\$", ""),
)


def unified(text: str) -> str:
    r"""An expression in one notation: no spaces, sizes, degrees, units or per cents; ``\frac{a}{b}``, ``\sqrt{a}``.

    Raises:
        ValueError: two units, a fraction or root without its argument, or more than ``MAX_ANSWER`` characters.
    """
    if len(text) > MAX_ANSWER:
        raise ValueError("too long")
    for old, new in _SAME:
        text = text.replace(old, new)
    text, *units = text.split(r"\text{ ")
    if len(units) > 1:
        raise ValueError("two units")
    for old, new in ((r"\%", ""), (" .", " 0."), ("{.", "{0.")):
        text = text.replace(old, new)
    if text.startswith("."):
        text = "0" + text
    name, equals, value = text.partition("=")
    if equals and "=" not in value and len(name) <= 2:
        text = value
    text = _fractions(_roots(text).replace(" ", ""))
    if text == "0.5":
        return r"\frac{1}{2}"
    slash = re.fullmatch(r"(-?\d+)/(-?\d+)", text)
    if slash and all(str(int(part)) == part for part in slash.groups()):
        return rf"\frac{{{slash[1]}}}{{{slash[2]}}}"
    return text


def _roots(text: str) -> str:
    r"""``\sqrt3`` as ``\sqrt{3}``."""
    head, *parts = text.split(r"\sqrt")
    if not all(parts):
        raise ValueError("a root of nothing")
    return head + "".join(rf"\sqrt{part}" if part[0] == "{" else rf"\sqrt{{{part[0]}}}{part[1:]}" for part in parts)


def _fractions(text: str) -> str:
    r"""``\frac12`` and ``\frac1{2}`` as ``\frac{1}{2}``; a fraction of one character leaves all as it is."""
    head, *parts = text.split(r"\frac")
    if not all(parts):
        raise ValueError("a fraction of nothing")
    if any(part[0] != "{" and len(part) < 2 for part in parts):
        return text
    for part in parts:
        if part[0] == "{":
            head += rf"\frac{part}"
        elif part[1] == "{":
            head += rf"\frac{{{part[0]}}}{part[1:]}"
        else:
            head += rf"\frac{{{part[0]}}}{{{part[1]}}}{part[2:]}"
    return head


def last_integer(text: str) -> int | None:
    """The last whole number of a text, 204.0 among them; None without one, or of more than 30 digits."""
    found = [whole for whole, fraction in _DECIMAL.findall(text) if not fraction.strip("0")]
    digits = found[-1].replace(",", "") if found else ""
    return int(digits) if 0 < len(digits) <= 30 else None


def whole_number(text: str) -> int | None:
    r"""The whole number that an expression is, 204.0 among them; None of any other expression.

    What stands before a "=", units and words do not count: ``m + n = 73\text{ cm}``. ``\frac{3}{4}`` is no 4.
    """
    if len(text) > MAX_ANSWER:
        return None
    text = re.sub(r"\\(?:text|math)\w*\s*\{([^{}]*)\}", r" \1 ", text.rpartition("=")[2]).replace("{,}", ",")
    text = re.sub(r"\^\{?\\circ\}?|\^\{?\s*(?:st|nd|rd|th)\b\s*\}?|\\[,;:! %$]|[$~]", " ", text)
    text = " ".join(text.split()).rstrip(".")
    found = _WHOLE.fullmatch(text)
    return last_integer(found[1]) if found else None


__all__ = [
    "boxed",
    "last_integer",
    "last_number",
    "same_expression",
    "same_number",
    "strict_number",
    "unified",
    "whole_number",
]
