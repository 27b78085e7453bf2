"""Numbers and codes in words."""

from __future__ import annotations

DIGITS = "zero one two three four five six seven eight nine".split()
TEENS = "ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen".split()
TENS = "- - twenty thirty forty fifty sixty seventy eighty ninety".split()


def say_number(n: int) -> str:
    """An integer from 0 to 999999 in words: 250 -> "two hundred and fifty"."""
    if n < 10:
        return DIGITS[n]
    if n < 20:
        return TEENS[n - 10]
    if n < 100:
        return TENS[n // 10] + (f" {DIGITS[n % 10]}" if n % 10 else "")
    if n < 1000:
        return f"{DIGITS[n // 100]} hundred" + (f" and {say_number(n % 100)}" if n % 100 else "")
    rest = f" {say_number(n % 1000)}" if n % 1000 else ""
    return f"{say_number(n // 1000)} thousand{rest}"


def say_digits(digits: str) -> str:
    """Digit by digit: "407" -> "four zero seven"."""
    return " ".join(DIGITS[int(d)] for d in digits)


def say_code(code: str) -> str:
    """Letters and digits one by one: "B7" -> "b seven"."""
    return " ".join(DIGITS[int(c)] if c.isdecimal() else c.lower() for c in code if c.isalnum())
