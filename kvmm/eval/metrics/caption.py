"""Scores of captions: BLEU, ROUGE-L and CIDEr, as the COCO caption evaluation computes them from words.

The public evaluation calls the Stanford PTB tokenizer, a Java program. :func:`tokenize_caption` stands in for it and
writes the same words for what captions are made of: sentences, contractions, numbers, fractions, prices, times, words
with hyphens and slashes, quotation marks, brackets, common abbreviations. Known differences:

- of the abbreviations that PTB knows, those in ``ABBREVIATIONS`` keep their full stop, and single letters;
- PTB takes e-mail addresses, URLs, HTML tags, smileys and "wow!nice" as one word each;
- of the words that PTB splits one by one ("gonna", "y'all" ...) rare ones are not ("more'n");
- "C++" and sums such as "1+1" are split at every sign.

The scores themselves are those of ``pycocoevalcap`` for the same words.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence

MAX_ORDER = 4
CIDER_SIGMA = 6.0  # Gaussian penalty of the difference in length, "CIDEr-D"
ROUGE_BETA = 1.2

Words = Sequence[str]
Ngrams = Counter[tuple[str, ...]]

ABBREVIATIONS = frozenset(
    "mr mrs ms dr st ave blvd rd mt ft jr sr inc co corp ltd vs etc prof gen rep sen gov lt col capt sgt dept jan feb "
    "aug sept oct nov dec".split()
)
_BRACKETS = {"(": "-lrb-", ")": "-rrb-", "[": "-lsb-", "]": "-rsb-", "{": "-lcb-", "}": "-rcb-"}
_SPLIT = {"cannot": ("can", "not"), "y'all": ("y'", "all"), "'tis": ("'t", "is"), "£": ("#",)} | {
    f"{head}{tail}": (head, tail)
    for head, tail in (("gon", "na"), ("got", "ta"), ("wan", "na"), ("lem", "me"), ("gim", "me"))
}
_TOKEN = re.compile(
    r"(?:[^\W\d_]\.){2,}"  # u.s.
    r"|(?<!\S)-(?=\d)\d+(?:\.\d+)?"  # -5
    r"|\d+(?:[.,:]\d+)+|(?<!\w)\.\d+"  # 1,000 and 10:30 and .5
    r"|'n'|'\d\ds\b|'tis\b"
    rf"|\b(?:{'|'.join(sorted(ABBREVIATIONS))}|no(?=\. \d)|[^\W\d_])\.(?!\w)"  # mr. and single letters
    r"|\w+(?:[-&./]\w+|'[^\W\d_]\w*)*"  # black-and-white, and/or, don't, at&t
    r"|'(?:s|m|d|re|ve|ll)\b"
    r"|[!?]{2,}"
    r"|[()\[\]{}]|[$%#@&+=*/°£€~]"
)
_CONTRACTION = re.compile(r"(.+?)((?:'(?:m|d|re|ve|ll))*(?:n't|'(?:s|m|d|re|ve|ll)))$")
_ENDING = re.compile(r"n't|'\w+")


def tokenize_caption(text: str) -> list[str]:
    """The words of a caption in lower case: contractions split ("do", "n't"), punctuation left out.

    Brackets stay, as "-lrb-" and so on, and so do runs such as "?!": the public evaluation leaves them in as well.
    """
    text = text.lower().replace("’", "'").replace("‘", "'")
    words: list[str] = []
    for token in _TOKEN.findall(text):
        if token in _BRACKETS:
            words.append(_BRACKETS[token])
        elif token in _SPLIT:
            words.extend(_SPLIT[token])
        elif match := _CONTRACTION.match(token):
            words.append(match.group(1))
            words.extend(_ENDING.findall(match.group(2)))
        else:
            words.append(token)
    return words


def ngrams(words: Words) -> Ngrams:
    """How often each n-gram of 1 to 4 words occurs."""
    return Counter(
        tuple(words[start : start + order])
        for order in range(1, MAX_ORDER + 1)
        for start in range(len(words) - order + 1)
    )


def bleu(predictions: Sequence[Words], references: Sequence[Sequence[Words]]) -> list[float]:
    """BLEU-1 to BLEU-4 of a corpus (Papineni et al. 2002), the reference of closest length counting.

    Args:
        predictions: words, one caption an image.
        references: for each image, the words of one or more captions.

    Returns:
        four scores in [0, 1]; zeros for an empty corpus.
    """
    tiny, small = 1e-15, 1e-9  # the evaluation's: a score of 0 instead of a division by 0
    guessed, correct = [0] * MAX_ORDER, [0] * MAX_ORDER
    length = reference_length = 0
    for words, captions in zip(predictions, references, strict=True):
        most: Ngrams = Counter()
        for caption in captions:
            most |= ngrams(caption)
        length += len(words)
        reference_length += min((abs(len(caption) - len(words)), len(caption)) for caption in captions)[1]
        for gram, count in ngrams(words).items():
            correct[len(gram) - 1] += min(most[gram], count)
        for order in range(MAX_ORDER):
            guessed[order] += max(0, len(words) - order)
    ratio = (length + tiny) / (reference_length + small)
    penalty = math.exp(1 - 1 / ratio) if 0 < ratio < 1 else 1.0
    scores, product = [], 1.0
    for order in range(MAX_ORDER):
        product *= (correct[order] + tiny) / (guessed[order] + small)
        scores.append(product ** (1 / (order + 1)) * penalty)
    return scores if predictions else [0.0] * MAX_ORDER


def rouge_l(words: Words, references: Sequence[Words]) -> float:
    """ROUGE-L of one caption (Lin 2004), beta 1.2, best precision and best recall over the references.

    An empty text counts as one word that nothing equals, as it does where text is split at single spaces.
    """
    prediction_words = words or [""]
    pairs = [(common_subsequence(reference or [""], prediction_words), len(reference) or 1) for reference in references]
    precision = max(common / len(prediction_words) for common, _ in pairs)
    recall = max(common / count for common, count in pairs)
    if precision == 0 or recall == 0:
        return 0.0
    return (1 + ROUGE_BETA**2) * precision * recall / (recall + ROUGE_BETA**2 * precision)


def common_subsequence(a: Words, b: Words) -> int:
    """Length of the longest common subsequence."""
    row = [0] * (len(b) + 1)
    for left in a:
        diagonal = 0
        for j, right in enumerate(b, 1):
            diagonal, row[j] = row[j], diagonal + 1 if left == right else max(row[j], row[j - 1])
    return row[-1]


def cider(predictions: Sequence[Words], references: Sequence[Sequence[Words]]) -> list[float]:
    """CIDEr-D of each image (Vedantam et al. 2015); the mean is what the COCO evaluation calls CIDEr.

    How much an n-gram counts depends on how many images' references contain it: all images must be given at once, and
    a corpus of one image scores 0.

    Args:
        predictions, references: as in :func:`bleu`.

    Returns:
        scores in [0, 10].
    """
    cooked = [[ngrams(caption) for caption in captions] for captions in references]
    frequency = Counter(gram for captions in cooked for gram in set().union(*captions))
    log_images = math.log(max(len(cooked), 1))

    def weigh(counts: Ngrams) -> tuple[list[dict[tuple[str, ...], float]], list[float], int]:
        vectors: list[dict[tuple[str, ...], float]] = [{} for _ in range(MAX_ORDER)]
        for gram, count in counts.items():
            vectors[len(gram) - 1][gram] = count * (log_images - math.log(max(1, frequency[gram])))
        norms = [math.sqrt(sum(weight**2 for weight in vector.values())) for vector in vectors]
        # The evaluation measures length in pairs of words.
        return vectors, norms, sum(count for gram, count in counts.items() if len(gram) == 2)

    scores = []
    for words, captions in zip(predictions, cooked, strict=True):
        vectors, norms, length = weigh(ngrams(words))
        total = 0.0
        for caption in captions:
            others, other_norms, other_length = weigh(caption)
            penalty = math.exp(-((length - other_length) ** 2) / (2 * CIDER_SIGMA**2))
            for vector, norm, other, other_norm in zip(vectors, norms, others, other_norms, strict=True):
                if norm and other_norm:
                    shared = vector.keys() & other.keys()
                    overlap = sum(min(vector[gram], other[gram]) * other[gram] for gram in shared)
                    total += overlap / (norm * other_norm) * penalty
        scores.append(10 * total / MAX_ORDER / len(captions))
    return scores


__all__ = ["bleu", "cider", "common_subsequence", "ngrams", "rouge_l", "tokenize_caption"]
