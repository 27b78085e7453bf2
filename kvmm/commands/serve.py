"""``kvmm serve``: an OpenAI-compatible server over packed caches."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from kvmm import decoding
from kvmm.commands.app import API_KEY_ENV, check_address
from kvmm.commands.inputs import quiet_transformers
from kvmm.commands.options import Device, Dtype, FuseValues, Model, Policy, Speculative
from kvmm.errors import KVMMError
from kvmm.policy import get_policy
from kvmm.policy.files import parse_bytes

LOOPBACK = ("localhost", "127.0.0.1", "::1")


def command(
    model: Model = None,
    device: Device = None,
    dtype: Dtype = None,
    fuse_values: FuseValues = False,
    policy: Policy = "balanced",
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 for other machines.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port.")] = 8000,
    name: Annotated[
        str | None, typer.Option(help="What requests call the model; default is the name of its folder or its hub id.")
    ] = None,
    api_key: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY",
            help=f"Ask for this key; repeat for several. Words of the variable {API_KEY_ENV} are keys, too, which "
            "others on the machine do not see in the list of processes.",
        ),
    ] = None,
    share_prefixes: Annotated[
        bool, typer.Option("--share-prefixes", help="Requests with different API keys share what has been read.")
    ] = False,
    cache_budget: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="Memory for what has been read, such as 2GiB; default: half of the free GPU memory, or a quarter of "
            "the free memory.",
        ),
    ] = None,
    cache_dir: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Also keep what has been read here, over restarts.")
    ] = None,
    disk_budget: Annotated[str, typer.Option(metavar="SIZE", help="Most bytes of --cache-dir.")] = "16GiB",
    max_running: Annotated[int, typer.Option(min=1, max=1024, help="Answers that are generated together.")] = 16,
    max_waiting: Annotated[int, typer.Option(min=0, help="Requests that wait beside; the next gets 503.")] = 64,
    max_upload: Annotated[int, typer.Option(min=1, max=4096, metavar="MIB", help="Most MiB of one request.")] = 100,
    max_pages: Annotated[int | None, typer.Option(min=1, help="Most pages of one PDF.")] = None,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Longest answer, in tokens.")] = 1024,
    speculative: Speculative = None,
    graph: Annotated[
        bool,
        typer.Option(
            "--graph",
            help="On a GPU, replay the layers of a step as CUDA graphs while several answers run together; not with "
            "drafts.",
        ),
    ] = False,
) -> None:
    """Serve the model to OpenAI clients: documents are read once and packed, answers are generated together.

    It runs on this machine until it is interrupted, and nothing leaves it.
    """
    keys = (*(api_key or ()), *os.environ.get(API_KEY_ENV, "").split())
    if any(not key.strip() for key in keys) or any(not key.isascii() or not key.isprintable() for key in keys):
        raise KVMMError("--api-key takes printable ASCII characters")
    budget = None if cache_budget is None else parse_bytes(cache_budget, "--cache-budget")
    on_disk = parse_bytes(disk_budget, "--disk-budget")
    if graph and speculative is not None:
        raise KVMMError("--graph and --speculative do not go together: leave one of them out")
    get_policy(policy)  # a wrong name is said before the model is loaded
    check_address(host, port)
    # The server's imports take seconds: help and mistakes come before them.
    from kvmm.models import load_model
    from kvmm.models.loading import default_model
    from kvmm.serve.http import Settings
    from kvmm.serve.server import Options, build_service, run_server

    decoding.start()
    quiet_transformers()
    network, processor = load_model(model, device=device, dtype=dtype, fuse_values=fuse_values)
    shown = name or _shown_name(model or str(default_model()))
    hosts = LOOPBACK if host in LOOPBACK and not keys else ()
    settings = Settings(
        shown, keys, share_prefixes, max_running + max_waiting, max_new_tokens, max_upload * 2**20, hosts
    )
    options = Options(max_running, budget, cache_dir, on_disk, max_pages, speculative, graph)
    service = build_service(network, processor, policy, settings, options)
    print(f"Serving {shown} with policy {policy} at http://{host}:{port}/v1", file=sys.stderr, flush=True)
    run_server(service, host, port)


def _shown_name(model: str) -> str:
    """A hub id as it is, a folder's own name."""
    path = Path(model).expanduser()
    return path.resolve().name if path.is_dir() else model


__all__ = ["command"]
