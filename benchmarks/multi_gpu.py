"""Packed caches of models spread over several GPUs: the tokens of one GPU, and tokens a second.

    python -m benchmarks.multi_gpu [--gpus 1 2 4] [--ways device_map tp_plan] [--models qwen3 tiny-omni]

Every number of GPUs gets processes of its own. ``device_map="auto"`` puts layers on several GPUs of one process, which
then work in turn: it makes room, not speed, and no CUDA graph spans them. ``tp_plan="auto"`` gives every process its
share of the heads (started with torchrun) and replays a graph in each. Two models: a Qwen3 of 1.5 billion random
weights with a long prompt, and the embedded omni model reading an invoice. Tokens are compared in float32
with those of one GPU; speed is measured in bfloat16, of ``generate()`` without the time to the first token.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.report import Report, add_common_options, table
from benchmarks.timing import synchronize
from kvmm import KVMMCache, load_model
from kvmm.media import load_image
from kvmm.models import assets_folder

MODELS = {"qwen3": ("rd2", "oscar2"), "tiny-omni": ("balanced",)}
WAYS = ("device_map", "tp_plan")
_SHAPE = {"num_hidden_layers": 28, "hidden_size": 2048, "intermediate_size": 6144, "vocab_size": 32000}
_HEADS = {"num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128}
_TOY = {"num_hidden_layers": 4, "hidden_size": 64, "intermediate_size": 96, "vocab_size": 128}
_TOY_HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32}
_ROOT = Path(__file__).parents[1]


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line; prints a table and writes JSON after every row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", nargs="+", type=int, default=None, help="default: 1, 2, 4 as far as there are")
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=WAYS)
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--tokens", type=int, default=8192, help="of the random model's prompt")
    parser.add_argument("--new-tokens", type=int, default=256)
    parser.add_argument("--timeout", type=int, default=300, help="seconds that one row may take")
    add_common_options(parser, "multi_gpu")
    parser.add_argument("--child", help=argparse.SUPPRESS)  # what one process of a row does, as JSON
    given = sys.argv[1:] if arguments is None else list(arguments)
    options = parser.parse_args(given)
    if options.child:
        child(**json.loads(options.child))
        return
    if options.smoke:
        options.tokens, options.new_tokens = min(options.tokens, 100), min(options.new_tokens, 40)
    present = torch.cuda.device_count() if options.device != "cpu" else 2
    counts = options.gpus or [n for n in (1, 2, 4) if n <= present]
    report = Report("multi_gpu", given, options)
    with tempfile.TemporaryDirectory() as folder:
        for model in options.models:
            path = assets_folder() / "tiny-omni"
            if model == "qwen3":
                path = Path(folder) / model
                make_model(path, options)
            for count in counts:
                for way in options.ways if count > 1 else [None]:
                    row = {"name": f"{model} {way or 'alone'} x{count}", "model": model, "way": way, "gpus": count}
                    with report.guarded(row):
                        row["policies"] = run(model, path, way, count, Path(folder), options)
    show(report)
    report.finish()


def make_model(path: Path, options: argparse.Namespace) -> None:
    """Save the random model."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    shape = {**_TOY, **_TOY_HEADS} if options.smoke else {**_SHAPE, **_HEADS}
    torch.manual_seed(options.seed)
    config = Qwen3Config(
        **shape,
        max_position_embeddings=2**17,
        initializer_range=0.2 if options.smoke else 0.04,  # logits that differ, so that tokens can be compared
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
    )
    with torch.device("cuda" if options.device != "cpu" else "cpu"):
        Qwen3ForCausalLM(config).bfloat16().save_pretrained(path)


def run(
    model: str, path: Path, way: str | None, count: int, folder: Path, options: argparse.Namespace
) -> dict[str, Any]:
    """One row: its processes, and what the first of them measured."""
    found = folder / "found.json"
    found.unlink(missing_ok=True)
    task = {
        "model": model,
        "path": str(path),
        "way": way,
        "reference": str(folder / f"{model}.json"),
        "output": str(found),
        "device": options.device,
        "tokens": options.tokens,
        "new_tokens": options.new_tokens,
        "smoke": options.smoke,
    }
    command = [sys.executable]
    if way == "tp_plan":
        command += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count)]
    command += ["-m", "benchmarks.multi_gpu", "--child", json.dumps(task)]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(torch.cuda.device_count()))))
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ",".join(visible.split(",")[:count])}
    pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=_ROOT, env=environment, start_new_session=True, **pipes) as child_process:
        try:
            errors = child_process.communicate(timeout=options.timeout)[1]
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"not done after {options.timeout} s") from None
        finally:  # its own children too, which would keep the pipe open
            with suppress(ProcessLookupError):
                os.killpg(child_process.pid, signal.SIGKILL)
    if child_process.returncode or not found.is_file():
        lines = [line for line in errors.splitlines() if "Error" in line]
        raise RuntimeError((lines or errors.splitlines() or ["no output"])[-1])
    return json.loads(found.read_text(encoding="utf-8"))


# -- one process ------------------------------------------------------------------------------------------------------


def child(
    model: str,
    path: str,
    way: str | None,
    reference: str,
    output: str,
    device: str,
    tokens: int,
    new_tokens: int,
    smoke: bool,
) -> None:
    """Generate with every policy; the first process compares, and writes what it found."""
    if device == "cpu":
        torch.set_num_threads(1)
    first = int(os.environ.get("RANK", 0)) == 0
    known = json.loads(Path(reference).read_text(encoding="utf-8")) if Path(reference).is_file() else {}
    found: dict[str, Any] = {}
    for dtype in (torch.float32, torch.bfloat16):
        network = _load(model, path, way, dtype, device)
        inputs = _inputs(model, path, network, tokens)
        length = inputs["input_ids"].shape[1]
        for policy in MODELS[model]:
            row = found.setdefault(policy, {})
            options: dict[str, Any] = {}
            if way != "device_map":
                options = {"max_length": length + new_tokens, "graph": True}
            ids, _ = _generate(network, inputs, policy, new_tokens, options)
            if dtype == torch.float32:
                row["tokens_differ_at"] = _first_difference(known.setdefault(policy, ids), ids)
            else:
                ids, row["tokens_per_second"] = _generate(network, inputs, policy, new_tokens, options)
                row["graph"] = bool(options)
        devices = len({p.device for p in network.parameters()})
        found = {policy: row | {"devices": devices} for policy, row in found.items()}
        del network
    if first:
        Path(reference).write_text(json.dumps(known), encoding="utf-8")
        Path(output).write_text(json.dumps(found), encoding="utf-8")
    if torch.distributed.is_initialized():
        torch.distributed.barrier()
        # graphs hold the communicator, which would wait for them for ever, and threads that gloo leaves behind can
        # abort a process that ends in order
        os._exit(0)


def _load(model: str, path: str, way: str | None, dtype: torch.dtype, device: str) -> nn.Module:
    import transformers

    if model == "tiny-omni":
        cls = transformers.Qwen2_5OmniThinkerForConditionalGeneration
    else:
        cls = transformers.AutoModelForCausalLM
    if way == "tp_plan":
        network = cls.from_pretrained(path, dtype=dtype, tp_plan="auto")
    elif way == "device_map":
        network = cls.from_pretrained(path, dtype=dtype, device_map="auto" if device != "cpu" else "cpu")
    else:
        network = cls.from_pretrained(path, dtype=dtype).to(device)
    network.generation_config.eos_token_id = None
    network.generation_config.pad_token_id = 0
    return network.eval()


def _inputs(model: str, path: str, network: nn.Module, tokens: int) -> dict[str, torch.Tensor]:
    if model == "qwen3":
        generator = torch.Generator().manual_seed(0)
        ids = torch.randint(3, network.config.vocab_size, (1, tokens), generator=generator)
        return {"input_ids": ids.to(network.device)}
    _, processor = load_model(path, device="cpu", dtype=torch.float32)
    page = load_image(assets_folder() / "samples" / "invoice.png")
    content = [{"type": "image"}, {"type": "text", "text": "What is the total?"}]
    text = processor.apply_chat_template([{"role": "user", "content": content}], add_generation_prompt=True)
    inputs = processor(text=[text], images=[page], return_tensors="pt")
    return {n: x.to(network.device, network.dtype if x.is_floating_point() else None) for n, x in inputs.items()}


@torch.no_grad()
def _generate(
    network: nn.Module, inputs: dict[str, torch.Tensor], policy: str, count: int, options: dict[str, Any]
) -> tuple[list[int], float]:
    """New tokens, and how many a second after the first one."""
    cache = KVMMCache.for_model(network, policy, **options)
    length = inputs["input_ids"].shape[1]
    settings = {"do_sample": False, "past_key_values": cache}
    ids = network.generate(**inputs, max_new_tokens=4, min_new_tokens=4, **settings)
    synchronize(network.device)
    begin = time.perf_counter()
    rest = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    ids = network.generate(**rest, max_new_tokens=count - 4, min_new_tokens=count - 4, **settings)
    synchronize(network.device)
    seconds = time.perf_counter() - begin
    if options and (reason := cache.graph.reason):
        raise RuntimeError(f"no graph: {reason}")
    return ids[0, length:].tolist(), (count - 4) / seconds


def _first_difference(expected: list[int], found: list[int]) -> int | None:
    return next((i for i, (a, b) in enumerate(zip(expected, found, strict=True)) if a != b), None)


def show(report: Report) -> None:
    """Print the table."""
    rows = []
    for row in report.rows:
        for policy, found in row.get("policies", {}).items():
            differs = found["tokens_differ_at"]
            same = "the same" if differs is None else f"differ at {differs}"
            rows.append((f"{row['name']} {policy}", found["devices"], found["tokens_per_second"], found["graph"], same))
    table(("", "devices", "tokens/s", "graph", "tokens"), rows)


if __name__ == "__main__":
    main()
