"""kvmm as a model of lmms-eval: ``--model kvmm --model_args pretrained=Qwen/Qwen2.5-VL-7B-Instruct,kv_policy=rd2``.

lmms-eval finds :func:`manifest` by its entry point; nothing else imports this module, which needs lmms-eval. How chats
are answered is :mod:`kvmm.eval.run.chat_adapter`.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from accelerate import Accelerator
from lmms_eval.api.instance import GenerationResult, Instance, TokenCounts
from lmms_eval.api.model import lmms
from lmms_eval.models.model_utils.gen_metrics import log_metrics
from lmms_eval.models.registry_v2 import ModelManifest
from loguru import logger
from tqdm import tqdm

from kvmm.errors import KVMMError
from kvmm.eval.run.chat_adapter import Decoding, answer_chats
from kvmm.eval.run.records import Row
from kvmm.eval.run.runner import default_batch_size
from kvmm.memory_text import bits_text
from kvmm.models import load_model
from kvmm.models.caches import new_cache, resolve_policies
from kvmm.policy import KVPolicy, get_policy

MAX_NEW_TOKENS = 128  # as lmms-eval's own models, for tasks that name no length
FEWSHOT_DELIMITER = "\n\n"  # lmms-eval ends the answers of every task with it that names no end; its models ignore it
_ROW = (
    "kv_bytes",
    "kv_bytes_bf16",
    "bits_per_value",
    "packed_bits_per_value",
    "tokens_by_modality",
    "ttft_s",
    "tpot_s",
)


def manifest() -> ModelManifest:
    """The manifest that lmms-eval registers."""
    return ModelManifest("kvmm", chat_class_path=f"{__name__}.KVMM")


@dataclass
class CacheCounts(TokenCounts):
    """Token counts of an answer and what its cache took, for ``token_counts`` of lmms-eval's sample files."""

    cache: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {**super().to_dict(), **self.cache}


class KVMM(lmms):
    """A model with a quantised KV cache, of any family that kvmm reads.

    Answers are those of ``kvmm eval``: greedy unless the task samples, media packed before the question is read.

    Args:
        pretrained: folder or hub id; None for the default model.
        kv_policy: a preset, a YAML file, "dynamic" for transformers' own cache, or a peer such as "hf-hqq".
        pack_before_question: pack each document before its question is read, the harder order.
        device, dtype: as in :func:`kvmm.models.load_model`; the processes of ``accelerate launch`` have a GPU each.
        batch_size: requests decoded together, from ``--batch_size``; "auto" takes ``kvmm eval``'s.
        max_batch_size: at most this many for "auto".
        max_new_tokens: length of the answers of tasks that name none.
        min_pixels, max_pixels: an image's pixels after resizing; None keeps the model's own.
        key_bits, value_bits, group_size, residual_length, num_sink_tokens, budget, calibration: change the policy, see
            :func:`kvmm.get_policy`.

    Raises:
        KVMMError: for an unknown argument or policy, or a model that cannot be loaded.
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
        max_batch_size: int | None = None,
        max_new_tokens: int = MAX_NEW_TOKENS,
        min_pixels: int | None = None,
        max_pixels: int | None = None,
        key_bits: float | None = None,
        value_bits: float | None = None,
        group_size: int | None = None,
        residual_length: int | None = None,
        num_sink_tokens: int | None = None,
        budget: int | None = None,
        calibration: str | None = None,
        **unknown: Any,
    ) -> None:
        super().__init__()
        if unknown:
            argument_names = [name for name in inspect.signature(type(self)).parameters if name != "unknown"]
            raise KVMMError(f"kvmm has no model argument {', '.join(unknown)}: use {', '.join(argument_names)}.")
        overrides = {
            "key_bits": key_bits,
            "value_bits": value_bits,
            "group_size": group_size,
            "residual_length": residual_length,
            "num_sink_tokens": num_sink_tokens,
            "budget": budget,
            "calibration": calibration,
        }
        self.policy = _policy(str(kv_policy), {k: v for k, v in overrides.items() if v is not None})
        self.accelerator = Accelerator()  # lmms-eval waits and gathers with it
        self._rank, self._world_size = self.accelerator.process_index, self.accelerator.num_processes
        if self._world_size > 1 and device in (None, "cuda"):
            device = str(self.accelerator.device)
        self.model, self.processor = load_model(pretrained, device=device, dtype=dtype)
        new_cache(self.model, self.policy)  # a policy that does not fit the model is an error now
        _set_pixels(self.processor, min_pixels, max_pixels)
        self.config, self.device = self.model.config, self.model.device
        self.tokenizer = getattr(self.processor, "tokenizer", self.processor)
        self.batch_size = _batch_size(batch_size, max_batch_size, self.model)
        self.max_new_tokens, self.pack_before_question = max_new_tokens, pack_before_question

    def generate_until(self, requests: list[Instance]) -> list[GenerationResult]:
        """Answers in the order of the requests, each with its token counts and bytes.

        A request that cannot be answered (a damaged image, a prompt longer than the model's window) has an empty
        answer and a warning.

        Raises:
            KVMMError: the task shows media that the model cannot read, or wants beam search.
        """
        by_decoding: dict[Decoding, list[int]] = {}
        for number, request in enumerate(requests):
            by_decoding.setdefault(self._decoding(request.args[2]), []).append(number)
        for name in dict.fromkeys(name for decoding in by_decoding for name in decoding.ignored):
            logger.warning(f"kvmm ignores the task's generation setting {name}.")
        rows: dict[int, Row] = {}
        begin = time.perf_counter()
        with tqdm(total=len(requests), disable=self.rank != 0, desc="kvmm") as bar:
            for decoding, numbers in by_decoding.items():
                chats = [self._chat(requests[number]) for number in numbers]
                answers = answer_chats(
                    self.model,
                    self.processor,
                    self.policy,
                    chats,
                    decoding,
                    batch_size=self.batch_size,
                    pack_before_question=self.pack_before_question,
                )
                for number, row in zip(numbers, answers, strict=True):
                    rows[number] = row
                    bar.update()
        seconds = time.perf_counter() - begin
        results = [self._result(request, rows[number]) for number, request in enumerate(requests)]
        answered = [(r, rows[n]) for n, r in enumerate(requests) if not (r.metadata or {}).get("__padding_only__")]
        self._log(answered, seconds)
        return results

    def _decoding(self, settings: Mapping[str, Any] | None) -> Decoding:
        settings = dict(settings or {})
        until = settings.get("until") or ()
        settings["until"] = [end for end in ([until] if isinstance(until, str) else until) if end != FEWSHOT_DELIMITER]
        return Decoding.of(settings, self.max_new_tokens)

    def _chat(self, request: Instance) -> Callable[[], list[dict[str, Any]]]:
        """The messages of a request, made when they are asked for."""
        _, messages_of, _, doc_id, task, split = request.args
        return lambda: messages_of(self.task_dict[task][split][doc_id])

    def _result(self, request: Instance, row: Row) -> GenerationResult:
        text, name = row["filtered_resps"], f"{request.task_name} {request.doc_id}"
        if row["error"] is not None:
            logger.warning(f"{name} has no answer: {row['error']}")
            return GenerationResult(text="")
        self.cache_hook.add_partial("generate_until", (request.args[0], request.args[2]), text)
        counts = row["token_counts"]
        cache = {name: row[name] for name in _ROW if row[name] is not None}
        return GenerationResult(text, CacheCounts(counts["prompt"], counts["output"], cache=cache))

    def _log(self, answered: Sequence[tuple[Instance, Row]], seconds: float) -> None:
        """One line per task for people, and the means for the throughput part of lmms-eval's results file."""
        name = self.policy if isinstance(self.policy, str) else self.policy.name
        for task in dict.fromkeys(request.task_name for request, _ in answered):
            rows = [row for request, row in answered if request.task_name == task]
            logger.info(f"{task}: {_summary(rows)} (kv_policy={name}, rank {self.rank})")
        good = [row for _, row in answered if row["error"] is None]
        if good:
            tokens = sum(row["output_tokens"] for row in good)
            kv_bytes, dense = (sum(row[key] for row in good) for key in ("kv_bytes", "kv_bytes_bf16"))
            log_metrics(
                total_gen_tokens=tokens,
                total_elapsed_time=seconds,
                avg_speed=tokens / seconds,
                additional_metrics={
                    "rank": self.rank,
                    "total_requests": len(good),
                    "kv_bytes": kv_bytes / len(good),
                    "kv_bytes_bf16": dense / len(good),
                    "bits_per_value": 16 * kv_bytes / dense,
                },
            )

    def loglikelihood(self, requests: list[Instance]) -> list[tuple[float, bool]]:
        """Refused."""
        raise KVMMError("kvmm generates answers and gives no log-likelihoods: choose a generate_until task.")

    def generate_until_multi_round(self, requests: list[Instance]) -> list[str]:
        """Refused."""
        raise KVMMError("kvmm answers one round: choose a generate_until task.")


def _policy(name: str, overrides: Mapping[str, Any]) -> str | KVPolicy:
    """The policy that the model arguments name."""
    (policy,) = resolve_policies([name]).values()
    if not overrides:
        return policy
    if isinstance(policy, str):
        raise KVMMError(f"{', '.join(overrides)} cannot change kv_policy={policy}: choose one of kvmm's own policies.")
    return get_policy(policy, **overrides)


def _batch_size(size: int | str, most: int | None, model: Any) -> int:
    if str(size).startswith("auto"):
        return min(default_batch_size(model), most or default_batch_size(model))
    if not str(size).isdigit() or int(size) < 1:
        raise KVMMError(f"--batch_size must be 1 or more, or auto, not {size!r}.")
    return int(size)


def _set_pixels(processor: Any, least: int | None, most: int | None) -> None:
    """Change the pixel budget of the image processors that have one."""
    wanted = {"shortest_edge": least, "longest_edge": most}
    wanted = {name: value for name, value in wanted.items() if value is not None}
    if not wanted:
        return
    images = getattr(processor, "image_processor", None)
    size = getattr(images, "size", None)
    if images is None or not hasattr(images, "merge_size") or size is None:
        raise KVMMError("This model has no pixel budget: leave out min_pixels and max_pixels.")
    wanted = {**{name: size[name] for name in ("shortest_edge", "longest_edge")}, **wanted}
    if wanted["shortest_edge"] > wanted["longest_edge"]:
        least, most = wanted["shortest_edge"], wanted["longest_edge"]
        raise KVMMError(f"min_pixels is {least} and max_pixels {most}: give both, the smaller one first.")
    images.size = type(size)(**wanted)


def _summary(rows: Sequence[Row]) -> str:
    good = [row for row in rows if row["error"] is None]
    line = f"{len(good)} answers"
    if good:
        kv_bytes, dense = (sum(row[key] for row in good) for key in ("kv_bytes", "kv_bytes_bf16"))
        packed = [row["packed_bits_per_value"] for row in good if row["packed_bits_per_value"]]
        bits = bits_text(16 * kv_bytes / dense, sum(packed) / len(packed) if packed else None)
        line += f", KV cache {kv_bytes / len(good) / 2**20:.3f} MiB each, {bits}"
        line += f", {dense / len(good) / 2**20:.3f} MiB in bf16"
    return line if len(good) == len(rows) else f"{line}; {len(rows) - len(good)} without an answer"


__all__ = ["KVMM", "CacheCounts", "manifest"]
