"""The likelihood of a text's continuation over the packed cache of its beginning."""

from __future__ import annotations

import math
import time
from typing import Any

import torch

from kvmm.errors import KVMMError
from kvmm.eval.run.batching import DocumentBatch, EncodedPrompt, cache_sizes
from kvmm.models.positions import all_position_ids
from kvmm.policy import KVPolicy


class TextReader:
    """One text, cut to a model's tokens, its beginning read once and then packed under any number of policies.

    Args:
        model: as ``load_model`` returns it.
        tokenizer: the model's.
        text: at least ``context + tokens`` of its tokens.
        context: tokens that are read exactly and packed.
        tokens: tokens after them. The first of them is predicted by an exact read and not measured.
        window: the most tokens that the model takes.

    Raises:
        KVMMError: the text is too short, or context and tokens exceed the window.
    """

    def __init__(self, model: Any, tokenizer: Any, text: str, context: int, tokens: int, window: int):
        ids = tokenizer([text], return_tensors="pt")["input_ids"][:, : context + tokens].to(model.device)
        if ids.shape[1] < context + tokens:
            raise KVMMError(f"the text has {ids.shape[1]} tokens and {context + tokens} are to be read: use less")
        if ids.shape[1] > window:
            raise KVMMError(f"context and tokens are {ids.shape[1]} tokens; the model's window holds {window}")
        inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        self.model, self.ids, self.context = model, ids, context
        self.positions = all_position_ids(model, inputs)
        self.words = len(tokenizer.decode(ids[0, context + 1 :], skip_special_tokens=True).split())
        self.batch = DocumentBatch(model, [EncodedPrompt(inputs, self.positions, context, True)])

    @torch.no_grad()
    def read(self, policy: str | KVPolicy, stride: int) -> dict[str, Any]:
        """Read the continuation under a policy, ``stride`` tokens at a time; scores, bytes and times of a row.

        The mean log-likelihood is in nats per token.
        """
        cache, total = self.batch.cache(policy), self.ids.shape[1]
        begin, likelihood = time.perf_counter(), 0.0
        for start in range(self.context, total - 1, stride):
            end = min(start + stride, total - 1)
            # the last one is a step of decoding, which packs what is full; several tokens at once pack nothing
            for first, last in ((start, end - 1), (end - 1, end)):
                if first < last:
                    likelihood += self._likelihood(cache, first, last)
        count = total - 1 - self.context
        nbytes, dense, packed = cache_sizes(cache, [total - 1], 1, self.batch.values_per_token)[0]
        seconds = time.perf_counter() - begin
        return {
            "inverse_perplexity": math.exp(likelihood / count),
            "log_likelihood": likelihood / count,
            "tokens": count,
            "words": self.words,
            "token_counts": {"prompt": self.context, "output": 0},
            "kv_bytes": nbytes,
            "kv_bytes_bf16": dense,
            "bits_per_value": 16 * nbytes / dense,
            "packed_bits_per_value": packed,
            "tokens_by_modality": {"text": total - 1},
            "ttft_s": self.batch.seconds,
            "tpot_s": seconds / count,
            "seconds": seconds,
            "output_tokens": 0,
            "repetition_rate": 0.0,
        }

    def _likelihood(self, cache: Any, start: int, end: int) -> float:
        """Read the tokens ``start`` to ``end``: the log-likelihood of those that follow each of them."""
        out = self.model(
            input_ids=self.ids[:, start:end],
            attention_mask=torch.ones_like(self.ids[:, :end]),
            position_ids=self.positions[..., start:end],
            past_key_values=cache,
            use_cache=True,
        )
        log = out.logits[0].float().log_softmax(-1)
        return log.gather(1, self.ids[0, start + 1 : end + 1, None]).double().sum().item()


__all__ = ["TextReader"]
