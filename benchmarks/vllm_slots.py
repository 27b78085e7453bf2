"""What the slots of the vLLM plug-in cost a language model: bits, and KL over them (teacher forcing).

    python -m benchmarks.vllm_slots --model SmolLM2-135M-Instruct [--calibration FILE] [--dtypes kvmm_rd2 ...]
        --text benchmarks/texts/jargon.txt benchmarks/texts/alice.txt [--output benchmarks/results/vllm_slots.json]

The first ``--prefill`` tokens of each text are read exactly and go through the slots; the next ``--continue`` are read
over what the slots give back, in one call, as the plug-in reads a chunk. ``bits`` counts all of a slot: codes, norms
and the exact first token of every block. ``without first`` codes that token like the others.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import DynamicCache

from benchmarks.report import Report, add_common_options, table
from kvmm.calibration import read_calibration
from kvmm.calibration.file import FILE_NAME
from kvmm.models import load_model
from kvmm.vllm import DTYPES, dtype_codec
from kvmm.vllm.slots import LayerSlots

BLOCK_SIZE = 128


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line; prints a table and writes JSON after every row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="folder, hub id or packaged model")
    parser.add_argument("--text", type=Path, nargs="+", required=True, help="text files")
    parser.add_argument(
        "--calibration", type=Path, help="file of kvmm calibrate; default: the one in the model's folder"
    )
    parser.add_argument("--dtypes", nargs="+", default=list(DTYPES), choices=DTYPES)
    parser.add_argument("--prefill", type=int, default=1536, help="tokens of the text in slots")
    parser.add_argument("--continue", dest="count", type=int, default=512, help="tokens of the text after them")
    parser.add_argument("--threads", type=int, default=1, help="of the CPU")
    add_common_options(parser, "vllm_slots")
    given = sys.argv[1:] if arguments is None else list(arguments)
    options = parser.parse_args(given)
    torch.set_num_threads(options.threads)
    model, processor = load_model(options.model, device=options.device, dtype=torch.float32)
    path = options.calibration or Path(model.name_or_path) / FILE_NAME
    calibration = read_calibration(path)
    tokenizer = getattr(processor, "tokenizer", processor)
    texts = []
    for file in options.text:
        ids = tokenizer(file.read_text(encoding="utf-8"), return_tensors="pt")["input_ids"].to(model.device)
        length = options.prefill + options.count
        if ids.shape[1] < length:
            parser.error(f"{file} has {ids.shape[1]} tokens and {length} are asked for.")
        texts.append(Text(model, ids[:, : options.prefill], ids[:, options.prefill : length]))
    report = Report("vllm_slots", given, options)
    for name in options.dtypes:
        for first in (True, False):
            row: dict[str, Any] = {"name": name if first else f"{name} without first", "texts": {}}
            with report.guarded(row):
                layers = [LayerSlots(calibration, i, *dtype_codec(name), BLOCK_SIZE) for i in range(texts[0].layers)]
                values = sum(layer.key.dim + layer.value.dim for layer in layers)
                row["bits"] = 8 * sum(layer.nbytes for layer in layers) / values
                for file, text in zip(options.text, texts, strict=True):
                    row["texts"][file.name] = text.kl(layers, first)
                row["kl"] = sum(row["texts"].values()) / len(texts)
    table(("dtype", "bits", "KL"), [[row["name"], row.get("bits"), row.get("kl")] for row in report.rows])
    report.finish()


class Text:
    """Keys and values of a text's beginning, and what full precision predicts after it."""

    def __init__(self, model: Any, beginning: torch.Tensor, rest: torch.Tensor):
        self.model, self.rest, cache = model, rest, DynamicCache()
        with torch.no_grad():
            model(beginning, past_key_values=cache, logits_to_keep=1)
        self.held = [(layer.keys, layer.values) for layer in cache.layers]
        self.layers = len(self.held)
        self.expected = self.predicted(self.held)

    def predicted(self, held: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> torch.Tensor:
        """Log-probabilities float32 ``[n, V]`` of the rest over keys and values ``[1, H, T, D]`` by layer."""
        cache = DynamicCache()
        for index, (keys, values) in enumerate(held):
            cache.update(keys, values, index)
        with torch.no_grad():
            return self.model(self.rest, past_key_values=cache).logits[0].float().log_softmax(-1)

    def kl(self, layers: Sequence[LayerSlots], first: bool) -> float:
        """KL(full || slots), nats a token."""
        coded = []
        for slots, pair in zip(layers, self.held, strict=True):
            sides = []
            for codec, x in zip((slots.key, slots.value), pair, strict=True):
                found = codec.decode(codec.encode(x[0].transpose(0, 1))).transpose(0, 1)[None].to(x.dtype)
                if first:
                    found[:, :, :: slots.block_size] = x[:, :, :: slots.block_size]
                sides.append(found)
            coded.append((sides[0], sides[1]))
        found = self.predicted(coded)
        return float((self.expected.exp() * (self.expected - found)).sum(-1).mean())


if __name__ == "__main__":
    main()
