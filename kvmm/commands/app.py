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

API_KEY_ENV = "KVMM_API_KEY"  # of kvmm serve, too
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
    endpoint: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Ask the models of this OpenAI server (such as kvmm serve: http://127.0.0.1:8000/v1) instead of one "
            "here; --model then chooses among its models.",
        ),
    ] = None,
    api_key: Annotated[
        str | None, typer.Option(metavar="KEY", help=f"The server's key; or the variable {API_KEY_ENV}.")
    ] = None,
    open_page: Annotated[bool, typer.Option("--open", help="Open the page in the default browser.")] = False,
) -> None:
    """Open the browser app: ask, compare, and see what the cache holds.

    It runs on this machine until it is interrupted, and nothing leaves it but, with --endpoint, for that server.
    """
    login = _login(auth)
    _check_launch(mcp, data)
    loading = {"device": device, "dtype": dtype, "fuse_values": fuse_values}
    server = _server(endpoint, api_key, loading)
    check_address(host, port)
    with _environment():
        serve(
            *(model or [None], loading),
            {
                "policy": policy,
                "max_pages": max_pages,
                "max_new_tokens": max_new_tokens,
                "graph": graph,
                "cache_budget": None if cache_budget is None else parse_bytes(cache_budget, "--cache-budget"),
                "data_folder": data,
            },
            {
                "server_name": host,
                "server_port": port,
                "auth": login,
                "inbrowser": open_page,
                "mcp_server": mcp,
            },
            max_file_mib=max_upload,
            endpoint=server,
        )


def _login(auth: str | None) -> tuple[str, str] | None:
    """User name and password. Raises ``KVMMError`` for what has not both."""
    if auth is None:
        return None
    user, colon, password = auth.partition(":")
    if not (user and colon and password):  # an unset variable is not a wish for no password
        raise KVMMError("--auth takes a user name and a password with a colon between them")
    return user, password


def _check_launch(mcp: bool, data: Path | None) -> None:
    """Raise ``KVMMError`` for what this machine does not have."""
    if mcp and importlib.util.find_spec("mcp") is None:
        raise KVMMError('--mcp needs one more package: pip install "kvmm[mcp]"')
    if data is not None and not data.is_dir():
        raise KVMMError(f"--data {data} is no folder")


def _server(endpoint: str | None, api_key: str | None, loading: dict[str, Any]) -> tuple[str, str | None] | None:
    """Address and key of a server, or None. Raises ``KVMMError`` for options that do not go together."""
    if endpoint is None and api_key is not None:
        raise KVMMError("--api-key is the key of a server: name it with --endpoint")
    if endpoint is not None and (given := [name.replace("_", "-") for name, value in loading.items() if value]):
        raise KVMMError(f"--{given[0]} is for a model of this app: with --endpoint the server has it")
    keys = os.environ.get(API_KEY_ENV, "").split()  # as kvmm serve reads it: the first one serves
    return None if endpoint is None else (endpoint, api_key if api_key is not None else next(iter(keys), None))


def check_address(host: str, port: int | None) -> None:
    """Find out before the model loads whether the address is free; Gradio would end its server thread instead.

    Raises ``KVMMError`` if it is not.
    """
    try:
        socket.create_server((host, port or 0)).close()
    except (OSError, OverflowError) as error:
        where = f"{host}:{port}" if port else host
        raise KVMMError(f"cannot listen on {where}: choose another --port or --host") from error


def offered(models: list[str | None]) -> list[str | None]:
    """What the app offers: where nobody named a model, the default, those in assets and the packaged ones."""
    from kvmm.models.loading import embedded_models  # imports torch
    from kvmm.models.packaged import installed_models

    return [None, *embedded_models(), *installed_models()] if models == [None] else models


def serve(
    models: list[str | None],
    loading: dict[str, Any],
    building: dict[str, Any],
    launching: dict[str, Any],
    *,
    max_file_mib: int,
    endpoint: tuple[str, str | None] | None = None,
) -> None:
    """Load the default model, build the page and serve it until it is interrupted.

    Args:
        models: folders, hub ids or packaged models; None is the default. See :func:`offered`.
        loading, building, launching: options of ``load_model``, ``build_demo`` and Gradio's ``launch``.
        max_file_mib: largest upload, in MiB.
        endpoint: address and key of a server whose models are asked instead.

    Raises:
        KVMMError: a model cannot be loaded, the policy is unknown, or no port is free.
    """
    # The app's imports take seconds: help and mistakes come before them.
    from kvmm.ui import Endpoint, EndpointModels, build_demo, launch_options, share_arenas
    from kvmm.ui import Models as Offered
    from kvmm.ui.server import running

    share_arenas()
    if endpoint is None:
        there = Offered.named(offered(models), **loading)
    else:
        there = EndpointModels(Endpoint(*endpoint), [name for name in models if name is not None])
    demo = build_demo(there, **building)
    try:
        with running.ending_with(STOP_SECONDS):  # while the server runs, which goes on with what is under way
            options = launch_options(max_file_mib=max_file_mib)
            demo.launch(**launching, **options, prevent_thread_lock=True, quiet=True)  # its lines are of share links
            print(f"kvmm is at {demo.local_url} until Ctrl+C stops it.", flush=True)
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
