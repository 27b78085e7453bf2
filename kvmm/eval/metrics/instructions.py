"""Whether an answer follows an instruction about its form: the rules of MMAU-Pro's instruction-following part.

A rule is named by ``task_identifier`` and its numbers and words come in ``kwargs`` (``N``, ``N1``, ``N2``,
``keywords``, ``keyword``, ``forbidden_words``, ``postscript_marker``, ``section_splitter``, ``start_phrase``,
``end_phrase``). Sentences are what stands between ".", "!" and "?"; the benchmark's script asks a trained tokenizer,
which keeps "Mr. Smith" in one sentence.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

Rule = Callable[[str, Mapping[str, Any], str], bool]


def _sentences(text: str) -> int:
    return sum(bool(part.strip()) for part in re.split(r"[.!?]+", text))


def _capitals(text: str) -> int:
    return sum(word.isupper() for word in text.split())


def _words(text: str) -> int:
    return len(text.split())


def _letters(text: str, keep: str = "") -> str:
    return re.sub(f"[^a-zA-Z{keep}]", "", text).lower()


def _listed(values: Mapping[str, Any], name: str) -> list[str]:
    return [word.lower() for word in str(values.get(name) or "").split(", ")]


def _number(values: Mapping[str, Any], name: str, default: float = 0) -> float:
    value = values.get(name)
    return default if value is None else float(value)


def _counted(count: Callable[[str], int], how: str) -> Rule:
    def rule(text: str, values: Mapping[str, Any], _: str) -> bool:
        number = count(text)
        if how == "range":
            return _number(values, "N1") <= number <= _number(values, "N2", 999)
        bound = _number(values, "N")
        return {"at least": number >= bound, "at most": number <= bound, "exactly": number == bound}[how]

    return rule


def _keyword_frequency(text: str, values: Mapping[str, Any], _: str) -> bool:
    keyword = str(values.get("keyword") or "").lower()
    return len(re.findall(rf"\b{re.escape(keyword)}\b", text.lower())) == _number(values, "N")


def _sections(text: str, values: Mapping[str, Any], _: str) -> bool:
    splitter = str(values.get("section_splitter") or "")
    parts = re.split(rf"\s*{re.escape(splitter)}\s*", text.strip())
    return sum(bool(part.strip()) for part in parts) == _number(values, "N")


def _two_responses(text: str, values: Mapping[str, Any], _: str) -> bool:
    parts = [part.lower().strip() for part in text.split("******")]
    return len(parts) == 2 and parts[0] != parts[1]


RULES: dict[str, Rule] = {
    "Include Keywords": lambda text, v, _: all(word in text.lower() for word in _listed(v, "keywords")),
    "Keyword Frequency": _keyword_frequency,
    "Forbidden Words": lambda text, v, _: not any(word in text.lower() for word in _listed(v, "forbidden_words")),
    "Number Paragraphs": _counted(lambda text: sum(bool(p.strip()) for p in text.split("***")), "exactly"),
    **{f"Number Words ({how})": _counted(_words, how) for how in ("at least", "at most", "range")},
    **{f"Number Sentences ({how})": _counted(_sentences, how) for how in ("at least", "at most", "range")},
    **{f"All-capital Words ({how})": _counted(_capitals, how) for how in ("at least", "at most", "range")},
    "Postscript": lambda text, v, _: _letters(str(v.get("postscript_marker") or "")) in _letters(text),
    "Number Placeholder": _counted(lambda text: len(re.findall(r"\[[^\]]+\]", text)), "at least"),
    "Number Bullets": _counted(lambda text: len(re.findall(r"(?:^|\n)\s*\*\s+", text)), "exactly"),
    "Title": lambda text, v, _: re.search(r"<<[^>]+>>", text) is not None,
    "Minimum Number Highlighted Section": _counted(lambda text: len(re.findall(r"\*([^*]+)\*", text)), "at least"),
    "Multiple Sections": _sections,
    "Repeat Prompt": lambda text, v, prompt: text.strip().lower().startswith(prompt.strip().lower()),
    "Two Responses": _two_responses,
    "All Uppercase": lambda text, v, _: text.isupper(),
    "All Lowercase": lambda text, v, _: text.islower(),
    "Start Checker": lambda text, v, _: _letters(text, " ").startswith(_letters(str(v.get("start_phrase") or ""), " ")),
    "End Checker": lambda text, v, _: _letters(text, " ").endswith(_letters(str(v.get("end_phrase") or ""), " ")),
    "Quotation": lambda text, v, _: text.strip().startswith('"') and text.strip().endswith('"'),
    "No Commas": lambda text, v, _: "," not in text,
}


def follows_instruction(
    response: str, task_identifier: str, kwargs: Mapping[str, Any] | None = None, prompt: str = ""
) -> bool:
    """Whether ``response`` obeys the rule; an empty response obeys none, and neither does any an unknown rule.

    ``prompt`` is the transcription of what was asked, for "Repeat Prompt".
    """
    rule = RULES.get(task_identifier)
    text = response.strip()
    return bool(text) and rule is not None and rule(text, kwargs or {}, prompt)


__all__ = ["RULES", "follows_instruction"]
