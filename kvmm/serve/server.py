"""A server put together from a model and what the operator chose, and run until it is interrupted."""

from __future__ import annotations

import copy
import hashlib
import hmac
import json
import secrets
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
import uvicorn
from transformers import PreTrainedModel

from kvmm import __version__
from kvmm.cache import KVMMCache
from kvmm.cache.file import calibration_digest
from kvmm.calibration import model_fingerprint
from kvmm.models.loading import free_bytes
from kvmm.models.question import window_of
from kvmm.models.speculative import check_drafts, drafter_of
from kvmm.policy import KVPolicy, get_policy
from kvmm.serve.disk import DiskPrefixes
from kvmm.serve.engine import Engine
from kvmm.serve.http import Service, Settings, build_app
from kvmm.serve.metrics import Metrics
from kvmm.serve.prefixes import PrefixStore
from kvmm.serve.prompts import PromptMaker

GRACE_SECONDS = 5  # for connections to end when the server stops


@dataclass(frozen=True)
class Options:
    """Of the engine and its prefixes.

    Attributes:
        max_running: answers that are read or decoded at once.
        cache_budget: bytes of prefixes in memory; None is a quarter of what is free (half on a GPU).
        cache_dir: folder of prefixes on disk, or None.
        disk_budget: bytes of that folder.
        max_pages: of one PDF; None is kvmm's limit.
        speculative: drafts of greedy answers that run alone, as :func:`kvmm.models.speculative.drafter_of` takes it.
        graph: whether steps on a GPU replay the layers as CUDA graphs while several answers run together, as
            :class:`kvmm.serve.engine.Engine` says.
    """

    max_running: int = 16
    cache_budget: int | None = None
    cache_dir: Path | None = None
    disk_budget: int = 16 * 2**30
    max_pages: int | None = None
    speculative: str | None = None
    graph: bool = False


def build_service(
    model: PreTrainedModel, processor: Any, policy: str | KVPolicy, settings: Settings, options: Options
) -> Service:
    """Everything that answers requests; nothing runs yet.

    Raises:
        KVMMError: for an unknown policy, a model that it does not suit, or a folder that cannot be used.
    """
    policy = get_policy(policy)
    probe = KVMMCache.for_model(model, policy, graph=False)  # what does not suit the model is an error now
    drafter = None if options.speculative is None else drafter_of(options.speculative, processor, device=model.device)
    check_drafts(drafter, cache=probe)
    fingerprint = served_fingerprint(model, processor, probe)
    disk = None
    if options.cache_dir is not None:
        disk = DiskPrefixes(options.cache_dir, fingerprint, options.disk_budget)
    budget = options.cache_budget
    if budget is None:
        budget = free_bytes(model.device) // (2 if model.device.type == "cuda" else 4)
    prefixes = PrefixStore(budget, disk, None if disk is None else lambda name: disk.load(name, model))
    metrics = Metrics()
    make_drafter = None if drafter is None else lambda: copy.copy(drafter)  # an answer's own cache, the same weights
    engine = Engine(model, policy, prefixes, metrics, options.max_running, make_drafter, options.graph)
    maker = PromptMaker(model, processor, fingerprint, options.max_pages)
    tokenizer = getattr(processor, "tokenizer", processor)
    service = Service(
        settings,
        engine,
        maker,
        metrics,
        tokenizer,
        window_of(model),
        _scopes() if disk is None else disk.scope,
        {"version": __version__, "policy": policy.name, "max_new_tokens": settings.max_new_tokens},
    )
    _add_gauges(service, prefixes)
    return service


def served_fingerprint(model: PreTrainedModel, processor: Any, cache: KVMMCache) -> bytes:
    """SHA-256 of what packed tokens depend on beside the prompt: weights, policy, calibration, processor, versions."""
    digest = hashlib.sha256()
    facts = {
        "kvmm": __version__,
        "transformers": transformers.__version__,
        "decoder": model_fingerprint(model),
        "dtype": str(model.dtype),
        "policy": cache.policy.to_dict(),
        "processor": processor.to_dict() if hasattr(processor, "to_dict") else type(processor).__name__,
    }
    digest.update(json.dumps(facts, sort_keys=True, default=str).encode())
    for name, weight in sorted(model.named_parameters()):  # encoders, too
        flat = weight.detach().flatten()
        sample = flat[:: max(1, flat.numel() // 16)][:16].to("cpu", torch.float32)
        digest.update(f"{name} {tuple(weight.shape)}".encode() + sample.numpy().tobytes())
    digest.update(str(calibration_digest(cache.calibration)).encode())
    return digest.digest()


def _scopes() -> Callable[[str], str]:
    """Scopes of this process alone."""
    secret = secrets.token_bytes(32)
    return lambda key: hmac.new(secret, key.encode(), hashlib.sha256).hexdigest()[:32]


def _add_gauges(service: Service, prefixes: PrefixStore) -> None:
    metrics, engine, counts = service.metrics, service.engine, prefixes.counts
    metrics.gauge("kvmm_waiting", "Requests whose prompt is not read yet.", lambda: engine.status().waiting)
    metrics.gauge("kvmm_reading", "Requests whose prompt is being read.", lambda: engine.status().reading)
    metrics.gauge("kvmm_decoding", "Answers that are generated.", lambda: engine.status().decoding)
    metrics.gauge("kvmm_places", "Requests that are here, their preparation included.", lambda: service.places)
    metrics.gauge("kvmm_answers_bytes", "Bytes of the caches of running answers.", lambda: engine.status().nbytes)
    metrics.gauge("kvmm_files_bytes", "Bytes of decoded files that are kept.", lambda: service.maker.files.nbytes)
    metrics.gauge("kvmm_prefixes", "Prefixes in memory.", lambda: len(prefixes))
    metrics.gauge("kvmm_prefixes_bytes", "Bytes of the prefixes in memory.", lambda: prefixes.nbytes)
    metrics.gauge("kvmm_prefixes_budget_bytes", "Bytes that they may have.", lambda: prefixes.budget)
    for name, text in (
        ("hits", "Prompts that began with a kept prefix."),
        ("misses", "Prompts that began with none."),
        ("disk_hits", "Prefixes that were read from disk."),
        ("evictions", "Prefixes that had to go from memory."),
    ):
        metrics.gauge(f"kvmm_prefix_{name}_total", text, lambda name=name: getattr(counts, name), "counter")
    if (disk := prefixes.disk) is not None:
        metrics.gauge("kvmm_disk_prefixes", "Prefixes on disk.", lambda: len(disk))
        metrics.gauge("kvmm_disk_written_bytes_total", "Bytes written to disk.", lambda: disk.bytes_written, "counter")
        metrics.gauge("kvmm_disk_failures_total", "Prefixes not written.", lambda: disk.failures, "counter")


class _Server(uvicorn.Server):
    """Ends the answers first, so that no connection holds the server up when it stops."""

    def __init__(self, config: uvicorn.Config, engine: Engine) -> None:
        super().__init__(config)
        self._engine = engine

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._engine.stop()
        await super().shutdown(sockets)


def run_server(service: Service, host: str, port: int) -> None:
    """Serve until the process is interrupted or terminated."""
    config = uvicorn.Config(
        build_app(service),
        host=host,
        port=port,
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=GRACE_SECONDS,
        server_header=False,
    )
    _Server(config, service.engine).run()


__all__ = ["Options", "build_service", "run_server", "served_fingerprint"]
