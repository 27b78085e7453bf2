"""How a written question is read aloud."""

from __future__ import annotations

import re

from training.pages.values import Rng
from training.utterances.numbers import say_code, say_digits, say_number

# How abbreviations of written questions are said.
_SAID = {
    "no": "number", "qty": "quantity", "tel": "telephone", "id": "i d", "vat": "v a t", "po": "p o", "iban": "i ban", "zip": "zip", "e-mail": "email",
    "dob": "date of birth", "ref": "reference", "acc": "account", "acct": "account", "amt": "amount", "dept": "department", "st": "street", "ave": "avenue",
    "rd": "road", "blvd": "boulevard", "dr": "doctor", "mr": "mister", "mrs": "missis", "ms": "miss", "inc": "incorporated", "ltd": "limited", "co": "company",
    "corp": "corporation", "llc": "l l c", "gmbh": "g m b h", "sku": "s k u", "bic": "b i c", "url": "u r l", "ocr": "o c r", "fax": "fax", "pc": "p c",
}  # fmt: skip
_UNITS = {"$": "dollars", "€": "euros", "£": "pounds"}
_SIGNS = {
    "&": "and",
    "%": "percent",
    "#": "number",
    "+": "plus",
    "@": "at",
    "=": "equals",
    "²": "squared",
    "³": "cubed",
}


def _say_amount(match: re.Match) -> str:
    unit, whole, fraction = match.group(1), match.group(2).replace(",", ""), match.group(3)
    words = say_number(int(whole)) if len(whole) <= 6 else say_digits(whole)
    if fraction:
        words += f" point {say_digits(fraction)}"
    return f"{words} {_UNITS[unit]}" if unit else words


def _say_token(token: str) -> str:
    low = token.lower().rstrip(".")
    if low in _SAID:
        return _SAID[low]
    if token.isdecimal():
        return say_number(int(token)) if len(token) <= 2 else say_digits(token)
    if any(c.isdecimal() for c in token):
        return say_code(token)
    return low


def spoken_question(rng: Rng, question: str) -> str:
    """How a written question is read aloud: abbreviations in full, codes and long numbers character by character.

    Args:
        rng: decides whether the hyphen of a code is said, and whether "please" is added.
        question: for example ``What is the amount for INV-2041?``

    Returns:
        Lower-case text for :func:`training.speech.speak`, for example ``what is the amount for i n v two zero four one``.
    """
    dash = rng.pick((" dash ", " "))
    text = question.split("\n")[0].strip()
    text = re.sub(r"(?<=\d)[-/](?=\w)|(?<=\w)[-/](?=\d)", dash, text)  # the parts of a code
    text = re.sub(r"\b([A-Z]{2,3})(?= ?(?:dash )?\d)", lambda m: " ".join(m.group(1).lower()), text)
    text = re.sub(r"([$€£]?) ?\b(\d{1,3}(?:,\d{3})+|\d+)(?:\.(\d{1,2}))\b", _say_amount, text)
    text = re.sub(r"([$€£]) ?(\d[\d,]*)()\b", _say_amount, text)
    for sign, word in _SIGNS.items():
        text = text.replace(sign, f" {word} ")
    text = re.sub(r"[\"“”():;!?/_]|\.(?=\s|$)", " ", text)
    tokens = re.findall(r"[\w'’.-]+|,", text)
    words = " ".join(_say_token(token.strip("-")) if token != "," else "," for token in tokens).replace(" ,", ",")
    return f"{words} please" if "please" not in words and rng.chance(0.05) else words.strip(", ")
