"""The tokenizer of the small omni model: byte-level BPE of 2048 tokens, every digit a token of its own.

``python -m training.tokenizer --out assets/tiny-omni/tokenizer.json`` trains it on text of the generators.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

SPECIAL = (
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|AUDIO|>", "<|audio_bos|>", "<|audio_eos|>", "<|vision_bos|>", "<|vision_eos|>", "<|vision_pad|>",
    "<|IMAGE|>", "<|VIDEO|>",
)  # fmt: skip
PAD, BOS, EOS, AUDIO, AUDIO_BOS, AUDIO_EOS, VISION_BOS, VISION_EOS, VISION_PAD, IMAGE, VIDEO = range(len(SPECIAL))
VOCABULARY = 2048
PATH = Path(__file__).parent / "tokenizer.json"
# words with their leading space, single digits, runs of punctuation, line breaks
_PATTERN = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|[\r\n]+|\s+"


def corpus(pages: int = 9000) -> Iterator[str]:
    """Pages, questions, answers and spoken texts, as training sees them."""
    from training.pages import PAGE_SHAPES, Rng, make_page
    from training.utterances import utter
    from training.wordings import NOT_STATED, TRANSCRIBE, ask

    r = Rng(20)
    for i in range(pages):
        page = make_page(10**7 + i, *PAGE_SHAPES[i % len(PAGE_SHAPES)])
        yield "\n".join(page.lines)
        for fact in page.facts:
            yield "\n".join(ask(r, fact, page=r.randint(1, 8) if r.chance(0.2) else None))
        spoken = utter(r)
        yield spoken.transcript
        for _, question, answer in spoken.qa:
            yield f"{question}\n{answer}"
        if i % 40 == 0:
            yield "\n".join((*TRANSCRIBE, NOT_STATED, "user\n", "assistant\n", "Page 1\n"))


def train(out: Path) -> None:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PATTERN), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        max_token_length=12,
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus(), trainer)
    tokenizer.save(str(out))


_file = PATH


def use_tokenizer(path: Path) -> None:
    """Makes `encode` use another tokenizer with the same special tokens; call it before workers are started."""
    global _file
    _file = path
    tokenizer.cache_clear()


@lru_cache(None)
def tokenizer() -> Tokenizer:
    """The tokenizer in use: the trained one, committed beside this file, unless `use_tokenizer` chose another."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    return Tokenizer.from_file(str(_file))


def encode(texts: list[str]) -> list[list[int]]:
    """Token ids of every text, without special tokens added."""
    return [e.ids for e in tokenizer().encode_batch(texts, add_special_tokens=False)]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=PATH)
    train(parser.parse_args().out)
