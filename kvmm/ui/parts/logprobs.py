"""The tokens of the last answer with their probability, coloured by it."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from kvmm.models.progress import Progress
from kvmm.serve.generation import logprob_of
from kvmm.serve.protocol import TokenLogprob

MAX_SHOWN = 512  # tokens; of longer answers the first ones
NOT_TOLD = "The server told no log-probabilities of this answer."
_NAMES = {"full": "Full precision", "kvmm": "kvmm"}
_TITLE = "Tokens of the answer with their probability"


def with_token_texts(progress: Progress, processor: Any) -> Progress:
    """An answer whose ``logprobs`` are told as text, so that it can be shown when its model is no longer at hand.

    Args:
        progress: of the answer. It is returned as it is where no log-probabilities were asked for, and where it is a
            server's, which tells texts.
        processor: of the model that gave the answer, or the tokenizer.
    """
    if progress.logprobs is not None:
        return progress
    tokenizer = getattr(processor, "tokenizer", processor)
    told = tuple(logprob_of(tokenizer, one) for one in progress.choices[:MAX_SHOWN] if one.logprob is not None)
    return replace(progress, logprobs=told) if told else progress


def logprobs_html(last: Mapping[str, Progress]) -> str:
    """A row of tokens for each side that answered; empty where they were not asked for.

    Args:
        last: the last answers by side, as :func:`with_token_texts` returns them.
    """
    answers = {side: last[side] for side in _NAMES if side in last}
    rows = {side: (one, one.logprobs[:MAX_SHOWN]) for side, one in answers.items() if one.logprobs}
    if not rows:
        silent = any(progress.logprobs is not None for progress in last.values())
        return f'<div class="hint">{NOT_TOLD}</div>' if silent else ""
    shown = "".join(
        (f"<h4>{_NAMES[side]}</h4>" if len(rows) > 1 else "") + _row(tokens, progress.tokens, f"logprobs-{side}")
        for side, (progress, tokens) in rows.items()
    )
    return f'<div class="logprobs"><div class="section">{_TITLE}</div>{shown}</div>'


def _row(tokens: Sequence[TokenLogprob], count: int, name: str) -> str:
    tiles = "".join(f"<li>{_tile(one)}</li>" for one in tokens)
    left = f'<div class="hint">and {count - len(tokens):,} more</div>' if count > len(tokens) == MAX_SHOWN else ""
    return f'<ol class="tokens" id="{name}" aria-label="{_TITLE}">{tiles}</ol>{left}'


def _tile(one: TokenLogprob) -> str:
    doubt = 60 * (1 - math.exp(min(one.logprob, 0)))
    likely = ", ".join(f"{_visible(text)} {percent(logprob)}" for text, _, logprob in one.top)
    title = html.escape(f"Most likely: {likely}" if likely else percent(one.logprob))
    return (
        f'<span class="token" title="{title}" style="--doubt:{doubt:.0f}%"><code>{html.escape(_visible(one.text))}'
        f"</code><small>{html.escape(percent(one.logprob))}</small></span>"
    )


def _visible(text: str) -> str:
    """A token in which a line break can be seen; one line."""
    return "".join("↵" if c == "\n" else "␣" if c == " " else c if c.isprintable() else "·" for c in text) or "∅"


def percent(logprob: float) -> str:
    """The probability in whole percent, ">99%" and "<1%" where rounding would say that nothing else is possible."""
    share = 100 * math.exp(min(logprob, 0))
    return ">99%" if share >= 99.5 else "<1%" if share < 0.5 else f"{share:.0f}%"


__all__ = ["NOT_TOLD", "logprobs_html", "percent", "with_token_texts"]
