"""Whether an answer says that a document does not say, and how well a model tells when to say so.

The blind set scores unanswerable questions by it, and witness W4 counts answers that a policy turns into refusals, or
refusals into answers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

_SORRY = r"(?:(?:(?:i|we)(?: am| are|'m|'re) )?(?:(?:very|so) )?sorry|unfortunately|i apologi[sz]e)[,;:.!]*(?: but)? "
_DOCUMENT = (
    r"(?:page|document|text|passage|context|image|picture|photo|scan|file|form|letter|receipt|invoice|recording|memo"
    r"|chart|table)s?"
)
_THERE = rf"(?:in|on|by) (?:the|this) {_DOCUMENT}\b"
_NOT = r"(?:does not|doesn't|did not|didn't)"
_CANNOT = r"(?:cannot|can't|can not|could not|couldn't)"
_SAY = r"(?:say|state|mention|specify|indicate|tell)\b"
_SHOW = r"(?:provide|give|show|contain|include|list|answer)\b"
_INFORMATION = r"(?:information|details?|(?:an|the) answer|any answer|that|this|it)\b"
_ANY = r" any| enough| such| that| the| this| an"
_TOLD = r"(?:determine|answer|tell|say|identify|know)\b"
_UNABLE = rf"(?:i|we)(?: {_CANNOT}| will not| won't|(?: am| are| was| were|'m|'re) (?:unable|not able) to)"
# what people say that they cannot do as well ("I can't find my keys") counts with what is asked of a model
_REFUSED = (
    rf"(?:{_TOLD}|read\b|assist\b|comply\b|discuss\b|help(?: with| you|[.!]*$)|do (?:that|this|so)\b"
    rf"|(?:find|see|provide|give|share)(?: you)?(?: with)?(?:{_ANY}| more| specific)* {_INFORMATION}"
    rf"|(?:find|see) any\b|(?:access|view|open|process) (?:(?:the|this|that|your|any) )?(?:audio|pdf|{_DOCUMENT})\b)"
)
# an answer of any length that begins so is a refusal
_BEGINNINGS = (
    r"it (?:does not|doesn't) say\b",
    r"as an ai\b",
    r"i (?:do not|don't) know\b",
    rf"{_UNABLE}(?: \w+ly)? {_REFUSED}",
    rf"{_UNABLE}[.!]*$",
    rf"(?:it is|it's) (?:not possible|impossible) to {_TOLD}",
)
# a short answer that has one of these is a refusal
_PATTERNS = (
    # the page does not say; "Do not tell anybody" is an order and an answer
    rf"\b{_NOT} (?:\w+ly )?{_SAY}",
    rf"\b(?:they|(?:the|these|those|both) (?:\w+ ){{1,3}})(?:do not|don't) (?:\w+ly )?{_SAY}",
    rf"\b{_DOCUMENT}(?: \w+){{0,2}} (?:{_NOT}|do not|don't) (?:\w+ly )?{_SHOW}",
    rf"^it {_NOT} (?:\w+ly )?(?:show|give|answer)\b",
    rf"\b(?:{_NOT}|do not|don't) (?:\w+ly )?{_SHOW}(?:{_ANY})* (?:information|answer)\b",
    # it is not stated
    r"\bnot (?:\w+ly )?(?:said|stated|mentioned|specified|indicated|answerable)\b",
    rf"\b(?:not|isn't|aren't) (?:\w+ly )?(?:given|shown|provided|available|included) {_THERE}",
    # it cannot be told
    rf"\b{_CANNOT} be (?:determined|answered|told|known|inferred)\b",
    rf"\b{_CANNOT} be found {_THERE}",
    rf"\b(?:answer|information) {_CANNOT} be found\b",
    rf"\b{_CANNOT} {_TOLD}",
    rf"\b(?:unable|not able|impossible|not possible) to {_TOLD}",
    rf"(?:^|\b(?:i|we) ){_CANNOT} {_REFUSED}",
    r"\bi (?:do not|don't) know\b",
    r"\b(?:no|not enough|insufficient) (?:\w+ )?(?:information|mention|indication)\b",
    rf"^(?:there (?:is|was) )?no answer(?:[.!]*$| (?:is |was |can be )?(?:given|found|available|stated)\b| {_THERE})",
    r"\bunanswerable\b",
    r"^(?:unknown|none|n/?a|not (?:applicable|given|shown|provided|available|known))[.!]?$",
)
_BEGINNING = re.compile(rf"(?:{_SORRY})?(?:{'|'.join(_BEGINNINGS)})")
_REFUSAL = re.compile("|".join(_PATTERNS))
_REGRET = re.compile(f"^{_SORRY}")
_LONGEST = 200  # characters; more is an answer that denies something in passing


def is_refusal(answer: str, refusals: Sequence[str] = ()) -> bool:
    """Whether an answer says that the document does not say, or that it will not be answered.

    "It does not say.", "Not mentioned", "unanswerable" and "I'm sorry, but I can't help with that." do; "Bicycles are
    not carried" and "The price does not include breakfast" deny something else and are answers. The rule reads English
    words alone.

    Args:
        answer: of any length; one of more than 200 characters is a refusal only if it begins as one.
        refusals: beginnings of answers that count instead, case, punctuation and words of regret aside.
    """
    text = " ".join(answer.lower().replace("’", "'").split())
    if refusals:
        starts = tuple(plain for refusal in refusals if (plain := _words(refusal)))
        return _words(text).startswith(starts) or _words(_REGRET.sub("", text)).startswith(starts)
    return _BEGINNING.match(text) is not None or (0 < len(text) <= _LONGEST and _REFUSAL.search(text) is not None)


def _words(text: str) -> str:
    """Words with a space after each, without punctuation."""
    return "".join(f"{word} " for word in re.findall(r"\w+", text.lower()))


def refusal_scores(outcomes: Iterable[tuple[bool, bool]]) -> dict[str, float]:
    """Precision and recall of refusing.

    Args:
        outcomes: for each question whether it is unanswerable, and whether the model refused.

    Returns:
        ``refusal_precision``: the share of refusals that were right (0 without a refusal), and ``refusal_recall``: the
        share of unanswerable questions that were refused (0 without one).
    """
    pairs = list(outcomes)
    right = sum(unanswerable and refused for unanswerable, refused in pairs)
    refusals, unanswerable = sum(refused for _, refused in pairs), sum(first for first, _ in pairs)
    return {
        "refusal_precision": right / refusals if refusals else 0.0,
        "refusal_recall": right / unanswerable if unanswerable else 0.0,
    }


__all__ = ["is_refusal", "refusal_scores"]
