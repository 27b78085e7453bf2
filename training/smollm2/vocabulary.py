"""The vocabulary reduced to what a page in English or another Latin-1 language needs.

Byte-level BPE stays exact under reduction as long as every kept token keeps the merges that build it: a text whose
tokens are all kept is tokenised as before, any other falls into shorter kept tokens, at worst single bytes.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from training.smollm2.gguf_file import LanguageModel
from training.tokenizer import SPECIAL

NUM_SPECIAL = 17  # of the original: three of the chat format, then tokens of code corpora that a page never needs
# ASCII, letters and signs of Latin-1, typographic quotes, dashes, dots and the euro sign
_TEXT = re.compile("[\n\\x20-\\x7e\\xa1-\\xff\u2013\u2014\u2018\u2019\u201c\u201d\u2022\u2026\u20ac]+")


def byte_characters() -> dict[str, int]:
    """Byte by its character in byte-level BPE (GPT-2's table)."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(b): b for b in printable} | {chr(256 + i): b for i, b in enumerate(others)}


def tokenizer_of(tokens: list[str], merges: list[str], special: Iterable[str]) -> Tokenizer:
    """SmolLM2's tokenizer over a vocabulary: digits apart, then byte-level BPE."""
    pairs = [tuple(merge.split(" ")) for merge in merges]
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, pairs))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    return tokenizer


def count_tokens(model: LanguageModel, texts: Iterable[str]) -> Counter[int]:
    """How often the full vocabulary's tokens occur in texts."""
    tokenizer = tokenizer_of(model.tokens, model.merges, model.tokens[:3])
    counts: Counter[int] = Counter()
    for encoding in tokenizer.encode_batch(list(texts), add_special_tokens=False):
        counts.update(encoding.ids)
    return counts


def _is_text(token: str, table: dict[str, int]) -> bool:
    data = bytes(table[c] for c in token)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return _TEXT.fullmatch(text) is not None and not re.search(r" {2}|[\n][^\n]|[^\n][\n]", text)


def reduce_vocabulary(model: LanguageModel, counts: Counter[int], frequent: int, least: int = 1) -> list[int]:
    """Ids to keep, ascending, the special ones left out.

    All bytes, the first `frequent` tokens that are text (ids follow the merges, so the most frequent ones), every text
    token that `counts` saw `least` times, and whatever these are merged from.
    """
    table = byte_characters()
    index = {token: i for i, token in enumerate(model.tokens)}
    parts = {}
    for merge in model.merges:
        a, b = merge.split(" ")
        parts[index[a + b]] = index[a], index[b]
    singles = {i for token, i in index.items() if len(token) == 1}
    texts = [i for i in range(NUM_SPECIAL, len(model.tokens)) if _is_text(model.tokens[i], table)]
    wanted = singles | set(texts[:frequent]) | {i for i in texts if counts[i] >= least}
    stack = list(wanted)
    while stack:
        for part in parts.get(stack.pop(), ()):
            if part not in wanted:
                wanted.add(part)
                stack.append(part)
    return sorted(wanted)


def original_ids(kept: list[int]) -> list[int]:
    """Original id by new id: the special tokens of `training.tokenizer` take the first ones, then `kept`.

    The ids of the chat format are those of SmolLM2; the media tokens take over tokens of code corpora.
    """
    return [*range(len(SPECIAL)), *kept]


def reduced_tokenizer(model: LanguageModel, kept: list[int]) -> Tokenizer:
    """The tokenizer over `kept`, new ids in the order of :func:`original_ids`."""
    tokens = [*SPECIAL, *(model.tokens[i] for i in kept)]
    known = set(tokens)
    merges = [m for m in model.merges if all(t in known for t in (*m.split(" "), m.replace(" ", "")))]
    return tokenizer_of(tokens, merges, SPECIAL)


def save_tokenizer(tokenizer: Tokenizer, path: Path) -> None:
    path.write_text(json.dumps(json.loads(tokenizer.to_str()), ensure_ascii=False, indent=0), encoding="utf-8")
