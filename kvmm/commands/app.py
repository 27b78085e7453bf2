"""``kvmm app``: the browser app; ``app.py`` of a checkout is the same."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from kvmm.commands.options import Device, Dtype, FuseValues, MaxNewTokens, Models, Policy
from kvmm.errors import KVMMError
from kvmm.policy.files import parse_bytes

STOP_SECONDS = 10.0  # for what is under way when the app is stopped


def command(
    model: Models = None,
    device: Device = None,
    dtype: Dtype = None,
    fuse_values: FuseValues = False,
    policy: Policy = "balanced",
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 for other machines.")] = "127.0.0.1",
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="Port; default the first free one from 7860.")
    ] = None,
    auth: Annotated[
        str | None, typer.Option(metavar="USER:PASSWORD", help="Ask visitors for this user name and password.")
    ] = None,
    cache_budget: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="Memory for the caches of all visitors, such as 512MiB; those used longest ago are dropped and filled "
            "again when asked. Default: half of the free GPU memory, or a quarter of the free memory.",
        ),
    ] = None,
    max_upload: Annotated[int, typer.Option(min=1, metavar="MIB", help="Most MiB of one upload, all its files.")] = 100,
    mcp: Annotated[
        bool, typer.Option("--mcp", help='Also serve the endpoints as MCP tools; needs pip install "kvmm\\[mcp]".')
    ] = False,
    max_pages: Annotated[int | None, typer.Option(min=1, help="Most pages taken from one PDF.")] = None,
    max_new_tokens: MaxNewTokens = 256,
    graph: Annotated[
        bool | None,
        typer.Option(help="Generate answers by CUDA graphs; default where the model is on a GPU.", show_default=False),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Benchmarks that visitors may evaluate, beside the bundled mini sets."),
    ] = None,
    open_page: Annotated[bool, typer.Option("--open", help="Open the page in the default browser.")] = False,
) -> None:
    """Open the browser app: ask, compare, and see what the cache holds.

    It runs on this machine until it is interrupted, and nothing leaves it.
    """
    user, colon, password = (auth or "").partition(":")
    if auth is not None and not (user and colon and password):  # an unset variable is not a wish for no password
        raise KVMMError("--auth takes a user name and a password with a colon between them")
    if mcp and importlib.util.find_spec("mcp") is None:
        raise KVMMError('--mcp needs one more package: pip install "kvmm[mcp]"')
    budget = None if cache_budget is None else parse_bytes(cache_budget, "--cache-budget")
    if data is not None and not data.is_dir():
        raise KVMMError(f"--data {data} is no folder")
    check_address(host, port)
    with _environment():
        serve(
            model or [None],
            {"device": device, "dtype": dtype, "fuse_values": fuse_values},
            {
                "policy": policy,
                "max_pages": max_pages,
                "max_new_tokens": max_new_tokens,
                "graph": graph,
                "cache_budget": budget,
                "data_folder": data,
            },
            {
                "server_name": host,
                "server_port": port,
                "auth": None if auth is None else (user, password),
                "inbrowser": open_page,
                "mcp_server": mcp,
            },
            max_file_mib=max_upload,
        )


def check_address(host: str, port: int | None) -> None:
    """Find out before the model loads whether the address is free; Gradio would end its server thread instead.

    Raises ``KVMMError`` if it is not.
    """
    try:
        socket.create_server((host, port or 0)).close()
    except (OSError, OverflowError) as error:
        where = f"{host}:{port}" if port else host
        raise KVMMError(f"cannot listen on {where}: choose another --port or --host") from error


def serve(
    models: list[str | None],
    loading: dict[str, Any],
    building: dict[str, Any],
    launching: dict[str, Any],
    *,
    max_file_mib: int,
) -> None:
    """Load the default model, build the page and serve it until it is interrupted.

    Args:
        models: folders or hub ids; None is the embedded one.
        loading, building, launching: options of ``load_model``, ``build_demo`` and Gradio's ``launch``.
        max_file_mib: largest upload, in MiB.

    Raises:
        KVMMError: a model cannot be loaded, the policy is unknown, or no port is free.
    """
    # The app's imports take seconds: help and mistakes come before them.
    from kvmm.ui import Models as Offered
    from kvmm.ui import build_demo, launch_options, share_arenas
    from kvmm.ui.server import running

    share_arenas()
    demo = build_demo(Offered.named(models, **loading), **building)
    try:
        with running.ending_with(STOP_SECONDS):  # while the server runs, which goes on with what is under way
            demo.launch(**launching, **launch_options(max_file_mib=max_file_mib), prevent_thread_lock=True)
            with contextlib.suppress(KeyboardInterrupt):
                while demo.is_running:
                    time.sleep(0.1)
    except OSError as error:  # Gradio found no free port
        host = launching["server_name"]
        raise KVMMError(f"cannot listen on {host}: choose another --port or --host") from error
    finally:
        demo.close(verbose=False)


@contextlib.contextmanager
def _environment() -> Iterator[None]:
    """Set the environment that Gradio reads at import: no analytics, no version check, a folder for uploads."""
    os.environ.setdefault("PATH", os.defpath)  # pydub, which Gradio imports, looks for it
    os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    # how services are stopped: clean up then, too
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        if "GRADIO_TEMP_DIR" in os.environ:
            yield
            return
        # Uploads in a folder of this app's own: nobody else reads or deletes them, and they end with it.
        with tempfile.TemporaryDirectory(prefix="kvmm-app-", ignore_cleanup_errors=True) as folder:
            os.environ["GRADIO_TEMP_DIR"] = folder
            try:
                yield
            finally:
                del os.environ["GRADIO_TEMP_DIR"]
    finally:
        signal.signal(signal.SIGTERM, before)
