"""HotpotQA's scores of short answers (Yang et al. 2018, ``hotpot_evaluate_v1.py``); 2WikiMultihopQA has the same."""

from __future__ import annotations

from kvmm.eval.metrics.longbench import qa_f1, squad_words

_WHOLE = ("yes", "no", "noanswer")  # these are right as a whole or not at all


def hotpot_exact_match(prediction: str, answer: str) -> bool:
    """Whether two answers have the same words, without case, punctuation and articles."""
    return squad_words(prediction) == squad_words(answer)


def hotpot_f1(prediction: str, answer: str) -> float:
    """F1 of the words that two answers share; 0 where only one of them is "yes", "no" or "noanswer"."""
    given, wanted = " ".join(squad_words(prediction)), " ".join(squad_words(answer))
    if given != wanted and (given in _WHOLE or wanted in _WHOLE):
        return 0.0
    return qa_f1(prediction, answer)


__all__ = ["hotpot_exact_match", "hotpot_f1"]
