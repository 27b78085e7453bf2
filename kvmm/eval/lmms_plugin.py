"""kvmm as a model of lmms-eval: ``--model kvmm --model_args pretrained=Qwen/Qwen2.5-VL-7B-Instruct,kv_policy=rd2``.

lmms-eval finds :func:`manifest` by its entry point; nothing else imports this module, which needs lmms-eval.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from accelerate import Accelerator
from lmms_eval.api.instance import GenerationResult, Instance, TokenCounts
from lmms_eval.api.model import lmms
from lmms_eval.models.model_utils.gen_metrics import log_metrics
from lmms_eval.models.registry_v2 import ModelManifest
from lmms_eval.protocol import ChatMessages

from kvmm.errors import KVMMError
from kvmm.eval.answering import resolve_policies
from kvmm.eval.asking import new_cache
from kvmm.eval.batching import Answer, DocumentBatch, Prompt, Uncollatable, make_prompt
from kvmm.media import SAMPLE_RATE, load_audio, load_image
from kvmm.models import load_model

MAX_NEW_TOKENS = 128  # lmms-eval's own default, for tasks that name none


def manifest() -> ModelManifest:
    """What lmms-eval registers."""
    return ModelManifest("kvmm", chat_class_path=f"{__name__}.KVMM")


class KVMM(lmms):
    """A model with a quantised KV cache, of any family that kvmm reads. Decoding is greedy.

    Args:
        pretrained: folder or hub id; None for the embedded model.
        kv_policy: a preset, a YAML file, "dynamic" for transformers' own cache, or a peer such as "hf-hqq".
        pack_before_question: pack each document before its question is read, the harder order.
        device, dtype: as in ``kvmm.models.load_model``.
        batch_size: requests decoded together.

    Raises:
        KVMMError: for an unknown policy, or a model that cannot be loaded.
    """

    is_simple = False

    def __init__(
        self,
        pretrained: str | None = None,
        kv_policy: str = "balanced",
        pack_before_question: bool = True,
        device: str | None = None,
        dtype: str | None = None,
        batch_size: int | str = 1,
        **unknown: Any,
    ) -> None:
        super().__init__()
        unknown.pop("max_batch_size", None)  # lmms-eval passes it to every model
        if unknown:
            raise KVMMError(f"kvmm takes no model argument {', '.join(unknown)}: use pretrained, kv_policy, dtype ...")
        (self.policy,) = resolve_policies([kv_policy]).values()
        self.pack_before_question = pack_before_question
        self.batch_size = int(batch_size)
        device = self._join(device)
        self.model, self.processor = load_model(pretrained, device=device, dtype=dtype)
        new_cache(self.model, self.policy)  # a policy that does not fit the model is an error now

    def _join(self, device: str | None) -> str | None:
        """Take part in the processes of ``accelerate launch``; returns the device of this one."""
        if not torch.distributed.is_torchelastic_launched():
            return device
        self.accelerator = Accelerator()  # lmms-eval waits on it
        self._rank, self._world_size = self.accelerator.process_index, self.accelerator.num_processes
        return str(self.accelerator.device)

    def generate_until(self, requests: list[Instance]) -> list[GenerationResult]:
        """Answers in the order of the requests, each with its token counts."""
        results: dict[int, GenerationResult] = {}
        spent = {"tokens": 0, "seconds": 0.0, "kv_bytes": 0, "kv_bytes_bf16": 0}
        by_settings: dict[str, list[int]] = {}
        for number, request in enumerate(requests):
            by_settings.setdefault(json.dumps(request.args[2], sort_keys=True, default=str), []).append(number)
        for numbers in by_settings.values():
            for start in range(0, len(numbers), self.batch_size):
                chunk = numbers[start : start + self.batch_size]
                settings = requests[chunk[0]].args[2]
                prompts = [self._prompt(requests[number]) for number in chunk]
                begin = time.perf_counter()
                answers = self._answers(prompts, int(settings.get("max_new_tokens") or MAX_NEW_TOKENS))
                spent["seconds"] += time.perf_counter() - begin
                for number, prompt, answer in zip(chunk, prompts, answers, strict=True):
                    text = self._text(answer, settings)
                    counts = TokenCounts(input_tokens=prompt.length, output_tokens=len(answer.tokens))
                    results[number] = GenerationResult(text=text, token_counts=counts)
                    self.cache_hook.add_partial("generate_until", (requests[number].args[0], settings), text)
                    spent["tokens"] += len(answer.tokens)
                    spent["kv_bytes"] += answer.kv_bytes
                    spent["kv_bytes_bf16"] += answer.kv_bytes_bf16
        self._log(spent, len(requests))
        return [results[number] for number in range(len(requests))]

    def _prompt(self, request: Instance) -> Prompt:
        _, messages_of, _, doc_id, task, split = request.args
        messages = ChatMessages(messages=messages_of(self.task_dict[task][split][doc_id]))
        images, videos, audios = messages.extract_media()
        if videos:
            raise KVMMError("kvmm's lmms-eval model reads images and audio: choose a task without videos.")
        text = self.processor.apply_chat_template(messages.to_hf_messages(), tokenize=False, add_generation_prompt=True)
        media: dict[str, Any] = {"images": [load_image(image) for image in images]} if images else {}
        if audios:
            media |= {"audio": [_recording(audio) for audio in audios], "sampling_rate": SAMPLE_RATE}
        inputs = self.processor(text=[text], return_tensors="pt", add_special_tokens=False, **media)
        device, dtype = self.model.device, self.model.dtype
        inputs = {k: v.to(device, dtype if v.is_floating_point() else None) for k, v in inputs.items()}
        return make_prompt(self.model, inputs, pack_first=self.pack_before_question)

    def _answers(self, prompts: Sequence[Prompt], max_new_tokens: int) -> list[Answer]:
        """Answers of one batch, or of its prompts one by one where they do not fit together."""
        if len({prompt.packs for prompt in prompts}) == 1:
            try:
                batch = DocumentBatch(self.model, prompts)
                return batch.answers(self.policy, prompts, range(len(prompts)), max_new_tokens)
            except Uncollatable:
                pass
        return [answer for prompt in prompts for answer in self._answers([prompt], max_new_tokens)]

    def _text(self, answer: Answer, settings: Mapping[str, Any]) -> str:
        tokenizer = getattr(self.processor, "tokenizer", self.processor)
        text = tokenizer.decode(answer.tokens, skip_special_tokens=True).strip()
        until = settings.get("until") or []
        for end in [until] if isinstance(until, str) else until:
            text = text.split(end)[0] if end else text
        return text

    def _log(self, spent: Mapping[str, Any], count: int) -> None:
        """The speed and the bytes of the cache, for the throughput part of lmms-eval's results file."""
        if not count:
            return
        log_metrics(
            total_gen_tokens=spent["tokens"],
            total_elapsed_time=spent["seconds"],
            avg_speed=spent["tokens"] / spent["seconds"] if spent["seconds"] else 0.0,
            additional_metrics={
                "rank": self.rank,
                "total_requests": count,
                "kv_bytes": spent["kv_bytes"] / count,
                "kv_bytes_bf16": spent["kv_bytes_bf16"] / count,
                "bits_per_value": 16 * spent["kv_bytes"] / spent["kv_bytes_bf16"],
            },
        )

    def loglikelihood(self, requests: list[Instance]) -> list[tuple[float, bool]]:
        """Refused: scores of given texts would be those of the exact pass, not of the cache."""
        raise KVMMError("kvmm's lmms-eval model generates answers: choose a generate_until task.")

    def generate_until_multi_round(self, requests: list[Instance]) -> list[str]:
        """Refused: rounds share no cache in lmms-eval."""
        raise KVMMError("kvmm's lmms-eval model answers one round: choose a generate_until task.")


def _recording(audio: Any) -> Any:
    """Samples at 16 kHz of a path, or of the hub's ``{"array", "sampling_rate"}``."""
    if isinstance(audio, Mapping):
        return load_audio((int(audio["sampling_rate"]), audio["array"]))
    return load_audio(audio)


__all__ = ["KVMM", "manifest"]
