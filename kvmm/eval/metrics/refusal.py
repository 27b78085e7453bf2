"""Whether an answer says that a document does not say, and how well a model tells when to say so."""

from __future__ import annotations

import re
from collections.abc import Iterable

_PATTERNS = (
    # the page does not say
    r"\b(?:does not|doesn't|do not|don't|did not|didn't) (?:\w+ly )?"
    r"(?:say|state|mention|specify|indicate|tell|provide|give|show|contain|include|answer)\b",
    # it is not stated
    r"\bnot (?:\w+ly )?(?:said|stated|mentioned|specified|indicated|answerable)\b",
    r"\b(?:not|isn't|aren't) (?:\w+ly )?(?:given|shown|provided|available|included) (?:in|on|by) "
    r"(?:the|this) (?:page|document|text|image|picture|letter|receipt|recording|memo|context|chart|table)\b",
    # it cannot be told
    r"\b(?:cannot|can't|could not|couldn't) (?:be )?(?:determined?|answer(?:ed)?|tell|told|say|find|found)\b",
    r"\bi (?:do not|don't) know\b",
    r"\bno (?:answer|information|mention|indication)\b",
    r"\bunanswerable\b",
    r"^(?:unknown|none|n/?a|not (?:applicable|given|shown|provided|available|known))[.!]?$",
)
_REFUSAL = re.compile("|".join(_PATTERNS))
_LONGEST = 200  # characters; more is an answer that denies something in passing


def is_refusal(prediction: str) -> bool:
    """Whether a short answer says that the document does not say ("It does not say.", "Not mentioned", "unanswerable").

    The rule reads English words alone; "Bicycles are not carried" denies something else and is an answer.
    """
    text = " ".join(prediction.lower().replace("’", "'").split())
    return 0 < len(text) <= _LONGEST and _REFUSAL.search(text) is not None


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
