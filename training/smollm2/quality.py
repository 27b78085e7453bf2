"""What few bits and missing layers cost a pretrained text tower: perplexity and KL on text that nothing was fitted to.

    python -m training.smollm2.quality --base .base --out benchmarks/results/smollm2_weights.json

The file of SmolLM2 holds 4-bit weights in groups of 32, which 4 bits in groups of 32 keep exactly. Weights that were
trained further lie between its levels; groups of 64, whose levels do not meet the file's, show what rounding costs.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from pathlib import Path

import torch
from torch import Tensor

from kvmm.models.packed_weights import pack_weights, unpack_weights
from training.model import OmniModel
from training.smollm2.folder import EMBEDDINGS, TOKENIZER, read_base, read_config
from training.tokenizer import encode, use_tokenizer

TEXTS = Path("docs")  # this project's pages: prose, lists and tables


def token_logits(model: OmniModel, ids: Tensor) -> Tensor:
    """Log-probabilities `[T - 1, vocab_size]` of the next token."""
    pos = torch.arange(ids.shape[1]).expand(3, 1, -1)
    with torch.no_grad():
        hidden = model.hidden_states(ids, pos, torch.zeros_like(ids, dtype=torch.uint8))
        return model.logits(hidden[:-1]).log_softmax(-1)


def measure(model: OmniModel, weights: dict[str, Tensor], ids: Tensor, reference: Tensor | None) -> dict:
    """Perplexity of `ids`, and KL(reference, model) in nats where there is a reference."""
    model.load_state_dict(weights, strict=False)
    logits = token_logits(model, ids)
    out = {"perplexity": round(float((-logits.gather(1, ids[0, 1:, None])).mean().exp()), 3)}
    if reference is not None:
        kl = (reference.exp() * (reference - logits)).sum(-1)
        out |= {"kl_mean": round(float(kl.mean()), 5), "kl_max": round(float(kl.max()), 3)}
        out["top1"] = round(float((reference.argmax(-1) == logits.argmax(-1)).float().mean()), 4)
    return out


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m training.smollm2.quality", description=__doc__.splitlines()[0])
    parser.add_argument("--base", type=Path, default=Path(".base"))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tokens", type=int, default=768)
    parser.add_argument("--layers", action="store_true", help="also leave out each layer in turn")
    args = parser.parse_args()
    use_tokenizer(args.base / TOKENIZER)
    config, original = read_config(args.base), read_base(args.base)
    text = "\n\n".join(p.read_text(encoding="utf-8") for p in sorted(TEXTS.glob("*.md")))
    ids = torch.tensor([encode([text])[0][2000 : 2000 + args.tokens]])
    model = OmniModel(config).eval()
    started = time.time()
    plain = token_logits_of(model, original, ids)
    result: dict = {
        "original": measure(model, original, ids, None), "tokens": args.tokens, "text": "docs/*.md",
        "vocabulary": config.vocab_size, "layers": config.num_layers, "threads": torch.get_num_threads(),
        "machine": platform.processor() or platform.machine(), "torch": torch.__version__, "bits": [],
        "command": "python -m training.smollm2.quality " + " ".join(sys.argv[1:]),
    }  # fmt: skip
    for bits, group in ((4, 32), (4, 64), (5, 64), (6, 64), (8, 64)):
        packed = pack_weights(original, bits, group, EMBEDDINGS)
        row = {"bits": bits, "group": group, "mb": round(sum(t.nbytes for t in packed.values()) / 1e6, 1)}
        result["bits"].append(row | measure(model, unpack_weights(packed), ids, plain))
        print(result["bits"][-1], flush=True)
        args.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    if args.layers:
        result["without_layer"] = [without_layer(model, original, ids, plain, i) for i in range(config.num_layers)]
    result |= {"seconds_prefill": round(timed_prefill(model, ids), 2), "seconds": round(time.time() - started, 1)}
    args.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def token_logits_of(model: OmniModel, weights: dict[str, Tensor], ids: Tensor) -> Tensor:
    model.load_state_dict(weights, strict=False)
    return token_logits(model, ids)


def without_layer(model: OmniModel, weights: dict[str, Tensor], ids: Tensor, reference: Tensor, layer: int) -> dict:
    """What leaving out one layer costs: its two outputs to the residual stream are set to zero."""
    prefix = f"model.layers.{layer}."
    silent = {
        n: torch.zeros_like(t) if n.startswith(prefix) and ("o_proj" in n or "down_proj" in n) else t
        for n, t in weights.items()
    }
    row = {"layer": layer, **measure(model, silent, ids, reference)}
    print(row, flush=True)
    return row


def timed_prefill(model: OmniModel, ids: Tensor) -> float:
    """Seconds to read `ids`, the better of two."""
    best = float("inf")
    for _ in range(2):
        started = time.perf_counter()
        token_logits(model, ids)
        best = min(best, time.perf_counter() - started)
    return best


if __name__ == "__main__":
    main()
